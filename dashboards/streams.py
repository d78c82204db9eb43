"""Show stream subscriptions: the age of delivered chunks, the consumer's lag, and the credit.

A consumer that grants too little credit draws a floor at zero below; one that cannot keep up climbs away in the middle.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dashboards import units
from amqpscope.dashboards.chart import Chart, Dots, Line, Panel, latency, linear, time
from amqpscope.dashboards.connections import Endpoints, endpoints
from amqpscope.dashboards.section import Cell, Figure, Grid, Key, Section, number, of_all
from amqpscope.dashboards.tables import Tables, plausible

STEPS = 460
"""Steps of time in a picture; each shows the worst of it."""
DRAWN = 3
"""Subscriptions that are drawn."""
LISTED = 10_000

_KEYS = ["connection_id", "subscription_id", "subscription_epoch"]
_NAMES = [*_KEYS, "stream", "consumer"]
_IDENTITY = [(key, "ascending") for key in _KEYS]


@dataclass(frozen=True)
class Course:
    """One subscription over time, in STEPS steps.

    Attributes:
        low_ns: Begin of the first step.
        high_ns: End of the last one.
        age_ns: float64, age of the oldest chunk delivered in each step; NaN where none was.
        lag: float64, records between the delivery and the stream's end, at least; NaN where unknown.
        credit: float64, least credit left; NaN before the account is known.
        negative: Chunks younger than nothing, by clocks that differ; their age is left out.
    """

    low_ns: int
    high_ns: int
    age_ns: np.ndarray
    lag: np.ndarray
    credit: np.ndarray
    negative: int = 0


def subscriptions(tables: Tables) -> list[dict[str, Any]]:
    """Return the sums of each subscription, most chunks first."""
    delivered = tables.group(
        "stream_deliveries",
        _NAMES,
        {
            "chunks": ("frame_no", "count"),
            "records": ("records", "sum"),
            "oldest_ns": ("age_ns", "max"),
            "lag": ("lag_records", "max"),
            "first_ns": ("ts_ns", "min"),
            "last_ns": ("ts_ns", "max"),
        },
        where=plausible("ts_ns"),
    ).to_pylist()
    starved = tables.group(
        "flow_control",
        ["connection_id", "subscription_id"],
        {"waits": ("start_ts_ns", "count"), "waited_ns": ("duration_ns", "sum"), "longest_ns": ("duration_ns", "max")},
        where=(pc.field("cause") == "stream-credit") & plausible("duration_ns"),
    ).to_pylist()
    waits = {(w["connection_id"], w["subscription_id"]): w for w in starved}
    none = {"waits": 0, "waited_ns": None, "longest_ns": None}
    rows = [none | waits.get((d["connection_id"], d["subscription_id"]), {}) | d for d in delivered]
    return sorted(rows, key=lambda r: (-r["chunks"], *(r[key] or 0 for key in _KEYS)))


def course(tables: Tables, row: dict[str, Any]) -> Course:
    """Return one subscription over time, in a pass over each table."""
    low, high = row["first_ns"], max(row["last_ns"], row["first_ns"] + 1)
    where = plausible("ts_ns")
    for key in _KEYS:
        where &= pc.field(key).is_null() if row[key] is None else pc.field(key) == row[key]
    age, lag, credit = (np.full(STEPS, np.nan) for _ in range(3))
    for batch in tables.scan("stream_deliveries", ["ts_ns", "age_ns", "lag_records"], where):
        old = batch.filter(pc.greater_equal(batch["age_ns"], 0))
        _worst(age, np.fmax, old["ts_ns"], old["age_ns"], low, high)
        _worst(lag, np.fmax, batch["ts_ns"], batch["lag_records"], low, high)
    for batch in tables.scan("stream_credit", ["ts_ns", "balance"], where):
        _worst(credit, np.fmin, batch["ts_ns"], batch["balance"], low, high)
    negative = tables.rows("stream_deliveries", where & (pc.field("age_ns") < 0))
    return Course(low, high, age, lag, credit, negative)


def _worst(into: np.ndarray, worse: np.ufunc, times: pa.Array, values: pa.Array, low: int, high: int) -> None:
    known = values.is_valid()
    at = times.filter(known).to_numpy()
    step = ((at - low) * (STEPS / (high - low))).clip(0, STEPS - 1).astype(np.int64)
    worse.at(into, step, values.filter(known).to_numpy().astype(float))


def drawn(data: Course) -> Chart:
    """Return how old chunks were when they were delivered, the consumer's lag, and the credit that was left."""
    xs, lag, left = _middles(data), _held(data.lag), _held(data.credit)
    known = data.age_ns[~np.isnan(data.age_ns)]
    least, most = (float(known.min()), float(known.max())) if len(known) else (1.0, 1.0)
    return Chart(
        time(data.low_ns, data.high_ns),
        [
            Panel(latency(least, most, "age"), [Dots(xs, np.maximum(data.age_ns, 1), "blue", 4)], 120),
            Panel(linear(float(np.nanmax(data.lag, initial=1)), 3, "lag"), [Line(xs, lag, "orange", "post")], 120),
            Panel(
                linear(float(np.nanmax(data.credit, initial=1)), 2, "credit"),
                [
                    Line(xs, np.nan_to_num(left), "heat2", "post", base=np.zeros(len(xs))),
                    Line(xs, np.where(left <= 0, 0.0, np.nan), "red", width=4),
                ],
                60,
            ),
        ],
    )


