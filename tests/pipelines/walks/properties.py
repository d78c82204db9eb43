"""What must hold for every walk: rows depend on nothing but events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from amqpscope.pipelines.engine import batches
from amqpscope.pipelines.walks.walk import Collected, Walk

Row = dict[str, Any]
SIZES = (1, 2, 3, 7, 1000)


def rows_of(
    make: Callable[[], Walk], tables: Mapping[str, pa.Table], size: int = 1000, stop: bool = False
) -> list[Row]:
    """Rows of a walk's first table, in an order of their own; with `stop` a fresh walk goes on after every batch."""
    walk, found = make(), Collected()
    for events in batches(tables, [walk], size):
        found.add(walk.feed(events))
        if stop:
            state = walk.take_out()
            assert list(walk.finish()) == []  # as new
            walk = make()
            walk.put_back(state)
    found.add(walk.finish())
    return sorted(found.table(walk.tables[0]).to_pylist(), key=repr)


def checked(make: Callable[[], Walk], tables: Mapping[str, pa.Table], sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """The same rows, whatever the batches are, and wherever the walk is stopped."""
    whole = rows_of(make, tables, 1 << 20)
    for size in sizes:
        assert rows_of(make, tables, size) == whole
        assert rows_of(make, tables, size, stop=True) == whole
    return whole
