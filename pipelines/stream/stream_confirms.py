"""Confirms of streams: each publishing id and the broker's answer to it.

`publishing` says how frames change outstanding ids. Whether the broker had an id already (`deduplicated`) is decided as
far as the connection alone shows: by what was sent before, its queries, and streams that it created (`publishers`).
Partial results leave the rest to `stored.verdicts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.kernel import call
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model.ends import COLUMNS, answers_of
from amqpscope.pipelines.model.event_rows import ACKED
from amqpscope.pipelines.model.events import CONNECTIONS, MESSAGES, Events
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.rows import Waiting
from amqpscope.pipelines.model.speaking import difference
from amqpscope.pipelines.model.stopped import DONE, NEEDS_OUTPUT_ROOM, WAITING_FULL
from amqpscope.pipelines.model.store import grown, release_arrays, steps
from amqpscope.pipelines.model.unanswered import ENDED_BY, GAP
from amqpscope.pipelines.model.walk import Needs, Rows, conform, known
from amqpscope.pipelines.stream import publishers as pb
from amqpscope.pipelines.stream import publishing_ids as pid
from amqpscope.pipelines.stream import stored, stream_deliveries
from amqpscope.pipelines.stream.frames import PROTOCOL, STREAM_FRAMES
from amqpscope.pipelines.stream.publications import publications
from amqpscope.pipelines.stream.publishing import (
    ACK,
    BEGINS,
    CLOSES,
    OUT,
    REQUESTS,
    ST,
    UNANSWERED,
    Outstanding,
    close,
    walk,
)
from amqpscope.pipelines.stream.publishing_ids import CT, WAIT
from amqpscope.pipelines.stream.streams import Servers, of_streams

LIMIT = 1 << 25
"""Outstanding publishing ids of one connection; beyond that the oldest are evicted."""
ROOM = 1 << 16
"""Rows that the kernel writes at a time."""
RELEASE = 2
"""Batches after which mapped files are released from memory: using their pages again has a cost."""
FIRST = 1 << 10
"""Publishing ids that there is room for at first."""
OUTCOMES = ("none", "ack", "nack")
DEDUPLICATED = (None, False, True, True)
"""Values for `publishers.UNKNOWN`, NO, YES, SENT_BEFORE."""


class StreamConfirms(Remembers):
    """Writes `confirms` of streams: a row for each publishing id and publisher, and for each time that it was sent.

    Besides, it yields partial results under the name `stored.PARTIAL`; and under `stream_deliveries.PARTIAL` the
    records that the broker certainly stored: those confirmed, and not deduplicated.

    Args:
        compiled: whether kernels run compiled.
        limit: outstanding publishing ids of one connection.
    """

    tables = ("confirms",)
    partial = (stored.PARTIAL, stream_deliveries.PARTIAL)
    needs: Mapping[int, Needs] = {
        CONNECTIONS: Needs(("server_ip",)),
        # Frames of all commands: they show which directions were captured.
        STREAM_FRAMES: Needs(
            (
                "publisher_id", "publishing_ids", "publishing_errors", "correlation_id", "stream",
                "publisher_reference", "response_code", "sequence",
            )
        ),
        MESSAGES: Needs(
            ("publisher_id", "publisher_epoch", "publisher_reference", "stream", "body_size", "message_id", "entry"),
            ("publish",),
            asks=("publish",),
        ),
    }  # fmt: skip
    _COLUMNS = (
        "connection_id", "publisher_id", "publish_seq", "publisher_epoch", "publisher_reference", "stream",
        "message_id", *COLUMNS, ACKED,
    )  # fmt: skip
    VERSION = 9
    STATE = ("conn", "gaps", "_sendings", "publishers", "state", "servers", "waiting")

    def __init__(self, compiled: bool = False, limit: int = LIMIT) -> None:
        self.compiled, self.limit = compiled, limit
        self.waiting = Waiting(MESSAGES, self._COLUMNS)
        self._calls = 0
        room = ROOM if compiled else ROOM >> 8
        self.out = np.zeros((room, OUT.WIDTH), np.int64)
        super().__init__(compiled)

    def forget(self) -> None:
        """See `Remembers`."""
        self.waiting.drop()
        self.servers = Servers()
        self._new: list[pa.Table] = []
        """Rows of `confirms` of this batch: records that were stored."""
        self.conn, self.gaps = cn.fresh()
        self._make_room(np.zeros((FIRST, WAIT.WIDTH), np.int64), np.zeros(CT.WIDTH, np.int64))
        self.publishers = pb.Publishers()
        self.state = np.zeros(ST.WIDTH, np.int64)
        self.state[ST.LISTED] = -1

    def _make_room(self, waiting: Any, counts: Any) -> None:
        """Drop ids that are no longer outstanding; half of the rows are free then."""
        kept = 0
        for first, end in steps(waiting):
            kept = call(pid.compact, self.compiled, waiting, counts, first, end, kept)
            release_arrays((waiting,))
        counts[[CT.LAST_FRAME, CT.FRESH]] = np.minimum(counts[[CT.LAST_FRAME, CT.FRESH]], kept)
        counts[CT.ROWS], counts[CT.OLDEST] = kept, 0
        if kept > len(waiting) // 2:
            waiting = grown(waiting, 2 * len(waiting))
        index = grown(np.zeros(0, np.int64), 1 << (2 * len(waiting) - 1).bit_length())
        for first, end in steps(waiting[:kept]):
            call(pid.build, self.compiled, waiting, index, first, end)
            release_arrays((waiting, index))
        self.ids = waiting, index, counts

    def feed(self, events: Events) -> Iterator[Rows]:
        """See `walk.Walk`."""
        at = of_streams(events, self.conn, publishes=True)
        if not len(at):
            return
        batch = publications(events, at, self.waiting.base)
        self.servers.begin(events)
        self.waiting.begin(events)
        self.state[[ST.AT, ST.LIMIT, ST.BASE, ST.REQUESTED]] = 0, self.limit, self.waiting.base, -1
        self.gaps = cn.with_room(self.conn, self.gaps, events.lacking)
        self.ids[2][CT.FRESH] = self.ids[2][CT.LAST_FRAME]
        why = NEEDS_OUTPUT_ROOM
        while why != DONE:
            why = call(walk, self.compiled, *batch, self._outstanding())
            i = int(self.state[ST.AT])
            if why == WAITING_FULL:
                self._make_room(self.ids[0], self.ids[2])
            elif why == CLOSES:
                self.publishers.close(self.conn)
                self.state[ST.OVER] = 1
            elif why == BEGINS:
                self.publishers.begin(batch.matrix[i].tolist(), batch.more[i].tolist(), self.conn)
            elif why == REQUESTS:
                self.publishers.request(batch.matrix[i].tolist(), batch.more[i].tolist())
                self.state[ST.REQUESTED] = i
            else:
                yield from self._rows(events)
        self.waiting.end(self._still())
        yield from self._stored()
        self.servers.end(int(self.conn[cn.CONN.ID]))

    def _outstanding(self) -> Outstanding:
        return Outstanding(
            self.conn, self.gaps, self.ids, self.publishers.arrays, self.out, self.state
        )  # fmt: skip

    def _still(self) -> Any:
        """Return the positions in the batch of messages that stay outstanding."""
        waiting, _, counts = self.ids
        fresh = waiting[counts[CT.FRESH] : counts[CT.ROWS]]
        fresh = np.flatnonzero(fresh[:, WAIT.OPENER] >= 0) + counts[CT.FRESH]
        openers, others = waiting[fresh, WAIT.OPENER], waiting[fresh, WAIT.OTHER]
        if (others >= 0).any():
            openers = self._named(openers, others)
            waiting[fresh, WAIT.OPENER], waiting[fresh, WAIT.OTHER] = openers, -1
        here = openers[openers >= self.waiting.base]
        return np.sort(here) - self.waiting.base

    def _named(self, openers: Any, others: Any) -> Any:
        """Return the ids of the messages that name sendings: of OPENER and OTHER the one with the lesser name."""
        several = np.flatnonzero(others >= 0)
        mine, theirs = openers[several], others[several]
        names = (self.waiting.get(each)["message_id"].to_pylist() for each in (mine, theirs))
        less = [b is not None and (a is None or b < a) for a, b in zip(*names, strict=True)]
        self.waiting.take(mine[less])
        openers = openers.copy()
        openers[several[less]] = theirs[less]
        return openers

    def finish(self) -> Iterator[Rows]:
        """See `walk.Walk`."""
        self.publishers.close(self.conn)
        while not call(close, self.compiled, self._outstanding()):
            yield from self._rows(None)
        yield from self._rows(None)
        self.waiting.base = 0
        self.forget()

    @property
    def _sendings(self) -> tuple[Any, Any]:
        waiting, _, counts = self.ids
        return waiting[: counts[CT.ROWS]], counts

    @_sendings.setter
    def _sendings(self, sendings: tuple[Any, Any]) -> None:
        waiting, counts = sendings
        self._make_room(grown(waiting, FIRST), counts)

    def _rows(self, events: Events | None) -> Iterator[Rows]:
        """Yield what the kernel wrote, as rows."""
        self._calls += 1
        if self._calls % RELEASE == 0:
            release_arrays(self.ids)
        if facts := self.publishers.facts:
            yield (
                stored.PARTIAL,
                pa.table([pa.array(column) for column in zip(*facts, strict=True)], schema=stored.SCHEMA),
            )
            facts.clear()
        count = int(self.state[ST.OUT])
        self.state[ST.OUT] = 0
        if count:
            out = self.out[:count]
            made = self._made(events, out)
            yield "confirms", made
            new = made.filter(pa.array((out[:, OUT.OUTCOME] == ACK) & (out[:, OUT.DEDUPLICATED] == pb.NO)))
            if len(new := new.filter(pc.is_valid(new["stream"]))):
                self._new.append(new)

    def _stored(self) -> Iterator[Rows]:
        """Yield partial results of `stream_deliveries` for new records: those published and confirmed together are one.

        A batch has all that one frame confirms.
        """
        if not self._new:
            return
        confirms, self._new = pa.concat_tables(self._new), []
        names = ["connection_id", "stream", "publish_ts_ns", "confirm_ts_ns", "confirm_frame_no"]
        sums = confirms.group_by(names, use_threads=False).aggregate([("records", "sum")])
        columns = {
            "connection_id": sums["connection_id"], "stream": sums["stream"], "records": sums["records_sum"],
            "ts_ns": sums["confirm_ts_ns"], "frame_no": sums["confirm_frame_no"], "sent_ts_ns": sums["publish_ts_ns"],
            "kind": pa.array([stream_deliveries.STORED] * len(sums), pa.int64()),
            "server_ip": self.servers.of(sums["connection_id"].to_pylist()),
        }  # fmt: skip
        yield stream_deliveries.PARTIAL, stream_deliveries.partial(columns, len(sums))

    def _made(self, events: Events | None, out: Any) -> pa.Table:
        """Return rows of `confirms` for rows of `out`."""
        openers = np.ascontiguousarray(out[:, OUT.OPENER])
        if (out[:, OUT.OTHER] >= 0).any():
            openers = self._named(openers, out[:, OUT.OTHER])
        rows = self.waiting.take(openers)
        columns: dict[str, Any] = {name: rows[name] for name in self._COLUMNS[:7]}
        columns |= {f"publish_{name}": rows[name] for name in COLUMNS} | {"request_acked_ts_ns": rows[ACKED]}
        answers = answers_of(events, out[:, OUT.ANSWER], 0, STREAM_FRAMES)
        columns |= {f"confirm_{name}": column for name, column in answers.items()}
        answered = out[:, OUT.OUTCOME] != UNANSWERED
        end_ts, by = out[:, OUT.END_TS], out[:, OUT.BY]
        begun = rows["ts_ns"].fill_null(0).to_numpy()
        end_ts = np.where((end_ts < 0) | ((by == GAP) & (end_ts < begun)), begun, end_ts)
        columns |= {
            "protocol": PROTOCOL,
            "records": out[:, OUT.RECORDS],
            "body_size": known(out[:, OUT.SIZE]),
            "outcome": pa.array(OUTCOMES).take(pa.array(out[:, OUT.OUTCOME])),
            "multiple": pa.array(out[:, OUT.MULTIPLE] == 1, mask=~answered),
            "returned": False,
            "reply_code": known(out[:, OUT.CODE]),
            "ended_by": pa.array(ENDED_BY, pa.string()).take(pa.array(by)),
            "end_ts_ns": pa.array(end_ts, mask=answered),
            "latency_ns": difference(answers["ts_ns"].cast(pa.int64()), rows["ts_ns"]),
            "deduplicated": pa.array(DEDUPLICATED, pa.bool_()).take(pa.array(out[:, OUT.DEDUPLICATED])),
        }
        return conform("confirms", columns, len(out))
