"""The records in publishes and chunks of RabbitMQ streams, in the plainest way: one dict a record.

Written from the descriptions of the protocol and of AMQP 1.0. A record that is a message of AMQP 1.0 is known by its
first section, with the short form of the descriptor.
"""

from __future__ import annotations

import gzip
import re
import struct
import uuid
import zlib
from collections.abc import Iterator
from typing import Any

import xxhash

HASH_SEED = 42
SECTIONS = {
    0x70: "header", 0x71: "delivery_annotations", 0x72: "annotations", 0x73: "properties", 0x74: "headers",
    0x75: "data", 0x76: "amqp-sequence", 0x77: "amqp-value", 0x78: "footer",
}  # fmt: skip
MAPS = {"delivery_annotations", "annotations", "headers", "footer"}
PROPERTIES = (
    "message_id", "user_id", "to_address", "subject", "reply_to", "correlation_id", "content_type", "content_encoding",
    "expiry_ts_ms", "timestamp", "group_id", "group_sequence", "reply_to_group_id",
)  # fmt: skip
HEADER = ("delivery_mode", "priority", "expiration", "first_acquirer", "delivery_count")
TRACE = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
Record = dict[str, Any]


def published(version: int, body: bytes) -> Iterator[Record]:
    """The records of a publish."""
    at = 5
    entry = 0
    for _ in range(struct.unpack_from(">I", body, 1)[0]):
        number = struct.unpack_from(">Q", body, at)[0]
        at += 8
        value = None
        if version == 2:
            size = struct.unpack_from(">H", body, at)[0]
            at += 2
            if size != 0xFFFF:
                value = body[at : at + size].decode()
                at += size
        messages, at = _entry(body, at)
        for message in messages:
            yield {"publish_seq": number, "entry": entry, "filter_value": value, **_message(message)}
        entry += len(messages)


def delivered(version: int, body: bytes, chunk: dict[str, Any]) -> Iterator[Record]:
    """The records of a chunk of which the header is read.

    Raises:
        ValueError: CRC or number of records are not those of the header.
    """
    at = 49 if version == 1 else 57
    end = at + chunk["chunk_data_length"]
    if zlib.crc32(body[at:end]) != chunk["chunk_crc"]:
        raise ValueError("wrong CRC")
    first = offset = chunk["chunk_id"]
    common = {"chunk_id": first, "chunk_ts_ns": chunk["chunk_timestamp"] * 1_000_000}
    for _ in range(chunk["chunk_entries"]):
        messages, at = _entry(body, at)
        entry = offset - first
        for message in messages:
            yield {**common, "offset": offset, "entry": entry, **_message(message)}
            offset += 1
    if offset != first + chunk["chunk_records"]:
        raise ValueError("wrong count")


def tracking(version: int, body: bytes, chunk: dict[str, Any]) -> list[Record]:
    """What a chunk of tracking data, or the trailer of another, tells of publishers and consumers."""
    at = 49 if version == 1 else 57
    kind = chunk["chunk_type"]
    at += chunk["chunk_data_length"] if kind == 0 else 4
    found = []
    while at < len(body):
        what, size = body[at], body[at + 1]
        name = body[at + 2 : at + 2 + size].decode()
        item: Record = {"kind": ("sequence", "offset", "timestamp")[what], "name": name}
        at += 2 + size
        if kind == 2 and what == 0:
            item["chunk_id"] = struct.unpack_from(">Q", body, at)[0]
            at += 8
        item["value"] = struct.unpack_from(">q" if what == 2 else ">Q", body, at)[0]
        at += 8
        found.append(item)
    return found


def _entry(content: bytes, at: int) -> tuple[list[bytes], int]:
    """The messages of an entry, and where it ends."""
    if content[at] < 0x80:
        size = struct.unpack_from(">I", content, at)[0]
        return [content[at + 4 : at + 4 + size]], at + 4 + size
    coding, count, _, size = struct.unpack_from(">BHII", content, at)
    data = content[at + 11 : at + 11 + size]
    data = gzip.decompress(data) if coding & 0x70 else data
    found, p = [], 0
    for _ in range(count):
        length = struct.unpack_from(">I", data, p)[0]
        found.append(data[p + 4 : p + 4 + length])
        p += 4 + length
    return found, at + 11 + size


