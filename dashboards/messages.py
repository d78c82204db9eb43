"""Find messages in statistics: what was published and delivered, with confirms and settlements, in order of time.

DuckDB joins and sorts them, beyond memory where it must, and gives them back in batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amqpscope.dissector.places import Place
from amqpscope.pipelines.relations import compute

if TYPE_CHECKING:
    import duckdb

Row = dict[str, Any]
SOURCES = ("endpoints", "confirms", "settlements", "transits", "stream_deliveries", "unconfirmed")
"""Statistics that have messages."""
BATCH = 10_000
"""Rows that are in memory as objects."""
UNKNOWN = ("gap", "evicted")
"""Values of `ended_by` with which an answer may have come, unseen."""

COLUMNS = (
    "kind", "protocol", "connection_id", "channel", "channel_epoch", "frame_no", "capture", "packet", "ts_ns", "client",
    "server", "exchange", "routing_key", "queue", "consumer_tag", "message_id", "publish_seq", "delivery_tag",
    "redelivered", "first_offset", "records", "size", "outcome", "returned", "requeue", "reply_code", "answer_ts_ns",
    "answer_frame_no", "answer_capture", "answer_packet", "latency_ns", "ended_by", "waited_ns", "publish_packet",
    "transit_ns", "incomplete",
)  # fmt: skip
"""Of a message, in the order of machine formats."""

TEXT = """
with reached as (
    select t.publish_connection_id as connection_id, t.publish_frame_no as frame_no, any_value(t.exchange) as exchange,
        any_value(t.routing_key) as routing_key, any_value(t.publish_capture) as capture,
        any_value(t.publish_packet) as packet, any_value(t.publish_ts_ns) as ts_ns,
        list_sort(list_distinct(list(s.queue) filter (where s.queue is not null))) as queues
    from transits t
    left join settlements s on t.deliver_connection_id = s.connection_id and t.deliver_frame_no = s.deliver_frame_no
    where t.publish_frame_no is not null
    group by t.publish_connection_id, t.publish_frame_no
),
found as (
    select 'publish' as kind, c.protocol, c.connection_id, c.channel, c.channel_epoch, c.publish_frame_no as frame_no,
        c.publish_capture as capture, c.publish_packet as packet, c.publish_ts_ns as ts_ns, c.exchange, c.routing_key,
        coalesce(r.queues, []) || case when c.stream is not null then [c.stream]
            when c.exchange = '' and c.protocol = 'amqp-0-9-1' then [c.routing_key] else [] end as queues,
        null as consumer_tag, c.message_id, c.publish_seq, null as delivery_tag, null as redelivered,
        null as first_offset, c.records, c.body_size as size, c.outcome, c.returned, null as requeue, c.reply_code,
        c.confirm_ts_ns as answer_ts_ns, c.confirm_frame_no as answer_frame_no, c.confirm_capture as answer_capture,
        c.confirm_packet as answer_packet, c.latency_ns, c.ended_by, c.end_ts_ns, null as publish_packet,
        null as transit_ns, c.incomplete
    from confirms c
    left join reached r on c.connection_id = r.connection_id and c.publish_frame_no = r.frame_no and c.stream is null
    union all by name
    select 'publish' as kind, r.connection_id, r.frame_no, r.capture, r.packet, r.ts_ns, r.exchange, r.routing_key,
        coalesce(r.queues, []) as queues
    from reached r
    anti join confirms c on c.connection_id = r.connection_id and c.publish_frame_no = r.frame_no
    anti join unconfirmed u on u.connection_id = r.connection_id and u.frame_no = r.frame_no
    union all by name
    select 'publish' as kind, u.protocol, u.connection_id, u.channel, u.channel_epoch, u.frame_no, u.capture, u.packet,
        u.ts_ns, u.exchange, u.routing_key, u.message_id, u.body_size as size, u.incomplete,
        coalesce(r.queues, []) || case when u.exchange = '' and u.protocol = 'amqp-0-9-1' then [u.routing_key] else []
            end as queues
    from unconfirmed u
    left join reached r on u.connection_id = r.connection_id and u.frame_no = r.frame_no
    anti join confirms c on c.connection_id = u.connection_id and c.publish_frame_no = u.frame_no
    union all by name
    select s.kind, s.protocol, s.connection_id, s.channel, s.channel_epoch, s.deliver_frame_no as frame_no,
        s.deliver_capture as capture, s.deliver_packet as packet, s.deliver_ts_ns as ts_ns, s.exchange, s.routing_key,
        case when s.queue is null then [] else [s.queue] end as queues, s.consumer_tag, c.message_id, s.delivery_tag,
        s.redelivered, s.body_size as size, s.outcome, s.requeue, s.settle_ts_ns as answer_ts_ns,
        s.settle_frame_no as answer_frame_no, s.settle_capture as answer_capture, s.settle_packet as answer_packet,
        s.latency_ns, s.ended_by, s.end_ts_ns, t.publish_packet, t.latency_ns as transit_ns, s.incomplete
    from settlements s
    left join transits t on t.deliver_connection_id = s.connection_id and t.deliver_frame_no = s.deliver_frame_no
        and t.publish_frame_no is not null
    left join confirms c on c.connection_id = t.publish_connection_id and c.publish_frame_no = t.publish_frame_no
        and c.stream is null
    union all by name
    select 'deliver' as kind, d.connection_id, d.frame_no, d.capture, d.packet, d.ts_ns, [d.stream] as queues,
        coalesce(d.consumer, cast(d.subscription_id as varchar)) as consumer_tag, d.chunk_id as first_offset, d.records,
        d.size
    from stream_deliveries d where d.chunk_type = 0
),
named as (
    select f.* exclude (protocol, queues, end_ts_ns), coalesce(f.protocol, n.protocol) as protocol, n.client, n.server,
        f.queues as queues,
        nullif(array_to_string(list_sort(list_distinct(f.queues)), ', '), '') as queue,
        case when f.outcome <> 'none' then f.latency_ns when f.ended_by not in ('gap', 'evicted')
            then f.end_ts_ns - f.ts_ns end as waited_ns
    from found f left join endpoints n on f.connection_id = n.connection_id
)
"""


@dataclass(frozen=True)
class Wanted:
    """Which messages: those that match all that is given, of what is repeated any.

    Attributes:
        message_ids: their ids.
        routing_keys: their keys.
        queues: queues or streams that they were delivered from, or are known to have reached.
        exchanges: what they were published to; empty for the default exchange.
        slower_ns: their answer took longer, or did not come for longer.
        unanswered: no confirm or settlement came, as far as all of the time is in the capture.
        count: the first ones, at most.
    """

    message_ids: Sequence[str] = ()
    routing_keys: Sequence[str] = ()
    queues: Sequence[str] = ()
    exchanges: Sequence[str] = ()
    slower_ns: int | None = None
    unanswered: bool = False
    count: int | None = None

    def condition(self) -> tuple[str, list[Any]]:
        """Return the condition in SQL, and its parameters."""
        terms: list[str] = ["true"]
        values: list[Any] = []
        for column, names in (
            ("message_id", self.message_ids), ("routing_key", self.routing_keys), ("exchange", self.exchanges),
        ):  # fmt: skip
            if names:
                terms.append(f"list_contains(?::varchar[], {column})")
                values.append([*names])
        if self.queues:
            terms.append("list_has_any(queues, ?::varchar[])")
            values.append([*self.queues])
        if self.slower_ns is not None:
            terms.append("waited_ns > ?::bigint")
            values.append(self.slower_ns)
        if self.unanswered:
            terms.append("outcome = 'none' and coalesce(ended_by not in ('gap', 'evicted'), true)")
        return " and ".join(terms), values


class Found:
    """Messages that were found, sorted in a database.

    Attributes:
        all: number of messages in the statistics.
        count: number of those that are wanted.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, wanted: Wanted) -> None:
        condition, values = wanted.condition()
        limit = "" if wanted.count is None else f"limit {wanted.count}"
        order = "ts_ns nulls last, capture, packet, connection_id, frame_no"
        connection.execute(
            f"create temp table chosen as {TEXT} select {', '.join(COLUMNS)} from named "  # noqa: S608 - ours
            f"where {condition} order by {order} {limit}",
            values,
        )
        self._connection, self._order = connection, order
        self.count = self._one("select count(*) from chosen")[0]
        self.all = self.count or sum(
            self._one(f"select count(*) from {name}")[0]  # noqa: S608 - ours
            for name in ("confirms", "settlements", "stream_deliveries", "unconfirmed")
        )

    def longest(self, columns: Sequence[str]) -> dict[str, int]:
        """Return the length of the longest text in each of these columns; 0 where none has any."""
        lengths = ", ".join(f"coalesce(max(length({name}::varchar)), 0)" for name in columns)
        return dict(zip(columns, self._one(f"select {lengths} from chosen"), strict=True))  # noqa: S608 - ours

    def times(self) -> tuple[int, int]:
        """Return the first and the last time, in ns since the epoch; zeros where there are no messages."""
        first, last = self._one("select coalesce(min(ts_ns), 0), coalesce(max(ts_ns), 0) from chosen")
        return first, last

    def has_default_exchange(self) -> bool:
        """Return whether one was published to the default exchange."""
        return bool(self._one("select count(*) from chosen where exchange = ''")[0])

    def rows(self) -> Iterator[Row]:
        """Yield the messages in order of time."""
        asked = self._connection.execute(f"select * from chosen order by {self._order}")  # noqa: S608 - ours
        while some := asked.fetchmany(BATCH):
            for row in some:
                yield dict(zip(COLUMNS, row, strict=True))

    def _one(self, text: str) -> tuple[Any, ...]:
        row = self._connection.execute(text).fetchone()
        assert row is not None
        return row


@contextmanager
def find(folder: Place, wanted: Wanted) -> Iterator[Found]:
    """Yield the messages of a folder of statistics that are wanted.

    Args:
        folder: what `analyze` wrote.
        wanted: which ones.

    Raises:
        ReadError: a table cannot be read.
    """
    with compute.opened(folder, SOURCES) as connection:
        yield Found(connection, wanted)
