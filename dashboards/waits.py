"""Waits: intervals in which somebody was not allowed to send, by cause.

`proven` intervals are shown by the traffic itself; `possible` ones could have held somebody back, but nobody can
be seen waiting.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from amqpscope.dashboards import captured, theme, units
from amqpscope.dashboards.connections import endpoints
from amqpscope.dashboards.section import Cell, Figure, Grid, Key, Section, left_out, missing, number
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

LONGEST = 15


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
    """Per cause and evidence: intervals, summed and longest duration, those still open at the end."""
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
    )
    return sorted(grouped.to_pylist(), key=lambda r: (_place(r["cause"]), r["evidence"] != "proven"))


def _place(cause: str | None) -> tuple[int, str]:
    known = list(CAUSES)
    return (known.index(cause) if cause in known else len(known), str(cause))


def query(tables: Tables, end_ns: int | None = None) -> Lanes | None:
    """The steps of time filled by each cause; intervals without an end last to `end_ns`."""
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
    return plausible("start_ts_ns") & (pc.field("end_ts_ns").is_null() | plausible("end_ts_ns"))


def draw(ax: Any, data: Lanes) -> None:
    """Draw one lane per cause, proven waits full and possible ones thin."""
    width = (data.high_ns - data.low_ns) / 1e9 / STEPS
    for evidence, height, colour in (("possible", 0.26, "orange"), ("proven", 0.62, "red")):
        for row, steps in enumerate(data.filled[evidence]):
            edges = np.diff(steps.astype(np.int8), prepend=0, append=0)
            begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
            spans = [(b * width, (e - b) * width) for b, e in zip(begins, ends, strict=True)]
            ax.broken_barh(spans, (row - height / 2, height), color=theme.INK[colour], linewidth=0)
    if theme.is_narrow(ax):
        ax.set_yticks([])
        for row, cause in enumerate(data.causes):
            ax.text(0, row - 0.4, CAUSES[cause], color=theme.INK["muted"], va="bottom", ha="left")
        ax.set_ylim(len(data.causes) - 0.5, -0.95)
    else:
        ax.set_yticks(range(len(data.causes)), [CAUSES[c] for c in data.causes])
        ax.set_ylim(len(data.causes) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    theme.time_axis(ax, data.low_ns, data.high_ns)


def figure(data: Lanes) -> Figure:
    """The drawing of the lanes."""
    named = ", ".join(CAUSES[c] for c in data.causes)
    return theme.render(
        "waits",
        [draw],
        data,
        title="When somebody had to wait",
        legend=[Key("red", "proven"), Key("orange", "possible")],
        height=76 + 44 * len(data.causes),
        alt=f"Timeline of waits by cause: {named}.",
        caption="All connections together. Thick: proven by the traffic; thin: possible. An interval is drawn at least "
        f"{units.duration((data.high_ns - data.low_ns) / STEPS)} wide.",
    )


def totals_grid(rows: list[dict[str, Any]]) -> Grid:
    """The table of sums."""
    return Grid(
        "Waits by cause",
        ["cause", "evidence", "intervals", "longest", "summed", "still open at the end"],
        [
            [
                Cell(CAUSES.get(r["cause"], str(r["cause"]))),
                Cell(r["evidence"] or units.NONE),
                number(units.count(r["intervals"])),
                number(units.duration(r["longest_ns"])),
                number(units.duration(r["total_ns"])),
                number(units.count(r["open"])),
            ]
            for r in rows
        ],
        "Sums count intervals on several channels or consumers several times.",
    )


def longest_grid(tables: Tables) -> Grid | None:
    """The table of the longest intervals, each with the packets at both ends."""
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
    )
    if not rows:
        return None
    who = endpoints(tables, [r["connection_id"] for r in rows])
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
                Cell(r["side"] or units.NONE),
                Cell(r["evidence"] or units.NONE),
                number(f"{_packet(r['start_packet'])} … {_packet(r['end_packet'])}"),
                Cell(r["start_capture"] or units.NONE),
            ]
            for r in rows
        ],
        left_out(len(rows), tables.rows("flow_control", pc.field("duration_ns").is_valid()), "intervals"),
    )


def _packet(packet: int | None) -> str:
    return "?" if packet is None else str(packet)


def section(tables: Tables) -> Section:
    """The section of waits."""
    page = Section("waits", "Waits")
    rows = totals(tables)
    if not rows:
        page.empty = missing("flow_control", there=tables.has("flow_control"), nothing="Nobody was seen to wait.")
        return page
    page.lead = "Intervals in which the protocol did not let somebody send."
    lanes = query(tables, captured.end(tables))
    if lanes and lanes.causes:
        page.parts.append(figure(lanes))
    page.parts.append(totals_grid(rows))
    longest = longest_grid(tables)
    if longest:
        page.parts.append(longest)
    return page