def _middles(data: Course) -> np.ndarray:
    return (np.arange(STEPS) + 0.5) * ((data.high_ns - data.low_ns) / STEPS)


def _held(values: np.ndarray) -> np.ndarray:
    """Return steps: each value until the next one."""
    last = np.maximum.accumulate(np.where(np.isnan(values), 0, np.arange(len(values))))
    return values[last]


def figure(row: dict[str, Any], data: Course, who: Endpoints) -> Figure:
    """Return the drawing of one subscription."""
    waits, longest = units.count(row["waits"]), units.duration(row["longest_ns"])
    credit = (
        f"without credit {waits} time{'s' * (row['waits'] > 1)}, {longest} at most"
        if row["waits"]
        else "never without credit"
    )
    lag = "an unknown lag" if row["lag"] is None else f"a lag of at least {units.count(row['lag'])} records"
    text = (
        f"{units.count(row['chunks'])} chunks with {units.count(row['records'])} records; the oldest was "
        f"{units.duration(row['oldest_ns'])} old; {lag}; {credit}"
    )
    return Figure(
        f"Subscription {row['subscription_id']} to {row['stream'] or 'a stream'}, {who.name(row['connection_id'])}",
        drawn(data),
        f"Age of chunks, lag and credit over time: {text}.",
        f"{text}. Behind: the last offset seen on the wire less the last one delivered. Each of {STEPS} steps "
        f"of time shows its worst.{_left_out(data)}",
        [
            Key("blue", "age of a chunk when it was delivered", "\N{BLACK CIRCLE}"),
            Key("orange", "lag (records)"),
            Key("heat2", "credit left"),
            Key("red", "no credit"),
        ],
    )


def _left_out(data: Course) -> str:
    return f" Left out: the age of {units.counted(data.negative, 'chunk')}, negative." if data.negative else ""


def section(tables: Tables) -> Section:
    """Return the section of streams."""
    page = Section("streams", "Streams")
    rows = subscriptions(tables)
    if not rows:
        page.empty = "No deliveries from streams."
        return page
    page.lead = "Chunks delivered to the subscriptions of streams: their age, and the consumer's lag."
    who = endpoints(tables, [r["connection_id"] for r in rows[: max(LISTED, DRAWN)]])
    shown = [row for row in rows[:DRAWN] if row["chunks"] > 1 and row["last_ns"] > row["first_ns"]]
    for row in shown:
        page.parts.append(figure(row, course(tables, row), who))
    page.parts.append(_grid(rows, who))
    return page


def _grid(rows: list[dict[str, Any]], who: Endpoints) -> Grid:
    heads = ["stream", "consumer", "connection", "subscription", "chunks", "records", "oldest", "lag"]
    return Grid(
        "Subscriptions",
        [*heads, "without credit", "longest", "total"],
        [
            [
                Cell(r["stream"] or units.NONE),
                Cell(r["consumer"] or units.NONE),
                Cell(who.name(r["connection_id"]), "mono"),
                number(units.count(r["subscription_id"])),
                number(units.count(r["chunks"])),
                number(units.count(r["records"])),
                number(units.duration(r["oldest_ns"])),
                number(units.count(r["lag"])),
                number(units.count(r["waits"])),
                number(units.duration(r["longest_ns"])),
                number(units.duration(r["waited_ns"])),
            ]
            for r in rows[:LISTED]
        ],
        of_all(min(len(rows), LISTED), len(rows)),
    )
