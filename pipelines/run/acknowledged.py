"""Join requests with the time at which TCP first acknowledged their last byte, which comes in rows of its own.

A row of `tcp_acks` is about a range of frames, and comes after them. So events of a connection that goes on wait, from
the first request of which neither this time nor that of a later one has come. They wait for PATIENCE_NS at most; an
acknowledgement that is later than that does not count, however rows come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.pipelines.model import events as ev
from amqpscope.pipelines.model.event_rows import ACKED
from amqpscope.pipelines.model.walk import Needs
from amqpscope.pipelines.run.sorting import PLACE

PATIENCE_NS = 60 * 10**9
"""How late an acknowledgement may be, by the times of packets."""
LONGEST = 1 << 16
"""Frames from the one at which a message stands to its last one; of a longer message nothing is known."""
BITS = 40
"""Of numbers of frames."""
Tables = dict[int, tuple[pa.Table, pa.Table | None]]
"""By source, all rows and the further columns of some of them."""


def asking(needs: Sequence[Mapping[int, Needs]]) -> dict[int, pa.Array]:
    """Return the rows (EV.WHAT) of each source of which walks with these needs want to know this time."""
    found: dict[int, set[int]] = {}
    for each in needs:
        for source, of in each.items():
            found.setdefault(source, set()).update(ev.what(source, name) for name in of.asks)
    return {source: pa.array(sorted(words), pa.int16()) for source, words in found.items() if words}


def join(tables: Tables, acks: pa.Table | None, asks: Mapping[int, pa.Array]) -> None:
    """Add the column ACKED to what is stored of requests.

    Args:
        tables: with all rows of `asks` that are joined; changed.
        acks: those of the same frames, or None for none.
        asks: see `asking`.
    """
    for source in asks.keys() & tables.keys():
        rows, further = tables[source]
        at = np.flatnonzero(pc.is_in(rows["what"], value_set=asks[source]).to_numpy())
        found = _found(source, rows.take(pa.array(at)), acks) if acks is not None else np.zeros(len(at), np.int64)
        if further is not None:
            at = rows[PLACE].take(pa.array(at)).to_numpy()
        stored = rows if further is None else further
        values = np.zeros(len(stored), np.int64)
        values[at] = found
        stored = stored.append_column(ACKED, pa.array(values, mask=values == 0))
        tables[source] = (stored, None) if further is None else (rows, stored)


def _found(source: int, rows: pa.Table, acks: pa.Table) -> Ints:
    """Return when each row was acknowledged (ns), 0 where that is not known."""
    known = acks["connection_id"].unique()
    keys = _keys(acks, known, acks["last_frame_no"], pc.invert(acks["from_client"]))
    by = np.argsort(keys, kind="stable")
    keys, first, acked = keys[by], acks["first_frame_no"].to_numpy()[by], acks["ts_ns"].to_numpy()[by]
    frame = rows["frame_no"].fill_null(-1).to_numpy()
    wanted = _keys(rows, known, rows["frame_no"], rows["from_client"])
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    same = (keys[at] >> BITS == wanted >> BITS) & (wanted >= 0) & (keys[at] >= wanted) & (first[at] <= frame)
    same &= acked[at] - rows["ts_ns"].fill_null(0).to_numpy() <= PATIENCE_NS
    if source == ev.MESSAGES:
        same &= frame - rows["order"].fill_null(-1).to_numpy() <= LONGEST
    found: Ints = np.where(same, acked[at], 0)
    return found


def _keys(rows: pa.Table, known: pa.Array, frames: Any, sides: Any) -> Ints:
    """Return connection, side and frame of each row as one number, below 0 where one of these is not known."""
    connection = pc.index_in(rows["connection_id"], value_set=known).cast(pa.int64())
    values = pc.add(pc.multiply(connection, 2), sides.cast(pa.int64()))
    keys = pc.add(pc.shift_left(values, BITS), frames)
    return keys.fill_null(-1).to_numpy()


def cuts(
    parts: Mapping[int, Iterable[pa.Table]], asks: Mapping[int, pa.Array], some: pa.Array, now_ns: int
) -> pa.Table:
    """Return the connections with a request that may still be acknowledged, and where it stands: from there they wait.

    Args:
        parts: prepared rows by source.
        asks: see `asking`.
        some: connections that go on.
        now_ns: the time of what was read last, of any connection.
    """
    acks = _rows(parts, ev.ACKS, ("connection_id", "from_client", "last_frame_no"), some)
    acks = acks.set_column(1, "from_client", pc.invert(acks["from_client"]))
    through = acks.group_by(["connection_id", "from_client"]).aggregate([("last_frame_no", "max")])
    found = []
    for source, words in asks.items():
        order = ev.order(source)
        columns = tuple(dict.fromkeys(("connection_id", "from_client", "frame_no", "ts_ns", "what", order)))
        rows = _rows(parts, source, columns, some)
        rows = rows.filter(pc.is_in(rows["what"], value_set=words)).join(through, ["connection_id", "from_client"])
        rows = rows.filter(pc.greater(rows["frame_no"], pc.fill_null(rows["last_frame_no_max"], -1)))
        found.append(
            rows.select(["connection_id", "ts_ns", order]).rename_columns(["connection_id", "ts_ns", "frame_no"])
        )
    if not found:
        return pa.table({"connection_id": pa.array([], pa.int64()), "frame_no": pa.array([], pa.int64())})
    waiting = pa.concat_tables(found)
    is_young = pc.greater(waiting["ts_ns"], now_ns - PATIENCE_NS)
    return first(waiting.filter(is_young).select(["connection_id", "frame_no"]))


def first(waiting: pa.Table) -> pa.Table:
    """Return for each connection the first frame from which on its events wait."""
    made = waiting.group_by("connection_id").aggregate([("frame_no", "min")])
    return made.rename_columns({"frame_no_min": "frame_no"})


def _rows(parts: Mapping[int, Iterable[pa.Table]], source: int, columns: Sequence[str], some: pa.Array) -> pa.Table:
    found = [part.select(columns).filter(pc.is_in(part["connection_id"], value_set=some)) for part in parts[source]]
    kinds = {"from_client": pa.bool_(), "what": pa.int16()}
    return pa.concat_tables(
        [pa.schema([(name, kinds.get(name, pa.int64())) for name in columns]).empty_table(), *found]
    )


def spread(acks: pa.Table, span: int) -> tuple[pa.Table, Ints]:
    """Return rows once for each span of frames in which messages that they are about may stand, and that span."""
    begin = np.maximum(acks["first_frame_no"].to_numpy() - LONGEST, 0) // span
    counts = acks["last_frame_no"].to_numpy() // span - begin + 1
    at = np.repeat(np.arange(len(acks)), counts)
    within = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
    return acks.take(pa.array(at)), begin[at] + within
