"""Arrow columns of which most have a value in few of their rows.

Numbers are put into the memory of a `Room` by the kernel that reads them. Of texts there are entries: the number of a
row and the bytes that stand there, in ascending order of rows, no row twice. All other rows are null.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from amqpscope.dissector.fields.arrow import MOST_TEXT, array
from amqpscope.dissector.fields.text import Bytes, Integers
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import call, i64, proven
from amqpscope.dissector.kernels.words import WORD, copy_bytes, put_word, word

TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(), "int32": pa.int32(), "int64": pa.int64(), "string": pa.string(), "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "double": pa.float64(),
}  # fmt: skip
"""The types of columns by the names that specifications use."""

ENTRIES, BOOLS, INT32S, INT64S = range(4)
STORES = {"bool": BOOLS, "int32": INT32S, "int64": INT64S}
"""What of a `Room` holds the values of columns of these types; entries are held elsewhere."""

_nulls: dict[pa.DataType, pa.Array] = {}


class Validity(NamedTuple):
    """Which of the rows of a column have a value."""

    rows: int
    values: int
    bits: Bytes
    """One bit a row, lowest first."""

    def buffers(self, *others: npt.NDArray[np.generic]) -> list[pa.Buffer | None]:
        """Return the buffers of a column with these after the validity."""
        bits = None if self.values == self.rows else pa.py_buffer(self.bits)
        return [bits, *map(pa.py_buffer, others)]


class Room:
    """Memory for the columns of n rows, all null and zero at first.

    Args:
        n: rows.
        stores: (columns,) what holds the values of each.
        used: (columns,) whether it has values.

    Attributes:
        bits: bitmaps: of each column in use the validity, and of columns of bools the values.
        ints: values of columns of int32.
        longs: values of columns of int64.
        valid_at: (columns,) where in `bits` the validity of each begins.
        value_at: (columns,) where in `bits`, `ints` or `longs` the values of each begin.
    """

    def __init__(self, n: int, stores: Integers, used: npt.NDArray[np.bool_]) -> None:
        self.n = n
        self.width = -(-n // 64) * 8
        self.stores = stores
        self.valid_at = (np.cumsum(used) - 1) * self.width
        self.value_at = np.zeros(len(stores), np.int64)
        bitmaps = int(used.sum())
        places = [0] * 4
        for store, first, step in ((BOOLS, bitmaps, self.width), (INT32S, 0, n), (INT64S, 0, n)):
            mine = used & (stores == store)
            places[store] = int(mine.sum())
            self.value_at[mine] = (np.arange(places[store]) + first) * step
        self.bits = np.zeros((bitmaps + places[BOOLS]) * self.width, np.uint8)
        self.ints = np.zeros(places[INT32S] * n, np.int32)
        self.longs = np.zeros(places[INT64S] * n, np.int64)

    def validity(self, column: int, values: int) -> Validity:
        """Return which rows of a column have one of its values."""
        at = int(self.valid_at[column])
        return Validity(self.n, values, self.bits[at : at + self.width])

    def numbers(self, column: int, kind: str, values: int) -> pa.Array:
        """Return a column of `bool`, `int32` or `int64` with this number of values."""
        at = int(self.value_at[column])
        held: npt.NDArray[np.integer] = self.bits[at : at + self.width]
        if kind != "bool":
            held = (self.ints if kind == "int32" else self.longs)[at : at + self.n]
        buffers = self.validity(column, values).buffers(held)
        return pa.Array.from_buffers(TYPES[kind], self.n, buffers, self.n - values)


def validity(n: int, row: Integers) -> Validity:
    """Return the validity of n rows of which these have a value."""
    valid = np.zeros(n, np.bool_)
    valid[row] = True
    return Validity(n, len(row), np.packbits(valid, bitorder="little"))


def nulls(n: int, kind: str | pa.DataType) -> pa.Array:
    """Return a column of nothing but null; shares memory with all others of its type."""
    held = TYPES.get(kind, kind)
    array = _nulls.get(held)
    if array is None or len(array) < n:
        array = _nulls[held] = pa.nulls(2 * n, held)
    return array.slice(0, n)


def filled(held: Mapping[str, pa.Array], kinds: Mapping[str, str | pa.DataType], n: int) -> dict[str, pa.Array]:
    """Return a column of n rows for each of `kinds`, in their order: the one that is held, or nothing but null."""
    nothing = {kind: nulls(n, kind) for kind in set(kinds.values())}
    return {name: held[name] if name in held else nothing[kind] for name, kind in kinds.items()}


def numbers(valid: Validity, kind: str, row: Integers, value: npt.NDArray[np.generic]) -> pa.Array:
    """Return a column of `bool`, `int32` or `int64` with `value[e]` in `row[e]`, all that are valid."""
    if not len(row):
        return nulls(valid.rows, kind)
    values: npt.NDArray[np.integer | np.bool_] = np.zeros(valid.rows, kind)
    values[row] = value
    data = np.packbits(values, bitorder="little") if kind == "bool" else values
    return pa.Array.from_buffers(TYPES[kind], valid.rows, valid.buffers(data), valid.rows - valid.values)


def texts(valid: Validity, row: Integers, size: Integers, data: Bytes, compiled: bool) -> pa.Array:
    """Return a column of text: entries of `size[e]` bytes of valid UTF-8, one after the other, for `row[e]`.

    Raises:
        OverflowError: 2 GiB of text or more; batches have to be smaller than that.
    """
    n = valid.rows
    if not len(row):
        return nulls(n, "string")
    if len(data) > MOST_TEXT:
        raise OverflowError("more than 2 GiB of text in one column of a batch")
    offsets = np.empty(n + 1, np.int32)
    call(place_texts, compiled, row, size, offsets)
    return pa.Array.from_buffers(pa.string(), n, valid.buffers(offsets, data), n - valid.values)


def constant(valid: Validity, row: Integers, text: str) -> pa.Array:
    """Return a column with the same text in every `row[e]`."""
    n = valid.rows
    data = text.encode()
    offsets = np.zeros(n + 1, np.int32)
    offsets[1:][row] = len(data)
    np.cumsum(offsets, out=offsets)
    held = np.frombuffer(data * len(row), np.uint8)
    return pa.Array.from_buffers(pa.string(), n, valid.buffers(offsets, held), n - valid.values)


def repeated(text: str, n: int) -> pa.Array:
    """Return a column with the same text in every row; shares memory with others."""
    return _repeated(text, 1 << max(n - 1, 0).bit_length()).slice(0, n)


@lru_cache(8)
def _repeated(text: str, n: int) -> pa.Array:
    data = text.encode()
    offsets = np.arange(n + 1, dtype=np.int32) * len(data)
    return pa.Array.from_buffers(pa.string(), n, [None, pa.py_buffer(offsets), pa.py_buffer(data * n)])


def spread(held: Mapping[str, pa.Array], counts: Integers, compiled: bool) -> dict[str, pa.Array]:
    """Return columns of bools, integers or texts with each row `counts` times, without those that are all null."""
    there = {name: column for name, column in held.items() if column.null_count < len(column)}
    if not compiled:
        index = array(np.repeat(np.arange(len(counts)), counts))
        return {name: column.take(index) for name, column in there.items()}
    total = int(counts.sum())
    return {name: _spread(column, counts, total) for name, column in there.items()}


def _spread(column: pa.Array, counts: Integers, total: int) -> pa.Array:
    kind, at = column.type, column.offset
    bits, *values = (np.frombuffer(b or b"", np.uint8) for b in column.buffers())
    made: list[npt.NDArray[np.generic] | None] = [None]
    if column.null_count:
        made = [np.zeros(-(-total // 8), np.uint8)]
        call(spread_bits, True, bits, at, counts, made[0])
    if pa.types.is_string(kind):
        offsets = values[0].view(np.int32)[at : at + len(column) + 1]
        made += [np.empty(total + 1, np.int32), np.empty(int(np.diff(offsets) @ counts), np.uint8)]
        call(spread_texts, True, offsets, values[1], counts, *made[1:])
    elif pa.types.is_boolean(kind):
        made.append(np.zeros(-(-total // 8), np.uint8))
        call(spread_bits, True, values[0], at, counts, made[1])
    else:
        numbers = values[0].view(np.int32 if kind.bit_width == 32 else np.int64)[at:]
        made.append(np.empty(total, numbers.dtype))
        call(spread_numbers, True, numbers, counts, made[1])
    return pa.Array.from_buffers(kind, total, [None if m is None else pa.py_buffer(m) for m in made])


class Names:
    """A few texts of which columns are made by their numbers."""

    def __init__(self, texts: Sequence[str]) -> None:
        held = [text.encode() for text in texts]
        self.texts = array(texts, pa.string())
        self.sizes = np.array([len(text) for text in held], np.int64)
        self.at = np.cumsum(self.sizes) - self.sizes
        self.data = np.frombuffer(b"".join(held) + bytes(WORD), np.uint8).copy()

    def column(self, number: Integers, compiled: bool) -> pa.Array:
        """Return the text of each number; null where it is below 0."""
        if not compiled:
            return self.texts.take(array(number, mask=number < 0))
        n = len(number)
        counts = np.bincount(np.maximum(number, -1) + 1, minlength=len(self.sizes) + 1)[1:]
        data = np.empty(int(counts @ self.sizes) + WORD, np.uint8)
        offsets = np.empty(n + 1, np.int32)
        bits = np.zeros(-(-n // 8), np.uint8)
        call(write_names, compiled, number, self.at, self.sizes, self.data, bits, offsets, data)
        valid = Validity(n, int(counts.sum()), bits)
        return pa.Array.from_buffers(pa.string(), n, valid.buffers(offsets, data[:-WORD]), n - valid.values)


@proven
def write_names(
    number: Integers, at: Integers, size: Integers, names: Bytes, bits: Bytes, offsets: Array, target: Bytes
) -> None:
    """Write the text of each number that is not below 0.

    Bounds: no number is beyond the names; `names` and `target` have a word more than the texts.
    """
    j = 0
    for r in range(len(number)):
        offsets[r] = j
        k = number[r]
        if k >= 0:
            bits[r >> 3] = bits[r >> 3] | (1 << (r & 7))
            p = at[k]
            end = j + size[k]
            for q in range(j, end, WORD):
                put_word(target, q, word(names, p))
                p += WORD
            j = end
    offsets[len(number)] = j


@proven
def place_texts(row: Integers, size: Integers, offsets: Array) -> None:
    """Fill in where the text of each row begins, and where the last ends.

    Bounds: rows ascend, and none lies beyond the last item of `offsets`.
    """
    at = 0
    r = 0
    for e in range(len(row)):
        for k in range(r, row[e] + 1):
            offsets[k] = at
        r = row[e] + 1
        at += size[e]
    for k in range(r, len(offsets)):
        offsets[k] = at


@proven
def spread_numbers(value: Array, counts: Integers, target: Array) -> None:
    """Write each number so often. Bounds: there are as many counts as numbers, and `target` has the sum of them."""
    j = 0
    for r in range(len(counts)):
        for k in range(j, j + counts[r]):
            target[k] = value[r]
        j += counts[r]


@proven
def spread_bits(bits: Bytes, at: int, counts: Integers, target: Bytes) -> None:
    """Write each bit from bit `at` on so often; `target` is zero at first. Bounds: as `spread_numbers`."""
    j = 0
    for r in range(len(counts)):
        if bits[(at + r) >> 3] >> ((at + r) & 7) & 1 == 1:
            for k in range(j, j + counts[r]):
                target[k >> 3] = target[k >> 3] | (1 << (k & 7))
        j += counts[r]


@proven
def spread_texts(offsets: Array, data: Bytes, counts: Integers, places: Array, target: Bytes) -> None:
    """Write each text so often. Bounds: as `spread_numbers`; texts lie in `data`, and `target` has room for all."""
    j = 0
    n = 0
    for r in range(len(counts)):
        begin = i64(offsets[r])
        size = i64(offsets[r + 1]) - begin
        for k in range(n, n + counts[r]):
            places[k] = j
            copy_bytes(data, begin, target, j, size)
            j += size
        n += counts[r]
    places[n] = j
