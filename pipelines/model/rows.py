"""Arrow rows of outstanding events: a row is written once, if it is outstanding at the end of its batch, and read once.

The id of a row is a growing number: `base` plus the position of its event in the batch. Rows that are answered in their
own batch never leave it. Chunks of rows beyond a bound lie in mapped files.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.pipelines.model.events import Events
from amqpscope.pipelines.model.store import SPILL, release

_ID = "__id"


@dataclass
class Chunk:
    """Outstanding rows of one batch, in the order of their ids."""

    rows: pa.Table
    memory: mmap | None
    """The mapping in which they lie, if that is a file."""
    first: int
    """Id of the first."""
    left: int
    """Number of rows that are still outstanding."""

    @property
    def ids(self) -> Any:
        """Ids of all its rows (int64)."""
        return self.rows[_ID].to_numpy()

    def __len__(self) -> int:
        return len(self.rows)


class Waiting:
    """Rows of one source that are outstanding.

    Attributes:
        base: id of the first event of the batch.
    """

    def __init__(self, source: int, columns: Sequence[str], room: int = SPILL) -> None:
        self.source = source
        self.columns = tuple(columns)
        self.room = room
        self.base = 0
        self._batch: Events | None = None
        self._chunks: list[Chunk] = []
        self._held = 0

    def begin(self, events: Events) -> None:
        """Begin a batch: its events have ids from `base` on."""
        self._batch = events

    def end(self, still: Any) -> None:
        """End the batch.

        Args:
            still: positions in the batch (int64, growing) of rows that stay outstanding.
        """
        assert self._batch is not None
        if len(still):
            rows = self._batch.take(self.source, still, self.columns).combine_chunks()
            self._add(rows.append_column(_ID, pa.array(still + self.base)))
        self.base += len(self._batch)
        self._batch = None

    def _add(self, rows: pa.Table) -> None:
        size, memory = rows.get_total_buffer_size(), None
        if self._held + size > self.room:
            rows, memory = spilled(rows)
        else:
            self._held += size
        self._chunks.append(Chunk(rows, memory, rows[_ID][0].as_py(), len(rows)))

    def has(self, ids: Any) -> Any:
        """Return which ids (int64) are of rows of this store's source that are here (bool)."""
        found = np.zeros(len(ids), np.bool_)
        here = ids >= self.base
        if here.any():
            assert self._batch is not None
            found[here] = self._batch.source[ids[here] - self.base] == self.source
        for chunk, mine in self._earlier(ids):
            known = chunk.ids
            place = np.minimum(np.searchsorted(known, ids[mine]), len(known) - 1)
            found[mine] = known[place] == ids[mine]
        return found

    def get(self, ids: Any) -> pa.Table:
        """Return rows by id (int64), in this order, with the columns of this store; they stay here."""
        return self._get(ids, take=False)

    def chosen(self, ids: Any) -> pa.Table:
        """Return rows by id, a row of nulls for -1; they stay here."""
        there = ids >= 0
        rows = self.get(ids[there])
        if there.all():
            return rows
        place = np.cumsum(there) - 1
        return rows.take(pa.array(place, mask=~there))

    def take(self, ids: Any) -> pa.Table:
        """Return rows by id, in this order, and remove them."""
        return self._get(ids, take=True)

    def _get(self, ids: Any, take: bool) -> pa.Table:
        here = np.flatnonzero(ids >= self.base)
        parts, at = [], []
        if len(here):
            assert self._batch is not None
            parts.append(self._batch.take(self.source, ids[here] - self.base, self.columns))
            at.append(here)
        for chunk, mine in self._earlier(ids):
            parts.append(chunk.rows.take(pa.array(np.searchsorted(chunk.ids, ids[mine]))).drop_columns(_ID))
            at.append(mine)
            release(chunk.memory)
            if take:
                chunk.left -= len(mine)
        if take:
            self._forget()
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return self._empty()
        order = np.empty(len(ids), np.int64)
        order[np.concatenate(at)] = np.arange(len(ids))
        return pa.concat_tables(parts).take(pa.array(order))

    def _earlier(self, ids: Any) -> Iterator[tuple[Chunk, Any]]:
        """Yield chunks that may have ids of earlier batches, and the positions of these ids."""
        earlier = np.flatnonzero(ids < self.base)
        firsts = np.array([chunk.first for chunk in self._chunks], np.int64)
        of = np.searchsorted(firsts, ids[earlier], "right") - 1
        for number in np.unique(of[of >= 0]):
            yield self._chunks[number], earlier[of == number]

    def _empty(self) -> pa.Table:
        if self._batch is not None and self.source in self._batch.tables:
            return self._batch.take(self.source, np.zeros(0, np.int64), self.columns)
        if self._chunks:
            return self._chunks[0].rows.drop_columns(_ID).slice(0, 0)
        return pa.table({name: pa.nulls(0) for name in self.columns})

    def _forget(self) -> None:
        """Drop chunks without outstanding rows."""
        if all(chunk.left > 0 for chunk in self._chunks):
            return
        self._chunks = [chunk for chunk in self._chunks if chunk.left > 0]
        self._held = sum(chunk.rows.get_total_buffer_size() for chunk in self._chunks if chunk.memory is None)

    def forget(self, before: int) -> None:
        """Drop chunks of which all rows have ids below this."""
        for chunk in self._chunks:
            if chunk.rows[_ID][-1].as_py() < before:
                chunk.left = 0
        self._forget()

    def drop(self) -> None:
        """Drop all rows: ids may begin again."""
        self._chunks, self._held = [], 0

    def parts(self) -> dict[str, Any]:
        """Return all outstanding rows with their ids, for `put_back`."""
        rows = {"rows": pa.concat_tables([chunk.rows for chunk in self._chunks])} if self._chunks else {}
        return {"base": self.base, **rows}

    def put_back(self, parts: Mapping[str, Any]) -> None:
        """Restore rows that `parts` returned; ids go on from its base."""
        self.drop()
        self.base = parts["base"]
        if len(rows := parts.get("rows", ())):
            self._add(rows.combine_chunks())


