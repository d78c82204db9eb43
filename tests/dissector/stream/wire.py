"""The stream protocol, written byte by byte from its description. Independent of the code under test."""

import struct
import zlib
from collections.abc import Iterable, Mapping

NONE = 0xFFFFFFFF


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack(">H", len(data)) + data


def strings(texts: Iterable[str]) -> bytes:
    items = [string(text) for text in texts]
    return struct.pack(">I", len(items)) + b"".join(items)


def table(pairs: Mapping[str, str]) -> bytes:
    return struct.pack(">I", len(pairs)) + b"".join(string(k) + string(v) for k, v in pairs.items())


def binary(data: bytes | None) -> bytes:
    return struct.pack(">I", NONE) if data is None else struct.pack(">I", len(data)) + data


def frame(key: int, body: bytes = b"", version: int = 1) -> bytes:
    return struct.pack(">IHH", 4 + len(body), key, version) + body


def request(key: int, correlation: int, body: bytes = b"") -> bytes:
    return frame(key, struct.pack(">I", correlation) + body)


def response(key: int, correlation: int, code: int, body: bytes = b"", bit: bool = True) -> bytes:
    return frame(key | (0x8000 if bit else 0), struct.pack(">IH", correlation, code) + body)


# Publishing


def simple(message: bytes) -> bytes:
    return struct.pack(">I", len(message)) + message


def sub_batch(
    data: bytes, records: int, compression: int = 0, uncompressed: int | None = None, old: bool = False
) -> bytes:
    """What stands after the publishing id; `data` as stored. `old`: without the uncompressed size."""
    head = struct.pack(">BH", 0x80 | compression << 4, records)
    head += b"" if old else struct.pack(">I", len(data) if uncompressed is None else uncompressed)
    return head + struct.pack(">I", len(data)) + data


def messages(items: Iterable[bytes]) -> bytes:
    """The inside of a sub-batch."""
    return b"".join(struct.pack(">I", len(item)) + item for item in items)


def publish(publisher: int, entries: list[tuple[int, bytes]], count: int | None = None) -> bytes:
    """Entries are publishing ids with `simple` or `sub_batch`."""
    body = struct.pack(">BI", publisher, len(entries) if count is None else count)
    return frame(2, body + b"".join(struct.pack(">Q", number) + entry for number, entry in entries))


def publish_2(publisher: int, entries: list[tuple[int, str | None, bytes]], left_out: bool = False) -> bytes:
    """Publishing ids, filter values, messages. `left_out`: null filter values have no bytes at all."""
    body = struct.pack(">BI", publisher, len(entries))
    for number, value, message in entries:
        null = b"" if left_out else struct.pack(">H", 0xFFFF)
        body += struct.pack(">Q", number) + (null if value is None else string(value)) + simple(message)
    return frame(2, body, 2)


def confirm(publisher: int, numbers: list[int]) -> bytes:
    return frame(3, struct.pack(f">BI{len(numbers)}Q", publisher, len(numbers), *numbers))


def publish_error(publisher: int, errors: list[tuple[int, int]]) -> bytes:
    body = b"".join(struct.pack(">QH", number, code) for number, code in errors)
    return frame(4, struct.pack(">BI", publisher, len(errors)) + body)


# Chunks


def chunk(
    entries: list[bytes], records: int | None = None, chunk_id: int = 0, timestamp: int = 1_700_000_000_000,
    kind: int = 0, epoch: int = 1, trailer: bytes = b"", trailer_sent: bool = False, bloom: int = 0,
    crc: int | None = None, old: bool = False,
) -> bytes:  # fmt: skip
    """A chunk as delivered; `old` has the header of early 2021."""
    data = b"".join(entries)
    head = struct.pack(
        ">BBHIqQQIII", 0x50, kind, len(entries), len(entries) if records is None else records, timestamp, epoch,
        chunk_id, zlib.crc32(data) if crc is None else crc, len(data), len(trailer),
    )  # fmt: skip
    return head + (b"" if old else struct.pack(">B3x", bloom)) + data + (trailer if trailer_sent else b"")


def deliver(subscription: int, chunk_bytes: bytes, committed: int | None = None) -> bytes:
    """Version 2 when the id of the committed chunk is given."""
    head = bytes([subscription]) + (b"" if committed is None else struct.pack(">Q", committed))
    return frame(8, head + chunk_bytes, 1 if committed is None else 2)


def offset_spec(kind: int, value: int = 0) -> bytes:
    return struct.pack(">H", kind) + (
        struct.pack(">Q", value) if kind == 4 else struct.pack(">q", value) if kind == 5 else b""
    )


HEARTBEAT = frame(23)


def hello(client: str = "test") -> list[tuple[bool, bytes]]:
    """The handshake of a client, as (from the client, frame)."""
    return [
        (True, request(17, 1, table({"product": client}))),
        (False, response(17, 1, 1, table({"product": "RabbitMQ", "version": "3.13.0"}))),
        (True, request(18, 2)),
        (False, response(18, 2, 1, strings(["PLAIN", "AMQPLAIN"]))),
        (True, request(19, 3, string("PLAIN") + binary(b"\0guest\0t0p-s3cret"))),
        (False, response(19, 3, 1)),
        (False, frame(20, struct.pack(">II", 1 << 20, 60))),
        (True, frame(0x8014, struct.pack(">II", 1 << 20, 60))),
        (True, request(21, 4, string("/"))),
        (False, response(21, 4, 1, table({"advertised_host": "localhost", "advertised_port": "5552"}))),
    ]
