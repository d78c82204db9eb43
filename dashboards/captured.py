"""What was captured, and what was lost: every other number depends on it."""

from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc

from amqpscope import spec
from amqpscope.dashboards import units
from amqpscope.dashboards.section import Cell, Grid, Reading, Section, number, of_all
from amqpscope.dashboards.tables import FRAMES, Tables

FILES = 20
"""Capture files that are listed one by one."""

_UNKNOWN = {"packets dropped by the capture": "not recorded in the file"}
_SEVERITIES = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True)
class Captured:
    """Sums over the capture files, and counts of the tables.

    Attributes:
        sums: Sum of each numeric column of `captures`, None where no file has it.
        start_ns: First packet.
        end_ns: Last packet.
        rows: Table to number of rows.
        lost: Sums over connections of bytes lost, retransmitted, skipped, seen; `gappy` counts those with losses.
        anomalies: Rows of code, severity, count, connections.
        files: First capture files.
    """

    sums: dict[str, int | None]
    start_ns: int | None
    end_ns: int | None
    rows: dict[str, int]
    lost: dict[str, int | None]
    anomalies: list[dict[str, Any]]
    files: list[dict[str, Any]] = field(default_factory=list)


SUMMED = ("packets", "bytes", "dropped", "truncated", "tcp_segments", "other_packets")
"""Columns of `captures` that are summed; `truncated` counts files."""


def query(tables: Tables) -> Captured:
    """Gather all of it, in a pass over each of the small tables."""
    aggregates = {c: (c, "sum") for c in SUMMED}
    whole = tables.group(
        "captures",
        [],
        {**aggregates, "first": ("first_ts_ns", "min"), "last": ("last_ts_ns", "max")},
        columns={"truncated": pc.field("truncated").cast("int64")},
    ).to_pylist()
    sums = whole[0] if whole else {}
    connections = tables.group(
        "connections",
        [],
        {
            "lost_bytes": ("lost_bytes", "sum"),
            "retransmitted_bytes": ("retransmitted_bytes", "sum"),
            "skipped_bytes": ("skipped_bytes", "sum"),
            "bytes": ("bytes", "sum"),
            "gappy": ("gappy", "sum"),
            "first": ("first_ts_ns", "min"),
            "last": ("last_ts_ns", "max"),
        },
        columns={"gappy": (pc.field("lost_bytes") > 0).cast("int64")},
    ).to_pylist()
    lost = connections[0] if connections else {}
    found = tables.group(
        "anomalies",
        ["code", "severity", "connection_id"],
        {"count": ("code", "count")},
    )
    by_code = (
        found.group_by(["code", "severity"]).aggregate([("count", "sum"), ("connection_id", "count")]).to_pylist()
        if found.num_rows
        else []
    )
    return Captured(
        sums={c: sums.get(c) for c in SUMMED},
        start_ns=_first(sums.get("first"), lost.get("first")),
        end_ns=_first(sums.get("last"), lost.get("last")),
        rows={n: tables.rows(n) for n in ("captures", "connections", *FRAMES, "messages", "anomalies")},
        lost={c: lost.get(c) for c in ("lost_bytes", "retransmitted_bytes", "skipped_bytes", "bytes", "gappy")},
        anomalies=sorted(
            (
                {
                    "code": r["code"],
                    "severity": r["severity"],
                    "count": r["count_sum"],
                    "connections": r["connection_id_count"],
                }
                for r in by_code
            ),
            key=lambda r: (_SEVERITIES.get(r["severity"], 3), -r["count"], str(r["code"])),
        ),
        files=_files(tables),
    )


def end(tables: Tables) -> int | None:
    """Return the time of the last packet, in nanoseconds; None when no table has it."""
    for name in ("captures", "connections"):
        whole = tables.group(name, [], {"last": ("last_ts_ns", "max")}).to_pylist()
        if whole and whole[0]["last"] is not None:
            return int(whole[0]["last"])
    return None


def _first(*values: int | None) -> int | None:
    return next((v for v in values if v is not None), None)


def _files(tables: Tables) -> list[dict[str, Any]]:
    wanted = ["capture", "format", "link_types", "snap_length", "first_ts_ns", "last_ts_ns", *SUMMED]
    rows: list[dict[str, Any]] = []
    for batch in tables.scan("captures", wanted):
        rows += batch.slice(0, FILES - len(rows)).to_pylist()
        if len(rows) >= FILES:
            break
    return rows


def names(tables: Tables, most: int) -> list[str]:
    """Return the names of the first capture files."""
    return [row["capture"] for row in _files(tables)[:most] if row["capture"]]


