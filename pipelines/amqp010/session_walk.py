"""Walks over the sessions of AMQP 0-10: what the walks with the kernel `command_walk` share.

A command has one row, also where it is sent again after its session was attached anew; on another connection that is
another row. What may go on on another connection comes as rows of `session_joins`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pyarrow as pa

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.kernel import call
from amqpscope.pipelines.amqp010 import session_joins as sj
from amqpscope.pipelines.amqp010 import sessions as ss
from amqpscope.pipelines.amqp010.command_batches import KINDS
from amqpscope.pipelines.amqp010.command_ends import close
from amqpscope.pipelines.amqp010.command_walk import walk
from amqpscope.pipelines.amqp010.commands import AT, MORE, OUT, REPORTED, ST, Batch, Outstanding
from amqpscope.pipelines.amqp010.frames import FRAMES_010
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model import outstanding as lg
from amqpscope.pipelines.model.ends import COLUMNS, answers_of
from amqpscope.pipelines.model.events import MESSAGES, Events, what
from amqpscope.pipelines.model.outstanding import SL
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.rows import Waiting
from amqpscope.pipelines.model.speaking import events_of
from amqpscope.pipelines.model.stopped import DONE, NEEDS_OUTPUT_ROOM, NEEDS_PAGES
from amqpscope.pipelines.model.store import grown, release_arrays
from amqpscope.pipelines.model.walk import Rows

LIMIT = 1 << 25
"""Outstanding commands of one connection; further ones are evicted at once."""
ROOM = 1 << 16
"""Rows that the kernel writes at a time."""
_ANSWER = (*COLUMNS, "connection_id", "method", "description")
_WORDS = tuple(what(MESSAGES, kind) for kind in KINDS)


class SessionWalk(Remembers, ABC):
    """A walk that has rows of commands, by the kernel `command_walk`.

    Args:
        compiled: whether kernels run compiled.
        limit: outstanding commands of one connection.
    """

    MESSAGE: ClassVar[tuple[str, ...]]
    FRAME: ClassVar[tuple[str, ...]]
    """Columns of outstanding transfers, and of other commands."""
    ANSWER: ClassVar[tuple[str, ...]] = ()
    """Columns of frames that answer, besides _ANSWER."""
    STATE: ClassVar[tuple[str, ...]] = (
        "conn", "gaps", "state", "accepts", "sessions", "ledger", "messages", "frames",
    )  # fmt: skip
    FORMS: ClassVar = {"sessions": (ss.parts, ss.whole)}

    def __init__(self, compiled: bool = False, limit: int = LIMIT) -> None:
        self.limit = limit
        self.messages, self.frames = Waiting(MESSAGES, self.MESSAGE), Waiting(FRAMES_010, self.FRAME)
        room = ROOM if compiled else ROOM >> 8
        self.out, self.reported = np.zeros((room, OUT.WIDTH), np.int64), np.zeros((room, REPORTED.WIDTH), np.int64)
        self.stores = [self.messages, self.frames]
        super().__init__(compiled)

    @property
    def partial(self) -> tuple[str, ...]:
        """Names of its partial results."""
        return tuple(sj.JOINED[table] for table in self.tables)

    @abstractmethod
    def _batch(self, events: Events, at: Ints) -> Batch:
        """Return what the kernel reads of the events at these positions."""

    @abstractmethod
    def _written(self, events: Events | None, out: Ints) -> Iterator[Rows]:
        """Yield rows of what the kernel wrote (OUT); `events`: the batch that answers are in, None for none."""

    def forget(self) -> None:
        """See `Remembers`."""
        for waiting in self.stores:
            waiting.drop()
        self.conn, self.gaps = cn.fresh()
        self.sessions, self.ledger = ss.fresh(), lg.fresh()
        self.accepts = np.zeros((len(self.ledger[1]), AT.WIDTH), np.int64)
        self.state = np.zeros(ST.WIDTH, np.int64)
        self.state[ST.SEVERAL] = -1

    @property
    def _outstanding(self) -> Outstanding:
        """What kernels take."""
        return Outstanding(
            self.conn, self.gaps, self.sessions, self.ledger, self.accepts, self.out, self.reported, self.state
        )

    def feed(self, events: Events) -> Iterator[Rows]:
        """See `walk.Walk`."""
        transfers = events.among(_WORDS) if MESSAGES in events.tables else None
        at = events_of(events, self.conn, FRAMES_010, transfers)
        if not len(at):
            return
        for waiting in self.stores:
            waiting.begin(events)
        batch = self._batch(events, at)
        _, more, _ = batch
        self.sessions = ss.roomy(self.sessions, len(np.unique(more[:, MORE.SESSION])))
        self.gaps = cn.with_room(self.conn, self.gaps, events.lacking)
        self.state[ST.AT], self.state[ST.LIMIT] = 0, self.limit
        why = NEEDS_OUTPUT_ROOM
        while why != DONE:
            why = call(walk, self.compiled, batch, self._outstanding)
            if why == NEEDS_PAGES:
                self.ledger = lg.roomy(self.ledger, 2 * len(self.ledger[0]), self.compiled)
                self.accepts = grown(self.accepts, len(self.ledger[1]))
            else:
                yield from self._rows(events)
        slot = more[:, MORE.SLOT]
        still = np.flatnonzero(slot >= 0)
        still = at[still[self.ledger[1][slot[still], SL.ROW] == more[still, MORE.IDENTITY]]]
        for waiting in self.stores:
            waiting.end(self._needed(waiting, events, still))

    def finish(self) -> Iterator[Rows]:
        """See `walk.Walk`."""
        while not call(close, self.compiled, self._outstanding):
            yield from self._rows(None)
        yield from self._rows(None)
        for waiting in self.stores:
            waiting.base = 0
        self.forget()

    def _needed(self, waiting: Waiting, events: Events, still: Ints) -> Ints:
        """Return the positions of events whose rows a store keeps; `still`: of commands that are outstanding."""
        return still[events.source[still] == waiting.source]

    def _rows(self, events: Events | None) -> Iterator[Rows]:
        """Yield what the kernel wrote, as rows."""
        release_arrays((*self.ledger, self.accepts))
        out, reported = self.out[: self.state[ST.OUT]], self.reported[: self.state[ST.REPORTED]]
        self.state[ST.OUT] = self.state[ST.REPORTED] = 0
        if len(reported):
            columns = {name: reported[:, number] for number, name in enumerate(REPORTED.columns)}
            yield from sj.answers(self.tables, columns, self._answers(events, reported[:, REPORTED.ANSWER]))
        if len(out):
            yield from self._written(events, out)

    def _answers(self, events: Events | None, ids: Ints) -> dict[str, pa.ChunkedArray]:
        """Return columns of the frames that answer, by their ids; null for -1."""
        return answers_of(events, ids, self.frames.base, FRAMES_010, (*_ANSWER, *self.ANSWER))
