"""Heartbeats: whether each side showed signs of life as often as was agreed."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from amqpscope.pipelines.buckets import running
from amqpscope.pipelines.schemas import conform

_DIRECTION = ("connection_id", "from_client")
_LOST = ("tcp-gap", "bytes-skipped")


def heartbeats(
    frames: DataFrame, anomalies: DataFrame, connections: DataFrame, places: DataFrame | None = None
) -> DataFrame:
    """One row per connection of AMQP 0-9-1 and direction.

    Any octet is a sign of life (final draft 4.2.7), so frames count with their first and their last one. When octets
    came that the capture lacks is not known: what ends with them is no silence, nor is a direction of which nothing
    was captured. Silence is counted from connection.tune-ok, with which the interval is agreed, to the first
    connection.close; where these were not seen, from the first packet, and to the last.

    Args:
        frames: `amqp091_frames`.
        anomalies: the table `anomalies`.
        connections: `connections`.
        places: what `amqpscope.pipelines.holes.mute` found, and perhaps more; None when nothing was lost.

    Returns:
        The table `heartbeats`.
    """
    times = ("first_ts_ns", "ts_ns")
    shown = frames.select(*_DIRECTION, "frame_no", *times, sf.lit(False).alias("lost"))
    lost = anomalies.where(sf.col("code").isin(*_LOST) & sf.col("frame_no").isNotNull())
    hole = (sf.col("code") == "tcp-gap").alias("lost")
    shown = shown.unionByName(lost.select(*_DIRECTION, "frame_no", *times, hole))
    bounds = _bounds(frames, connections)
    begin, end, interval = sf.col("begin_ns"), sf.col("end_ns"), sf.col("interval_ns")
    rows = running(
        shown,
        _DIRECTION,
        "frame_no",
        {"latest": ("max", "ts_ns")},
        before=True,
        facts=lambda summary: summary.join(bounds, "connection_id"),
    )
    rows = rows.withColumn("lost", sf.max("lost").over(Window.partitionBy(*_DIRECTION, "bucket", "place")))
    silence = sf.try_subtract(sf.least("first_ts_ns", end), sf.greatest("latest", begin))
    silence = sf.when(~sf.col("lost"), silence)
    heard = rows.groupBy(*_DIRECTION).agg(
        sf.max(silence).alias("longest"),
        sf.sum(_missed(silence, interval)).alias("missed"),
        sf.max("ts_ns").alias("last_ns"),
    )
    both = bounds.withColumn("from_client", sf.explode(sf.array(sf.lit(True), sf.lit(False))))
    last = sf.greatest(sf.try_subtract(end, sf.greatest("last_ns", begin)), sf.lit(0))
    both = both.join(heard, [*_DIRECTION], "left")
    seen = sf.lit(True)
    if places is not None:
        lost = places.select(*_DIRECTION).distinct().withColumn("lost", sf.lit(True))
        both = both.join(sf.broadcast(lost), [*_DIRECTION], "left")
        seen = sf.col("last_ns").isNotNull() | sf.col("lost").isNull()
    result = both.select(
        *_DIRECTION,
        "negotiated_s",
        sf.when(seen, sf.greatest("longest", last)).alias("longest_silence_ns"),
        sf.when(seen, sf.coalesce("missed", sf.lit(0)) + _missed(last, interval)).alias("missed"),
    )
    return conform(result, "heartbeats")


def _bounds(frames: DataFrame, connections: DataFrame) -> DataFrame:
    """Per connection `begin_ns` and `end_ns`, between which silence counts, `negotiated_s` and `interval_ns`."""
    said = (
        frames.where(sf.col("method").isin("connection.tune-ok", "connection.close"))
        .groupBy("connection_id")
        .agg(
            *(
                sf.min(sf.when(sf.col("method") == method, sf.struct("frame_no", "ts_ns"))).alias(name)
                for method, name in (("connection.tune-ok", "agreed"), ("connection.close", "closed"))
            )
        )
    )
    mine = connections.where(sf.col("protocol") == "amqp-0-9-1").join(said, "connection_id", "left")
    return mine.select(
        "connection_id",
        sf.coalesce("agreed.ts_ns", "first_ts_ns").alias("begin_ns"),
        sf.coalesce("closed.ts_ns", "last_ts_ns").alias("end_ns"),
        sf.col("heartbeat").alias("negotiated_s"),
        (sf.col("heartbeat").cast("bigint") * 1_000_000_000).alias("interval_ns"),
    )


def _missed(silence: Column, interval: Column) -> Column:
    """Whole intervals in a silence; none where no heartbeats were agreed on, null where that is not known."""
    whole = sf.call_function("div", silence, sf.nullif(interval, sf.lit(0)))
    return sf.when(interval.isNotNull(), sf.greatest(sf.coalesce(whole, sf.lit(0)), sf.lit(0)))
