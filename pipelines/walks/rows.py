"""Arrow rows that wait: each is written once, when its batch ends and it still waits, and read once.

A row has an id, a number that grows: `base` and its event's position in the batch. What an answer in the same batch
takes never leaves the batch. Chunks of rows beyond a bound lie in files that are mapped.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from amqpscope.pipelines.walks.events import Events
from amqpscope.pipelines.walks.store import SPILL

_ID = "__id"


class Waiting:
    """Rows of one source that wait for something.

    Attributes:
        base: id of the first event of the batch.
    """

    def __init__(self, source: int, columns: Sequence[str], room: int = SPILL) -> None:
        self.source = source
        self.columns = tuple(columns)
        self.room = room
        self.base = 0
        self._batch: Events | None = None
        self._chunks: list[pa.Table] = []
        self._left: list[int] = []
        """Rows of each chunk that still wait."""
        self._firsts: list[int] = []
        self._held = 0

    def begin(self, events: Events) -> None:
        """A batch begins: its events have ids from `base` on."""
        self._batch = events

    def end(self, still: Any) -> None:
        """The batch ends.

        Args:
            still: positions in the batch (int64, growing) of rows that wait on.
        """
        assert self._batch is not None
        if len(still):
            rows = self._batch.take(self.source, still, self.columns).combine_chunks()
            self._add(rows.append_column(_ID, pa.array(still + self.base)))
        self.base += len(self._batch)
        self._batch = None

    def _add(self, rows: pa.Table) -> None:
        size = rows.nbytes
        if self._held + size > self.room:
            rows = spilled(rows)
        else:
            self._held += size
        self._chunks.append(rows)
        self._left.append(len(rows))
        self._firsts.append(rows[_ID][0].as_py())

    def has(self, ids: Any) -> Any:
        """Whether ids (int64) are of rows of this store's source that are here (bool)."""
        found = np.zeros(len(ids), np.bool_)
        here = ids >= self.base
        if here.any():
            assert self._batch is not None
            found[here] = self._batch.source[ids[here] - self.base] == self.source
        for rows in self._chunks:
            found |= np.isin(ids, rows[_ID].to_numpy())
        return found

    def get(self, ids: Any) -> pa.Table:
        """Rows by id (int64), in this order, with the columns of this store; they wait on."""
        return self._get(ids, take=False)

    def chosen(self, ids: Any) -> pa.Table:
        """Rows by id, a row of nulls for -1; they wait on."""
        there = ids >= 0
        rows = self.get(ids[there])
        if there.all():
            return rows
        place = np.cumsum(there) - 1
        return rows.take(pa.array(place, mask=~there))

    def take(self, ids: Any) -> pa.Table:
        """Rows by id, in this order; they wait no more."""
        return self._get(ids, take=True)

    def _get(self, ids: Any, take: bool) -> pa.Table:
        here = np.flatnonzero(ids >= self.base)
        parts, at = [], []
        if len(here):
            assert self._batch is not None
            parts.append(self._batch.take(self.source, ids[here] - self.base, self.columns))
            at.append(here)
        if len(here) < len(ids):
            earlier = np.flatnonzero(ids < self.base)
            chunk = np.searchsorted(np.array(self._firsts, np.int64), ids[earlier], "right") - 1
            for number in np.unique(chunk):
                mine = earlier[chunk == number]
                rows = self._chunks[number]
                known = rows[_ID].to_numpy()
                parts.append(rows.take(pa.array(np.searchsorted(known, ids[mine]))).drop_columns(_ID))
                at.append(mine)
                if take:
                    self._left[number] -= len(mine)
            if take:
                self._forget()
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return self._empty()
        order = np.empty(len(ids), np.int64)
        order[np.concatenate(at)] = np.arange(len(ids))
        return pa.concat_tables(parts).take(pa.array(order))

    def _empty(self) -> pa.Table:
        if self._batch is not None and self.source in self._batch.tables:
            return self._batch.take(self.source, np.zeros(0, np.int64), self.columns)
        if self._chunks:
            return self._chunks[0].drop_columns(_ID).slice(0, 0)
        return pa.table({name: pa.nulls(0) for name in self.columns})

    def _forget(self) -> None:
        """Let chunks go of which nothing waits."""
        kept = [number for number, left in enumerate(self._left) if left > 0]
        if len(kept) == len(self._left):
            return
        self._chunks, self._left, self._firsts = (
            [found[number] for number in kept] for found in (self._chunks, self._left, self._firsts)
        )
        self._held = sum(rows.nbytes for rows in self._chunks if not is_mapped(rows))

    def forget(self, before: int) -> None:
        """Let chunks go of which all rows have ids below this."""
        for number, rows in enumerate(self._chunks):
            if rows[_ID][len(rows) - 1].as_py() < before:
                self._left[number] = 0
        self._forget()

    def drop(self) -> None:
        """Nothing waits any more: ids may begin anew."""
        self._chunks, self._left, self._firsts, self._held = [], [], [], 0

    def table(self) -> pa.Table | None:
        """All rows that wait, with their ids, for `put_back`; None for none."""
        return pa.concat_tables(self._chunks) if self._chunks else None

    def put_back(self, rows: pa.Table | None, base: int) -> None:
        """Go on with rows that `table` gave, and ids from `base` on."""
        self.drop()
        self.base = base
        if rows is not None and len(rows):
            self._add(rows.combine_chunks())


_MAPPED = b"amqpscope mapped"


def spilled(rows: pa.Table) -> pa.Table:
    """Write rows to a file that is mapped; it goes when they do."""
    marked = rows.replace_schema_metadata({_MAPPED: b"1"})
    handle, path = tempfile.mkstemp(prefix="amqpscope-", suffix=".arrow")
    os.close(handle)
    try:
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, marked.schema) as writer:
            writer.write_table(marked)
        return pa.ipc.open_file(pa.memory_map(path)).read_all()
    finally:
        os.unlink(path)  # noqa: PTH108 - the mapping keeps it


def is_mapped(rows: pa.Table) -> bool:
    """Whether `spilled` wrote these rows."""
    return _MAPPED in (rows.schema.metadata or {})
