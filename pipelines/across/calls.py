"""Calls: requests that name a queue for their answer (reply_to), and the answers, by correlation id.

A request is a publish with reply_to and correlation id; its answer is a delivery, from that queue, with the same
correlation id. It may come on another connection. Direct replies (RabbitMQ) have no queue: the client names
`amq.rabbitmq.reply-to`, to which the broker adds a name of its own, and the answer comes on the request's channel.

Where a client uses a correlation id again before the answer came, requests and answers pair in their order. Both have
the same broker and virtual host, as far as known (`homes`).

A walk over connections yields requests and answers (PARTS), and what is known of their connections (`callers`). The
walk over keys pairs them (`waiting`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.pipelines.across.callers import ENDS, WHEN, Callers
from amqpscope.pipelines.across.homes import COLUMNS, HOME, digests
from amqpscope.pipelines.across.waiting import Waiting
from amqpscope.pipelines.model.connection import GAP_WORDS, GAPS, SERVER
from amqpscope.pipelines.model.digests import DIRECT_REPLY, combined, hashed
from amqpscope.pipelines.model.events import ANOMALIES, CONNECTIONS, EV, FRAMES_OF, MESSAGES, Events, what
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.walk import Needs, Rows, conform, facts

CALLS = "requests and answers"
PARTS = pa.schema(
    [
        *((name, pa.int64()) for name in ("key", "at_ns", "connection_id", "frame_no", "packet", "ts_ns")),
        *((name, pa.string()) for name in ("capture", "correlation_id", "reply_to", "exchange", "routing_key")),
        ("is_answer", pa.bool_()),
        ("unfinished", pa.bool_()),
        ("channel", pa.int64()),
    ]
)
"""Requests and answers; `key` is the digest of correlation id, queue and, for direct replies, connection; `at_ns` is
`ts_ns`, 0 where that is null; `channel` (`_channels`) is that of a direct reply, else null."""
ORDER = ("key", "at_ns", "is_answer", "connection_id", "frame_no")
ENDED_BY = ("capture-end", "connection-close", "evicted")
"""By EV.MULTIPLE of a connection."""
OUTSTANDING = 10_000
"""Requests of one key that wait for an answer; of more, the oldest is evicted."""
_ASKED = ("exchange", "routing_key", "correlation_id", "reply_to", "capture", "packet", "ts_ns", "unfinished")
_PUBLISH = what(MESSAGES, "publish")
_GIVEN = [what(MESSAGES, kind) for kind in ("deliver", "get")]
_LACKS = list(GAP_WORDS)


class CallParts(Remembers):
    """The walk over connections that yields PARTS, and ENDS of connections that ask, answer or lack bytes.

    It remembers whether the connection is one of these; until then, when it ends; and its channels on which direct
    replies may still come.
    """

    tables = ()
    partial = (CALLS, ENDS)
    VERSION = 3
    STATE = ("_known", "_ends", "_direct")

    @property
    def needs(self) -> Mapping[int, Needs]:
        """What it needs."""
        made = {CONNECTIONS: Needs(COLUMNS), ANOMALIES: Needs((), GAPS)}
        made[MESSAGES] = Needs((*_ASKED[:4], "cut_by"), ("publish", "deliver", "get"))
        return made | {source: Needs((), (name,)) for source, name in _closing().items()}

    def forget(self) -> None:
        """See `Remembers`."""
        self._known = -1
        """The connection, if it is known to be one of these; else -1."""
        self._ends = WHEN.empty_table()
        self._direct = np.zeros(0, np.int64)

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; yield its requests and answers, and what is known of their connections."""
        matrix = events.matrix
        if not len(matrix):
            return
        ends = pa.concat_tables([self._ends, *self._ended(events, np.flatnonzero(events.source == CONNECTIONS))])
        gaps = np.flatnonzero(events.among(_LACKS) & (matrix[:, EV.FROM_CLIENT] == SERVER))
        whose = [np.array([self._known]), matrix[gaps, EV.CONNECTION]]
        found = [facts(WHEN, matrix[gaps, EV.CONNECTION], at_ns=matrix[gaps, EV.TS], ended_by=["gap"] * len(gaps))]
        direct = [_pairs(np.full(len(self._direct), self._known), self._direct)]
        for name, rows in self._parts(events, np.flatnonzero(events.among([_PUBLISH, *_GIVEN]))):
            whose.append(rows["connection_id"].to_numpy())
            found.append(self._listening(rows))
            asked = rows.filter(pc.and_not(pc.is_valid(rows["channel"]), rows["is_answer"]))
            direct.append(_pairs(asked["connection_id"].to_numpy(), asked["channel"].to_numpy()))
            yield name, rows
        these = np.unique(np.concatenate(whose))
        waiting, closed = np.unique(np.concatenate(direct)), self._closed(events)
        pairs, first = np.unique(
            _pairs(*(closed[name].to_numpy() for name in ("connection_id", "channel"))), return_index=True
        )
        found.append(closed.take(pa.array(first[np.isin(pairs, waiting)], pa.int64())))
        mine = np.isin(ends["connection_id"].to_numpy(), these)
        rows = pa.concat_tables([ends.filter(pa.array(mine)), *found])
        if len(rows):
            yield ENDS, rows
        last = int(matrix[-1, EV.CONNECTION])
        self._known = last if last in these else -1
        waiting = waiting[~np.isin(waiting, pairs)]
        self._direct = waiting["channel"][waiting["connection"] == self._known]
        rest = ends.filter(pa.array(~mine & (ends["connection_id"].to_numpy() == last)))
        self._ends = rest.slice(max(len(rest) - 1, 0)).combine_chunks()

    def _ended(self, events: Events, at: Any) -> Iterator[pa.Table]:
        """Yield when connections (their positions) end, and where they are."""
        if len(at):
            matrix = events.matrix[at]
            closed = np.maximum(matrix[:, EV.MULTIPLE], 0)
            has_time = (closed == 1) & (matrix[:, EV.NUMBER] >= 0)
            times = np.where(has_time, matrix[:, EV.NUMBER], matrix[:, EV.TS])
            homes = dict(zip(HOME, digests(events.take(CONNECTIONS, at, COLUMNS), self.compiled), strict=True))
            why = [ENDED_BY[each] for each in closed.tolist()]
            yield facts(WHEN, matrix[:, EV.CONNECTION], at_ns=times, ended_by=why, **homes)

    def _closed(self, events: Events) -> pa.Table:
        """Return when channels were closed."""
        rows = events.matrix[events.among([what(*each) for each in _closing().items()])]
        why = ["channel-close"] * len(rows)
        times = np.maximum(rows[:, EV.TS], 0)
        return facts(WHEN, rows[:, EV.CONNECTION], at_ns=times, ended_by=why, channel=_channels(rows))

    def _listening(self, parts: pa.Table) -> pa.Table:
        """Return the queues of which answers came, and on which connections."""
        answers = parts.filter(parts["is_answer"]).group_by(["connection_id", "routing_key"]).aggregate([])
        queues = hashed(answers["routing_key"], self.compiled)
        return facts(WHEN, answers["connection_id"], queue=pa.array(queues, pa.int64()))

    def _parts(self, events: Events, at: Any) -> Iterator[Rows]:
        if not len(at):
            return
        rows = events.take(MESSAGES, at, (*_ASKED, "cut_by", "connection_id", "frame_no"))
        asks = pa.array(events.matrix[at, EV.WHAT] == _PUBLISH)
        named = pc.fill_null(pc.not_equal(rows["correlation_id"], ""), False)
        # An answer goes through the default exchange, by the name of its queue.
        replies = pc.if_else(
            asks, pc.fill_null(pc.not_equal(rows["reply_to"], ""), False), pc.equal(rows["exchange"], "")
        )
        whole = pc.is_null(rows["cut_by"])
        some = pc.and_(pc.and_(named, whole), pc.and_(pc.fill_null(replies, False), pc.is_valid(rows["exchange"])))
        if not pc.any(some).as_py():
            return
        rows, asks, at = rows.filter(some), asks.filter(some.combine_chunks()), at[some.to_numpy()]
        queue = pc.if_else(asks, rows["reply_to"], rows["routing_key"])
        direct = pc.starts_with(queue, DIRECT_REPLY)
        queue = pc.if_else(direct, DIRECT_REPLY, queue)
        own = pc.if_else(direct, rows["connection_id"], 0)
        key = combined(
            [hashed(rows["correlation_id"], self.compiled), hashed(queue, self.compiled), own], self.compiled
        )
        columns = {name: rows[name] for name in PARTS.names if name in rows.column_names}
        columns |= {"key": pa.array(key), "at_ns": rows["ts_ns"].fill_null(0), "is_answer": pc.invert(asks)}
        columns["channel"] = pc.if_else(direct, _channels(events.matrix[at]), None)
        yield CALLS, pa.table([columns[name] for name in PARTS.names], schema=PARTS)


