"""The engine: the runner, and what needs the rows of all connections. No Spark, no Java."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.cli.progress import Advance, quiet
from amqpscope.pipelines.connections.failures import Failures
from amqpscope.pipelines.latencies.latency import Latencies
from amqpscope.pipelines.model import events as ev
from amqpscope.pipelines.model.events import Events
from amqpscope.pipelines.model.walk import Collected, Rows, Walk
from amqpscope.pipelines.run.buckets import Pile
from amqpscope.pipelines.run.event_store import PART, EventStore
from amqpscope.pipelines.run.preparing import with_tcp
from amqpscope.pipelines.run.runner import CONNECTIONS, Prepared, Runner
from amqpscope.pipelines.run.sorting import BATCH, Sorted, joined, sorted_by
from amqpscope.pipelines.statistics import HOUR_NS, KEYED, METRICS, OverKeys, over_keys, resolved, rows_for
from amqpscope.pipelines.statistics import tables as all_tables

Emit = Callable[[str, pa.Table], None]
NOBODY = np.zeros(0, np.bool_)
ROOM = 32 << 20
"""Bytes of rows by their keys in memory beyond which they go to files."""
WAITING = 64
"""Rows that may wait to be added to latencies."""
MOST_ADDED = 1 << 18
"""Rows that are added to latencies before those of connections that ended are emitted; of more, as many as are left."""


def batches(tables: Mapping[str, pa.Table], walks: Sequence[Walk], size: int = BATCH) -> Iterator[Events]:
    """Yield the rows of these tables as events in order, with the columns that walks need.

    Args:
        tables: by name, those of `events.SOURCES` and LISTED that there are.
        walks: the walks that read them.
        size: events per batch.
    """
    for events in in_order(tables, walks):
        yield from events.batches(size)


def in_order(tables: Mapping[str, pa.Table], walks: Sequence[Walk]) -> Iterator[Sorted]:
    """Yield the rows of these tables as events in order; arguments are those of `batches`."""
    store = EventStore([walk.needs for walk in walks], room=None)
    for source, name in ev.sources().items():
        if name in tables:
            rows = tables[name]
            if source == ev.CONNECTIONS:
                rows = with_tcp(rows, tables)
            store.add(source, store.prepare(source, rows))
    return store.sorted(pa.array([], pa.int64()))


def walked(tables: Mapping[str, pa.Table], walks: Sequence[Walk], size: int = BATCH) -> dict[str, pa.Table]:
    """Return the tables that these walks write for these rows.

    Args:
        tables: see `batches`.
        walks: new walks.
        size: events per batch.
    """
    found = Collected()
    for events in batches(tables, walks, size):
        for walk in walks:
            found.add(walk.feed(events))
    for walk in walks:
        found.add(walk.finish())
    return {name: found.table(name) for walk in walks for name in walk.tables}


class Engine:
    """All statistics in this process, of rows of `dissect`.

    Args:
        compiled: whether kernels run compiled.
        window_ns: how far before a delivery to look for its publish (ns).
        tables: the tables of statistics to make; None for all.
        deliveries: see `rows_for`.
        emit: called with each table's name and rows, in this thread.
        how: of the runner: `note`, `under_way`.

    Attributes:
        runner: walks over connections.
    """

    def __init__(
        self,
        compiled: bool = False,
        window_ns: int = HOUR_NS,
        tables: Sequence[str] | None = None,
        deliveries: bool = True,
        emit: Emit = lambda *_: None,
        **how: Any,
    ) -> None:
        self.compiled, self.window_ns, self.emit = compiled, window_ns, emit
        self.tables = frozenset(all_tables() if tables is None else tables)
        self.rows = rows_for(tuple(self.tables), deliveries)
        self.runner = Runner(compiled, self.rows, **how)
        self._latencies = Latencies()
        self._added, self._most_added = 0, MOST_ADDED
        """Rows since latencies of connections were emitted, and after how many they are."""
        self._adding: list[Future[None]] = []
        self.failures = Failures()
        self.over_keys = [each for each in over_keys() if each.of in self.rows]
        self.resolved = {name: each for name, each in resolved().items() if name in self.rows}
        self.partial: dict[str, list[pa.Table]] = {each.of: [] for each in self.over_keys}
        self.partial |= {each.of: [] for each in self.resolved.values()}
        self.partial |= {each.given[0]: [] for each in self.over_keys if each.given}
        self._shared = {each.of for each in self.over_keys if each.shares}
        self._waiting, self._come = pa.array([], pa.int64()), list[pa.Array]()
        """Connections of rows that wait for walks over keys, or to be resolved; the latest may repeat."""
        self._undecided: dict[str, list[pa.Table]] = {name: [] for name in self.resolved}
        self._young: list[pa.Table] = []
        self._piles = {each.of: Pile("key", ROOM) for each in self.over_keys if each.key == ("key",)}
        """Rows by their keys until the end."""
        self.captures: list[pa.Table] = []
        """Rows of `captures`, which are emitted as they are."""
        self._pool, self._adder = ThreadPoolExecutor(1, "amqpscope-keys"), ThreadPoolExecutor(1, "amqpscope-add")

    @property
    def latencies(self) -> Latencies:
        """Latencies of all rows so far, which another thread adds up."""
        for each in self._adding:
            each.result()
        self._adding = []
        return self._latencies

    def add(self, prepared: Prepared | None) -> None:
        """Take rows that the runner prepared."""
        self.take(self.runner.add(prepared))

    def step(self) -> None:
        """Walk over connections if many rows wait, see `Runner.step`; emit the latencies of those that ended."""
        if not self.runner.is_full:
            return
        self.take(self.runner.step())
        if self._added > self._most_added:
            for name, rows in self.latencies.by_connection(self._unfinished()):
                self._found(name, rows)
            self._added, self._most_added = 0, max(MOST_ADDED, len(self._latencies))

    @property
    def going_on(self) -> list[int]:
        """The connections of which walks go on."""
        return self.runner.going_on

    def _unfinished(self) -> pa.Array:
        """Return the connections of which there may be more rows."""
        self._waiting, self._come = distinct([self._waiting, *self._come]), []
        return distinct([self._waiting, pa.array(self.going_on, pa.int64())])

    def _await(self, rows: pa.Table) -> None:
        """Note the connections of rows that wait for others."""
        self._come.append(rows["connection_id"].unique())

    def take(self, found: Iterable[Rows]) -> None:
        """Take rows that walks yielded: emit those that are final."""
        for name, rows in found:
            if name in self._shared:
                self._await(rows)
            if name in self._piles:
                self._keep(name, rows)
            elif name == CONNECTIONS:
                if "failures" in self.rows:
                    self.failures.add(rows)
            elif name in self.partial:
                self.partial[name].append(rows)
            elif name in self.rows:
                self._add(name, rows)

    def _add(self, name: str, rows: pa.Table) -> None:
        if name in METRICS and self.tables & {"latency_buckets", "latency_summary"}:
            if len(self._adding) > WAITING:
                self._adding.pop(0).result()
            self._adding.append(self._adder.submit(self._latencies.add, METRICS[name], rows))
            self._added += len(rows)
        waits = self.resolved[name].undecided(rows) if name in self._undecided else NOBODY
        if waits.any():
            self._undecided[name].append(rows.filter(pa.array(waits)))
            self._await(self._undecided[name][-1])
            rows = rows.filter(pa.array(~waits))
        self._found(name, rows)

    def _found(self, name: str, rows: pa.Table) -> None:
        if name in self.tables:
            self.emit(name, rows)

    def _keep(self, name: str, rows: pa.Table) -> None:
        """Keep rows by their keys until the end."""
        if name != KEYED:
            self._piles[name].add(rows)
            return
        self._young.append(rows)
        if sum(map(len, self._young)) >= PART:
            self._piles[KEYED].add(joined(self._young))

    def finish(self, advance: Advance = quiet) -> None:
        """Walk over all rows that are left, and emit everything.

        Args:
            advance: called with the step, the events done and the events in all.
        """
        total = self.runner.store.rows
        for found in self.runner.finish():
            self.take([found])
            advance("walking", self.runner.walked, total)
        pa.default_memory_pool().release_unused()  # walks over keys sort with memory of their own
        for over in self.over_keys:
            if over.of in self._piles:
                del self.partial[over.of]
                if over.of == KEYED and self._young:
                    self._piles[KEYED].add(joined(self._young))
                for rows in self._ahead(self._over_keys(over, self._piles[over.of].groups())):
                    self.take(rows)
        self.conclude(self._undecided)
        self._pool.shutdown()
        self._adder.shutdown()
        pa.default_memory_pool().release_unused()  # relations come next, with memory of their own

    def _ahead(self, steps: Iterator[list[Rows]]) -> Iterator[list[Rows]]:
        """Yield what steps yield, each of which is done by another thread while this one has the result before."""
        step = self._pool.submit(next, steps, None)
        while (found := step.result()) is not None:
            step = self._pool.submit(next, steps, None)
            yield found

    def conclude(self, undecided: Mapping[str, Iterable[pa.Table]]) -> None:
        """Run the walks over keys, resolve undecided rows, and sum up; after all walks over connections.

        Args:
            undecided: rows by table, those that are resolved.
        """
        for each in (over for over in self.over_keys if over.of in self.partial):
            for found in self._over_keys(each, [self.partial.pop(each.of)]):
                self.take(found)
        for name, of in self.resolved.items():
            parts = pa.concat_tables([of.schema.empty_table(), *self.partial.pop(of.of)])
            facts = of.facts(parts)
            for rows in undecided[name]:
                self._found(name, of.resolve(rows, facts))
        self._found("failures", self.failures.table())
        for rows in self.captures:
            self._found("captures", rows)
        for name, rows in self.latencies.rows():
            self._found(name, rows)

    def _over_keys(self, over: OverKeys, groups: Iterable[list[pa.Table]]) -> Iterator[list[Rows]]:
        """Walk over rows, all those of a key in one group, in steps that any thread may do; yield the rows of each."""
        rows = pa.concat_tables([over.given[1].empty_table(), *self.partial[over.given[0]]]) if over.given else None
        walk = over.walk(self.compiled, self.window_ns, rows)
        for parts in groups:
            if over.of == KEYED and not any(pc.any(part["is_delivery"]).as_py() for part in parts):
                continue  # publishes alone have no transits
            for rows in sorted_by(over.order, parts, self.compiled):
                yield list(walk.feed(rows))
        yield list(walk.finish())


def distinct(columns: Iterable[pa.Array | pa.ChunkedArray]) -> pa.Array:
    """Return the connections of columns, each of them once."""
    chunks = [chunk for each in columns for chunk in getattr(each, "chunks", [each])]
    return pa.chunked_array(chunks, pa.int64()).unique()
