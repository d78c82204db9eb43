"""What the walks over RabbitMQ streams share: which events are theirs, rows to refer to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.pipelines.model.events import MESSAGES, STREAM_FRAMES, Events, what
from amqpscope.pipelines.model.speaking import events_of

PROTOCOL = "rabbitmq-stream"
OK = 1
"""Response code of what went well."""
IDS = 257
"""Publisher ids or subscription ids of a connection: they have 8 bits, and larger ones share the last place."""
ASKED = 256
"""Open requests of a connection with correlation ids that differ in their last 8 bits."""
NEVER = (1 << 63) - 1
NONE = -(1 << 62)
"""Stands for null where -1 may be a value."""

_PUBLISH = what(MESSAGES, "publish")


def of_streams(events: Events, conn: Ints, *, publishes: bool = False) -> Ints:
    """Return the positions of the events that concern streams (`speaking.events_of`).

    Args:
        events: the batch.
        conn: the connection that the walk has open (`connection.CONN`).
        publishes: whether messages that were published to streams are wanted.
    """
    messages = None
    if publishes and MESSAGES in events.tables and len(events.tables[MESSAGES]):
        ids = events.tables[MESSAGES].column("publisher_id")
        if ids.null_count < len(ids):
            messages = (events.ints({MESSAGES: "publisher_id"}) >= 0) & (events.what == _PUBLISH)
            messages &= events.ints({MESSAGES: "publish_seq"}) >= 0
    return events_of(events, conn, STREAM_FRAMES, messages)


@kernel
def lasted(start: int, end: int) -> int:
    """Return the time between two ends; -1 where it is negative, or does not fit."""
    if end < start or (start < 0 and end > NEVER + start):
        return -1
    return end - start


class Retained:
    """A few rows of one source that are needed for long, by the ids of their events.

    An id is `base` and the event's position in its batch.

    Attributes:
        base: id of the first event of the batch.
    """

    def __init__(self, source: int, columns: tuple[str, ...]) -> None:
        self.source = source
        self.columns = columns
        self.drop()

    def drop(self) -> None:
        """Forget all rows; ids begin again."""
        self.base = 0
        self.ids: Ints = np.zeros(0, np.int64)
        self.rows: pa.Table | None = None
        self._batch: Events | None = None

    def begin(self, events: Events) -> None:
        """Begin a batch."""
        self._batch = events

    def get(self, ids: Ints) -> pa.Table | None:
        """Return rows by id, in this order, all null for -1; None when all are."""
        here = (ids >= self.base) & (self._batch is not None)
        earlier = (ids >= 0) & ~here
        parts = [self.rows] if earlier.any() and self.rows is not None else []
        place = np.full(len(ids), -1, np.int64)
        if parts:
            place[earlier] = np.searchsorted(self.ids, ids[earlier])
        if here.any():
            assert self._batch is not None
            place[here] = np.arange(np.count_nonzero(here)) + sum(map(len, parts))
            parts.append(self._batch.take(self.source, ids[here] - self.base, self.columns))
        if not parts:
            return None
        rows = pa.concat_tables(parts)
        if len(rows) == len(ids) and (place == np.arange(len(ids))).all():
            return rows
        return rows.take(pa.array(place, mask=place < 0))

    def end(self, ids: Any) -> None:
        """End the batch: of all rows those of these ids stay (-1: none)."""
        assert self._batch is not None
        retained = np.unique(np.asarray(ids, np.int64))
        retained = retained[retained >= 0]
        rows = self.get(retained)
        self.ids, self.rows = retained, rows.combine_chunks() if rows is not None else None
        self.base += len(self._batch)
        self._batch = None

    def close(self) -> None:
        """Close the batch: all ids are those of stored rows."""
        self._batch = None

    def parts(self, name: str) -> dict[str, Any]:
        """Return the parts of a state."""
        found: dict[str, Any] = {f"{name} base": self.base, f"{name} ids": self.ids}
        return found if self.rows is None else found | {f"{name} rows": self.rows}

    def put_back(self, name: str, parts: dict[str, Any]) -> None:
        """Restore what `parts` returned."""
        self.base, self.ids = parts[f"{name} base"], parts[f"{name} ids"]
        self.rows = parts.get(f"{name} rows")
