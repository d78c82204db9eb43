"""Writes values, structs and operations of AMQP 0-10, from the specification's data and nothing of the decoder.

A value is what Python has for it: int, bool, float, str, bytes, UUID, Decimal, None; a map is a list of `(key, type,
value)`, a list one of `(type, value)`, an array `(type, [values])`, ranges are pairs, a struct a dict of its fields by
name, a struct32 `(name, dict)`.
"""

import struct
from decimal import Decimal
from typing import Any

from amqpscope import spec
from amqpscope.spec.model import Field, Method, Struct
from tests.dissector.wire import CLIENT, SERVER, Turn

PROTOCOL = spec.load("amqp-0-10")
TYPES = {t.name: t for t in PROTOCOL.types}
PACKED = {"int": "bhiq", "uint": "BHIQ"}
ENCODINGS = {"": "utf-8", "-latin": "iso8859-15", "-utf16": "utf-16-be"}


def code(name: str) -> bytes:
    """The type code of a type."""
    number = TYPES[name].code
    assert number is not None
    return bytes([number])


def number(value: int, width: int) -> bytes:
    return value.to_bytes(width, "big")


def value(kind: str, given: Any) -> bytes:
    """A value of a type, with its length where it has one, without its code."""
    known = TYPES[kind]
    data = _inside(kind, given)
    if known.variable_width is None:
        assert len(data) == known.fixed_width, kind
        return data
    return number(len(data), known.variable_width) + data


def _inside(kind: str, given: Any) -> bytes:
    width = TYPES[kind].fixed_width or 0
    if kind in ("void", "bit"):
        return b""
    if kind == "boolean":
        return bytes([given])
    if kind == "char":
        return str(given).encode("iso8859-15")
    if kind == "char-utf32":
        return number(ord(given), 4)
    if kind in ("float", "double"):
        return struct.pack(">f" if width == 4 else ">d", given)
    if kind in ("dec32", "dec64"):
        return _decimal(given, width)
    if kind == "uuid":
        data: bytes = given.bytes
        return data
    if kind.startswith("int"):
        return int(given).to_bytes(width, "big", signed=True)
    if kind.startswith("uint") or kind in ("datetime", "sequence-no"):
        return number(given, width)
    if kind.startswith("str") and kind != "struct32":
        return str(given).encode(ENCODINGS[kind.lstrip("str816")])
    if given is None:
        return b""
    if kind in ("sequence-set", "byte-ranges"):
        size = 4 if kind == "sequence-set" else 8
        return b"".join(number(first, size) + number(last, size) for first, last in given)
    if kind == "map":
        return number(len(given), 4) + b"".join(value("str8", k) + code(t) + value(t, v) for k, t, v in given)
    if kind == "list":
        return number(len(given), 4) + b"".join(code(t) + value(t, v) for t, v in given)
    if kind == "array":
        item, items = given
        return code(item) + number(len(items), 4) + b"".join(value(item, v) for v in items)
    if kind == "struct32":
        name, fields = given
        known = PROTOCOL.struct(name)
        assert known.code is not None
        return bytes([known.class_id, known.code]) + packed(known.fields, fields, known.pack)
    assert isinstance(given, bytes), kind
    return given


def _decimal(given: Decimal, width: int) -> bytes:
    sign, digits, exponent = given.as_tuple()
    assert isinstance(exponent, int)
    whole = int("".join(map(str, digits))) * (-1 if sign else 1)
    return bytes([-exponent]) + whole.to_bytes(width - 1, "big", signed=True)


def packed(fields: tuple[Field, ...], given: dict[str, Any], pack: int = 2) -> bytes:
    """Packing flags, and the fields that are given. Bits are there where they are true."""
    assert given.keys() <= {f.name for f in fields}
    flags, data = 0, b""
    for place, item in enumerate(fields):
        if item.name in given and (item.type != "bit" or given[item.name]):
            flags |= 1 << place
            data += _field(item, given[item.name])
    return flags.to_bytes(pack, "little") + data


def _field(item: Field, given: Any) -> bytes:
    if item.type != "struct":
        return value(item.type, given)
    known = PROTOCOL.struct(item.domain)
    inside = _struct(known, given)
    return number(len(inside), known.size) + inside


