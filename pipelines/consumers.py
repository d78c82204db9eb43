"""Consumers: the queue they take from, and since when."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from amqpscope.pipelines.buckets import CHANNEL, bucket, spread
from amqpscope.pipelines.pairs import pairs


def consumers(frames: DataFrame, places: DataFrame | None = None) -> DataFrame:
    """One row per basic.consume: a tag may be used again on the same channel, after it was cancelled.

    Args:
        frames: `amqp091_frames`.
        places: what `amqpscope.pipelines.holes.holes` found; None when nothing was lost.

    Returns:
        The columns of `CHANNEL`; `consumer_tag` (where the client left it open, what the broker chose), `queue`,
        `consume_frame_no` (of the basic.consume), `until_frame_no` (of the next one with the same tag; null for none)
        and `no_ack`.
    """
    begun = frames.where((sf.col("method") == "basic.consume") & sf.col("from_client")).select(
        *CHANNEL, sf.col("frame_no").alias("consume_frame_no"), "consumer_tag", "queue", "no_ack"
    )
    told = pairs(frames, ("basic.consume",), places).select(
        "connection_id",
        sf.col("asked.frame_no").alias("consume_frame_no"),
        sf.col("answer.consumer_tag").alias("told_tag"),
    )
    following = Window.partitionBy(*CHANNEL, "consumer_tag").orderBy("consume_frame_no")
    return (
        begun.join(told, ["connection_id", "consume_frame_no"], "left")
        .withColumn("consumer_tag", sf.coalesce(sf.nullif("consumer_tag", sf.lit("")), "told_tag"))
        .where(sf.col("consumer_tag").isNotNull())
        .withColumn("until_frame_no", sf.lead("consume_frame_no").over(following))
        .select(*CHANNEL, "consumer_tag", "queue", "consume_frame_no", "until_frame_no", "no_ack")
    )


def spread_consumers(pushed: DataFrame, frames: DataFrame, places: DataFrame | None = None) -> DataFrame:
    """Consumers once for every bucket of frames in which their tag has deliveries that may be theirs.

    A client may consume anew for each answer that it waits for, with one tag or with a new one each time: what is
    joined must not be all of its consumers with all of its deliveries.

    Args:
        pushed: rows of `messages` of kind `deliver`.
        frames: `amqp091_frames`.
        places: what `amqpscope.pipelines.holes.holes` found; None when nothing was lost.

    Returns:
        The columns of `consumers`, and `bucket`.
    """
    known = spread(consumers(frames, places), pushed, (*CHANNEL, "consumer_tag"), "frame_no")
    until = bucket("until_frame_no")
    return known.where(
        (sf.col("bucket") >= bucket("consume_frame_no")) & (until.isNull() | (sf.col("bucket") <= until))
    )


def with_queue(delivered: DataFrame, frames: DataFrame, places: DataFrame | None = None) -> DataFrame:
    """Adds `queue` to deliveries: from the consume of their consumer, or from their basic.get.

    Args:
        delivered: rows of `messages` of kind `deliver` and `get`.
        frames: `amqp091_frames`.
        places: what `amqpscope.pipelines.holes.holes` found; None when nothing was lost.
    """
    pushed = delivered.where(sf.col("kind") == "deliver")
    known = spread_consumers(pushed, frames, places)
    pushed = pushed.withColumn("bucket", bucket("frame_no"))
    keys = [*CHANNEL, "bucket", "consumer_tag"]
    begun = (sf.col("d.frame_no") > sf.col("c.consume_frame_no")) & (
        sf.col("c.until_frame_no").isNull() | (sf.col("d.frame_no") < sf.col("c.until_frame_no"))
    )
    for key in keys:
        begun = begun & (sf.col(f"d.{key}") == sf.col(f"c.{key}"))
    pushed = pushed.alias("d").join(known.alias("c"), begun, "left").select("d.*", "c.queue").drop("bucket")
    gets = pairs(frames, ("basic.get",), places).select(
        "connection_id",
        sf.col("answer.frame_no").alias("first_frame_no"),
        sf.col("asked.queue").alias("queue"),
    )
    got = delivered.where(sf.col("kind") == "get").join(
        gets.where(sf.col("first_frame_no").isNotNull()), ["connection_id", "first_frame_no"], "left"
    )
    return pushed.unionByName(got)
