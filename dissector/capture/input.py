"""Read the bytes of a capture from a file, standard input or a pipe, compressed or not.

Nothing here knows the format of captures. Compression is recognised by the first bytes, never by the file name.
"""

import gzip
import io
import lzma
import os
import select
import stat
import time
from bz2 import BZ2File
from typing import Any, BinaryIO, TypeAlias

from amqpscope.dissector import places
from amqpscope.dissector.capture.live import Watch
from amqpscope.dissector.capture.model import Range
from amqpscope.dissector.kernels import limits
from amqpscope.errors import Error, MissingError, reason

STANDARD_INPUT = "-"

Readable: TypeAlias = str | BinaryIO | io.RawIOBase
"""What can be read: a path, `-`, a binary file object."""

LINGER_S = 0.05
"""Longest time that bytes of a pipe are collected before they are delivered: few large batches when much comes in, and
a live capture is seen at once."""

_READ = 1 << 16  # bytes asked of a decompressor at a time: damage loses at most as many before it

_COMPRESSIONS = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\0", "xz"),
)


class CaptureError(Error):
    """A capture cannot be read, or not to its end. The message is one line: which file, what, where."""


class MissingCaptureError(CaptureError, MissingError):
    """A capture or a key log does not exist."""


class Input:
    """A source of bytes that is read once, from its beginning to its end, or until `watch` ends it.

    Args:
        path: what is read.
        name: its name in messages.
        watch: waits for a source that is still being written, and may end it.
        part: a range of a file, to which reading is limited until `go_on` is called.

    Attributes:
        name: name of the source in messages.
        size: size of the file in bytes, as it is stored, or None when it is unknown.
        taken: number of its bytes read so far.
        compression: `gzip`, `zstd`, `lz4`, `bz2`, `xz` or None.
        damage: what is wrong with the compressed data when it cannot be read to its end; else None.

    Raises:
        CaptureError: the file does not exist, is a directory, may not be read, or cannot be read.
    """

    def __init__(self, path: Readable, name: str, watch: Watch | None = None, part: Range | None = None) -> None:
        self.name = name
        self.damage: str | None = None
        file = _open(path, name)
        self.size, self._waits = _nature(file)
        closes = isinstance(path, str) and path != STANDARD_INPUT
        self._file = _Counted(file, name, closes, watch if self._waits else None)
        if part is None:
            head = self._file.peek()
            self.compression = next((kind for magic, kind in _COMPRESSIONS if head.startswith(magic)), None)
        else:
            self._file.limit(part.begin, part.end)
            self.compression = part.compression
        self._streams = [_decompressor(self._file, self.compression)] if self.compression else []

    @property
    def taken(self) -> int:
        """Number of bytes of the file read so far, before decompression."""
        return self._file.taken

    def fill(self, buffer: memoryview, start: int, stop: int) -> tuple[int, bool]:
        """Read into `buffer[start:stop]` until it is full, the input ends, or a pipe has no more bytes for now.

        Returns:
            The end of the bytes in the buffer, and whether the input has ended.
        """
        first, deadline = start, 0.0
        while start < stop:
            if self._waits and not self.compression and start > first:
                deadline = deadline or time.monotonic() + LINGER_S
                if not select.select([self._file.file], [], [], max(0.0, deadline - time.monotonic()))[0]:
                    break
            count = self._inflate(buffer[start:stop]) if self.compression else self._file.readinto(buffer[start:stop])
            if count == 0:
                return start, True
            start += count
        return start, False

    def skip(self, count: int) -> int:
        """Read bytes and drop them; return their number, less than `count` where the input, or the range, ends."""
        scratch, left = memoryview(bytearray(min(count, _READ))), count
        while left:
            filled, ended = self.fill(scratch, 0, min(left, len(scratch)))
            left -= filled
            if ended:
                break
        return count - left

    def go_on(self) -> bool:
        """Go on after the end of the range; return False where the file ends as well, or is damaged."""
        if self.damage or not self._file.go_on():
            return False
        if self.compression:
            self._streams.append(_decompressor(self._file, self.compression))  # the one before would close the file
        return True

    def _inflate(self, view: memoryview) -> int:
        try:
            data = self._streams[-1].read1(min(len(view), _READ))
        except (OSError, EOFError, lzma.LZMAError) as error:
            why = reason(error)
            self.damage = f"{self.compression} data is truncated or damaged ({why})"
            if "emory" in why:  # as both liblzma and zstd report it
                most = limits.UNPACKING >> 20
                self.damage = f"{self.compression} data needs more than {most} MiB to decompress; decompress it first"
            return 0
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the file, unless the caller opened it."""
        self._file.close()


class Pipe(io.RawIOBase):
    """A pipe that can be read again once: the bytes read before are delivered again.

    Args:
        path: path of a named pipe or device.
        name: name of the pipe in messages.

    Raises:
        CaptureError: the pipe cannot be opened.
    """

    def __init__(self, path: str, name: str) -> None:
        self._file = _open(path, name)
        self._kept: bytes | bytearray = bytearray()
        self._again = False

    def readable(self) -> bool:
        """Return True, as for all pipes."""
        return True

    def fileno(self) -> int:
        """Return the descriptor that `select` waits for."""
        return int(self._file.fileno())

    def again(self) -> None:
        """Read from the beginning again."""
        self._again = True

    @property
    def waits(self) -> bool:
        """Whether reading may have to wait: all bytes read before are delivered."""
        return not (self._again and self._kept)

    def readinto(self, buffer: Any) -> int:
        """Read the bytes that are there, as raw files do."""
        view = memoryview(buffer).cast("B")
        if self._again and self._kept:
            count = min(len(view), len(self._kept))
            view[:count] = self._kept[:count]
            self._kept = self._kept[count:]
            return count
        count = self._file.readinto(view) or 0
        if not self._again:
            self._kept += view[:count]
        return count

    def close(self) -> None:
        """Close the pipe."""
        self._file.close()
        super().close()


class _Counted(io.RawIOBase):
    """A raw file that counts the bytes read, can be peeked into once, and raises `CaptureError`."""

    def __init__(self, file: Any, name: str, closes: bool, watch: Watch | None) -> None:
        self.file, self.taken, self._watch = file, 0, watch
        self._name, self._closes, self._head = name, closes, b""
        self._left: int | None = None

    def limit(self, begin: int, end: int | None) -> None:
        """Read from this byte on, up to another one."""
        try:
            self.file.seek(begin)
        except OSError as error:
            raise CaptureError(f"{self._name}: cannot read at byte {begin}: {reason(error)}") from error
        self._left = None if end is None else end - begin

    def go_on(self) -> bool:
        """Read without a limit; return whether it was reached."""
        is_reached, self._left = self._left == 0, None
        return is_reached

    def peek(self) -> bytes:
        """Return the first bytes (up to 6), which the next read delivers again."""
        head = bytearray(6)
        count = 0
        while count < len(head) and (more := self._read(memoryview(head)[count:])):
            count += more
        if not count and self._watch and self._watch.over:
            raise KeyboardInterrupt  # before the first byte
        self._head = bytes(head[:count])
        return self._head

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if self._head:
            count = min(len(view), len(self._head))
            view[:count] = self._head[:count]
            self._head = self._head[count:]
        else:
            count = self._read(view)
        self.taken += count
        return count

    def _read(self, view: memoryview) -> int:
        try:
            if self._watch and getattr(self.file, "waits", True) and not self._watch.wait(self.file):
                return 0
            count: int = self.file.readinto(view[: self._left]) or 0
        except OSError as error:
            raise CaptureError(f"{self._name}: reading failed at byte {self.taken}: {reason(error)}") from error
        if self._left is not None:
            self._left -= count
        return count

    def close(self) -> None:
        if self._closes:
            self.file.close()
        super().close()


def _open(path: Readable, name: str) -> Any:
    try:
        if isinstance(path, str):
            return io.FileIO(0, closefd=False) if path == STANDARD_INPUT else places.opened(path)
    except FileNotFoundError as error:
        raise MissingCaptureError(f"{name}: no such file") from error
    except PermissionError as error:
        raise CaptureError(f"{name}: permission denied") from error
    except IsADirectoryError as error:
        raise CaptureError(f"{name}: is a directory, not a capture") from error
    except (OSError, ValueError) as error:
        raise CaptureError(f"{name}: cannot open: {reason(error)}") from error
    # A buffered reader would wait until its buffer is full; take the raw file below it, if there is one.
    return getattr(path, "raw", path) if not getattr(path, "seekable", bool)() else path


def _nature(file: Any) -> tuple[int | None, bool]:
    """Return the size, if known, and whether reading may have to wait for a writer."""
    try:
        status = os.fstat(file.fileno())
    except (OSError, AttributeError, ValueError):
        return getattr(file, "length", None), False
    if stat.S_ISREG(status.st_mode):
        return status.st_size, False
    return None, stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode) or stat.S_ISCHR(status.st_mode)


def _decompressor(file: _Counted, compression: str) -> Any:
    if compression == "gzip":
        return gzip.GzipFile(fileobj=file)
    if compression == "bz2":
        return BZ2File(file)
    if compression == "xz":
        return _Xz(file)
    return _Arrow(file, compression)


class _Xz:
    """Decompress xz, also several streams in a row, in bounded memory, which `LZMAFile` does not offer."""

    def __init__(self, file: _Counted) -> None:
        self._file, self._left = file, b""
        self._decoder = self._new()

    @staticmethod
    def _new() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, limits.UNPACKING)

    def read1(self, size: int) -> bytes:
        while True:
            if self._decoder.eof:
                # Streams may be padded with zeros.
                self._left = (self._decoder.unused_data or self._left).lstrip(b"\0")
                while not self._left:
                    more = self._file.read(_READ)
                    if not more:
                        return b""
                    self._left = more.lstrip(b"\0")
                self._decoder = self._new()
            if self._decoder.needs_input and not self._left:
                self._left = self._file.read(_READ) or b""
                if not self._left:
                    raise EOFError("the end of the stream is missing")
            data = self._decoder.decompress(self._left, size)
            self._left = b""
            if data:
                return data


class _Arrow:
    """Decompress with Arrow the formats that the standard library does not know."""

    def __init__(self, file: _Counted, compression: str) -> None:
        import pyarrow as pa  # noqa: PLC0415 - uncompressed captures do not need it

        self._stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), compression)

    def read1(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        return data


def describe(head: bytes) -> str:
    """Return what the first bytes of a file that is not a capture look like, for an error message."""
    for magic, kind in (
        (b"PK\x03\x04", "a zip archive"),
        (b"PAR1", "a Parquet file"),
        (b"ARROW1", "an Arrow file"),
        (b"\x7fELF", "a program"),
        (b"%PDF", "a PDF document"),
        (b"snoop\0", "a snoop capture"),
        (b"GMBU", "a Network Monitor capture"),
        (b"RTSS", "a Network Monitor capture"),
        (b"XCP\0", "a NetXRay capture"),
        (b"SQLite", "a database"),
    ):
        if head.startswith(magic):
            return f"looks like {kind}"
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return "looks like an HTML page"
    if text.startswith(b"<"):
        return "looks like XML or HTML"
    if text.startswith((b"{", b"[")):
        return "looks like JSON"
    if all(byte in b"\t\n\r\f" or (byte >= 0x20 and byte != 0x7F) for byte in head):
        return "looks like text"
    return f"begins with bytes {head[:4].hex(' ')}"
