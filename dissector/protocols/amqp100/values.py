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

import numpy as np

from amqpscope.dissector.fields.json_text import (
    COLON,
    COMMA,
    QUOTE,
    ZERO,
    write_bytes,
    write_integer,
    write_literal,
    write_string,
    write_uuid,
)
from amqpscope.dissector.fields.problems import TABLE_MALFORMED, TABLE_TOO_DEEP, TABLE_TYPE_UNKNOWN, TEXT_NOT_UTF8
from amqpscope.dissector.fields.rendering import (
    Rendered,
    begin_text,
    end_text,
    finished,
    leave_out,
    level_at,
    put_level,
    put_trace,
    report,
    report_once,
    room,
    write_text_name,
)
from amqpscope.dissector.fields.state import Text, Trace
from amqpscope.dissector.fields.value_text import (
    BYTES_OPEN,
    CHARACTER_OPEN,
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    DECIMAL32_OPEN,
    DECIMAL64_OPEN,
    DECIMAL128_OPEN,
    DESCRIBED_OPEN,
    MILLISECONDS_OPEN,
    OPEN_ARRAY,
    OPEN_OBJECT,
    STRING_OPEN,
    UUID_OPEN,
    is_traceparent,
    write_hexadecimal,
)
from amqpscope.dissector.fields.value_text import FALSE as FALSE_WORD
from amqpscope.dissector.fields.value_text import NULL as NULL_WORD
from amqpscope.dissector.fields.value_text import TRUE as TRUE_WORD
from amqpscope.dissector.kernels.arrays import Array, Bytes, Ints
from amqpscope.dissector.kernels.integers import unsigned
from amqpscope.dissector.kernels.kernel import call, i64, kernel, proven
from amqpscope.dissector.protocols.amqp100.state import Constructors
from amqpscope.spec import amqp100

DEPTH = 64
"""Levels of maps, lists, arrays and described values, the outermost map included."""
GROWTH = 18
"""A byte of a map becomes at most this many: a described value is announced by one."""
PROBLEMS = 3
"""One map has at most this many: each of text and depth is reported once, what ends it once."""

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

CLOSE_DESCRIBED = 0


def _constructors() -> Constructors:
    widths = np.full(256, -1, np.int64)
    for high, width in enumerate((0, 1, 2, 4, 8, 16, *(SIZED + 1, SIZED + 4) * 3), 4):
        widths[high << 4 : (high + 1) << 4] = width
    kinds = np.zeros(256, np.int64)
    for code, kind in amqp100.load().constructors.items():
        kinds[code] = NAMES.index(kind)
    return Constructors(kinds, widths)


CONSTRUCTORS = _constructors()


