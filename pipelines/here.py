"""The engine of this process: Arrow tables in memory, sorted and fed to walks. No Spark, no Java."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from amqpscope.pipelines.walks import events as ev
from amqpscope.pipelines.walks.events import Events, ordered, prepared
from amqpscope.pipelines.walks.walk import Collected, Walk, merged, schema

BATCH = 1 << 17
"""Events of a batch."""


def batches(tables: Mapping[str, pa.Table], walks: Sequence[Walk], size: int = BATCH) -> Iterator[Events]:
    """All rows of these tables as events in their order, with the columns that walks want.

    Args:
        tables: by name, those of `events.SOURCES` that there are.
        walks: which.
        size: events of a batch.
    """
    extra = {source: needs.columns for source, needs in merged(walks).items()}
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
