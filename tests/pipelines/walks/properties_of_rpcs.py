"""What must hold for rpcs of any events: batches, and where the walk is stopped, change no row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from amqpscope.pipelines.engine import batches
from amqpscope.pipelines.walks.rpcs import Rpcs
from amqpscope.pipelines.walks.walk import Collected

SIZES = (1, 2, 3, 7, 1000)


def rows_of(
    tables: Mapping[str, pa.Table], size: int, stop: bool = False, compiled: bool = False
) -> list[dict[str, Any]]:
    """All rows, ordered by connection and request; with `stop` a fresh walk goes on after every batch."""
    walk, found = Rpcs(compiled), Collected()
    for events in batches(tables, [walk], size):
        found.add(walk.feed(events))
        if stop:
            state = walk.take_out()
            assert list(walk.finish()) == []  # it is as new
            walk = Rpcs(compiled)
            walk.put_back(state)
    found.add(walk.finish())
    rows = found.table("rpcs").to_pylist()
    return sorted(rows, key=lambda row: (row["connection_id"], row["request_frame_no"]))


def same_in_every_manner(tables: Mapping[str, pa.Table], sizes: tuple[int, ...] = SIZES) -> list[dict[str, Any]]:
    """The rows, which are the same whatever the batches are, and wherever the walk is stopped."""
    whole = rows_of(tables, 1 << 20)
    for size in sizes:
        assert rows_of(tables, size) == whole
        assert rows_of(tables, size, stop=True) == whole
    return whole
