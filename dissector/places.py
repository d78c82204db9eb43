"""Files and folders by path or by URL: on this machine, or on an object store.

A `Place` is a `Path`, or a `StorePath` with the methods of `Path` that are used here. Code that takes a `Place` treats
both alike; where pyarrow opens a file by itself, `arrow` tells it how.
"""

from __future__ import annotations

import glob
import io
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from amqpscope.errors import MissingError

if TYPE_CHECKING:  # local files do not need it
    from amqpscope.dissector.stores import StorePath

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://")
"""What URLs begin with."""

Place: TypeAlias = Union[Path, "StorePath"]
"""A file or folder."""


def place(path: str | os.PathLike[str]) -> Place:
    """Return the file or folder that a path or URL names.

    Raises:
        MissingError: the path is empty, as a variable of a shell is that nobody has set.
    """
    text = os.fspath(path)
    if not text:
        raise MissingError("the path of a file or folder is empty")
    if not _SCHEME.match(text):
        return Path(text)
    from amqpscope.dissector.stores import StorePath  # noqa: PLC0415 - see above

    return StorePath(text)


def files(folder: Place) -> list[Place]:
    """Return the files in a folder, and in folders in it.

    Raises:
        OSError: the folder cannot be read; folders in it that cannot be read count as empty.
    """
    if isinstance(folder, Path):
        next(folder.iterdir(), None)  # rglob finds nothing where this raises
        return [path for path in folder.rglob("*") if path.is_file()]
    return list(folder.rglob("*"))


def matching(pattern: str) -> list[str]:
    """Return the files that a pattern names, in order."""
    found = place(pattern)
    if not isinstance(found, Path):
        return sorted(map(str, found.matching()))
    here = glob.glob(pattern, recursive=True)  # noqa: PTH207 - keeps paths as the user writes them
    return sorted(path for path in here if not Path(path).is_dir())


def sizes(paths: Sequence[str]) -> list[int | None]:
    """Return the sizes of files in bytes; None where there is no file."""
    far = {path: found for path in paths if not isinstance(found := place(path), Path)}
    if not far:
        return [_size(Path(path)) for path in paths]
    from amqpscope.dissector.stores import sizes  # noqa: PLC0415 - see above

    known = dict(zip(far, sizes(list(far.values())), strict=True))
    return [known[path] if path in far else _size(Path(path)) for path in paths]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except (OSError, ValueError):
        return None


def whole(path: str) -> str:
    """Return the one name of a file, as an absolute path; that of a store is none of this machine."""
    found = place(path)
    return os.path.realpath(path) if isinstance(found, Path) else f"/{found}".replace("://", ":/", 1)


def arrow(path: Place) -> tuple[str, Any]:
    """Return what pyarrow opens: a path, and its file system; None is that of this machine."""
    return (str(path), None) if isinstance(path, Path) else path.arrow()


def readable(path: Place) -> Any:
    """Return what pyarrow reads: the path of a local file, or an open file."""
    return str(path) if isinstance(path, Path) else path.open_input()


def mapped(path: Place) -> Any:
    """Return an open file of pyarrow, mapped to memory if it is local."""
    import pyarrow as pa  # noqa: PLC0415 - see above

    return pa.memory_map(str(path)) if isinstance(path, Path) else path.open_input()


def writable(path: Place) -> Any:
    """Return a file that pyarrow writes, opened anew."""
    import pyarrow as pa  # noqa: PLC0415 - see above

    return pa.OSFile(str(path), "wb") if isinstance(path, Path) else path.open_output()


def draft(path: Place) -> Place:
    """Return the name of a file while it is written. On a store it is the same: a file is there once it is complete."""
    return path.with_name(f".{path.name}.writing") if isinstance(path, Path) else path


def rename(path: Place, target: Place) -> None:
    """Give a file its name, where another file may be; both are on this machine, or in the same store."""
    if path != target:
        path.replace(target)  # type: ignore[arg-type] # of the same kind


def opened(path: str) -> io.RawIOBase:
    """Return the bytes of a file.

    Raises:
        OSError: it cannot be opened.
    """
    found = place(path)
    return io.FileIO(path) if isinstance(found, Path) else found.open()


def remove_tree(folder: Place) -> None:
    """Remove a folder and what is in it, as far as that is possible."""
    if isinstance(folder, Path):
        import shutil  # noqa: PLC0415

        shutil.rmtree(folder, ignore_errors=True)
        return
    with suppress(OSError):
        folder.remove()
