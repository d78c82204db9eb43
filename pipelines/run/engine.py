"""The engine: runs all walks over rows in memory and merges their results. No Spark, no Java, no files."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.cli.progress import Advance, quiet
from amqpscope.pipelines.across import keys
from amqpscope.pipelines.connections.failures import Failures
from amqpscope.pipelines.latencies.latency import Latencies
from amqpscope.pipelines.model import events as ev
from amqpscope.pipelines.model.digests import content
from amqpscope.pipelines.model.events import Events, decoded
from amqpscope.pipelines.model.walk import Collected, Rows, Walk, schema
from amqpscope.pipelines.run.buckets import Pile
from amqpscope.pipelines.run.event_store import PART, ROOM, Gathered
from amqpscope.pipelines.run.preparing import TIMED, in_range, spans, timed, with_missing, with_windows
from amqpscope.pipelines.run.sorting import BATCH, Sorted, encoded, joined, sorted_by
from amqpscope.pipelines.statistics import (
    HOUR_NS,
    KEYED,
    METRICS,
    OVER_KEYS,
    RESOLVED,
    TABLES,
    Chain,
    OverKeys,
    chains,
    needs_of,
    rows_for,
)  # fmt: skip

Emit = Callable[[str, pa.Table], None]
NOTHING = pa.array([], pa.string())
NOBODY = np.zeros(0, np.bool_)
THREADS = 2
"""Threads that prepare rows or walk, besides the one that reads, sorts and emits results."""


def batches(tables: Mapping[str, pa.Table], walks: Sequence[Walk], size: int = BATCH) -> Iterator[Events]:
    """Yield the rows of these tables as events in order, with the columns that walks need.

    Args:
        tables: by name, those of `events.SOURCES` that there are, and `tcp_windows`.
        walks: the walks that read them.
        size: events per batch.
    """
    for events in in_order(tables, walks):
        yield from events.batches(size)


def in_order(tables: Mapping[str, pa.Table], walks: Sequence[Walk]) -> Iterator[Sorted]:
    """Yield the rows of these tables as events in order; arguments are those of `batches`."""
    gathered = Gathered([walk.needs for walk in walks])
    for source, name in enumerate(ev.SOURCES):
        if name in tables:
            rows = tables[name]
            if source == ev.CONNECTIONS and "tcp_windows" in tables:
                rows = with_windows(rows, tables["tcp_windows"])
            gathered.add(source, gathered.prepare(source, rows))
    return gathered.sorted()


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
    """All statistics in this process, of rows of `dissect` that are added in any order.

    Args:
        compiled: whether kernels run compiled.
        window_ns: how far before a delivery to look for its publish (ns).
        tables: the tables of statistics to make.
        deliveries: see `rows_for`.

    Attributes:
        pool: threads that prepare rows and walk; `finish` ends them.
    """

    def __init__(
        self,
        compiled: bool = False,
        window_ns: int = HOUR_NS,
        tables: Sequence[str] = TABLES,
        deliveries: bool = True,
    ) -> None:
        self.compiled = compiled
        self.window_ns = window_ns
        self.tables = frozenset(tables)
        self.rows = rows_for(tables, deliveries)
        self.chains = chains(compiled, self.rows)
        self.gathered = Gathered(needs_of(self.chains), compiled)
        self._latencies = Latencies()
        self._adding: list[Future[None]] = []
        self.failures = Failures()
        self.over_keys = [each for each in OVER_KEYS if each.of in self.rows]
        self.resolved = {name: each for name, each in RESOLVED.items() if name in self.rows}
        self.partial: dict[str, list[pa.Table]] = {each.of: [] for each in self.over_keys}
        self.partial |= {each.of: [] for each in self.resolved.values()}
        self.partial |= {each.given[0]: [] for each in self.over_keys if each.given}
        self._undecided: dict[str, list[pa.Table]] = {name: [] for name in self.resolved}
        self._young: list[pa.Table] = []
        self._keyed = Pile("key", ROOM >> 2)
        self._whole: dict[str, list[pa.Table]] = {"connections": [], "tcp_windows": []}
        self.captures: list[pa.Table] = []
        """Rows of `captures`, which are emitted as they are."""
        self.pool = ThreadPoolExecutor(THREADS, "amqpscope-walk")
        self._adder = ThreadPoolExecutor(1, "amqpscope-add")
        self._under_way: list[Future[list[Rows]]] = []

    @property
    def latencies(self) -> Latencies:
        """Latencies of all rows so far, which another thread adds up."""
        self._settle_latencies()
        return self._latencies

    def _settle_latencies(self) -> None:
        for each in self._adding:
            each.result()
        self._adding = []

    def columns(self, table: str) -> tuple[str, ...]:
        """Return the columns that are needed of a table; none for a table that is not needed."""
        if table in self._whole:
            return tuple(schema(table).names)
        if table not in ev.SOURCES:
            return ()
        source = ev.SOURCES.index(table)
        found = self.gathered.layouts[source].base
        if source == ev.MESSAGES and KEYED in self.rows:
            return tuple(dict.fromkeys((*found, *keys.COLUMNS, *TIMED)))
        return found

    def prepare(self, table: str, rows: pa.Table, cut: pa.Array = NOTHING) -> Prepared | None:
        """Return what the engine stores of rows. Any thread may call this.

        Args:
            table: its name.
            rows: with the `columns` that are there; texts may be dictionaries.
            cut: names of captures whose packets are cut by a snap length (`preparing.snapped`).
        """
        if table in self._whole:
            return Prepared(table, (rows, None), None)
        if table not in ev.SOURCES or not len(rows):
            return None
        source = ev.SOURCES.index(table)
        messages = None
        if source == ev.MESSAGES:
            asked = (*TIMED, *(keys.COLUMNS if KEYED in self.rows else ()))
            for name in (each for each in dict.fromkeys(asked) if each not in rows.column_names):
                rows = rows.append_column(name, pa.nulls(len(rows), schema(table).field(name).type))
            rows = timed(rows, cut)
            if KEYED in self.rows:
                rows = rows.append_column("content", pa.array(content(rows, self.compiled)))
                messages = encoded(keys.keyed(rows, self.compiled))
        return Prepared(table, self.gathered.prepare(source, rows), messages)

    def add(self, prepared: Prepared | None) -> None:
        """Store prepared rows."""
        if prepared is None:
            return
        if prepared.table in self._whole:
            self._whole[prepared.table].append(prepared.rows[0])
            return
        self.gathered.add(ev.SOURCES.index(prepared.table), prepared.rows)
        if prepared.keyed is not None:
            self._young.append(prepared.keyed)
            if sum(map(len, self._young)) >= PART:
                self._keep_young()

    def finish(self, emit: Emit, note: Mapping[str, Any], advance: Advance = quiet) -> None:
        """Walk over all rows.

        Args:
            emit: called with each table's name and rows, in this thread.
            note: of the dissection: `complete`, `from_ns`, `to_ns`.
            advance: called with the step, the events done and the events in all.
        """
        self._emit = emit
        if self._whole:
            self.connect(note)
        self._keep_young()
        total, done = self.gathered.rows, 0
        for batch in self.events():
            self._walk(batch)
            done += len(batch)
            advance("walking", done, total)
        self._settle()
        for each in self.chains:
            self._rows(each.finish())
        for over in self.over_keys:
            if over.of == KEYED:
                for found in self._ahead(self._over_keys(over, self._keyed.groups())):
                    self._rows(found)
        self.conclude(emit, self._undecided)
        self.pool.shutdown()
        self._adder.shutdown()

    def walk(self, some: pa.Array, emit: Emit) -> None:
        """Walk over the rows of these connections; all of them must have come, and `connect` before.

        Args:
            some: connections (int64).
            emit: called with each table's name and rows, in this thread.
        """
        self._emit = emit
        for batch in self.gathered.complete(some).batches():
            self._walk(batch)

    def _walk(self, batch: Events) -> None:
        """Begin to walk over a batch, and emit the rows of the one before."""
        len(batch.matrix)  # computed once for all walks
        self._settle(self.pool.submit(_fed, each, batch) for each in self.chains)

    def _settle(self, then: Iterable[Future[list[Rows]]] = ()) -> None:
        """Wait until walks are through the last batch, let them begin with the next, and emit the rows of the last."""
        self._settle_latencies()
        found = [future.result() for future in self._under_way]
        self._under_way = list(then)
        self._rows(itertools.chain.from_iterable(found))

    def _ahead(self, steps: Iterator[list[Rows]]) -> Iterator[list[Rows]]:
        """Yield what steps yield, each of which is done by another thread while this one has the result before."""
        step = self.pool.submit(next, steps, None)
        while (found := step.result()) is not None:
            step = self.pool.submit(next, steps, None)
            yield found

    def events(self) -> Iterator[Events]:
        """Yield all rows as events in order, and remove them; `connect` comes before."""
        for events in self.gathered.sorted():
            yield from events.batches()

    def _keep_young(self) -> None:
        if self._young:
            self._keyed.add(joined(self._young))
            self._young = []

    def conclude(self, emit: Emit, undecided: Mapping[str, Iterable[pa.Table]]) -> None:
        """Run the walks over keys, resolve undecided rows, and sum up; after all walks over connections.

        Args:
            emit: called with each table's name and rows, in this thread.
            undecided: rows by table, those of RESOLVED.
        """
        self._emit = emit
        for each in self.over_keys:
            for found in self._over_keys(each, [self.partial.pop(each.of)]):
                self._rows(found)
        for name, resolved in self.resolved.items():
            parts = pa.concat_tables([resolved.schema.empty_table(), *self.partial.pop(resolved.of)])
            facts = resolved.facts(parts, self.compiled)
            for rows in undecided[name]:
                self._found(name, resolved.resolve(rows, facts))
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

    def connect(self, note: Mapping[str, Any]) -> None:
        """Store connections, once all rows are there; `note` is that of the dissection."""
        connections, windows = (
            pa.concat_tables([schema(name).empty_table(), *map(decoded, parts)], promote_options="default")
            for name, parts in self._whole.items()
        )
        seen = []
        if not note.get("complete", True):
            for source, protocol in ev.SPOKEN.items():
                seen.append(spans(self.gathered.parts(source), protocol))
        connections = self.connections(connections, windows, seen, note)
        self.gathered.add(ev.CONNECTIONS, self.gathered.prepare(ev.CONNECTIONS, connections))
        self._whole = {}

    def connections(
        self, connections: pa.Table, windows: pa.Table, seen: Iterable[pa.Table], note: Mapping[str, Any]
    ) -> pa.Table:
        """Return connections with the further columns that walks need, and count those that failed.

        Args:
            connections: the table.
            windows: the table `tcp_windows`.
            seen: `spans` of the frames of a dissection that is not complete.
            note: of the dissection.
        """
        for each in seen:
            connections = with_missing(connections, each)
        if "failures" in self.rows:
            self.failures.add(connections)
        return with_windows(in_range(connections, note), windows)

    def _rows(self, found: Iterable[Rows]) -> None:
        for name, rows in found:
            if name in self.partial:
                self.partial[name].append(rows)
                continue
            if name not in self.rows:
                continue
            if name in METRICS and self.tables & {"latency_buckets", "latency_summary"}:
                self._adding.append(self._adder.submit(self._latencies.add, METRICS[name], rows))
            waits = RESOLVED[name].undecided(rows) if name in self._undecided else NOBODY
            if waits.any():
                self._undecided[name].append(rows.filter(pa.array(waits)))
                self._found(name, rows.filter(pa.array(~waits)))
            else:
                self._found(name, rows)

    def _found(self, name: str, rows: pa.Table) -> None:
        if name in self.tables:
            self._emit(name, rows)


def _fed(chain: Chain, events: Events) -> list[Rows]:
    return list(chain.feed(events))


class Prepared(NamedTuple):
    """What the engine stores of rows of a table; of messages also their keys."""

    table: str
    rows: tuple[pa.Table, pa.Table | None]
    keyed: pa.Table | None
