"""Confirms, settlements and requests of AMQP 0-10: writes the tables from what `command_walk` finds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.pipelines.amqp010 import session_joins as sj
from amqpscope.pipelines.amqp010.command_batches import (
    ASKING,
    FRAME_COLUMNS,
    KINDS,
    METHODS,
    SCOPE,
    Queues,
    batch_of,
    describe,
    statuses,
)
from amqpscope.pipelines.amqp010.commands import (
    AT,
    ERROR,
    HELD,
    KIND,
    NACK,
    OUT,
    OUTCOMES,
    PUBLISH,
    QUIET,
    REFUSED,
    REQUEST,
    ROLES,
    SILENT,
    Batch,
    queue_of,
)  # fmt: skip
from amqpscope.pipelines.amqp010.frames import FRAMES_010, PROTOCOL
from amqpscope.pipelines.amqp010.session_walk import LIMIT, SessionWalk
from amqpscope.pipelines.model.ends import COLUMNS, ended, latency
from amqpscope.pipelines.model.event_rows import ACKED
from amqpscope.pipelines.model.events import CONNECTIONS, MESSAGES, Events
from amqpscope.pipelines.model.outstanding import SL
from amqpscope.pipelines.model.rows import Waiting
from amqpscope.pipelines.model.walk import Needs, Rows, conform, known

_FAILED = range(1, 7)
"""Statuses of dtx that do not mean success; that does xa-ok, 0, and xa-rdonly, 7."""
_REJECT, _UNROUTABLE = "message.reject", 1


class SessionStatistics(SessionWalk):
    """Writes `confirms`, `settlements` and `rpcs` of AMQP 0-10: rows of commands that are answered by their numbers."""

    VERSION = 8
    STATE = (*SessionWalk.STATE, "held", "queues")
    MESSAGE = (
        "connection_id", "channel", "channel_epoch", "number", "kind", "consumer_tag", "exchange", "routing_key",
        "message_id", "body_size", "redelivered", "unfinished", "cut_by", "publish_seq", ACKED, *COLUMNS,
    )  # fmt: skip
    FRAME = (
        "connection_id",
        "channel",
        "channel_epoch",
        "from_client",
        "method",
        "command_id",
        "queue",
        ACKED,
        *COLUMNS,
    )
    ANSWER = ("text", "value")
    tables = ("confirms", "settlements", "rpcs")
    needs: Mapping[int, Needs] = {
        CONNECTIONS: Needs(SCOPE),
        FRAMES_010: Needs(FRAME_COLUMNS, METHODS, asks=ASKING),
        MESSAGES: Needs(
            (
                "session", "exchange", "routing_key", "message_id", "body_size", "consumer_tag", "redelivered",
                "accept_mode", "acquire_mode", "cut_by",
            ),
            KINDS,
            asks=KINDS,
        ),
    }  # fmt: skip

    def __init__(self, compiled: bool = False, limit: int = LIMIT) -> None:
        super().__init__(compiled, limit)
        self.held = Waiting(FRAMES_010, COLUMNS)
        """Frames of each message.accept of deliveries that are HELD."""
        self.stores.append(self.held)

    def forget(self) -> None:
        """See `Remembers`."""
        super().forget()
        self.queues = Queues()

    def _batch(self, events: Events, at: Ints) -> Batch:
        self.queues.names.prune(self.queues.queues, queue_of(self.ledger[1][:, SL.EXTRA]))
        batch = batch_of(events, at, self.messages.base, ROLES)
        describe(batch, events, at, self.queues)
        return batch

    def _needed(self, waiting: Waiting, events: Events, still: Ints) -> Ints:
        if waiting is not self.held:
            return super()._needed(waiting, events, still)
        slots = self.ledger[1]
        ids = np.unique(self.accepts[(slots[:, SL.ROW] >= 0) & (slots[:, SL.EXTRA] & KIND == HELD), AT.ID])
        self.held.forget(ids[0] if len(ids) else self.held.base)
        return ids[ids >= self.held.base] - self.held.base

    def _written(self, events: Events | None, out: Ints) -> Iterator[Rows]:
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
                ids = some[:, OUT.ANSWER]
                answers = self.held.chosen(ids) if table == "settlements" else self._answers(events, ids)
                rows, numbers = made(some, answers)
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
            **ended(out[:, OUT.BY], out[:, OUT.END_TS], sent, rows["cut_by"]),
            "publish_seq": rows["number"],
            "protocol": PROTOCOL,
            "outcome": _outcomes(out),
            "multiple": pa.array(out[:, OUT.MULTIPLE] == 1, mask=out[:, OUT.ANSWER] < 0),
            "returned": pc.fill_null(unroutable, False),
            "reply_code": code,
            "reply_text": pc.if_else(refused, pc.coalesce(answers["text"], answers["description"]), None),
            "latency_ns": latency(sent, answers["ts_ns"], out[:, OUT.ANSWER] >= 0),
            "request_acked_ts_ns": rows[ACKED],
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
            **ended(out[:, OUT.BY], out[:, OUT.END_TS], sent, rows["cut_by"]),
            "protocol": PROTOCOL,
            "queue": self.queues.names.take(out[:, OUT.QUEUE]),
            "delivery_tag": rows["number"],
            "outcome": _outcomes(out),
            "multiple": pa.array(out[:, OUT.MULTIPLE] == 1, mask=out[:, OUT.ANSWER] < 0),
            "requeue": pa.array(released, mask=~np.isin(out[:, OUT.OUTCOME], (NACK, REFUSED))),
            "latency_ns": latency(sent, answers["ts_ns"], out[:, OUT.ANSWER] >= 0),
            "request_acked_ts_ns": rows[ACKED],
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
            "request_acked_ts_ns": rows[ACKED],
        }
        return conform("rpcs", columns, len(out)), rows["command_id"]


def _outcomes(out: Any) -> pa.Array:
    return pa.array(OUTCOMES, pa.string()).take(pa.array(out[:, OUT.OUTCOME]))
