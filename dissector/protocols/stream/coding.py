"""Sub-batches unpacked, within bounds: gzip, snappy's framing format, LZ4 frames and zstd frames."""

import zlib

import pyarrow as pa

from amqpscope.dissector.kernels import limits

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
STREAMED = {LZ4: "lz4", ZSTD: "zstd"}
GZIP_WINDOW = 31
"""What zlib calls a gzip member (RFC 1952)."""
MEMBERS = 16
"""Members of one sub-batch, at most: there is one, and each more costs a copy of the rest."""
SNAPPY_BLOCK = 65_536
"""Bytes in a chunk of snappy's framing format, unpacked (framing format, section 4.2)."""


def unpack(data: memoryview, coding: int, size: int) -> bytes | None:
    """Return the bytes of a sub-batch.

    Args:
        data: as stored.
        coding: 1 to 4; what else there is cannot be read.
        size: bytes announced; -1 when they were not.

    Returns:
        None when they cannot be read, or are more than announced or than `limits.SUB_BATCH`.
    """
    most = limits.SUB_BATCH if size < 0 else size
    if most > limits.SUB_BATCH:
        return None
    try:
        if coding == SNAPPY:
            return _snappy(data, most)
        if coding == GZIP:
            return _gzip(data, most)
        if coding in STREAMED:
            with pa.CompressedInputStream(pa.BufferReader(data), STREAMED[coding]) as stream:
                found: bytes = stream.read(most + 1)
            return found if len(found) <= most else None
    except (OSError, ValueError, zlib.error, pa.ArrowException):
        return None
    return None


def _gzip(data: bytes | memoryview, most: int) -> bytes | None:
    """Unpack members of gzip; mostly there is one, for which setting up Arrow's stream takes four times as long."""
    found, members = b"", 0
    while data and members <= MEMBERS:
        member = zlib.decompressobj(GZIP_WINDOW)
        part = member.decompress(data, most + 1 - len(found))
        found = found + part if found else part
        if len(found) > most or not member.eof:
            return None
        data = member.unused_data
        members += 1
    return None if data else found


def _snappy(data: memoryview, most: int) -> bytes | None:
    codec = pa.Codec("snappy")
    found: list[bytes] = []
    total, at = 0, 0
    while at + 4 <= len(data):
        kind, length = data[at], int.from_bytes(data[at + 1 : at + 4], "little")
        body = data[at + 8 : at + 4 + length].tobytes()
        at += 4 + length
        if at > len(data) or (kind in (0, 1) and length < 4):
            return None
        if kind == 0:
            size = _varint(body)
            if size > SNAPPY_BLOCK:
                return None
            body = codec.decompress(body, decompressed_size=size, asbytes=True)
        elif kind != 1:
            if 2 <= kind < 0x80:  # not to be skipped
                return None
            continue
        total += len(body)
        if total > most:
            return None
        found.append(body)
    return b"".join(found)


def _varint(data: bytes) -> int:
    value = 0
    for k, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << 7 * k
        if byte < 0x80:
            return value
    raise ValueError("no size in front")
