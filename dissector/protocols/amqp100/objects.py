"""Values of AMQP 1.0 (part 1, section 1.6) as Python objects, for the few that handshakes hold.

The module `protocols.amqp100.values` writes the values of many messages to columns; here every value
is an object of its own.
"""

from typing import Any

from amqpscope.spec import amqp100

DEEPEST = 8
"""Values within values that are read."""
WIDTHS = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}
"""Bytes of values by the high digit of their constructor; others have a size in front."""
WIDE = 0x10
"""Of those, the size has four bytes where this bit is set, else one."""
NUMBERS = ("unsigned", "signed", "timestamp", "char")


class MalformedError(Exception):
    """The bytes are no value."""


def value(data: bytes, at: int, depth: int = 0) -> tuple[Any, int]:
    """Return the value at a place, and the place after it; a described value is a tuple of descriptor and value.

    Raises:
        MalformedError: the bytes are no value, or too deep a one.
    """
    if depth > DEEPEST:
        raise MalformedError
    kind = _part(data, at, 1)[0]
    if kind == 0:
        descriptor, at = value(data, at + 1, depth + 1)
        described, at = value(data, at, depth + 1)
        return (descriptor, described), at
    return _of(kind, data, at + 1, depth)


def _of(code: int, data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Return the value of a constructor whose bytes begin here."""
    kind = amqp100.load().constructors.get(code)
    if kind is None:
        raise MalformedError
    width = WIDTHS.get(code >> 4)
    if width is None:
        wide = 4 if code & WIDE else 1
        width = int.from_bytes(_part(data, at, wide))
        at += wide
    else:
        wide = 0
    part = _part(data, at, width)
    read: Any = part
    if kind in ("null", "true", "false"):
        read = {"null": None, "true": True, "false": False}[kind]
    elif kind == "boolean":
        read = part != b"\0"
    elif kind in NUMBERS:
        read = int.from_bytes(part, signed=kind == "signed")
    elif kind == "text":
        read = part.decode("utf-8", "replace")
    elif kind in ("list", "map"):
        read = _items(part, wide, depth) if wide else []
    elif kind == "array":
        read = _array(part, wide, depth)
    return read, at + width


def _part(data: bytes, at: int, length: int) -> bytes:
    if at + length > len(data):
        raise MalformedError
    return data[at : at + length]


def _items(part: bytes, wide: int, depth: int) -> list[Any]:
    count, at = int.from_bytes(_part(part, 0, wide)), wide
    if count > len(part):  # each takes a byte at least
        raise MalformedError
    items = []
    for _ in range(count):
        item, at = value(part, at, depth + 1)
        items.append(item)
    return items


def _array(part: bytes, wide: int, depth: int) -> list[Any]:
    """Read an array, whose items share a constructor; described ones are not needed."""
    count, at = int.from_bytes(_part(part, 0, wide)), wide
    code = _part(part, at, 1)[0]
    if count > len(part) or depth > DEEPEST:
        raise MalformedError
    at += 1
    items = []
    for _ in range(count):
        item, at = _of(code, part, at, depth + 1)
        items.append(item)
    return items
