"""Synchronous requests and their answers, by request; commands of AMQP 0-10, and what became of them."""

from typing import Any

import pyarrow.compute as pc

from amqpscope.dashboards import summary, units
from amqpscope.dashboards.section import Cell, Grid, Section, missing, number, of_all
from amqpscope.dashboards.tables import Tables

_MOST = 10_000


def query(tables: Tables) -> list[dict[str, Any]]:
    """Return, per request, percentiles from the summary, and errors and open requests counted from the rows."""
    percentiles = {r["request"]: r for r in summary.query(tables, "rpc", "request", 10_000)}
    counted = tables.group(
        "rpcs",
        ["request"],
        {"count": ("request_ts_ns", "count"), "errors": ("error", "sum"), "open": ("open", "sum")},
        columns={
            "error": (pc.field("outcome") == "error").cast("int64"),
            "open": (pc.field("outcome") == "none").cast("int64"),
        },
    ).to_pylist()
    none = dict.fromkeys(("p50_ns", "p99_ns", "max_ns"))
    return sorted(
        ({**none, **percentiles.get(r["request"], {}), **r} for r in counted),
        key=lambda r: (-(r["errors"] or 0), -r["count"], str(r["request"])),
    )


def errors(tables: Tables) -> list[dict[str, Any]]:
    """Return the errors by request and reply code, most first."""
    found = tables.group(
        "rpcs", ["request", "reply_code"], {"count": ("request_ts_ns", "count")}, where=pc.field("outcome") == "error"
    )
    return sorted(found.to_pylist(), key=lambda r: (-r["count"], str(r["request"])))


def commands(tables: Tables) -> list[dict[str, Any]]:
    """Return, per command of AMQP 0-10 and side, how many there were and what became of them; those that fail first."""
    outcomes = {"completed": "ok", "failed": "error", "open": "none"}
    found = tables.group(
        "commands",
        ["method", "from_client"],
        {"count": ("sent_ts_ns", "count"), "max_ns": ("latency_ns", "max"), **{n: (n, "sum") for n in outcomes}},
        columns={name: (pc.field("outcome") == word).cast("int64") for name, word in outcomes.items()},
    )
    return sorted(found.to_pylist(), key=lambda r: (-(r["failed"] or 0), -r["count"], str(r["method"])))


def section(tables: Tables) -> Section:
    """Return the section of requests."""
    page = Section("rpcs", "Requests and answers")
    if not tables.rows("rpcs"):
        page.empty = missing("rpcs", there=tables.has("rpcs"), nothing="No synchronous requests.")
        return page
    rows = query(tables)
    page.lead = "Requests that wait for an answer: opening, declaring, subscribing, closing. Errors come first."
    codes: dict[str, list[str]] = {}
    for e in errors(tables):
        codes.setdefault(e["request"], []).append(
            f"{e['reply_code'] or 'no code'} \N{MULTIPLICATION SIGN} {units.count(e['count'])}"
        )
    page.parts.append(
        Grid(
            "Requests",
            ["request", "count", "50 %", "99 %", "slowest", "errors", "not answered", "reply codes"],
            [
                [
                    Cell(r["request"] or units.NONE, "mono"),
                    number(units.count(r["count"])),
                    *(number(units.duration(r[c])) for c in ("p50_ns", "p99_ns", "max_ns")),
                    number(units.count(r["errors"] or 0), bad=bool(r["errors"])),
                    number(units.count(r["open"] or 0)),
                    Cell(", ".join(codes.get(r["request"], [])[:6]) or units.NONE),
                ]
                for r in rows[:_MOST]
            ],
            of_all(min(len(rows), _MOST), len(rows)),
        )
    )
    if there := commands(tables):
        page.parts.append(_grid_of_commands(there))
    return page


def _grid_of_commands(rows: list[dict[str, Any]]) -> Grid:
    ended = "Not completed: the session, the connection or the capture ended before, or there is a gap."
    return Grid(
        "Commands of AMQP 0-10",
        ["command", "sent by", "count", "completed", "slowest", "failed", "not completed"],
        [
            [
                Cell(r["method"] or units.NONE, "mono"),
                Cell("client" if r["from_client"] else "broker"),
                number(units.count(r["count"])),
                number(units.count(r["completed"])),
                number(units.duration(r["max_ns"])),
                number(units.count(r["failed"]), bad=bool(r["failed"])),
                number(units.count(r["open"])),
            ]
            for r in rows[:_MOST]
        ],
        f"{ended} {of_all(min(len(rows), _MOST), len(rows))}".strip(),
    )
