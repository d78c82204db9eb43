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
| bin, vbin, unknown types | `{"$bytes":"<hex>"}` |
| sequence-set, byte-ranges | `[[first,last],[first,last]]` |
| struct32 | `{"$dtx.xid":{"format":1,...}}`; `{"$struct":"<hex>"}` of an unknown code |
| struct as a field | `{"exchange":"amq.direct","routing_key":"k"}`; what is absent is left out, bits never are |
| void, and containers of size 0 | `null` |

A table that breaks off, or has an unknown letter, gives the JSON of what came before, properly closed. Tables and
arrays nested deeper than `DEPTH` are `null`.
"""

import numpy as np

from amqpscope.dissector.fields.dialect import Dialect, of_letters
from amqpscope.dissector.fields.rendering import Rendered, finished, room
from amqpscope.dissector.fields.text import Bytes, Integers
from amqpscope.dissector.fields.value_walk import DEPTH, PROBLEMS, render_values
from amqpscope.dissector.kernels.kernel import call

FIELD_TABLES = of_letters()
"""The dialect of AMQP 0-9-1."""


def render(
    data: Bytes, at: Integers, size: Integers, compiled: bool, dialect: Dialect = FIELD_TABLES,
    form: Integers | None = None,
) -> Rendered:  # fmt: skip
    """Render values of which `size[e]` bytes (at least 0) lie from `data[at[e]]` on, all within `data`.

    Args:
        data: the bytes.
        at: (n,) where each begins, after its length.
        size: (n,) its bytes.
        compiled: whether the kernels run compiled.
        dialect: the protocol's values.
        form: (n,) the form of each; tables where it is None.
    """
    total, n = int(size.sum()), len(at)
    if form is None:
        form = np.full(n, dialect.forms["table"], np.int64)
    text = room(n, dialect.growth * total + dialect.head * n, PROBLEMS, total // 4, DEPTH)
    call(render_values, compiled, data, at, size, form, dialect.tables, text)
    return finished(text, data)