def _message(message: bytes) -> Record:
    """What a record holds: plain bytes, or the sections of an AMQP 1.0 message."""
    found: Record = {"record_size": len(message), "body_kind": "raw"}
    body = message
    if message[:2] == b"\x00\x53" and len(message) > 3 and message[2] in SECTIONS:
        body, found["body_kind"], at = b"", "none", 0
        while at < len(message):
            name = SECTIONS[message[at + 2]]
            value, end = _value(message, at + 3)
            if name == "data":
                body, found["body_kind"] = body + value, name
            elif name in ("amqp-sequence", "amqp-value"):
                body, found["body_kind"] = body + message[at + 3 : end], name
            elif name == "properties":
                found.update(_properties(value))
            elif name == "header":
                found.update(_header(value))
            else:
                found[name] = value
                if name == "headers":
                    found.update(_trace(value))
            at = end
    hashed = xxhash.xxh64_intdigest(body, HASH_SEED)
    found["body_size"] = len(body)
    found["body_hash"] = hashed - (1 << 64) if hashed >> 63 else hashed
    return found


def _properties(values: list[Any]) -> Record:
    found = {name: value for name, value in zip(PROPERTIES, values, strict=False) if value is not None}
    for name in ("message_id", "correlation_id", "user_id"):
        value = found.get(name)
        if value is not None:
            found[name] = value.decode() if isinstance(value, bytes) else str(value)
    if "timestamp" in found:
        found["timestamp"] //= 1000
    return found


def _header(values: list[Any]) -> Record:
    found = {name: value for name, value in zip(HEADER, values, strict=False) if value is not None}
    if "delivery_mode" in found:
        found["delivery_mode"] = 2 if found["delivery_mode"] else 1
    if "expiration" in found:
        found["expiration"] = str(found["expiration"])
    return found


def _trace(headers: dict[Any, Any]) -> Record:
    """The trace context (W3C) that the application put in."""
    match = TRACE.fullmatch(str(headers["traceparent"])) if "traceparent" in headers else None
    if match is None:
        return {}
    return {"trace_id": match[1], "span_id": match[2], "trace_flags": int(match[3], 16)}


def _value(content: bytes, at: int) -> tuple[Any, int]:
    """A value of AMQP 1.0 and where it ends."""
    code = content[at]
    at += 1
    if code in (0x40, 0x41, 0x42, 0x43, 0x44, 0x45):
        return {0x40: None, 0x41: True, 0x42: False, 0x45: []}.get(code, 0), at
    width = {5: 1, 6: 2, 7: 4, 8: 8, 9: 16}.get(code >> 4)
    if width is not None:
        raw = content[at : at + width]
        if code == 0x56:
            return raw != b"\0", at + 1
        if code == 0x82:
            return struct.unpack(">d", raw)[0], at + 8
        if code == 0x98:
            return uuid.UUID(bytes=raw), at + 16
        signed = code in (0x51, 0x54, 0x55, 0x61, 0x71, 0x81, 0x83)
        return int.from_bytes(raw, "big", signed=signed), at + width
    count = 1 if code >> 4 in (0xA, 0xC, 0xE) else 4
    size = int.from_bytes(content[at : at + count], "big")
    at += count
    end = at + size
    if code in (0xA0, 0xB0):
        return content[at:end], end
    if code in (0xA1, 0xB1, 0xA3, 0xB3):
        return content[at:end].decode(), end
    items = []
    at += count
    while at < end:
        item, at = _value(content, at)
        items.append(item)
    return (dict(zip(items[::2], items[1::2], strict=True)) if code in (0xC1, 0xD1) else items), end
