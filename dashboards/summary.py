"""Latency in numbers: percentiles by group, with what they rest on."""

import math
from typing import Any

import pyarrow.compute as pc

from amqpscope.dashboards import connections, outcomes, percentiles, units
from amqpscope.dashboards.outcomes import Distribution
from amqpscope.dashboards.section import Cell, Grid, Section, missing, number, of_all
from amqpscope.dashboards.tables import Tables

GROUPS = 1_000
"""Groups listed for each metric and grouping: those with most samples."""
PAGE = 3

SHARES = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99, "p999_ns": 0.999, "p9999_ns": 0.9999}
"""Column of a percentile to its share."""

KEYS = {
    "all": (),
    "connection": ("connection_id",),
    "channel": ("connection_id", "channel", "channel_epoch"),
    "exchange": ("exchange",),
    "routing_key": ("exchange", "routing_key"),
    "queue": ("queue",),
    "consumer_tag": ("connection_id", "consumer_tag"),
    "stream": ("stream",),
    "request": ("request",),
}
"""Grouping to the columns in which its groups differ."""

_TITLES = {
    "connection": "connection",
    "channel": "channel",
    "exchange": "exchange",
    "routing_key": "routing key",
    "queue": "queue",
    "consumer_tag": "consumer",
    "stream": "stream",
}
_HEADS = ["answered", "failed", "still open", "50 %", "90 %", "99 %", "99.9 %", "99.99 %", "slowest"]
_VALUES = ["count", "failed", "censored", *SHARES, "max_ns"]
_ALL_KEYS = list(dict.fromkeys(k for keys in KEYS.values() for k in keys))


def query(tables: Tables, metric: str | None, grouping: str, most: int = GROUPS) -> list[dict[str, Any]]:
    """Return the rows of `latency_summary` of a grouping, most samples first."""
    where = pc.field("grouping") == grouping
    if metric:
        where &= pc.field("metric") == metric
    return tables.top("latency_summary", ["metric", *_ALL_KEYS, *_VALUES], "count", most, where)


def totals(rows: list[dict[str, Any]], apart: list[list[Cell]]) -> Grid:
    """Return the table of whole metrics, with confirms also apart by their outcome."""
    order = percentiles.METRICS
    rows = sorted(rows, key=lambda r: (order.index(r["metric"]) if r["metric"] in order else 9, str(r["metric"])))
    return Grid(
        "Latency of everything",
        ["from … to", *_HEADS],
        [
            line
            for r in rows
            for line in (
                [Cell(percentiles.NAMES.get(r["metric"], str(r["metric"]))), *values(r)],
                *(apart if r["metric"] == "confirm" else ()),
            )
        ],
        "answered: good and bad answers. failed: bad answers, and what can no longer be answered. still open: not "
        "answered at the end of the capture, or where it has a gap; their latency is not known and is in no "
        "percentile. Grey: too few samples for that percentile.",
    )


def by_outcome(apart: dict[str, Distribution]) -> list[list[Cell]]:
    """Return a line for acks and one for nacks, to stand below that of all confirms; none where all are acks."""
    lines: list[list[Cell]] = []
    if "nack" not in apart:
        return lines
    for outcome, found in apart.items():
        refused = found.answered if outcome == "nack" else 0
        figures = {"count": found.samples, **{column: found.at(share) for column, share in SHARES.items()}}
        cells = values({**figures, "failed": refused, "censored": None, "max_ns": found.max_ns})
        lines.append([Cell(f"publish to {outcome}", "indented"), number(units.count(found.answered)), *cells[1:]])
    return lines


def values(row: dict[str, Any]) -> list[Cell]:
    """Return the cells of counts and percentiles; a percentile that n samples cannot show is muted."""
    cells = [number(units.count(row[c])) for c in ("count", "failed", "censored")]
    for column, share in SHARES.items():
        enough = (row["count"] or 0) * (1 - share) >= 1 - 1e-9
        cells.append(Cell(units.duration(row[column]), "number" if enough else "number muted"))
    return [*cells, number(units.duration(row["max_ns"]))]


def grids(tables: Tables, metric: str) -> list[Grid]:
    """Return a folded table for each grouping of a metric that has rows."""
    made = []
    for grouping, title in _TITLES.items():
        where = (pc.field("grouping") == grouping) & (pc.field("metric") == metric)
        total = tables.rows("latency_summary", where)
        if not total:
            continue
        rows = query(tables, metric, grouping)
        who = connections.endpoints(tables, [r["connection_id"] for r in rows])
        scale = _scale(rows)
        made.append(
            Grid(
                f"{percentiles.NAMES.get(metric, metric)}, by {title}".capitalize(),
                [*_key_heads(grouping), "median, 99 %, slowest", *_HEADS],
                [[*_key_cells(grouping, r, who), _range(r, scale), *values(r)] for r in rows],
                of_all(len(rows), total),
                folded=True,
                page=PAGE,
            )
        )
    return made


_RANGE = ("p50_ns", "p99_ns", "max_ns")


def _scale(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the logarithms of the least and the largest value that bars of rows show."""
    known = [max(r[c], 1) for r in rows for c in _RANGE if r[c] is not None]
    return (math.log(min(known)), math.log(max(known))) if known else (0.0, 0.0)


def _range(row: dict[str, Any], scale: tuple[float, float]) -> Cell:
    """Return a bar from the median to the slowest, on a logarithmic scale that all rows share."""
    if any(row[c] is None for c in _RANGE):
        return Cell(units.NONE, "muted")
    low, high = scale
    a, b, c = (round((math.log(max(row[name], 1)) - low) / max(high - low, 1e-9), 4) for name in _RANGE)
    text = ", ".join(units.duration(row[name]) for name in _RANGE)
    return Cell(text, "range", range=(a, b, c))


def _key_heads(grouping: str) -> list[str]:
    return [k.replace("_id", "").replace("_", " ") for k in KEYS[grouping] if k != "channel_epoch"]


def _key_cells(grouping: str, row: dict[str, Any], who: connections.Endpoints) -> list[Cell]:
    cells = []
    for key in KEYS[grouping]:
        if key == "connection_id":
            cells.append(Cell(who.name(row[key]), "mono"))
        elif key == "channel_epoch":
            epoch = row[key]
            again = f", opening {epoch}" if epoch and epoch > 1 else ""
            cells[-1] = Cell(f"{cells[-1].text}{again}")
        else:
            value = "(default)" if row[key] == "" and key == "exchange" else row[key]
            cells.append(Cell(units.NONE if value is None else str(value)))
    return cells


def section(tables: Tables) -> Section:
    """Return the section of latencies: distribution, figures, and figures by group."""
    page = Section("latency", "Latency")
    whole = query(tables, None, "all")
    if not whole:
        nothing = "No confirms, acknowledgements or answers to measure."
        page.empty = missing("latency_summary", there=tables.has("latency_summary"), nothing=nothing)
        return page
    vantage = connections.vantages(tables)
    page.lead = (
        "From the last byte of a message or request to the last byte of the frame that answers it, timed where it "
        f"was captured{f' ({vantage})' if vantage else ''}: what lies between that point and the peers is not in it."
    )
    apart = outcomes.query(tables)
    page.parts += percentiles.parts(percentiles.apart(percentiles.query(tables), apart))
    page.parts.append(totals(whole, by_outcome(apart)))
    for metric in percentiles.METRICS:
        page.parts += grids(tables, metric)
    return page
