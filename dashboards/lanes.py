"""The lanes: rates, latency of confirms, time in queues and unacknowledged deliveries on one axis of time.

Their data goes to the page twice: drawn, and as numbers for the readout, the zoom and the list of messages below them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dashboards import chart, relations, units
from amqpscope.dashboards.chart import Boxes, Dots, Line, Mark, Panel, Scale
from amqpscope.dashboards.relations import Row
from amqpscope.dashboards.section import Key
from amqpscope.dashboards.series import COLUMNS, PACKETS, Points
from amqpscope.dashboards.tables import Tables, plausible

QUEUES, CONSUMERS = 4, 4
"""Queues and consumers that have a line: those with the longest waits, and with most deliveries unsettled."""
COLOURS = ("blue", "orange", "green", "purple")
DASHES = ("", "7 3", "2 3", "9 3 2 3")
"""Of lines beside each other: no line differs by its colour alone."""
DOTS = ((3.6, "round", "\N{BLACK CIRCLE}"), (3.2, "square", "\N{BLACK SQUARE}"), (2.2, "round", "\N{BULLET}"),
        (2.0, "square", "\N{BLACK SMALL SQUARE}"))  # fmt: skip
"""Size and shape of points of different series, and what stands for them in a legend."""
HEIGHT = 84
DARK_DOT = 4.5


@dataclass(frozen=True)
class Curve:
    """A series of a lane.

    Attributes:
        name: text of a capture, perhaps.
        unit: `ns`, `per s` or `count`.
        at: int64, ns since the begin.
        values: int64 or float64.
        packets: of both ends of points, and their file; none for steps.
    """

    name: str
    unit: str
    at: Any
    values: Any
    packets: pa.Table | None = None


@dataclass(frozen=True)
class Lane:
    """A lane: what it shows, in words; its drawing; legend; and data."""

    title: str
    panel: Panel
    legend: Sequence[Key]
    curves: Sequence[Curve]


@dataclass(frozen=True)
class Overview:
    """All lanes.

    Attributes:
        low_ns: begin (ns since the epoch).
        x: scale of time.
        lanes: from the top.
        shades: intervals in which publishers were blocked: shares of the scale.
    """

    low_ns: int
    x: Scale
    lanes: Sequence[Lane]
    shades: Sequence[tuple[float, float]] = field(default=())


def query(tables: Tables, findings: Iterable[Row] = ()) -> Overview | None:
    """Return the lanes of statistics; None where nothing was published or delivered.

    Args:
        tables: the statistics.
        findings: those to shade.
    """
    rates = sorted(relations.rows(tables, "rates", where=("grouping", ["all"])), key=lambda r: r["ts_ns"])
    if not rates:
        return None
    width = rates[0]["width_ns"]
    low, high = _span(tables, rates, width)
    begins = np.array([r["ts_ns"] for r in rates], np.int64)
    marks = [r[side] for r in findings for side in ("first_ts_ns", "last_ts_ns") if r[side] is not None]
    moments = np.concatenate([begins, begins + width, np.array(marks, np.int64)])
    x = chart.time(low, high, chart.busy(moments, low, high, width))
    queues = [r for r in relations.rows(tables, "queues") if r["wait_max_ns"] is not None]
    queues = sorted(queues, key=lambda r: -r["wait_max_ns"])[:QUEUES]
    colours = {r["queue"]: COLOURS[place] for place, r in enumerate(queues)}
    made = [
        _rates(rates, low, high, width),
        _confirms(tables, low, x),
        _waits(tables, low, x, queues),
        _unacked(tables, low, high, colours),
    ]
    blocks = [(r["first_ts_ns"] - low, r["last_ts_ns"] - low) for r in findings if _is_block(r)]
    shades = [(float(x.at(a)), float(x.at(b))) for a, b in blocks]
    return Overview(low, x, [lane for lane in made if lane], shades)


def _is_block(row: Row) -> bool:
    return row["code"] == "pub-blocked" and row["first_ts_ns"] is not None and row["last_ts_ns"] is not None


def _span(tables: Tables, rates: Sequence[Row], width: int) -> tuple[int, int]:
    ends = [
        (r["first_ts_ns"], r["last_ts_ns"])
        for r in relations.rows(tables, "endpoints", ["first_ts_ns", "last_ts_ns"])
        if r["first_ts_ns"] is not None and r["last_ts_ns"] is not None
    ]
    low = min([first for first, _ in ends], default=rates[0]["ts_ns"])
    high = max([last for _, last in ends], default=rates[-1]["ts_ns"] + width)
    return low, max(high, low + 1)


def _rates(rates: Sequence[Row], low: int, high: int, width: int) -> Lane | None:
    count = (rates[-1]["ts_ns"] - rates[0]["ts_ns"]) // width + 1
    at = np.arange(count + 1, dtype=np.int64) * width + (rates[0]["ts_ns"] - low)
    seconds = min(width, high - low) / units.SECOND
    curves, marks, legend, parts = [], [], [], []
    both = (("publishes", "published", "blue"), ("deliveries", "delivered", "green"))
    for place, (column, name, colour) in enumerate(both):
        values = np.zeros(count + 1)
        for row in rates:
            values[(row["ts_ns"] - rates[0]["ts_ns"]) // width] = row[column] / seconds
        values[-1] = values[-2]
        if not values.any():
            continue
        curves.append(Curve(name, "per s", at[:-1], values[:-1]))
        marks.append(Line(np.maximum(at, 0), values, colour, "post", dash=DASHES[place]))
        legend.append(Key(colour, name, "\N{BLACK SQUARE}" if place == 0 else "\N{WHITE SQUARE}"))
        total = sum(row[column] for row in rates)
        mean = total / ((high - low) / units.SECOND)
        most = float(values.max())
        # a capture of few seconds may cut all of them: none has as many as the mean
        at_most = f", {units.rate(most)} at most" if most >= 0.99 * mean else ""
        parts.append(f"{units.rate(mean)} {name} per second{at_most}")
    if not curves:
        return None
    most = max(float(curve.values.max()) for curve in curves)
    return Lane(f"Rates: {'; '.join(parts)}", Panel(chart.linear(most, 2), marks, HEIGHT), legend, curves)


def _latencies(
    tables: Tables, table: str, ends: tuple[str, str], low: int, where: pc.Expression, *others: str
) -> Iterator[pa.Table]:
    """Yield the latencies of a table as rows of `Points`, at the time at which they ended, with other columns."""
    begin, end = ends
    columns = {
        "at": pc.field(f"{end}_ts_ns"),
        "value": pc.field("latency_ns"),
        "begin_packet": pc.field(f"{begin}_packet"),
        "end_packet": pc.field(f"{end}_packet"),
        "begin_capture": pc.field(f"{begin}_capture"),
    }
    known = plausible("latency_ns") & plausible(f"{end}_ts_ns") & (pc.field(f"{end}_ts_ns") >= low) & where
    for rows in tables.scan(table, columns | {name: pc.field(name) for name in others}, known):
        at = pc.subtract(rows["at"], pa.scalar(low, pa.int64()))
        packets = [rows[name].cast(pa.int64() if name.endswith("packet") else pa.string()) for name in PACKETS]
        given = [rows[name].cast(pa.string()) for name in others]
        yield pa.table([at, rows["value"], *packets, *given], names=["at", "value", *PACKETS, *others])


def _drawn(points: Points, x: Scale, colour: str, place: int, threshold: float) -> list[Mark]:
    """Return marks: dots, those above a threshold large; where there are many, their range in each column of pixels."""
    rows = points.rows()
    at, values = rows["at"].to_numpy(), rows["value"].to_numpy()
    marks: list[Mark] = []
    columns, least = points.least()
    if len(columns):
        greatest = np.zeros(COLUMNS, np.int64)
        column = np.minimum((x.at(at) * COLUMNS).astype(np.int64), COLUMNS - 1)
        np.maximum.at(greatest, column, values)
        edges = np.interp([columns / COLUMNS, (columns + 1) / COLUMNS], x.shares, x.knots)
        marks.append(Boxes(edges[0], edges[1], least, greatest[columns], f"{colour}-soft"))
    high = values >= threshold
    size, cap, _ = DOTS[place]
    if not len(columns):
        marks.append(Dots(at[~high], values[~high], colour, size, cap=cap))
    if high.any():
        marks.append(Dots(at[high], values[high], "ink", DARK_DOT))
    return marks


def _confirms(tables: Tables, low: int, x: Scale) -> Lane | None:
    curves, marks, legend = [], [], []
    summary = _summary(tables, "confirm")
    outlier = max(4 * (summary["p99_ns"] or 0), 1) if summary else np.inf
    outlier = min(outlier, max((summary or {}).get("p50_ns") or 0, 1) * 100)
    ends = []
    for place, (outcome, colour, name) in enumerate((("ack", "blue", "acks"), ("nack", "red", "nacks (refused)"))):
        points = Points(x)
        for found in _latencies(tables, "confirms", ("publish", "confirm"), low, pc.field("outcome") == outcome):
            points.add(found)
        if not points.count:
            continue
        rows = points.rows()
        curves.append(Curve(name, "ns", rows["at"], rows["value"], rows.select(list(PACKETS))))
        marks += _drawn(points, x, colour, place, outlier if outcome == "ack" else np.inf)
        legend.append(Key(colour, f"{units.count(points.count)} {name}", DOTS[place][2]))
        ends += [pc.min(rows["value"]).as_py(), pc.max(rows["value"]).as_py()]
        ends += points.least()[1].tolist()[:1] and [int(points.least()[1].min())]
    if not curves:
        return None
    figures = _figures(summary)
    title = f"Publish to confirm{f': {figures}' if figures else ''}"
    return Lane(title, Panel(chart.latency(min(ends), max(ends)), marks, HEIGHT), legend, curves)


def _summary(tables: Tables, metric: str) -> Row | None:
    where = (pc.field("metric") == metric) & (pc.field("grouping") == "all")
    found = tables.top("latency_summary", ["p50_ns", "p99_ns", "max_ns", "count"], "count", 1, where)
    return found[0] if found else None


def _figures(summary: Row | None) -> str:
    if not summary or summary["p50_ns"] is None:
        return ""
    names = (("median", "p50_ns"), ("99 %", "p99_ns"), ("slowest", "max_ns"))
    return ", ".join(f"{name} {units.duration(summary[column])}" for name, column in names)


def _waits(tables: Tables, low: int, x: Scale, queues: Sequence[Row]) -> Lane | None:
    points = {queue["queue"]: Points(x) for queue in queues}
    if not points or not tables.has("transits"):
        return None
    is_first = pc.field("queue").isin([*points]) & ~pc.coalesce(pc.field("redelivered"), pa.scalar(False))
    for rows in _latencies(tables, "transits", ("publish", "deliver"), low, is_first, "queue"):
        for queue, found in points.items():
            found.add(rows.filter(pc.equal(rows["queue"], queue)).drop_columns(["queue"]))
    curves, marks, legend, ends = [], [], [], []
    for place, (queue, found) in enumerate(points.items()):
        if not found.count:
            continue
        rows = found.rows()
        curves.append(Curve(queue, "ns", rows["at"], rows["value"], rows.select(list(PACKETS))))
        marks += _drawn(found, x, COLOURS[place], place, np.inf)
        legend.append(Key(COLOURS[place], queue, DOTS[place][2]))
        ends += [pc.min(rows["value"]).as_py(), pc.max(rows["value"]).as_py()]
    if not curves:
        return None
    worst = queues[0]
    title = f"Time in queue: {worst['queue']} up to {units.duration(worst['wait_max_ns'])}"
    return Lane(title, Panel(chart.latency(min(ends), max(ends)), marks, HEIGHT), legend, curves)


def _unacked(tables: Tables, low: int, high: int, colours: dict[str, str]) -> Lane | None:
    rows: dict[tuple[Any, ...], list[Row]] = {}
    for row in relations.rows(tables, "occupancy", where=("level", ["unacked"])):
        if row["ts_ns"] is not None:
            rows.setdefault(_identity(row), []).append(row)
    if not rows:
        return None
    known = {_identity(row): row for row in relations.rows(tables, "consumers")}
    free = [colour for colour in COLOURS if colour not in colours.values()]
    most = sorted(rows, key=lambda of: -max(row["high"] for row in rows[of]))[:CONSUMERS]
    curves, marks, legend = [], [], []
    top = 1
    for place, of in enumerate(most):
        consumer = known.get(of, {})
        colour = colours.get(consumer.get("queue") or "") or (free.pop(0) if free else COLOURS[place])
        at, values = _levels(sorted(rows[of], key=lambda row: row["ts_ns"]), low, high)
        name = _consumer(consumer, of)
        bound = max((row["bound"] or 0 for row in rows[of]), default=0)
        curves.append(Curve(f"{name} unacked", "count", at, values))
        marks.append(Line(np.maximum(at, 0), values, colour, "post", dash=DASHES[place]))
        if bound:
            marks.append(Line(np.array([0, high - low]), np.array([bound, bound]), colour, width=0.9, dash="1 4"))
        legend.append(Key(colour, f"{name}{f' (prefetch {bound}, dotted)' if bound else ''}", "\N{BLACK SQUARE}"))
        top = max(top, int(values.max(initial=1)), bound)
    fullest = max((known[of] for of in most if of in known), key=lambda row: row["full_share"] or 0, default=None)
    title = "Deliveries not yet acknowledged"
    if fullest and (fullest["full_share"] or 0) >= 0.05:
        name = _consumer(fullest, _identity(fullest))
        title += (
            f": {name} at its prefetch of {fullest['prefetch']} for {units.share(fullest['full_share'], 1)} of its time"
        )
    return Lane(title, Panel(chart.linear(top, 2), marks, HEIGHT), legend, curves)


def _identity(row: Row) -> tuple[Any, ...]:
    return (row["connection_id"], row["channel"], row["channel_epoch"], row["consumer_tag"])


def _consumer(row: Row, of: tuple[Any, ...]) -> str:
    return str(row.get("called") or of[3] or "consumer")


def _levels(rows: Sequence[Row], low: int, high: int) -> tuple[Any, Any]:
    """Return steps: the highest level of each bucket of time, then the last one until the next bucket with a change."""
    at, values = [0], [0]
    for row in rows:
        begin = max(row["ts_ns"] - low, 0)
        if at[-1] >= begin:  # the bucket before ends here
            at.pop()
            values.pop()
        at += [begin, begin + row["width_ns"]]
        values += [row["high"], row["last"]]
    at.append(max(high - low, at[-1]))
    values.append(values[-1])
    return np.array(at, np.int64), np.array(values, np.int64)


def data(overview: Overview) -> dict[str, Any]:
    """Return what scripts on the page read: times in microseconds since the begin."""
    captures: dict[str | None, int] = {}
    return {
        "low": str(overview.low_ns // 1000),
        "knots": [round(knot / 1000) for knot in overview.x.knots],
        "shares": [round(share, 6) for share in overview.x.shares],
        "lanes": [[_curve(curve, captures) for curve in lane.curves] for lane in overview.lanes],
        "captures": [units.visible(name or units.NONE) for name in captures],
    }


def _values(curve: Curve) -> list[float]:
    """Return the values of a curve, as exact as they are shown; durations in microseconds."""
    values = np.asarray(curve.values)
    if curve.unit == "ns":
        return [value if value < 10 else round(value) for value in np.round(values / 1000, 2).tolist()]
    return [round(float(value), 2) if curve.unit == "per s" else int(value) for value in values]


def _curve(curve: Curve, captures: dict[str | None, int]) -> dict[str, Any]:
    at = np.asarray(curve.at) // 1000
    found: dict[str, Any] = {
        "name": units.visible(curve.name),
        "unit": curve.unit,
        "t": np.diff(at, prepend=0).astype(np.int64).tolist(),  # steps are short numbers
        "v": _values(curve),
    }
    if curve.packets is not None:
        found["p"] = [curve.packets[name].to_pylist() for name in PACKETS[:2]]
        files = curve.packets[PACKETS[2]].to_pylist()
        found["c"] = [captures.setdefault(name, len(captures)) for name in files]
        if not any(found["c"]):
            found["c"] = []
    return found
