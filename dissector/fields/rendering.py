"""Values written as text, one after the other: room for them, what becomes of it, and what is wrong with them."""

import functools
import math
import struct
from typing import NamedTuple

import numpy as np

from amqpscope.dissector.fields.json_text import DOLLAR, ESCAPES, LATIN, write_escaped, write_string
from amqpscope.dissector.fields.problems import TEXT_NOT_UTF8
from amqpscope.dissector.fields.state import Float, Level, Problem, Text, Trace, Written
from amqpscope.dissector.fields.text import Bytes, Integers
from amqpscope.dissector.fields.value_text import LITERALS
from amqpscope.dissector.kernels.kernel import kernel


class Rendered(NamedTuple):
    """Values as text."""

    data: Bytes
    """JSON, valid UTF-8, of all values."""
    sizes: Integers
    """Bytes of each in `data`."""
    trace: Integers
    """(values, Trace): of tables, where in the data the value of the outermost key `traceparent`, in any case, is. Of
    several keys the first."""
    problems: Integers
    """(problems, Problem)."""


def room(values: int, size: int, problems: int, floats: int = 0, levels: int = 0) -> Text:
    """Return room for the text of these values: its bytes, problems of each, floats, and levels that they may have."""
    return Text(
        out=np.empty(size, np.uint8),
        sizes=np.empty(values, np.int64),
        trace=np.empty((values, Trace.WIDTH), np.int64),
        floats=np.empty((floats, Float.WIDTH), np.int64),
        problems=np.empty((problems * values, Problem.WIDTH), np.int64),
        levels=np.empty((levels, Level.WIDTH), np.int64),
        written=Written.make(1)[0],
        literals=LITERALS,
        escapes=ESCAPES,
        latin=LATIN,
    )


def finished(text: Text, data: Bytes) -> Rendered:
    """Return what was written there of values in `data`."""
    length, n_floats, n_problems, _ = text.written.tolist()
    content: Bytes = text.out[:length]
    content = _with_floats(content, text.sizes, data, text.floats[:n_floats]) if n_floats else content.copy()
    return Rendered(content, text.sizes, text.trace, text.problems[:n_problems])


@kernel
def begin_text(text: Text, e: int) -> None:
    """Begin a value."""
    put_trace(text, e, -1, 0)
    text.written[Written.REPORTED] = 0


@kernel
def end_text(text: Text, e: int, begun: int, j: int) -> None:
    """End a value that was begun at `begun` and whose text ends at j."""
    text.sizes[e] = j - begun
    text.written[Written.BYTES] = j


@kernel
def put_trace(text: Text, e: int, at: int, size: int) -> None:
    """Note where the trace context of a value is."""
    text.trace[e, Trace.AT] = at
    text.trace[e, Trace.SIZE] = size


@kernel
def put_level(text: Text, depth: int, end: int, left: int, close: int, element: int) -> None:
    """Note a level that is no struct."""
    levels = text.levels
    levels[depth, Level.END] = end
    levels[depth, Level.LEFT] = left
    levels[depth, Level.CLOSE] = close
    levels[depth, Level.ELEMENT] = element
    levels[depth, Level.MEMBER] = -1
    levels[depth, Level.FLAGS] = 0


@kernel
def report(text: Text, e: int, code: int, at: int) -> None:
    """Note a problem of a value."""
    n = text.written[Written.PROBLEMS]
    text.problems[n, Problem.ROW] = e
    text.problems[n, Problem.CODE] = code
    text.problems[n, Problem.AT] = at
    text.written[Written.PROBLEMS] = n + 1


@kernel
def report_once(text: Text, e: int, code: int, at: int) -> None:
    """Note a problem of the current value, of its kind the first."""
    if (text.written[Written.REPORTED] >> code) & 1 == 0:
        text.written[Written.REPORTED] |= 1 << code
        report(text, e, code, at)


@kernel
def write_text_name(data: Bytes, e: int, at: int, end: int, text: Text, j: int) -> int:
    """Write a text as the name of an entry, without quotation marks; returns where it ends."""
    out = text.out
    if at < end and data[at] == DOLLAR:
        out[j] = DOLLAR
        j += 1
    done: int = write_string(data, at, end, text.escapes, out, j)
    if done < 0:
        done = write_escaped(data, at, end, text.escapes, out, j)
        report_once(text, e, TEXT_NOT_UTF8, at)
    return done


@kernel
def leave_out(text: Text, e: int, at: int, width: int, j: int) -> None:
    """Leave out a float, for which kernels are not made."""
    n = text.written[Written.FLOATS]
    text.floats[n, Float.PLACE] = j
    text.floats[n, Float.VALUE] = e
    text.floats[n, Float.AT] = at
    text.floats[n, Float.BYTES] = width
    text.written[Written.FLOATS] = n + 1


@kernel
def level_at(levels: Integers, depth: int) -> tuple[int, int, int, int, int, int]:
    """Return what there is of a level, in the order of its columns."""
    return (
        levels[depth, Level.END],
        levels[depth, Level.LEFT],
        levels[depth, Level.CLOSE],
        levels[depth, Level.ELEMENT],
        levels[depth, Level.MEMBER],
        levels[depth, Level.FLAGS],
    )


def _with_floats(content: Bytes, sizes: Integers, data: Bytes, floats: Integers) -> Bytes:
    """Put the texts of floats, for which kernels are not made, where they belong; `sizes` grow with them."""
    parts: list[memoryview | bytes] = []
    done, source = 0, content.data
    for place, value, at, width in floats.tolist():
        text = float_text(data[at : at + width].tobytes())
        parts += (source[done:place], text)
        sizes[value] += len(text)
        done = place
    parts.append(source[done:])
    return np.frombuffer(b"".join(parts), np.uint8)


@functools.lru_cache(1 << 14)
def float_text(data: bytes) -> bytes:
    """Return JSON of a float of 4 or 8 bytes, big-endian: the fewest digits that give the same bits again."""
    (value,) = struct.unpack(">f" if len(data) == 4 else ">d", data)
    if math.isfinite(value):
        # of 32 bits numpy finds the digits; they are few enough to be the repr of the float that they make
        return repr(value if len(data) == 8 else float(str(np.float32(value)))).encode()
    name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return b'{"$double":"%s"}' % name.encode()
