r"""Field tables of AMQP 0-9-1 (section 4.2.5.5) and values of AMQP 0-10 to JSON text.

Of 0-9-1 with the type letters that RabbitMQ speaks:

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

Of 0-10 (types by their names in `spec`):

| type | JSON |
|---|---|
| map, list, array | object, array, array; `{"$count":3}` of an array whose items have no bytes |
| boolean, bit, integers, floats, decimals | as above |
| datetime | `{"$timestamp":1690000000}` |
| str, in UTF-8, ISO 8859-15 or UTF-16 | string; `{"$string":"<hex>"}` where it is not |
| char, char-utf32 | `{"$char":8364}` |
| uuid | `{"$uuid":"01234567-89ab-..."}`; without all that where a field is one |
| bin, vbin, types that nobody knows | `{"$bytes":"<hex>"}` |
| sequence-set, byte-ranges | `[[first,last],[first,last]]` |
| struct32 | `{"$dtx.xid":{"format":1,...}}`; `{"$struct":"<hex>"}` of a code that nobody knows |
| struct as a field | `{"exchange":"amq.direct","routing_key":"k"}`; what is absent is left out, bits never are |
| void, and containers of size 0 | `null` |

A table that breaks off, or has an unknown letter, gives the JSON of what came before, properly closed. Tables and
arrays nested deeper than `DEPTH` are `null`.
"""

import functools
import math
import struct
from dataclasses import dataclass

import numpy as np

from amqpscope.dissector.fields.dialect import Dialect, of_letters
from amqpscope.dissector.fields.json_text import ESCAPES, LATIN
from amqpscope.dissector.fields.text import Bytes, Integers
from amqpscope.dissector.fields.value_text import LITERALS
from amqpscope.dissector.fields.value_walk import DEPTH, L_HEIGHT, PROBLEMS, render_values
from amqpscope.dissector.kernels.kernel import call

FIELD_TABLES = of_letters()
"""The dialect of AMQP 0-9-1."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Rendered tables, or other values, one behind the other."""

    octets: Bytes
    """JSON, valid UTF-8."""
    sizes: Integers
    """Bytes of each table in `octets`."""
    trace: Integers
    """(tables, 2): where in the data the value of the outermost key `traceparent`, in any case, is, and its octets: 0
    when it is neither string nor byte array; -1, 0 where there is no such key. Of several keys the first."""
    problems: Integers
    """(problems, 3): table, index into `PROBLEM_CODES`, place in the data."""


def render(
    data: Bytes, at: Integers, size: Integers, compiled: bool, dialect: Dialect = FIELD_TABLES,
    form: Integers | None = None,
) -> Tables:  # fmt: skip
    """Render values of which `size[e]` bytes (at least 0) lie from `data[at[e]]` on, all within `data`.

    Args:
        data: the bytes.
        at: (n,) where each begins, behind its length.
        size: (n,) its bytes.
        compiled: whether the kernels run compiled.
        dialect: the protocol's values.
        form: (n,) the form of each; tables where it is None.
    """
    total, n = int(size.sum()), len(at)
    if form is None:
        form = np.full(n, dialect.forms["table"], np.int64)
    octets = np.empty(dialect.growth * total + dialect.head * n, np.uint8)
    sizes = np.empty(n, np.int64)
    trace = np.empty((n, 2), np.int64)
    floats = np.empty((total // 4, 4), np.int64)
    problems = np.empty((PROBLEMS * n, 3), np.int64)
    used = np.empty(3, np.int64)
    stack = np.empty((DEPTH, L_HEIGHT), np.int64)
    call(
        render_values, compiled, data, at, size, form, dialect.types, dialect.structs, dialect.members, dialect.names,
        LATIN, ESCAPES, LITERALS, stack, octets, sizes, trace, floats, problems, used,
    )  # fmt: skip
    length, n_floats, n_problems = used.tolist()
    octets = octets[:length]
    octets = insert_floats(octets, sizes, data, floats[:n_floats]) if n_floats else octets.copy()
    return Tables(octets, sizes, trace, problems[:n_problems])


def insert_floats(octets: Bytes, sizes: Integers, data: Bytes, floats: Integers) -> Bytes:
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
