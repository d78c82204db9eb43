"""Which events wait in a batch: those after the first frame of a delivery that is not whole yet (`model.events`)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.model import events as ev

PATIENCE_NS = 60 * 10**9
"""How long rows wait for others that are made later, in capture time: events for a delivery to be whole; what other
connections decide, for these."""
CONTENTS = {ev.FRAMES: ("basic.deliver", "basic.get-ok", "basic.return"), ev.FRAMES_010: ("message.transfer",)}
"""Methods by which a server sends contents: one after the other on each channel."""
Tables = dict[str, pa.Table]
"""Rows by table."""


def cuts(tables: Tables, ended: pa.Array) -> pa.Table:
    """Return the connections with a delivery that is not whole, and its first frame, where events wait.

    Args:
        tables: rows of a batch.
        ended: connections that ended.
    """
    found = [pa.table({"connection_id": pa.array([], pa.int64()), "frame_no_max": pa.array([], pa.int64())})]
    whole = tables["messages"].select(["connection_id", "first_frame_no"])
    for source, methods in CONTENTS.items():
        rows = tables[ev.SOURCES[source]]
        if not len(rows):
            continue
        since = (pc.max(rows["ts_ns"]).as_py() or 0) - PATIENCE_NS
        begun = pc.and_(pc.is_in(rows["method"], value_set=pa.array(methods)), pc.invert(rows["from_client"]))
        last = rows.filter(begun).group_by(["connection_id", "channel"])
        last = last.aggregate([("frame_no", "max"), ("ts_ns", "max")])
        last = last.filter(pc.greater_equal(last["ts_ns_max"], since))
        last = last.filter(pc.invert(pc.is_in(last["connection_id"], value_set=ended)))
        right = ["connection_id", "first_frame_no"]
        open_ = last.join(whole, ["connection_id", "frame_no_max"], right, join_type="left anti")
        found.append(open_.select(["connection_id", "frame_no_max"]))
    return pa.concat_tables(found).group_by("connection_id").aggregate([("frame_no_max", "min")])


def split(name: str, rows: pa.Table, cuts: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows of a table that are events now, and those that wait (`cuts`)."""
    order = rows["frame_no"]
    if name == "messages":
        delivered = pc.is_in(rows["kind"], value_set=pa.array(["deliver", "get"]))
        order = pc.if_else(delivered, pc.coalesce(rows["first_frame_no"], order), order)
    cut = cuts["frame_no_max_min"].take(pc.index_in(rows["connection_id"], value_set=cuts["connection_id"]))
    waits = pc.fill_null(pc.greater_equal(order, cut), False)
    return rows.filter(pc.invert(waits)), rows.filter(waits)