class Retained:
    """A few rows of one source that are needed for long, by the ids of their events.

    An id is `base` and the event's position in its batch.

    Attributes:
        base: id of the first event of the batch.
    """

    def __init__(self, source: int, columns: tuple[str, ...]) -> None:
        self.source = source
        self.columns = columns
        self.drop()

    def drop(self) -> None:
        """Forget all rows; ids begin again."""
        self.base = 0
        self.ids: Ints = np.zeros(0, np.int64)
        self.rows: pa.Table | None = None
        self._batch: Events | None = None

    def begin(self, events: Events) -> None:
        """Begin a batch."""
        self._batch = events

    def get(self, ids: Ints) -> pa.Table | None:
        """Return rows by id, in this order, all null for -1; None when all are."""
        here = (ids >= self.base) & (self._batch is not None)
        earlier = (ids >= 0) & ~here
        parts = [self.rows] if earlier.any() and self.rows is not None else []
        place = np.full(len(ids), -1, np.int64)
        if parts:
            place[earlier] = np.searchsorted(self.ids, ids[earlier])
        if here.any():
            assert self._batch is not None
            place[here] = np.arange(np.count_nonzero(here)) + sum(map(len, parts))
            parts.append(self._batch.take(self.source, ids[here] - self.base, self.columns))
        if not parts:
            return None
        rows = pa.concat_tables(parts)
        if len(rows) == len(ids) and (place == np.arange(len(ids))).all():
            return rows
        return rows.take(pa.array(place, mask=place < 0))

    def end(self, ids: Any) -> None:
        """End the batch: of all rows those of these ids stay (-1: none)."""
        assert self._batch is not None
        retained = np.unique(np.asarray(ids, np.int64))
        retained = retained[retained >= 0]
        rows = self.get(retained)
        self.ids, self.rows = retained, rows.combine_chunks() if rows is not None else None
        self.base += len(self._batch)
        self._batch = None

    def close(self) -> None:
        """Close the batch: all ids are those of stored rows."""
        self._batch = None

    def parts(self) -> dict[str, Any]:
        """Return the rows with their ids, for `put_back`."""
        return {"base": self.base, "ids": self.ids, **({} if self.rows is None else {"rows": self.rows})}

    def put_back(self, parts: Mapping[str, Any]) -> None:
        """Restore what `parts` returned."""
        self.base, self.ids, self.rows = parts["base"], parts["ids"], parts.get("rows")


def spilled(rows: pa.Table) -> tuple[pa.Table, mmap]:
    """Write rows to a mapped file, which is removed with them."""
    handle, path = tempfile.mkstemp(prefix="amqpscope-", suffix=".arrow")
    os.close(handle)
    try:
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        with Path(path).open("rb") as file:
            memory = mmap(file.fileno(), 0, access=ACCESS_READ)
        return pa.ipc.open_file(pa.py_buffer(memory)).read_all(), memory
    finally:
        os.unlink(path)  # noqa: PTH108 - the mapping keeps it
