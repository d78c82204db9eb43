"""The credit of subscriptions to streams: what was granted, what deliveries used, and since when none is left.

A unit of credit is one chunk. A subscription begins with some; each delivery uses one, whatever it holds; the consumer
grants more (the broker reads the number as signed). `credit_accounts` has the states of a subscription.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.kernel import call
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model.connection import CONN
from amqpscope.pipelines.model.credit import AT_LEAST, NEVER, NONE, ST, SUB, WT
from amqpscope.pipelines.model.credit_waits import rows_of
from amqpscope.pipelines.model.events import CONNECTIONS, EV, Events
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.rows import Retained
from amqpscope.pipelines.model.speaking import matrix_of
from amqpscope.pipelines.model.stopped import DONE, NEEDS_OUTPUT_ROOM
from amqpscope.pipelines.model.walk import Needs, Rows, conform, known
from amqpscope.pipelines.stream import stream_deliveries as sd
from amqpscope.pipelines.stream import subscriptions as sb
from amqpscope.pipelines.stream.credit_accounts import CH, CHANGES, CLOSES, DELIVERED, KINDS, MORE, walk
from amqpscope.pipelines.stream.frames import STREAM_FRAMES
from amqpscope.pipelines.stream.streams import Servers, of_streams
from amqpscope.pipelines.stream.subscriptions import consumers

ROOM = 1 << 16
"""Rows of `changes` and of `waits`."""


class StreamCredit(Remembers):
    """Writes `stream_credit`: a row for each frame that changes credit; and `flow_control`: the waits for it.

    Besides, it yields the partial results of deliveries, under the name `stream_deliveries.PARTIAL`.

    Args:
        compiled: whether kernels run compiled.
    """

    tables = ("stream_credit", "flow_control")
    partial = (sd.PARTIAL,)
    needs: Mapping[int, Needs] = {
        CONNECTIONS: Needs(("rtt_ns", "server_ip")),
        # Frames of all commands: they show which directions were captured.
        STREAM_FRAMES: Needs(
            ("subscription_id", "credit", "correlation_id", "response_code", "stream", "properties", *sd.CHUNK)
        ),
    }  # fmt: skip
    VERSION = 5
    STATE = ("conn", "gaps", "state", "subscriptions", "retained", "servers")

    def __init__(self, compiled: bool = False) -> None:
        self.retained = Retained(STREAM_FRAMES, ("frame_no", "ts_ns", "capture", "packet", "stream", "properties"))
        room = ROOM if compiled else ROOM >> 8
        self.written = np.zeros((room, CH.WIDTH), np.int64), np.zeros((room, WT.WIDTH), np.int64)
        super().__init__(compiled)

    def forget(self) -> None:
        """See `Remembers`."""
        self.retained.drop()
        self.conn, self.gaps = cn.fresh()
        self.subscriptions = sb.fresh()
        self.state = np.zeros(ST.WIDTH, np.int64)
        self.state[[ST.WINDOW, ST.AGE]] = AT_LEAST, NEVER
        self.servers = Servers()

    def feed(self, events: Events) -> Iterator[Rows]:
        """See `walk.Walk`."""
        at = of_streams(events, self.conn)
        if not len(at):
            return
        matrix = matrix_of(events, at)
        self.retained.begin(events)
        self.servers.begin(events)
        more = self._more(events, at)
        self.gaps = cn.with_room(self.conn, self.gaps, events.lacking)
        self.state[ST.AT] = 0
        why = NEEDS_OUTPUT_ROOM
        while why != DONE:
            of = self.conn, self.gaps
            why = call(walk, self.compiled, matrix, more, *of, *self.subscriptions[:2], self.written, self.state)
            if why == CHANGES:
                i = int(self.state[ST.AT]) - 1
                call(sb.apply, False, matrix, more, i, *of, self.subscriptions, self.written, self.state)
                continue
            if why == CLOSES:
                yield from self._close(events)
                cn.open_connection(self.conn, int(matrix[self.state[ST.AT], EV.CONNECTION]))
                self.state[[ST.WINDOW, ST.AGE]] = AT_LEAST, NEVER
            yield from self._rows(events)
        self.retained.end(self._referred())
        self.servers.end(int(self.conn[CONN.ID]))

    def _more(self, events: Events, at: Ints) -> Ints:
        more = np.empty((len(at), MORE.WIDTH), np.int64)
        more[:, MORE.IDENTITY] = at + self.retained.base
        for column, of, missing in (
            (MORE.SUBSCRIPTION, {STREAM_FRAMES: "subscription_id"}, -1),
            (MORE.CREDIT, {STREAM_FRAMES: "credit"}, NONE),
            (MORE.CORRELATION, {STREAM_FRAMES: "correlation_id"}, -1),
            (MORE.CODE, {STREAM_FRAMES: "response_code"}, -1),
            (MORE.RTT, {CONNECTIONS: "rtt_ns"}, -1),
            (MORE.CHUNK, {STREAM_FRAMES: "chunk_timestamp"}, -1),
        ):  # fmt: skip
            more[:, column] = events.ints(of, missing)[at]
        return more

    def _referred(self) -> Ints:
        """Return the ids of frames that rows may still refer to."""
        rows, _, _, count = self.subscriptions
        columns = [SUB.EVENT, SUB.ASKED, SUB.SINCE, SUB.PROOF, SUB.RELEASED]
        closes = self.conn[[CONN.SERVER_CLOSE_EVENT, CONN.CLIENT_CLOSE_EVENT]]
        found: Ints = np.concatenate([rows[: count[0], columns].ravel(), closes])
        return found

    def finish(self) -> Iterator[Rows]:
        """See `walk.Walk`."""
        self.retained.close()
        yield from self._close(None)
        self.forget()

    def _close(self, events: Events | None) -> Iterator[Rows]:
        """End the subscriptions of the connection."""
        is_over = False
        while not is_over:
            is_over = call(sb.close, False, self.conn, self.gaps, self.subscriptions, self.written, self.state)
            yield from self._rows(events)

    def _rows(self, events: Events | None) -> Iterator[Rows]:
        """Yield what the kernel wrote, as rows; `events`: the batch that deliveries are in, None for none."""
        changes = self.written[0][: self.state[ST.CHANGES]]
        waits = self.written[1][: self.state[ST.WAITS]]
        self.state[ST.CHANGES] = self.state[ST.WAITS] = 0
        if len(changes):
            yield "stream_credit", self._changes(changes)
            delivers = changes[changes[:, CH.KIND] == DELIVERED]
            if events is not None and len(delivers) and len(rows := self._delivered(events, delivers)):
                yield sd.PARTIAL, rows
        if len(waits):
            ids = waits[:, WT.SUBSCRIPTION]
            whose = {"subscription_id": ids, "consumer_tag": pa.array(ids).cast(pa.string())}
            yield rows_of(waits, self.retained, "stream-credit", whose)

    def _changes(self, changes: Ints) -> pa.Table:
        frames = self.retained.get(changes[:, CH.EVENT])
        assert frames is not None
        certain = changes[:, CH.KNOWN] == 1
        columns = {
            "connection_id": changes[:, CH.CONNECTION],
            "subscription_id": changes[:, CH.SUBSCRIPTION],
            "subscription_epoch": changes[:, CH.EPOCH],
            "event": pa.array(KINDS).take(pa.array(changes[:, CH.KIND])),
            "credit": known(changes[:, CH.CREDIT], NONE),
            "granted": changes[:, CH.GRANTED],
            "used": changes[:, CH.USED],
            "balance": pa.array(changes[:, CH.GRANTED] - changes[:, CH.USED], mask=~certain),
            "zero_since_ts_ns": known(changes[:, CH.SINCE], NONE),
        }
        columns |= {name: frames[name] for name in ("frame_no", "capture", "packet", "ts_ns")}
        columns |= consumers(self.retained.get(changes[:, CH.BEGUN]), len(changes))
        return conform("stream_credit", columns, len(changes))

    def _delivered(self, events: Events, changes: Ints) -> pa.Table:
        """Return the partial results of deliveries."""
        names = ("connection_id", "subscription_id", "frame_no", "capture", "packet", "ts_ns", *sd.CHUNK)
        frames = events.take(STREAM_FRAMES, changes[:, CH.EVENT] - self.retained.base, names)
        of = consumers(self.retained.get(changes[:, CH.BEGUN]), len(changes))
        servers = self.servers.of(changes[:, CH.CONNECTION].tolist())
        return sd.delivered(frames, of, changes[:, CH.EPOCH], servers)
