"""What the user named, as captures in the order in which they are read: files, globs, directories, standard input."""

import glob
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from dissector.capture import CaptureFile
from dissector.input import STANDARD_INPUT, CaptureError, Pipe

CAPTURE_NAME = re.compile(r"\.(pcapng|ntar|pcap|cap|dmp)\d*(\.(gz|zst|lz4|bz2|xz))?$", re.IGNORECASE)
"""Which files of a directory are captures; a rotating capture may number them behind the ending."""
PEEK_OCTETS = 1 << 16


@dataclass(frozen=True, slots=True)
class Source:
    """One capture file."""

    path: str | Pipe
    """Of the file; or the pipe, where it had to be opened to know its place among others."""
    name: str
    """Its path below the common root of the input; of a pipe as it was given."""
    size: int | None
    """Octets of the file; None where nobody knows."""
    begin: int = 0
    """Time of the first packet, where there are others; 0 also where there is none."""


def find(paths: Iterable[str | os.PathLike[str]]) -> list[Source]:
    """The captures that these paths name, each once, in the order of their first packets.

    Where there are several, pipes among them are opened, and their first packets waited for.

    Raises:
        CaptureError: there is nothing of that name, or a file is no capture.
    """
    known: dict[str, str] = {}
    for path in paths:
        for file in _expand(os.fspath(path)):
            known.setdefault(file if file == STANDARD_INPUT else os.path.realpath(file), file)
    files = list(known.values())
    if len(files) > 1 and STANDARD_INPUT in files:
        raise CaptureError("-: standard input cannot be read together with files")
    names = _names(files)
    sources = []
    for path, name in zip(files, names, strict=True):
        opened = Pipe(path, name) if len(files) > 1 and _is_pipe(path) else path
        sources.append(Source(opened, name, _size(path)))
    if len(sources) > 1:
        sources = [replace(source, begin=_first_time(source)) for source in sources]
        sources.sort(key=lambda source: (source.begin, source.name))
    return sources


def octets(sources: Iterable[Source]) -> int | None:
    """Size of all these; None where nobody knows."""
    sizes = [source.size for source in sources]
    return None if None in sizes else sum(size or 0 for size in sizes)


def _expand(path: str) -> list[str]:
    if path == STANDARD_INPUT:
        return [path]
    if Path(path).is_dir():
        found = sorted(str(p) for p in Path(path).rglob("*") if p.is_file() and CAPTURE_NAME.search(p.name))
        if not found:
            raise CaptureError(f"{path}: no file in this directory is named as a capture (.pcap, .pcapng, .cap)")
        return found
    if glob.has_magic(path) and not Path(path).exists():
        found = sorted(p for p in glob.glob(path, recursive=True) if not Path(p).is_dir())
        if not found:
            raise CaptureError(f"{path}: no file matches")
        return found
    return [path]


def _names(paths: list[str]) -> list[str]:
    """Names for tables: text, also where a file's name is none."""
    return [os.fsencode(name).decode("utf-8", "backslashreplace") for name in _relative(paths)]


def _relative(paths: list[str]) -> list[str]:
    if len(paths) == 1:
        return [paths[0] if paths[0] == STANDARD_INPUT else Path(paths[0]).name]
    whole = {p: os.path.realpath(p) for p in paths if not _is_pipe(p)}
    root = os.path.commonpath([Path(p).parent for p in whole.values()]) if whole else ""
    return [os.path.relpath(whole[p], root) if p in whole else p for p in paths]


def _is_pipe(path: str) -> bool:
    """Whether this can be read only once."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _size(path: str) -> int | None:
    try:
        return Path(path).stat().st_size if Path(path).is_file() else None
    except OSError:
        return None


def _first_time(source: Source) -> int:
    """Time of the first packet; files without one come first."""
    time = 0
    for batch in CaptureFile(source.path, source.name, 0, batch_bytes=PEEK_OCTETS, compiled=False, alone=False):
        time = int(batch.ts_ns[0])
        break
    if isinstance(source.path, Pipe):
        source.path.again()
    return time
