r"""Values of AMQP 1.0 (part 1): where they end, and maps of them as JSON text.

| type | JSON |
|---|---|
| null, boolean, integers | `null`, `true`, number with all its digits |
| float, double | number; `{"$double":"NaN"}`, `Infinity`, `-Infinity` |
| decimals | `{"$decimal32":"<hex>"}`, 64 and 128 alike |
| char | `{"$char":8364}` |
| timestamp | `{"$timestamp_ms":1690000000000}` |
| uuid | `{"$uuid":"01234567-89ab-..."}` |
| binary | `{"$bytes":"<hex>"}` |
| string, symbol | string; `{"$string":"<hex>"}` where it is not UTF-8 |
| list, array, map | array, array, object; keys that are no text are written as such |
| described | `{"$described":[descriptor, value]}` |

A key that begins with `$` gets another `$` in front. A map that breaks off gives the JSON of what came before, properly
closed. What is nested deeper than `DEPTH` is `null`.
"""

from dataclasses import dataclass

import numpy as np

from amqpscope.dissector.fields.json_text import (
    ESCAPES,
    write_escaped,
    write_integer,
    write_octets,
    write_string,
    write_uuid,
)
from amqpscope.dissector.fields.problems import TABLE_MALFORMED, TABLE_TOO_DEEP, TABLE_TYPE_UNKNOWN, TEXT_NOT_UTF8
from amqpscope.dissector.fields.tables import insert_floats
from amqpscope.dissector.fields.text import copy
from amqpscope.dissector.fields.value_text import LITERALS, is_traceparent
from amqpscope.dissector.kernels.arrays import Array, Ints, Octets
from amqpscope.dissector.kernels.integers import unsigned
from amqpscope.dissector.kernels.kernel import call, i64, kernel, proven
from amqpscope.spec import amqp10

DEPTH = 64
"""Levels of maps, lists, arrays and described values, the outermost map included."""
GROWTH = 18
"""A byte of a map becomes at most this many: a described value is announced by one."""
PROBLEMS = 3
"""One map has at most this many: each of text and depth is told once, what ends it once."""

NAMES = (
    "unknown", "null", "true", "false", "boolean", "unsigned", "signed", "float", "decimal", "char", "timestamp",
    "uuid", "binary", "text", "list", "map", "array",
)  # fmt: skip
(
    UNKNOWN, NULL, TRUE, FALSE, BOOLEAN, UNSIGNED, SIGNED, FLOAT, DECIMAL, CHAR, TIMESTAMP, UUID, BINARY, TEXT, LIST,
    MAP, ARRAY,
) = range(len(NAMES))  # fmt: skip
"""Kinds of values, by the names that `spec` has."""
DESCRIBED = 0
"""The constructor of a described value."""
SIZED = 32
"""A width from here on is that of the size in front, and this."""

QUOTE, DOLLAR, COMMA, COLON = (ord(c) for c in '"$,:')
OPEN_LIST, CLOSE_LIST, OPEN_MAP, CLOSE_MAP = (ord(c) for c in "[]{}")
CLOSE_DESCRIBED = 0
TEXTS = (
    "null", "true", "false", '{"$described":[', '{"$decimal32":"', '{"$decimal64":"', '{"$decimal128":"', '{"$char":',
    '{"$timestamp_ms":', '{"$uuid":"', '{"$bytes":"', '{"$string":"',
)  # fmt: skip
(
    T_NULL, T_TRUE, T_FALSE, T_DESCRIBED, T_DECIMAL32, T_DECIMAL64, T_DECIMAL128, T_CHAR, T_TIMESTAMP, T_UUID, T_BYTES,
    T_STRING,
) = range(len(TEXTS))  # fmt: skip
ROOM = 24
"""Bytes that each of these texts has in the table, its length in front."""

# Columns of the stack: of the levels around the one at hand.
S_END, S_LEFT, S_CLOSE, S_ELEMENT, S_WIDTH = range(5)


