"""Confirms, settlements and requests of AMQP 0-10: writes the tables from what `command_walk` finds.

A command has one row, also where it is sent again after its session was attached anew; on another connection that is
another row. What may go on on another connection comes as rows of `session_joins`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.kernel import call
from amqpscope.pipelines.walks import connection as cn
from amqpscope.pipelines.walks import ledger as lg
from amqpscope.pipelines.walks.amqp010 import session_joins as sj
from amqpscope.pipelines.walks.amqp010 import sessions as ss
from amqpscope.pipelines.walks.amqp010.command_batches import (
    FRAME_COLUMNS,
    KINDS,
    METHODS,
    SCOPE,
    Queues,
    batch_of,
    statuses,
)
from amqpscope.pipelines.walks.amqp010.command_ends import close
from amqpscope.pipelines.walks.amqp010.command_walk import walk
from amqpscope.pipelines.walks.amqp010.commands import (
    DONE,
    ERROR,
    MORE,
    NACK,
    OUT,
    OUTCOMES,
    PUBLISH,
    QUIET,
    REFUSED,
    REPORTED,
    REQUEST,
    SILENT,
    SPENT_OUT,
    SPENT_PAGES,
    ST,
    Outstanding,
    queue_of,
)  # fmt: skip
from amqpscope.pipelines.walks.ends import COLUMNS, answers_of, ended, latency
from amqpscope.pipelines.walks.events import CONNECTIONS, FRAMES_010, MESSAGES, SPOKEN, Events, what
from amqpscope.pipelines.walks.ledger import SL
from amqpscope.pipelines.walks.rows import Waiting
from amqpscope.pipelines.walks.speaking import events_of
from amqpscope.pipelines.walks.store import group, named, pack, release_arrays, unpack
from amqpscope.pipelines.walks.walk import Needs, Rows, conform, known

PROTOCOL = SPOKEN[FRAMES_010]
LIMIT = 1 << 25
"""Outstanding commands of one connection; further ones are evicted at once."""
ROOM = 1 << 16
"""Rows that the kernel writes at a time."""
_MESSAGE = (
    "connection_id", "channel", "channel_epoch", "number", "kind", "consumer_tag", "exchange", "routing_key",
    "message_id", "body_size", "redelivered", "unfinished", "publish_seq", *COLUMNS,
)  # fmt: skip
_FRAME = ("connection_id", "channel", "channel_epoch", "from_client", "method", "command_id", "queue", *COLUMNS)
_ANSWER = (*COLUMNS, "connection_id", "method", "text", "description", "value")
_FAILED = range(1, 7)
"""Statuses of dtx that do not mean success; that does xa-ok, 0, and xa-rdonly, 7."""
_WORDS = tuple(what(MESSAGES, kind) for kind in KINDS)
_REJECT, _UNROUTABLE = "message.reject", 1


class SessionStatistics:
    """Writes `confirms`, `settlements` and `rpcs` of AMQP 0-10: a row for each command that is answered by its number.

    Args:
        compiled: whether kernels run compiled.
        limit: outstanding commands of one connection.
    """

    tables = ("confirms", "settlements", "rpcs")
    partial = tuple(sj.JOINED.values())
    needs: Mapping[int, Needs] = {
        CONNECTIONS: Needs(SCOPE),
        FRAMES_010: Needs(FRAME_COLUMNS, METHODS),
        MESSAGES: Needs(
            (
                "session", "exchange", "routing_key", "message_id", "body_size", "consumer_tag", "redelivered",
                "accept_mode", "acquire_mode",
            ),
            KINDS,
        ),
    }  # fmt: skip
    VERSION = 2

    def __init__(self, compiled: bool = False, limit: int = LIMIT) -> None:
        self.compiled = compiled
        self.limit = limit
        self.messages, self.frames = Waiting(MESSAGES, _MESSAGE), Waiting(FRAMES_010, _FRAME)
        room = ROOM if compiled else ROOM >> 8
        self.out, self.reported = np.zeros((room, len(OUT)), np.int64), np.zeros((room, len(REPORTED)), np.int64)
        self._reset()

    def _reset(self) -> None:
        self.conn, self.gaps = cn.fresh()
        self.sessions, self.ledger = ss.fresh(), lg.fresh()
        self.queues = Queues()
        self.state = np.zeros(len(ST), np.int64)
        self.state[ST.SEVERAL] = -1

    @property
    def _outstanding(self) -> Outstanding:
        """What kernels take."""
        return Outstanding(self.conn, self.gaps, self.sessions, self.ledger, self.out, self.reported, self.state)

    def feed(self, events: Events) -> Iterator[Rows]:
        """See `walk.Walk`."""
        transfers = events.among(_WORDS) if MESSAGES in events.tables else None
        at = events_of(events, self.conn, FRAMES_010, transfers)
        if not len(at):
            return
        for waiting in (self.messages, self.frames):
            waiting.begin(events)
        batch = batch_of(events, at, self.messages.base, self.queues)
        _, more, _ = batch
        self.sessions = ss.roomy(self.sessions, len(np.unique(more[:, MORE.SESSION])))
        self.gaps = cn.with_room(self.conn, self.gaps, events.lacking)
        self.state[ST.AT], self.state[ST.LIMIT] = 0, self.limit
        why = SPENT_OUT
        while why != DONE:
            why = call(walk, self.compiled, batch, self._outstanding)
            if why == SPENT_PAGES:
                self.ledger = lg.roomy(self.ledger, 2 * len(self.ledger[0]), self.compiled)
            else:
                yield from self._rows(events)
        slot = more[:, MORE.SLOT]
        still = np.flatnonzero(slot >= 0)
        still = at[still[self.ledger[1][slot[still], SL.ROW] == more[still, MORE.IDENTITY]]]
        for waiting in (self.messages, self.frames):
            waiting.end(still[events.source[still] == waiting.source])
        self.queues.names.prune(self.queues.queues, queue_of(self.ledger[1][:, SL.EXTRA]))

    def finish(self) -> Iterator[Rows]:
        """See `walk.Walk`."""
        while not call(close, self.compiled, self._outstanding):
            yield from self._rows(None)
        yield from self._rows(None)
        for waiting in (self.messages, self.frames):
            waiting.drop()
            waiting.base = 0
        self._reset()

    def take_out(self) -> bytes:
        """See `walk.Walk`."""
        parts: dict[str, Any] = {
            "conn": self.conn, "gaps": self.gaps, "base": self.messages.base, "state": self.state,
            "keys": self.queues.keys, "queues": self.queues.queues, "names": self.queues.names.table(),
        }  # fmt: skip
        parts |= named("sessions", ss.parts(self.sessions)) | named("ledger", self.ledger)
        for name, waiting in (("messages", self.messages), ("frames", self.frames)):
            if (rows := waiting.table()) is not None:
                parts[name] = rows
            waiting.drop()
        self._reset()
        return pack("session_statistics", self.VERSION, parts)

    def put_back(self, state: bytes) -> None:
        """See `walk.Walk`."""
        parts = unpack("session_statistics", self.VERSION, state)
        self.conn, self.gaps, self.state = parts["conn"], parts["gaps"], parts["state"]
        self.sessions, self.ledger = ss.whole(group(parts, "sessions")), group(parts, "ledger")
        self.queues.keys, self.queues.queues = parts["keys"], parts["queues"]
        self.queues.names.put_back(parts["names"])
        self.messages.put_back(parts.get("messages"), parts["base"])
        self.frames.put_back(parts.get("frames"), parts["base"])

    def _rows(self, events: Events | None) -> Iterator[Rows]:
        """Yield what the kernel wrote, as rows."""
        release_arrays(self.ledger)
        out, reported = self.out[: self.state[ST.OUT]], self.reported[: self.state[ST.REPORTED]]
        self.state[ST.OUT] = self.state[ST.REPORTED] = 0
        if len(reported):
            columns = {name: reported[:, number] for number, name in enumerate(REPORTED._fields)}
            yield from sj.answers(
                columns, answers_of(events, reported[:, REPORTED.ANSWER], self.frames.base, _ANSWER, FRAMES_010)
            )
        kind = out[:, OUT.KIND]
        silent = out[:, OUT.OUTCOME] == SILENT
        if silent.any():
            self.messages.take(out[silent, OUT.ROW])
        publishes = (kind == PUBLISH) | (kind == QUIET)
        for table, mine, made in (
            ("confirms", publishes & ~silent, self._confirms),
            ("settlements", ~publishes & (kind < REQUEST), self._settlements),
            ("rpcs", kind >= REQUEST, self._requests),
        ):
            if mine.any():
                some = out[mine]
                rows, numbers = made(
                    some, answers_of(events, some[:, OUT.ANSWER], self.frames.base, _ANSWER, FRAMES_010)
                )
                yield from sj.parted(table, rows, some[:, OUT.SESSION], numbers)

    def _confirms(self, out: Any, answers: Any) -> tuple[pa.Table, Any]:
        rows = self.messages.take(out[:, OUT.ROW])
        sent = rows["ts_ns"].fill_null(0).to_numpy()
        refused = pa.array(out[:, OUT.OUTCOME] == NACK)
        code = pc.if_else(refused, known(out[:, OUT.CODE]), None)
        unroutable = pc.and_(pc.equal(answers["method"], _REJECT), pc.equal(code, _UNROUTABLE))
        names = ("connection_id", "channel", "channel_epoch", "exchange", "routing_key", "message_id", "body_size")
        columns = {
            **{name: rows[name] for name in names},
            **{f"publish_{name}": rows[name] for name in COLUMNS},
            **{f"confirm_{name}": answers[name] for name in COLUMNS},
            **ended(out[:, OUT.BY], out[:, OUT.END_TS], sent),
            "publish_seq": rows["number"],
            "protocol": PROTOCOL,
            "outcome": _outcomes(out),
            "multiple": pa.array(out[:, OUT.MULTIPLE] == 1, mask=out[:, OUT.ANSWER] < 0),
            "returned": pc.fill_null(unroutable, False),
            "reply_code": code,
            "reply_text": pc.if_else(refused, pc.coalesce(answers["text"], answers["description"]), None),
            "latency_ns": latency(sent, answers["ts_ns"], out[:, OUT.ANSWER] >= 0),
            "records": 1,
        }
        return conform("confirms", columns, len(out)), rows["number"]

    def _settlements(self, out: Any, answers: Any) -> tuple[pa.Table, Any]:
        rows = self.messages.take(out[:, OUT.ROW])
        sent = rows["ts_ns"].fill_null(0).to_numpy()
        names = (
            "connection_id", "channel", "channel_epoch", "kind", "consumer_tag", "exchange", "routing_key",
            "redelivered", "body_size",
        )  # fmt: skip
        released = out[:, OUT.OUTCOME] == NACK
        columns = {
            **{name: rows[name] for name in names},
            **{f"deliver_{name}": rows[name] for name in COLUMNS},
            **{f"settle_{name}": answers[name] for name in COLUMNS},
            **ended(out[:, OUT.BY], out[:, OUT.END_TS], sent),
            "protocol": PROTOCOL,
            "queue": self.queues.names.take(out[:, OUT.QUEUE]),
            "delivery_tag": rows["number"],
            "outcome": _outcomes(out),
            "multiple": pa.array(out[:, OUT.MULTIPLE] == 1, mask=out[:, OUT.ANSWER] < 0),
            "requeue": pa.array(released, mask=~np.isin(out[:, OUT.OUTCOME], (NACK, REFUSED))),
            "latency_ns": latency(sent, answers["ts_ns"], out[:, OUT.ANSWER] >= 0),
        }
        return conform("settlements", columns, len(out)), rows["number"]

    def _requests(self, out: Any, answers: Any) -> tuple[pa.Table, Any]:
        rows = self.frames.take(out[:, OUT.ROW])
        sent = rows["ts_ns"].fill_null(0).to_numpy()
        names = ("connection_id", "channel", "channel_epoch", "from_client", "queue")
        status = statuses(answers["value"])
        failed = pc.is_in(status, value_set=pa.array(_FAILED, pa.int64()))
        columns = {
            **{name: rows[name] for name in names},
            **{f"request_{name}": rows[name] for name in COLUMNS},
            **{f"response_{name}": answers[name] for name in COLUMNS},
            **ended(out[:, OUT.BY], out[:, OUT.END_TS], sent),
            "request": rows["method"],
            "response": answers["method"],
            "outcome": pc.if_else(failed, OUTCOMES[ERROR], _outcomes(out)),
            "reply_code": pc.if_else(failed, status, known(out[:, OUT.CODE])),
            "reply_text": answers["description"],
            "latency_ns": latency(sent, answers["ts_ns"], out[:, OUT.ANSWER] >= 0),
        }
        return conform("rpcs", columns, len(out)), rows["command_id"]


def _outcomes(out: Any) -> pa.Array:
    return pa.array(OUTCOMES, pa.string()).take(pa.array(out[:, OUT.OUTCOME]))
