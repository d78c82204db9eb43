"""Which statistics there are, and how their walks are connected. Engines know nothing else of them.

- Walks over connections see all events of one connection after the other, possibly after a stage that changes them.
- Walks over keys see rows that walks over connections yielded under a name of their own, or messages with their keys
  (KEYED), grouped and sorted by columns.
- Latencies and failures are added up from rows as they come, in partial results that merge.

To add a walk, add a line to OVER_CONNECTIONS or OVER_KEYS.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from amqpscope.pipelines.across import keys, lost
from amqpscope.pipelines.across.homes import Homes
from amqpscope.pipelines.across.lost import Lost, LostPublishes
from amqpscope.pipelines.across.transits import HOUR_NS, Transits
from amqpscope.pipelines.activity.deaths import Deaths
from amqpscope.pipelines.activity.endpoints import Endpoints
from amqpscope.pipelines.activity.operations import Operations
from amqpscope.pipelines.activity.published import Published
from amqpscope.pipelines.amqp010 import session_joins
from amqpscope.pipelines.amqp010.message_credit import MessageCredit
from amqpscope.pipelines.amqp010.session_commands import SessionCommands
from amqpscope.pipelines.amqp010.session_errors import SessionErrors
from amqpscope.pipelines.amqp010.session_statistics import SessionStatistics
from amqpscope.pipelines.amqp091.confirms.confirms import Confirms
from amqpscope.pipelines.amqp091.confirms.numbers import Numbering
from amqpscope.pipelines.amqp091.settlements.settlements import Settlements
from amqpscope.pipelines.connections.channel_errors import ChannelErrors
from amqpscope.pipelines.connections.flow_control import FlowControl
from amqpscope.pipelines.connections.gaps import Gaps
from amqpscope.pipelines.connections.heartbeats import Heartbeats
from amqpscope.pipelines.connections.tcp_delays import TcpDelays
from amqpscope.pipelines.model.events import MESSAGES, Events
from amqpscope.pipelines.model.walk import Needs, Rows, Walk
from amqpscope.pipelines.requests.rpcs import Rpcs
from amqpscope.pipelines.stream import stored, stream_deliveries, stream_lag
from amqpscope.pipelines.stream.stream_confirms import StreamConfirms
from amqpscope.pipelines.stream.stream_credit import StreamCredit
from amqpscope.pipelines.stream.stream_deliveries import StreamDeliveries
from amqpscope.pipelines.stream.stream_lag import StreamLag

__all__ = ["HOUR_NS", "KEYED", "METRICS", "OVER_CONNECTIONS", "OVER_KEYS", "TABLES", "Chain", "OverKeys", "chains"]

KEYED = "keyed messages"
"""Rows of `keys.keyed`, of all messages."""


class Stage(Protocol):
    """A stage before a walk, which changes the events that the walk reads."""

    @property
    def needs(self) -> Mapping[int, Needs]:
        """What it needs."""

    def feed(self, events: Events) -> Iterator[Events]:
        """Take a batch; yield events that are final, of this batch and of earlier ones."""
        ...

    def finish(self) -> Iterator[Events]:
        """Yield the events that are still held."""
        ...

    def take_out(self) -> bytes:
        """Return the state of the open connection, as a walk does."""
        ...

    def put_back(self, state: bytes) -> None:
        """Restore the state that `take_out` returned."""
        ...


class KeyedWalk(Protocol):
    """A pass over sorted rows that are not events."""

    def feed(self, rows: pa.Table) -> Iterator[Rows]:
        """Walk over a batch."""
        ...

    def finish(self) -> Iterator[Rows]:
        """Yield the rows of everything that is still outstanding."""
        ...


class OverConnections(NamedTuple):
    """A walk over connections.

    Attributes:
        walk: makes the walk; called with whether kernels run compiled.
        before: makes the stage before it; None for no stage.
    """

    walk: Callable[..., Walk]
    before: Callable[..., Stage] | None = None


class OverKeys(NamedTuple):
    """A walk over keys.

    Attributes:
        of: name of the rows that it walks over.
        tables: tables that it writes.
        schema: of these rows.
        key: columns that group rows.
        order: columns by which they are sorted, the key first.
        walk: makes it; called with whether kernels run compiled, `--transit-window`, and rows of `given`.
        given: name and schema of rows of walks over connections, of which it gets all; None for none.
    """

    of: str
    tables: tuple[str, ...]
    schema: pa.Schema
    key: tuple[str, ...]
    order: tuple[str, ...]
    walk: Callable[[bool, int, pa.Table | None], KeyedWalk]
    given: tuple[str, pa.Schema] | None = None


class Resolved(NamedTuple):
    """Rows of which other connections decide a column.

    Attributes:
        of: name of the rows that walks over connections yield for the decision.
        schema: of these rows.
        undecided: returns which rows (bool) need the decision.
        facts: makes the facts that decide, from all rows of that name; called with whether kernels run compiled.
        resolve: fills in the column.
    """

    of: str
    schema: pa.Schema
    undecided: Callable[[pa.Table], Any]
    facts: Callable[[pa.Table, bool], pa.Table]
    resolve: Callable[[pa.Table, pa.Table], pa.Table]


OVER_CONNECTIONS: tuple[OverConnections, ...] = (
    OverConnections(Confirms, Numbering),
    OverConnections(Settlements),
    OverConnections(Rpcs),
    OverConnections(FlowControl),
    OverConnections(Heartbeats),
    OverConnections(ChannelErrors),
    OverConnections(SessionStatistics),
    OverConnections(SessionCommands),
    OverConnections(SessionErrors),
    OverConnections(MessageCredit),
    OverConnections(StreamConfirms),
    OverConnections(StreamCredit),
    OverConnections(StreamDeliveries),
    OverConnections(LostPublishes),
    OverConnections(Endpoints),
    OverConnections(Operations),
    OverConnections(Published),
    OverConnections(Gaps),
    OverConnections(TcpDelays),
    OverConnections(Deaths),
)


def _of_sessions(table: str, of: str) -> OverKeys:
    fields, order = session_joins.schema_of(table), session_joins.ORDER
    return OverKeys(of, (table,), fields, session_joins.KEY, order, lambda *_: session_joins.Joins(table))


OVER_KEYS: tuple[OverKeys, ...] = (
    OverKeys(
        KEYED, ("transits",), keys.KEYED, ("key",), keys.ORDER,
        lambda compiled, window_ns, rows: Transits(
            window_ns, compiled=compiled, lost=Lost(rows, compiled), homes=Homes(rows)
        ),
        (lost.LOST, lost.SCHEMA),
    ),
    OverKeys(
        stream_deliveries.PARTIAL, StreamLag.tables, stream_deliveries.OFFSETS, stream_lag.KEY,
        (*stream_lag.KEY, *stream_lag.ORDER), lambda compiled, *_: StreamLag(compiled),
    ),
    *(_of_sessions(table, of) for table, of in session_joins.JOINED.items()),
)  # fmt: skip
RESOLVED = {
    "confirms": Resolved(stored.PARTIAL, stored.SCHEMA, stored.undecided, stored.verdicts, stored.resolve),
}
"""Tables with a column that is decided at the end."""
SHARED = frozenset(session_joins.JOINED.values())
"""Of OVER_KEYS, those whose tables walks over connections write as well."""
METRICS = {"confirms": "confirm", "settlements": "settlement", "rpcs": "rpc", "transits": "transit"}
"""Tables with latencies, and the metric that each is."""
TABLES = (
    "captures",
    "confirms", "settlements", "rpcs", "commands", "transits", "flow_control", "heartbeats", "stream_credit",
    "stream_deliveries", "channel_errors", "failures", "endpoints", "operations", "published", "gaps", "deaths",
    "tcp_delays",
    "latency_buckets", "latency_summary",
)  # fmt: skip
"""Tables of statistics, as far as they are declared."""
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


def chains(compiled: bool = False, rows: Collection[str] | None = None) -> list[Chain]:
    """Return the walks over connections that yield any of these rows, new ones; None: all walks."""
    made = (Chain(member, compiled) for member in OVER_CONNECTIONS)
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
    over_keys = [each for each in OVER_KEYS if found & set(each.tables) and (deliveries or each.of != KEYED)]
    found |= {each.of for each in over_keys} | {each.given[0] for each in over_keys if each.given}
    found |= {resolved.of for name, resolved in RESOLVED.items() if name in found}
    return frozenset(found)


def needs_of(walks: Sequence[Chain]) -> list[Mapping[int, Any]]:
    """Return what these walks and the engine want of events."""
    return [*(needs for chain in walks for needs in chain.needs), READ_WITH]
