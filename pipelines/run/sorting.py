"""Sort rows in memory into events: grouped by connection, in order, in batches.

Rows of a connection mostly come in order, so it is enough to group them. Texts stay encoded as dictionaries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.pipelines.model import events as ev
from amqpscope.pipelines.model.events import Events, decoded
from amqpscope.pipelines.model.walk import schema

BATCH = 1 << 17
"""Events of a batch: as many as memory allows, for what each walk does once per batch adds up."""
CHUNK = 1 << 16
"""Least number of events that are sorted together."""
PLACE = "__place"
"""Row of `further`, null for rows that are not in it."""


def encoded(rows: pa.Table) -> pa.Table:
    """Return rows with texts as dictionaries."""
    columns = [each.dictionary_encode() if pa.types.is_string(each.type) else each for each in rows.columns]
    return pa.table(columns, names=rows.column_names)


def joined(parts: list[pa.Table], narrow: bool = False) -> pa.Table:
    """Return one table of all parts, with one chunk per column; `narrow` shrinks indices. `parts` is emptied.

    A column that a part lacks is null there.
    """
    kinds = {name: kind for part in parts for name, kind in zip(part.schema.names, part.schema.types, strict=True)}
    left = [(len(part), _columns(part)) for part in parts]
    parts.clear()
    made = []
    for name, kind in kinds.items():
        chunks: list[pa.Array] = []
        for count, columns in left:
            chunks += columns.pop(name).chunks if name in columns else [pa.nulls(count, kind)]
        whole = pa.chunked_array(chunks, kind).combine_chunks()
        made.append(_narrow(whole) if narrow else whole)
    return pa.table(made, names=list(kinds))


def _columns(rows: pa.Table) -> dict[str, pa.ChunkedArray]:
    return dict(zip(rows.schema.names, rows.columns, strict=True))


def _narrow(column: pa.Array) -> pa.Array:
    """Return a column whose dictionary has the narrowest possible indices."""
    if not pa.types.is_dictionary(column.type) or isinstance(column, pa.ChunkedArray):
        return column
    size = len(column.dictionary)
    kind = pa.int8() if size < 1 << 7 else pa.int16() if size < 1 << 15 else pa.int32()
    return pa.DictionaryArray.from_arrays(column.indices.cast(kind), column.dictionary)


@kernel
def place(dense: Array, starts: Array, by: Array) -> None:
    """Sort rows by counting.

    Args:
        dense: number of each row's connection; -1 for rows that are left out.
        starts: where the rows of each connection begin in `by`; changed.
        by: written: rows by connection, each in the order in which they were.
    """
    for i in range(len(dense)):
        connection = dense[i]
        if connection >= 0:
            by[starts[connection]] = i
            starts[connection] += 1


class _Source(NamedTuple):
    rows: pa.Table
    """Without `connection_id` and the column by which they are sorted: both are in `keys`."""
    further: pa.Table | None
    by: Any
    """Rows in their order (int32)."""
    keys: Any
    """Of these, connection and order as one number (int64)."""


class Sorted:
    """Events of rows in memory, in their order.

    Args:
        tables: by source, all rows and the further columns of some of them; emptied.
        columns: by source, those that events have; what rows lack is null.
        compiled: whether kernels run compiled.
    """

    def __init__(
        self,
        tables: dict[int, tuple[pa.Table, pa.Table | None]],
        columns: Mapping[int, Sequence[str]],
        compiled: bool = False,
    ) -> None:
        self._columns = columns
        self._compiled = compiled
        found = [pc.unique(rows["connection_id"]) for rows, _ in reversed(tables.values())]
        self._identities = pa.chunked_array(found, pa.int64()).unique().drop_null()
        highest = [
            pc.max(rows[ev.order(source)]).as_py() or 0 for source, (rows, _) in tables.items() if ev.order(source)
        ]
        self._shift = (max([0, *highest]) + 1).bit_length()
        self._sources: dict[int, _Source] = {}
        for source in list(tables):
            rows, further = tables.pop(source)
            by, keys = self._sorted(source, rows)
            self._sources[source] = _Source(
                rows.drop_columns(["connection_id", *filter(None, [ev.order(source)])]), further, by, keys
            )

    def __len__(self) -> int:
        return sum(len(source.by) for source in self._sources.values())

    def _sorted(self, source: int, rows: pa.Table) -> tuple[Any, Any]:
        dense = pc.index_in(rows["connection_id"], value_set=self._identities)
        connection = dense.fill_null(-1).to_numpy()
        key = np.zeros(len(rows), np.int64)
        if ev.order(source):
            key = rows[ev.order(source)].fill_null(-1).to_numpy() + 1
            connection = np.where(key == 0, np.int32(-1), connection)
        counts = np.bincount(connection[connection >= 0], minlength=len(self._identities))
        by = np.empty(int(counts.sum()), np.int32)
        call(place, self._compiled, connection, np.cumsum(counts) - counts, by)
        key |= connection.astype(np.int64) << self._shift
        keys = key[by]
        if (keys[1:] < keys[:-1]).any():
            again = np.argsort(keys, kind="stable")
            by, keys = by[again], keys[again]
        return by, keys

    def batches(self, size: int = BATCH) -> Iterator[Events]:
        """Yield all events in batches of this many at most."""
        for events in self._chunks(size):
            if len(events) <= size:
                yield events
                continue
            len(events.matrix)  # computed once for all of them
            for first in range(0, len(events), size):
                yield events.slice(first, size)

    def _chunks(self, size: int) -> Iterator[Events]:
        sources = [(number, source) for number, source in self._sources.items() if len(source.by)]
        if not sources:
            return
        step = max(CHUNK // (2 * len(sources)), 1)
        borders = np.unique(np.concatenate([source.keys[step::step] for _, source in sources]))
        borders = np.append(borders, np.iinfo(np.int64).max)
        ends = np.stack([np.searchsorted(source.keys, borders) for _, source in sources])
        total, taken = ends.sum(0), 0
        begin = np.zeros(len(sources), np.int64)
        for at in range(len(borders)):
            if at == len(borders) - 1 or total[at + 1] - taken > max(size, CHUNK):
                yield self._merged(sources, begin, ends[:, at])
                begin, taken = ends[:, at], int(total[at])

    def _merged(self, sources: list[tuple[int, _Source]], begin: Any, end: Any) -> Events:
        tables, keys, kinds, row = {}, [], [], []
        for (number, source), first, last in zip(sources, begin.tolist(), end.tolist(), strict=True):
            if first == last:
                continue
            tables[number] = self._taken(number, source, first, last)
            keys.append(source.keys[first:last])
            kinds.append(np.full(last - first, number, np.int8))
            row.append(np.arange(last - first))
        kind = np.concatenate(kinds)
        by = np.argsort(np.concatenate(keys), kind="stable")  # sources are in the order of their ranks
        return Events(tables, kind[by], np.concatenate(row)[by])

    def _taken(self, number: int, source: _Source, first: int, last: int) -> pa.Table:
        """Return some rows in order, with all their columns."""
        columns = _columns(source.rows.take(pa.array(source.by[first:last])))
        if source.further is not None:
            columns |= _columns(source.further.take(columns.pop(PLACE).combine_chunks()))
        keys = source.keys[first:last]
        columns["connection_id"] = self._identities.take(pa.array(keys >> self._shift))
        if ev.order(number):
            columns[ev.order(number)] = pa.array((keys & ((1 << self._shift) - 1)) - 1)
        declared = schema(ev.SOURCES[number])
        for name in set(self._columns[number]).intersection(declared.names) - set(columns):
            columns[name] = pa.nulls(last - first, declared.field(name).type)
        return pa.table(dict(sorted(columns.items())))  # in an order that all batches share: walks join rows of them


def sorted_by(order: Sequence[str], parts: list[pa.Table], compiled: bool = False) -> Iterator[pa.Table]:
    """Yield rows sorted by these columns, in batches; `parts` is emptied.

    Args:
        order: numbers, booleans or texts; the first one differs in nearly all rows, or is a digest.
        parts: rows; texts may be dictionaries.
        compiled: whether kernels run compiled.
    """
    if not parts:
        return
    rows = joined([encoded(part) for part in parts], narrow=True)
    parts.clear()
    by = _order_of([rows[name] for name in order])
    for first in range(0, len(by), CHUNK):
        yield decoded(rows.take(pa.array(by[first : first + CHUNK])))


def _order_of(columns: Sequence[pa.ChunkedArray]) -> Any:
    """Return the positions of rows in the order of these columns, nulls first."""
    ranks = [_ranks(column) for column in columns]
    by = np.arange(len(ranks[0]))
    if len(ranks) > 1:
        # The second column, mostly a time, mostly grows already; ties after it are rare, and sorted by themselves.
        by = np.argsort(ranks[1], kind="stable")
    by = by[np.argsort(ranks[0][by], kind="stable")]
    same = np.ones(max(len(by) - 1, 0), bool)
    for rank in ranks[:2]:
        same &= rank[by[1:]] == rank[by[:-1]]
    tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False)) if len(by) else by
    if len(tied):
        among = by[tied]
        by[tied] = among[np.lexsort([rank[among] for rank in reversed(ranks)])]
    return by


def _ranks(column: pa.ChunkedArray) -> Any:
    """Return numbers that sort as the values of a column do."""
    if pa.types.is_dictionary(column.type):
        column = column.combine_chunks()
        values = column.dictionary
        rank = np.empty(len(values) + 1, np.int64)
        rank[pc.sort_indices(values).to_numpy()] = np.arange(len(values))
        rank[-1] = -1
        return rank[column.indices.fill_null(len(values)).to_numpy()]
    if column.null_count:
        column = column.fill_null(-1)
    return column.to_numpy().astype(np.int64, copy=False)
