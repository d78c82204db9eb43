"""Which captures an output is about: tables and pages of other captures are never replaced silently.

A capture is known by its size and by digests of its first and last bytes, wherever it lies; a file that has grown since
is the same one. What was read from a pipe is never the same.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from amqpscope.dissector import places
from amqpscope.dissector.capture.sources import Source
from amqpscope.dissector.places import Place
from amqpscope.dissector.tables.output import NOTE, OutputError
from amqpscope.errors import reason

END = 1 << 16
"""Bytes of each end of a capture that are compared."""
AT_ONCE = 16
"""Most captures that are looked at side by side: on an object store each takes two requests."""
MADE_FROM = "made_from"
"""Entry of a note: the marks of the captures."""
NAMED = 3
"""Most captures that an error names."""

Mark = Mapping[str, Any]
"""`size` of a capture in bytes, and digests of its `first` and `last` bytes."""


class Known(NamedTuple):
    """A capture: its mark, None for a pipe, and its path, empty where it need not be there any more."""

    mark: Mark | None
    path: str = ""

    def is_same(self, earlier: Mark | None) -> bool:
        """Return whether it is the capture that has this mark, or had it before it grew."""
        if self.mark is None or earlier is None or self.mark["size"] < earlier["size"]:
            return False
        if self.mark["size"] == earlier["size"]:
            return dict(self.mark) == dict(earlier)
        if self.path:
            return _mark(self.path, earlier["size"]) == earlier
        return bool(self.mark["first"] == earlier["first"])


def of_captures(sources: Sequence[Source]) -> list[Known]:
    """Return what captures are known by."""
    paths = [str(each.path) if isinstance(each.path, str) and each.size is not None else "" for each in sources]
    sizes = [each.size or 0 for each in sources]
    with ThreadPoolExecutor(AT_ONCE, "amqpscope-origin") as pool:
        marks = list(pool.map(lambda path, size: _mark(path, size) if path else None, paths, sizes))
    return [Known(mark, path) for mark, path in zip(marks, paths, strict=True)]


def of_tables(folder: Place) -> list[Known]:
    """Return what the captures are known by that a folder of tables was made from."""
    return [Known(mark) for mark in _note(folder).get(MADE_FROM, ())]


def marks(captures: Iterable[Known]) -> list[Mark | None]:
    """Return the marks of captures, for a note."""
    return [each.mark for each in captures]


def note(named: Iterable[object], times: tuple[int | None, int | None], captures: Iterable[Known]) -> dict[str, object]:
    """Return the note of an output that is made of captures.

    Args:
        named: what the user named.
        times: between which rows are wanted (ns).
        captures: what `of_captures` returned.
    """
    return {"captures": list(map(str, named)), "from_ns": times[0], "to_ns": times[1], MADE_FROM: marks(captures)}


def are_known(earlier: Sequence[Mark | None], captures: Sequence[Known]) -> bool:
    """Return whether all captures of an earlier output are among these, so that none is lost with it."""
    return bool(earlier) and all(any(each.is_same(mark) for each in captures) for mark in earlier)


def check(folder: Place, captures: Sequence[Known], replace: bool = False) -> None:
    """Check, before anything is done for it, that an output may replace what is in its folder.

    Args:
        folder: of the output; it need not exist.
        captures: of which the output will be.
        replace: whether tables of other captures may be replaced.

    Raises:
        OutputError: the folder holds tables of other captures, or cannot be seen.
    """
    try:
        is_ours = (folder / NOTE).exists()
    except OSError as error:
        raise OutputError(f"{folder}: cannot write: {reason(error)}") from error
    if replace or not is_ours:
        return  # a folder without a note is not ours: `output.claim` refuses what is in it
    note = _note(folder)
    if are_known(note.get(MADE_FROM, ()), captures):
        return
    named = [str(each) for each in note.get("captures", [note["tables"]] if "tables" in note else ())]
    what = ", ".join(named[:NAMED]) + (" ..." if len(named) > NAMED else "") or "of unknown origin"
    raise OutputError(f"{folder}: holds tables of other captures ({what}); name another folder, or give --replace")


def _note(folder: Place) -> dict[str, Any]:
    try:
        found = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    return found if isinstance(found, dict) else {}


def _mark(path: str, size: int) -> Mark | None:
    """Return the mark of the first `size` bytes of a file; None when it cannot be read."""
    try:
        with places.opened(path) as file:
            ends = [_read(file, 0, min(size, END)), _read(file, max(size - END, 0), min(size, END))]
    except OSError:
        return None
    first, last = (hashlib.sha256(end).hexdigest()[:16] for end in ends)
    return {"size": size, "first": first, "last": last}


def _read(file: io.RawIOBase, at: int, count: int) -> bytes:
    file.seek(at)
    found = bytearray()
    while len(found) < count and (data := file.read(count - len(found))):
        found += data
    return bytes(found)
