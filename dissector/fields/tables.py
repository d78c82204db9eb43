r"""Field tables of AMQP 0-9-1 (section 4.2.5.5) to JSON text, with the type letters that RabbitMQ speaks.

| letter | value | JSON |
|---|---|---|
| `t` | boolean, any byte but 0 is true | `true`, `false` |
| `b` `B` `s` `u` `I` `i` | signed and unsigned integers of 8, 16 and 32 bits | number |
| `l` `L` | signed integer of 64 bits | number, with all its digits |
| `f` `d` | IEEE 754 of 32 and 64 bits | number with `.` or `e`; `{"$double":"NaN"}`, `Infinity`, `-Infinity` |
| `D` | decimal: byte with the scale, signed integer of 32 bits | `{"$decimal":"12.34"}` |
| `S` | long string | string; `{"$string":"<hex>"}` where it is not UTF-8 |
| `x` | byte array | `{"$bytes":"<hex>"}` |
| `T` | unsigned 64 bits, seconds since the epoch | `{"$timestamp":1690000000}` |
| `A` `F` | array, table | array, object |
| `V` | void | `null` |

The published letters differ (`s` is a short string there, `L` unsigned); RabbitMQ has both `l` and `L` signed, and so
have its clients. Of `D` the published text says signed, as the Java client and pika write it; the broker hands the 32
bits on. A key that begins with `$` gets another `$` in front, so that objects with one key of `$` are ours alone. Keys
that occur twice stay, in their order. A key that is no UTF-8 has `\xNN` for each wrong byte.

A table that breaks off, or has an unknown letter, gives the JSON of what came before, properly closed. Tables and
arrays nested deeper than `DEPTH` are `null`.
"""

import functools
import math
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amqpscope.dissector.fields.json_text import (
    COLON,
    COMMA,
    DOLLAR,
    ESCAPES,
    QUOTE,
    write_decimal,
    write_escaped,
    write_integer,
    write_literal,
    write_string,
)
from amqpscope.dissector.fields.problems import TABLE_MALFORMED, TABLE_TOO_DEEP, TABLE_TYPE_UNKNOWN, TEXT_NOT_UTF8
from amqpscope.dissector.fields.text import Integers, Octets, write_hex
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.dissector.kernels.words import unsigned

DEPTH = 64
"""Levels of tables and arrays, the outermost table included."""

GROWTH = 6
"""A byte of a table becomes at most this many: a control character in a string; a decimal of 6 becomes at most 34."""

PROBLEMS = 3
"""One table has at most this many problems: each of keys and depth is told once, what ends it once."""

UNKNOWN, SIGNED, UNSIGNED, BOOLEAN, FLOAT, DECIMAL, TIMESTAMP, VOID, STRING, BYTES, TABLE, ARRAY = range(12)
LETTERS = {
    "t": (BOOLEAN, 1), "b": (SIGNED, 1), "B": (UNSIGNED, 1), "s": (SIGNED, 2), "u": (UNSIGNED, 2), "I": (SIGNED, 4),
    "i": (UNSIGNED, 4), "l": (SIGNED, 8), "L": (SIGNED, 8), "f": (FLOAT, 4), "d": (FLOAT, 8), "D": (DECIMAL, 5),
    "T": (TIMESTAMP, 8), "V": (VOID, 0), "S": (STRING, 4), "x": (BYTES, 4), "F": (TABLE, 4), "A": (ARRAY, 4),
}  # fmt: skip
"""Kind and width of each type letter; for those from `STRING` on, the width is that of the length in front."""

NULL, FALSE, TRUE, STRING_OPEN, BYTES_OPEN, TIMESTAMP_OPEN, DECIMAL_OPEN, TRACEPARENT = range(8)
_TEXTS = ("null", "false", "true", '{"$string":"', '{"$bytes":"', '{"$timestamp":', '{"$decimal":"', "traceparent")
_LITERAL = 16

OPEN_ARRAY, CLOSE_ARRAY, OPEN_OBJECT, CLOSE_OBJECT = (ord(c) for c in "[]{}")


@dataclass(frozen=True, slots=True)
class Tables:
    """Rendered tables, one behind the other."""

    octets: Octets
    """JSON, valid UTF-8."""
    sizes: Integers
    """Bytes of each table in `octets`."""
    trace: Integers
    """(tables, 2): where in the data the value of the outermost key `traceparent`, in any case, is, and its octets: 0
    when it is neither string nor byte array; -1, 0 where there is no such key. Of several keys the first."""
    problems: Integers
    """(problems, 3): table, index into `PROBLEM_CODES`, place in the data."""


