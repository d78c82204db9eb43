"""Prefetch windows: what is delivered and not settled, against what basic.qos allows.

As RabbitMQ has it: without `global`, basic.qos is for consumers begun later on the channel, each counted alone; with
it, for all deliveries of the channel together, at once. Got messages do not count; 0 is no limit.
"""

from __future__ import annotations

from functools import partial, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from amqpscope.pipelines.buckets import CHANNEL, POINT, running
from amqpscope.pipelines.consumers import consumers

_EVENT = (*CHANNEL, "consumer", *POINT)
_union = partial(DataFrame.unionByName, allowMissingColumns=True)


def windows(frames: DataFrame, settlements: DataFrame, places: DataFrame | None = None) -> DataFrame:
    """One row per frame that changes a window; so does a place where the acknowledgement of a delivery may be lost.

    Args:
        frames: `amqp091_frames`.
        settlements: the table `settlements`.
        places: what `amqpscope.pipelines.holes.holes` found; None when nothing was lost.

    Returns:
        The columns of `CHANNEL`; `consumer` (consumer tag; empty for the window of the whole channel); frame_no, ts_ns,
        capture and packet of the frame; `outstanding` (int64) and `limit` (int64, null for none) from then on;
        `delivers` and `acknowledges` (bool: what the frame is).
    """
    together = frames.where((sf.col("method") == "basic.qos") & sf.col("from_client") & sf.col("global"))
    events = _union(_deliveries(settlements), _settled(frames, settlements, places))
    for_channel = events.join(sf.broadcast(together.select(*CHANNEL).distinct()), [*CHANNEL], "left_semi")
    parts = (
        events.where(sf.col("consumer").isNotNull()),
        for_channel.withColumn("consumer", sf.lit("")),
        together.select(*CHANNEL, sf.lit("").alias("consumer"), *POINT, _limit(sf.col("prefetch_count"))),
        _consumer_limits(frames, places),
    )
    # One frame may settle deliveries of several consumers, and several of one.
    rows = (
        reduce(_union, parts)
        .groupBy(*_EVENT)
        .agg(
            sf.sum(sf.coalesce("change", sf.lit(0))).alias("change"),
            sf.max("limit").alias("limit"),
            sf.max(sf.coalesce("delivers", sf.lit(False))).alias("delivers"),
            sf.max(sf.coalesce("acknowledges", sf.lit(False))).alias("acknowledges"),
        )
        .withColumn("set", sf.when(sf.col("limit").isNotNull(), sf.struct("frame_no", "limit")))
    )
    rows = running(
        rows, (*CHANNEL, "consumer"), "frame_no", {"outstanding": ("sum", "change"), "latest": ("max", "set")}
    )
    return rows.select(*_EVENT, "outstanding", sf.col("latest.limit").alias("limit"), "delivers", "acknowledges")


def _limit(value: Column) -> Column:
    return value.cast("bigint").alias("limit")


def _deliveries(settlements: DataFrame) -> DataFrame:
    rows = settlements.where((sf.col("kind") == "deliver") & ~sf.col("outcome").isin("auto", "unknown"))
    return rows.select(
        *CHANNEL,
        sf.col("consumer_tag").alias("consumer"),
        *(sf.col(f"deliver_{name}").alias(name) for name in POINT),
        sf.lit(1).alias("change"),
        sf.lit(True).alias("delivers"),
    )


def _settled(frames: DataFrame, settlements: DataFrame, places: DataFrame | None) -> DataFrame:
    pushed = settlements.where(sf.col("kind") == "deliver")
    acknowledged = pushed.where(sf.col("settle_frame_no").isNotNull()).select(
        *CHANNEL,
        sf.col("consumer_tag").alias("consumer"),
        *(sf.col(f"settle_{name}").alias(name) for name in POINT),
        sf.lit(True).alias("acknowledges"),
    )
    recovers = frames.where(sf.col("method").isin("basic.recover-async", "basic.recover-ok"))
    voided = (
        pushed.where(sf.col("ended_by") == "recover")
        .select(*CHANNEL, sf.col("consumer_tag").alias("consumer"), sf.col("end_ts_ns").alias("ts_ns"))
        .join(
            recovers.groupBy(*CHANNEL, "ts_ns").agg(sf.min(sf.struct("frame_no", "capture", "packet")).alias("at")),
            [*CHANNEL, "ts_ns"],
        )
        .select(
            *CHANNEL, "consumer", "at.frame_no", "ts_ns", "at.capture", "at.packet", sf.lit(False).alias("acknowledges")
        )
    )
    left = acknowledged.unionByName(voided)
    if places is not None:
        holed = pushed.where(sf.col("ended_by") == "gap").select(
            *CHANNEL, sf.col("consumer_tag").alias("consumer"), sf.col("end_ts_ns").alias("ts_ns")
        )
        lost = places.where("from_client").groupBy("connection_id", "ts_ns").agg(sf.min("frame_no").alias("frame_no"))
        left = _union(left, holed.join(lost, ["connection_id", "ts_ns"]).withColumn("acknowledges", sf.lit(False)))
    return left.groupBy(*_EVENT, "acknowledges").agg((-sf.count("*")).alias("change"))


def _consumer_limits(frames: DataFrame, places: DataFrame | None) -> DataFrame:
    """For each consumer the last basic.qos without `global` before its basic.consume; no limit once cancelled."""
    asked = frames.where(
        (sf.col("method") == "basic.qos") & sf.col("from_client") & ~sf.coalesce("global", sf.lit(False))
    ).select(*CHANNEL, "frame_no", sf.struct("frame_no", _limit(sf.col("prefetch_count"))).alias("asked"))
    begun = consumers(frames, places).select(
        *CHANNEL, sf.col("consume_frame_no").alias("frame_no"), sf.col("consumer_tag").alias("consumer")
    )
    points = frames.where(sf.col("method") == "basic.consume").select("connection_id", *POINT)
    rows = running(_union(asked, begun), CHANNEL, "frame_no", {"latest": ("max", "asked")})
    rows = rows.where(sf.col("consumer").isNotNull()).join(points, ["connection_id", "frame_no"])
    cancelled = frames.where(sf.col("method") == "basic.cancel")
    return rows.select(*_EVENT, sf.coalesce("latest.limit", sf.lit(0)).alias("limit")).unionByName(
        cancelled.where(sf.col("consumer_tag").isNotNull()).select(
            *CHANNEL, sf.col("consumer_tag").alias("consumer"), *POINT, sf.lit(0).cast("bigint").alias("limit")
        )
    )
