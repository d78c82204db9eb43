"""The open connection for walks in plain Python: a kernel notes what events say of it, as far as that is asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model.connection import CONN, GAP_SINCE, GAP_TS
from amqpscope.pipelines.model.events import ANOMALIES, EV, Events
from amqpscope.pipelines.model.unanswered import Lost, Scope, unanswered

OVER = -1
"""What `Opened.steps` yields where a connection is over."""


class Opened:
    """What is known of the open connection (`connection`) at one event after the other.

    Most frames change nothing that a walk asks for, so nothing is noted frame by frame.

    Args:
        compiled: whether the kernel runs compiled.

    Attributes:
        conn: CONN, for `speaking`; not all that is known may be noted there.
    """

    def __init__(self, compiled: bool) -> None:
        self._compiled = compiled
        self._now, self._noted, self._mark = -1, 0, 0
        self._marks: list[int] = []
        self._before = [-1, -1]
        self._matrix: Ints | None = None
        self._take(*cn.fresh())

    def _take(self, conn: Array, gaps: Array) -> None:
        self.conn, self._gaps = conn, gaps
        self._conn, self._views = memoryview(conn), memoryview(gaps)

    def steps(self, events: Events, at: Ints) -> Iterator[int]:
        """Yield 0, 1, ... for one event after the other, and OVER where the connection is over before it.

        Between two steps, the methods of this object answer as of the event. Exhaust it.

        Args:
            events: the batch.
            at: positions of events, in their order.
        """
        self._take(self.conn, cn.with_room(self.conn, self._gaps, events.lacking))
        self._matrix, self._noted = events.matrix, 0
        self._marks = np.flatnonzero(events.source == ANOMALIES).tolist()
        self._mark = 0 if self._is_late() else self._next_mark()
        connection = events.matrix[:, EV.CONNECTION]
        firsts = [0, *(np.flatnonzero(np.diff(connection)) + 1).tolist()] if len(events) else []
        counts = np.searchsorted(at, [*firsts, len(events)]).tolist()
        positions = at.tolist()
        for number, (first, end) in enumerate(pairwise([*firsts, len(events)])):
            identity = int(connection[first])
            if identity != self._conn[CONN.ID]:
                self._now = first - 1
                if self._conn[CONN.ID] >= 0:
                    yield OVER
                cn.open_connection(self._conn, identity)
                self._mark = self._next_mark()
            for place in range(counts[number], counts[number + 1]):
                self._now = positions[place]
                yield place
            self._note(end)
        self._matrix, self._now, self._noted = None, -1, 0

    def _next_mark(self) -> int:
        """Return the position of the next anomaly that is not noted."""
        place = bisect_left(self._marks, self._noted)
        return self._marks[place] if place < len(self._marks) else 1 << 62

    def _is_late(self) -> bool:
        return self._conn[CONN.LATE_SERVER] >= 0 or self._conn[CONN.LATE_CLIENT] >= 0

    def _note(self, end: int) -> None:
        """Note what the events before a position say."""
        if self._noted < end:
            call(advance, self._compiled, self.conn, self._gaps, self._matrix, self._noted, end)
            self._noted = end
            self._mark = 0 if self._is_late() else self._next_mark()

    def _note_now(self) -> None:
        """Note what the events up to this one say."""
        if self._noted <= self._now:
            self._note(self._now)
            self._before = [int(self._conn[CONN.LAST_SERVER + side]) for side in range(2)]
            self._note(self._now + 1)

    def last(self, side: int) -> int:
        """Return the number of the last frame of a side before this event; -1 for none."""
        self._note_now()
        return self._before[side]

    def last_so_far(self, side: int) -> int:
        """Return the number of the last frame of a side, up to this event; -1 for none."""
        self._note_now()
        return int(self._conn[CONN.LAST_SERVER + side])

    def closed_by(self, side: int) -> int:
        """Return the number of a side's first frame that closes the connection, up to this event; -1 for none."""
        self._note_now()
        return int(self._conn[CONN.SERVER_CLOSE + side])

    def add_gap(self, side: int, frame: int, ts: int) -> None:
        """Note that this event, a frame, hides what its side sent."""
        self._note(self._now)
        cn.add_gap(self._conn, self._views, side, frame, ts, -1)

    def first_gap(self, side: int, after: int) -> int:
        """Return the first gap of a side after a frame, so far, as a row; -1 for none."""
        if self._mark <= self._now:
            self._note_now()
        return cn.first_gap(self._conn, self._views, side, after) if self._conn[CONN.SERVER_GAPS + side] else -1

    def lacks(self, side: int, after: int) -> bool:
        """Return whether frames of a side may be missing after a frame, so far."""
        return self.first_gap(side, after) >= 0

    def time_of(self, gap: int) -> int:
        """Return when a gap was certain."""
        return int(self._views[gap, GAP_TS])

    def may_lack(self, side: int, after: int, before: int) -> bool:
        """Return whether frames of a side may be missing between two frames, as far as seen so far."""
        gap = self.first_gap(side, after)
        return bool(gap >= 0 and self._views[gap, GAP_SINCE] < before)

    def unanswered(self, side: int, frame: int, scope: Scope, own: Lost, closes: int = 0) -> tuple[int, int]:
        """Return why a side did not answer a frame, and when that was certain (`unanswered.unanswered`)."""
        self._note_now()
        how, ts = unanswered(self._conn, self._views, side, frame, scope, own, closes)
        return int(how), int(ts)

    def parts(self) -> dict[str, Any]:
        """Return the parts of a state (`store.pack`)."""
        return {"conn": self.conn, "gaps": cn.used(self.conn, self._gaps)}

    def put_back(self, parts: dict[str, Any]) -> None:
        """Restore what `parts` returned."""
        self._take(parts["conn"], parts["gaps"])


@kernel
def advance(conn: Array, gaps: Array, events: Array, first: int, end: int) -> None:
    """Note what events of the open connection say of it."""
    for i in range(first, end):
        cn.update_connection(conn, gaps, events, i, i)
