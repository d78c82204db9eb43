"""Calls: requests that name a queue for their answer (reply_to), and the answers, by correlation id.

A request is a publish with reply_to and correlation id; its answer is a delivery, from that queue, with the same
correlation id. It may come on another connection. Direct replies (RabbitMQ) have no queue: the client names
`amq.rabbitmq.reply-to`, to which the broker adds a name of its own, and the answer comes on the request's connection.

Where a client uses a correlation id again before the answer came, requests and answers pair in their order.

A walk over connections yields requests and answers (PARTS), and what ends the patience of a connection (ENDS). The walk
over keys pairs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.model.connection import GAPS, SERVER, is_gap
from amqpscope.pipelines.model.digests import DIRECT_REPLY, combined, hashed
from amqpscope.pipelines.model.ends import OPEN_NS
from amqpscope.pipelines.model.events import ANOMALIES, CONNECTIONS, EV, MESSAGES, Events, what
from amqpscope.pipelines.model.stateless import Stateless
from amqpscope.pipelines.model.walk import Needs, Rows, conform

CALLS, ENDS = "requests and answers", "ends of callers"
PARTS = pa.schema(
    [
        *((name, pa.int64()) for name in ("key", "at_ns", "connection_id", "frame_no", "packet", "ts_ns")),
        *((name, pa.string()) for name in ("capture", "correlation_id", "reply_to", "exchange", "routing_key")),
        ("is_answer", pa.bool_()),
        ("unfinished", pa.bool_()),
    ]
)
"""Requests and answers; `key` is the digest of correlation id, queue and, for direct replies, connection; `at_ns` is
`ts_ns`, 0 where that is null."""
ORDER = ("key", "at_ns", "is_answer", "connection_id", "frame_no")
WHEN = pa.schema([("connection_id", pa.int64()), ("at_ns", pa.int64()), ("ended_by", pa.string())])
"""When a connection ended, and when bytes of its server may be missing (ended_by gap)."""
ENDED_BY = ("capture-end", "connection-close", "evicted")
"""By EV.MULTIPLE of a connection."""
OUTSTANDING = 10_000
"""Requests of one key that wait for an answer; of more, the oldest is evicted."""
_ASKED = ("exchange", "routing_key", "correlation_id", "reply_to", "capture", "packet", "ts_ns", "unfinished")
_PUBLISH = what(MESSAGES, "publish")
_GIVEN = [what(MESSAGES, kind) for kind in ("deliver", "get")]
_LACKS = [word for code in GAPS if is_gap(word := what(ANOMALIES, code))]


class CallParts(Stateless):
    """The walk over connections that yields PARTS and WHEN."""

    tables = ()
    partial = (CALLS, ENDS)
    needs: ClassVar[Mapping[int, Needs]] = {
        CONNECTIONS: Needs(), ANOMALIES: Needs((), GAPS),
        MESSAGES: Needs(_ASKED[:4], ("publish", "deliver", "get")),
    }  # fmt: skip

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; yield its requests, answers and ends."""
        matrix = events.matrix
        ends = np.flatnonzero(events.source == CONNECTIONS)
        gaps = np.flatnonzero(events.among(_LACKS) & (matrix[:, EV.FROM_CLIENT] == SERVER))
        if len(ends) or len(gaps):
            closed = np.maximum(matrix[ends, EV.MULTIPLE], 0)
            times = np.where(
                (closed == 1) & (matrix[ends, EV.NUMBER] >= 0), matrix[ends, EV.NUMBER], matrix[ends, EV.TS]
            )
            why = [*(ENDED_BY[each] for each in closed.tolist()), *["gap"] * len(gaps)]
            at = np.append(matrix[ends, EV.CONNECTION], matrix[gaps, EV.CONNECTION])
            yield ENDS, pa.table([at, np.append(times, matrix[gaps, EV.TS]), pa.array(why, pa.string())], schema=WHEN)
        yield from self._parts(events, np.flatnonzero(events.among([_PUBLISH, *_GIVEN])))

    def _parts(self, events: Events, at: Any) -> Iterator[Rows]:
        if not len(at):
            return
        rows = events.take(MESSAGES, at, (*_ASKED, "connection_id", "frame_no"))
        asks = pa.array(events.matrix[at, EV.WHAT] == _PUBLISH)
        named = pc.fill_null(pc.not_equal(rows["correlation_id"], ""), False)
        # An answer goes through the default exchange, by the name of its queue.
        replies = pc.if_else(
            asks, pc.fill_null(pc.not_equal(rows["reply_to"], ""), False), pc.equal(rows["exchange"], "")
        )
        some = pc.and_(named, pc.and_(pc.fill_null(replies, False), pc.is_valid(rows["exchange"])))
        if not pc.any(some).as_py():
            return
        rows, asks = rows.filter(some), asks.filter(some.combine_chunks())
        queue = pc.if_else(asks, rows["reply_to"], rows["routing_key"])
        direct = pc.starts_with(queue, DIRECT_REPLY)
        queue = pc.if_else(direct, DIRECT_REPLY, queue)
        own = pc.if_else(direct, rows["connection_id"], 0)
        key = combined(
            [hashed(rows["correlation_id"], self.compiled), hashed(queue, self.compiled), own], self.compiled
        )
        columns = {name: rows[name] for name in PARTS.names if name in rows.column_names}
        columns |= {"key": pa.array(key), "at_ns": rows["ts_ns"].fill_null(0), "is_answer": pc.invert(asks)}
        yield CALLS, pa.table([columns[name] for name in PARTS.names], schema=PARTS)


