"""Find where compressed data begins anew, so that it can be decompressed from there on.

Sources: RFC 8878 (Zstandard frames); the Zstandard seekable format, version 0.1.0, whose table lists all frames; the
SAM specification, section 4.1 (BGZF: gzip in blocks whose extra field has their size).
"""

import io
import struct
from collections.abc import Iterable, Iterator

from amqpscope.dissector import places

MOST = 1 << 20
"""Most headers that are read of a file."""
_SEEN = 1 << 18  # bytes among which a block of BGZF must begin: it has at most 64 KiB
_BLOCK = struct.Struct("<4s6xH2sHH")
_MEMBER = b"\x1f\x8b\x08\x04"
_ENOUGH = 4  # blocks of BGZF that follow each other
_FRAME = 0xFD2FB528
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_TABLE = 0x8F92EAB1


def begins(path: str, size: int, compression: str | None, step: int) -> list[int]:
    """Return bytes of a file from which on it can be read, at least `step` apart, in order; the first one is 0."""
    wanted = range(step, size - step + 1, step)
    if compression is None:
        return [0, *wanted]
    found = [0]
    with places.opened(path) as file:
        candidates: Iterable[int]
        if compression == "gzip":
            candidates = (begin for at in wanted if (begin := _bgzf(file, at, size)) is not None)
        elif compression == "zstd":
            table = _table(file, size)
            # on a store, all blocks would be read for their headers
            candidates = table or (_frames(file, size) if isinstance(file, io.FileIO) else ())
        else:
            return found
        for begin in candidates:
            if begin - found[-1] >= step and size - begin >= step:
                found.append(begin)
    return found


def _bgzf(file: io.RawIOBase, at: int, size: int) -> int | None:
    """Return where a block of BGZF begins at this byte or later."""
    data = _read(file, at, _SEEN)
    first = data.find(_MEMBER)
    while first >= 0:
        place, count = first, 0
        while count < _ENOUGH and (length := _length(data, place)):
            place, count = place + length, count + 1
        if count == _ENOUGH or (count and at + place == size):
            return at + first
        first = data.find(_MEMBER, first + 1)
    return None


def _length(data: bytes, at: int) -> int:
    """Return the length of the block of BGZF that begins here; 0 if none does."""
    if len(data) - at < _BLOCK.size:
        return 0
    magic, _, kind, count, length = _BLOCK.unpack_from(data, at)
    return length + 1 if magic == _MEMBER and kind == b"BC" and count == 2 else 0


def _table(file: io.RawIOBase, size: int) -> list[int]:
    """Return where frames begin, as the table of the seekable format says; nothing without one."""
    foot = _read(file, max(0, size - 9), 9)
    if len(foot) < 9:
        return []
    count, flags, magic = struct.unpack("<IBI", foot)
    width = 12 if flags & 0x80 else 8
    if magic != _TABLE or count > MOST or 9 + count * width > size:
        return []
    entries = _read(file, size - 9 - count * width, count * width)
    lengths = [struct.unpack_from("<I", entries, at)[0] for at in range(0, len(entries), width)]
    found = [0]
    for length in lengths[:-1]:
        found.append(found[-1] + length)
    return found


def _frames(file: io.RawIOBase, size: int) -> Iterator[int]:
    """Yield where frames of Zstandard begin, as far as they are whole; skips their blocks."""
    at, reads = 0, 0
    while at < size and reads < MOST:
        head = _read(file, at, 18)
        if len(head) < 8:
            return
        magic, length = struct.unpack_from("<II", head)
        if magic in _SKIPPABLE:
            at, reads = at + 8 + length, reads + 1
            continue
        if magic != _FRAME:
            return
        yield at
        flags = head[4]
        single = flags >> 5 & 1
        content = (single, 2, 4, 8)[flags >> 6]
        at += 5 + (1 - single) + (0, 1, 2, 4)[flags & 3] + content
        last = False
        while not last:
            block = int.from_bytes(_read(file, at, 3), "little")
            last, kind, length = bool(block & 1), block >> 1 & 3, block >> 3
            at, reads = at + 3 + (1 if kind == 1 else length), reads + 1
            if kind == 3 or at > size or reads > MOST:
                return
        at += 4 * (flags >> 2 & 1)


def _read(file: io.RawIOBase, at: int, count: int) -> bytes:
    """Return bytes from this one on; fewer where the file ends."""
    file.seek(at)
    found = b""
    while more := file.read(count - len(found)):
        found += more
    return found
