"""Statistics for other tools: Perfetto, plotters of HdrHistogram, OpenTelemetry, Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from amqpscope.dashboards.exports import hgrm, openmetrics, otlp, perfetto
from amqpscope.dashboards.tables import Tables

KINDS: dict[str, Callable[[Tables, Path], str]] = {
    "perfetto": perfetto.write,
    "hgrm": hgrm.write,
    "otlp": otlp.write,
    "openmetrics": openmetrics.write,
}
"""What writes a path and returns in words what was written."""
