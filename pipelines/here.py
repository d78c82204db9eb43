"""The engine of this process: Arrow tables in memory, sorted and fed to walks. No Spark, no Java."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.walks import events as ev
from amqpscope.pipelines.walks.events import Events, ordered, prepared
from amqpscope.pipelines.walks.walk import Collected, Walk, merged, schema

BATCH = 1 << 17
"""Events of a batch."""
WINDOWS = "windows"
"""Column of connections with the rows of `tcp_windows`."""


def batches(tables: Mapping[str, pa.Table], walks: Sequence[Walk], size: int = BATCH) -> Iterator[Events]:
    """All rows of these tables as events in their order, with the columns that walks want.

    Args:
        tables: by name, those of `events.SOURCES` that there are, and `tcp_windows`.
        walks: which.
        size: events of a batch.
    """
    extra = {source: needs.columns for source, needs in merged(walks).items()}
    if "connections" in tables and WINDOWS in extra.get(ev.CONNECTIONS, ()):
        windows = tables.get("tcp_windows", schema("tcp_windows").empty_table())
        tables = {**tables, "connections": with_windows(tables["connections"], windows)}
    sources = {}
    for source, name in enumerate(ev.SOURCES):
        if name in tables:
            rows = tables[name]
            wanted = (*ev.LEADING[source], *extra.get(source, ()))
            missing = [column for column in wanted if column not in rows.column_names]
            for column in missing:
                rows = rows.append_column(
                    schema(name).field(column), pa.nulls(len(rows), schema(name).field(column).type)
                )
            sources[source] = prepared(source, rows)
    everything = ordered(sources)
    for first in range(0, len(everything), size):
        yield everything.slice(first, size)


def with_windows(connections: pa.Table, tcp_windows: pa.Table) -> pa.Table:
    """Attach the rows of `tcp_windows`, which have no frame number, to the rows of their connections.

    Args:
        connections: with `connection_id`.
        tcp_windows: the table.

    Returns:
        The rows of `connections` with `windows`: a list of what `tcp_windows` has besides the connection, in its order;
        null where there is none.
    """
    row = pc.index_in(tcp_windows["connection_id"], value_set=connections["connection_id"])
    row = row.fill_null(len(connections)).to_numpy()
    order = np.argsort(row, kind="stable")
    counts = np.bincount(row, minlength=len(connections) + 1)[: len(connections)]
    names = [field.name for field in schema("tcp_windows") if field.name != "connection_id"]
    windows = tcp_windows.select(names).take(order[: counts.sum()])
    ends = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    lists = pa.ListArray.from_arrays(ends, windows.to_struct_array().combine_chunks(), mask=pa.array(counts == 0))
    return connections.append_column(WINDOWS, lists)


def walked(tables: Mapping[str, pa.Table], walks: Sequence[Walk], size: int = BATCH) -> dict[str, pa.Table]:
    """The tables that these walks write over these rows.

    Args:
        tables: see `batches`.
        walks: fresh ones.
        size: events of a batch.
    """
    found = Collected()
    for events in batches(tables, walks, size):
        for walk in walks:
            found.add(walk.feed(events))
    for walk in walks:
        found.add(walk.finish())
    return {name: found.table(name) for walk in walks for name in walk.tables}
