"""Files and folders on object stores, through `pyarrow.fs`: by the methods of `Path`, and as streams of bytes."""

from __future__ import annotations

import glob
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import PurePosixPath
from threading import Thread
from typing import Any, TypeVar

from amqpscope.errors import Error, MissingError

T = TypeVar("T")

_URL = re.compile(r"([a-z][a-z0-9+.-]+)://([^/?]*)/?([^?]*)(\?.*)?", re.DOTALL)
"""Scheme, bucket, key and options."""

ANSWER_S = 15.0
"""Seconds that a store has for an answer about a file; without one it counts as unreachable."""
ATTEMPTS, SILENT_S = 3, 3.0
"""How often S3 is asked, and the seconds without a byte after which a request is abandoned."""
ASKED_AT_ONCE = 16
"""Most requests to a store side by side."""
LEAST_BLOCK, MOST_BLOCK = 1 << 18, 8 << 20
"""Bytes that are read of a file on a store at a time: few at first, because some files are only looked at."""


class StoreError(Error, OSError):
    """A store refuses, or does not answer; the message is one line."""


class MissingInStoreError(StoreError, MissingError):
    """A file or bucket is not there."""


class StorePath:
    """A file or folder on an object store, by its URL. Its methods are those of `Path`, as far as it has them."""

    def __init__(self, url: str) -> None:
        found = _URL.fullmatch(url)
        if not found:
            raise ValueError(f"{url}: not a URL")
        self._store, self._query = f"{found[1]}://{found[2]}", found[4] or ""
        self._key = PurePosixPath(found[3])

    def __str__(self) -> str:
        return f"{self._store}/{'' if self._key == PurePosixPath() else self._key}{self._query}"

    def __fspath__(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"StorePath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorePath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: StorePath) -> bool:
        return str(self) < str(other)

    def __truediv__(self, name: str | os.PathLike[str]) -> StorePath:
        return self._at(self._key / name)

    def _at(self, key: PurePosixPath) -> StorePath:
        return StorePath(f"{self._store}/{key}{self._query}")

    @property
    def name(self) -> str:
        """Last part of the key."""
        return self._key.name

    @property
    def suffix(self) -> str:
        """End of the name, from its last dot on."""
        return self._key.suffix

    @property
    def parent(self) -> StorePath:
        """The folder that it lies in."""
        return self._at(self._key.parent)

    def with_name(self, name: str) -> StorePath:
        """Return what has another name in the same folder."""
        return self._at(self._key.with_name(name))

    def absolute(self) -> StorePath:
        """Return itself."""
        return self

    resolve = absolute

    def arrow(self) -> tuple[str, Any]:
        """Return what pyarrow opens: a path, and its file system."""
        system, root = _system(self._store + self._query)
        return f"{root}/{self._key}" if self._key != PurePosixPath() else root, system

    def _ask(self, call: Callable[[Any, str], T]) -> T:
        """Return what the store answers.

        Raises:
            StoreError: it refuses.
        """
        try:
            return call(*reversed(self.arrow()))
        except FileNotFoundError as error:
            raise MissingInStoreError(_reason(error)) from error
        except Exception as error:  # pyarrow raises many kinds
            raise StoreError(_reason(error)) from error

    def _info(self) -> Any:
        """Return what the store knows of the file or folder, which comes before all else that it is asked.

        Raises:
            StoreError: the store refuses, or does not answer in time; it does not have the bucket.
        """

        def look(system: Any, path: str) -> Any:
            found = system.get_file_info(path)
            bucket = path.partition("/")[0]
            if found.type.name == "NotFound" and system.get_file_info(bucket).type.name == "NotFound":
                raise FileNotFoundError(f"no such bucket: {bucket}")
            return found

        return _answered(lambda: self._ask(look), self._store)

    def _kind(self) -> str:
        return str(self._info().type.name)

    def exists(self) -> bool:
        """Return whether there is such a file or folder."""
        return self._kind() != "NotFound"

    def is_dir(self) -> bool:
        """Return whether this is a folder: something lies in it."""
        return self._kind() == "Directory"

    def is_file(self) -> bool:
        """Return whether this is a file."""
        return self._kind() == "File"

    def size(self) -> int | None:
        """Return the size of the file in bytes; None if it is none."""
        size: int | None = self._info().size
        return size

    def _listed(self, recursive: bool) -> list[Any]:
        from pyarrow import fs  # noqa: PLC0415 - local files do not need it

        def look(system: Any, path: str) -> list[Any]:
            return list(system.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=recursive)))

        self._info()  # the bucket is there
        root = self.arrow()[0]
        return [(info.path[len(root) :].strip("/"), info.type.name == "File") for info in self._ask(look)]

    def iterdir(self) -> Iterator[StorePath]:
        """Yield what lies in the folder; nothing where there is none."""
        return (self / name for name, _ in self._listed(recursive=False))

    def rglob(self, pattern: str) -> Iterator[StorePath]:
        """Yield the files in the folder, and in folders in it, whose name matches."""
        for name, is_file in self._listed(recursive=True):
            if is_file and fnmatchcase(PurePosixPath(name).name, pattern):
                yield self / name

    def glob(self, pattern: str) -> Iterator[StorePath]:
        """Yield the files below the folder whose path from there matches; `**` stands for any folders."""
        wanted = PurePosixPath(pattern).parts
        for name, is_file in self._listed(recursive=len(wanted) > 1 or "**" in wanted):
            if is_file and _matches(PurePosixPath(name).parts, wanted):
                yield self / name

    def matching(self) -> Iterator[StorePath]:
        """Yield the files that this names as a pattern."""
        parts = self._key.parts
        fixed = next((number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts))
        return self._at(PurePosixPath(*parts[:fixed])).glob("/".join(parts[fixed:]))

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: a folder is there when something lies in it."""

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file."""
        try:
            self._ask(lambda system, path: system.delete_file(path))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove(self) -> None:
        """Remove the folder and what is in it."""
        self._ask(lambda system, path: system.delete_dir(path))

    def replace(self, target: StorePath) -> StorePath:
        """Give the file another name: the store copies it."""
        self._ask(lambda system, path: system.move(path, target.arrow()[0]))
        return target

    def read_bytes(self) -> bytes:
        """Return the content of the file."""

        def read(system: Any, path: str) -> bytes:
            with system.open_input_file(path) as file:
                found: bytes = file.read()
                return found

        return self._ask(read)

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the text of the file."""
        return self.read_bytes().decode(encoding)

    def write_text(self, text: str) -> None:
        """Write the file."""

        def write(system: Any, path: str) -> None:
            with system.open_output_stream(path, compression=None) as file:
                file.write(text.encode())

        self._ask(write)

    def open(self) -> StoreFile:
        """Return the bytes of the file."""
        return StoreFile(self.open_input())

    def open_output(self) -> Any:
        """Return the file as pyarrow writes it; it is there once it is closed."""
        return self._ask(lambda system, path: system.open_output_stream(path, compression=None))

    def open_input(self) -> Any:
        """Return the file as pyarrow reads it."""
        return self._ask(lambda system, path: system.open_input_file(path))


def sizes(paths: Sequence[StorePath]) -> list[int | None]:
    """Return the sizes of files in bytes; None where there is no file."""
    with ThreadPoolExecutor(ASKED_AT_ONCE, "amqpscope-store") as pool:
        return list(pool.map(StorePath.size, paths))


class StoreFile(io.RawIOBase):
    """A file on a store, read in blocks; the next block comes while this one is used.

    Attributes:
        length: size of the file in bytes.
    """

    def __init__(self, file: Any) -> None:
        self.length: int = file.size()
        self._file, self._at, self._after, self._size = file, 0, -1, LEAST_BLOCK
        self._block: tuple[int, memoryview] = 0, memoryview(b"")
        self._pool = ThreadPoolExecutor(1, "amqpscope-store")
        self._next: tuple[int, Future[bytes]] | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, at: int, whence: int = io.SEEK_SET) -> int:
        """Go on at a byte of the file."""
        self._at = at + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.length}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read what is there of a block."""
        begin, block = self._block
        if not begin <= self._at < begin + len(block):
            begin, block = self._block = self._at, memoryview(self._fetched())
        view = memoryview(buffer).cast("B")
        data = block[self._at - begin :][: len(view)]
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _fetched(self) -> bytes:
        """Return the block from here on; where it follows the last one, ask for the one after it."""
        if self._at >= self.length:
            return b""
        follows = self._at == self._after
        self._size = min(4 * self._size, MOST_BLOCK) if follows else LEAST_BLOCK
        if self._next is None or self._next[0] != self._at:
            self._next = self._asked(self._at)
        data = self._next[1].result()
        self._after = self._at + len(data)
        self._next = self._asked(self._after) if follows and data and self._after < self.length else None
        return data

    def _asked(self, at: int) -> tuple[int, Future[bytes]]:
        return at, self._pool.submit(self._file.read_at, min(self._size, self.length - at), at)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._file.close()
        super().close()


