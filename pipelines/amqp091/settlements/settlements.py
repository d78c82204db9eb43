"""Writes `settlements`, and the waits for prefetch windows in `flow_control`; the rules are in `deliveries`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.kernel import call
from amqpscope.pipelines.amqp091.frames import FRAMES, PROTOCOL
from amqpscope.pipelines.amqp091.settlements import consumers as co
from amqpscope.pipelines.amqp091.settlements import delivered as dv
from amqpscope.pipelines.amqp091.settlements import deliveries as dl
from amqpscope.pipelines.amqp091.settlements import prefetch as pf
from amqpscope.pipelines.amqp091.settlements import settling
from amqpscope.pipelines.amqp091.settlements import transactions as tx
from amqpscope.pipelines.amqp091.settlements.delivered import MORE, OUT
from amqpscope.pipelines.amqp091.settlements.prefetch import WAIT
from amqpscope.pipelines.model import channels as ch
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model import outstanding as lg
from amqpscope.pipelines.model.connection import CONN
from amqpscope.pipelines.model.digests import hashed
from amqpscope.pipelines.model.ends import COLUMNS, ended, latency
from amqpscope.pipelines.model.event_rows import ACKED
from amqpscope.pipelines.model.events import CONNECTIONS, EV, MESSAGES, Events, what
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.rows import Waiting
from amqpscope.pipelines.model.stopped import DONE, NEEDS_ACCOUNTS, NEEDS_ACTS, NEEDS_OUTPUT_ROOM, NEEDS_PAGES, ST
from amqpscope.pipelines.model.store import grown, release_arrays
from amqpscope.pipelines.model.unanswered import ROLLBACK
from amqpscope.pipelines.model.walk import Needs, Rows, conform

LIMIT = 1 << 26
"""Outstanding deliveries of one connection; further ones are evicted at once."""
OUTCOMES = ("none", "ack", "nack", "reject", "auto", "unknown")
UNKNOWN = OUTCOMES.index("unknown")
ROOM = 1 << 16
LONGEST = 1 << 60
"""Round trips (ns) are clamped to this, so that twice as much still fits."""

_METHODS = (
    *(
        f"basic.{name}"
        for name in (
            "ack", "nack", "reject", "consume", "consume-ok", "cancel", "cancel-ok", "get", "get-ok", "get-empty",
            "qos", "recover", "recover-ok", "recover-async",
        )
    ),
    "queue.declare-ok", "channel.open-ok", "channel.close", "channel.close-ok", "connection.close", "confirm.select",
    *(f"tx.{name}" for name in ("select", "commit", "commit-ok", "rollback", "rollback-ok")),
)  # fmt: skip
_TAGGED = [what(FRAMES, f"basic.{name}") for name in ("consume", "consume-ok", "cancel", "cancel-ok")]
_DELIVER = what(MESSAGES, "deliver")
_WITH_MORE = [what(CONNECTIONS), _DELIVER, what(MESSAGES, "get"), *(what(FRAMES, name) for name in _METHODS)]
_QUEUED = [what(FRAMES, name) for name in ("basic.consume", "basic.get", "queue.declare-ok")]
"""Frames that name a queue."""
_LIMITS = what(FRAMES, "basic.qos")


class Settlements(Remembers):
    """Writes `settlements`, a row for each delivery, and rows of `flow_control` for full prefetch windows.

    Args:
        compiled: whether kernels run compiled.
        limit: outstanding deliveries of one connection.
    """

    tables = ("settlements", "flow_control")
    needs: Mapping[int, Needs] = {
        CONNECTIONS: Needs(("rtt_ns",)),
        FRAMES: Needs(("queue", "consumer_tag", "requeue", "prefetch_count", "global"), _METHODS),
        MESSAGES: Needs(
            ("consumer_tag", "exchange", "routing_key", "redelivered", "body_size", "no_ack", "cut_by"),
            ("deliver", "get"),
            asks=("deliver", "get"),
        ),
    }
    _COLUMNS = (
        "connection_id", "channel", "channel_epoch", "number", "kind", "consumer_tag", "exchange", "routing_key",
        "redelivered", "body_size", "no_ack", "ts_ns", "frame_no", "capture", "packet", "unfinished", "cut_by", ACKED,
    )  # fmt: skip
    VERSION = 8
    _STORES = ("deliveries", "answers", "queues", "filled", "turned")
    STATE = ("conn", "gaps", "channels", "ledger", "consumers", "transactions", "prefetch", "opened", *_STORES)
    FORMS: ClassVar = {"channels": (ch.cut, ch.whole)}

    def __init__(self, compiled: bool = False, limit: int = LIMIT) -> None:
        self.limit = limit
        self.deliveries = Waiting(MESSAGES, self._COLUMNS)
        self.answers = Waiting(FRAMES, COLUMNS)
        self.queues = Waiting(FRAMES, ("queue",))
        self.filled = Waiting(MESSAGES, (*COLUMNS, "consumer_tag"))
        self.turned = Waiting(FRAMES, COLUMNS)
        self.stores = tuple(getattr(self, name) for name in self._STORES)
        self.out = np.zeros((ROOM if compiled else ROOM >> 8, OUT.WIDTH), np.int64)
        super().__init__(compiled)

    def forget(self) -> None:
        """See `Remembers`."""
        for store in self.stores:
            store.drop()
        self.conn, self.gaps = cn.fresh()
        self.channels, self.ledger = ch.fresh(), lg.fresh()
        self.consumers, self.transactions, self.prefetch = co.fresh(), tx.fresh(), pf.fresh()
        self.state = np.zeros(ST.WIDTH, np.int64)
        self.opened = 0  # id of the first event of the open connection

    @property
    def _book(self) -> dv.Book:
        return self.conn, self.gaps, self.channels, self.ledger

    @property
    def _own(self) -> dv.Own:
        return self.consumers, self.transactions, self.prefetch

    @property
    def _result(self) -> dv.Result:
        return self.out, self.state

    def feed(self, events: Events) -> Iterator[Rows]:
        """See `walk.Walk`."""
        matrix, more = events.matrix, self._more(events)
        for store in self.stores:
            store.begin(events)
        base, before = self.deliveries.base, int(self.conn[CONN.ID])
        self.state[ST.AT], self.state[ST.BASE], self.state[ST.LIMIT] = 0, base, self.limit
        self.gaps = cn.with_room(self.conn, self.gaps, events.lacking)
        accounts, table, own, counts = self.channels
        self.channels = accounts, table, grown(own, int(counts[1]) + events.lacking), counts
        self._make_room(_count(events.among((*_TAGGED, *_QUEUED))), len(events))
        why = NEEDS_OUTPUT_ROOM
        while why != DONE:
            why = call(dl.walk, self.compiled, matrix, more, self._book, self._own, self._result)
            yield from self._rows(events)
            if why == NEEDS_PAGES:
                self.ledger = lg.roomy(self.ledger, 2 * len(self.ledger[0]), self.compiled)
            elif why == NEEDS_ACTS:
                work, acts, asked, counts = self.transactions
                self.transactions = work, grown(acts, 2 * len(acts)), asked, counts
            elif why == NEEDS_ACCOUNTS:
                accounts, table, own, counts = self.channels
                self.channels = grown(accounts, 2 * len(accounts), -1), table, own, counts
            self._make_room(0, 0)
        still = np.zeros((len(events), 3), np.uint8)
        first = call(dl.mark, self.compiled, matrix, self._book, self._own, self.state, still)
        if self.conn[CONN.ID] != before:
            self.opened = base + int(np.argmax(matrix[:, EV.CONNECTION] == self.conn[CONN.ID]))
        self._end(events, still, first)

    def _make_room(self, requests: int, asked: int) -> None:
        accounts = len(self.channels[0])
        self.consumers = co.roomy(self.consumers, accounts, requests, self.compiled)
        self.transactions = tx.roomy(self.transactions, accounts, asked)
        windows, waits, counts = self.prefetch
        most = max(len(self.consumers[0]), accounts)
        self.prefetch = grown(windows, 2 * most), grown(waits, 4 * most + 64), counts

    def _end(self, events: Events, still: Any, first: int) -> None:
        """End the batch: store what is still needed of it, and of earlier ones."""
        matrix, source = events.matrix, events.source
        self.deliveries.end(np.flatnonzero(still[:, dl.DELIVERY]))
        self.answers.end(np.flatnonzero(still[:, dl.ANSWER]))
        self.answers.forget(first)
        named_ = events.among(_QUEUED) & (matrix[:, EV.CONNECTION] == self.conn[CONN.ID])
        self.queues.end(np.flatnonzero(named_))
        turning = still[:, dl.WINDOW] > 0
        self.filled.end(np.flatnonzero(turning & (source == MESSAGES)))
        self.turned.end(np.flatnonzero(turning & (source == FRAMES)))
        for store in (self.queues, self.filled, self.turned):
            store.forget(self.opened)

    def finish(self) -> Iterator[Rows]:
        """See `walk.Walk`."""
        self._make_room(0, 0)
        while not call(settling.close, self.compiled, self._book, self._own, self._result):
            yield from self._rows(None)
        yield from self._rows(None)
        self.forget()

    def _more(self, events: Events) -> Any:
        """Return columns of MORE per event; most events have none that is looked at."""
        more = np.full((len(events), MORE.WIDTH), -1, np.int64)
        at = np.flatnonzero(events.among(_WITH_MORE))
        more[at] = self._more_of(events.only(at))
        return more

    def _more_of(self, events: Events) -> Any:
        more = np.empty((len(events), MORE.WIDTH), np.int64)
        more[:, MORE.UNNAMED] = -1
        more[:, MORE.NO_ACK] = events.ints({MESSAGES: "no_ack"})
        more[:, MORE.REQUEUE] = events.ints({FRAMES: "requeue"})
        limits = events.ints({FRAMES: "prefetch_count", CONNECTIONS: "rtt_ns"})
        more[:, MORE.LIMIT] = np.minimum(limits, LONGEST)
        more[:, MORE.WHOLE] = events.ints({FRAMES: "global"})
        more[:, MORE.TAG] = 0
        for source, words in ((FRAMES, _TAGGED), (MESSAGES, [_DELIVER])):
            at = np.flatnonzero(events.among(words))
            if len(at):
                tags = events.take(source, at, ("consumer_tag",))["consumer_tag"]
                # A consumer has many deliveries: each tag of a chunk is hashed once.
                more[at, MORE.TAG] = hashed(_not_empty(tags).dictionary_encode(), self.compiled)
        at = np.flatnonzero(events.among(_QUEUED))
        if len(at):
            empty = pc.equal(events.take(FRAMES, at, ("queue",))["queue"], "").fill_null(False)
            more[at, MORE.UNNAMED] = empty.cast(pa.int64()).to_numpy()
        return more

    def _rows(self, events: Events | None) -> Iterator[Rows]:
        release_arrays(self.ledger)
        if count := int(self.state[ST.OUT]):
            self.state[ST.OUT] = 0
            yield "settlements", self._settled(self.out[:count].copy(), events)
        if count := int(self.prefetch[2][pf.WAITS]):
            self.prefetch[2][pf.WAITS] = 0
            yield "flow_control", self._waits(self.prefetch[1][:count])

    def _settled(self, out: Any, events: Events | None) -> pa.Table:
        rows = self.deliveries.take(out[:, OUT.ROW])
        answers = self.answers.chosen(out[:, OUT.ANSWER])
        queues = self.queues.chosen(out[:, OUT.QUEUE])
        outcome = out[:, OUT.OUTCOME].copy()
        unsure = rows["no_ack"].is_null().to_numpy() & (out[:, OUT.BY] != ROLLBACK)
        outcome[(outcome == dv.NONE) & unsure] = UNKNOWN
        sent = rows["ts_ns"].fill_null(0).to_numpy()
        timed = (out[:, OUT.ANSWER] >= 0) & ~rows["unfinished"].fill_null(False).to_numpy()
        copied = ("connection_id", "channel", "channel_epoch", "kind", "consumer_tag", "exchange", "routing_key")
        return conform(
            "settlements",
            {name: rows[name] for name in (*copied, "redelivered", "body_size")}
            | {f"deliver_{name}": rows[name] for name in COLUMNS}
            | {f"settle_{name}": answers[name] for name in COLUMNS}
            | ended(out[:, OUT.BY], out[:, OUT.END_TS], sent, rows["cut_by"])
            | {
                "protocol": PROTOCOL,
                "delivery_tag": rows["number"],
                "queue": queues["queue"],
                "outcome": pa.array(OUTCOMES).take(pa.array(outcome)),
                "multiple": _flag(out[:, OUT.MULTIPLE]),
                "requeue": _flag(out[:, OUT.REQUEUE]),
                "latency_ns": latency(sent, answers["ts_ns"], timed),
                "request_acked_ts_ns": rows[ACKED],
            },
            len(out),
        )

    def _waits(self, waits: Any) -> pa.Table:
        start, end = waits[:, WAIT.START], waits[:, WAIT.END]
        begun = _either(self.filled, self.turned, start)
        over = self.turned.chosen(end)
        since, until = begun["ts_ns"].fill_null(0).to_numpy(), waits[:, WAIT.END_TS]
        seen = waits[:, WAIT.SEEN] == 1
        one = waits[:, WAIT.WHOLE] != 1
        return conform(
            "flow_control",
            {f"start_{name}": begun[name] for name in COLUMNS}
            | {f"end_{name}": over[name] for name in ("frame_no", "capture", "packet")}
            | {
                "connection_id": waits[:, WAIT.CONNECTION],
                "channel": waits[:, WAIT.CHANNEL],
                "channel_epoch": waits[:, WAIT.EPOCH],
                "consumer_tag": pc.if_else(pa.array(one), begun["consumer_tag"], None),
                "cause": "prefetch",
                "end_ts_ns": pa.array(until, mask=~seen),
                "duration_ns": latency(since, pa.chunked_array([until]), until >= np.maximum(since, 0)),
                "side": "client",
                "evidence": pa.array(["possible", "proven"]).take(pa.array(waits[:, WAIT.PROVEN])),
            },
            len(waits),
        )


def _count(flags: Any) -> int:
    return int(np.count_nonzero(flags))


def _not_empty(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.equal(values, ""), None, values)


def _flag(values: Any) -> pa.Array:
    return pa.array(values == 1, mask=values < 0)


def _either(messages: Waiting, frames: Waiting, ids: Any) -> pa.Table:
    """Return rows by id, of which some are of messages, the others of frames; these have no consumer_tag."""
    of_message = messages.has(ids)
    found = messages.get(ids[of_message])
    others = frames.get(ids[~of_message])
    others = others.append_column("consumer_tag", pa.nulls(len(others), pa.string()))
    order = np.empty(len(ids), np.int64)
    order[np.concatenate([np.flatnonzero(of_message), np.flatnonzero(~of_message)])] = np.arange(len(ids))
    return pa.concat_tables([found, others.select(found.column_names)], promote_options="permissive").take(
        pa.array(order)
    )