def render(data: Octets, at: Integers, size: Integers, compiled: bool) -> Tables:
    """Render the tables whose entries are `size[e]` bytes (at least 0) from `data[at[e]]` on, all within `data`."""
    total, n = int(size.sum()), len(at)
    octets = np.empty(GROWTH * total + 2 * n, np.uint8)
    sizes = np.empty(n, np.int64)
    trace = np.empty((n, 2), np.int64)
    floats = np.empty((total // 5, 4), np.int64)
    problems = np.empty((PROBLEMS * n, 3), np.int64)
    used = np.empty(3, np.int64)
    stack = np.empty((DEPTH, 2), np.int64)
    call(
        render_tables, compiled, data, at, size, _KINDS, _WIDTHS, ESCAPES, LITERALS,
        stack, octets, sizes, trace, floats, problems, used,
    )  # fmt: skip
    length, n_floats, n_problems = used.tolist()
    octets = octets[:length]
    octets = insert_floats(octets, sizes, data, floats[:n_floats]) if n_floats else octets.copy()
    return Tables(octets, sizes, trace, problems[:n_problems])


def insert_floats(octets: Octets, sizes: Integers, data: Octets, floats: Integers) -> Octets:
    """Put the texts of floats, for which kernels are not made, where they belong; `sizes` grow with them."""
    pieces: list[memoryview | bytes] = []
    done, source = 0, octets.data
    for place, table, at, width in floats.tolist():
        text = float_text(data[at : at + width].tobytes())
        pieces += (source[done:place], text)
        sizes[table] += len(text)
        done = place
    pieces.append(source[done:])
    return np.frombuffer(b"".join(pieces), np.uint8)


@functools.lru_cache(1 << 14)
def float_text(octets: bytes) -> bytes:
    """JSON of a float of 4 or 8 bytes, big-endian: the fewest digits that give the same bits again."""
    (value,) = struct.unpack(">f" if len(octets) == 4 else ">d", octets)
    if math.isfinite(value):
        # of 32 bits numpy finds the digits; they are few enough to be the repr of the float that they make
        return repr(value if len(octets) == 8 else float(str(np.float32(value)))).encode()
    name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return b'{"$double":"%s"}' % name.encode()


def _tables() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Octets]:
    kinds, widths = np.zeros(256, np.int64), np.zeros(256, np.int64)
    for letter, (kind, width) in LETTERS.items():
        kinds[ord(letter)], widths[ord(letter)] = kind, width
    literals = np.zeros(_LITERAL * len(_TEXTS), np.uint8)
    for k, text in enumerate(_TEXTS):
        literals[_LITERAL * k] = len(text)
        literals[_LITERAL * k + 1 : _LITERAL * k + 1 + len(text)] = list(text.encode())
    return kinds, widths, literals


_KINDS, _WIDTHS, LITERALS = _tables()


@kernel
def render_tables(
    data: Octets, at: Integers, size: Integers, kinds: Integers, widths: Integers, escapes: Octets, literals: Octets,
    stack: Integers, out: Octets, sizes: Integers, trace: Integers, floats: Integers, problems: Integers,
    used: Integers,
) -> None:  # fmt: skip
    """Render all tables; `stack` holds end and closing byte of the levels around the one at hand.

    Every read lies before the end of its level: key and value are measured before either is written. Floats are left
    out and listed in `floats`: place in `out`, table, place in `data`, width. `used` gets the bytes of `out`, the
    floats and the problems.
    """
    j = 0
    n_floats = 0
    n_problems = 0
    for e in range(len(at)):
        i = at[e]
        begin = j
        depth = 0
        end = i + size[e]
        close = CLOSE_OBJECT
        out[j] = OPEN_OBJECT
        j += 1
        first = True
        trace[e, 0] = -1
        trace[e, 1] = 0
        broken = -1
        told_text = False
        told_depth = False
        while depth >= 0:
            if i >= end or broken >= 0:
                out[j] = close
                j += 1
                depth -= 1
                if depth >= 0:
                    end = stack[depth, 0]
                    close = stack[depth, 1]
                first = False
                continue
            # measure: key, letter, length, value
            named = close == CLOSE_OBJECT
            key = i + 1
            if named:
                i = key + data[i]
                if i >= end:
                    broken = TABLE_MALFORMED
            key_end = i
            kind = UNKNOWN
            width = 0
            value = i + 1
            after = value
            if broken < 0:
                kind = kinds[data[i]]
                width = widths[data[i]]
                after = value + width
                if kind == UNKNOWN:
                    broken = TABLE_TYPE_UNKNOWN
                elif after > end:
                    broken = TABLE_MALFORMED
                elif kind >= STRING:
                    value = after
                    after += unsigned(data, value - 4, 4)
                    if after > end:
                        broken = TABLE_MALFORMED
            if broken >= 0:
                problems[n_problems, 0] = e
                problems[n_problems, 1] = broken
                problems[n_problems, 2] = key - 1 if named else i
                n_problems += 1
                continue
            # write
            if not first:
                out[j] = COMMA
                j += 1
            first = False
            if named:
                if depth == 0 and key_end - key == 11 and trace[e, 0] < 0 and is_traceparent(data, key, literals):
                    trace[e, 0] = value
                    trace[e, 1] = after - value if kind in (STRING, BYTES) else 0
                out[j] = QUOTE
                j += 1
                if key < key_end and data[key] == DOLLAR:
                    out[j] = DOLLAR
                    j += 1
                done = write_string(data, key, key_end, escapes, out, j)
                if done < 0:
                    done = write_escaped(data, key, key_end, escapes, out, j)
                    if not told_text:
                        told_text = True
                        problems[n_problems, 0] = e
                        problems[n_problems, 1] = TEXT_NOT_UTF8
                        problems[n_problems, 2] = key
                        n_problems += 1
                out[done] = QUOTE
                out[done + 1] = COLON
                j = done + 2
            i = after
            opening = -1
            if kind == STRING:
                out[j] = QUOTE
                done = write_string(data, value, after, escapes, out, j + 1)
                if done >= 0:
                    out[done] = QUOTE
                    j = done + 1
                else:
                    opening = STRING_OPEN
            elif kind in (TABLE, ARRAY):
                if depth + 1 < DEPTH:
                    stack[depth, 0] = end
                    stack[depth, 1] = close
                    depth += 1
                    end = after
                    close = CLOSE_OBJECT if kind == TABLE else CLOSE_ARRAY
                    out[j] = OPEN_OBJECT if kind == TABLE else OPEN_ARRAY
                    j += 1
                    first = True
                    i = value
                else:
                    opening = NULL
                    if not told_depth:
                        told_depth = True
                        problems[n_problems, 0] = e
                        problems[n_problems, 1] = TABLE_TOO_DEEP
                        problems[n_problems, 2] = value - 5
                        n_problems += 1
            elif kind == BOOLEAN:
                opening = TRUE if data[value] else FALSE
            elif kind == VOID:
                opening = NULL
            elif kind == BYTES:
                opening = BYTES_OPEN
            elif kind == TIMESTAMP:
                opening = TIMESTAMP_OPEN
            elif kind == DECIMAL:
                opening = DECIMAL_OPEN
            elif kind == FLOAT:
                floats[n_floats, 0] = j
                floats[n_floats, 1] = e
                floats[n_floats, 2] = value
                floats[n_floats, 3] = width
                n_floats += 1
            if opening >= 0:
                j = write_literal(literals, opening, out, j)
            if kind in (SIGNED, UNSIGNED, TIMESTAMP):
                j = write_integer(data, value, width, kind == SIGNED, out, j)
            elif kind == DECIMAL:
                j = write_decimal(data, value, out, j)
            elif opening in (STRING_OPEN, BYTES_OPEN):
                for k in range(value, after):
                    j = write_hex(data[k], out, j)
            if opening in (STRING_OPEN, BYTES_OPEN, DECIMAL_OPEN):
                out[j] = QUOTE
                j += 1
            if opening >= STRING_OPEN:
                out[j] = CLOSE_OBJECT
                j += 1
        sizes[e] = j - begin
    used[0] = j
    used[1] = n_floats
    used[2] = n_problems


@kernel
def is_traceparent(data: Octets, at: int, literals: Octets) -> bool:
    """Whether the 11 bytes at `at` are `traceparent`, in any case."""
    same = True
    for k in range(11):
        same = same and data[at + k] | 0x20 == literals[TRACEPARENT * 16 + 1 + k]
    return same
