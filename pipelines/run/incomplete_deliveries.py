"""Which events wait while a connection goes on: those after the first frame of a delivery that is not whole yet.

A delivery stands at its first frame (`model.events`), but its row comes with its last one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.model import events as ev

PATIENCE_NS = 60 * 10**9
"""How long rows wait for others that are made later, in capture time: events for a delivery to be whole; what other
connections decide, for these."""
_EMPTY = pa.schema([("connection_id", pa.int64()), ("frame_no", pa.int64())]).empty_table()
Parts = dict[int, list[pa.Table]]


def cuts(parts: Parts, some: pa.Array, since_ns: int | None) -> pa.Table:
    """Return the connections with a delivery that is not whole, and its first frame: events from there on wait.

    Args:
        parts: prepared rows by source.
        some: connections that go on.
        since_ns: after what time a delivery began that is waited for; None for as long as the connection goes on.
    """
    found = [_EMPTY]
    whole = _rows(parts[ev.MESSAGES], ("connection_id", "order"), some)
    for source, words, stand_last in _contents(len(ev.FRAMES_OF)):
        columns = ("connection_id", "channel", "frame_no", "ts_ns", "from_client", "what")
        rows = _rows(parts.get(source, ()), columns, some)
        if not len(rows):
            continue
        begun = rows.filter(pc.and_(pc.is_in(rows["what"], value_set=words), pc.invert(rows["from_client"])))
        last = begun.group_by(["connection_id", "channel"]).aggregate([("frame_no", "max"), ("ts_ns", "max")])
        if since_ns is not None:
            last = last.filter(pc.greater(last["ts_ns_max"], since_ns))
        last = last.select(["connection_id", "frame_no_max"]).rename_columns(["connection_id", "frame_no"])
        others = begun.filter(pc.is_in(begun["what"], value_set=stand_last)).select(["connection_id", "frame_no"])
        for there in (whole.rename_columns(["connection_id", "frame_no"]), others):
            last = last.join(there, ["connection_id", "frame_no"], join_type="left anti")
        found.append(last.select(["connection_id", "frame_no"]))
    made = pa.concat_tables(found).group_by("connection_id").aggregate([("frame_no", "min")])
    return made.rename_columns({"frame_no_min": "frame_no"})


@cache
def _contents(_: int) -> list[tuple[int, pa.Array, pa.Array]]:
    """Return tables with frames that send contents, EV.WHAT of these, and of those whose messages stand at the end."""
    made = []
    for source, frames in ev.FRAMES_OF.items():
        first, last = ([ev.what(source, n) for n in names] for names in (frames.contents.first, frames.contents.last))
        if first or last:
            made.append((source, pa.array([*first, *last], pa.int16()), pa.array(last, pa.int16())))
    return made


def waits(rows: pa.Table, order: str, cuts: pa.Table) -> Any:
    """Return which rows (bool) wait.

    Args:
        rows: prepared ones.
        order: the column by which they are in order.
        cuts: see there.
    """
    cut = cuts["frame_no"].take(pc.index_in(rows["connection_id"], value_set=cuts["connection_id"].combine_chunks()))
    return pc.fill_null(pc.greater_equal(rows[order], cut), False).to_numpy().astype(np.bool_)


def _rows(parts: Iterable[pa.Table], columns: tuple[str, ...], some: pa.Array) -> pa.Table:
    found = [rows.select(columns).filter(pc.is_in(rows["connection_id"], value_set=some)) for rows in parts]
    return pa.concat_tables(found) if found else pa.table({name: pa.array([], pa.int64()) for name in columns})
