"""Both ends of a pair as columns: when and where the answer was seen, the latency, why there was none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.model.events import Events
from amqpscope.pipelines.model.unanswered import CAPTURE_END, DISCARDED, ENDED_BY

COLUMNS = ("frame_no", "ts_ns", "capture", "packet")
"""When and where a frame was seen."""
OPEN_NS = 1 << 62
"""Stands for the time of the last packet of a connection that goes on."""


def answers_of(
    events: Events | None, ids: Any, base: int, source: int, columns: tuple[str, ...] = COLUMNS
) -> dict[str, pa.ChunkedArray]:
    """Return columns of the frames that answer; null where there is none.

    Args:
        events: the batch that they are in; None where nothing is answered.
        ids: int64, ids of events; -1 for none.
        base: id of the batch's first event.
        source: the table that they are in.
        columns: their names.
    """
    there = np.flatnonzero(ids >= 0)
    if events is None or not len(there):
        return {name: pa.chunked_array([pa.nulls(len(ids))]) for name in columns}
    found = events.take(source, ids[there] - base, columns)
    if len(there) == len(ids):
        return {name: found[name] for name in columns}
    place = np.full(len(ids), -1, np.int64)
    place[there] = np.arange(len(there))
    places = pa.array(place, mask=place < 0)
    return {name: found[name].take(places) for name in columns}


def latency(begun: Any, ended: pa.ChunkedArray, timed: Any) -> pa.Array:
    """Return the time between two ends (int64, ns); null where it is not reported, or does not fit.

    Args:
        begun: int64, ns.
        ended: the same, null for none.
        timed: bool, whether it is reported.
    """
    until = ended.cast(pa.int64()).fill_null(0).to_numpy()
    with np.errstate(over="ignore"):
        found = until - begun
    wraps = ((until ^ begun) & (until ^ found)) < 0
    return pa.array(found, mask=~timed | wraps | ended.is_null().to_numpy())


def durations(start: Any, end: Any) -> Any:
    """Return differences of times; -1 where an end is unknown, clocks stepped back, or they exceed 292 years."""
    made = end - start
    return np.where((end < 0) | (end < start) | (made < 0), -1, made)


def ended(by: Any, ts: Any, begun: Any, cut_by: pa.ChunkedArray | None = None) -> dict[str, pa.Array]:
    """Return the columns `ended_by` and `end_ts_ns`; of messages `incomplete` as well.

    Args:
        by: int64, of `unanswered.ENDED_BY`; 0 where it was answered.
        ts: int64, ns; -1 for unknown: the beginning of the wait is then reported.
        begun: int64, ns: when the wait began.
        cut_by: of messages, as in `messages`: what is not whole waits for no answer.
    """
    made = {}
    if cut_by is not None:
        cut = cut_by.cast(pa.string())
        made["incomplete"] = pc.is_valid(cut).combine_chunks()
        why = np.where(pc.equal(cut, "sender").fill_null(False).to_numpy(), DISCARDED, CAPTURE_END)
        is_cut = (by != 0) & made["incomplete"].to_numpy(zero_copy_only=False)
        by, ts = np.where(is_cut, why, by), np.where(is_cut, -1, ts)
    return made | {
        "ended_by": pa.array(ENDED_BY, pa.string()).take(pa.array(by)),
        "end_ts_ns": pa.array(np.where(ts < 0, begun, ts), mask=by == 0),
    }
