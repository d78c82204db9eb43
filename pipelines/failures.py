"""Failures: connections that failed or ended badly, grouped by who had what happen."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from amqpscope.pipelines.schemas import conform

_GROUP = ("code", "severity", "came_up", "client_ip", "server_ip", "server_port", "vhost", "user")


def failures(connections: DataFrame) -> DataFrame:
    """One row per verdict, client address, server, vhost and user.

    Args:
        connections: `connections`; its verdicts with severity error or warning count.

    Returns:
        The table `failures`.
    """
    bad = connections.where(sf.col("severity").isin("error", "warning")).select(
        "*",
        # Where a connection that was up has such a severity, it is by its ending.
        sf.coalesce("ending", "handshake_outcome").alias("code"),
        sf.coalesce("ending_cause", "handshake_cause").alias("cause"),
        sf.col("ending").isNotNull().alias("came_up"),
    )
    first = sf.min(sf.struct("first_ts_ns", "connection_id", "first_capture", "first_packet", "cause"))
    groups = bad.groupBy(*_GROUP).agg(
        sf.count("*").alias("connections"), first.alias("first"), sf.max("first_ts_ns").alias("latest_ts_ns")
    )
    pauses = sf.nullif(sf.col("connections") - 1, sf.lit(0))
    span = sf.try_subtract("latest_ts_ns", "first.first_ts_ns")
    result = groups.select(
        *_GROUP,
        "connections",
        "first.*",
        "latest_ts_ns",
        sf.floor(sf.try_divide(span, pauses)).alias("every_ns"),
    )
    return conform(result, "failures")
