"""What walks need of connections besides their rows: the time range of a dissection, and what TCP shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.model.listed import LISTED
from amqpscope.pipelines.model.walk import schema

PACKET = 1400
"""Bytes of a body that nearly always fit into one packet."""


TIMED = ("capture", "kind", "body_size", "is_partial", "unfinished")
"""What `timed` takes of messages."""


def is_part(note: Mapping[str, Any]) -> bool:
    """Return whether only a part of a capture was dissected: a side may then be silent without being missing."""
    return not note.get("complete", True) or note.get("from_ns") is not None or note.get("to_ns") is not None


def in_range(connections: pa.Table, note: Mapping[str, Any]) -> pa.Table:
    """Return connections clipped to the requested time range, with `is_partial`.

    What lies outside of the range ends nothing that is outstanding in it, and is no silence.

    Args:
        connections: rows with `first_ts_ns`, `last_ts_ns`, `closed_ts_ns`, `closed_by`.
        note: of the dissection: `complete`, `from_ns`, `to_ns`.
    """
    from_ns, to_ns = note.get("from_ns"), note.get("to_ns")
    columns = {name: connections[name] for name in connections.column_names}
    if from_ns is not None:
        columns["first_ts_ns"] = pc.max_element_wise(columns["first_ts_ns"], from_ns, skip_nulls=False)
    if to_ns is not None:
        ended = pc.coalesce(columns["closed_ts_ns"], columns["last_ts_ns"])
        closed = pc.fill_null(pc.less(ended, to_ns), False)
        for name in ("closed_by", "closed_ts_ns"):
            columns[name] = pc.if_else(closed, columns[name], pa.scalar(None, columns[name].type))
        columns["last_ts_ns"] = pc.min_element_wise(columns["last_ts_ns"], to_ns, skip_nulls=False)
    columns["is_partial"] = pa.repeat(pa.scalar(is_part(note)), len(connections))
    return pa.table(columns)


def spans(frames: Iterable[pa.Table], protocol: str) -> pa.Table:
    """Return first and last time of the frames of each connection, for `with_missing`.

    Args:
        frames: in parts, with `connection_id` and `ts_ns`.
        protocol: of these.
    """
    ends = [
        part.group_by("connection_id").aggregate([("ts_ns", "min"), ("ts_ns", "max")]).combine_chunks()
        for part in frames
    ]
    names = ("connection_id", "ts_ns_min", "ts_ns_max")
    empty = pa.schema([(name, pa.int64()) for name in names]).empty_table()
    found = pa.concat_tables([empty, *(part.select(names) for part in ends)])
    times = found.group_by("connection_id").aggregate([("ts_ns_min", "min"), ("ts_ns_max", "max")])
    times = times.rename_columns({"ts_ns_min_min": "ts_ns_min", "ts_ns_max_max": "ts_ns_max"})
    return pa.table(
        {
            "connection_id": times["connection_id"],
            "protocol": pa.repeat(pa.scalar(protocol), len(times)),
            "first_ts_ns": times["ts_ns_min"],
            "last_ts_ns": times["ts_ns_max"],
        }
    )


def with_missing(connections: pa.Table, spans: Iterable[pa.Table]) -> pa.Table:
    """Add rows for connections that were open when dissection was interrupted, with protocol and times.

    Args:
        connections: the table.
        spans: `spans` of all frames, by protocol.
    """
    for seen in spans:
        known = pc.is_in(seen["connection_id"], value_set=connections["connection_id"].combine_chunks())
        missing = seen.filter(pc.and_(pc.invert(known), pc.is_valid(seen["connection_id"])))
        columns = [
            missing[field.name].cast(field.type)
            if field.name in missing.column_names
            else pa.nulls(len(missing), field.type)
            for field in connections.schema
        ]
        connections = pa.concat_tables([connections, pa.table(columns, schema=connections.schema)])
    return connections


def snapped(captures: pa.Table) -> pa.Array:
    """Return the names of captures whose packets are cut by a snap length."""
    return captures["capture"].filter(pc.fill_null(pc.less(captures["snap_length"], PACKET), False)).unique()


def timed(messages: pa.Table, cut: pa.Array) -> pa.Table:
    """Return messages, `unfinished` where the time of their end is unknown: a packet with bytes of them is missing.

    Those that lie in one packet have a time even if the snap length cut their end. Deliveries of unknown size count as
    such, for their methods are long, and mostly the size is cut as well; publishes of unknown size do not.

    Args:
        messages: rows with TIMED.
        cut: the captures with cut packets.
    """
    is_cut = pc.is_in(messages["capture"].cast(pa.string()), value_set=cut)
    lost = pc.and_not(messages["is_partial"].fill_null(False), is_cut)
    may_be_small = pc.not_equal(messages["kind"].cast(pa.string()), "publish")
    whole = pc.and_(is_cut, pc.coalesce(pc.less(messages["body_size"], PACKET), may_be_small))
    at = messages.column_names.index("unfinished")
    return messages.set_column(at, "unfinished", pc.or_(pc.and_not(messages["unfinished"], whole), lost))


def with_tcp(connections: pa.Table, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Attach what TCP shows, which has no frame number, to the rows of its connections.

    Args:
        connections: with `connection_id`.
        tables: by name, those of LISTED that there are.

    Returns:
        The rows of `connections` with a column for each table, named as in LISTED: a list of what it has besides the
        connection, in its order; null where there is none.
    """
    for column, name in LISTED.items():
        if name in tables:
            connections = connections.append_column(column, _lists(connections, name, tables[name]))
    return connections


def _lists(connections: pa.Table, name: str, rows: pa.Table) -> pa.ListArray:
    row = pc.index_in(rows["connection_id"], value_set=connections["connection_id"])
    row = row.fill_null(len(connections)).to_numpy()
    order = np.argsort(row, kind="stable")
    counts = np.bincount(row, minlength=len(connections) + 1)[: len(connections)]
    names = [field.name for field in schema(name) if field.name != "connection_id"]
    listed = rows.select(names).take(order[: counts.sum()])
    ends = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    return pa.ListArray.from_arrays(ends, listed.to_struct_array().combine_chunks(), mask=pa.array(counts == 0))
