"""Routes: which queues a publish must have reached, by the bindings that the capture shows.

A binding holds from the answer to its request until it is removed, or until its queue or exchange is deleted. Bindings
older than the capture are not known. Routing keys are hostile: they are matched word by word, without regular
expressions, and only so many times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from amqpscope.pipelines.model.walk import conform, schema

NEVER = 1 << 62
"""The time until which something holds that nothing ends."""
BUILT_IN = {
    "": "direct", "amq.direct": "direct", "amq.fanout": "fanout", "amq.topic": "topic", "amq.headers": "headers",
    "amq.match": "headers",
}  # fmt: skip
"""Exchanges that every broker has (AMQP 0-9-1, 3.1.3), and their types."""
MOST_TRIED = 1 << 21
"""Bindings that are held against routing keys, long keys of topics several times; what lies beyond is not known."""
DEEPEST = 8
"""Exchanges that a message may pass."""

Row = tuple[Any, ...]
"""Values in the order of the declared columns."""
Place = tuple[str, str]
"""Broker and virtual host."""
Interval = tuple[int, int]
"""From and to, ns since the epoch; the end is not part of it."""
Key = tuple[str, str, str | None, str, bool]
"""Exchange, routing key, arguments, and what is bound: its name, and whether it is a queue."""


@dataclass(frozen=True)
class Binding:
    """A binding of a queue, or of another exchange, to an exchange, as long as it was seen to hold."""

    exchange: str
    key: str
    arguments: str | None
    to: str
    """The queue, or the exchange that is bound."""
    is_queue: bool
    since_ns: int
    until_ns: int
    packet: int | None


class Bindings:
    """What one virtual host of a broker has, as far as the capture shows.

    Attributes:
        types: of exchanges, by name.
        bindings: all of them, in the order in which they began.
    """

    def __init__(self) -> None:
        self.types: dict[str, str] = dict(BUILT_IN)
        self.bindings: list[Binding] = []
        self.declared: set[str] = set()
        """Names of queues."""
        self._open: dict[Key, tuple[int, int | None]] = {}
        self._of: dict[tuple[bool, str], dict[Key, None]] = defaultdict(dict)
        """Those that a queue (True) or an exchange ends when it is deleted."""

    def note(self, row: Mapping[str, Any]) -> None:
        """Note a change; they come in the order of their times.

        Args:
            row: columns of `changes`.
        """
        method, at = row["method"], row["done_ts_ns"]
        if method == "exchange.declare" and row["exchange_type"] and not row["passive"]:
            self.types[row["exchange"]] = row["exchange_type"]
        elif method == "queue.declare":
            self.declared.add(row["queue"])
        elif method in ("queue.bind", "exchange.bind", "queue.unbind", "exchange.unbind"):
            is_queue = method.startswith("queue")
            to = row["queue"] if is_queue else row["to_exchange"]
            exchange = row["exchange"] if is_queue else row["source_exchange"]
            key = (exchange or "", row["routing_key"] or "", row["arguments"], to or "", is_queue)
            if method.endswith("unbind"):
                self._end(key, at)
            else:
                self._open.setdefault(key, (at, row["packet"]))
                self._of[is_queue, key[3]][key] = self._of[False, key[0]][key] = None
        elif method in ("queue.delete", "exchange.delete"):
            is_queue = method == "queue.delete"
            for key in self._of.pop((is_queue, row["queue"] if is_queue else row["exchange"]), ()):
                self._end(key, at)

    def finish(self) -> None:
        """End all bindings that still hold."""
        for key in list(self._open):
            self._end(key, NEVER)
        self.bindings.sort(key=lambda each: (each.since_ns, each.exchange, each.key, each.to))

    def _end(self, key: Key, at: int) -> None:
        begun = self._open.pop(key, None)
        if begun is not None:
            exchange, routing_key, arguments, to, is_queue = key
            self.bindings.append(Binding(exchange, routing_key, arguments, to, is_queue, begun[0], at, begun[1]))


class Router:
    """Finds the queues that routing keys lead to.

    Args:
        known: bindings of a virtual host, finished.
        queues: names of queues that are known: the default exchange has a binding for each.
        tried: bindings that others tried before.
    """

    def __init__(self, known: Bindings, queues: Iterable[str], tried: int = 0) -> None:
        self.types = known.types
        self.queues = frozenset(queues)
        self.tried = tried
        self._direct: dict[tuple[str, str], list[Binding]] = defaultdict(list)
        self._others: dict[str, list[Binding]] = defaultdict(list)
        for each in known.bindings:
            if self.types.get(each.exchange) == "direct":
                self._direct[each.exchange, each.key].append(each)
            else:
                self._others[each.exchange].append(each)

    def routes(self, exchange: str, key: str) -> dict[str, list[Interval]] | None:
        """Return the queues that a message reaches, and when; None where that is not known (headers, unknown type)."""
        found: dict[str, list[Interval]] = defaultdict(list)
        if not self._follow(exchange, key, (-NEVER, NEVER), found, 0):
            return None
        return {queue: merged(intervals) for queue, intervals in found.items()}

    def _follow(self, exchange: str, key: str, within: Interval, found: dict[str, list[Interval]], depth: int) -> bool:
        if exchange == "":
            if key in self.queues:
                found[key].append(within)
            return True
        kind = self.types.get(exchange)
        if kind not in ("direct", "fanout", "topic") or depth > DEEPEST:
            return False
        for each in self._direct.get((exchange, key), ()) if kind == "direct" else self._others.get(exchange, ()):
            is_topic = kind == "topic"
            self.tried += 1 + is_topic * len(each.key) * len(key) // 64
            if self.tried > MOST_TRIED:
                return False
            if is_topic and not topic_matches(each.key, key):
                continue
            common = max(within[0], each.since_ns), min(within[1], each.until_ns)
            if common[0] >= common[1]:
                continue
            if each.is_queue:
                found[each.to].append(common)
            elif not self._follow(each.to, key, common, found, depth + 1):
                return False
        return True


def topic_matches(pattern: str, key: str) -> bool:
    """Return whether a routing key matches a topic pattern: `*` is one word, `#` any number (AMQP 0-9-1, 3.1.3.3).

    Takes time in proportion to the product of their numbers of words.
    """
    wanted, words = pattern.split("."), key.split(".") if key else []
    reached = {0}
    """Numbers of words that the pattern so far may stand for."""
    for each in wanted:
        if each == "#":
            reached = set(range(min(reached), len(words) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(words) and (each == "*" or each == words[at])}
        if not reached:
            return pattern == "" and not words
    return len(words) in reached


def merged(intervals: Sequence[Interval]) -> list[Interval]:
    """Return intervals in order, those that touch or overlap as one."""
    made: list[Interval] = []
    for since, until in sorted(intervals):
        if made and since <= made[-1][1]:
            made[-1] = made[-1][0], max(made[-1][1], until)
        else:
            made.append((since, until))
    return made


def bindings(changes: Iterable[pa.RecordBatch]) -> dict[Place, Bindings]:
    """Return the bindings that a capture shows, by broker and virtual host.

    Args:
        changes: rows of `changes` that have a time, in the order of `done_ts_ns`.
    """
    found: dict[Place, Bindings] = defaultdict(Bindings)
    for batch in changes:
        for row in batch.to_pylist():
            found[row["server"], row["vhost"]].note(row)
    for each in found.values():
        each.finish()
    return dict(found)


def routes_table(found: Mapping[Place, Bindings]) -> pa.Table:
    """Return the table `routes`: one row per binding of a queue or exchange."""
    rows = [
        (
            server, vhost, each.exchange, known.types.get(each.exchange), each.key, each.arguments,
            each.to if each.is_queue else None, None if each.is_queue else each.to, each.since_ns,
            None if each.until_ns == NEVER else each.until_ns, each.packet,
        )
        for (server, vhost), known in sorted(found.items())
        for each in known.bindings
    ]  # fmt: skip
    return _table("routes", rows)


def routed_table(
    found: Mapping[Place, Bindings], keys: Iterable[tuple[str, str, str, str]], queues: Iterable[tuple[str, str, str]]
) -> pa.Table:
    """Return the table `routed`: the queues that each exchange and routing key leads to, and when.

    Args:
        found: what `bindings` returned.
        keys: broker, virtual host, exchange and routing key of what was published.
        queues: broker, virtual host and name of queues that are known otherwise.
    """
    of: dict[Place, set[str]] = defaultdict(set)
    for server, vhost, queue in queues:
        of[server, vhost].add(queue)
    for place, known in found.items():
        of[place].update(known.declared)
    rows: list[Row] = []
    tried = 0
    for place, those in groupby(sorted(set(keys)), key=itemgetter(0, 1)):
        router = Router(found.get(place, Bindings()), of[place], tried)
        for *_, exchange, key in those:
            reached = router.routes(exchange, key)
            if reached is None:
                rows.append((*place, exchange, key, None, None, None, None))
            for queue, intervals in sorted((reached or {}).items()):
                rows += [(*place, exchange, key, queue, len(reached or {}), *interval) for interval in intervals]
        tried = router.tried
    return _table("routed", rows)


def _table(name: str, rows: Sequence[Row]) -> pa.Table:
    declared = schema(name)
    columns = {field.name: pa.array([row[at] for row in rows], field.type) for at, field in enumerate(declared)}
    return conform(name, columns, len(rows))
