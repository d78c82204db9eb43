"""Draw the heat map of latency: time across, latency (logarithmic) up, the number of operations as colour.

A percentile over a whole capture is the same for a stall of ten seconds and for a thousand slow answers spread over an
hour; the map can. Below it stands the number of operations, and of those without a good answer.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dashboards import percentiles, theme, units
from amqpscope.dashboards.chart import Boxes, Chart, Mark, Panel, latency, linear, time
from amqpscope.dashboards.section import Figure, Section, Single, missing
from amqpscope.dashboards.tables import Tables, plausible

COLUMNS = 96
"""Steps of time."""

_MOST_ROWS = 44
_SHORT_S = 0.05
"""Steps shorter than this show counts: few events in them would make a rate that nobody sent at."""


@dataclass(frozen=True)
class Metric:
    """Where a latency comes from: table, time of its start, outcomes that are no good answer."""

    name: str
    table: str
    start: str
    failed: tuple[str, ...]
    verb: str


METRICS = (
    Metric("confirm", "confirms", "publish_ts_ns", ("nack", "none"), "published"),
    Metric("settlement", "settlements", "deliver_ts_ns", ("nack", "reject", "none"), "delivered"),
)


@dataclass(frozen=True)
class Map:
    """Counts over time and latency.

    Attributes:
        metric: What was counted.
        counts: int64, shape (latency rows, time steps); row 0 is the fastest.
        started: int64 per time step, operations that began then, whatever became of them.
        failed: int64 per time step, those among them with no good answer.
        low_ns: Begin of the first step.
        high_ns: End of the last step.
        first_log2: Lower edge of row 0, as log2 of nanoseconds.
        per_octave: Rows per doubling of latency.
        longest_ns: Longest latency.
        negative: Answers that stand before their question, as where a clock stepped; they are not in `counts`.
    """

    metric: Metric
    counts: np.ndarray
    started: np.ndarray
    failed: np.ndarray
    low_ns: int
    high_ns: int
    first_log2: float
    per_octave: int
    longest_ns: int = 0
    negative: int = 0


def query(tables: Tables, metric: Metric) -> Map | None:
    """Count one metric, in two passes over its table; None when nothing has a latency."""
    known = pc.if_else(plausible("latency_ns"), pc.field("latency_ns"), pc.scalar(None))
    started_then = plausible(metric.start)
    whole = tables.group(
        metric.table,
        [],
        {
            "first": (metric.start, "min"),
            "last": (metric.start, "max"),
            "least": ("known", "min"),
            "most": ("known", "max"),
        },
        columns={"known": known},
        where=started_then,
    )
    if not whole.num_rows or whole["most"][0].as_py() is None:
        return None
    low, high = whole["first"][0].as_py(), whole["last"][0].as_py() + 1
    longest = whole["most"][0].as_py()
    least, most = (np.log2(max(whole[c][0].as_py(), 1)) for c in ("least", "most"))
    per_octave = max((n for n in (1, 2, 4) if (most - least) * n <= _MOST_ROWS), default=1)
    first = np.floor(least * per_octave)
    rows = int(np.floor(most * per_octave) - first) + 1
    counts = np.zeros((rows, COLUMNS), np.int64)
    started = np.zeros(COLUMNS, np.int64)
    failed = np.zeros(COLUMNS, np.int64)
    scale = COLUMNS / (high - low)
    columns = {"start": pc.field(metric.start), "known": known, "outcome": pc.field("outcome")}
    for batch in tables.scan(metric.table, columns, started_then):
        step = ((batch["start"].to_numpy() - low) * scale).clip(0, COLUMNS - 1).astype(np.int64)
        started += np.bincount(step, minlength=COLUMNS)
        bad = pc.is_in(batch["outcome"], pa.array(metric.failed)).to_numpy(zero_copy_only=False)
        failed += np.bincount(step[bad], minlength=COLUMNS)
        has = batch["known"].is_valid().to_numpy()
        took = batch["known"].drop_null().to_numpy()
        row = (np.floor(np.log2(np.maximum(took, 1)) * per_octave) - first).astype(np.int64).clip(0, rows - 1)
        counts += np.bincount(row * COLUMNS + step[has], minlength=rows * COLUMNS).reshape(rows, COLUMNS)
    negative = tables.rows(metric.table, pc.field("latency_ns") < 0)
    return Map(metric, counts, started, failed, low, high, first / per_octave, per_octave, longest, negative)


def levels(counts: np.ndarray) -> np.ndarray:
    """Return the colour step of each count: -1 for none, then equal steps of its logarithm up to the largest."""
    most = max(int(counts.max(initial=0)), 2)
    steps = len(theme.HEAT)
    level = np.floor(np.log(np.maximum(counts, 1)) / np.log(most) * steps).astype(int)
    return np.where(counts > 0, np.minimum(level, steps - 1), -1)


def drawn(data: Map) -> Chart:
    """Return the map, and below it the operations begun per second, or per step where steps are short."""
    level = levels(data.counts)
    width = (data.high_ns - data.low_ns) / data.counts.shape[1]
    height = 1 / data.per_octave
    cells: list[Mark] = []
    for step, colour in enumerate(theme.HEAT):
        row, begin, end = (np.array(part) for part in _runs(level, step))
        if len(row):
            low = data.first_log2 + row * height
            cells.append(Boxes(begin * width, end * width, 2.0**low, 2.0 ** (low + height), colour))
    bottom, top = 2.0**data.first_log2, 2.0 ** (data.first_log2 + data.counts.shape[0] * height)
    up = replace(latency(bottom, top, "latency"), knots=(bottom, top))
    edges = np.arange(len(data.started) + 1) * width
    per = width / units.SECOND if width / units.SECOND >= _SHORT_S else 1
    begun, failed = (counts / per for counts in (data.started, data.failed))
    zero = np.zeros(len(begun))
    return Chart(
        time(data.low_ns, data.high_ns),
        [
            Panel(replace(up, ticks=[tick for tick in up.ticks if bottom <= tick[0] <= top]), cells, 240),
            Panel(
                linear(float(begun.max(initial=1)), 2, "count" if per == 1 else "per s"),
                [
                    Boxes(edges[:-1], edges[1:], zero, begun, "heat1"),
                    Boxes(edges[:-1], edges[1:], zero, failed, "red"),
                ],
                56,
            ),
        ],
    )


def _runs(level: np.ndarray, step: int) -> tuple[Any, Any, Any]:
    """Return the runs of one level: rows, first columns, columns after the last (int64 each)."""
    edges = np.diff((level == step).astype(np.int8), axis=1, prepend=0, append=0)
    begins, ends = np.argwhere(edges == 1), np.argwhere(edges == -1)
    return begins[:, 0], begins[:, 1], ends[:, 1]


def part(data: Map) -> Figure | Single:
    """Return the drawing of one metric's map; of one latency, or of one moment, what it was."""
    samples = int(data.counts.sum())
    if samples > 1 and data.high_ns - data.low_ns > 1:
        return figure(data)
    longest, moment = units.duration(data.longest_ns), units.instant(data.low_ns)
    if samples == 1:
        return Single(title(data.metric), f"One latency: {longest}.")
    text = f"{units.count(samples)} latencies, the longest {longest}, of messages {data.metric.verb} at {moment} UTC."
    return Single(title(data.metric), text)


