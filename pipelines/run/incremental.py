"""The engine where rows come in batches: rows are written when they are final, summaries anew by each batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.coding import PLAIN
from amqpscope.pipelines.across.keys import KEYED as KEYED_ROWS
from amqpscope.pipelines.across.lost import LOST, SCHEMA, still_needed
from amqpscope.pipelines.model.ends import OPEN_NS
from amqpscope.pipelines.model.events import decoded
from amqpscope.pipelines.model.members import KeyWalk
from amqpscope.pipelines.model.walk import Collected, schema
from amqpscope.pipelines.run.engine import Emit, Engine, distinct
from amqpscope.pipelines.run.incomplete_deliveries import PATIENCE_NS
from amqpscope.pipelines.run.runner import CONNECTIONS
from amqpscope.pipelines.run.sorting import sorted_by
from amqpscope.pipelines.statistics import KEYED, OverKeys

RENEWED = ("failures", "latency_buckets", "latency_summary")
"""Tables of which each batch writes anew what is not final."""
MOST_PUBLISHES = 1 << 22
"""Publishes that are kept for their deliveries; of more, the latest."""
MOST_WAITING = 2 * MOST_PUBLISHES
"""If more publishes and deliveries than this are kept, none waits for bytes that are held back."""


class Continuing(Engine):
    """The engine, of which one batch ends and the next one begins.

    Args:
        compiled: whether kernels run compiled.
        window_ns: how far before a delivery to look for its publish (ns).
        emit: called with each table's name and rows.
        how: of the runner: `note`, `under_way`.
    """

    def __init__(self, compiled: bool, window_ns: int, emit: Emit, **how: Any) -> None:
        super().__init__(compiled, window_ns, emit=emit, room=None, patience_ns=PATIENCE_NS, **how)
        self._keys: dict[str, bytes] = {}
        """State of the walk over each key that goes on."""
        self._open: list[int] = []
        """Connections that go on, of which others keep the state of walks."""
        self._now = -OPEN_NS
        """The latest time of an event before this batch, and in that of others."""

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what `rest` returned: before this batch, or in this batch of another engine with other connections."""
        keys, now, going_on = PLAIN.read(state["rest"])
        self._keys |= keys
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
        state: dict[str, Any] = {"rest": PLAIN.written([self._keys, self.now, list(going_on)])}
        for kind, held in (("partial", self.partial), ("undecided", self._undecided)):
            state |= {f"{kind} {name}": pa.concat_tables(parts) for name, parts in held.items() if parts}
        return {**state, "latencies": self.latencies.partial(), "failures": self.failures.partial()}

    @property
    def now(self) -> int:
        """The latest time of an event (ns)."""
        return max(self._now, self.runner.now)

    @property
    def going_on(self) -> list[int]:
        """The connections of which walks go on."""
        return [*self.runner.going_on, *self._open]

    def _unfinished(self) -> pa.Array:
        """Return the connections of which there may be more rows: batches go through what waits anyway."""
        waiting = [*(self.partial[name] for name in self._shared), *self._undecided.values()]
        columns = [rows["connection_id"] for parts in waiting for rows in parts]
        return distinct([*columns, pa.array(self.going_on, pa.int64())])

    def _await(self, rows: pa.Table) -> None:
        """Note nothing: rows wait for some batches only."""

    def _keep(self, name: str, rows: pa.Table) -> None:
        self.partial[name].append(decoded(rows).cast(KEYED_ROWS) if name == KEYED else rows)

    def walk_batch(self, is_last: bool) -> pa.Array:
        """Walk over all rows so far; return the connections that ended.

        Args:
            is_last: whether all did.
        """
        ended = []
        for found in self.runner.finish() if is_last else self.runner.step(everything=True):
            if found[0] == CONNECTIONS:
                ended.append(found[1]["connection_id"])
            self.take([found])
        return pa.chunked_array([chunk for each in ended for chunk in each.chunks], pa.int64()).combine_chunks()

    def conclude_batch(self, ended: pa.Array, held_ns: int, is_last: bool) -> None:
        """Walk over keys as far as their rows are final, and write what is.

        Args:
            ended: connections.
            held_ns: time of the first bytes or events whose rows come later (`IdleDissector.held_ns`, of `Runner`).
            is_last: whether everything is final.
        """
        for each in self.over_keys:
            rows = pa.concat_tables([each.schema.empty_table(), *self.partial[each.of]])
            until = OPEN_NS if is_last else self.now - self._patience(len(rows), held_ns)
            if each.of == KEYED:
                self.partial[KEYED] = self._match(each, rows, until)
                lost = pa.concat_tables([SCHEMA.empty_table(), *self.partial[LOST]])
                going_on = pa.array(self.going_on, pa.int64())
                ends = [chunk for part in self.partial[KEYED] for chunk in part["connection_id"].chunks]
                self.partial[LOST] = [
                    still_needed(lost, until - self.window_ns, going_on, pa.chunked_array(ends, pa.int64()).unique())
                ]
            elif each.alone is not None:
                young = pc.greater(rows["ts_ns"], until)
                self.partial[each.of] = [rows.filter(young)]
                self._go_on(each, rows.filter(pc.invert(young)), is_last)
            else:
                goes_on = _goes_on(rows, self.now - each.patience_ns if not is_last else OPEN_NS)
                self.partial[each.of] = [rows.filter(goes_on)]
                self._pass(each, rows.filter(pc.invert(goes_on)))
                self._prune(each)
        for name, resolved in self.resolved.items():
            facts = pa.concat_tables([resolved.schema.empty_table(), *self.partial[resolved.of]])
            rows = pa.concat_tables([schema(name).empty_table(), *self._undecided[name]])
            decided = pc.is_in(rows["connection_id"], value_set=ended)
            self.partial[resolved.of] = [facts]
            self._undecided[name] = [rows.filter(pc.invert(decided))]
            self._found(name, resolved.resolve(rows.filter(decided), resolved.facts(facts)))

    def summaries(self, is_last: bool) -> dict[str, pa.Table]:
        """Write summaries that are final; return the others."""
        renewed = Collected()
        renewed.add([("failures", self.failures.table())])
        if not is_last:
            for name, rows in self.latencies.by_connection(self._unfinished()):
                self._found(name, rows)
        renewed.add(self.latencies.rows())
        return {name: renewed.table(name) for name in RENEWED}

    def _pass(self, over: OverKeys, rows: pa.Table) -> None:
        """Walk over all rows of some keys."""
        for found in self._over_keys(over, [[rows]]):
            self.take(found)

    def _prune(self, over: OverKeys) -> None:
        """Forget what later rows of a walk over keys do not need of walks over connections."""
        if over.given is None or over.still_needed is None:
            return
        name, fields = over.given
        (waiting,) = self.partial[over.of]
        since = min(self.now - over.patience_ns, pc.min(waiting["at_ns"]).as_py() or self.now)
        rows = pa.concat_tables([fields.empty_table(), *self.partial[name]])
        asking = waiting["connection_id"].unique()
        self.partial[name] = [over.still_needed(rows, since, pa.array(self.going_on, pa.int64()), asking)]

    def _patience(self, rows: int, held_ns: int) -> int:
        """Return how long rows wait for others of their time (ns): for bytes that are held back, at most the window.

        Where there are too many rows, none waits for such bytes.
        """
        longest = self.window_ns if rows <= MOST_WAITING else PATIENCE_NS
        return max(PATIENCE_NS, min(self.now - held_ns, longest))

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

    def _go_on(self, over: OverKeys, rows: pa.Table, is_last: bool) -> None:
        """Go on with the walks over single keys."""
        for batch in sorted_by(over.order, [rows], self.compiled):
            names = list(map(repr, zip(*(batch[name].to_pylist() for name in over.key), strict=True)))
            first = 0
            for end in range(1, len(names) + 1):
                if end == len(names) or names[end] != names[first]:
                    walk = self._alone(over, names[first])
                    self.take(walk.feed(batch.slice(first, end - first)))
                    self._keys[names[first]] = walk.take_out()
                    first = end
        for key in list(self._keys) if is_last else ():
            self.take(self._alone(over, key).finish())

    def _alone(self, over: OverKeys, key: str) -> KeyWalk:
        assert over.alone is not None
        walk = over.alone(self.compiled)
        if key in self._keys:
            walk.put_back(self._keys.pop(key))
        return walk


def _goes_on(rows: pa.Table, since_ns: int) -> pa.ChunkedArray:
    """Return which rows are of keys of which there are rows since a time."""
    last = rows.group_by("key").aggregate([("at_ns", "max")])
    return pc.is_in(rows["key"], value_set=last["key"].filter(pc.greater_equal(last["at_ns_max"], since_ns)))
