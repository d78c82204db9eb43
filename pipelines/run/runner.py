"""The runner: all walks over connections, fed with rows as they come.

Rows wait in a store. When it is full, the connections whose rows have all come are walked over, and leave it; then
those that go on and have many rows: what walks remember of them is set aside, as bytes. Frames of connections that went
on are not merged, because a gap may come later (`merging`), and what follows the first frame of a delivery that is not
whole waits (`incomplete_deliveries`). So memory depends neither on the number of rows nor on how long connections last.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.coding import PLAIN
from amqpscope.pipelines.across import keys
from amqpscope.pipelines.model import events as ev
from amqpscope.pipelines.model.digests import content
from amqpscope.pipelines.model.ends import OPEN_NS
from amqpscope.pipelines.model.events import EV, Events, decoded
from amqpscope.pipelines.model.listed import LISTED
from amqpscope.pipelines.model.walk import Rows, schema
from amqpscope.pipelines.run import acknowledged
from amqpscope.pipelines.run.event_store import EventStore
from amqpscope.pipelines.run.incomplete_deliveries import cuts
from amqpscope.pipelines.run.preparing import TIMED, in_range, spans, timed, with_missing, with_tcp
from amqpscope.pipelines.run.sorting import Sorted, encoded
from amqpscope.pipelines.statistics import KEYED, Chain, chains, needs_of

LEAST = 8 << 20
"""Bytes of rows in memory that are worth a step."""
ROOM = 192 << 20
"""Bytes of rows in memory beyond which they go to files."""
MANY = 1 << 14
"""Frames and messages of a connection that goes on which are worth setting its walks aside."""
CONNECTIONS = "connections"
TCP = tuple(LISTED.values())
"""Tables whose rows come as lists in rows of connections."""
THREADS = 2
"""Threads that walk, besides the one that sorts and emits results."""
NOTHING = pa.array([], pa.string())
NOTE: Mapping[str, Any] = {"complete": True, "from_ns": None, "to_ns": None}

UnderWay = Callable[[pa.Array], pa.RecordBatch]
"""Returns rows of `connections` of those that go on, as they would be now, by `connection_id`."""


class Prepared(NamedTuple):
    """What is stored of rows of a table; of messages also their keys."""

    table: str
    rows: tuple[pa.Table, pa.Table | None]
    keyed: pa.Table | None = None


class Runner:
    """All walks over connections.

    Args:
        compiled: whether kernels run compiled.
        rows: names of the rows to yield (`statistics.rows_for`); None for all.
        note: of the dissection: `complete`, `from_ns`, `to_ns`.
        under_way: of the dissection; None where rows of connections may come in any order, or all at once.
        room: bytes of rows in memory beyond which they go to files; None for no bound.
        patience_ns: how long events wait for a delivery to be whole; None until the connection ends.
        threads: that walk.

    Attributes:
        now: the latest time of a row (ns).
        walked: number of events that were walked over.
        waiting: number of rows that came since the last step.
    """

    def __init__(
        self,
        compiled: bool = False,
        rows: Collection[str] | None = None,
        note: Mapping[str, Any] = NOTE,
        under_way: UnderWay | None = None,
        room: int | None = ROOM,
        patience_ns: int | None = None,
        threads: int = THREADS,
    ) -> None:
        self.compiled, self.note, self.under_way, self.patience_ns = compiled, note, under_way, patience_ns
        self.rows = rows
        self.chains = chains(compiled, rows)
        self.store = EventStore(needs_of(self.chains), compiled, room)
        self.now = self._read_ns = -OPEN_NS
        self.walked = self.waiting = 0
        self.least = LEAST
        self.many = MANY
        self._known: dict[str, list[pa.Table]] = {name: [] for name in (CONNECTIONS, *TCP)}
        """Rows of connections that ended, and what TCP shows."""
        self._held = 0
        """Bytes of these."""
        self._full = self.least
        self._ended: set[int] = set()
        self._is_over = False
        self._states: dict[int, bytes] = {}
        """What walks remember of connections that go on."""
        self._open: int | None = None
        """The connection that walks are in, and those of them that know it."""
        self._fed: set[int] = set()
        self._spoken: dict[int, str] = {}
        """Protocols of connections that go on."""
        self._of = {
            name: [n for n, chain in enumerate(self.chains) if name in _speaks(chain)] for name in ev.spoken().values()
        }
        """The walks that a connection concerns, by its protocol; of others, and until it is known, all."""
        self._pool = ThreadPoolExecutor(threads, "amqpscope-walk") if threads else None
        self._walking: list[Future[list[Rows]]] = []

    @property
    def _keyed(self) -> bool:
        return self.rows is None or KEYED in self.rows

    def columns(self, table: str) -> tuple[str, ...]:
        """Return the columns that are needed of a table; none for a table that is not needed."""
        if table in self._known:
            return tuple(schema(table).names)
        if table not in ev.SOURCES.values():
            return ()
        found = self.store.layouts[ev.source_of(table)].base
        if table == "messages" and self._keyed:
            return tuple(dict.fromkeys((*found, *keys.COLUMNS, *TIMED)))
        return found

    def prepare(self, table: str, rows: pa.Table, cut: pa.Array = NOTHING) -> Prepared | None:
        """Return what is stored of rows. Any thread may call this.

        Args:
            table: its name.
            rows: with the `columns` that are there; texts may be dictionaries.
            cut: names of captures whose packets are cut by a snap length (`preparing.snapped`).
        """
        if table in self._known:
            return Prepared(table, (rows, None))
        if table not in ev.SOURCES.values() or not len(rows):
            return None
        keyed = None
        if table == "messages":
            asked = (*TIMED, *(keys.COLUMNS if self._keyed else ()))
            for name in (each for each in dict.fromkeys(asked) if each not in rows.column_names):
                rows = rows.append_column(name, pa.nulls(len(rows), schema(table).field(name).type))
            rows = timed(rows, cut)
            if self._keyed:
                rows = rows.append_column("content", pa.array(content(rows, self.compiled)))
                keyed = encoded(keys.keyed(rows, self.compiled))
        return Prepared(table, self.store.prepare(ev.source_of(table), rows), keyed)

    def add(self, prepared: Prepared | None) -> list[Rows]:
        """Store prepared rows; return rows that need no walk: messages by their keys."""
        if prepared is None:
            return []
        if prepared.table in self._known:
            self._known[prepared.table].append(prepared.rows[0])
            self._held += prepared.rows[0].nbytes
            return []
        leading = prepared.rows[0]
        if len(leading):
            self.now = max(self.now, pc.max(leading["ts_ns"]).as_py() or self.now)
            self._read_ns = leading["ts_ns"][-1].as_py() or self._read_ns
            self.waiting += len(leading)
        self.store.add(ev.source_of(prepared.table), prepared.rows)
        return [(KEYED, prepared.keyed)] if prepared.keyed is not None else []

    def end(self, connections: pa.Array) -> None:
        """Note that all rows of these connections have come: those of connections not only, which `add` noted."""
        self._ended.update(connections.to_pylist())

    def connect(self, seen: Iterable[pa.Table] = (), ends: bool = True) -> Iterator[Rows]:
        """Store the rows of connections so far; yield them for what counts connections.

        Args:
            seen: `spans` of the frames of a dissection that is not complete.
            ends: whether all other rows of these connections have come.
        """
        rows = with_missing(self._whole(CONNECTIONS), seen)
        if len(rows):
            yield CONNECTIONS, rows
            self._store(rows)
            if ends:
                self.end(rows["connection_id"])
                spoken = zip(rows["connection_id"].to_pylist(), rows["protocol"].to_pylist(), strict=True)
                self._spoken |= {identity: name for identity, name in spoken if identity in self._states}

    @property
    def is_full(self) -> bool:
        """Whether so many rows wait that `step` walks over connections."""
        return self.store.held + self._held > self._full

    def step(self, everything: bool = False) -> Iterator[Rows]:
        """Walk over connections if the store is full; yield rows that are final.

        All rows that come with those so far must have come, such as the anomalies of a frame.

        Args:
            everything: also if it is not, and over all connections.
        """
        if not (everything or self.is_full):
            return
        self.waiting = 0
        yield from self.connect()
        yield from self._walk(self.store.take(pa.array(self._ended, pa.int64()), self._apart))
        yield from self._leave()
        self._ended.clear()
        if self.under_way is not None and (everything or self.store.held > self.least >> 1):
            yield from self._go_on(everything)
        self._held = sum(part.nbytes for parts in self._known.values() for part in parts)
        self._full = max(self.least, (self.store.held + self._held) * 3 // 2)

    def _go_on(self, everything: bool) -> Iterator[Rows]:
        """Walk over connections that go on: over all, or those with many rows."""
        assert self.under_way is not None
        begun = self.store.connections(0 if everything else self.many)
        if everything:
            shown = [chunk for name in TCP for part in self._known[name] for chunk in part["connection_id"].chunks]
            begun = pa.chunked_array([begun, *shown], pa.int64()).unique()
        rows = _without_end(pa.Table.from_batches([self.under_way(begun)]))
        self._spoken |= zip(rows["connection_id"].to_pylist(), rows["protocol"].to_pylist(), strict=True)
        self._store(rows)
        some = begun if everything else rows["connection_id"].combine_chunks()
        parts = self.store.parts_in_memory
        in_tls = rows["connection_id"].filter(pc.is_valid(rows["tls_version"]))  # nobody knows this time there
        plain = some.filter(pc.invert(pc.is_in(some, value_set=in_tls.combine_chunks())))
        # of what was read last, not the latest: one packet of a wrong clock must not end the wait of all others
        since_ns = None if self.patience_ns is None else self._read_ns - self.patience_ns
        waiting = [cuts(parts, some, since_ns), acknowledged.cuts(parts, self.store.asks, plain, self._read_ns)]
        yield from self._walk(self.store.take(some, None, acknowledged.first(pa.concat_tables(waiting))))
        yield from self._leave()

    def finish(self) -> Iterator[Rows]:
        """Walk over all rows that are left; yield rows, with those of everything outstanding."""
        seen = []
        if not self.note["complete"]:
            seen = [spans(self.store.parts(source), protocol) for source, protocol in ev.spoken().items()]
        yield from self.connect(seen)
        self._is_over = True
        for rows in self.store.sorted(self._apart):
            yield from self._walk(rows)
        yield from self._leave()
        if self._pool is not None:
            self._pool.shutdown()

    @property
    def held_ns(self) -> int:
        """The time of the first event that waits, so that rows of it come later (ns); OPEN_NS without any."""
        return self.store.since_ns(OPEN_NS)

    @property
    def going_on(self) -> list[int]:
        """The connections of which walks go on."""
        return list(self._states)

    def take_out(self) -> dict[str, Any]:
        """Return the state between two steps, as parts (`store.pack`), and remove it."""
        state = {"walks": PLAIN.written(self._states), **{name: self._whole(name) for name in TCP}}
        state |= self.store.take_out()
        self._states = {}
        return state

    def put_back(self, state: Mapping[str, Any]) -> None:
        """Go on with what `take_out` returned."""
        self._states = PLAIN.read(state["walks"])
        for name in TCP:
            self._known[name].append(state[name])
            self._held += state[name].nbytes
        self.store.put_back(state)

    @property
    def _apart(self) -> pa.Array:
        return pa.array(self._states, pa.int64())

    def _whole(self, table: str) -> pa.Table:
        """Return the rows of a table so far that are not stored, and remove them."""
        parts, self._known[table] = self._known[table], []
        return pa.concat_tables([schema(table).empty_table(), *map(decoded, parts)], promote_options="default")

    def _store(self, rows: pa.Table) -> None:
        """Store rows of connections."""
        shown = {}
        for name in TCP:
            found = self._whole(name)
            mine = pc.is_in(found["connection_id"], value_set=rows["connection_id"].combine_chunks())
            self._known[name] = [found.filter(pc.invert(mine))]
            shown[name] = found.filter(mine)
        rows = with_tcp(in_range(rows, self.note), shown)
        self.store.add(ev.CONNECTIONS, self.store.prepare(ev.CONNECTIONS, rows))

    def _walk(self, rows: Sorted) -> Iterator[Rows]:
        whole = range(len(self.chains))
        for batch in rows.batches():
            identity = batch.matrix[:, EV.CONNECTION]
            for first, end in pairwise([0, *self._borders(identity), len(batch)]):
                begins = int(identity[first])
                if begins != self._open:
                    yield from self._leave()
                    self._enter(begins)
                self._open = int(identity[end - 1])
                some = self._of.get(self._spoken.get(begins, ""), whole) if begins == self._open else whole
                self._fed.update(some)
                yield from self._feed(batch.slice(first, end - first), some)
            self.walked += len(batch)

    def _feed(self, events: Events, some: Iterable[int]) -> Iterator[Rows]:
        """Have walks go over events; yield the rows of those before, if threads walk."""
        if self._pool is None:
            for number in some:
                yield from self.chains[number].feed(events)
            return
        found = self._settled()
        self._walking = [self._pool.submit(_fed, self.chains[number], events) for number in some]
        yield from found

    def _settled(self) -> list[Rows]:
        """Wait for walks; return the rows that they yielded."""
        walking, self._walking = self._walking, []
        return [rows for future in walking for rows in future.result()]

    def _borders(self, identity: Any) -> list[int]:
        """Return where connections begin; not where walks end one by themselves, because the next is new to them."""
        found = np.flatnonzero(np.diff(identity)) + 1
        pairs = zip(identity[found - 1].tolist(), identity[found].tolist(), strict=True)
        needed = [not self._ends(before) or after in self._states for before, after in pairs]
        return list(found[needed].tolist())

    def _ends(self, identity: int) -> bool:
        return self._is_over or identity in self._ended

    def _enter(self, identity: int) -> None:
        """Go on with a connection."""
        state = self._states.pop(identity, None)
        if state is not None:
            for number, each in PLAIN.read(zlib.decompress(state)).items():
                self.chains[number].put_back(each)
                self._fed.add(number)

    def _leave(self) -> Iterator[Rows]:
        """End the connection that walks are in, or set aside what those that were fed remember of it."""
        yield from self._settled()
        identity, self._open = self._open, None
        fed, self._fed = sorted(self._fed), set()
        if identity is None:
            return
        if self._ends(identity):
            self._spoken.pop(identity, None)
            for number in fed:
                yield from self.chains[number].finish()
        else:
            state = {number: self.chains[number].take_out() for number in fed}
            self._states[identity] = zlib.compress(PLAIN.written(state), 1)


def _fed(chain: Chain, events: Events) -> list[Rows]:
    return list(chain.feed(events))


def _speaks(chain: Chain) -> frozenset[str]:
    """Return the protocols that concern a chain; windows of TCP, and messages without their frames, are of all."""
    if any({*LISTED} & {*needs[ev.CONNECTIONS].columns} for needs in chain.needs if ev.CONNECTIONS in needs):
        return frozenset(ev.spoken().values())
    found = {ev.SPOKEN[source] for needs in chain.needs for source in needs if source in ev.SPOKEN}
    return frozenset(found or ev.spoken().values())


def _without_end(rows: pa.Table) -> pa.Table:
    """Return rows of connections that go on: nothing ends them."""
    unknown = ("closed_by", "closed_ts_ns", "handshake_outcome")
    columns = {name: rows[name] for name in rows.column_names}
    columns |= {name: pa.nulls(len(rows), rows[name].type) for name in unknown}
    return pa.table(columns | {"last_ts_ns": pa.repeat(pa.scalar(OPEN_NS), len(rows))})
