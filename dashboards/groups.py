"""Group rows of a table: their number, their connections, and the first of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dashboards.tables import Tables

_ORDER = ("connection_id", "channel", "publish_seq", "delivery_tag", "frame_no")
"""Columns that order rows of one time."""


@dataclass(frozen=True)
class Group:
    """Rows with a condition and the same values of some columns.

    Attributes:
        key: Those values.
        count: Rows that fulfil the condition.
        rows: All rows with these values, also others; `count` where that was not asked for.
        connections: Connections of the rows that fulfil it.
        first: The earliest of them.
    """

    key: tuple[Any, ...]
    count: int
    rows: int
    connections: tuple[int | None, ...]
    first: dict[str, Any]


def query(
    tables: Tables,
    name: str,
    keys: Sequence[str],
    condition: pc.Expression,
    time: str,
    columns: Sequence[str],
    among: pc.Expression | None = None,
) -> list[Group]:
    """Return the groups of rows that fulfil a condition, most rows first.

    Args:
        tables: Where the table is.
        name: The table.
        keys: Columns whose values make the groups.
        condition: What rows have to fulfil.
        time: Column that says which is first.
        columns: What is wanted of the first row.
        among: Rows that are counted as all; without it only those that fulfil the condition are.
    """
    if not tables.rows(name, condition):
        return []
    fulfilled = pc.coalesce(condition, pc.scalar(False))
    counted = tables.group(
        name,
        [*keys, "connection_id"],
        {"count": ("fulfilled", "sum"), "rows": ("fulfilled", "count"), "first": ("time", "min")},
        columns={
            "fulfilled": fulfilled.cast(pa.int64()),
            "time": pc.if_else(fulfilled, pc.field(time), pc.scalar(pa.scalar(None, pa.int64()))),
        },
        where=condition if among is None else condition | among,
    )
    members: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in counted.to_pylist():
        members.setdefault(tuple(row[key] for key in keys), []).append(row)
    begins = {
        key: min((r["first"] for r in rows if r["first"] is not None), default=None)
        for key, rows in members.items()
        if any(r["count"] for r in rows)
    }
    first = _firsts(tables, name, keys, condition, time, columns, begins)
    made = [
        Group(
            key,
            sum(r["count"] for r in members[key]),
            sum(r["rows"] for r in members[key]),
            tuple(r["connection_id"] for r in members[key] if r["count"]),
            first.get(key, dict.fromkeys([*columns, *keys, time, "connection_id"])),
        )
        for key in begins
    ]
    return sorted(made, key=lambda g: (-g.count, begins[g.key] or 0, [str(k) for k in g.key]))


def _firsts(
    tables: Tables,
    name: str,
    keys: Sequence[str],
    condition: pc.Expression,
    time: str,
    columns: Sequence[str],
    begins: dict[tuple[Any, ...], int | None],
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the row of each group that has the time at which the group begins."""
    times = pa.array(sorted({t for t in begins.values() if t is not None}), pa.int64())
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    asked = list(dict.fromkeys([*keys, time, "connection_id", *columns]))
    for batch in tables.scan(name, asked, condition & pc.field(time).isin(times)):
        for row in batch.to_pylist():
            key = tuple(row[k] for k in keys)
            if begins.get(key) == row[time] and (key not in found or _place(row) < _place(found[key])):
                found[key] = row
    return found


def _place(row: dict[str, Any]) -> list[tuple[bool, int]]:
    return [(row.get(name) is None, row.get(name) or 0) for name in _ORDER]
