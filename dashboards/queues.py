"""Queues: what went in, what came out, how long it lay there, who reads it."""

from __future__ import annotations

from typing import Any

from amqpscope.dashboards import relations, units
from amqpscope.dashboards.section import Cell, Grid, Section, number, of_all
from amqpscope.dashboards.tables import Tables

MOST = 1_000
_HEADS = ("in", "out", "left", "wait", "longest", "consumer", "refused", "rejected")


def section(tables: Tables) -> Section:
    """Return the section of queues, those with most messages first."""
    page = Section("queues", "Queues")
    rows = sorted(relations.rows(tables, "queues"), key=_weight)
    if not rows:
        page.empty = "No queue was declared, and nothing was delivered from one."
        return page
    several = len({(row["server"], row["vhost"]) for row in rows}) > 1
    unknown = "?: bindings may be older than the capture." if any(row["ins"] is None for row in rows) else ""
    page.parts = [
        Grid(
            "Queues",
            ["queue", *(["broker, virtual host"] if several else []), *_HEADS],
            [_cells(row, several) for row in rows[:MOST]],
            " ".join(filter(None, (of_all(min(len(rows), MOST), len(rows)), unknown))),
            page=8,
        )
    ]
    return page


def _weight(row: dict[str, Any]) -> tuple[int, int, str]:
    messages = (row["outs"] or 0) + (row["ins"] or 0) + (row["nacked"] or 0)
    return (-messages, -(row["consumers"] or 0), row["queue"] or "")


def _cells(row: dict[str, Any], several: bool) -> list[Cell]:
    left = row["left_over"]
    return [
        Cell(row["queue"] or units.NONE),
        *([Cell(f"{row['server']} {row['vhost']}")] if several else []),
        number("?" if row["ins"] is None else units.count(row["ins"])),
        number(units.count(row["outs"])),
        number("?" if left is None else f"{left:+,}" if left else "0", bad=bool(left and left > 0)),
        number(units.duration(row["wait_p50_ns"])),
        number(units.duration(row["wait_max_ns"])),
        Cell(_reader(row)),
        number(units.count(row["nacked"]) if row["nacked"] else units.NONE, bad=bool(row["nacked"])),
        number(units.count(row["rejected"]) if row["rejected"] else units.NONE, bad=bool(row["rejected"])),
    ]


def _reader(row: dict[str, Any]) -> str:
    if row["consumers"] == 1:
        limit = "?" if row["prefetch"] is None else "none" if row["prefetch"] == 0 else str(row["prefetch"])
        return f"{row['called'] or row['consumer_tag']} (prefetch {limit})"
    if row["consumers"]:
        return f"{row['consumers']} consumers"
    return "basic.get" if row["gets"] else "none"
