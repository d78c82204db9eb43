"""Arrow columns from entries: most columns of a frame table have a value in few of its rows.

An entry is the number of a row and what stands there; the entries of a column come in ascending order of rows, no row
twice. All other rows are null.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dissector.text import Integers, Octets

TYPES: dict[str, pa.DataType] = {"bool": pa.bool_(), "int32": pa.int32(), "int64": pa.int64(), "string": pa.string()}
"""The types of columns by the names that specifications use."""

_nulls: dict[str, pa.Array] = {}


def nulls(n: int, kind: str) -> pa.Array:
    """A column of nothing but null; shares memory with all others of its type."""
    array = _nulls.get(kind)
    if array is None or len(array) < n:
        array = _nulls[kind] = pa.nulls(2 * n, TYPES[kind])
    return array.slice(0, n)


def numbers(n: int, kind: str, row: Integers, value: npt.NDArray[np.generic]) -> pa.Array:
    """A column of `bool`, `int32` or `int64` with `value[e]` in `row[e]` of n rows."""
    if not len(row):
        return nulls(n, kind)
    values: npt.NDArray[np.integer | np.bool_] = np.zeros(n, kind)
    values[row] = value
    octets = np.packbits(values, bitorder="little") if kind == "bool" else values
    return pa.Array.from_buffers(TYPES[kind], n, [_validity(n, row), pa.py_buffer(octets)], n - len(row))


def texts(n: int, row: Integers, size: Integers, octets: Octets) -> pa.Array:
    """A column of text: entries of `size[e]` octets of valid UTF-8, one behind the other, for `row[e]` of n rows.

    Raises:
        OverflowError: 2 GiB of text or more; batches have to be smaller than that.
    """
    if not len(row):
        return nulls(n, "string")
    if len(octets) > np.iinfo(np.int32).max:
        raise OverflowError("more than 2 GiB of text in one column of a batch")
    offsets = np.zeros(n + 1, np.int32)
    offsets[1:][row] = size
    np.cumsum(offsets, out=offsets)
    buffers = [_validity(n, row), pa.py_buffer(offsets), pa.py_buffer(octets)]
    return pa.Array.from_buffers(pa.string(), n, buffers, n - len(row))


def constant(n: int, row: Integers, text: str) -> pa.Array:
    """A column with the same text in every `row[e]` of n rows."""
    octets = np.frombuffer(text.encode(), np.uint8)
    return texts(n, row, np.full(len(row), len(octets), np.int64), np.tile(octets, len(row)))


def _validity(n: int, row: Integers) -> pa.Buffer | None:
    if len(row) == n:
        return None
    valid = np.zeros(n, np.bool_)
    valid[row] = True
    return pa.py_buffer(np.packbits(valid, bitorder="little"))
