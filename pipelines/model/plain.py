"""A walk in plain Python, over the few frames of a protocol that matter to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from amqpscope.pipelines.model.events import Events, source_of, what
from amqpscope.pipelines.model.opened import OVER, Opened
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.speaking import concerns
from amqpscope.pipelines.model.unanswered import ENDED_BY, NOTHING, WHOLE
from amqpscope.pipelines.model.walk import Needs, Rows, schema

Row = dict[str, Any]


class Plain(Remembers):
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
    VERSION = 2
    STATE: ClassVar[tuple[str, ...]] = ("opened", "state")

    def __init__(self, compiled: bool = False) -> None:
        super().__init__(compiled)
        self._source = source_of(self.SOURCE)
        self._words = [what(self._source, name) for name in self.NAMES]

    def forget(self) -> None:
        """See `Remembers`."""
        self.opened = Opened(self.compiled)
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
        by, end = self.opened.unanswered(side, frame_no, WHOLE, NOTHING)
        return {"ended_by": ENDED_BY[by], "end_ts_ns": end if end >= 0 else ts}

    def lacks(self, side: int, after: int) -> bool:
        """Return whether frames of a side may be missing after a frame, so far."""
        return self.opened.lacks(side, after)

    def feed(self, events: Events) -> Iterator[Rows]:
        """See `walk.Walk`."""
        if not concerns(events, self.opened.conn, self._source):
            return
        at = np.flatnonzero(events.among(self._words))
        frames = events.take(self._source, at, self.COLUMNS).to_pylist()
        found: list[Row] = []
        for number in self.opened.steps(events, at):
            if number == OVER:
                found.extend(self.over())
                self.state = self.fresh()
            else:
                found.extend(self.frame(frames[number]))
        yield from self._rows(found)

    def finish(self) -> Iterator[Rows]:
        """See `walk.Walk`."""
        found = list(self.over())
        self.forget()
        yield from self._rows(found)

    def _rows(self, found: list[Row]) -> Iterator[Rows]:
        if found:
            yield self.tables[0], pa.Table.from_pylist(found, schema(self.tables[0]))