class Calls:
    """The walk over PARTS in ORDER that writes `calls`.

    Args:
        ends: rows of WHEN.
    """

    tables = ("calls",)

    def __init__(self, ends: pa.Table | None = None) -> None:
        rows = (ends if ends is not None else WHEN.empty_table()).sort_by("at_ns").to_pydict()
        self._ends: dict[int, tuple[int, str]] = {}
        self._gaps: dict[int, list[int]] = {}
        for connection, at_ns, why in zip(*rows.values(), strict=True):
            if why == "gap":
                self._gaps.setdefault(connection, []).append(at_ns)
            else:
                self._ends.setdefault(connection, (at_ns, why))  # of a connection that goes on, a later row has its end
        self._held = PARTS.empty_table()
        """Requests of the last key that wait."""
        self._used = False
        """Whether its correlation id was used again while one waited, since none did."""

    def feed(self, rows: pa.Table) -> Iterator[Rows]:
        """Walk over a batch; yield the calls that are over."""
        held = len(self._held)
        rows = pa.concat_tables([self._held, rows]).combine_chunks()
        keys, answers = rows["key"].to_numpy(), rows["is_answer"].to_numpy(zero_copy_only=False)
        pairs: list[tuple[int, int, bool, bool]] = []
        waiting: list[int] = []
        borders = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)] if len(keys) else []
        for first, end in pairwise(borders):
            used = self._used if first == 0 and held else False
            waiting, used = self._pair(range(first, end), answers, pairs, used)
            if end < len(keys):
                pairs += [(row, -1, True, False) for row in waiting]
            self._used = used
        self._held = rows.take(pa.array(waiting, pa.int64()))
        yield from self._rows(rows, pairs)

    def _pair(
        self, some: range, answers: Any, pairs: list[tuple[int, int, bool, bool]], used: bool
    ) -> tuple[list[int], bool]:
        """Pair the rows of a key; return requests that wait, and whether several did since none waited."""
        waiting: list[int] = []
        for row in some:
            if not answers[row]:
                used |= len(waiting) > 0
                waiting.append(row)
                if len(waiting) > OUTSTANDING:
                    pairs.append((waiting.pop(0), -1, False, True))
            elif waiting:
                pairs.append((waiting.pop(0), row, not used, False))
                used = used and bool(waiting)
        return waiting, used

    def finish(self) -> Iterator[Rows]:
        """Yield the requests that wait, and reset the walk."""
        rows, self._held, self._used = self._held, PARTS.empty_table(), False
        yield from self._rows(rows, [(row, -1, True, False) for row in range(len(rows))])

    def _rows(self, rows: pa.Table, pairs: list[tuple[int, int, bool, bool]]) -> Iterator[Rows]:
        if not pairs:
            return
        asked = rows.take(pa.array([pair[0] for pair in pairs]))
        given = rows.take(pa.array([pair[1] if pair[1] >= 0 else None for pair in pairs], pa.int64()))
        took = pc.subtract(given["ts_ns"], asked["ts_ns"])
        unfinished = pc.or_(*(part["unfinished"].fill_null(False) for part in (asked, given)))
        timed = pc.and_not(pc.greater_equal(took, 0), unfinished)
        over = [
            (None, None) if pair[1] >= 0 else self._end(connection, ts_ns, pair[3])
            for pair, connection, ts_ns in zip(
                pairs, asked["connection_id"].to_pylist(), asked["at_ns"].to_pylist(), strict=True
            )
        ]
        same = pc.equal(asked["connection_id"], given["connection_id"])
        columns: dict[str, Any] = {
            name: asked[name] for name in ("correlation_id", "reply_to", "exchange", "routing_key")
        }
        for side, part in (("request", asked), ("answer", given)):
            columns |= {
                f"{side}_{name}": part[name] for name in ("connection_id", "frame_no", "capture", "packet", "ts_ns")
            }
        sure = pa.array([pair[2] for pair in pairs])
        columns |= {
            "latency_ns": pc.if_else(pc.fill_null(timed, False), took, None),
            "evidence": pc.if_else(pc.is_valid(same), pc.if_else(sure, "proven", "possible"), None),
            "ended_by": pa.array([why for _, why in over], pa.string()),
            "end_ts_ns": pa.array([at for at, _ in over], pa.int64()),
        }
        yield "calls", conform("calls", columns, len(pairs))

    def _end(self, connection: int, since_ns: int, evicted: bool) -> tuple[int | None, str]:
        """Return when the wait for an answer ended, and why."""
        if evicted:
            return None, "evicted"
        gap = next((at for at in self._gaps.get(connection, ()) if at >= since_ns), None)
        at_ns, why = self._ends.get(connection, (None, "capture-end"))
        if gap is not None:
            return gap, "gap"
        return (None, "evicted") if at_ns == OPEN_NS else (at_ns, why)  # the connection goes on, and patience is over