def sentence(tables: Tables) -> str:
    """Return in one line what was captured, and whether anything was lost; empty where that is not known."""
    if not tables.has("captures"):
        return ""
    aggregates = {"packets": ("packets", "sum"), "first": ("first_ts_ns", "min"), "last": ("last_ts_ns", "max")}
    (row,) = tables.group("captures", [], aggregates).to_pylist() or [dict.fromkeys(aggregates)]
    if row["first"] is None or row["last"] is None:
        return ""
    begin, end = units.instant(row["first"], units.SECOND), units.clock(row["last"], units.SECOND)
    length = units.duration(row["last"] - row["first"])
    lost = sum(r["lost"] or 0 for r in tables.group("connections", [], {"lost": ("lost_bytes", "sum")}).to_pylist())
    gaps = f"{units.size(lost)} missing" if lost else "no gaps"
    return f"{begin} to {end} UTC, {length}, {units.counted(row['packets'] or 0, 'packet')}, {gaps}"


def section(tables: Tables) -> Section:
    """Return the section of what was captured."""
    page = Section("captured", "What was captured")
    if not any(tables.has(n) for n in ("captures", "connections", *FRAMES)):
        page.empty = (
            "The folder of `amqpscope dissect` that these statistics were made from was not found. "
            "Name both: `amqpscope report STATS DIR -o FILE.html`."
        )
        return page
    data = query(tables)
    page.readings = _readings(data)
    page.losses = _losses(data, tables)
    if data.anomalies:
        page.parts.append(_anomalies(data))
    if data.files:
        page.parts.append(_file_grid(data))
    return page


def _readings(data: Captured) -> list[Reading]:
    frames = sum(data.rows[n] for n in FRAMES)
    return [
        Reading("from (UTC)", units.instant(data.start_ns, 1_000_000)),
        Reading("to (UTC)", units.instant(data.end_ns, 1_000_000)),
        Reading("length", units.duration(units.between(data.start_ns, data.end_ns))),
        Reading("files", units.count(data.rows["captures"])),
        Reading("packets", units.count(data.sums["packets"])),
        Reading("of these TCP", units.count(data.sums["tcp_segments"])),
        Reading("bytes", units.size(_first(data.sums["bytes"], data.lost["bytes"]))),
        Reading("connections", units.count(data.rows["connections"])),
        Reading("frames", units.count(frames)),
        Reading("messages", units.count(data.rows["messages"])),
    ]


def _losses(data: Captured, tables: Tables) -> list[Reading]:
    """Return the readings of what was lost, and of what is not known of it; nothing is said of a zero."""
    cut = sum(r["count"] for r in data.anomalies if r["code"] == "packet-truncated")
    losses = [
        ("bytes missing (gaps)", data.lost["lost_bytes"], units.size),
        ("connections with gaps", data.lost["gappy"], units.count),
        ("bytes skipped undecoded", data.lost["skipped_bytes"], units.size),
        ("packets dropped by the capture", data.sums["dropped"], units.count),
        ("packets truncated", cut, units.count),
        ("files truncated", data.sums["truncated"], units.count),
        ("partial messages", _counted(tables, "messages", "is_partial"), units.count),
        ("publishes of uncertain number", _counted(tables, "messages", "publish_seq_unsure"), units.count),
        ("anomalies", data.rows["anomalies"], units.count),
    ]
    return [
        Reading(
            name, _UNKNOWN.get(name, "not known") if value is None else show(value), "muted" if not value else "bad"
        )
        for name, value, show in losses
        if value != 0
    ]


def _counted(tables: Tables, table: str, column: str, value: Any = True) -> int | None:
    """Return the number of rows with this value; None where no such column was written."""
    if column not in tables.columns(table):
        return None
    return tables.rows(table, pc.field(column) == value)


def _anomalies(data: Captured) -> Grid:
    known = spec.anomalies()
    return Grid(
        "Anomalies by code",
        ["code", "severity", "count", "connections", "meaning"],
        [
            [
                Cell(r["code"] or units.NONE),
                Cell(r["severity"] or units.NONE, "bad" if r["severity"] == "error" else "text"),
                number(units.count(r["count"])),
                number(units.count(r["connections"])),
                Cell(known[r["code"]].doc if r["code"] in known else units.NONE, "prose"),
            ]
            for r in data.anomalies[:40]
        ],
        of_all(min(len(data.anomalies), 40), len(data.anomalies)),
    )


def _file_grid(data: Captured) -> Grid:
    return Grid(
        "Capture files",
        [
            "file",
            "format",
            "link layer",
            "first packet (UTC)",
            "length",
            "packets",
            "bytes",
            "snap length",
            "dropped",
            "complete",
        ],
        [
            [
                Cell(f["capture"] or units.NONE, "mono"),
                Cell(f["format"] or units.NONE),
                Cell(f["link_types"] or units.NONE),
                Cell(units.instant(f["first_ts_ns"])),
                number(units.duration(units.between(f["first_ts_ns"], f["last_ts_ns"]))),
                number(units.count(f["packets"])),
                number(units.size(f["bytes"])),
                number(units.size(f["snap_length"])),
                number(units.count(f["dropped"]), bad=bool(f["dropped"])),
                Cell("truncated", "bad") if f["truncated"] else Cell("yes"),
            ]
            for f in data.files
        ],
        of_all(len(data.files), data.rows["captures"]),
        folded=len(data.files) > 3,
    )
