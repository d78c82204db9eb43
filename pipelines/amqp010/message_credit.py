"""The credit of subscriptions of AMQP 0-10: writes the waits that `credit_windows` finds to `flow_control`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.kernel import call
from amqpscope.dissector.kernels.lookup import table_of
from amqpscope.pipelines.amqp010 import credit_windows as cw
from amqpscope.pipelines.amqp010 import sessions as ss
from amqpscope.pipelines.amqp010.command_batches import pairs_of
from amqpscope.pipelines.amqp010.credit_windows import AT_MOST, CHANNELS, MORE, ROLES, WIN
from amqpscope.pipelines.amqp010.frames import FRAMES_010
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model import outstanding as lg
from amqpscope.pipelines.model.connection import CONN
from amqpscope.pipelines.model.credit import AT_LEAST, ST, SUB, WT
from amqpscope.pipelines.model.credit_waits import rows_of
from amqpscope.pipelines.model.digests import combined
from amqpscope.pipelines.model.events import CONNECTIONS, EV, WORDS, Events, what
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.rows import Retained
from amqpscope.pipelines.model.speaking import events_of, matrix_of
from amqpscope.pipelines.model.stopped import DONE, NEEDS_OUTPUT_ROOM, NEEDS_PAGES
from amqpscope.pipelines.model.store import grown
from amqpscope.pipelines.model.walk import Needs, Rows

ROOM = 1 << 14
"""Rows of waits, besides two for each subscription."""
_COMPLETED = what(FRAMES_010, "session.completed")
_VALUES = ("value_uint32", "flow_mode", "code")
_ROLE = np.zeros(WORDS, np.int64)
_ROLE[[what(FRAMES_010, name) for name in ROLES]] = list(ROLES.values())


class MessageCredit(Remembers):
    """Writes `flow_control`: the waits of brokers for credit of subscriptions.

    Args:
        compiled: whether kernels run compiled.
    """

    tables = ("flow_control",)
    needs: Mapping[int, Needs] = {
        CONNECTIONS: Needs(("rtt_ns",)),
        FRAMES_010: Needs(
            ("content_size", "session", "destination", "unit", "value_uint32", "flow_mode", "code", "commands"),
            tuple(ROLES),
        ),
    }
    VERSION = 5
    STATE = ("conn", "gaps", "state", "_subscriptions", "_amounts", "sessions", "ledger", "retained")
    FORMS: ClassVar = {"sessions": (ss.parts, ss.whole)}

    def __init__(self, compiled: bool = False) -> None:
        self.retained = Retained(
            FRAMES_010, ("frame_no", "ts_ns", "capture", "packet", "channel", "channel_epoch", "destination")
        )
        self._room = ROOM if compiled else ROOM >> 8
        super().__init__(compiled)

    def forget(self) -> None:
        """See `Remembers`."""
        self.retained.drop()
        self.conn, self.gaps = cn.fresh()
        self.sessions, self.ledger = ss.fresh(), lg.fresh()
        self.rows = np.zeros((0, WIN.WIDTH), np.int64)
        self.subscribed = (
            table_of(self.rows, (WIN.KEY, WIN.KEY), self.rows[:, WIN.KEY]),
            self.rows,
            np.zeros(1, np.int64),
        )
        self.sizes = np.zeros(CHANNELS, np.int64), np.zeros(CHANNELS + 1, np.int64)
        self.state = np.zeros(ST.WIDTH, np.int64)
        self.state[ST.WINDOW] = AT_LEAST
        self._make_room(0)

    def _make_room(self, more: int) -> None:
        """Make room for this many more subscriptions, and for their waits."""
        _, rows, count = self.subscribed
        need = min(int(count[0]) + more, AT_MOST)
        if need > len(rows):
            rows = grown(rows, need)
            self.subscribed = table_of(rows, (WIN.KEY, WIN.KEY), np.arange(count[0]) + 1), rows, count
        self.written = np.zeros((1, 1), np.int64), np.zeros((self._room + 2 * len(rows) + 2, WT.WIDTH), np.int64)

    def feed(self, events: Events) -> Iterator[Rows]:
        """See `walk.Walk`."""
        at = events_of(events, self.conn, FRAMES_010)
        if not len(at):
            return
        self.retained.begin(events)
        batch = self._batch(events, at)
        _, more, _ = batch
        self.gaps = cn.with_room(self.conn, self.gaps, events.lacking)
        self.sessions = ss.roomy(self.sessions, len(np.unique(more[:, MORE.SESSION])))
        self._make_room(int(np.count_nonzero(more[:, MORE.ROLE] == cw.SUBSCRIBE)))
        self.state[ST.AT] = 0
        why = NEEDS_OUTPUT_ROOM
        while why != DONE:
            why = call(cw.walk, self.compiled, batch, self.conn, self.gaps, self.subscribed, self.sessions, self.ledger,
                       self.sizes, self.written, self.state)  # fmt: skip
            if why == NEEDS_PAGES:
                self.ledger = lg.roomy(self.ledger, 2 * len(self.ledger[0]), self.compiled)
            else:
                yield from self._waits()
        self.retained.end(self._referred())

    def _batch(self, events: Events, at: Ints) -> tuple[Any, Any, Any]:
        matrix = matrix_of(events, at)
        words = matrix[:, EV.WHAT]
        more = np.full((len(at), MORE.WIDTH), -1, np.int64)
        more[:, MORE.IDENTITY] = at + self.retained.base
        more[:, MORE.ROLE] = _ROLE[words]
        for column, of in (
            (MORE.SIZE, {FRAMES_010: "content_size"}),
            (MORE.UNIT, {FRAMES_010: "unit"}),
            (MORE.RTT, {CONNECTIONS: "rtt_ns"}),
        ):
            more[:, column] = events.ints(of)[at]
        for name in _VALUES:
            more[:, MORE.VALUE] = np.maximum(more[:, MORE.VALUE], events.ints({FRAMES_010: name})[at])
        more[:, [MORE.SESSION, MORE.KEY, MORE.FIRST, MORE.END]] = 0
        mine = np.flatnonzero(more[:, MORE.ROLE] > cw.PLAIN)
        if not len(mine):
            return matrix, more, np.zeros((0, 2), np.int64)
        destination = events.take(FRAMES_010, at[mine], ("destination",))["destination"]
        more[mine, MORE.SESSION] = session = ss.sessions_of(events, FRAMES_010, at[mine])
        more[mine, MORE.KEY] = combined([session, destination.cast(pa.string()).fill_null("")], self.compiled)
        mine = np.flatnonzero(words == _COMPLETED)
        ranges, ends = pairs_of(events.take(FRAMES_010, at[mine], ("commands",))["commands"])
        more[mine, MORE.FIRST], more[mine, MORE.END] = ends[:-1], ends[1:]
        return matrix, more, ranges

    def _referred(self) -> Ints:
        """Return the ids of frames that rows may still refer to."""
        _, rows, count = self.subscribed
        some = rows[: count[0]]
        live = some[some[:, WIN.LIVE] == 1]
        columns = [SUB.ID, SUB.SINCE, SUB.PROOF, SUB.RELEASED]
        closes = self.conn[[CONN.SERVER_CLOSE_EVENT, CONN.CLIENT_CLOSE_EVENT]]
        return np.concatenate([live[:, columns].ravel(), closes])

    def finish(self) -> Iterator[Rows]:
        """See `walk.Walk`."""
        self.retained.close()
        call(cw.close, self.compiled, self.conn, self.gaps, self.subscribed, self.sessions, self.ledger, self.sizes,
             self.written, self.state)  # fmt: skip
        yield from self._waits()
        self.forget()

    @property
    def _subscriptions(self) -> Ints:
        _, rows, count = self.subscribed
        used: Ints = rows[: count[0]]
        return used

    @_subscriptions.setter
    def _subscriptions(self, rows: Ints) -> None:
        self.subscribed = table_of(rows, (WIN.KEY, WIN.KEY), np.arange(len(rows)) + 1), rows, np.array([len(rows)])
        self._make_room(0)

    @property
    def _amounts(self) -> tuple[Ints, Ints]:
        amounts, used = self.sizes
        channels = used[: used[0] + 1]
        return channels, amounts[channels]

    @_amounts.setter
    def _amounts(self, some: tuple[Ints, Ints]) -> None:
        channels, amounts = some
        self.sizes[1][: len(channels)] = channels
        self.sizes[0][channels[1:]] = amounts[1:]

    def _waits(self) -> Iterator[Rows]:
        """Yield what the kernel wrote, as rows."""
        waits = self.written[1][: self.state[ST.WAITS]]
        self.state[ST.WAITS] = 0
        if not len(waits):
            return
        begun = self.retained.get(waits[:, WT.SUBSCRIPTION])
        assert begun is not None
        consumers = {name: begun[name] for name in ("channel", "channel_epoch")} | {
            "consumer_tag": begun["destination"]
        }
        yield rows_of(waits, self.retained, "message-credit", consumers)
