"""The engine of this process: rows in memory, sorted and fed to walks. No Spark, no Java."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from amqpscope.pipelines.preparing import with_windows
from amqpscope.pipelines.sorting import BATCH, Gathered
from amqpscope.pipelines.walks import events as ev
from amqpscope.pipelines.walks.events import Events
from amqpscope.pipelines.walks.walk import Collected, Walk


def batches(tables: Mapping[str, pa.Table], walks: Sequence[Walk], size: int = BATCH) -> Iterator[Events]:
    """All rows of these tables as events in their order, with the columns that walks want.

    Args:
        tables: by name, those of `events.SOURCES` that there are, and `tcp_windows`.
        walks: which.
        size: events of a batch.
    """
    gathered = Gathered([walk.needs for walk in walks])
    for source, name in enumerate(ev.SOURCES):
        if name in tables:
            rows = tables[name]
            if source == ev.CONNECTIONS and "tcp_windows" in tables:
                rows = with_windows(rows, tables["tcp_windows"])
            gathered.add(source, gathered.prepare(source, rows))
    yield from gathered.sorted().batches(size)


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
