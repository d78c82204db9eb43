"""Gaps: between which times bytes of a connection are missing, or could not be decoded.

What a side sent in a gap was sent behind its last frame before, and before the gap was certain. In between nobody can
tell who waited for whom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.pipelines.model.connection import GAP_WORDS, GAPS
from amqpscope.pipelines.model.events import ANOMALIES, CONNECTIONS, EV, FIRST_FRAMES, MESSAGES, Events
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.walk import Needs, Rows, conform, known

NOBODY = -1
"""No open connection; also a time that is not known."""
_COPIED = ("connection_id", "from_client", "code", "frame_no", "capture", "packet", "ts_ns")


class Gaps(Remembers):
    """The walk that writes `gaps`. Its state is when each side of the open connection was heard last."""

    tables = ("gaps",)
    needs: ClassVar[Mapping[int, Needs]] = {CONNECTIONS: Needs(), ANOMALIES: Needs(("capture", "packet"), GAPS)}

    STATE = ("_open", "_heard")

    def forget(self) -> None:
        """See `Remembers`."""
        self._open, self._heard = NOBODY, [NOBODY, NOBODY]

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; yield a row for each gap."""
        if not len(events):
            return
        connection, side = events.matrix[:, EV.CONNECTION], events.matrix[:, EV.FROM_CLIENT]
        heard = [self._times(events, each) for each in range(2)]
        at = np.flatnonzero(events.among(GAP_WORDS) & (side >= 0))
        self._open, self._heard = int(connection[-1]), [int(each[-1]) for each in heard]
        if len(at):
            rows = events.take(ANOMALIES, at, _COPIED)
            columns = {name: rows[name] for name in _COPIED}
            since = np.where(side[at] == 1, heard[1][at], heard[0][at])
            columns |= {"since_ts_ns": known(since), "bytes": known(events.matrix[at, EV.NUMBER])}
            yield "gaps", conform("gaps", columns, len(at))

    def _times(self, events: Events, side: int) -> Array:
        """Return, for each event, when the side's last frame up to it came, or else its connection's first packet."""
        matrix = events.matrix
        connection = matrix[:, EV.CONNECTION]
        is_first = (events.source == CONNECTIONS) & (connection != self._open)  # one that goes on has its row again
        is_heard = (events.source >= FIRST_FRAMES) & (events.source < MESSAGES) & (matrix[:, EV.FROM_CLIENT] == side)
        times = np.where(is_first, matrix[:, EV.FIRST_TS], matrix[:, EV.TS])
        last = np.maximum.accumulate(np.where(is_heard | is_first, np.arange(len(events)), -1))
        before = np.where(connection == self._open, self._heard[side], NOBODY)
        found: Array = np.where((last >= 0) & (connection[last] == connection), times[last], before)
        return found
