"""From the streams of a connection to AMQP 0-10 operations, in the plainest way.

Frames are put together by direction, channel and track; of each operation only the arguments are read that statistics
need, from lists written by hand after the published document. What is not AMQP 0-10 ends the reading of its direction.
"""

from __future__ import annotations

import struct
import uuid
from pathlib import Path
from typing import Any

from tests.reference.packets import Connection, Stream, read_connections

Row = dict[str, Any]
HEAD = 12
FIRST_SEGMENT, LAST_SEGMENT = 8, 4
WIDTHS = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "uuid": 16}
LENGTHS = {"str8": 1, "str16": 2, "vbin16": 2, "set": 2, "long": 4}
CONTROLS = {
    (1, 1): ("connection.start", ""),
    (1, 2): ("connection.start-ok", ""),
    (1, 3): ("connection.secure", ""),
    (1, 4): ("connection.secure-ok", ""),
    (1, 5): ("connection.tune", ""),
    (1, 6): ("connection.tune-ok", "channel_max:u16 max_frame_size:u16 heartbeat:u16"),
    (1, 7): ("connection.open", ""),
    (1, 8): ("connection.open-ok", ""),
    (1, 9): ("connection.redirect", ""),
    (1, 10): ("connection.heartbeat", ""),
    (1, 11): ("connection.close", "reply_code:u16 reply_text:str8"),
    (1, 12): ("connection.close-ok", ""),
    (2, 1): ("session.attach", "name:vbin16 force:bit"),
    (2, 2): ("session.attached", "name:vbin16"),
    (2, 3): ("session.detach", "name:vbin16"),
    (2, 4): ("session.detached", "name:vbin16 code:u8"),
    (2, 5): ("session.request-timeout", "timeout:u32"),
    (2, 6): ("session.timeout", "timeout:u32"),
    (2, 7): ("session.command-point", "id:u32 offset:u64"),
    (2, 8): ("session.expected", "commands:set"),
    (2, 9): ("session.confirmed", "commands:set"),
    (2, 10): ("session.completed", "commands:set timely_reply:bit"),
    (2, 11): ("session.known-completed", "commands:set"),
    (2, 12): ("session.flush", ""),
    (2, 13): ("session.gap", ""),
}
COMMANDS = {
    (3, 1): ("execution.sync", ""),
    (3, 2): ("execution.result", "id:u32"),
    (3, 3): ("execution.exception", "code:u16 id:u32 class:u8 command:u8 field:u8 text:str16"),
    (4, 1): ("message.transfer", "destination:str8 accept_mode:u8 acquire_mode:u8"),
    (4, 2): ("message.accept", "transfers:set"),
    (4, 3): ("message.reject", "transfers:set code:u16 text:str8"),
    (4, 4): ("message.release", "transfers:set set_redelivered:bit"),
    (4, 5): ("message.acquire", "transfers:set"),
    (4, 6): ("message.resume", ""),
    (4, 7): ("message.subscribe", "queue:str8 destination:str8"),
    (4, 8): ("message.cancel", "destination:str8"),
    (4, 9): ("message.set-flow-mode", "destination:str8 flow_mode:u8"),
    (4, 10): ("message.flow", "destination:str8 unit:u8 value:u32"),
    (4, 11): ("message.flush", "destination:str8"),
    (4, 12): ("message.stop", "destination:str8"),
    (5, 1): ("tx.select", ""),
    (5, 2): ("tx.commit", ""),
    (5, 3): ("tx.rollback", ""),
    (7, 1): ("exchange.declare", "exchange:str8"),
    (7, 2): ("exchange.delete", "exchange:str8"),
    (7, 3): ("exchange.query", ""),
    (7, 4): ("exchange.bind", "queue:str8 exchange:str8"),
    (7, 5): ("exchange.unbind", "queue:str8 exchange:str8"),
    (7, 6): ("exchange.bound", "exchange:str8 queue:str8"),
    (8, 1): ("queue.declare", "queue:str8"),
    (8, 2): ("queue.delete", "queue:str8"),
    (8, 3): ("queue.purge", "queue:str8"),
    (8, 4): ("queue.query", "queue:str8"),
}
WITH_RESULT = {"message.acquire", "message.resume", "exchange.query", "exchange.bound", "queue.query"}
DELIVERY = (
    "discard:bit immediate:bit redelivered:bit priority:u8 mode:u8 ttl:u64 timestamp:u64 expiration:u64 exchange:str8 "
    "routing_key:str8"
)
MESSAGE = "content_length:u64 message_id:uuid"


