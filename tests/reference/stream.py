"""RabbitMQ streams decoded in the plainest way: one object a frame, one dict a record, loops over octets.

Written from the description of the protocol. It reads whole captures of Ethernet, IPv4 and TCP without holes, in which
segments come in order; `records` gives what the table `messages` has of each record, `write` puts it into Parquet.
Independent of the code under test: it is what the dissector is compared with, in what it says and in how long it takes.
"""

from __future__ import annotations

import gzip
import itertools
import json
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dpkt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

PUBLISH, DELIVER = 2, 8
HASH_SEED = 42
SECTIONS = {
    0x70: "header", 0x71: "delivery_annotations", 0x72: "annotations", 0x73: "properties", 0x74: "headers",
    0x75: "data", 0x76: "amqp-sequence", 0x77: "amqp-value", 0x78: "footer",
}  # fmt: skip
PROPERTIES = (
    "message_id", "user_id", "to_address", "subject", "reply_to", "correlation_id", "content_type", "content_encoding",
    "expiry_ts_ms", "timestamp", "group_id", "group_sequence", "reply_to_group_id",
)  # fmt: skip
HEADER = ("delivery_mode", "priority", "expiration", "first_acquirer", "delivery_count")
STRUCTURES = {"delivery_annotations", "annotations", "headers", "footer"}
TEXTS = (
    "kind", "stream", "publisher_reference", "filter_value", "body_kind", "expiration", *PROPERTIES[:8], *STRUCTURES,
    "group_id", "reply_to_group_id",
)  # fmt: skip
NUMBERS = (
    "frame_no", "packet", "ts_ns", "publisher_id", "publish_seq", "subscription_id", "chunk_id", "chunk_ts_ns",
    "offset",
    "record_size", "body_size", "body_hash", "delivery_mode", "priority", "first_acquirer", "delivery_count",
    "expiry_ts_ms", "timestamp", "group_sequence",
)  # fmt: skip
SCHEMA = pa.schema([(name, pa.string()) for name in TEXTS] + [(name, pa.int64()) for name in NUMBERS])
Record = dict[str, Any]


@dataclass
class Connection:
    """Both directions of a TCP connection, and what its ids mean."""

    pending: dict[bool, bytearray] = field(default_factory=lambda: {True: bytearray(), False: bytearray()})
    publishers: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    subscriptions: dict[int, str] = field(default_factory=dict)
    frames: int = 0


@dataclass(frozen=True)
class Frame:
    """A frame and where it became complete."""

    connection: Connection
    number: int
    from_client: bool
    key: int
    version: int
    body: bytes
    packet: int
    ts_ns: int


def records(path: Path | str) -> Iterator[Record]:
    """All records published and delivered, in their order."""
    for frame in frames(path):
        yield from _records(frame)


def frames(path: Path | str) -> Iterator[Frame]:
    """All frames, in the order in which they became complete."""
    connections: dict[tuple[bytes, int, bytes, int], Connection] = {}
    for number, ts_ns, octets in packets(path):
        ip = dpkt.ethernet.Ethernet(octets).data
        if not isinstance(ip, dpkt.ip.IP) or not isinstance(ip.data, dpkt.tcp.TCP):
            continue
        tcp = ip.data
        key, back = (ip.src, tcp.sport, ip.dst, tcp.dport), (ip.dst, tcp.dport, ip.src, tcp.sport)
        if tcp.flags & dpkt.tcp.TH_SYN and not tcp.flags & dpkt.tcp.TH_ACK:
            connections[key] = Connection()
        connection = connections.get(key) or connections.get(back)
        if connection is not None and tcp.data:
            from_client = key in connections
            pending = connection.pending[from_client]
            pending += tcp.data
            yield from _frames(connection, from_client, pending, number, ts_ns)


def packets(path: Path | str) -> Iterator[tuple[int, int, bytes]]:
    """Number, time and octets of the packets of a little-endian pcap file."""
    with Path(path).open("rb") as file:
        magic = file.read(24)[:4]
        unit = {b"\xd4\xc3\xb2\xa1": 1000, b"\x4d\x3c\xb2\xa1": 1}[magic]
        number = 0
        while len(head := file.read(16)) == 16:
            seconds, fraction, size, _ = struct.unpack("<IIII", head)
            number += 1
            yield number, seconds * 1_000_000_000 + fraction * unit, file.read(size)


def _frames(connection: Connection, from_client: bool, pending: bytearray, packet: int, ts_ns: int) -> Iterator[Frame]:
    at = 0
    while len(pending) - at >= 8:
        size, key, version = struct.unpack_from(">IHH", pending, at)
        if len(pending) - at < 4 + size:
            break
        body = bytes(pending[at + 8 : at + 4 + size])
        at += 4 + size
        yield Frame(connection, connection.frames, from_client, key, version, body, packet, ts_ns)
        connection.frames += 1
    del pending[:at]


def _string(octets: bytes, at: int) -> tuple[str, int]:
    size = struct.unpack_from(">H", octets, at)[0]
    return octets[at + 2 : at + 2 + size].decode(), at + 2 + size