def _tables() -> tuple[Ints, Ints, Octets]:
    widths = np.full(256, -1, np.int64)
    for high, width in enumerate((0, 1, 2, 4, 8, 16, *(SIZED + 1, SIZED + 4) * 3), 4):
        widths[high << 4 : (high + 1) << 4] = width
    kinds = np.zeros(256, np.int64)
    for code, kind in amqp10.load().constructors.items():
        kinds[code] = NAMES.index(kind)
    texts = np.zeros(ROOM * len(TEXTS), np.uint8)
    for k, text in enumerate(TEXTS):
        texts[ROOM * k : ROOM * k + len(text) + 1] = [len(text), *text.encode()]
    return kinds, widths, texts


KINDS, WIDTHS, _TEXTS = _tables()
"""Kind of each constructor, and bytes of its value; -1 where there is no such."""


@dataclass(frozen=True, slots=True)
class Maps:
    """Rendered maps, one behind the other."""

    octets: Octets
    """JSON, valid UTF-8."""
    sizes: Ints
    """Bytes of each map in `octets`."""
    trace: Ints
    """(maps, 2): where the value of the outermost key `traceparent` is, and its bytes; as in `fieldtable.Tables`."""
    problems: Ints
    """(problems, 3): map, index into `PROBLEM_CODES`, place in the data."""


