"""AMQP 0-9-1 frames as bytes, written from the protocol's grammar (specification 4.2) for what libraries do not send.

Field values are pairs of type letter and value, so that a golden says exactly what was put on the wire. Letters are
those RabbitMQ understands, see https://www.rabbitmq.com/amqp-0-9-1-errata (section 3).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import pamqp.frame

Typed = tuple[str, Any]
Table = Mapping[str, Typed]

METHOD, HEADER, BODY, HEARTBEAT, END = 1, 2, 3, 8, b"\xce"
_FIXED = {
    "b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">Q",
    "f": ">f", "d": ">d", "T": ">Q",
}  # fmt: skip
# in the order of their flags, from bit 15 down
PROPERTIES = {
    "content_type": "short", "content_encoding": "short", "headers": "table", "delivery_mode": "octet",
    "priority": "octet", "correlation_id": "short", "reply_to": "short", "expiration": "short", "message_id": "short",
    "timestamp": "time", "type": "short", "user_id": "short", "app_id": "short", "cluster_id": "short",
}  # fmt: skip


def value(typed: Typed) -> bytes:
    """One field value: its letter and its bytes."""
    letter, content = typed
    head = letter.encode()
    if letter in _FIXED:
        return head + struct.pack(_FIXED[letter], content)
    if letter == "t":
        return head + (b"\1" if content else b"\0")
    if letter == "V":
        return head
    if letter == "D":
        scale, unscaled = content
        return head + struct.pack(">Bi", scale, unscaled)
    if letter == "F":
        return head + table(content)
    if letter == "A":
        data = b"".join(value(item) for item in content)
    else:  # S and x
        data = content.encode() if isinstance(content, str) else content
    return head + struct.pack(">I", len(data)) + data


def short(text: str) -> bytes:
    """A short string."""
    data = text.encode()
    return struct.pack(">B", len(data)) + data


def table(fields: Table) -> bytes:
    """A field table with its length."""
    data = b"".join(short(name) + value(typed) for name, typed in fields.items())
    return struct.pack(">I", len(data)) + data


def as_json(typed: Typed) -> dict[str, Any]:
    """A field value as goldens spell it: `type`, `value`, and `scale` for decimals, `hex` for no text."""
    letter, content = typed
    if letter == "D":
        return {"type": letter, "scale": content[0], "value": content[1]}
    if letter == "F":
        content = table_as_json(content)
    elif letter == "A":
        content = [as_json(item) for item in content]
    elif isinstance(content, bytes):
        return {"type": letter, "value" if letter == "x" else "hex": content.hex()}
    return {"type": letter, "value": content}


def table_as_json(fields: Table) -> dict[str, Any]:
    """A field table as goldens spell it."""
    return {name: as_json(typed) for name, typed in fields.items()}


def frame(kind: int, channel: int, payload: bytes, end: bytes = END) -> bytes:
    """Any frame."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def method(channel: int, command: Any) -> bytes:
    """A method frame of a pamqp command."""
    return pamqp.frame.marshal(command, channel)


def header(channel: int, size: int, properties: Mapping[str, Any]) -> bytes:
    """A content header frame of class basic."""
    flags, data = 0, b""
    for bit, (name, kind) in enumerate(PROPERTIES.items()):
        if name not in properties:
            continue
        flags |= 1 << (15 - bit)
        content = properties[name]
        if kind == "short":
            data += short(content)
        elif kind == "octet":
            data += struct.pack(">B", content)
        elif kind == "time":
            data += struct.pack(">Q", content)
        else:
            data += table(content)
    return frame(HEADER, channel, struct.pack(">HHQH", 60, 0, size, flags) + data)


def bodies(channel: int, body: bytes, frame_max: int) -> list[bytes]:
    """The body frames of a content: none when it is empty."""
    step = frame_max - 8
    return [frame(BODY, channel, body[at : at + step]) for at in range(0, len(body), step)]


def content(channel: int, command: Any, body: bytes, properties: Mapping[str, Any], frame_max: int) -> list[bytes]:
    """All the frames of a content-bearing method."""
    return [method(channel, command), header(channel, len(body), properties), *bodies(channel, body, frame_max)]