def title(metric: Metric) -> str:
    """Return the heading of a metric's map."""
    return f"Latency over time: {percentiles.NAMES[metric.name]}"


def figure(data: Map) -> Figure:
    """Return the drawing of one metric's map."""
    samples, failed = int(data.counts.sum()), int(data.failed.sum())
    strongest = int(data.counts.max())
    return Figure(
        title(data.metric),
        drawn(data),
        f"Heat map of {data.metric.name} latency over time: {units.count(samples)} latencies from "
        f"{units.instant(data.low_ns)} to {units.instant(data.high_ns)} UTC.",
        f"By the time it was {data.metric.verb}. Colour: operations per cell, from 1 (faint) to "
        f"{units.count(strongest)} (strong), logarithmic. Below: number {data.metric.verb}; in red "
        f"those with no good answer ({', '.join(data.metric.failed)}): {units.count(failed)}.{_left_out(data)}",
    )


def _left_out(data: Map) -> str:
    return f" Left out: {units.count(data.negative)} with a negative latency." if data.negative else ""


def section(tables: Tables) -> Section:
    """Return the section of heat maps."""
    page = Section("heat", "Latency over time")
    for metric in METRICS:
        data = query(tables, metric)
        if data:
            page.parts.append(part(data))
    if not page.parts:
        page.empty = missing("confirms", there=tables.has("confirms"), nothing="No confirms and no acknowledgements.")
    return page
