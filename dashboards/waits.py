"""Flow control: intervals in which one side was not allowed to send, by cause.

`proven` intervals are confirmed by the traffic; `possible` ones could have held the other side up, but nothing shows
that it waited.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from amqpscope.dashboards import captured, units
from amqpscope.dashboards.chart import Boxes, Chart, Mark, Panel, Scale, time
from amqpscope.dashboards.connections import endpoints
from amqpscope.dashboards.section import Cell, Figure, Grid, Key, Section, Single, missing, number, of_all
from amqpscope.dashboards.tables import Tables, plausible

STEPS = 460
"""Steps of time in the picture; an interval fills every step that it touches."""

CAUSES = {
    "connection-blocked": "connection blocked",
    "channel-flow": "channel flow",
    "prefetch": "prefetch window full",
    "stream-credit": "no stream credit",
    "message-credit": "no message credit",
    "zero-window": "TCP window closed",
}
"""Causes in words, in the order in which they are drawn."""

EVIDENCE = {"proven": "confirmed by the traffic", "possible": "suspected"}
"""Values of `evidence` in words."""

LONGEST = 10_000
PAGE = 8
TITLE = "Flow control over time"


@dataclass(frozen=True)
class Lanes:
    """Which steps of time each cause fills.

    Attributes:
        causes: Names of the causes, from the top.
        filled: evidence (`possible`, `proven`) to bool array of shape (causes, STEPS).
        low_ns: Begin of the first step.
        high_ns: End of the last one.
    """

    causes: list[str]
    filled: dict[str, np.ndarray]
    low_ns: int
    high_ns: int


def totals(tables: Tables) -> list[dict[str, Any]]:
    """Return per cause and evidence: intervals, total and longest duration, those still open at the end."""
    grouped = tables.group(
        "flow_control",
        ["cause", "evidence"],
        {
            "intervals": ("start_ts_ns", "count"),
            "total_ns": ("duration_ns", "sum"),
            "longest_ns": ("duration_ns", "max"),
            "open": ("unended", "sum"),
        },
        columns={"unended": pc.field("end_ts_ns").is_null().cast("int64")},
        where=_not_negative(),
    )
    return sorted(grouped.to_pylist(), key=lambda r: (_place(r["cause"]), r["evidence"] != "proven"))


def on_the_way(tables: Tables) -> tuple[int, int]:
    """Return for how long prefetch was full, and how much of that is the round trip to the consumer at least (ns)."""
    trips = round_trips(tables)
    where = _not_negative() & (pc.field("cause") == "prefetch") & pc.field("duration_ns").is_valid()
    total = way = 0
    for batch in tables.scan("flow_control", ["connection_id", "duration_ns"], where):
        for row in batch.to_pylist():
            total += row["duration_ns"]
            way += min(row["duration_ns"], trips.get(row["connection_id"], 0))
    return total, way


def round_trips(tables: Tables) -> dict[int, int]:
    """Return the round trip between the capture point and the client, of the connections of which it is known (ns)."""
    columns = ["connection_id", "client_rtt_ns"]
    if not set(columns) <= tables.columns("connections"):
        return {}
    known = pc.field("client_rtt_ns").is_valid()
    return {
        row["connection_id"]: row["client_rtt_ns"]
        for batch in tables.scan("connections", columns, known)
        for row in batch.to_pylist()
    }


def negative(tables: Tables) -> int:
    """Return the number of intervals that end before they begin, as where a clock stepped: they are left out."""
    return tables.rows("flow_control") - tables.rows("flow_control", _not_negative())


def _not_negative() -> pc.Expression:
    duration, start, end = (pc.field(name) for name in ("duration_ns", "start_ts_ns", "end_ts_ns"))
    return (duration.is_null() | (duration >= 0)) & (start.is_null() | end.is_null() | (end >= start))


def _place(cause: str | None) -> tuple[int, str]:
    known = list(CAUSES)
    return (known.index(cause) if cause in known else len(known), str(cause))


def query(tables: Tables, end_ns: int | None = None) -> Lanes | None:
    """Return the steps of time filled by each cause; intervals without an end last to `end_ns`."""
    whole = tables.group(
        "flow_control",
        ["cause"],
        {"first": ("start_ts_ns", "min"), "last_start": ("start_ts_ns", "max"), "last": ("end_ts_ns", "max")},
        where=_timed(),
    )
    if not whole.num_rows:
        return None
    causes = sorted((c for c in whole["cause"].to_pylist() if c in CAUSES), key=_place)
    low = pc.min(whole["first"]).as_py()
    ends = [pc.max(whole[c]).as_py() for c in ("last_start", "last")]
    high = max(e for e in (*ends, end_ns, low + 1) if e is not None)
    change = {e: np.zeros((len(causes), STEPS + 1), np.int64) for e in ("possible", "proven")}
    columns = {
        "cause": pc.field("cause"),
        "evidence": pc.field("evidence"),
        "start": pc.field("start_ts_ns"),
        "end": pc.coalesce(pc.field("end_ts_ns"), pc.scalar(high)),
    }
    scale = STEPS / (high - low)
    for batch in tables.scan("flow_control", columns, _timed()):
        for evidence, into in change.items():
            for row, cause in enumerate(causes):
                one = batch.filter(pc.and_(pc.equal(batch["cause"], cause), pc.equal(batch["evidence"], evidence)))
                begin = ((one["start"].to_numpy() - low) * scale).clip(0, STEPS - 1).astype(np.int64)
                end = ((one["end"].to_numpy() - low) * scale).clip(0, STEPS - 1).astype(np.int64)
                np.add.at(into[row], begin, 1)
                np.add.at(into[row], np.maximum(begin, end) + 1, -1)
    filled = {e: np.cumsum(c, axis=1)[:, :STEPS] > 0 for e, c in change.items()}
    return Lanes(causes, filled, low, high)


def _timed() -> pc.Expression:
    return plausible("start_ts_ns") & (pc.field("end_ts_ns").is_null() | plausible("end_ts_ns")) & _not_negative()


def drawn(data: Lanes) -> Chart:
    """Return a lane per cause, waits that are confirmed by the traffic full and suspected ones thin."""
    width = (data.high_ns - data.low_ns) / STEPS
    marks: list[Mark] = []
    count = len(data.causes)
    for evidence, height, colour in (("possible", 0.26, "orange"), ("proven", 0.62, "red")):
        for row, steps in enumerate(data.filled[evidence]):
            edges = np.diff(steps.astype(np.int8), prepend=0, append=0)
            begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
            middle = np.full(len(begins), count - 0.5 - row)
            marks.append(Boxes(begins * width, ends * width, middle - height / 2, middle + height / 2, colour))
    up = Scale((0.0, float(count)), ticks=[(count - 0.5 - row, CAUSES[c]) for row, c in enumerate(data.causes)])
    return Chart(time(data.low_ns, data.high_ns), [Panel(up, marks, 34 * count)])


def figure(data: Lanes) -> Figure:
    """Return the drawing of the lanes."""
    named = ", ".join(CAUSES[c] for c in data.causes)
    return Figure(
        TITLE,
        drawn(data),
        f"Timeline of flow control by cause: {named}.",
        "All connections together. Thick: confirmed by the traffic; thin: suspected. An interval is drawn at "
        f"least {units.duration((data.high_ns - data.low_ns) / STEPS)} wide.",
        [Key("red", EVIDENCE["proven"]), Key("orange", EVIDENCE["possible"])],
    )


def totals_grid(rows: list[dict[str, Any]], left_out: int = 0, trips: tuple[int, int] = (0, 0)) -> Grid:
    """Return the table of totals; `trips` is what `on_the_way` returns."""
    return Grid(
        "Flow control by cause",
        ["cause", "evidence", "intervals", "longest", "total", "still open at the end of the capture"],
        [
            [
                Cell(CAUSES.get(r["cause"], str(r["cause"]))),
                Cell(EVIDENCE.get(r["evidence"], r["evidence"]) or units.NONE),
                number(units.count(r["intervals"])),
                number(units.duration(r["longest_ns"])),
                number(units.duration(r["total_ns"])),
                number(units.count(r["open"])),
            ]
            for r in rows
        ],
        f"The total counts what several channels or consumers have at once several times.{_trips(*trips)}"
        f"{_left_out(left_out)}",
    )


def longest_grid(tables: Tables) -> Grid | None:
    """Return the table of the longest intervals, each with the packets at both ends."""
    rows = tables.top(
        "flow_control",
        [
            "connection_id",
            "channel",
            "consumer_tag",
            "cause",
            "evidence",
            "side",
            "start_ts_ns",
            "duration_ns",
            "start_capture",
            "start_packet",
            "end_packet",
        ],
        "duration_ns",
        LONGEST,
        _not_negative(),
    )
    if not rows:
        return None
    who = endpoints(tables, [r["connection_id"] for r in rows])
    trips = round_trips(tables)
    return Grid(
        "Longest waits",
        [
            "cause",
            "duration",
            "begin (UTC)",
            "connection",
            "channel",
            "consumer",
            "side",
            "evidence",
            "packets",
            "file",
        ],
        [
            [
                Cell(CAUSES.get(r["cause"], str(r["cause"]))),
                number(units.duration(r["duration_ns"])),
                Cell(units.instant(r["start_ts_ns"])),
                Cell(who.name(r["connection_id"])),
                number(units.count(r["channel"])),
                Cell(r["consumer_tag"] or units.NONE),
                Cell(_side(r, trips)),
                Cell(EVIDENCE.get(r["evidence"], r["evidence"]) or units.NONE),
                number(f"{_packet(r['start_packet'])} … {_packet(r['end_packet'])}"),
                Cell(r["start_capture"] or units.NONE),
            ]
            for r in rows
        ],
        of_all(len(rows), tables.rows("flow_control", pc.field("duration_ns").is_valid() & _not_negative())),
        page=PAGE,
    )


def _packet(packet: int | None) -> str:
    return "?" if packet is None else str(packet)


def _trips(total: int, way: int) -> str:
    if 2 * way <= total:
        return ""
    return (
        f" Of {units.duration(total)} in which prefetch was full, {units.duration(way)} are the round trip to the "
        "consumer: the way takes that time, not the consumer."
    )


def _side(row: dict[str, Any], trips: dict[int, int]) -> str:
    trip = trips.get(row["connection_id"], 0)
    if row["cause"] == "prefetch" and row["duration_ns"] and 2 * trip > row["duration_ns"]:
        return f"mostly the way to the client ({units.duration(trip)} there and back)"
    return row["side"] or units.NONE


def _left_out(count: int) -> str:
    return f" Left out: {units.counted(count, 'interval')} of negative length." if count else ""


def part(data: Lanes, rows: list[dict[str, Any]]) -> Figure | Single:
    """Return the drawing of the lanes; of one interval, what it was."""
    if sum(r["intervals"] for r in rows) > 1:
        return figure(data)
    (row,) = (r for r in rows if r["intervals"])
    text = f"{CAUSES[row['cause']].capitalize()} once, for {units.duration(row['longest_ns'])}"
    return Single(TITLE, f"{text}, from {units.instant(data.low_ns)} UTC on.")


def section(tables: Tables) -> Section:
    """Return the section of flow control."""
    page = Section("waits", "Flow control")
    rows, left_out = totals(tables), negative(tables)
    if not rows:
        nothing = f"No flow control seen.{_left_out(left_out)}"
        page.empty = missing("flow_control", there=tables.has("flow_control"), nothing=nothing)
        return page
    page.lead = "Intervals in which the protocol did not let one side send."
    lanes = query(tables, captured.end(tables))
    if lanes and lanes.causes:
        page.parts.append(part(lanes, rows))
    page.parts.append(totals_grid(rows, left_out, on_the_way(tables)))
    longest = longest_grid(tables)
    if longest:
        page.parts.append(longest)
    return page