def render(data: Bytes, at: Ints, size: Ints, compiled: bool) -> Rendered:
    """Render the maps that are the values of `size[e]` bytes, constructor included, from `data[at[e]]` on."""
    total = int(size.sum())
    text = room(len(at), GROWTH * total + 2 * len(at), PROBLEMS, total // 4 + 1, DEPTH)
    call(render_maps, compiled, data, at, size, CONSTRUCTORS, text)
    return finished(text, data)


@proven
def value_end(data: Array, p: int, end: int, widths: Array) -> int:
    """Return where the value with its constructor at p ends; -1 beyond `end`, or for an unknown constructor.

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
    """Return where the items of a list, map or array begin whose constructor is at p and which is known to be whole."""
    width: int = widths[data[p]]
    if width < SIZED:
        return p + 1
    return p + 1 + 2 * (width - SIZED)


@kernel
def items(data: Array, p: int, end: int, widths: Array) -> int:
    """Return the announced number of items of a list, map (keys and values) or array; 0 where that is cut off."""
    code = i64(data[p])
    width = i64(widths[code])
    if width < SIZED:
        return 0
    width -= SIZED
    if p + 1 + 2 * width > end:
        return 0
    return unsigned(data, p + 1 + width, width)


@kernel
def write_scalar(data: Array, e: int, p: int, end: int, kind: int, text: Text, j: int) -> int:
    """Write the value whose bytes after constructor and size are these; returns where it ends."""
    out, literals = text.out, text.literals
    if kind == TEXT:
        out[j] = QUOTE
        done = write_string(data, p, end, text.escapes, out, j + 1)
        if done >= 0:
            out[done] = QUOTE
            return done + 1
        report_once(text, e, TEXT_NOT_UTF8, p)
        return write_hexadecimal(data, p, end, literals, STRING_OPEN, out, j)
    if kind in (NULL, TRUE, FALSE, BOOLEAN, UNSIGNED, SIGNED):
        return write_plain(data, p, end, kind, text, j)
    if kind in (CHAR, TIMESTAMP):
        j = write_literal(literals, CHARACTER_OPEN if kind == CHAR else MILLISECONDS_OPEN, out, j)
        j = write_integer(data, p, end - p, kind == TIMESTAMP, out, j)
        out[j] = CLOSE_OBJECT
        return j + 1
    if kind == UUID:
        j = write_uuid(data, p, out, write_literal(literals, UUID_OPEN, out, j))
        out[j] = QUOTE
        out[j + 1] = CLOSE_OBJECT
        return j + 2
    opening = BYTES_OPEN
    if kind == DECIMAL:
        opening = DECIMAL128_OPEN
        if end - p == 4:
            opening = DECIMAL32_OPEN
        elif end - p == 8:
            opening = DECIMAL64_OPEN
    return write_hexadecimal(data, p, end, literals, opening, out, j)


@kernel
def write_plain(data: Array, p: int, end: int, kind: int, text: Text, j: int) -> int:
    """Write null, a boolean or an integer; returns where it ends."""
    if kind == NULL:
        return write_literal(text.literals, NULL_WORD, text.out, j)
    if kind == TRUE or (kind == BOOLEAN and data[p] != 0):
        return write_literal(text.literals, TRUE_WORD, text.out, j)
    if kind in (FALSE, BOOLEAN):
        return write_literal(text.literals, FALSE_WORD, text.out, j)
    if p == end:
        text.out[j] = ZERO  # the constructors that are zero by themselves
        return j + 1
    return write_integer(data, p, end - p, kind == SIGNED, text.out, j)


@kernel
def write_key(data: Array, e: int, p: int, end: int, kind: int, text: Text, j: int) -> int:
    """Write the key of a map as a JSON string, with a colon; returns where it ends."""
    out = text.out
    out[j] = QUOTE
    j += 1
    if kind == TEXT:
        j = write_text_name(data, e, p, end, text, j)
    elif kind == UUID:
        j = write_uuid(data, p, out, j)
    elif kind in (NULL, TRUE, FALSE, BOOLEAN, UNSIGNED, SIGNED):
        j = write_plain(data, p, end, kind, text, j)
    elif kind in (CHAR, TIMESTAMP):
        j = write_integer(data, p, end - p, kind == TIMESTAMP, out, j)
    else:
        j = write_bytes(data, p, end, out, j)
    out[j] = QUOTE
    out[j + 1] = COLON
    return j + 2


@kernel
def measure(
    data: Array, at: int, end: int, element: int, named: bool, known: Constructors
) -> tuple[int, int, int, int, int]:  # fmt: skip
    """Measure a value, whose constructor comes first if `element`, that of all items, is -1; `named`: a key.

    Returns its constructor and kind, where its bytes begin after its size and where they end, and what is wrong with
    it, or -1. Of a described value the descriptor begins there.
    """
    code = element
    value = at
    if element < 0:
        if at >= end:
            return 0, UNKNOWN, at, at, TABLE_MALFORMED
        code = i64(data[at])
        value = at + 1
    after = value
    if code == DESCRIBED:
        return code, UNKNOWN, value, after, TABLE_TYPE_UNKNOWN if named or element >= 0 else -1
    kind = i64(known.kinds[code])
    width = i64(known.widths[code])
    if kind == UNKNOWN:
        return code, kind, value, after, TABLE_TYPE_UNKNOWN
    before = value
    if width < SIZED:
        after += width
    else:
        value += width - SIZED
        after = value
        if value <= end:
            after += unsigned(data, before, value - before)
    is_container = kind in (LIST, MAP, ARRAY)
    broken = -1
    if after > end or value > end:
        broken = TABLE_MALFORMED
    elif (element >= 0 and after == at) or (named and (is_container or kind == FLOAT)):
        broken = TABLE_TYPE_UNKNOWN  # items of no bytes could be as many as they like
    elif is_container and after - value < value - before:
        broken = TABLE_MALFORMED
    return code, kind, value, after, broken


@kernel
def render_maps(data: Array, at: Array, size: Array, known: Constructors, text: Text) -> None:
    """Render all maps."""
    j = 0
    for e in range(len(at)):
        begun = j
        begin_text(text, e)
        j = render_map(data, e, at[e], at[e] + size[e], known, text, j)
        end_text(text, e, begun, j)


@kernel
def render_map(data: Array, e: int, at: int, end: int, known: Constructors, text: Text, j: int) -> int:
    """Render map e; returns where the text ends. Every item is measured before it is written, within its level."""
    out, trace = text.out, text.trace
    depth = 0
    left = items(data, at, end, known.widths) & ~1
    i = inside(data, at, known.widths)
    close = CLOSE_OBJECT
    element = -1
    out[j] = OPEN_OBJECT
    j += 1
    first = True
    broken = -1
    while depth >= 0:
        if left <= 0 or broken >= 0:
            out[j] = CLOSE_ARRAY if close == CLOSE_DESCRIBED else close
            j += 1
            if close == CLOSE_DESCRIBED:
                out[j] = CLOSE_OBJECT
                j += 1
            else:
                i = end
            depth -= 1
            first = False
            if depth >= 0:
                end, left, close, element, _, _ = level_at(text.levels, depth)
            continue
        named = close == CLOSE_OBJECT and left % 2 == 0
        start = i
        code, kind, value, after, broken = measure(data, i, end, element, named, known)
        if broken >= 0:
            report(text, e, broken, start)
            if close == CLOSE_OBJECT and not named:  # a key stands there already
                j = write_literal(text.literals, NULL_WORD, out, j)
            continue
        if not first and (close != CLOSE_OBJECT or named):
            out[j] = COMMA
            j += 1
        first = False
        left -= 1
        i = after
        if named:
            plain = depth == 0 and kind == TEXT and after - value == 11 and trace[e, Trace.AT] < 0
            if plain and is_traceparent(data, value, text.literals):
                put_trace(text, e, after, 0)
            j = write_key(data, e, value, after, kind, text, j)
            continue
        if depth == 0 and trace[e, Trace.AT] == start:
            put_trace(text, e, value, after - value if kind in (TEXT, BINARY) else 0)
        if code != DESCRIBED and kind not in (LIST, MAP, ARRAY):
            if kind == FLOAT:
                leave_out(text, e, value, after - value, j)
            else:
                j = write_scalar(data, e, value, after, kind, text, j)
        elif depth + 1 >= DEPTH:
            j = write_literal(text.literals, NULL_WORD, out, j)
            report_once(text, e, TABLE_TOO_DEEP, start)
            if code == DESCRIBED:
                i = value_end(data, start, end, known.widths)
                if i < 0:
                    broken = TABLE_MALFORMED
                    i = end
        else:
            put_level(text, depth, end, left, close, element)
            depth += 1
            first = True
            if code == DESCRIBED:
                j = write_literal(text.literals, DESCRIBED_OPEN, out, j)
                left = 2
                close = CLOSE_DESCRIBED
                element = -1
            else:
                out[j] = OPEN_OBJECT if kind == MAP else OPEN_ARRAY
                j += 1
                close = CLOSE_OBJECT if kind == MAP else CLOSE_ARRAY
                end = after
                i, left, element = open_items(data, value, end, code, kind, known)
    return j


@kernel
def open_items(data: Array, at: int, end: int, code: int, kind: int, known: Constructors) -> tuple[int, int, int]:
    """Return where items of a list, map or array begin, their number, and the constructor of all; -1: each its own.

    The count at `at` is as wide as the size before it.
    """
    width = max(i64(known.widths[code]) - SIZED, 0)
    left = unsigned(data, at, width)
    at += width
    element = -1
    if kind == ARRAY and at < end:
        element = i64(data[at])
        at += 1
    elif kind == ARRAY:
        left = 0
    elif kind == MAP:
        left -= left % 2
    return at, left, element
