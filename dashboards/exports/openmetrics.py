"""Counters and histograms over time as OpenMetrics text, with the capture's own times.

A time series database loads it: `promtool tsdb create-blocks-from openmetrics FILE`. Names and boundaries are those of
the messaging conventions of OpenTelemetry (release 1.27), with `_` for `.` as OpenMetrics has them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from amqpscope.dashboards import relations, units
from amqpscope.dashboards.tables import Tables
from amqpscope.errors import Error
from amqpscope.pipelines.relations import compute

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Upper ends of the buckets, in seconds."""
DURATION = "messaging_client_operation_duration_seconds"
COUNTERS = (
    ("messaging_client_sent_messages", "publishes", "Messages published."),
    ("messaging_client_consumed_messages", "deliveries", "Messages delivered."),
    ("amqpscope_confirms", "confirms", "Publishes that the broker confirmed."),
    ("amqpscope_nacks", "nacks", "Publishes that the broker refused."),
    ("amqpscope_returns", "returns", "Publishes that the broker returned."),
    ("amqpscope_settlements", "settlements", "Deliveries that were settled."),
    ("amqpscope_redeliveries", "redeliveries", "Messages delivered again."),
)
LATENCIES = """
    select kind, name, moment, {buckets}, count(*), cast(sum(latency_ns) as double)
    from (
        select 'send' as kind, coalesce(exchange, stream, '') as name, latency_ns,
            confirm_ts_ns - confirm_ts_ns % {width} + {width} as moment
        from confirms where latency_ns >= 0 and confirm_ts_ns is not null
        union all
        select 'ack', coalesce(queue, ''), latency_ns, settle_ts_ns - settle_ts_ns % {width} + {width}
        from settlements where latency_ns >= 0 and settle_ts_ns is not null
    )
    group by kind, name, moment order by kind, name, moment"""
"""Latencies by operation, destination and second: the counts of each bucket, of all, and their sum."""


def write(tables: Tables, path: Path) -> str:
    """Write all series to a file.

    Raises:
        Error: nothing was published or delivered.
        OSError: the file cannot be written.
    """
    rows = relations.rows(tables, "rates")
    if not rows or tables.analyzed is None:
        raise Error("nothing to export: nothing was published or delivered")
    width = rows[0]["width_ns"]
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for line in (*_counters(rows), *_durations(tables, width)):
            file.write(line)
            count += not line.startswith("#")
        file.write("# EOF\n")
    return units.counted(count, "sample")


def _counters(rows: list[dict[str, Any]]) -> Iterator[str]:
    series: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["ts_ns"]):
        if row["grouping"] in ("client", "queue", "exchange"):
            series.setdefault((row["grouping"], row[row["grouping"]] or ""), []).append(row)
    for name, column, help_text in COUNTERS:
        yield f"# TYPE {name} counter\n# HELP {name} {help_text}\n"
        for (grouping, subject), found in series.items():
            total = 0
            labels = _labels(messaging_system="rabbitmq", **{grouping: subject})
            if not any(row[column] for row in found):
                continue
            for row in found:
                total += row[column]
                yield f"{name}_total{labels} {total} {_seconds(row['ts_ns'] + row['width_ns'])}\n"


def _durations(tables: Tables, width: int) -> Iterator[str]:
    assert tables.analyzed is not None
    yield f"# TYPE {DURATION} histogram\n# UNIT {DURATION} seconds\n"
    yield f"# HELP {DURATION} From a publish to its confirm, and from a delivery to its settlement.\n"
    with compute.opened(tables.analyzed, ("confirms", "settlements")) as database:
        ends = [round(bound * units.SECOND) for bound in BOUNDS]
        buckets = ", ".join(f"count(*) filter (where latency_ns <= {end})" for end in ends)
        rows = database.sql(LATENCIES.format(width=int(width), buckets=buckets)).fetchall()
    before: tuple[str, str] | None = None
    sums = [0.0] * (len(BOUNDS) + 2)
    for kind, name, moment, *values in rows:
        if (kind, name) != before:
            before, sums = (kind, name), [0.0] * (len(BOUNDS) + 2)
        sums = [old + new for old, new in zip(sums, values, strict=True)]
        at = _seconds(moment)
        given = {"messaging_system": "rabbitmq", "messaging_operation_name": kind, "messaging_destination_name": name}
        for bound, value in zip((*map(str, BOUNDS), "+Inf"), sums[:-1], strict=True):
            yield f"{DURATION}_bucket{_labels(**given, le=bound)} {value:.0f} {at}\n"
        yield f"{DURATION}_count{_labels(**given)} {sums[-2]:.0f} {at}\n"
        yield f"{DURATION}_sum{_labels(**given)} {sums[-1] / units.SECOND!r} {at}\n"


def _labels(**given: str) -> str:
    pairs = []
    for name, value in given.items():
        text = _distinct(value).replace("\\", "\\\\").replace('"', '\\"')
        pairs.append(f'{name}="{text}"')
    return f"{{{','.join(pairs)}}}"


def _distinct(value: str) -> str:
    """Return a name as people read it; one that is cut or spelled otherwise has a number that tells it from others."""
    text = units.visible(value, 200)
    if text == value:
        return text
    return f"{text} #{hashlib.blake2s(value.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"


def _seconds(ns: int) -> str:
    return f"{ns // units.SECOND}.{ns % units.SECOND:09}".rstrip("0").rstrip(".")
