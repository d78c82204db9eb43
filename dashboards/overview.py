"""The first screen of the page: what is wrong, in words; one row of numbers; the lanes; findings by party."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc

from amqpscope.dashboards import findings, lanes, relations, swimlanes, units
from amqpscope.dashboards.lanes import Overview
from amqpscope.dashboards.section import Finding, Reading
from amqpscope.dashboards.swimlanes import Swimlanes
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.formatting import counted
from amqpscope.spec.findings import SEVERITIES

PARTIES = ("capture", "broker", "client", "network")
"""In the order of their findings: what cannot be read makes the rest uncertain."""
Row = dict[str, Any]


@dataclass(frozen=True)
class First:
    """The first screen.

    Attributes:
        headline: one or two sentences.
        numbers: one row; none of them is zero.
        lanes: drawn, with their data; None where nothing was published or delivered.
        parties: each with its findings, also those without any.
        swimlanes: of connections, on the same axis; None where there are none.
        left_out: findings that are not listed, counted.
    """

    headline: str
    numbers: Sequence[Reading] = ()
    lanes: Overview | None = None
    parties: Sequence[tuple[str, Sequence[Finding]]] = ()
    swimlanes: Swimlanes | None = None
    left_out: str = ""
    data: dict[str, Any] = field(default_factory=dict)


def query(tables: Tables) -> First | None:
    """Return the first screen of statistics; None where there are none."""
    if tables.analyzed is None:
        return None
    rows, rules = findings.read(tables)
    grouped = findings.alike(rows)
    shown = grouped[: findings.MOST]
    overview = lanes.query(tables, rows)
    timed = _timed(overview, tables)
    listed = {
        party: [findings.finding(row, timed[0], others) for row, *others in shown if row["party"] == party]
        for party in PARTIES
    }
    left = len(grouped) - len(shown)
    return First(
        headline(rows, rules),
        numbers(tables, rows),
        overview,
        [(party, found) for party, found in listed.items() if found or party != "capture"],
        swimlanes.query(tables, *timed) if timed[1] is not None else None,
        f"{units.count(left)} more: `amqpscope summary --format json` lists all." if left else "",
        lanes.data(overview) if overview else {},
    )


def _timed(overview: Overview | None, tables: Tables) -> tuple[int, Any]:
    if overview:
        return overview.low_ns, overview.x
    ends = [
        (row["first_ts_ns"], row["last_ts_ns"])
        for row in relations.rows(tables, "endpoints", ["first_ts_ns", "last_ts_ns"])
        if row["first_ts_ns"] is not None and row["last_ts_ns"] is not None
    ]
    if not ends:
        return 0, None
    from amqpscope.dashboards import chart  # noqa: PLC0415 - only here

    low, high = min(first for first, _ in ends), max(last for _, last in ends)
    return low, chart.time(low, high)


def headline(rows: Sequence[Row], rules: Sequence[Row]) -> str:
    """Return what is wrong in one or two sentences; where nothing is, what was judged."""
    worse = [row for row in rows if row["severity"] != SEVERITIES[-1]]
    if not worse:
        below = f" {counted(len(rows), 'note')} below." if rows else ""
        return f"{findings.calm(list(rules))}{below}"
    first, *others = worse
    second = next((row for row in others if row["severity"] == SEVERITIES[0]), None)
    return " ".join(filter(None, (_sentence(first), _sentence(second, "Besides, ") if second else "")))


def _sentence(row: Row, before: str = "") -> str:
    text = row["text"].partition(";")[0]
    subject = "the broker " if row["party"] == "broker" else ""
    whole = f"{before}{subject}{text}".rstrip(".")
    # a client's name is written as it is
    named = bool(row["client"]) and whole.startswith(row["client"])
    return f"{whole}." if named else f"{whole[:1].upper()}{whole[1:]}."


def numbers(tables: Tables, rows: Sequence[Row]) -> list[Reading]:
    """Return the row of numbers: rates, latencies, what was refused, returned, rejected, lost."""
    everything = relations.rows(tables, "rates", where=("grouping", ["all"]))
    ends = relations.rows(tables, "endpoints", ["first_ts_ns", "last_ts_ns", "lost_bytes"])
    known = [row for row in ends if row["first_ts_ns"] is not None and row["last_ts_ns"] is not None]
    first, last = (
        pick((row[name] for row in known), default=0) for pick, name in ((min, "first_ts_ns"), (max, "last_ts_ns"))
    )
    span = max((last - first) / units.SECOND, 1e-9)
    found = []
    for column, name in (("publishes", "published"), ("deliveries", "delivered")):
        total = sum(row[column] for row in everything)
        if total:
            found.append(Reading(name, f"{units.rate(total / span)} per s"))
    for metric, name in (("confirm", "confirm"), ("transit", "publish to deliver"), ("settlement", "acknowledgement")):
        summary = _summary(tables, metric)
        if summary and summary["p50_ns"] is not None:
            both = f"{units.duration(summary['p50_ns'])} / {units.duration(summary['p99_ns'])}"
            found.append(Reading(f"{name}, median / 99 %", both))
    queues = relations.rows(tables, "queues")
    for name, value in (
        ("refused", sum(row["nacks"] for row in everything)),
        ("returned", sum(row["returns"] for row in everything)),
        ("rejected", sum(row["rejected"] or 0 for row in queues)),
        ("delivered again", sum(row["redeliveries"] for row in everything)),
    ):
        if value:
            found.append(Reading(name, units.count(value), "bad"))
    lost = sum(row["lost_bytes"] or 0 for row in ends)
    if ends:
        found.append(Reading("missing in the capture", units.size(lost) if lost else "nothing", "bad" if lost else ""))
    return found


def _summary(tables: Tables, metric: str) -> Row | None:
    where = (pc.field("metric") == metric) & (pc.field("grouping") == "all")
    found = tables.top("latency_summary", ["p50_ns", "p99_ns", "count"], "count", 1, where)
    return found[0] if found else None
