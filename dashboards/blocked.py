"""Publishers that the broker stopped: connection.blocked, with the reason it gave, and channel.flow."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dashboards import filters, units
from amqpscope.dashboards.connections import endpoints
from amqpscope.dashboards.section import Finding
from amqpscope.dashboards.tables import Tables, plausible

_COLUMNS = [
    "connection_id",
    "start_ts_ns",
    "end_ts_ns",
    "duration_ns",
    "start_frame_no",
    "start_capture",
    "start_packet",
    "reason",
]
_TEXTS = {
    "connection-blocked": ("error", "Publishers blocked", "connection.blocked"),
    "channel-flow": ("warning", "Publishers stopped by channel.flow", "channel.flow"),
}


def findings(tables: Tables) -> list[Finding]:
    """Return one finding for each cause and reason, the longest stop first."""
    made: list[tuple[int, Finding]] = []
    for cause, (severity, text, method) in _TEXTS.items():
        by_reason: dict[str | None, list[dict[str, Any]]] = {}
        for row in _intervals(tables, cause):
            by_reason.setdefault(row["reason"], []).append(row)
        who = endpoints(tables, {row["connection_id"] for rows in by_reason.values() for row in rows})
        for reason, rows in by_reason.items():
            first = min(rows, key=lambda r: (r["start_ts_ns"], r["connection_id"]))
            ids = {row["connection_id"] for row in rows}
            total = covered((row["start_ts_ns"], row["start_ts_ns"] + row["duration_ns"]) for row in rows)
            unended = sum(row["end_ts_ns"] is None for row in rows)
            made.append(
                (
                    total,
                    Finding(
                        severity,
                        f"{text} for {units.duration(total)}{f' ({reason})' if reason else ''}",
                        ", ".join(part for part in (_often(len(rows), unended), who.several(ids)) if part),
                        first["start_packet"],
                        first["start_capture"],
                        first["start_ts_ns"],
                        filters.of_method(method, [who.port(c) for c in ids]),
                    ),
                )
            )
    return [finding for _, finding in sorted(made, key=lambda m: (m[1].severity, -m[0], m[1].text))]


def _often(times: int, unended: int) -> str:
    """Return how often publishers were stopped, and how often to the end of the capture."""
    if times == 1:
        return "to the end of the capture" if unended else ""
    rest = f", {units.count(unended)} of them to the end of the capture" if unended else ""
    return f"{units.count(times)} times{rest}"


def covered(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the time within any of some intervals; what several have at once counts once."""
    total, reached = 0, None
    for begin, end in sorted(intervals):
        if reached is None or begin > reached:
            total += end - begin
            reached = end
        elif end > reached:
            total += end - reached
            reached = end
    return total


def _intervals(tables: Tables, cause: str) -> list[dict[str, Any]]:
    """Return the intervals of a cause in which the broker stopped publishers, each with its reason."""
    where = (pc.field("cause") == cause) & plausible("start_ts_ns") & plausible("duration_ns")
    where &= pc.field("side").is_null() | (pc.field("side") == "server")
    rows = [row for batch in tables.scan("flow_control", _COLUMNS, where) for row in batch.to_pylist()]
    lacking = {row["connection_id"] for row in rows if row["reason"] is None}
    if cause == "connection-blocked" and lacking:
        reasons = _reasons(tables, lacking)
        for row in rows:
            row["reason"] = row["reason"] or reasons.get((row["connection_id"], row["start_frame_no"]))
    return rows


def _reasons(tables: Tables, connections: set[int]) -> dict[tuple[int, int], str | None]:
    """Return what connection.blocked says on some connections: older statistics do not have it."""
    where = pc.field("method") == "connection.blocked"
    where &= pc.field("connection_id").isin(pa.array(sorted(connections), pa.int64()))
    return {
        (row["connection_id"], row["frame_no"]): row["reason"]
        for batch in tables.scan("amqp091_frames", ["connection_id", "frame_no", "reason"], where)
        for row in batch.to_pylist()
    }
