"""Percentiles as HdrHistogram's tools write and read them: a folder with a file for each metric.

Source: the format of HdrHistogram's `outputPercentileDistribution` (release 2.2): values in milliseconds, five rows for
each halving of the distance to 100 %. Values are the upper ends of log-linear buckets, up to 0.8 % above the true ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from amqpscope.dashboards import percentiles
from amqpscope.dashboards.tables import Tables
from amqpscope.errors import Error

TICKS = 5
"""Rows for each halving of the distance to 100 %."""
HEAD = "       Value     Percentile TotalCount 1/(1-Percentile)\n\n"
MILLISECOND = 1e6


def write(tables: Tables, path: Path) -> str:
    """Write `METRIC.hgrm` for each metric that has latencies into a new folder.

    Raises:
        Error: there are no latencies.
        OSError: the folder cannot be written.
    """
    found = {metric: rows for metric in percentiles.METRICS if (rows := _buckets(tables, metric))}
    if not found:
        raise Error("nothing to export: there are no latencies")
    path.mkdir()
    for metric, rows in found.items():
        (path / f"{metric}.hgrm").write_text(text(rows), encoding="ascii")
    return f"{', '.join(found)}"


def _buckets(tables: Tables, metric: str) -> list[tuple[int, int, int]]:
    where = (pc.field("metric") == metric) & (pc.field("grouping") == "all")
    grouped = tables.group("latency_buckets", ["low_ns", "high_ns"], {"count": ("count", "sum")}, where=where)
    most = tables.group("latency_summary", [], {"max": ("max_ns", "max")}, where=where)["max"].to_pylist()
    top = most[0] if most and most[0] is not None else None
    rows = [(r["low_ns"], r["high_ns"] - 1, r["count"]) for r in grouped.to_pylist()]
    return [(low, high if top is None else min(high, top), count) for low, high, count in sorted(rows)]


def text(buckets: Sequence[tuple[int, int, int]]) -> str:
    """Return a distribution as text.

    Args:
        buckets: smallest and largest value (ns), and count, of each bucket that has any, rising.
    """
    total = sum(count for *_, count in buckets)
    middles = np.array([(low + high) / 2 for low, high, _ in buckets])
    counts = np.array([count for *_, count in buckets], float)
    mean = float((middles * counts).sum() / total)
    deviation = math.sqrt(float((((middles - mean) ** 2) * counts).sum() / total))
    lines = [HEAD]
    for value, share, reached in _rows(buckets, total):
        last = f" {1 / (1 - share):14.2f}" if share < 1 else ""
        lines.append(f"{value / MILLISECOND:12.3f} {share:2.12f} {reached:10d}{last}\n")
    lines.append(f"#[Mean    = {mean / MILLISECOND:12.3f}, StdDeviation   = {deviation / MILLISECOND:12.3f}]\n")
    lines.append(f"#[Max     = {buckets[-1][1] / MILLISECOND:12.3f}, Total count    = {total:12d}]\n")
    lines.append(f"#[Buckets = {len(buckets):12d}, SubBuckets     = {128:12d}]\n")
    return "".join(lines)


def _rows(buckets: Sequence[tuple[int, int, int]], total: int) -> Iterator[tuple[int, float, int]]:
    """Yield value, share and count of values up to it: at the shares that HdrHistogram iterates over, then the end."""
    reached, at, percent = 0, -1, 0.0
    while True:
        while at < 0 or 100 * reached < percent * total:
            at += 1
            reached += buckets[at][2]
        if reached >= total:
            yield buckets[at][1], 1.0, total
            return
        yield buckets[at][1], percent / 100, reached
        percent += (100 - percent) / (2 * TICKS)
