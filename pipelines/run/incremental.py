"""The engine where rows come in batches: what walks remember of connections that go on is kept as bytes.

Rows are written when they are final; summaries are written anew by each batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.coding import PLAIN
from amqpscope.pipelines.across import keys
from amqpscope.pipelines.across.lost import LOST, SCHEMA, still_needed
from amqpscope.pipelines.model import events as ev
from amqpscope.pipelines.model.digests import content
from amqpscope.pipelines.model.events import EV
from amqpscope.pipelines.model.walk import Collected, Rows, schema
from amqpscope.pipelines.run.engine import Engine
from amqpscope.pipelines.run.event_store import Gathered
from amqpscope.pipelines.run.incomplete_deliveries import PATIENCE_NS, Tables
from amqpscope.pipelines.run.preparing import in_range, with_windows
from amqpscope.pipelines.run.sorting import sorted_by
from amqpscope.pipelines.statistics import HOUR_NS, KEYED, SHARED, Chain, OverKeys, needs_of
from amqpscope.pipelines.stream import stream_deliveries
from amqpscope.pipelines.stream.stream_lag import StreamLag

RENEWED = ("failures", "latency_buckets", "latency_summary")
"""Tables of which each batch writes anew what is not final."""
SESSION_NS = 24 * HOUR_NS
"""How long a session of AMQP 0-10 may take to go on on another connection."""
MOST_PUBLISHES = 1 << 22
"""Publishes that are kept for their deliveries; of more, the latest."""
MOST_WAITING = 2 * MOST_PUBLISHES
"""If more publishes and deliveries than this are kept, none waits for bytes that are held back."""
OPEN_NS = 1 << 62
"""Stands for the time of the last packet of a connection that goes on."""
ALL = frozenset(ev.SPOKEN.values())
"""Protocols with walks."""
TOGETHER = 1 << 12
"""Steps of walks of which the rows are handled together."""
FOLLOWED = tuple(name for name in ev.SOURCES if name != "connections")
"""Tables whose rows are events of connections."""


class Continuing(Engine):
    """The engine, of which one batch ends and the next one begins.

    Args:
        compiled: whether kernels run compiled.
        window_ns: how far before a delivery to look for its publish (ns).
        emit: called with each table's name and rows.
    """

    def __init__(self, compiled: bool, window_ns: int, emit: Callable[[str, pa.Table], None]) -> None:
        super().__init__(compiled, window_ns)
        self.emit = self._emit = emit
        self.gathered = Gathered(needs_of(self.chains), compiled, merges=False)
        self._walks: dict[int, bytes] = {}
        """State of all walks, by connection."""
        self._lags: dict[str, bytes] = {}
        """State of the walk over each stream."""
        self._open: list[int] = []
        """Connections that go on, of which others keep the state of walks."""
        self._made = Collected()
        self._count = 0
        self._of = {name: [n for n, chain in enumerate(self.chains) if name in _speaks(chain)] for name in ALL}
        """The chains that a connection concerns, by its protocol; of others, and until it is known, all."""
        self._now = -OPEN_NS
        """The latest time of an event."""

    def put_walks(self, state: bytes) -> None:
        """Go on with what `take_walks` returned."""
        self._walks = PLAIN.read(state)

    def take_walks(self) -> bytes:
        """Return the state of the walks over connections."""
        return PLAIN.written(self._walks)

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what `rest` returned: before this batch, or in this batch of another engine with other connections."""
        lags, now, going_on = PLAIN.read(state["rest"])
        self._lags |= lags
        self._now = max(self._now, now)
        self._open += going_on
        for kind, held in (("partial", self.partial), ("undecided", self._undecided)):
            for name, parts in held.items():
                if f"{kind} {name}" in state:
                    parts.append(state[f"{kind} {name}"])
        self.latencies.merge(state["latencies"])
        self.failures.merge(state["failures"])

    def rest(self, going_on: Iterable[int] = ()) -> dict[str, Any]:
        """Return what there is besides walks over connections, as parts of a state.

        Args:
            going_on: connections of which this engine keeps the state, if another one merges the rest.
        """
        state: dict[str, Any] = {"rest": PLAIN.written([self._lags, self._now, list(going_on)])}
        for kind, held in (("partial", self.partial), ("undecided", self._undecided)):
            state |= {f"{kind} {name}": pa.concat_tables(parts) for name, parts in held.items() if parts}
        return {**state, "latencies": self.latencies.partial(), "failures": self.failures.partial()}

    @property
    def going_on(self) -> list[int]:
        """The connections of which walks go on."""
        return [*self._walks, *self._open]

    def keyed(self, messages: pa.Table) -> pa.Table:
        """Note messages by their keys; return them with the digests of their contents."""
        if not len(messages):
            return messages
        messages = messages.append_column("content", pa.array(content(messages, self.compiled)))
        self.partial[KEYED].append(keys.keyed(messages, self.compiled))
        return messages

    def walk_batch(self, connections: list[pa.Table], tables: Tables, note: Mapping[str, Any]) -> None:
        """Walk over the rows of a batch.

        Args:
            connections: rows of connections that ended, and of such that go on.
            tables: all others.
            note: of the dissection.
        """
        self.failures.add(connections[0])
        rows = with_windows(in_range(pa.concat_tables(connections), note), tables["tcp_windows"])
        self.gathered.add(ev.CONNECTIONS, self.gathered.prepare(ev.CONNECTIONS, rows))
        for name in FOLLOWED:
            if len(tables[name]):
                self._now = max(self._now, pc.max(tables[name]["ts_ns"]).as_py() or self._now)
                source = ev.SOURCES.index(name)
                self.gathered.add(source, self.gathered.prepare(source, tables[name]))
        ended = set(connections[0]["connection_id"].to_pylist())
        named = (rows.select(["connection_id", "protocol"]).to_pydict().values() for rows in connections)
        spoken = {identity: name for each in named for identity, name in zip(*each, strict=True)}
        of, fed, whole = None, set[int](), list(range(len(self.chains)))
        for batch in self.events():
            identity = batch.matrix[:, EV.CONNECTION]
            for first, end in pairwise([*self._borders(identity, ended), len(batch)]):
                if identity[first] != of:
                    self._leave(of, ended, fed)
                    fed = self._enter(int(identity[first]))
                of = int(identity[end - 1])
                events = batch.slice(first, end - first)
                some = self._of.get(spoken.get(of, ""), whole) if identity[first] == of else whole
                fed.update(some)
                for number in some:
                    self._collect(self.chains[number].feed(events))
        self._leave(of, ended, fed)
        self._emit_collected()

    def _collect(self, found: Iterable[Rows]) -> None:
        """Collect rows: a connection has few of them in a batch."""
        self._made.add(found)
        self._count += 1
        if self._count > TOGETHER:
            self._emit_collected()

    def _emit_collected(self) -> None:
        parts, self._made, self._count = self._made.parts, Collected(), 0
        self._rows((name, pa.concat_tables(rows)) for name, rows in parts.items())

    def _borders(self, identity: Any, ended: set[int]) -> list[int]:
        """Return where connections begin; not where walks end one by themselves, because the next is new to them."""
        found = np.flatnonzero(np.diff(identity)) + 1
        pairs = zip(identity[found - 1].tolist(), identity[found].tolist(), strict=True)
        needed = [before not in ended or after in self._walks for before, after in pairs]
        return [0, *found[needed].tolist()]

    def _enter(self, identity: int) -> set[int]:
        """Go on with a connection; return the chains that know it."""
        state = self._walks.pop(identity, None)
        found = PLAIN.read(zlib.decompress(state)) if state is not None else {}
        for number, each in found.items():
            self.chains[number].put_back(each)
        return set(found)

    def _leave(self, identity: int | None, ended: set[int], fed: set[int]) -> None:
        """End a connection, or store what the chains that were fed remember of it."""
        if identity in ended:
            for number in sorted(fed):
                self._collect(self.chains[number].finish())
        elif identity is not None:
            state = {number: self.chains[number].take_out() for number in sorted(fed)}
            self._walks[identity] = zlib.compress(PLAIN.written(state), 1)

    def conclude_batch(self, ended: pa.Array, held_ns: int, is_last: bool) -> None:
        """Walk over keys as far as their rows are final, and write what is.

        Args:
            ended: connections.
            held_ns: time of the first bytes of which rows come later (`IdleDissector.held_ns`).
            is_last: whether everything is final.
        """
        for each in self.over_keys:
            rows = pa.concat_tables([each.schema.empty_table(), *self.partial[each.of]])
            until = OPEN_NS if is_last else self._now - self._patience(len(rows), held_ns)
            if each.of == KEYED:
                self.partial[KEYED] = self._match(each, rows, until)
                lost = pa.concat_tables([SCHEMA.empty_table(), *self.partial[LOST]])
                going_on = pa.array(self.going_on, pa.int64())
                ends = [chunk for part in self.partial[KEYED] for chunk in part["connection_id"].chunks]
                self.partial[LOST] = [
                    still_needed(lost, until - self.window_ns, going_on, pa.chunked_array(ends, pa.int64()).unique())
                ]
            elif each.of == stream_deliveries.PARTIAL:
                young = pc.greater(rows["ts_ns"], until)
                self.partial[each.of] = [rows.filter(young)]
                self._lag(each, rows.filter(pc.invert(young)), is_last)
            else:
                goes_on = _goes_on(rows, self._now - SESSION_NS if not is_last else OPEN_NS)
                self.partial[each.of] = [rows.filter(goes_on)]
                self._pass(each, rows.filter(pc.invert(goes_on)))
        for name, resolved in self.resolved.items():
            facts = pa.concat_tables([resolved.schema.empty_table(), *self.partial[resolved.of]])
            rows = pa.concat_tables([schema(name).empty_table(), *self._undecided[name]])
            decided = pc.is_in(rows["connection_id"], value_set=ended)
            self.partial[resolved.of] = [facts]
            self._undecided[name] = [rows.filter(pc.invert(decided))]
            self._found(name, resolved.resolve(rows.filter(decided), resolved.facts(facts, self.compiled)))

    def summaries(self, is_last: bool) -> dict[str, pa.Table]:
        """Write summaries that are final; return the others."""
        renewed = Collected()
        renewed.add([("failures", self.failures.table())])
        if not is_last:
            for name, rows in self.latencies.by_connection(self._unfinished()):
                self._found(name, rows)
        renewed.add(self.latencies.rows())
        return {name: renewed.table(name) for name in RENEWED}

    def _unfinished(self) -> pa.Array:
        """Return the connections of which there may be more rows."""
        waiting = [parts for name, parts in self.partial.items() if name in SHARED] + list(self._undecided.values())
        chunks = [chunk for parts in waiting for rows in parts for chunk in rows["connection_id"].chunks]
        return pa.chunked_array([*chunks, pa.array(self.going_on, pa.int64())], pa.int64()).unique()

    def _pass(self, over: OverKeys, rows: pa.Table) -> None:
        """Walk over all rows of some keys."""
        for found in self._over_keys(over, [[rows]]):
            self._rows(found)

    def _patience(self, rows: int, held_ns: int) -> int:
        """Return how long rows wait for others of their time (ns): for bytes that are held back, at most the window.

        Where there are too many rows, none waits for such bytes.
        """
        longest = self.window_ns if rows <= MOST_WAITING else PATIENCE_NS
        return max(PATIENCE_NS, min(self._now - held_ns, longest))

    def _match(self, over: OverKeys, rows: pa.Table, until_ns: int) -> list[pa.Table]:
        """Match deliveries up to a time; return the others, and publishes that these and later ones may come from."""
        young, is_delivery = pc.greater(rows["ts_ns"], until_ns), rows["is_delivery"]
        ready = pc.and_not(is_delivery, young)
        asked = rows["key"].filter(ready).unique()
        some = pc.and_(pc.is_in(rows["key"], value_set=asked), pc.or_(ready, pc.invert(is_delivery)))
        self._pass(over, rows.filter(some))
        publishes = rows.filter(pc.invert(is_delivery))
        publishes = publishes.filter(pc.greater_equal(publishes["ts_ns"], until_ns - self.window_ns))
        return [publishes.slice(max(len(publishes) - MOST_PUBLISHES, 0)), rows.filter(pc.and_(is_delivery, young))]

    def _lag(self, over: OverKeys, rows: pa.Table, is_last: bool) -> None:
        """Go on with the walks over streams."""
        for batch in sorted_by(over.order, [rows], self.compiled):
            keys = list(map(repr, zip(*(batch[name].to_pylist() for name in over.key), strict=True)))
            first = 0
            for end in range(1, len(keys) + 1):
                if end == len(keys) or keys[end] != keys[first]:
                    walk = self._stream(over, keys[first])
                    self._rows(walk.feed(batch.slice(first, end - first)))
                    self._lags[keys[first]] = walk.take_out()
                    first = end
        for key in list(self._lags) if is_last else ():
            self._rows(self._stream(over, key).finish())

    def _stream(self, over: OverKeys, key: str) -> StreamLag:
        walk = StreamLag(self.compiled)
        if key in self._lags:
            walk.put_back(self._lags.pop(key))
        return walk


def _speaks(chain: Chain) -> frozenset[str]:
    """Return the protocols that concern a chain; windows of TCP, and messages without their frames, are of all."""
    if any("windows" in needs[ev.CONNECTIONS].columns for needs in chain.needs if ev.CONNECTIONS in needs):
        return ALL
    return frozenset(ev.SPOKEN[source] for needs in chain.needs for source in needs if source in ev.SPOKEN) or ALL


def _goes_on(rows: pa.Table, since_ns: int) -> pa.ChunkedArray:
    """Return which rows are of sessions of which there are rows since a time."""
    last = rows.group_by("key").aggregate([("at_ns", "max")])
    return pc.is_in(rows["key"], value_set=last["key"].filter(pc.greater_equal(last["at_ns_max"], since_ns)))
