"""Statistics of a directory that is followed: walks go on from batch to batch, with all that they remember as bytes.

Of each connection that goes on, the state of its walks is kept. Its events are those of one pass; in each batch its row
in `connections` comes first, as far as it is known. What follows the first frame of a delivery (`model.events`) waits
until the delivery is whole (`incomplete_deliveries`). `incremental` walks, and writes rows when they are final.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.dissector import Options
from amqpscope.dissector.following.dissection import Dissection
from amqpscope.dissector.following.journal import Journal
from amqpscope.dissector.following.loop import End
from amqpscope.dissector.tables.output import Output
from amqpscope.dissector.tables.rows import Work
from amqpscope.pipelines.model.store import pack, unpack
from amqpscope.pipelines.model.walk import schema
from amqpscope.pipelines.run import kernels
from amqpscope.pipelines.run.incomplete_deliveries import cuts, split
from amqpscope.pipelines.run.incremental import FOLLOWED, OPEN_NS, Continuing
from amqpscope.pipelines.run.local import emitted, tables
from amqpscope.pipelines.run.preparing import PACKET, timed

NAME, VERSION = "statistics", 2
"""Of the state."""
WALKS, HELD = "walks", "held "
"""Names of parts of the state: walks over connections, and rows of tables that wait."""
MOST_ROWS = 1 << 20
"""Rows of a dissection that wait for walks."""
MOST_CUT = 1000
"""Captures with cut packets of which the names are kept."""
CAPTURES = "captures"


def schemas() -> dict[str, pa.Schema]:
    """Return the schemas of the tables that are written."""
    return {name: schema(name) for name in (*tables(), CAPTURES)}


class Walking:
    """Walks over the rows of connections, as they come.

    Args:
        engine: makes the statistics.
        options: of the dissection.
        state: what `held` and `take_walks` of the engine returned after the batch before; nothing in the first one.
        most: rows after which walks go on, so that memory does not depend on the size of files.
    """

    def __init__(self, engine: Continuing, options: Options, state: Mapping[str, Any], most: int = MOST_ROWS) -> None:
        self.engine, self.most = engine, most
        self.note = {"complete": True, "from_ns": options.from_ns, "to_ns": options.to_ns}
        self._new: dict[str, list[pa.Table]] = {}
        self._rows = 0
        self._held = {name: state[HELD + name] for name in FOLLOWED if HELD + name in state}
        if WALKS in state:
            engine.put_walks(state[WALKS])

    def add(self, work: Work) -> None:
        """Take rows; those of captures are written as they are."""
        for table, batch in work():
            rows = pa.Table.from_batches([batch])
            if table == CAPTURES:
                self.engine.emit(table, rows)
            elif columns := self.engine.columns(table):
                self._new.setdefault(table, []).append(rows.select(columns))
                self._rows += len(rows)

    @property
    def is_full(self) -> bool:
        """Whether walks should go on now."""
        return self._rows > self.most

    def step(self, under_way: Callable[[], pa.RecordBatch] | None, cut: Sequence[str]) -> pa.Array:
        """Walk over the rows so far; return the connections that ended.

        Args:
            under_way: returns rows of connections that go on; None if none does.
            cut: names of captures with cut packets.
        """
        new = {name: self._table(name) for name in (*FOLLOWED, "tcp_windows")}
        new["messages"] = self.engine.keyed(timed(new["messages"], pa.array(cut, pa.string())))
        connections = self._table("connections")
        ended = connections["connection_id"].combine_chunks()
        for name, rows in self._held.items():
            new[name] = pa.concat_tables([rows, new[name]], promote_options="default")
        self._held, self._rows, known = {}, 0, [connections]
        if under_way is not None:
            waits = cuts(new, ended)
            for name in FOLLOWED:
                new[name], self._held[name] = split(name, new[name], waits)
            known.append(_going_on(pa.Table.from_batches([under_way()]), ended, new.values()))
        self.engine.walk_batch(known, new, self.note)
        return ended

    def take_out(self) -> dict[str, Any]:
        """Return the state for the next batch."""
        return {WALKS: self.engine.take_walks(), **{HELD + name: rows for name, rows in self._held.items()}}

    def _table(self, name: str) -> pa.Table:
        columns = self.engine.columns(name)
        empty = schema(name).empty_table().select(columns)
        return pa.concat_tables([empty, *self._new.pop(name, ())], promote_options="default")


class Analysis:
    """One batch of statistics: what takes its rows (`loop.Batch`).

    Args:
        options: of the dissection.
        window_ns: how far before a delivery to look for its publish (ns).
        journal: has the state that the batch before left.
        output: for the tables of statistics.
        dissection: where the rows come from.
        most: see `Walking`.
    """

    def __init__(
        self,
        options: Options,
        window_ns: int,
        journal: Journal,
        output: Output,
        dissection: Dissection,
        most: int = MOST_ROWS,
    ) -> None:
        self.engine = Continuing(kernels.begin(dissection.size), window_ns, partial(emitted, output))
        self._dissection = dissection
        state = read_state(journal)
        self._cut: list[str] = state.get("cut", [])
        """Captures of earlier batches with cut packets, the latest ones."""
        if state:
            self.engine.merge(state)
        self._walking = Walking(self.engine, options, state, most)
        self.add = self._walking.add

    def rest(self) -> None:
        """See `loop.Batch`."""
        if self._walking.is_full:
            self._step(is_last=False)

    def finish(self, is_last: bool) -> End:
        """See `loop.Batch`."""
        self._step(is_last)
        renewed = self.engine.summaries(is_last)
        kernels.end(self.engine.compiled)
        return written(self.engine, renewed, snapped(self._dissection, self._cut), self._walking.take_out())

    def _step(self, is_last: bool) -> None:
        """Walk over the rows so far."""
        under_way = None if is_last else self._dissection.dissector.under_way
        ended = self._walking.step(under_way, snapped(self._dissection, self._cut))
        self.engine.conclude_batch(ended, self._dissection.dissector.held_ns, is_last)


def read_state(journal: Journal) -> dict[str, Any]:
    """Return what `written` wrote in the batch before; nothing in the first one."""
    data = journal.state(NAME)
    return unpack(NAME, VERSION, data) if data is not None else {}


def written(engine: Continuing, renewed: Mapping[str, pa.Table], cut: list[str], more: Mapping[str, Any]) -> End:
    """Return the end of a batch.

    Args:
        engine: what it does not keep of walks over connections is written.
        renewed: see `loop.End`.
        cut: names of captures with cut packets.
        more: parts of the state.
    """
    return End({NAME: pack(NAME, VERSION, {**engine.rest(), **more, "cut": cut[-MOST_CUT:]})}, renewed)


def snapped(dissection: Dissection, before: list[str]) -> list[str]:
    """Return the names of captures with cut packets, with those of earlier batches."""
    return before + [each.name for each in dissection.seen if 0 < each.info.snap_length < PACKET]


def _going_on(connections: pa.Table, ended: pa.Array, tables: Iterable[pa.Table]) -> pa.Table:
    """Return the rows of connections of which there are rows in a batch, and which have not ended: nothing ends them.

    Args:
        connections: rows as they would be now.
        ended: connections.
        tables: of the batch.
    """
    seen = pa.chunked_array([chunk for rows in tables for chunk in rows["connection_id"].chunks], pa.int64())
    goes_on = pc.and_not(
        pc.is_in(connections["connection_id"], value_set=seen), pc.is_in(connections["connection_id"], value_set=ended)
    )
    rows = connections.filter(goes_on)
    columns = {name: rows[name] for name in rows.column_names}
    unknown = ("closed_by", "closed_ts_ns", "handshake_outcome")
    columns |= {name: pa.nulls(len(rows), rows[name].type) for name in unknown}
    return pa.table(columns | {"last_ts_ns": pa.repeat(pa.scalar(OPEN_NS), len(rows))})
