"""Connections as lanes on the axis of time: handshake, life, channels, blocks, waits, and how each ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from amqpscope.dashboards import relations, time_spent, units
from amqpscope.dashboards.chart import Scale
from amqpscope.dashboards.tables import Tables, plausible

MOST = 200
"""Connections that have a lane: those that fared badly, then those that were busiest."""
INTERVALS = 60
"""Waits that are drawn in a lane: the longest."""
LEAST = 0.002
"""Share of the axis that a mark has at least, to be seen."""
KINDS = {
    "connection-blocked": ("block", "blocked by the broker"),
    "channel-flow": ("block", "channel.flow"),
    "zero-window": ("window", "TCP window closed"),
    "prefetch": ("wait", "prefetch window full"),
    "stream-credit": ("wait", "no stream credit"),
    "message-credit": ("wait", "no message credit"),
}
DELAYS = {
    "retransmission": ("resent", "sent again after {}"),
    "held-write": ("held", "waited {} for a late TCP acknowledgement"),
    "full-link": ("queued", "link full for {}"),
}
"""What of TCP is drawn beside closed windows: what delayed bytes."""


@dataclass(frozen=True)
class Span:
    """A mark of a lane: shares of the axis, its kind (a class of the page), and what it is, in words."""

    begin: float
    end: float
    kind: str
    text: str


@dataclass(frozen=True)
class Swimlane:
    """One connection: its name, what is said of it, and its marks."""

    name: str
    text: str
    is_bad: bool
    spans: Sequence[Span]


@dataclass(frozen=True)
class Group:
    """The connections of one client."""

    client: str
    lanes: Sequence[Swimlane]


@dataclass(frozen=True)
class Swimlanes:
    """All groups, worst first; `note` counts what is left out."""

    groups: Sequence[Group]
    note: str


def query(tables: Tables, low_ns: int, x: Scale) -> Swimlanes | None:
    """Return the lanes of connections; None where there are none."""
    rows = [row for row in relations.rows(tables, "endpoints") if row["first_ts_ns"] is not None]
    if not rows:
        return None
    rows.sort(
        key=lambda row: (("error", "warning").index(row["severity"]) if _is_bad(row) else 2, -(row["bytes"] or 0))
    )
    shown = rows[:MOST]
    waits = _waits(tables, {row["connection_id"] for row in shown})
    delays = _delays(tables, {row["connection_id"] for row in shown})
    opened = _channels(tables)
    spent = time_spent.by_connection(relations.rows(tables, "time_spent"))
    for row in shown:
        row["life"] = spent.get(row["connection_id"])
    groups: dict[str, list[Swimlane]] = {}
    for row in shown:
        waited, delayed = (each.get(row["connection_id"], []) for each in (waits, delays))
        spans = _spans(row, waited, delayed, opened.get(row["connection_id"], []), low_ns, x)
        address = f"{row['client_ip']}:{row['client_port']}"
        lane = Swimlane(address, _text(row), _is_bad(row), spans)
        groups.setdefault(row["client"] or address, []).append(lane)
    left = len(rows) - len(shown)
    note = (
        f"{units.count(len(shown))} of {units.count(len(rows))} shown; `amqpscope handshakes` lists all."
        if left
        else ""
    )
    return Swimlanes([Group(client, lanes) for client, lanes in groups.items()], note)


def _is_bad(row: dict[str, Any]) -> bool:
    return row["severity"] in ("error", "warning")


def _text(row: dict[str, Any]) -> str:
    reached = row["ending"] or row["handshake_outcome"] or row["handshake_stage"] or "unknown"
    return f"{reached}, {units.counted(row['messages'] or 0, 'message')}, {units.size(row['bytes'])}"


Grouped = dict[int, list[dict[str, Any]]]


def _waits(tables: Tables, ids: set[int]) -> Grouped:
    columns = ["connection_id", "cause", "start_ts_ns", "end_ts_ns", "duration_ns"]
    return _longest(tables, "flow_control", columns, plausible("start_ts_ns"), ids)


def _delays(tables: Tables, ids: set[int]) -> Grouped:
    columns = ["connection_id", "from_client", "kind", "bytes", "start_ts_ns", "end_ts_ns", "duration_ns"]
    where = plausible("start_ts_ns") & pc.field("kind").isin(list(DELAYS))
    return _longest(tables, "tcp_delays", columns, where, ids)


def _longest(tables: Tables, name: str, columns: list[str], where: pc.Expression, ids: set[int]) -> Grouped:
    grouped: Grouped = {}
    for row in tables.top(name, columns, "duration_ns", MOST * INTERVALS, where):
        if row["connection_id"] in ids and len(grouped.setdefault(row["connection_id"], [])) < INTERVALS:
            grouped[row["connection_id"]].append(row)
    return grouped


def _channels(tables: Tables) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in relations.rows(tables, "channels", ["connection_id", "opened_ts_ns"]):
        if row["opened_ts_ns"] is not None and len(found.setdefault(row["connection_id"], [])) < INTERVALS:
            found[row["connection_id"]].append(row["opened_ts_ns"])
    return found


def _spans(
    row: dict[str, Any],
    waits: Sequence[dict[str, Any]],
    delays: Sequence[dict[str, Any]],
    opened: Sequence[int],
    low: int,
    x: Scale,
) -> list[Span]:
    first, last = row["first_ts_ns"], max(row["last_ts_ns"] or row["first_ts_ns"], row["first_ts_ns"])

    def span(begin: int, end: int, kind: str, text: str) -> Span:
        a, b = float(x.at(begin - low)), float(x.at(end - low))
        return Span(a, min(max(b, a + LEAST), 1.0), kind, text)

    spans = [span(first, last, "life", row["life"] or f"{units.duration(last - first)} long")]
    if row["handshake_ns"]:
        spans.append(
            span(first, first + row["handshake_ns"], "handshake", f"handshake {units.duration(row['handshake_ns'])}")
        )
    spans += [span(at, at, "channel", "channel opened") for at in opened]
    for wait in waits:
        kind, text = KINDS.get(wait["cause"], ("wait", str(wait["cause"])))
        end = wait["end_ts_ns"] if wait["end_ts_ns"] is not None else last
        if end >= wait["start_ts_ns"]:
            spans.append(span(wait["start_ts_ns"], end, kind, f"{text} {units.duration(wait['duration_ns'])}"))
    for delay in delays:
        kind, text = DELAYS[delay["kind"]]
        who, took = "client" if delay["from_client"] else "broker", units.duration(delay["duration_ns"])
        what = f"{units.size(delay['bytes'] or 0)} of the {who} {text.format(took)}"
        spans.append(span(delay["start_ts_ns"], delay["end_ts_ns"], kind, what))
    if row["closed_by"]:
        spans.append(span(last, last, "bad" if _is_bad(row) else "close", f"closed by {row['closed_by']}"))
    return spans
