"""The way of messages: client, exchange and key, queue, consumer; how much goes where, as far as the capture shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from amqpscope.dashboards import relations, units
from amqpscope.dashboards.section import Cell, Grid, Section, number, of_all
from amqpscope.dashboards.tables import Tables

MOST = 12
"""Things that are shown in each column: those with most messages."""
ROW, EDGE = 56, 12
"""Height of a thing, and of the space above the first (CSS pixels)."""
LISTED = 1_000
HEADS = ("clients that publish", "exchange and key", "queue", "consumers")
DEFAULT = "(default exchange)"
_EDGES = {"publish": 0, "route": 1, "consume": 2}


@dataclass(frozen=True)
class Node:
    """A thing: its name, what is said of it, and whether something is wrong with it."""

    name: str
    text: str
    is_bad: bool = False


@dataclass(frozen=True)
class Link:
    """An edge as an SVG path in a strip of 100 by `Flow.height` units, and its width in pixels."""

    path: str
    width: float
    is_bad: bool = False


@dataclass(frozen=True)
class Flow:
    """Four columns of things, and the edges between each two of them."""

    columns: Sequence[Sequence[Node]]
    strips: Sequence[Sequence[Link]]
    height: int
    alt: str
    heads: Sequence[str] = HEADS


def section(tables: Tables) -> Section:
    """Return the section of the way of messages."""
    page = Section("flow", "Who sends what to whom")
    rows = relations.rows(tables, "topology")
    if not rows:
        page.empty = "Nothing was published or delivered."
        return page
    page.lead = "Widths grow with the number of messages. Routes show only where bindings were seen."
    page.parts = [_drawn(rows, tables), _grid(rows)]
    return page


def _drawn(rows: Sequence[dict[str, Any]], tables: Tables) -> Flow:
    edges = [_edges(rows, place) for place in range(3)]
    weights: list[dict[str, int]] = [{}, {}, {}, {}]
    for place, found in enumerate(edges):
        for (left, right), (messages, _) in found.items():
            weights[place][left] = max(weights[place].get(left, 0), 0) + messages
            if place == 2:
                weights[3][right] = weights[3].get(right, 0) + messages
            weights[place + 1].setdefault(right, 0)
    published: dict[str, int] = {}
    for (_, hub), (messages, _) in edges[0].items():
        published[hub] = published.get(hub, 0) + messages
    weights[1].update(published)  # also where it went to no queue, or to several
    for (_, right), (messages, _) in edges[1].items():
        weights[2][right] = max(weights[2][right], messages)
    span = _span(tables)
    said = _latencies(tables)
    bad = {left for found in edges for (left, right), (_, refused) in found.items() if refused}
    kept = [sorted(column, key=lambda name: -column[name])[:MOST] for column in weights]
    columns = [
        [
            Node(
                name,
                ", ".join(filter(None, (_text(weights[place][name], span), said.get((place, name))))),
                place == 1 and name in bad,
            )
            for name in names
        ]
        for place, names in enumerate(kept)
    ]
    for place, names in enumerate(kept):
        more = len(weights[place]) - len(names)
        if more > 0:
            columns[place].append(Node(f"and {units.count(more)} more", "in the table below"))
    most = max((messages for found in edges for messages, _ in found.values()), default=1)
    strips = [_strip(edges[place], kept[place], kept[place + 1], most) for place in range(3)]
    height = EDGE + ROW * max(len(column) for column in columns)
    what = ", ".join(f"{len(weights[place])} {HEADS[place]}" for place in range(4))
    return Flow(columns, strips, height, f"The way of messages through {what}; the table below has each edge.")


def _edges(rows: Sequence[dict[str, Any]], place: int) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the edges from one column to the next: messages, and those refused or returned."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        if _EDGES.get(row["edge"]) != place:
            continue
        hub = f"{row['exchange'] or DEFAULT} {row['routing_key'] or ''}".strip()
        hub = f"stream {row['queue']}" if row["edge"] == "publish" and row["exchange"] is None else hub
        taker = f"{row['client']}: {row['consumer_tag']}" if row["consumer_tag"] else str(row["client"])
        ends = ((str(row["client"]), hub), (hub, str(row["queue"])), (str(row["queue"]), taker))[place]
        messages, bad = found.get(ends, (0, 0))
        found[ends] = messages + (row["messages"] or 0), bad + (row["refused"] or 0) + (row["returns"] or 0)
    return found


def _latencies(tables: Tables) -> dict[tuple[int, str], str]:
    """Return what is said of latencies, by column and name: time in queues, and until consumers acknowledge."""
    found = {
        (2, row["queue"]): f"wait {units.duration(row['wait_p50_ns'])} to {units.duration(row['wait_max_ns'])}"
        for row in relations.rows(tables, "queues")
        if row["wait_p50_ns"] is not None
    }
    for row in relations.rows(tables, "consumers"):
        if row["settle_p50_ns"] is not None:
            found[3, f"{row['client']}: {row['consumer_tag']}"] = f"ack {units.duration(row['settle_p50_ns'])}"
    return found


def _text(messages: int, span: float) -> str:
    return f"{units.count(messages)}, {units.rate(messages / span)} per s" if messages else "?"


def _span(tables: Tables) -> float:
    rates = [row["ts_ns"] for row in relations.rows(tables, "rates", ["ts_ns"], ("grouping", ["all"]))]
    return max((max(rates) - min(rates)) / units.SECOND, 1.0) if rates else 1.0


def _strip(
    edges: dict[tuple[str, str], tuple[int, int]], left: Sequence[str], right: Sequence[str], most: int
) -> list[Link]:
    links = []
    for (a, b), (messages, bad) in edges.items():
        if a not in left or b not in right:
            continue
        up, down = (EDGE + ROW * names.index(name) + ROW // 2 - 2 for names, name in ((left, a), (right, b)))
        width = 1 + 9 * float(np.sqrt(messages / most))
        links.append(Link(f"M0 {up}C50 {up} 50 {down} 100 {down}", round(width, 1), bool(bad)))
    return sorted(links, key=lambda link: -link.width)


def _grid(rows: Sequence[dict[str, Any]]) -> Grid:
    rows = sorted(rows, key=lambda row: (_EDGES.get(row["edge"], 3), -(row["messages"] or 0)))
    return Grid(
        "Each edge",
        ["edge", "client", "exchange", "key", "queue", "consumer", "messages", "bytes", "refused", "returned"],
        [
            [
                Cell(row["edge"] or units.NONE),
                Cell(row["client"] or units.NONE),
                Cell(units.NONE if row["exchange"] is None else row["exchange"] or DEFAULT),
                Cell(row["routing_key"] or units.NONE),
                Cell(row["queue"] or units.NONE),
                Cell(row["consumer_tag"] or units.NONE),
                number(units.count(row["messages"])),
                number(units.size(row["bytes"])),
                number(units.count(row["refused"] or 0), bad=bool(row["refused"])),
                number(units.count(row["returns"] or 0), bad=bool(row["returns"])),
            ]
            for row in rows[:LISTED]
        ],
        of_all(min(len(rows), LISTED), len(rows)),
        folded=True,
    )