@lru_cache
def _system(store: str) -> tuple[Any, str]:
    """Return the file system of a store, and the path of its root there."""
    from pyarrow import fs  # noqa: PLC0415 - see above

    system, root = fs.FileSystem.from_uri(store)
    if isinstance(system, fs.S3FileSystem):
        # By itself it tries for minutes where nobody answers, and the process cannot end before.
        _, (options,) = system.__reduce__()
        retry = fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS)
        options |= {"connect_timeout": SILENT_S, "request_timeout": SILENT_S, "retry_strategy": retry}
        system = fs.S3FileSystem(**options)
    return system, root.rstrip("/")


def _answered(call: Callable[[], T], store: str) -> T:
    """Return what a store answers, or raise StoreError: it may be silent for minutes."""
    found: Future[T] = Future()

    def work() -> None:
        try:
            found.set_result(call())
        except BaseException as error:
            found.set_exception(error)

    Thread(target=work, name="amqpscope-store", daemon=True).start()
    try:
        return found.result(ANSWER_S)
    except TimeoutError as error:
        raise StoreError(f"{store} did not answer within {ANSWER_S:.0f} s") from error


def _reason(error: Exception) -> str:
    """Return what a store says, in one line."""
    text = " ".join(str(error).split())
    found = re.search(r"AWS Error (\w+)(?: \((HTTP status \d+)\))? during (\w+) operation", text)
    if not found:
        return text
    why = re.search(r"curlCode: \d+, ([^;]*)", text)
    what = found[2] if found[2] and found[1] == "UNKNOWN" else found[1].lower().replace("_", " ")
    return f"{what} ({why[1].lower() if why else found[3]})"


def _matches(parts: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Return whether the parts of a path match those of a pattern."""
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return any(_matches(parts[skipped:], wanted[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], wanted[0]) and _matches(parts[1:], wanted[1:])
