"""Statistics of a directory that is followed: walks go on from batch to batch, with all that they remember as bytes.

Of each connection that goes on, the state of its walks is kept. Its events are those of one pass; in each batch its row
in `connections` comes first, as far as it is known. What follows the first frame of a delivery (`walks.events`) waits
until the delivery is whole (`whole_deliveries`). `continuing` walks, and writes rows when they are final.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.dissector import Options
from amqpscope.dissector.following.dissection import Dissection
from amqpscope.dissector.following.journal import Journal
from amqpscope.dissector.following.loop import End
from amqpscope.dissector.tables.output import Output
from amqpscope.dissector.tables.rows import Work
from amqpscope.pipelines import kernels
from amqpscope.pipelines.continuing import FOLLOWED, OPEN_NS, Continuing
from amqpscope.pipelines.here import emitted, tables
from amqpscope.pipelines.preparing import PACKET, timed
from amqpscope.pipelines.walks.store import pack, unpack
from amqpscope.pipelines.walks.walk import schema
from amqpscope.pipelines.whole_deliveries import cuts, split

NAME = "statistics"
"""Of the state."""
MOST_ROWS = 1 << 20
"""Rows of a dissection that wait for walks."""
MOST_CUT = 1000
"""Captures with cut packets of which the names are kept."""
CAPTURES = "captures"


def schemas() -> dict[str, pa.Schema]:
    """Return the schemas of the tables that are written."""
    return {name: schema(name) for name in (*tables(), CAPTURES)}


class Analysis:
    """One batch of statistics: what takes its rows (`loop.Batch`).

    Args:
        options: of the dissection.
        window_ns: how far before a delivery to look for its publish (ns).
        journal: has the state that the batch before left.
        output: for the tables of statistics.
        dissection: where the rows come from.
        most: rows of the dissection after which walks go on, so that memory does not depend on the size of files.
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
        self.note = {"complete": True, "from_ns": options.from_ns, "to_ns": options.to_ns}
        self.most = most
        self._dissection = dissection
        self._new: dict[str, list[pa.Table]] = {}
        self._rows = 0
        data = journal.state(NAME)
        state = unpack(NAME, 1, data) if data is not None else {}
        self._held = {name: state[f"held {name}"] for name in FOLLOWED if f"held {name}" in state}
        self._cut: list[str] = state.get("cut", [])
        """Captures of earlier batches with cut packets, the latest ones."""
        self.engine.begin(state)

    def add(self, work: Work) -> None:
        """See `loop.Batch`."""
        for table, batch in work():
            rows = pa.Table.from_batches([batch])
            if table == CAPTURES:
                self.engine.emit(table, rows)
            elif columns := self.engine.columns(table):
                self._new.setdefault(table, []).append(rows.select(columns))
                self._rows += len(rows)

    def rest(self) -> None:
        """See `loop.Batch`."""
        if self._rows > self.most:
            self._step(is_last=False)

    def finish(self, is_last: bool) -> End:
        """See `loop.Batch`."""
        self._step(is_last)
        renewed = self.engine.summaries(is_last)
        kernels.end(self.engine.compiled)
        held = {f"held {name}": rows for name, rows in self._held.items()}
        state = {**self.engine.end(), **held, "cut": self._snapped()[-MOST_CUT:]}
        return End({NAME: pack(NAME, 1, state)}, renewed)

    def _step(self, is_last: bool) -> None:
        """Walk over the rows so far."""
        new = {name: self._table(name) for name in (*FOLLOWED, "tcp_windows")}
        new["messages"] = self.engine.keyed(timed(new["messages"], pa.array(self._snapped(), pa.string())))
        connections = self._table("connections")
        ended = connections["connection_id"].combine_chunks()
        for name, rows in self._held.items():
            new[name] = pa.concat_tables([rows, new[name]], promote_options="default")
        self._held, self._rows, known = {}, 0, [connections]
        if not is_last:
            waits = cuts(new, ended)
            for name in FOLLOWED:
                new[name], self._held[name] = split(name, new[name], waits)
            known.append(_going_on(pa.Table.from_batches([self._dissection.under_way()]), ended, new.values()))
        self.engine.walk_batch(known, new, self.note)
        self.engine.conclude_batch(ended, is_last)

    def _snapped(self) -> list[str]:
        """Return the names of captures with cut packets."""
        seen = [each.name for each in self._dissection.seen if 0 < each.info.snap_length < PACKET]
        return self._cut + seen

    def _table(self, name: str) -> pa.Table:
        columns = self.engine.columns(name)
        empty = schema(name).empty_table().select(columns)
        return pa.concat_tables([empty, *self._new.pop(name, ())], promote_options="default")


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