def render(data: Octets, at: Ints, size: Ints, compiled: bool) -> Maps:
    """Render the maps that are the values of `size[e]` bytes, constructor included, from `data[at[e]]` on."""
    total, n = int(size.sum()), len(at)
    octets = np.empty(GROWTH * total + 2 * n, np.uint8)
    sizes, trace = np.empty(n, np.int64), np.empty((n, 2), np.int64)
    floats = np.empty((total // 4 + 1, 4), np.int64)
    problems = np.empty((PROBLEMS * n, 3), np.int64)
    used, stack = np.empty(3, np.int64), np.empty((DEPTH, S_WIDTH), np.int64)
    call(
        render_maps, compiled, data, at, size, KINDS, WIDTHS, ESCAPES, _TEXTS, LITERALS, stack, octets, sizes, trace,
        floats, problems, used,
    )  # fmt: skip
    length, n_floats, n_problems = used.tolist()
    octets = octets[:length]
    octets = insert_floats(octets, sizes, data, floats[:n_floats]) if n_floats else octets.copy()
    return Maps(octets, sizes, trace, problems[:n_problems])


@proven
def value_end(data: Array, p: int, end: int, widths: Array) -> int:
    """Where the value ends whose constructor is at p; -1 when that is beyond `end`, or there is no such constructor.

    Bounds: p is not below 0, and `end` not beyond the data; it only grows, and nothing is read from `end` on.
    """
    values = 1
    while values > 0:
        if p >= end:
            return -1
        code = i64(data[p])
        p += 1
        if code == DESCRIBED:  # a descriptor comes before the value
            values += 1
            continue
        values -= 1
        width = i64(widths[code])
        if width < 0:
            return -1
        if width >= SIZED:
            width -= SIZED
            if p + width > end:
                return -1
            p += width + unsigned(data, p, width)
        else:
            p += width
        if p > end:
            return -1
    return p


@kernel
def inside(data: Array, p: int, widths: Array) -> int:
    """Where the items of a list, map or array begin whose constructor is at p and which is known to be whole."""
    width: int = widths[data[p]]
    if width < SIZED:
        return p + 1
    return p + 1 + 2 * (width - SIZED)


@kernel
def items(data: Array, p: int, end: int, widths: Array) -> int:
    """How many items a list, map or array says it has; those of a map are keys and values. 0 where that is cut off."""
    code = i64(data[p])
    width = i64(widths[code])
    if width < SIZED:
        return 0
    width -= SIZED
    if p + 1 + 2 * width > end:
        return 0
    return unsigned(data, p + 1 + width, width)


@kernel
def write_text(texts: Array, which: int, out: Array, j: int) -> int:
    """Write one of the fixed texts; returns where it ends."""
    begin = which * ROOM + 1
    return copy(texts, begin, begin + i64(texts[begin - 1]), out, j)


@kernel
def write_scalar(
    data: Array, p: int, end: int, kind: int, escapes: Array, texts: Array, out: Array, j: int
) -> int:  # fmt: skip
    """Write the value whose bytes behind constructor and size are these; returns where it ends."""
    if kind == NULL:
        return write_text(texts, T_NULL, out, j)
    if kind == TRUE or (kind == BOOLEAN and data[p] != 0):
        return write_text(texts, T_TRUE, out, j)
    if kind in (FALSE, BOOLEAN):
        return write_text(texts, T_FALSE, out, j)
    if kind in (UNSIGNED, SIGNED):
        if p == end:
            out[j] = 48  # the constructors that are zero by themselves
            return j + 1
        return write_integer(data, p, end - p, kind == SIGNED, out, j)
    if kind in (CHAR, TIMESTAMP):
        j = write_text(texts, T_CHAR if kind == CHAR else T_TIMESTAMP, out, j)
        j = write_integer(data, p, end - p, kind == TIMESTAMP, out, j)
        out[j] = CLOSE_MAP
        return j + 1
    if kind == TEXT:
        out[j] = QUOTE
        done = write_string(data, p, end, escapes, out, j + 1)
        if done >= 0:
            out[done] = QUOTE
            return done + 1
        j = write_octets(data, p, end, out, write_text(texts, T_STRING, out, j))
    elif kind == UUID:
        j = write_uuid(data, p, out, write_text(texts, T_UUID, out, j))
    elif kind == BINARY:
        j = write_octets(data, p, end, out, write_text(texts, T_BYTES, out, j))
    else:
        which = T_DECIMAL128
        if end - p == 4:
            which = T_DECIMAL32
        elif end - p == 8:
            which = T_DECIMAL64
        j = write_octets(data, p, end, out, write_text(texts, which, out, j))
    out[j] = QUOTE
    out[j + 1] = CLOSE_MAP
    return j + 2


@kernel
def render_maps(
    data: Array, at: Array, size: Array, kinds: Array, widths: Array, escapes: Array, texts: Array, literals: Array,
    stack: Array, out: Array, sizes: Array, trace: Array, floats: Array, problems: Array, used: Array,
) -> None:  # fmt: skip
    """Render all maps; `stack` holds the levels around the one at hand.

    Every item is measured before it is written, within its level. Floats are left out and listed in `floats`: place in
    `out`, map, place in `data`, width. `used` gets the bytes of `out`, the floats and the problems.
    """
    j = 0
    n_floats = 0
    n_problems = 0
    for e in range(len(at)):
        begin = j
        depth = 0
        end = at[e] + size[e]
        left = items(data, at[e], end, widths) & ~1
        i = inside(data, at[e], widths)
        close = CLOSE_MAP
        element = -1
        out[j] = OPEN_MAP
        j += 1
        first = True
        trace[e, 0] = -1
        trace[e, 1] = 0
        broken = -1
        told_text = False
        told_depth = False
        while depth >= 0:
            if left <= 0 or broken >= 0:
                if close == CLOSE_DESCRIBED:
                    out[j] = CLOSE_LIST
                    out[j + 1] = CLOSE_MAP
                    j += 2
                else:
                    out[j] = close
                    j += 1
                    i = end
                depth -= 1
                if depth >= 0:
                    end = stack[depth, S_END]
                    left = stack[depth, S_LEFT]
                    close = stack[depth, S_CLOSE]
                    element = stack[depth, S_ELEMENT]
                first = False
                continue
            # measure
            named = close == CLOSE_MAP and left % 2 == 0
            start = i
            code = element
            if element < 0:
                if i >= end:
                    broken = TABLE_MALFORMED
                else:
                    code = i64(data[i])
                    i += 1
            if broken < 0 and code == DESCRIBED and (named or element >= 0):
                broken = TABLE_TYPE_UNKNOWN
            kind = UNKNOWN
            value = i
            after = i
            if broken < 0 and code != DESCRIBED:
                kind = i64(kinds[code])
                width = i64(widths[code])
                if kind == UNKNOWN:
                    broken = TABLE_TYPE_UNKNOWN
                elif width >= SIZED:
                    width -= SIZED
                    value = i + width
                    after = value
                    if value <= end:
                        after += unsigned(data, i, width)
                else:
                    after = i + width
                if after > end or value > end:
                    broken = TABLE_MALFORMED
                elif (element >= 0 and after == start) or (named and kind in (LIST, MAP, ARRAY, FLOAT)):
                    broken = TABLE_TYPE_UNKNOWN  # items of no bytes could be as many as they like
                elif kind in (LIST, MAP, ARRAY) and after - value < value - i:
                    broken = TABLE_MALFORMED
            if broken >= 0:
                problems[n_problems, 0] = e
                problems[n_problems, 1] = broken
                problems[n_problems, 2] = start
                n_problems += 1
                if close == CLOSE_MAP and left % 2 == 1:  # a key stands there already
                    j = write_text(texts, T_NULL, out, j)
                continue
            # write
            if not first and (close != CLOSE_MAP or named):
                out[j] = COMMA
                j += 1
            first = False
            left -= 1
            if kind == TEXT and not told_text:
                done = write_string(data, value, after, escapes, out, j)
                if done < 0:
                    told_text = True
                    problems[n_problems, 0] = e
                    problems[n_problems, 1] = TEXT_NOT_UTF8
                    problems[n_problems, 2] = value
                    n_problems += 1
            if named:
                plain = depth == 0 and kind == TEXT and after - value == 11 and trace[e, 0] < 0
                if plain and is_traceparent(data, value, literals):
                    trace[e, 0] = after
                j = write_key(data, value, after, kind, escapes, texts, out, j)
                out[j] = COLON
                j += 1
                i = after
                continue
            if depth == 0 and trace[e, 0] == start:
                trace[e, 0] = value
                trace[e, 1] = after - value if kind in (TEXT, BINARY) else 0
            if kind in (LIST, MAP, ARRAY) or code == DESCRIBED:
                if depth + 1 >= DEPTH:
                    j = write_text(texts, T_NULL, out, j)
                    i = after
                    if code == DESCRIBED:
                        i = value_end(data, start, end, widths)
                        if i < 0:
                            broken = TABLE_MALFORMED
                            i = end
                    if not told_depth:
                        told_depth = True
                        problems[n_problems, 0] = e
                        problems[n_problems, 1] = TABLE_TOO_DEEP
                        problems[n_problems, 2] = start
                        n_problems += 1
                    continue
                stack[depth, S_END] = end
                stack[depth, S_LEFT] = left
                stack[depth, S_CLOSE] = close
                stack[depth, S_ELEMENT] = element
                depth += 1
                first = True
                element = -1
                if code == DESCRIBED:
                    j = write_text(texts, T_DESCRIBED, out, j)
                    left = 2
                    close = CLOSE_DESCRIBED
                    i = value
                    continue
                out[j] = OPEN_MAP if kind == MAP else OPEN_LIST
                j += 1
                close = CLOSE_MAP if kind == MAP else CLOSE_LIST
                count = value - i
                end = after
                left = unsigned(data, value, count)
                i = value + count
                if kind == ARRAY and i < end:
                    element = i64(data[i])
                    i += 1
                elif kind == ARRAY:
                    left = 0
                elif kind == MAP:
                    left -= left % 2
                continue
            if kind == FLOAT:
                floats[n_floats, 0] = j
                floats[n_floats, 1] = e
                floats[n_floats, 2] = value
                floats[n_floats, 3] = after - value
                n_floats += 1
            else:
                j = write_scalar(data, value, after, kind, escapes, texts, out, j)
            i = after
        sizes[e] = j - begin
    used[0] = j
    used[1] = n_floats
    used[2] = n_problems


@kernel
def write_key(
    data: Array, p: int, end: int, kind: int, escapes: Array, texts: Array, out: Array, j: int
) -> int:  # fmt: skip
    """Write the key of a map as a JSON string; returns where it ends."""
    out[j] = QUOTE
    j += 1
    if kind == TEXT:
        if p < end and data[p] == DOLLAR:
            out[j] = DOLLAR
            j += 1
        done = write_string(data, p, end, escapes, out, j)
        if done < 0:
            done = write_escaped(data, p, end, escapes, out, j)
        j = done
    elif kind == UUID:
        j = write_uuid(data, p, out, j)
    elif kind in (NULL, TRUE, FALSE, BOOLEAN, UNSIGNED, SIGNED):
        j = write_scalar(data, p, end, kind, escapes, texts, out, j)
    elif kind in (CHAR, TIMESTAMP):
        j = write_integer(data, p, end - p, kind == TIMESTAMP, out, j)
    else:
        j = write_octets(data, p, end, out, j)
    out[j] = QUOTE
    return j + 1
