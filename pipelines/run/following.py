"""Statistics of a directory that is followed: what runner and engine remember goes from batch to batch as bytes.

In each batch, all connections that go on are walked over, and rows are written when they are final (`incremental`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from amqpscope.dissector.dissector import Dissector, Options
from amqpscope.dissector.following.dissection import Dissection
from amqpscope.dissector.following.folder import Plan
from amqpscope.dissector.following.journal import Journal
from amqpscope.dissector.following.loop import End
from amqpscope.dissector.tables.output import Output
from amqpscope.dissector.tables.rows import Work
from amqpscope.pipelines.model.store import pack, unpack
from amqpscope.pipelines.model.walk import Collected, schema
from amqpscope.pipelines.run import kernels
from amqpscope.pipelines.run.engine import Emit
from amqpscope.pipelines.run.incremental import Continuing
from amqpscope.pipelines.run.local import emitted
from amqpscope.pipelines.run.preparing import PACKET
from amqpscope.pipelines.statistics import tables

NAME, VERSION = "statistics", 6
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
        most: rows after which walks go on, so that memory does not depend on the size of files.
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
        self._options, self._dissection = options, dissection
        state = read_state(journal)
        self._cut: list[str] = state.get("cut", [])
        """Captures of earlier batches with cut packets, the latest ones."""
        self.engine = engine_of(
            kernels.begin(dissection.size), window_ns, partial(emitted, output), options, dissection.dissector, state
        )
        if state:
            self.engine.merge(state)
        self._most = most

    def add(self, work: Work) -> None:
        """See `loop.Batch`."""
        add(self.engine, work, snapped(self._dissection, self._cut))

    def rest(self) -> None:
        """See `loop.Batch`."""
        if self.engine.runner.waiting > self._most:
            self._step(is_last=False)

    def finish(self, is_last: bool) -> End:
        """See `loop.Batch`."""
        self._step(is_last)
        renewed = self.engine.summaries(is_last)
        kernels.end(self.engine.compiled)
        return written(self.engine, renewed, snapped(self._dissection, self._cut), self.engine.runner.take_out())

    def _step(self, is_last: bool) -> None:
        """Walk over the rows so far."""
        ended = self.engine.walk_batch(is_last)
        held_ns = min(self._dissection.dissector.held_ns, self.engine.runner.held_ns)
        self.engine.conclude_batch(ended, held_ns, is_last)


class Shown(Analysis):
    """A batch of statistics that are shown after it, with all that would be there if the captures ended here.

    What this adds stands until the next batch: rows of requests that wait and of connections that go on.
    """

    def finish(self, is_last: bool) -> End:
        """See `loop.Batch`."""
        end = super().finish(is_last)
        if is_last:
            return end._replace(
                renewed={name: each.empty_table() for name, each in schemas().items()} | {**end.renewed}
            )
        return end._replace(ahead=partial(self._ahead, end.state[NAME]))

    def _ahead(self, statistics: bytes, dissection: bytes) -> dict[str, pa.Table]:
        state, found = unpack(NAME, VERSION, statistics), Collected()
        rest = Dissection(self._options, dissection)
        engine = engine_of(
            self.engine.compiled, self.engine.window_ns, lambda name, rows: found.add([(name, rows)]), self._options,
            rest.dissector, state,
        )  # fmt: skip
        engine.merge(state)
        for work in rest.work(Plan([], {}, None, 0), is_last=True):
            if work is not None:
                add(engine, work, snapped(self._dissection, self._cut))
        engine.conclude_batch(engine.walk_batch(is_last=True), rest.dissector.held_ns, is_last=True)
        found.add(engine.summaries(is_last=True).items())
        return {name: found.table(name) for name in schemas()}


def engine_of(
    compiled: bool, window_ns: int, emit: Emit, options: Options, dissector: Dissector, state: Mapping[str, Any]
) -> Continuing:
    """Return the engine of a batch, whose runner goes on with a state.

    Args:
        compiled: see `Continuing`, as the next two.
        window_ns: see there.
        emit: see there.
        options: of the dissection.
        dissector: where the rows come from.
        state: of the runner; nothing in the first batch.
    """
    note = {"complete": True, "from_ns": options.from_ns, "to_ns": options.to_ns}
    engine = Continuing(compiled, window_ns, emit, note=note, under_way=dissector.under_way)
    if state:
        engine.runner.put_back(state)
    return engine


def add(engine: Continuing, work: Work, cut: Sequence[str]) -> None:
    """Give rows to an engine; those of captures are emitted as they are."""
    for table, batch in work():
        rows = pa.Table.from_batches([batch])
        if table == CAPTURES:
            engine.emit(table, rows)
        else:
            engine.add(engine.runner.prepare(table, rows, pa.array(cut, pa.string())))


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