def _closing() -> dict[int, str]:
    """Return the method that closes a channel, by the table of frames."""
    return {source: of.closes_channel for source, of in FRAMES_OF.items() if of.closes_channel}


def _pairs(connections: Any, channels: Any) -> Any:
    """Return pairs of connections and channels as an array of them."""
    made = np.zeros(len(connections), [("connection", np.int64), ("channel", np.int64)])
    made["connection"], made["channel"] = connections, channels
    return made


def _channels(matrix: Ints) -> pa.Array:
    """Return the numbers of the channels of events (EV): each opening of one has another."""
    return pa.array((matrix[:, EV.EPOCH] << 16) + matrix[:, EV.CHANNEL])


class Calls:
    """The walk over PARTS in ORDER that writes `calls`.

    Args:
        ends: rows of WHEN.
    """

    tables = ("calls",)

    def __init__(self, ends: pa.Table | None = None) -> None:
        self._callers = Callers(ends if ends is not None else WHEN.empty_table())
        self._held = PARTS.empty_table()
        """Requests of the last key that wait."""
        self._shared: list[bool] = []
        """Of these, which waited together with another one."""

    def feed(self, rows: pa.Table) -> Iterator[Rows]:
        """Walk over a batch; yield the calls that are over."""
        rows = pa.concat_tables([self._held, rows]).combine_chunks()
        keys, answers = rows["key"].to_numpy(), rows["is_answer"].to_numpy(zero_copy_only=False)
        places = self._callers.places(rows["connection_id"].to_numpy())
        pairs: list[tuple[int, int, bool, bool]] = []
        shared, self._shared = self._shared, []
        waiting = Waiting()
        borders = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)] if len(keys) else []
        for first, end in pairwise(borders):
            waiting = Waiting()
            for row in range(first, end):
                if answers[row]:
                    if (asked := waiting.oldest(places[row])) is not None:
                        pairs.append((asked, row, not waiting.take(asked), False))
                    continue
                waiting.ask(row, places[row], row < len(shared) and shared[row])
                if len(waiting) > OUTSTANDING and (asked := waiting.oldest()) is not None:
                    waiting.take(asked)
                    pairs.append((asked, -1, False, True))
            if end < len(keys):
                pairs += [(row, -1, True, False) for row in waiting.rest()]
        rest = waiting.rest()
        self._held, self._shared = rows.take(pa.array(list(rest), pa.int64())), list(rest.values())
        yield from self._rows(rows, pairs)

    def finish(self) -> Iterator[Rows]:
        """Yield the requests that wait, and reset the walk."""
        rows, self._held, self._shared = self._held, PARTS.empty_table(), []
        yield from self._rows(rows, [(row, -1, True, False) for row in range(len(rows))])

    def _rows(self, rows: pa.Table, pairs: list[tuple[int, int, bool, bool]]) -> Iterator[Rows]:
        if not pairs:
            return
        asked = rows.take(pa.array([pair[0] for pair in pairs]))
        given = rows.take(pa.array([pair[1] if pair[1] >= 0 else None for pair in pairs], pa.int64()))
        took = pc.subtract(given["ts_ns"], asked["ts_ns"])
        unfinished = pc.or_(*(part["unfinished"].fill_null(False) for part in (asked, given)))
        timed = pc.and_not(pc.greater_equal(took, 0), unfinished)
        same = pc.equal(asked["connection_id"], given["connection_id"])
        one = self._callers.are_one(asked["connection_id"].to_numpy(), given["connection_id"].fill_null(-1).to_numpy())
        over = self._over(asked, pairs)
        columns: dict[str, Any] = {
            name: asked[name] for name in ("correlation_id", "reply_to", "exchange", "routing_key")
        }
        for side, part in (("request", asked), ("answer", given)):
            columns |= {
                f"{side}_{name}": part[name] for name in ("connection_id", "frame_no", "capture", "packet", "ts_ns")
            }
        sure = pa.array(one & np.array([pair[2] for pair in pairs]))
        columns |= {
            "latency_ns": pc.if_else(pc.fill_null(timed, False), took, None),
            "evidence": pc.if_else(pc.is_valid(same), pc.if_else(sure, "proven", "possible"), None),
            "ended_by": pa.array([why for _, why in over], pa.string()),
            "end_ts_ns": pa.array([at for at, _ in over], pa.int64()),
        }
        yield "calls", conform("calls", columns, len(pairs))

    def _over(self, asked: pa.Table, pairs: list[tuple[int, int, bool, bool]]) -> list[tuple[int | None, str | None]]:
        """Return when and why the wait for answers ended that did not come."""
        found: list[tuple[int | None, str | None]] = [(None, "evicted" if pair[3] else None) for pair in pairs]
        lacks = np.array([number for number, pair in enumerate(pairs) if pair[1] < 0 and not pair[3]], np.int64)
        if not len(lacks):
            return found
        rows = asked.take(pa.array(lacks))
        direct = pc.starts_with(rows["reply_to"], DIRECT_REPLY).to_pylist()
        queues = [None if own else queue for own, queue in zip(direct, hashed(rows["reply_to"]).tolist(), strict=True)]
        connections = rows["connection_id"].to_pylist()
        places = self._callers.places(connections)
        since, channels = rows["at_ns"].to_pylist(), rows["channel"].to_pylist()
        whose = zip(lacks.tolist(), connections, places, queues, channels, since, strict=True)
        for number, *of in whose:
            found[number] = self._callers.end(*of)
        return found
