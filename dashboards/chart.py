"""Charts as data: panels with scales and marks. `svg` puts them on the page, `pictures` into files by matplotlib.

No text of a capture is in a chart: ticks and axes are ours, names stand in the legend as text of the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amqpscope.dashboards import units

Floats = NDArray[np.float64]
Tick = tuple[float, str]
GAP = 0.012
"""Share of the axis that a skipped stretch of time takes."""


@dataclass(frozen=True)
class Scale:
    """From values to shares of an axis, 0 to 1.

    Attributes:
        knots: values at which the scale bends, rising; two for a straight one.
        shares: where they are, rising from 0 to 1.
        ticks: values and their labels.
        title: what the values are.
        is_log: whether shares follow the logarithm of values.
    """

    knots: Sequence[float]
    shares: Sequence[float] = (0.0, 1.0)
    ticks: Sequence[Tick] = ()
    title: str = ""
    is_log: bool = False

    def at(self, values: Any) -> Floats:
        """Return the shares of values (float64, the same shape); NaN stays, others are clipped to the ends."""
        found = np.asarray(values, np.float64)
        knots = np.asarray(self.knots, np.float64)
        if self.is_log:
            least = float(knots[0])
            found, knots = np.log(np.maximum(found, least)), np.log(knots)
        return np.where(np.isnan(found), np.nan, np.interp(found, knots, self.shares))

    @property
    def low(self) -> float:
        """Smallest value."""
        return self.knots[0]

    @property
    def high(self) -> float:
        """Largest value."""
        return self.knots[-1]


@dataclass(frozen=True)
class Line:
    """A line through points, or steps: each value holds until the next one (`post`), or from the last one (`pre`)."""

    xs: Any
    ys: Any
    colour: str
    steps: str = ""
    width: float = 1.5
    dash: str = ""
    base: Any = None
    """For an area: what it is filled down to."""


@dataclass(frozen=True)
class Dots:
    """Points, all of one colour; `cap` and `glyph` give them other shapes than a disc: colour alone means nothing."""

    xs: Any
    ys: Any
    colour: str
    size: float = 3.0
    glyph: str = ""
    cap: str = "round"


@dataclass(frozen=True)
class Boxes:
    """Rectangles: left, right, low and high are arrays of one length."""

    left: Any
    right: Any
    low: Any
    high: Any
    colour: str


Mark = Line | Dots | Boxes


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        y: the vertical scale.
        marks: from the back to the front.
        height: in CSS pixels.
        title: what it shows; a page has it as text beside the chart.
        keys: colours and what they stand for, likewise.
    """

    y: Scale
    marks: Sequence[Mark]
    height: int = 160
    title: str = ""
    keys: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Chart:
    """Panels above each other that share the horizontal scale."""

    x: Scale
    panels: Sequence[Panel]
    grid: bool = field(default=True)


def linear(high: float, ticks: int = 4, title: str = "", low: float = 0.0) -> Scale:
    """Return a scale of counts from `low` to at least `high`, with round ticks."""
    span = max(high - low, 1e-9)
    step = 10.0 ** np.floor(np.log10(span / max(ticks, 1)))
    step = next(step * f for f in (1, 2, 5, 10) if span / (step * f) <= ticks)
    if step >= 1:
        step = float(round(step))
    top = low + np.ceil(span / step - 1e-9) * step
    marks = np.arange(low, top + step / 2, step)
    return Scale((low, float(max(top, low + step))), ticks=[(float(m), _count(float(m))) for m in marks], title=title)


def _count(value: float) -> str:
    return units.count(round(value)) if value == round(value) else f"{value:g}"


def latency(low_ns: float, high_ns: float, title: str = "") -> Scale:
    """Return a logarithmic scale of durations (ns) that holds both ends, with a tick for each power of ten."""
    low, high = max(low_ns, 1.0), max(high_ns, 1.0)
    first, last = int(np.floor(np.log10(low) + 1e-9)), int(np.ceil(np.log10(high) - 1e-9))
    if last - first < 2:
        spread = max(high / low, 1.5) ** 0.15
        low, high = low / spread, high * spread
        at = np.geomspace(low, high, 5)[1:-1]
        return Scale(
            (low, high), ticks=[(float(v), units.duration(round(float(v)))) for v in at], title=title, is_log=True
        )
    each = range(first, last + 1, -(-(last - first) // 6))
    low, high = min(low / 1.3, 10.0**first * 1.5), high * 1.3
    ticks = [(10.0**d, units.duration(10**d)) for d in each if low <= 10.0**d <= high]
    return Scale((low, high), ticks=ticks, title=title, is_log=True)


def time(low_ns: int, high_ns: int, busy: Sequence[tuple[int, int]] = ()) -> Scale:
    """Return a scale of times, in ns since `low_ns`.

    Args:
        low_ns: begin (ns since the epoch).
        high_ns: end.
        busy: stretches in which something happened, in order and apart; what is between them is skipped.
    """
    high_ns = max(high_ns, low_ns + 1)
    inner = [(max(a, low_ns), min(b, high_ns)) for a, b in busy] or [(low_ns, high_ns)]
    inner[0] = (low_ns, max(inner[0][1], low_ns + 1))
    inner[-1] = (inner[-1][0], high_ns)
    length = sum(b - a for a, b in inner) or 1
    room = 1 - GAP * (len(inner) - 1)
    knots, shares, at = [], [], 0.0
    for a, b in inner:
        knots += [float(a - low_ns), float(b - low_ns)]
        shares += [at, at + (b - a) / length * room]
        at = shares[-1] + GAP
    shares[-1] = 1.0
    ticks, title = units.time_ticks(low_ns, high_ns, 8)
    scale = Scale(knots, shares, title=title)
    if len(inner) == 1:
        return Scale(knots, shares, [(float(t - low_ns), text) for t, text in ticks], title)
    ticks, title = units.time_ticks(low_ns, low_ns + max(int(length), 10 * units.SECOND), 8)
    step = max(ticks[1][0] - ticks[0][0], 1) if len(ticks) > 1 else 1
    placed: list[Tick] = []
    for a, b in inner:  # the begin of each stretch, and round times in it that have room
        first = -(-a // step) * step
        for moment in [a, *range(first, b, step)][:12]:
            share = float(scale.at(moment - low_ns))
            if not placed or share - float(scale.at(placed[-1][0])) > 0.07:
                placed.append((float(moment - low_ns), units.clock(moment, step)))
    return Scale(knots, shares, placed, f"{title}; idle stretches are skipped")


def busy(moments: NDArray[np.int64], low_ns: int, high_ns: int, least_ns: int = 0) -> list[tuple[int, int]]:
    """Return the stretches of time around moments; what is idle for more than an eighth of everything lies between.

    Args:
        moments: int64, when something happened (ns), in any order.
        low_ns: begin.
        high_ns: end.
        least_ns: what is idle for no longer than this is no stretch: the moments are not known more finely.
    """
    span = max(high_ns - low_ns, 1)
    at = np.unique(np.clip(np.concatenate([moments, [low_ns, high_ns]]), low_ns, high_ns))
    breaks = np.flatnonzero(np.diff(at) > max(span // 8, least_ns))
    edge = span // 200
    begins = [low_ns, *(int(at[i + 1]) - edge for i in breaks)]
    ends = [*(int(at[i]) + edge for i in breaks), high_ns]
    found = [(a, b) for a, b in zip(begins, ends, strict=True) if b > a]
    return found if all(b < c for (_, b), (c, _) in pairwise(found)) else [(low_ns, high_ns)]
