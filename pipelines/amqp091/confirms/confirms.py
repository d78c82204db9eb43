"""Publisher confirms of AMQP 0-9-1: writes the table from what `publishes` finds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from amqpscope.dissector.kernels.kernel import call
from amqpscope.pipelines.amqp091.confirms import returns as rt
from amqpscope.pipelines.amqp091.confirms.publishes import (
    ANSWER,
    MORE,
    NONE,
    ON_PUBLISH,
    ON_RETURN,
    OUT,
    PUBLISH,
    ROOM,
    close,
    mark,
    walk,
)
from amqpscope.pipelines.amqp091.frames import FRAMES, PROTOCOL
from amqpscope.pipelines.model import channels as ch
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model import outstanding as lg
from amqpscope.pipelines.model.ends import COLUMNS, ended, latency
from amqpscope.pipelines.model.event_rows import ACKED
from amqpscope.pipelines.model.events import EV, MESSAGES, Events
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.rows import Waiting
from amqpscope.pipelines.model.stopped import DONE, NEEDS_ACCOUNTS, NEEDS_OUTPUT_ROOM, NEEDS_PAGES, ST
from amqpscope.pipelines.model.store import grown, release_arrays
from amqpscope.pipelines.model.walk import Needs, Rows, conform, known

LIMIT = 1 << 26
"""Outstanding publishes of one connection; further ones are evicted at once."""
OUTCOMES = ("none", "ack", "nack")


class Confirms(Remembers):
    """Writes `confirms`: a row for each publish that expects a confirm.

    Its events come from `numbers.Numbering` if publishes are to have the numbers that confirms show.

    Args:
        compiled: whether kernels run compiled.
        limit: outstanding publishes of one connection.
    """

    tables = ("confirms",)
    needs: Mapping[int, Needs] = {
        FRAMES: Needs(
            (), ("basic.ack", "basic.nack", "channel.open-ok", "channel.close", "channel.close-ok", "connection.close")
        ),
        MESSAGES: Needs(
            ("exchange", "routing_key", "message_id", "body_size", "mandatory", "reply_code", "content", "cut_by"),
            ("publish", "return"),
            asks=("publish",),
        ),
    }
    _COLUMNS = (
        "connection_id", "channel", "channel_epoch", "number", "exchange", "routing_key", "message_id", "body_size",
        "ts_ns", "frame_no", "capture", "packet", "unfinished", "cut_by", "numbered_by", ACKED,
    )  # fmt: skip
    VERSION = 9
    STATE = ("conn", "gaps", "channels", "ledger", "returns", "waiting", "answers")
    FORMS: ClassVar = {"channels": (ch.cut, ch.whole)}

    def __init__(self, compiled: bool = False, limit: int = LIMIT) -> None:
        self.limit = limit
        self.waiting = Waiting(MESSAGES, self._COLUMNS)
        self.answers = Waiting(FRAMES, (*COLUMNS, "multiple"))
        self.out = np.zeros((ROOM if compiled else ROOM >> 8, OUT.WIDTH), np.int64)
        super().__init__(compiled)

    def forget(self) -> None:
        """See `Remembers`."""
        self.waiting.drop()
        self.answers.drop()
        self.conn, self.gaps = cn.fresh()
        self.channels = ch.fresh()
        self.ledger = lg.fresh()
        self.returns = rt.fresh()
        self.state = np.zeros(ST.WIDTH, np.int64)

    def feed(self, events: Events) -> Iterator[Rows]:
        """See `walk.Walk`."""
        matrix = events.matrix
        more = self._more(events)
        self.waiting.begin(events)
        self.answers.begin(events)
        self.state[ST.AT], self.state[ST.BASE], self.state[ST.LIMIT] = 0, self.waiting.base, self.limit
        self.gaps = cn.with_room(self.conn, self.gaps, events.lacking)
        accounts, table, own, counts = self.channels
        own = grown(own, int(counts[1]) + events.lacking)
        self.channels = accounts, table, own, counts
        self.returns = rt.roomy(self.returns, int(np.count_nonzero(more[:, MORE.MANDATORY] == 1)), self.compiled)
        why = NEEDS_OUTPUT_ROOM
        while why != DONE:
            why = call(walk, self.compiled, matrix, more, self.conn, self.gaps, self.channels, self.ledger,
                       self.returns, self.out, self.state)  # fmt: skip
            if why == NEEDS_PAGES:
                self.ledger = lg.roomy(self.ledger, 2 * len(self.ledger[0]), self.compiled)
            elif why == NEEDS_ACCOUNTS:
                accounts, table, own, counts = self.channels
                self.channels = grown(accounts, 2 * len(accounts), -1), table, own, counts
            else:
                yield from self._rows()
        still = np.zeros((len(events), 2), np.uint8)
        first = call(
            mark, self.compiled, matrix, self.conn, self.channels, self.ledger, self.returns, still, self.state
        )
        self.waiting.end(np.flatnonzero(still[:, PUBLISH]))
        self.answers.end(np.flatnonzero(still[:, ANSWER]))
        self.answers.forget(first)

    def finish(self) -> Iterator[Rows]:
        """See `walk.Walk`."""
        while not call(close, self.compiled, self.conn, self.gaps, self.channels, self.ledger, self.returns, self.out,
                       self.state):  # fmt: skip
            yield from self._rows()
        yield from self._rows()
        self.forget()

    def _more(self, events: Events) -> Any:
        more = np.full((len(events), MORE.WIDTH), -1, np.int64)
        if MESSAGES not in events.tables:
            return more
        matrix = events.matrix
        more[:, MORE.MANDATORY] = events.ints({MESSAGES: "mandatory"})
        equal = np.flatnonzero(
            ((matrix[:, EV.WHAT] == ON_PUBLISH) & (more[:, MORE.MANDATORY] == 1)) | (matrix[:, EV.WHAT] == ON_RETURN)
        )
        if len(equal):
            more[:, MORE.CODE] = events.ints({MESSAGES: "reply_code"})
            more[:, MORE.DIGEST] = events.ints({MESSAGES: "content"})
        return more

    def _rows(self) -> Iterator[Rows]:
        release_arrays((*self.ledger, *self.returns))
        count = int(self.state[ST.OUT])
        self.state[ST.OUT] = 0
        if not count:
            return
        out = self.out[:count].copy()
        yield "confirms", confirmed(self.waiting.take(out[:, OUT.ROW]), self.answers.chosen(out[:, OUT.ANSWER]), out)


def confirmed(publishes: pa.Table, answers: pa.Table, out: Any) -> pa.Table:
    """Return rows of `confirms`.

    Args:
        publishes: rows of `messages`, one for each row of `out`.
        answers: the frames that answer them, nulls where there is none.
        out: OUT.
    """
    count = len(out)
    answered = out[:, OUT.OUTCOME] != NONE
    sent, heard = publishes["ts_ns"].fill_null(0).to_numpy(), answers["ts_ns"]
    timed = answered & ~publishes["unfinished"].fill_null(False).to_numpy(zero_copy_only=False)
    numbers = publishes["number"].fill_null(-1).to_numpy()
    returned = out[:, OUT.RETURNED]
    return conform(
        "confirms",
        {name: publishes[name] for name in ("connection_id", "channel", "channel_epoch")}
        | {name: publishes[name] for name in ("numbered_by", "exchange", "routing_key", "message_id", "body_size")}
        | {f"publish_{name}": publishes[name] for name in ("ts_ns", "frame_no", "capture", "packet")}
        | {f"confirm_{name}": answers[name] for name in COLUMNS}
        | ended(out[:, OUT.BY], out[:, OUT.END_TS], sent, publishes["cut_by"])
        | {
            "publish_seq": known(np.maximum(numbers, -1)),
            "protocol": PROTOCOL,
            "outcome": pa.array(OUTCOMES).take(pa.array(out[:, OUT.OUTCOME])),
            "multiple": answers["multiple"],
            "returned": pa.array(returned == 1, mask=returned < 0),
            "reply_code": known(out[:, OUT.CODE]),
            "latency_ns": latency(sent, heard, timed),
            "records": 1,
            "request_acked_ts_ns": publishes[ACKED],
        },
        count,
    )
