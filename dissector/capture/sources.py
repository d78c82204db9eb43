"""Find the captures that a user names, in reading order: files, globs, directories, standard input."""

import glob
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from amqpscope.dissector import places
from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.capture.input import STANDARD_INPUT, CaptureError, MissingCaptureError, Pipe
from amqpscope.errors import reason as why

CAPTURE_NAME = re.compile(r"\.(pcapng|ntar|pcap|cap|dmp)\d*(\.(gz|zst|lz4|bz2|xz))?$", re.IGNORECASE)
"""Names of captures in a directory; a rotating capture may append numbers to the suffix."""
PEEK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Source:
    """One capture file."""

    path: str | Pipe
    """Path of the file; or the pipe, opened to find its place among other captures."""
    name: str
    """Its path below the common root of the input; for a pipe, the path that the user gave."""
    size: int | None
    """Size of the file in bytes; None when unknown."""
    given: str
    """The path that the user gave, for messages."""
    begin: int = 0
    """Time of the first packet, where `find` looked for it; 0 also when it has no packet."""
    is_named: bool = True
    """Whether the user named the file itself, so that it must be readable."""
    error: str = ""
    """Why it cannot be read."""


def find(
    paths: Iterable[str | os.PathLike[str]], refused: list[CaptureError] | None = None, timed: bool = False
) -> list[Source]:
    """Return the captures that these paths name, each once, in the order of their first packets.

    If there are several, this opens the pipes among them and waits for their first packets.

    Args:
        paths: files, directories, globs, or `-`.
        refused: receives the errors of unreadable files in directories and globs, which are returned with their error.
            If it is None, they are raised. Errors of files that are named themselves, and of the last one, are always
            raised.
        timed: whether the time of the first packet is wanted of a single capture, too.

    Raises:
        CaptureError: a path does not exist, or a file is not a capture.
    """
    sources = named(paths, timed)
    if len(sources) < 2 and not timed:
        look_for(sources)
        return sources
    found, errors = [], []
    for source in sources:
        try:
            found.append(replace(source, begin=first_time(source)))
        except CaptureError as error:
            if source.is_named or refused is None:
                raise
            refused.append(error)
            errors.append(replace(source, error=reason(source, error)))
    if refused and not found:
        raise refused[0]
    return sorted(found, key=place) + errors


def look_for(sources: Iterable[Source]) -> None:
    """Raise MissingCaptureError where there is no such file: it may be opened much later."""
    for source in sources:
        if isinstance(source.path, str) and source.size is None and source.path != STANDARD_INPUT:
            try:
                there = places.place(source.path).exists()
            except (OSError, ValueError):  # reported when it is opened
                continue
            if not there:
                what = "no such file or directory" if isinstance(places.place(source.path), Path) else "no such file"
                raise MissingCaptureError(f"{source.given}: {what}")


def named(paths: Iterable[str | os.PathLike[str]], timed: bool = False) -> list[Source]:
    """Return the captures that these paths name, each once, sorted by path; see `find`. Opens nothing but pipes.

    Raises:
        CaptureError: a path does not exist.
    """
    known: dict[str, tuple[str, bool]] = {}
    for path in [os.fspath(path) for path in paths]:
        for file in _expand(path):
            real = file if file == STANDARD_INPUT else places.whole(file)
            first, is_named = known.get(real, (file, False))
            known[real] = first, is_named or file == path
    files = [file for file, _ in known.values()]
    if len(files) > 1 and STANDARD_INPUT in files:
        raise CaptureError("-: standard input cannot be read together with files")
    sources = []
    for (path, is_named), name, size in zip(known.values(), _names(files), places.sizes(files), strict=True):
        opened = Pipe(path, name) if (timed or len(files) > 1) and _is_pipe(path) else path
        sources.append(Source(opened, name, size, _text(path), is_named=is_named))
    return sources


def reason(source: Source, error: CaptureError) -> str:
    """Return why a capture cannot be read, without its path."""
    return " ".join(str(error).removeprefix(f"{source.given}: ").split())


def place(source: Source) -> tuple[int, str]:
    """Return what captures are sorted by: the time of their first packet, and their name."""
    return source.begin, source.name


def total_size(sources: Iterable[Source]) -> int | None:
    """Return the size in bytes of all these captures; None when unknown."""
    sizes = [source.size for source in sources]
    return None if None in sizes else sum(size or 0 for size in sizes)


def _expand(path: str) -> list[str]:
    if path == STANDARD_INPUT:
        return [path]
    folder = places.place(path)
    try:
        if folder.is_dir():
            found = sorted(str(file) for file in places.files(folder) if CAPTURE_NAME.search(file.name))
            if not found:
                what = "no file in this directory has the name of a capture (.pcap, .pcapng, .cap)"
                raise CaptureError(f"{path}: {what}")
            return found
        if glob.has_magic(path) and not folder.exists():
            found = places.matching(path)
            if not found:
                raise MissingCaptureError(f"{path}: no file matches")
            return found
    except CaptureError:
        raise
    except FileNotFoundError as error:
        raise MissingCaptureError(f"{path}: {why(error)}") from error
    except OSError as error:
        raise CaptureError(f"{path}: {why(error)}") from error
    return [path]


def _names(paths: list[str]) -> list[str]:
    """Return names for tables: text, even if a file's name is not."""
    return [_text(name) for name in _relative(paths)]


def _text(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _relative(paths: list[str]) -> list[str]:
    if len(paths) == 1:
        return [paths[0] if paths[0] == STANDARD_INPUT else places.place(paths[0]).name]
    whole = {p: places.whole(p) for p in paths if not _is_pipe(p)}
    root = os.path.commonpath([Path(p).parent for p in whole.values()]) if whole else ""
    return [os.path.relpath(whole[p], root) if p in whole else p for p in paths]


def _is_pipe(path: str) -> bool:
    """Return whether this can be read only once."""
    if path == STANDARD_INPUT:
        return True
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def first_time(source: Source) -> int:
    """Return the time of the first packet; files without one come first."""
    time = 0
    for batch in CaptureFile(source.path, source.given, 0, batch_bytes=PEEK_BYTES, compiled=False, alone=False):
        time = int(batch.ts_ns[0])
        break
    if isinstance(source.path, Pipe):
        source.path.again()
    return time
