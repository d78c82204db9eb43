"""The percentile curve: how long the slowest share of operations took, after HdrHistogram's plots.

The horizontal axis is 1/(1-q), logarithmic: 10 is the 90th percentile, 1000 the 99.9th, and one operation out of
n stands at n. So the tail, which an average hides, takes as much room as the body.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from amqpscope.dashboards import theme, units
from amqpscope.dashboards.chart import Chart, Dots, Line, Mark, Panel, Scale, latency
from amqpscope.dashboards.outcomes import Distribution, longest
from amqpscope.dashboards.section import Figure, Key, Single
from amqpscope.dashboards.tables import Tables

TITLE = "Latency distribution"

NAMES = {
    "confirm": "publish to confirm",
    "settlement": "deliver to acknowledgement",
    "rpc": "request to answer",
    "transit": "publish to deliver",
    "ack": "publish to ack",
    "nack": "publish to nack",
}
"""Metrics in words, and the outcomes of confirms."""

METRICS = ("confirm", "settlement", "rpc", "transit")


@dataclass(frozen=True)
class Curve:
    """One metric's distribution.

    Attributes:
        metric: Name of the metric.
        colour: Name of its colour.
        inverse: float64, 1/(1-q) at the end of each bucket, rising.
        latency_ns: float64, largest latency in the bucket.
        samples: Number of latencies.
    """

    metric: str
    colour: str
    inverse: np.ndarray
    latency_ns: np.ndarray
    samples: int


def query(tables: Tables, metrics: tuple[str, ...] = METRICS) -> list[Curve]:
    """Return the curve of each metric that has samples, over everything captured."""
    curves = []
    for metric, colour in zip(metrics, theme.SERIES, strict=False):
        where = (pc.field("metric") == metric) & (pc.field("grouping") == "all")
        buckets = tables.group("latency_buckets", ["high_ns"], {"count": ("count", "sum")}, where=where)
        if buckets.num_rows:
            most = tables.group("latency_summary", [], {"max": ("max_ns", "max")}, where=where)["max"].to_pylist()
            high = buckets["high_ns"].to_numpy()
            high = np.minimum(high, most[0]) if most and most[0] is not None else high
            curves.append(curve(metric, colour, high, buckets["count"].to_numpy()))
    return curves


def apart(curves: list[Curve], outcomes: dict[str, Distribution]) -> list[Curve]:
    """Return the curves with one for acks and one for nacks in the place of that for confirms, where there are both."""
    split = []
    for outcome, colour in (("ack", "blue"), ("nack", "red")):
        found = outcomes.get(outcome)
        if found is None or found.max_ns is None:
            return curves
        numbers = np.flatnonzero(found.counts)
        high = np.minimum([longest(int(n)) for n in numbers], found.max_ns)
        split.append(curve(outcome, colour, high, found.counts[numbers]))
    return [*split, *(c for c in curves if c.metric != "confirm")]


def curve(metric: str, colour: str, high_ns: np.ndarray, count: np.ndarray) -> Curve:
    """Return a curve from buckets in rising order: after a bucket with c samples up to it, q is c/n."""
    reached = np.cumsum(count)
    samples = int(reached[-1])
    left = np.maximum(samples - reached, 0)
    inverse = samples / np.maximum(left, 1)  # the slowest one stands at 1/(1-q) = n
    return Curve(metric, colour, inverse.astype(float), high_ns.astype(float), samples)


def at(c: Curve, q: float) -> float:
    """Return the latency, in nanoseconds, that the share q of samples did not exceed: the end of its bucket."""
    index = int(np.searchsorted(c.inverse, 1 / (1 - q) - 1e-9))
    return float(c.latency_ns[min(index, len(c.latency_ns) - 1)])


def drawn(curves: list[Curve]) -> Chart:
    """Return percentile curves; each ends at its slowest operation."""
    most = max(c.samples for c in curves)
    marks: list[Mark] = []
    for c in curves:
        xs, ys = np.concatenate([[1.0], c.inverse]), np.concatenate([c.latency_ns[:1], c.latency_ns])
        marks += [Line(xs, ys, c.colour, "pre"), Dots(xs[-1:], ys[-1:], c.colour, 6)]
    last = int(np.ceil(np.log10(max(most, 11)))) + 1
    decades = range(0, last, -(-last // 9))
    ticks = [(10.0**d, _percentile(d)) for d in decades if 10**d <= max(most, 10)]
    across = Scale((1.0, max(most * 1.15, 12.0)), ticks=[*ticks, (2.0, "50 %")], is_log=True,
                   title="share of operations that took no longer")  # fmt: skip
    ends = [c.latency_ns[at] for c in curves for at in (0, -1)]
    return Chart(across, [Panel(latency(min(ends), max(ends), "latency"), marks, 260)])


def _percentile(decade: int) -> str:
    if decade == 0:
        return "0 %"
    return "90 %" if decade == 1 else "99 %" if decade == 2 else f"99.{'9' * (decade - 2)} %"


def parts(curves: list[Curve]) -> list[Figure | Single]:
    """Return the drawing of the curves, and in words those that are one latency only."""
    drawn = [c for c in curves if c.samples > 1]
    alone = [c for c in curves if c.samples == 1]
    found: list[Figure | Single] = [figure(drawn)] if drawn else []
    if alone:
        text = "; ".join(f"{NAMES[c.metric]}: {units.duration(c.latency_ns[-1])}" for c in alone)
        found.append(Single("Measured once" if drawn else TITLE, f"One latency, {text}."))
    return found


def figure(curves: list[Curve]) -> Figure:
    """Return the drawing of all curves."""
    text = "; ".join(
        f"{NAMES[c.metric]}: {units.count(c.samples)} answered, median {units.duration(at(c, 0.5))}, "
        f"99 % {units.duration(at(c, 0.99))}, slowest {units.duration(c.latency_ns[-1])}"
        for c in curves
    )
    return Figure(
        TITLE,
        drawn(curves),
        f"Percentile curves of latency. {text}.",
        "Each curve ends at its slowest operation (dot). Values are upper ends of logarithmic buckets, up to 0.8 % "
        "above the true ones.",
        [Key(c.colour, f"{NAMES[c.metric]}, {units.count(c.samples)} answered") for c in curves],
    )
