"""Values and messages of AMQP 1.0, written byte by byte from the standard. Independent of the code under test."""

import struct
from collections.abc import Iterable
from uuid import UUID

NULL, EMPTY = b"\x40", b"\x45"
HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, SEQUENCE, VALUE, FOOTER = range(0x70, 0x79)
SYMBOLS = {0x73: "amqp:properties:list", 0x75: "amqp:data:binary", 0x77: "amqp:amqp-value:*"}


def sized(short: int, long: int, data: bytes, wide: bool = False) -> bytes:
    if len(data) < 256 and not wide:
        return bytes([short, len(data)]) + data
    return bytes([long]) + struct.pack(">I", len(data)) + data


def string(text: str | bytes, wide: bool = False) -> bytes:
    return sized(0xA1, 0xB1, text.encode() if isinstance(text, str) else text, wide)


def symbol(text: str, wide: bool = False) -> bytes:
    return sized(0xA3, 0xB3, text.encode(), wide)


def binary(data: bytes, wide: bool = False) -> bytes:
    return sized(0xA0, 0xB0, data, wide)


def ulong(value: int) -> bytes:
    return b"\x80" + struct.pack(">Q", value)


def uuid(text: str) -> bytes:
    return b"\x98" + UUID(text).bytes


def timestamp(ms: int) -> bytes:
    return b"\x83" + struct.pack(">q", ms)


def compound(short: int, long: int, items: Iterable[bytes], wide: bool = False, head: bytes = b"") -> bytes:
    parts = list(items)
    data = head + b"".join(parts)
    if len(data) < 255 and len(parts) < 256 and not wide:
        return bytes([short, len(data) + 1, len(parts)]) + data
    return bytes([long]) + struct.pack(">II", len(data) + 4, len(parts)) + data


def listed(*items: bytes, wide: bool = False) -> bytes:
    return compound(0xC0, 0xD0, items, wide)


def mapped(*items: bytes, wide: bool = False) -> bytes:
    """Keys and values in turn."""
    return compound(0xC1, 0xD1, items, wide)


def array(constructor: int, *elements: bytes, wide: bool = False) -> bytes:
    """Elements without their constructor."""
    return compound(0xE0, 0xF0, elements, wide, bytes([constructor]))


def described(descriptor: bytes, value: bytes) -> bytes:
    return b"\x00" + descriptor + value


def section(code: int, value: bytes, form: str = "small") -> bytes:
    """`form`: how the descriptor is written, small, ulong or symbol."""
    descriptor = {"small": bytes([0x53, code]), "ulong": ulong(code)}.get(form) or symbol(SYMBOLS[code])
    return described(descriptor, value)
