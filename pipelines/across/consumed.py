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

from amqpscope.pipelines.across.lost import LOST, facts
from amqpscope.pipelines.model.digests import combined
from amqpscope.pipelines.model.plain import Plain, Row
from amqpscope.pipelines.model.walk import Rows

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
            yield LOST, facts(keys[0], consumer=consumer, since_frame=since, queue=queues)


class Queues:
    """What rows of `lost.SCHEMA` of all connections say of consumers."""

    def __init__(self, rows: pa.Table) -> None:
        rows = rows.filter(pc.is_valid(rows["consumer"])).combine_chunks()
        consumer, since = rows["consumer"].to_numpy(), rows["since_frame"].to_numpy()
        order = np.lexsort((since, consumer))
        self._consumer, self._since = consumer[order], since[order]
        self._names = rows["queue"].take(pa.array(order))
        self._known, self._first = np.unique(self._consumer, return_index=True)
        self._number = np.searchsorted(self._known, self._consumer)

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
        # the last row of the consumer that is not behind the delivery: both as one number, in order of both
        last = _last(self._number, self._since, number, frame_no)
        found = there & (last >= self._first[number])
        return self._names.take(pa.array(last, mask=~found))


def _last(groups: Any, values: Any, group: Any, value: Any) -> Any:
    """Return the last place of pairs, sorted by both, that is not above each of some pairs; -1 for none."""
    order = np.lexsort((np.r_[np.zeros(len(groups)), np.ones(len(group))], np.r_[values, value], np.r_[groups, group]))
    before = np.cumsum(order < len(groups))
    place = np.empty(len(order), np.int64)
    place[order] = before - 1
    return place[len(groups) :]
