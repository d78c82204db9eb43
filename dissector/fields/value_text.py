"""JSON text of single values that is not plain: objects that say what they are, ranges, the fixed texts."""

import numpy as np

from amqpscope.dissector.fields.dialect import BYTES, CHARACTER, FIXED, LATIN, RANGES, TIMESTAMP, UTF16, UUID, VOID
from amqpscope.dissector.fields.json_text import (
    COMMA,
    LITERAL,
    QUOTE,
    write_bytes,
    write_characters,
    write_decimal,
    write_digits,
    write_integer,
    write_literal,
    write_uuid,
)
from amqpscope.dissector.fields.text import Bytes, Integers
from amqpscope.dissector.kernels.integers import unsigned
from amqpscope.dissector.kernels.kernel import i64, kernel

_TEXTS = (
    "null", "false", "true", '{"$string":"', '{"$bytes":"', '{"$timestamp":', '{"$decimal":"', "traceparent",
    '{"$uuid":"', '{"$char":', '{"$struct":"', '{"$count":', '{"$described":[', '{"$decimal32":"', '{"$decimal64":"',
    '{"$decimal128":"', '{"$timestamp_ms":',
)  # fmt: skip
(
    NULL, FALSE, TRUE, STRING_OPEN, BYTES_OPEN, TIMESTAMP_OPEN, DECIMAL_OPEN, TRACEPARENT, UUID_OPEN, CHARACTER_OPEN,
    STRUCT_OPEN, COUNT_OPEN, DESCRIBED_OPEN, DECIMAL32_OPEN, DECIMAL64_OPEN, DECIMAL128_OPEN, MILLISECONDS_OPEN,
) = range(len(_TEXTS))  # fmt: skip
OPEN_ARRAY, CLOSE_ARRAY, OPEN_OBJECT, CLOSE_OBJECT = (ord(c) for c in "[]{}")


def _literals() -> Bytes:
    literals = np.zeros(LITERAL * len(_TEXTS), np.uint8)
    for k, text in enumerate(_TEXTS):
        literals[LITERAL * k] = len(text)
        literals[LITERAL * k + 1 : LITERAL * k + 1 + len(text)] = list(text.encode())
    return literals


LITERALS = _literals()


@kernel
def write_rare(
    data: Bytes, at: int, end: int, kind: int, width: int, literals: Bytes, latin: Integers, escapes: Bytes,
    out: Bytes, j: int,
) -> int:  # fmt: skip
    """Write a value of one of the rarer kinds; returns where it ends."""
    if kind == VOID:
        return write_literal(literals, NULL, out, j)
    if kind == RANGES:
        return write_ranges(data, at, end, width, out, j)
    if kind in (BYTES, FIXED):
        return write_hexadecimal(data, at, end, literals, BYTES_OPEN, out, j)
    if kind in (LATIN, UTF16):
        out[j] = QUOTE
        done = write_characters(data, at, end, 1 + (kind == UTF16), escapes, latin, out, j + 1)
        if done < 0:
            return write_hexadecimal(data, at, end, literals, STRING_OPEN, out, j)
        out[done] = QUOTE
        return done + 1
    if kind == TIMESTAMP:
        j = write_literal(literals, TIMESTAMP_OPEN, out, j)
        j = write_integer(data, at, end - at, False, out, j)
    elif kind == CHARACTER:
        j = write_literal(literals, CHARACTER_OPEN, out, j)
        j = write_digits(i64(latin[data[at]]) if end == at + 1 else unsigned(data, at, 4), 1, out, j)
    else:
        j = write_literal(literals, UUID_OPEN if kind == UUID else DECIMAL_OPEN, out, j)
        j = write_uuid(data, at, out, j) if kind == UUID else write_decimal(data, at, end - at - 1, out, j)
        out[j] = QUOTE
        j += 1
    out[j] = CLOSE_OBJECT
    return j + 1


@kernel
def write_count(data: Bytes, at: int, literals: Bytes, out: Bytes, j: int) -> int:
    """Write the number of items of an array whose items have no bytes; returns where it ends."""
    j = write_integer(data, at + 1, 4, False, out, write_literal(literals, COUNT_OPEN, out, j))
    out[j] = CLOSE_OBJECT
    return j + 1


@kernel
def write_hexadecimal(data: Bytes, at: int, end: int, literals: Bytes, opening: int, out: Bytes, j: int) -> int:
    """Write bytes as an object with a text of hexadecimal digits; returns where it ends."""
    j = write_bytes(data, at, end, out, write_literal(literals, opening, out, j))
    out[j] = QUOTE
    out[j + 1] = CLOSE_OBJECT
    return j + 2


@kernel
def write_ranges(data: Bytes, at: int, end: int, width: int, out: Bytes, j: int) -> int:
    """Write pairs of numbers as lists of two in a list; returns where it ends."""
    out[j] = OPEN_ARRAY
    j += 1
    first = True
    while at + 2 * width <= end:
        if not first:
            out[j] = COMMA
            j += 1
        first = False
        out[j] = OPEN_ARRAY
        j = write_integer(data, at, width, False, out, j + 1)
        out[j] = COMMA
        j = write_integer(data, at + width, width, False, out, j + 1)
        out[j] = CLOSE_ARRAY
        j += 1
        at += 2 * width
    out[j] = CLOSE_ARRAY
    return j + 1


@kernel
def is_traceparent(data: Bytes, at: int, literals: Bytes) -> bool:
    """Return whether the 11 bytes at `at` are `traceparent`, in any case."""
    same = True
    for k in range(11):
        same = same and data[at + k] | 0x20 == literals[TRACEPARENT * LITERAL + 1 + k]
    return same
