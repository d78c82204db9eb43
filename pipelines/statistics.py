"""Which statistics there are, and how their walks are connected. Engines know nothing else of them.

Protocols bring their walks (`model.protocols`), and how these are connected (`model.members`). Here are those that
concern all protocols. Walks over keys also see messages with their keys (KEYED). Latencies and failures are added up
from rows as they come, in partial results that merge.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from amqpscope import spec
from amqpscope.pipelines.across import callers, calls, keys, lost
from amqpscope.pipelines.across.calls import CallParts, Calls
from amqpscope.pipelines.across.consumed import Queues
from amqpscope.pipelines.across.homes import Homes
from amqpscope.pipelines.across.lost import Lost, LostPublishes
from amqpscope.pipelines.across.transits import HOUR_NS, Transits
from amqpscope.pipelines.activity.deaths import Deaths
from amqpscope.pipelines.activity.endpoints import Endpoints
from amqpscope.pipelines.activity.published import Published
from amqpscope.pipelines.activity.unconfirmed import Unconfirmed
from amqpscope.pipelines.connections.gaps import Gaps
from amqpscope.pipelines.connections.heartbeats import Heartbeats
from amqpscope.pipelines.connections.tcp_delays import TcpDelays
from amqpscope.pipelines.connections.violations import Violations
from amqpscope.pipelines.connections.zero_windows import ZeroWindows
from amqpscope.pipelines.model import events as ev
from amqpscope.pipelines.model import protocols
from amqpscope.pipelines.model.events import MESSAGES, Events
from amqpscope.pipelines.model.members import Members, OverConnections, OverKeys, Resolved, Stage
from amqpscope.pipelines.model.walk import Needs, Rows, Walk

__all__ = ["HOUR_NS", "KEYED", "METRICS", "Chain", "OverKeys", "chains", "over_keys", "resolved", "tables"]

KEYED = "keyed messages"
"""Rows of `keys.keyed`, of all messages."""


OURS = Members(
    (
        OverConnections(Heartbeats),
        OverConnections(LostPublishes),
        OverConnections(Endpoints),
        OverConnections(Published),
        OverConnections(Unconfirmed),
        OverConnections(Gaps),
        OverConnections(Violations),
        OverConnections(ZeroWindows),
        OverConnections(TcpDelays),
        OverConnections(Deaths),
        OverConnections(CallParts),
    ),
    (
        OverKeys(
            KEYED, ("transits",), keys.KEYED, ("key",), keys.ORDER,
            lambda compiled, window_ns, rows: Transits(
                window_ns, compiled=compiled, lost=Lost(rows, compiled), homes=Homes(rows), queues=Queues(rows)
            ),
            (lost.LOST, lost.SCHEMA),
        ),
        OverKeys(
            calls.CALLS, Calls.tables, calls.PARTS, ("key",), calls.ORDER, lambda _, __, rows: Calls(rows),
            (callers.ENDS, callers.WHEN), patience_ns=HOUR_NS, still_needed=callers.still_needed,
        ),
    ),
)  # fmt: skip
"""What concerns all protocols."""
SUMMED = ("captures", "failures", "latency_buckets", "latency_summary")
"""Tables that no walk writes."""
METRICS = {"confirms": "confirm", "settlements": "settlement", "rpcs": "rpc", "transits": "transit"}
"""Tables with latencies, and the metric that each is."""
READ_WITH: dict[int, Needs] = {MESSAGES: Needs(("body_size",))}
"""What engines themselves need."""


class Chain:
    """A walk and the stage before it, if there is one."""

    def __init__(self, member: OverConnections, compiled: bool = False) -> None:
        self.walk = member.walk(compiled)
        self.stage = member.before(compiled) if member.before else None

    @property
    def needs(self) -> list[Mapping[int, Needs]]:
        """What both need."""
        return [self.walk.needs, *([self.stage.needs] if self.stage else ())]

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch."""
        for each in self.stage.feed(events) if self.stage else (events,):
            yield from self.walk.feed(each)

    def finish(self) -> Iterator[Rows]:
        """Yield the rows of everything that is still outstanding."""
        for each in self.stage.finish() if self.stage else ():
            yield from self.walk.feed(each)
        yield from self.walk.finish()

    def take_out(self) -> list[bytes]:
        """Return the state of the open connection."""
        return [each.take_out() for each in self._both]

    def put_back(self, state: list[bytes]) -> None:
        """Restore the state that `take_out` returned."""
        for each, data in zip(self._both, state, strict=True):
            each.put_back(data)

    @property
    def _both(self) -> list[Walk | Stage]:
        return [self.walk, self.stage] if self.stage else [self.walk]


def members() -> list[Members]:
    """Return what protocols that are known now add, and what concerns all of them."""
    ev.learn()
    return [*(protocols.loaded(each.walks) for each in protocols.known().values()), OURS]


def over_keys() -> list[OverKeys]:
    """Return the walks over keys."""
    return [each for some in members() for each in some.over_keys]


def resolved() -> dict[str, Resolved]:
    """Return the tables with a column that is decided at the end."""
    return {name: each for some in members() for name, each in some.resolved.items()}


def tables() -> tuple[str, ...]:
    """Return the names of the tables of statistics, in the order of their declarations."""
    ev.learn()
    return _tables(tuple(protocols.known()))


@cache
def _tables(_: tuple[str, ...]) -> tuple[str, ...]:
    walks = [member.walk(False) for some in members() for member in some.over_connections]
    written = {*SUMMED, *(name for walk in walks for name in walk.tables)}
    written |= {name for over in over_keys() for name in over.tables}
    return tuple(name for name in spec.tables() if name in written)


def chains(compiled: bool = False, rows: Collection[str] | None = None) -> list[Chain]:
    """Return the walks over connections that yield any of these rows, new ones; None: all walks."""
    made = (Chain(member, compiled) for some in members() for member in some.over_connections)
    return [each for each in made if rows is None or {*rows} & {*each.walk.tables, *getattr(each.walk, "partial", ())}]


def rows_for(tables: Sequence[str], deliveries: bool = True) -> frozenset[str]:
    """Return the names of all rows that walks yield for these tables, the tables' own names included.

    Args:
        tables: their names.
        deliveries: whether messages may be deliveries; without any there are no transits.
    """
    found = set(tables)
    if found & {"latency_buckets", "latency_summary"}:
        found |= set(METRICS)
    over = [each for each in over_keys() if found & set(each.tables) and (deliveries or each.of != KEYED)]
    found |= {each.of for each in over} | {each.given[0] for each in over if each.given}
    found |= {each.of for name, each in resolved().items() if name in found}
    return frozenset(found)


def needs_of(walks: Sequence[Chain]) -> list[Mapping[int, Any]]:
    """Return what these walks and the engine want of events."""
    return [*(needs for chain in walks for needs in chain.needs), READ_WITH]