def _struct(known: Struct, given: dict[str, Any]) -> bytes:
    head = b"" if known.code is None else bytes([known.class_id, known.code])
    return head + packed(known.fields, given, known.pack)


def arguments(method: Method, given: dict[str, Any], sync: bool = False) -> bytes:
    """What stands after class and code of a control or command."""
    head = bytes([1, sync]) if method.kind == "command" else b""
    return head + packed(method.fields, given)


def header(*structs: tuple[str, dict[str, Any]]) -> bytes:
    """A header segment: structs one after the other."""
    return b"".join(value("struct32", each) for each in structs)


METHODS = {m.full_name: m for m in PROTOCOL.methods}
HEADER = b"AMQP\1\1\0\x0a"
CONTROL, COMMAND, HEADERS, BODY = range(4)
LARGEST = 65_535


def frame(kind: int, payload: bytes = b"", channel: int = 1, flags: int = 15) -> bytes:
    """A frame of a segment of this kind; flags: 8 and 4 its segment, 2 and 1 itself is first and last."""
    head = bytes([flags, kind]) + number(12 + len(payload), 2) + bytes([0, kind != CONTROL]) + number(channel, 2)
    return head + bytes(4) + payload


def segment(kind: int, payload: bytes, channel: int, flags: int, largest: int) -> list[bytes]:
    """The frames of a segment, of at most so many bytes each."""
    room = largest - 12
    parts = [payload[at : at + room] for at in range(0, len(payload), room)] or [b""]
    last = len(parts) - 1
    return [frame(kind, part, channel, flags | (n == 0) << 1 | (n == last)) for n, part in enumerate(parts)]


def operation(
    name: str, /, channel: int = 1, heads: bytes | None = None, body: bytes | None = None, largest: int = LARGEST,
    sync: bool = False, **given: Any,
) -> list[bytes]:  # fmt: skip
    """The frames of a control or command, with header and body where these are given."""
    method = METHODS[name]
    payload = bytes([method.class_id, method.id]) + arguments(method, given, sync)
    parts = [(CONTROL if method.kind == "control" else COMMAND, payload)]
    parts += [(HEADERS, heads)] if heads is not None else []
    parts += [(BODY, body)] if body is not None else []
    return [
        each
        for n, (kind, data) in enumerate(parts)
        for each in segment(kind, data, channel, (n == 0) << 3 | (n == len(parts) - 1) << 2, largest)
    ]


def transfer(body: bytes | None = b"x", channel: int = 1, largest: int = LARGEST, **given: Any) -> list[bytes]:
    """The frames of a message."""
    heads = header(("message.delivery-properties", {"routing_key": "k"}), ("message.message-properties", {}))
    given.setdefault("destination", "x")
    return operation("message.transfer", channel, heads, body, largest, **given)


def opening(mechanism: str = "ANONYMOUS") -> list[Turn]:
    """A connection up to connection.open-ok."""
    arguments = {
        "connection.start": {"mechanisms": ("str16", ["ANONYMOUS", "PLAIN", "DIGEST-MD5"])},
        "connection.start-ok": {"mechanism": mechanism, "response": b"\0me\0secret"},
        "connection.tune": {"channel_max": 65534, "max_frame_size": LARGEST, "heartbeat_max": 120},
        "connection.tune-ok": {"channel_max": 65534, "max_frame_size": LARGEST, "heartbeat": 60},
        "connection.open": {"virtual_host": "v"},
        "connection.open-ok": {},
    }
    sides = {name: CLIENT if METHODS[name].from_client else SERVER for name in arguments}
    turns = [(sides[name], b"".join(operation(name, 0, **given))) for name, given in arguments.items()]
    return [(CLIENT, HEADER), (SERVER, HEADER), *turns]


def attaching(name: bytes = b"s", channel: int = 1) -> list[Turn]:
    """A session is attached; both sides count their commands from 0 on."""
    point = b"".join(operation("session.command-point", channel, command_id=0, command_offset=0))
    return [
        (CLIENT, b"".join(operation("session.attach", channel, name=name)) + point),
        (SERVER, b"".join(operation("session.attached", channel, name=name)) + point),
    ]
