"""What must hold for every walk: rows depend on nothing but events."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from amqpscope.pipelines.model.walk import Collected, Walk
from amqpscope.pipelines.run.engine import in_order
from amqpscope.pipelines.run.sorting import Sorted
from tests.pipelines.scenario import Connection, arrow, check

Row = dict[str, Any]
SIZES = (1, 3, 50)


def manners(sizes: Sequence[int]) -> list[tuple[int, bool]]:
    """Each size of batches, and whether the state goes on in a fresh walk after each batch: with every other size.

    The first, which is the smallest, has the most borders: at each of them the state moves.
    """
    return [(size, number % 2 == 0) for number, size in enumerate(sizes)]


def over(make: Callable[[], Walk], ordered: Iterable[Sorted], size: int, moved: bool = False) -> Collected:
    """All that a walk yields, partial results included, in the order in which it comes.

    Args:
        make: the walk.
        ordered: what it walks over (`in_order`).
        size: events of a batch.
        moved: whether its state goes on in a fresh walk after every batch.
    """
    walk, found = make(), Collected()
    for events in itertools.chain.from_iterable(each.batches(size) for each in ordered):
        found.add(walk.feed(events))
        if moved:
            state = walk.take_out()
            assert list(walk.finish()) == []  # as new
            walk = make()
            walk.put_back(state)
    found.add(walk.finish())
    return found


def rows_of(
    make: Callable[[], Walk], tables: Mapping[str, pa.Table], size: int = 1000, stop: bool = False
) -> list[Row]:
    """Rows of a walk's first table, in an order of their own; with `stop` a fresh walk goes on after every batch."""
    return _rows_over(make, in_order(tables, [make()]), size, stop)


def _rows_over(make: Callable[[], Walk], ordered: Iterable[Sorted], size: int, moved: bool = False) -> list[Row]:
    found = over(make, ordered, size, moved)
    return sorted(found.table(make().tables[0]).to_pylist(), key=repr)


def checked(make: Callable[[], Walk], tables: Mapping[str, pa.Table], sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """The same rows, whatever the batches are, and wherever the walk is stopped (see `manners`)."""
    ordered = list(in_order(tables, [make()]))
    whole = _rows_over(make, ordered, 1 << 20)
    for size, stop in manners(sizes):
        assert _rows_over(make, ordered, size, stop) == whole, (size, stop)
    return whole


def check_made(
    make: Callable[[], Walk], made: Iterable[tuple[Connection, list[Row]]], *order: str, sizes: tuple[int, ...] = SIZES
) -> None:
    """Connections have the rows that must be, in the order of these columns, whatever the batches are."""
    made = list(made)
    rows: dict[int, list[Row]] = {}
    for row in checked(make, arrow(connection for connection, _ in made), sizes):
        rows.setdefault(row["connection_id"], []).append(row)
    for connection, expected in made:
        mine = rows.get(connection.id, [])
        check(sorted(mine, key=lambda row: [row[name] or 0 for name in order]), expected)
