"""Queues that deliveries come from, for walks that see deliveries without the requests before them.

A walk over the frames of a protocol yields, as rows of `lost.SCHEMA`, from which frame of its connection on deliveries
of a consumer come from a queue. `Queues` of all these rows knows the queue of each delivery.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.across.lost import LOST, SCHEMA
from amqpscope.pipelines.model.digests import combined
from amqpscope.pipelines.model.plain import Plain, Row
from amqpscope.pipelines.model.walk import Rows, facts

LEADING = ("connection_id", "frame_no", "channel", "channel_epoch")
CONSUMER = ("connection_id", "channel", "channel_epoch", "consumer_tag")
"""What identifies a consumer; got messages have no tag."""
_TYPES = (pa.int64(), pa.int32(), pa.int32(), pa.string())


def consumers(messages: pa.Table, compiled: bool | None = None) -> Any:
    """Return digests (int64) of the consumers of messages with CONSUMER and `kind`; 0 where that is not known."""
    found = combined([messages[name] for name in CONSUMER], compiled)
    by_tag = pc.fill_null(pc.equal(messages["kind"].cast(pa.string()), "deliver"), False)
    found[pc.and_(by_tag, messages["consumer_tag"].is_null()).to_numpy()] = 0
    return found


class Consumed(Plain):
    """A walk that yields the queues of consumers: `frame` yields CONSUMER with `frame_no` and `queue`."""

    tables = ()
    partial = (LOST,)

    def over(self) -> Iterator[Row]:
        """See `Plain`; nothing is outstanding."""
        yield from ()

    def _rows(self, found: list[Row]) -> Iterator[Rows]:
        if found:
            keys = [pa.array([row[name] for row in found], kind) for name, kind in zip(CONSUMER, _TYPES, strict=True)]
            since = pa.array([row["frame_no"] for row in found], pa.int64())
            queues = pa.array([row["queue"] for row in found], pa.string())
            consumer = pa.array(combined(keys, self.compiled))
            yield LOST, facts(SCHEMA, keys[0], consumer=consumer, since_frame=since, queue=queues)


class Queues:
    """What rows of `lost.SCHEMA` of all connections say of consumers."""

    def __init__(self, rows: pa.Table) -> None:
        rows = rows.filter(pc.is_valid(rows["consumer"])).combine_chunks()
        consumer, since = rows["consumer"].to_numpy(), rows["since_frame"].to_numpy()
        order = np.lexsort((since, consumer))
        self._consumer, self._since = consumer[order], since[order]
        self._names = rows["queue"].take(pa.array(order))
        self._known, first = np.unique(self._consumer, return_index=True)
        self._first = np.append(first, len(self._consumer))

    def of(self, consumer: Any, frame_no: Any) -> pa.ChunkedArray:
        """Return the queues (string) of deliveries, null where their consume or get was not seen.

        Args:
            consumer: `consumers` (int64).
            frame_no: their last frames (int64).
        """
        if not len(self._known):
            return pa.chunked_array([pa.nulls(len(consumer), pa.string())])
        number = np.minimum(np.searchsorted(self._known, consumer), len(self._known) - 1)
        there = self._known[number] == consumer
        first = self._first[number]
        last = _last(self._since, first, self._first[number + 1], frame_no)
        found = there & (last >= first)
        return self._names.take(pa.array(last, mask=~found))


def _last(values: Any, low: Any, high: Any, wanted: Any) -> Any:
    """Return the last places, from `low` up to before `high`, of sorted values that are not above those wanted.

    Where there is none, it is the place before `low`. A search by halves, for all at a time.
    """
    while (open_ := low < high).any():
        middle = (low + high) >> 1
        right = open_ & (values[np.minimum(middle, len(values) - 1)] <= wanted)
        low, high = np.where(right, middle + 1, low), np.where(open_ & ~right, middle, high)
    return low - 1
