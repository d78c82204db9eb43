"""A directory that a capture rotates into: which of its files are complete, and in which order they are taken.

Files whose paths differ only in digits are of one rotation. A file is complete when a newer one of its rotation is
there, or when nothing was written to it for a while. What a file that is still open will bring comes after its first
packet: up to there, and no further, other files are merged.
"""

import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

from amqpscope.dissector.capture.input import CaptureError, MissingCaptureError
from amqpscope.dissector.capture.sources import CAPTURE_NAME, Source, first_time, place, reason
from amqpscope.dissector.packets.merging import SLACK_NS, stem

SETTLED_S = 3600.0
"""Seconds without a write after which the newest file of a rotation is complete, too: buffers of tcpdump may last long
on a quiet link."""
BATCH_BYTES = 1 << 27
"""Bytes of files beyond which no further one joins a batch: what a kill undoes at most."""
COMPRESSION = re.compile(r"\.(gz|zst|lz4|bz2|xz)$", re.IGNORECASE)
LATE = "late: older than packets of other files that were dissected before; not dissected"
AGAIN = "late: written again after it was dissected; what is new in it is not dissected"
SOONEST = -1 << 62
"""A time before all packets."""
WARNED = -1
"""Instead of the time when a taken file was written last: that it was written again is listed."""


class Plan(NamedTuple):
    """What can be taken of a directory.

    Attributes:
        sources: files, in order; those that are not dissected have their error.
        written: when each of them was written last (ns since 1970), by name.
        until: packets from this time on wait for other files (ns); None: nothing waits.
        left: number of files that are there, and not yet taken.
    """

    sources: list[Source]
    written: dict[str, int]
    until: int | None
    left: int


class _File(NamedTuple):
    """A file as it lies there."""

    path: Path
    size: int
    modified: int
    """When it was written last, in ns since 1970."""


class Folder:
    """Looks for captures in a directory, and in those below.

    Args:
        path: the directory.

    Attributes:
        changed_s: when something was last written there, in seconds since 1970.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.changed_s = 0.0
        self._begins: dict[str, int] = {}
        """Times of first packets that were found."""

    def plan(self, taken: dict[str, int], position: int, settled_s: float = SETTLED_S) -> Plan:
        """Return what can be taken now.

        Args:
            taken: the files that were taken before, by name, with the time when they were written last (ns; WARNED
                where later times do not matter). Those that are gone are removed.
            position: the time up to which packets were taken (ns).
            settled_s: seconds after which an unchanged file is complete.
        """
        files = self._files(taken)
        self._begins = {name: begin for name, begin in self._begins.items() if name in files}
        new = [each for name in files if name not in taken for each in self._source(name, files[name])]
        still = {name for name, file in files.items() if time.time() - file.modified / 1e9 < settled_s}
        growing = _newest(files, self._begins) & still
        refused = [each for each in new if each.error and not (each.name in growing and _is_compressed(each.name))]
        refused += [replace(each, error=LATE) for each in new if 0 < each.begin < position - SLACK_NS]
        names = {each.name for each in refused}
        growing -= names
        until = min((each.begin or SOONEST for each in new if each.name in growing), default=None)
        complete = [each for each in new if each.name not in growing | names]
        # A file without packets stands where its batch begins.
        begin = max(position, min((each.begin for each in complete if each.begin), default=0))
        chosen: list[Source] = []
        for each in sorted((replace(each, begin=each.begin or begin) for each in complete), key=place):
            if until is not None and each.begin >= until:
                break
            if sum(source.size or 0 for source in chosen) >= BATCH_BYTES:
                until = each.begin
                break
            chosen.append(each)
        left = len(new) - len(chosen) - len(refused)
        again = [name for name, at in taken.items() if name in files and at not in (WARNED, files[name].modified)]
        refused += [_source(name, files[name], error=AGAIN) for name in again]
        written = {each.name: files[each.name].modified for each in chosen + refused} | dict.fromkeys(again, WARNED)
        return Plan(chosen + refused, written, until, left)

    def _files(self, taken: dict[str, int]) -> dict[str, _File]:
        """Return the captures by name. One that is being compressed, or was since it was taken, is named once."""
        found: dict[str, _File] = {}
        for path in sorted(self.path.rglob("*")):
            if not CAPTURE_NAME.search(path.name):
                continue
            with suppress(OSError):  # it may be gone by now
                stat = path.stat()
                if S_ISREG(stat.st_mode):
                    name = os.fsencode(path.relative_to(self.path)).decode("utf-8", "backslashreplace")
                    found[name] = _File(path, stat.st_size, stat.st_mtime_ns)
        self.changed_s = max((file.modified for file in found.values()), default=0) / 1e9
        there = {_plain(name) for name in found}
        for name in [name for name in taken if _plain(name) not in there]:
            del taken[name]
        plain = {name for name in (*taken, *found) if not _is_compressed(name)}
        return {name: file for name, file in found.items() if name in plain or _plain(name) not in plain}

    def _source(self, name: str, file: _File) -> Iterator[Source]:
        """Yield a file that is still there, with the time of its first packet, or why it cannot be read."""
        source = _source(name, file, begin=self._begins.get(name, 0))
        try:
            begin = source.begin or first_time(source)
        except MissingCaptureError:
            return
        except CaptureError as error:
            yield replace(source, error=reason(source, error))
            return
        if begin:
            self._begins[name] = begin
        yield replace(source, begin=begin)


def _source(name: str, file: _File, begin: int = 0, error: str = "") -> Source:
    return Source(str(file.path), name, file.size, str(file.path), begin, is_named=False, error=error)


def _is_compressed(name: str) -> bool:
    return COMPRESSION.search(name) is not None


def _plain(name: str) -> str:
    return COMPRESSION.sub("", name)


def _newest(files: Mapping[str, _File], begins: Mapping[str, int]) -> set[str]:
    """Return the newest file of each rotation: written last, of equal times the one that begins last."""
    newest: dict[str, tuple[int, float, str]] = {}
    for name, file in files.items():
        key = (file.modified, begins.get(name, math.inf), name)
        rotation = stem(_plain(name))
        newest[rotation] = max(newest.get(rotation, key), key)
    return {name for _, _, name in newest.values()}
