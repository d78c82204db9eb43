"""Arrow arrays from arrays of numpy and lists. `pa.array` would import pandas wherever it is installed: 0.1 s."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from amqpscope.dissector.kernels.arrays import Ints

Values = NDArray[np.generic] | Sequence[Any]
TEXTS = (pa.string(), pa.binary())
MOST_TEXT = (1 << 31) - 1
"""Bytes of text in one column of a batch, at most."""


def array(values: Values, kind: pa.DataType | None = None, mask: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return an array of bools, integers, texts or bytes, as `pa.array` makes it.

    Args:
        values: (n,) of numpy, passed on without a copy where its type fits; or a list, in which None is null.
        kind: the type; that of `values` where it is None, of a list text.
        mask: (n,) what is null, besides None.
    """
    if not isinstance(values, np.ndarray):
        if None in values:
            none = np.array([value is None for value in values])
            mask = none if mask is None else none | mask
        if kind is None or kind in TEXTS:
            return _texts(values, kind or pa.string(), mask)
        values = np.array([value or 0 for value in values] if mask is not None else values, _dtype(kind))
    kind = kind or pa.from_numpy_dtype(values.dtype)
    if pa.types.is_boolean(kind):
        data: NDArray[np.generic] = np.packbits(values.astype(np.bool_, copy=False), bitorder="little")
    else:
        data = np.ascontiguousarray(values, _dtype(kind))
    return pa.Array.from_buffers(kind, len(values), [_validity(mask), pa.py_buffer(data)])


def of_rows(rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, pa.DataType]) -> dict[str, pa.Array]:
    """Return those columns of rows that have any values; what a row does not name is null."""
    columns = {}
    for name, kind in kinds.items():
        values = [row.get(name) for row in rows]
        if values.count(None) < len(values):
            columns[name] = array(values, kind)
    return columns


def numbers(column: pa.Array) -> NDArray[np.int64]:
    """Return the integers of a column of ours, as int64: where it is null, its memory holds 0."""
    if column.null_count == len(column):
        return np.zeros(len(column), np.int64)
    held = np.frombuffer(column.buffers()[1], _dtype(column.type))
    return held[column.offset : column.offset + len(column)].astype(np.int64, copy=False)


def valid(column: pa.Array) -> NDArray[np.bool_]:
    """Return which rows of a column are not null."""
    bits = column.buffers()[0]
    if bits is None:
        return np.ones(len(column), np.bool_)
    data = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return data[column.offset : column.offset + len(column)].astype(np.bool_)


def picked(column: pa.Array, index: Ints) -> list[Any]:
    """Return the items of a column of bools, integers or text at these places, as Python has them.

    That is `column.take(index).to_pylist()`, which takes five times as long.
    """
    if not len(index) or column.null_count == len(column):
        return [None] * len(index)
    validity, *_, held = column.buffers()
    index = index + column.offset
    if column.type == pa.string():
        offsets = np.frombuffer(column.buffers()[1], np.int32)
        data = memoryview(held if held is not None else b"")
        places = zip(offsets[index].tolist(), offsets[index + 1].tolist(), strict=True)
        items: list[Any] = [str(data[begin:end], "utf-8") for begin, end in places]
    elif pa.types.is_boolean(column.type):
        items = _bits(held, index)
    else:
        items = np.frombuffer(held, _dtype(column.type))[index].tolist()
    if not column.null_count:
        return items
    return [item if valid else None for item, valid in zip(items, _bits(validity, index), strict=True)]


def _bits(bitmap: pa.Buffer, index: Ints) -> list[bool]:
    return (np.frombuffer(bitmap, np.uint8)[index >> 3] >> (index & 7) & 1).astype(np.bool_).tolist()  # type: ignore[no-any-return]


def _texts(values: Sequence[Any], kind: pa.DataType, mask: NDArray[np.bool_] | None) -> pa.Array:
    nothing: Any = "" if kind == pa.string() else b""
    held = values if mask is None else [nothing if value is None else value for value in values]
    joined = nothing.join(held)
    data = joined.encode() if kind == pa.string() else joined
    # Where there are as many bytes as characters, each character is one.
    sizes = map(len, held) if len(data) == len(joined) else [len(value.encode()) for value in held]
    offsets = np.fromiter(accumulate(sizes, initial=0), np.int64, len(held) + 1)
    if offsets[-1] > MOST_TEXT:
        raise OverflowError("more than 2 GiB of text in one column of a batch")
    buffers = [_validity(mask), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(held), buffers)


def _validity(mask: NDArray[np.bool_] | None) -> pa.Buffer | None:
    if mask is None or not mask.any():
        return None
    return pa.py_buffer(np.packbits(~mask, bitorder="little"))


def _dtype(kind: pa.DataType) -> str:
    return "bool" if pa.types.is_boolean(kind) else "int32" if pa.types.is_int32(kind) else "int64"