def _records(frame: Frame) -> Iterator[Record]:
    connection, body = frame.connection, frame.body
    if frame.from_client and frame.key == 1:
        reference, at = _string(body, 5)
        connection.publishers[body[4]] = _string(body, at)[0], reference or None
    elif frame.from_client and frame.key == 7:
        connection.subscriptions[body[4]] = _string(body, 5)[0]
    elif frame.from_client and frame.key == PUBLISH:
        stream, reference = connection.publishers.get(body[0], (None, None))
        common = {
            "kind": "publish", "publisher_id": body[0], "stream": stream, "publisher_reference": reference,
            "frame_no": frame.number, "packet": frame.packet, "ts_ns": frame.ts_ns,
        }  # fmt: skip
        at = 5
        for _ in range(struct.unpack_from(">I", body, 1)[0]):
            number = struct.unpack_from(">Q", body, at)[0]
            at += 8
            value = None
            if frame.version == 2:
                size = struct.unpack_from(">H", body, at)[0]
                at += 2
                if size != 0xFFFF:
                    value = body[at : at + size].decode()
                    at += size
            messages, at = _entry(body, at)
            for message in messages:
                yield common | {"publish_seq": number, "filter_value": value} | _message(message)
    elif not frame.from_client and frame.key == DELIVER:
        at = 1 + 8 * (frame.version - 1)
        kind, entries, count, ts, _, chunk_id, crc, size = struct.unpack_from(">xBHIqQQII", body, at)
        if kind != 0:
            return
        common = {
            "kind": "deliver", "subscription_id": body[0], "stream": connection.subscriptions.get(body[0]),
            "chunk_id": chunk_id, "chunk_ts_ns": ts * 1_000_000,
            "frame_no": frame.number, "packet": frame.packet, "ts_ns": frame.ts_ns,
        }  # fmt: skip
        at += 48
        if zlib.crc32(body[at : at + size]) != crc:
            raise ValueError("wrong CRC")
        offset = chunk_id
        for _ in range(entries):
            messages, at = _entry(body, at)
            for message in messages:
                yield common | {"offset": offset} | _message(message)
                offset += 1
        if offset != chunk_id + count:
            raise ValueError("wrong count")


def _entry(octets: bytes, at: int) -> tuple[list[bytes], int]:
    """The messages of an entry, and where it ends."""
    if octets[at] < 0x80:
        size = struct.unpack_from(">I", octets, at)[0]
        return [octets[at + 4 : at + 4 + size]], at + 4 + size
    coding, count, _, size = struct.unpack_from(">BHII", octets, at)
    data = octets[at + 11 : at + 11 + size]
    data = gzip.decompress(data) if coding & 0x70 else data
    found, p = [], 0
    for _ in range(count):
        length = struct.unpack_from(">I", data, p)[0]
        found.append(data[p + 4 : p + 4 + length])
        p += 4 + length
    return found, at + 11 + size


def _message(message: bytes) -> Record:
    """What a record holds: plain octets, or the sections of an AMQP 1.0 message."""
    found: Record = {"record_size": len(message), "body_kind": "raw"}
    body = message
    if message[:2] == b"\x00\x53" and len(message) > 3 and message[2] in SECTIONS:
        body, found["body_kind"], at = b"", "none", 0
        while at < len(message):
            name = SECTIONS[message[at + 2]]
            value, end = _value(message, at + 3)
            if name == "properties":
                found |= {k: v for k, v in zip(PROPERTIES, value, strict=False) if v is not None}
            elif name == "header":
                found |= {k: v for k, v in zip(HEADER, value, strict=False) if v is not None}
            elif name == "data":
                body, found["body_kind"] = body + value, name
            elif name in ("amqp-sequence", "amqp-value"):
                body, found["body_kind"] = body + message[at + 3 : end], name
            else:
                found[name] = value
            at = end
    hashed = xxhash.xxh64_intdigest(body, HASH_SEED)
    found["body_size"] = len(body)
    found["body_hash"] = hashed - (1 << 64) if hashed >> 63 else hashed
    return found


def _value(octets: bytes, at: int) -> tuple[Any, int]:
    """A value of AMQP 1.0 and where it ends."""
    code = octets[at]
    at += 1
    if code in (0x40, 0x41, 0x42, 0x43, 0x44, 0x45):
        return {0x40: None, 0x41: True, 0x42: False, 0x45: []}.get(code, 0), at
    width = {5: 1, 6: 2, 7: 4, 8: 8, 9: 16}.get(code >> 4)
    if width is not None:
        raw = octets[at : at + width]
        signed = code in (0x51, 0x54, 0x55, 0x61, 0x71, 0x81, 0x83)
        if code == 0x56:
            return raw != b"\0", at + 1
        if code == 0x82:
            return struct.unpack(">d", raw)[0], at + 8
        return int.from_bytes(raw, "big", signed=signed), at + width
    count = 1 if code >> 4 in (0xA, 0xC, 0xE) else 4
    size = int.from_bytes(octets[at : at + count], "big")
    at += count
    end = at + size
    if code in (0xA0, 0xB0):
        return octets[at:end], end
    if code in (0xA1, 0xB1, 0xA3, 0xB3):
        return octets[at:end].decode(), end
    items = []
    at += count
    while at < end:
        item, at = _value(octets, at)
        items.append(item)
    return (dict(zip(items[::2], items[1::2], strict=True)) if code in (0xC1, 0xD1) else items), end


def write(path: Path | str, target: Path | str, rows: int = 65_536) -> int:
    """Write what `records` gives to a Parquet file; returns how many there were."""
    count = 0
    found = records(path)
    with pq.ParquetWriter(target, SCHEMA, compression="zstd") as writer:
        while batch := list(itertools.islice(found, rows)):
            for row in batch:
                for name in STRUCTURES & row.keys():
                    row[name] = json.dumps(row[name])
            writer.write_table(pa.Table.from_pylist(batch, SCHEMA))
            count += len(batch)
    return count


def main() -> None:
    """Decode a capture, to a Parquet file where one is named; say how many records there were, and how long it took."""
    begin = time.process_time()
    count = write(*sys.argv[1:3]) if len(sys.argv) > 2 else sum(1 for _ in records(sys.argv[1]))
    print(json.dumps({"records": count, "cpu_s": time.process_time() - begin}))


if __name__ == "__main__":
    main()
