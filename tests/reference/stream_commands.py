"""The commands of RabbitMQ streams, in the plainest way: the layout of each as a line, read field by field.

Written from the description of the protocol; layouts of today only.
"""

from __future__ import annotations

import struct
from typing import Any

CHUNK = (
    "chunk_version u8, chunk_type u8, chunk_entries u16, chunk_records u32, chunk_timestamp i64, chunk_epoch u64, "
    "chunk_id u64, chunk_crc u32, chunk_data_length u32, chunk_trailer_length u32, chunk_bloom_size u8"
)
OFFSET = "offset_type u16, offset when4, offset_timestamp when5"
ANSWER = "correlation_id u32, response_code u16"
REQUESTS = {
    1: ("declare-publisher", "correlation_id u32, publisher_id u8, publisher_reference string, stream string"),
    2: ("publish", "publisher_id u8, entry_count u32"),
    3: ("publish-confirm", "publisher_id u8, publishing_ids [u64]"),
    4: ("publish-error", "publisher_id u8, publishing_errors [error]"),
    5: ("query-publisher-sequence", "correlation_id u32, publisher_reference string, stream string"),
    6: ("delete-publisher", "correlation_id u32, publisher_id u8"),
    7: ("subscribe", f"correlation_id u32, subscription_id u8, stream string, {OFFSET}, credit i16, properties map"),
    8: ("deliver", f"subscription_id u8, {CHUNK}"),
    9: ("credit", "subscription_id u8, credit i16"),
    10: ("store-offset", "reference string, stream string, offset u64"),
    11: ("query-offset", "correlation_id u32, reference string, stream string"),
    12: ("unsubscribe", "correlation_id u32, subscription_id u8"),
    13: ("create", "correlation_id u32, stream string, arguments map"),
    14: ("delete", "correlation_id u32, stream string"),
    15: ("metadata", "correlation_id u32, streams [string]"),
    16: ("metadata-update", "response_code u16, stream string"),
    17: ("peer-properties", "correlation_id u32, peer_properties map"),
    18: ("sasl-handshake", "correlation_id u32"),
    19: ("sasl-authenticate", "correlation_id u32, mechanism string, sasl_data secret"),
    20: ("tune", "frame_max u32, heartbeat u32"),
    21: ("open", "correlation_id u32, virtual_host string"),
    22: ("close", "correlation_id u32, closing_code u16, closing_reason string"),
    23: ("heartbeat", ""),
    24: ("route", "correlation_id u32, routing_key string, super_stream string"),
    25: ("partitions", "correlation_id u32, super_stream string"),
    26: ("consumer-update", "correlation_id u32, subscription_id u8, active flag"),
    27: ("exchange-command-versions", "correlation_id u32, commands [versions]"),
    28: ("stream-stats", "correlation_id u32, stream string"),
    29: (
        "create-super-stream",
        "correlation_id u32, super_stream string, partitions [string], binding_keys [string], arguments map",
    ),
    30: ("delete-super-stream", "correlation_id u32, super_stream string"),
    31: ("resolve-offset-spec", f"correlation_id u32, stream string, {OFFSET}, properties map"),
}
"""Name and fields by key."""
DELIVER_2 = f"subscription_id u8, committed_chunk_id u64, {CHUNK}"
RESPONSES = {
    5: f"{ANSWER}, sequence u64",
    9: "response_code u16, subscription_id u8",
    11: f"{ANSWER}, offset u64",
    15: "correlation_id u32, brokers [broker], streams [metadata]",
    17: f"{ANSWER}, peer_properties map",
    18: f"{ANSWER}, mechanisms [string]",
    19: f"{ANSWER}, challenge secret",
    20: "frame_max u32, heartbeat u32",
    21: f"{ANSWER}, connection_properties map",
    24: f"{ANSWER}, streams [string]",
    25: f"{ANSWER}, streams [string]",
    26: f"{ANSWER}, {OFFSET}",
    27: f"{ANSWER}, commands [versions]",
    28: f"{ANSWER}, statistics statistics",
    31: f"{ANSWER}, offset_type u16, offset u64",
}
"""Fields of the answers that are more than their code."""
STRUCTS = {
    "error": "publishing_id u64, code u16",
    "broker": "reference u16, host string, port u32",
    "metadata": "stream string, code u16, leader u16, replicas [u16]",
    "versions": "key u16, min_version u16, max_version u16",
}
NUMBERS = {
    name: struct.Struct(">" + code)
    for name, code in {
        "u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i16": "h", "i64": "q", "flag": "?", "when4": "Q", "when5": "q",
    }.items()
}  # fmt: skip
Fields = list[tuple[str, str]]


def _fields(layout: str) -> Fields:
    return [(name, kind) for name, kind in (field.split() for field in layout.split(", ") if field)]


_REQUESTS = {key: _fields(layout) for key, (_, layout) in REQUESTS.items()}
_RESPONSES = {key: _fields(RESPONSES.get(key, ANSWER)) for key in REQUESTS}
_DELIVER_2 = _fields(DELIVER_2)
_STRUCTS = {name: _fields(layout) for name, layout in STRUCTS.items()}
KINDS = {name: kind for fields in (*_REQUESTS.values(), *_RESPONSES.values(), _DELIVER_2) for name, kind in fields}
"""Kind of each field, by its name."""


def command(key: int, version: int, from_client: bool, body: bytes) -> dict[str, Any]:
    """Name, direction and fields of a command; nulls are left out."""
    number = key & 0x7FFF
    is_response = key >= 0x8000 or (number == 20 and from_client) or (number in (24, 25) and not from_client)
    fields = _RESPONSES[number] if is_response else _REQUESTS[number]
    if number == 8 and version == 2:
        fields = _DELIVER_2
    found = {"command": REQUESTS[number][0], "version": version, "is_response": is_response}
    found.update(_read(fields, body, 0)[0])
    return found


def _read(fields: Fields, body: bytes, at: int) -> tuple[dict[str, Any], int]:
    """Fields up to the end of the body; the last ones may lack."""
    found: dict[str, Any] = {}
    for name, kind in fields:
        if at >= len(body):
            break
        if kind[:4] == "when" and found["offset_type"] != int(kind[4]):
            continue
        found[name], at = _value(kind, body, at)
    return found, at


def _value(kind: str, body: bytes, at: int) -> tuple[Any, int]:
    if kind in NUMBERS:
        return NUMBERS[kind].unpack_from(body, at)[0], at + NUMBERS[kind].size
    if kind == "string":
        size = int.from_bytes(body[at : at + 2], "big")
        return body[at + 2 : at + 2 + size].decode(), at + 2 + size
    if kind == "secret":
        return "<redacted>", len(body)
    if kind in _STRUCTS:
        return _read(_STRUCTS[kind], body, at)
    count = int.from_bytes(body[at : at + 4], "big")
    at += 4
    if kind in ("map", "statistics"):
        pairs = {}
        for _ in range(count):
            name, at = _value("string", body, at)
            pairs[name], at = _value("string" if kind == "map" else "i64", body, at)
        return pairs, at
    items = []
    for _ in range(count):
        item, at = _value(kind[1:-1], body, at)
        items.append(item)
    return items, at
