"""A walk in plain Python, over the few frames of a protocol that matter to it.

What all walks know of the connection (`connection`) is noted by a kernel, also of the frames between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model.connection import CONN, update_connection
from amqpscope.pipelines.model.events import EV, Events, source_of, what
from amqpscope.pipelines.model.speaking import concerns
from amqpscope.pipelines.model.store import pack, unpack
from amqpscope.pipelines.model.unanswered import ENDED_BY, NOTHING, WHOLE, unanswered
from amqpscope.pipelines.model.walk import Needs, Rows, schema

Row = dict[str, Any]


class Plain:
    """A walk that takes frames one by one, as dicts.

    `state` is what it remembers of the open connection: lists, dicts, numbers and texts. It begins as `fresh` returns
    it.

    Args:
        compiled: whether kernels run compiled.
    """

    SOURCE: ClassVar[str]
    """The table of its frames."""
    NAMES: ClassVar[tuple[str, ...]]
    """The frames that it takes."""
    COLUMNS: ClassVar[tuple[str, ...]]
    """Of them."""
    tables: ClassVar[tuple[str, ...]]
    """The table that it writes."""
    VERSION: ClassVar[int] = 1

    def __init__(self, compiled: bool = False) -> None:
        self.compiled = compiled
        self._source = source_of(self.SOURCE)
        self._words = [what(self._source, name) for name in self.NAMES]
        self._conn, self._gaps = cn.fresh()
        self.state = self.fresh()

    @property
    def needs(self) -> Mapping[int, Needs]:
        """See `walk.Walk`."""
        return {self._source: Needs(self.COLUMNS, self.NAMES)}

    def fresh(self) -> Any:
        """Return the state of a connection of which nothing was seen."""
        raise NotImplementedError

    def frame(self, frame: Row) -> Iterator[Row]:
        """Take a frame; yield rows that are final."""
        raise NotImplementedError

    def over(self) -> Iterator[Row]:
        """Yield the rows of what is outstanding: the connection is over."""
        raise NotImplementedError

    def why(self, side: int, frame_no: int, ts: int) -> Row:
        """Return `ended_by` and `end_ts_ns` of a frame, sent at a time, that a side did not answer."""
        by, end = unanswered(self._conn, self._gaps, side, frame_no, WHOLE, NOTHING, 0)
        return {"ended_by": ENDED_BY[by], "end_ts_ns": int(end) if end >= 0 else ts}

    def lacks(self, side: int, after: int) -> bool:
        """Return whether frames of a side may be missing after a frame, so far."""
        return bool(cn.first_gap(self._conn, self._gaps, side, after) >= 0)

    def feed(self, events: Events) -> Iterator[Rows]:
        """See `walk.Walk`."""
        if not concerns(events, self._conn, self._source):
            return
        self._gaps = cn.with_room(self._conn, self._gaps, events.lacking)
        at = np.flatnonzero(events.among(self._words))
        frames = events.take(self._source, at, self.COLUMNS).to_pylist()
        found: list[Row] = []
        first = 0
        for number, end in enumerate([*(at + 1).tolist(), len(events)]):
            while (first := call(advance, self.compiled, self._conn, self._gaps, events.matrix, first, end)) < end:
                found.extend(self.over() if self._conn[CONN.ID] >= 0 else ())
                self.state = self.fresh()
                cn.open_connection(self._conn, int(events.matrix[first, EV.CONNECTION]))
            if number < len(frames):
                found.extend(self.frame(frames[number]))
        yield from self._rows(found)

    def finish(self) -> Iterator[Rows]:
        """See `walk.Walk`."""
        found = list(self.over())
        self._renew()
        yield from self._rows(found)

    def _rows(self, found: list[Row]) -> Iterator[Rows]:
        if found:
            yield self.tables[0], pa.Table.from_pylist(found, schema(self.tables[0]))

    def _renew(self) -> None:
        self._conn, self._gaps = cn.fresh()
        self.state = self.fresh()

    def take_out(self) -> bytes:
        """See `walk.Walk`."""
        parts = {"conn": self._conn, "gaps": cn.used(self._conn, self._gaps), "state": self.state}
        made = pack(type(self).__name__, self.VERSION, parts)
        self._renew()
        return made

    def put_back(self, state: bytes) -> None:
        """See `walk.Walk`."""
        parts = unpack(type(self).__name__, self.VERSION, state)
        self._conn, self._gaps, self.state = parts["conn"], parts["gaps"], parts["state"]


@kernel
def advance(conn: Array, gaps: Array, events: Array, first: int, end: int) -> int:
    """Note what events say of the open connection; return the first of another connection, else the end."""
    for i in range(first, end):
        if events[i, EV.CONNECTION] != conn[CONN.ID]:
            return i
        update_connection(conn, gaps, events, i, i)
    return end
