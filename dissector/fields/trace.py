"""The trace context of messages (W3C Trace Context, traceparent) as columns."""

import numpy as np
import pyarrow as pa

from amqpscope.dissector.fields import columns, text
from amqpscope.dissector.fields.problems import TRACEPARENT_MALFORMED
from amqpscope.dissector.fields.text import Bytes, Integers
from amqpscope.dissector.kernels.kernel import call, i64, proven


def trace_columns(
    n: int, data: Bytes, row: Integers, trace: Integers, compiled: bool
) -> tuple[dict[str, pa.Array], Integers]:
    """Return the columns of the trace context from the places of `traceparent`, and where it is malformed."""
    has = trace[:, 0] >= 0
    row, at, size = row[has], trace[has, 0], trace[has, 1]
    if not len(row):
        return {}, np.empty((0, 3), np.int64)
    flags = np.empty(len(at), np.int64)
    call(trace_flags, compiled, data, at, size, flags)
    good = flags >= 0
    wrong = _problems(row[~good], TRACEPARENT_MALFORMED, at[~good])
    row, at = row[good], at[good]
    valid = columns.validity(n, row)
    made = {"trace_flags": columns.numbers(valid, "int32", row, flags[good])}
    for name, begin, width in (("trace_id", 3, 32), ("span_id", 36, 16)):
        texts = text.gather(data, at + begin, np.full(len(at), width, np.int64), compiled)
        made[name] = columns.texts(valid, row, texts.sizes, texts.data, compiled)
    return made, wrong


def _problems(row: Integers, code: int, at: Integers) -> Integers:
    return np.column_stack((row, np.full(len(row), code, np.int64), at))


@proven
def trace_flags(data: Bytes, at: Integers, size: Integers, flags: Integers) -> None:
    """Return the flags of each `traceparent`; -1 where it has not the form of version 00 (W3C Trace Context, §3.2.2).

    That is `00-<trace id>-<span id>-<flags>` in 2, 32, 16 and 2 lower-case hexadecimal digits, neither id all zeros.

    Bounds: entries lie within `data`.
    """
    for e in range(len(at)):
        flags[e] = -1
        begin = at[e]
        if size[e] != 55 or data[begin] != 48 or data[begin + 1] != 48:
            continue
        if data[begin + 2] != 45 or data[begin + 35] != 45 or data[begin + 52] != 45:
            continue
        trace = 0
        for p in range(begin + 3, begin + 35):
            trace |= hex_value(data[p])
        span = 0
        for p in range(begin + 36, begin + 52):
            span |= hex_value(data[p])
        high = hex_value(data[begin + 53])
        low = hex_value(data[begin + 54])
        if trace > 0 and span > 0 and trace | span | high | low < 16:
            flags[e] = high * 16 + low


@proven
def hex_value(byte: int) -> int:
    """Return the value of a lower-case hexadecimal digit; 16 for any other byte."""
    byte = i64(byte)
    digit = byte - 48 if byte <= 57 else byte - 87
    return digit if 0 <= digit <= 15 and (byte <= 57 or byte >= 97) else 16