def operations(path: Path | str) -> list[Row]:
    """The frames of a capture that complete an operation, or are none; connection by connection, by `frame_no`.

    Besides place and time each has `method` (None: a header, or a frame that completes nothing), `args`, `sync`,
    `routing_key`, `exchange` and `message_id` of its content, `body_size`, and `content_size`: bytes of header and body
    in its assembly; and of its connection `rtt_ns`, `last_ts_ns`, `fin_ts_ns`.
    """
    return [row for connection in read_connections(path) for row in _of(connection)]


def _of(connection: Connection) -> list[Row]:
    rows = [row | {"from_client": side} for side, stream in connection.streams.items() for row in _frames(stream, side)]
    rows.sort(key=lambda row: (row["place"], row["position"]))
    epochs: dict[int, int] = {}
    for frame_no, row in enumerate(rows):
        packet = connection.packets[row.pop("place")]
        if row["method"] == "session.attach":
            epochs[row["channel"]] = epochs.get(row["channel"], 0) + 1
        row |= {
            "connection": (connection.client, connection.server, connection.nth), "frame_no": frame_no,
            "packet": packet.number, "ts_ns": packet.ts_ns, "channel_epoch": epochs.get(row["channel"], 0),
            "rtt_ns": connection.rtt_ns, "last_ts_ns": connection.last_ts_ns, "fin_ts_ns": connection.fin_ts_ns,
        }  # fmt: skip
    return rows


def _frames(stream: Stream, from_client: bool) -> list[Row]:
    data, at, rows = bytes(stream.data), 0, []
    assemblies: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
    while at + 8 <= len(data):
        size, row = 8, {"method": None, "channel": 0}
        if data[at : at + 4] != b"AMQP":
            if at + HEAD > len(data):
                break
            flags, kind, size, _, track, channel, _ = struct.unpack_from(">BBHBBHI", data, at)
            if size < HEAD or at + size > len(data):
                break
            parts = assemblies.setdefault((channel, track), [])
            parts.append((kind, data[at + HEAD : at + size]))
            row = {"method": None, "channel": channel}
            if flags & LAST_SEGMENT and flags & 1:
                row |= _operation(assemblies.pop((channel, track)), track)
        rows.append(row | {"place": stream.arrived[at + size - 1], "position": at + size})
        at += size
    return rows


def _operation(parts: list[tuple[int, bytes]], track: int) -> Row:
    head, header, body = (b"".join(part for kind, part in parts if kind in kinds) for kinds in ((0, 1), (2,), (3,)))
    at, sync = 2, False
    if track == 1:
        sync, at = bool(head[3] & 1), 4
    name, fields = (COMMANDS if track == 1 else CONTROLS)[head[0], head[1]]
    found = {
        "method": name, "kind": "command" if track == 1 else "control", "sync": sync,
        "args": _fields(head[at:], fields),
        "body_size": len(body), "content_size": len(header) + len(body),
    }  # fmt: skip
    while len(header) >= 6:
        size, code = struct.unpack_from(">IH", header)
        found |= _fields(header[6 : 4 + size], {0x0401: DELIVERY, 0x0403: MESSAGE}.get(code, ""))
        header = header[4 + size :]
    return found


def _fields(data: bytes, declared: str) -> Row:
    """The arguments of these declarations, which come first in the data; those that are absent are not there."""
    flags, at, found = int.from_bytes(data[:2], "little"), 2, {}
    for number, each in enumerate(declared.split()):
        name, kind = each.split(":")
        if not flags >> number & 1:
            continue
        width = WIDTHS.get(kind, 0)
        if kind in LENGTHS:
            length = LENGTHS[kind]
            width = int.from_bytes(data[at : at + length], "big")
            at += length
        raw = data[at : at + width]
        at += width
        found[name] = _value(kind, raw)
    return found


def _value(kind: str, raw: bytes) -> Any:
    if kind == "bit":
        return True
    if kind == "set":
        numbers = struct.unpack(f">{len(raw) // 4}I", raw)
        return list(zip(numbers[::2], numbers[1::2], strict=True))
    if kind == "uuid":
        return str(uuid.UUID(bytes=raw))
    return raw.decode() if kind in LENGTHS else int.from_bytes(raw, "big")
