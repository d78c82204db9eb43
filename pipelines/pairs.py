"""Synchronous requests and their answers, first in, first out."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

import spec
from pipelines.buckets import CHANNEL, bucket, once

QUEUE = (*CHANNEL, "request", "asked_by_client")
"""Requests of one kind by one side on one channel: their answers come in their order."""

_END = ("frame_no", "ts_ns", "capture", "packet", "method", "queue", "consumer_tag")


def requests() -> dict[str, tuple[str, ...]]:
    """Methods that ask for an answer, with the methods that answer them."""
    return {method.full_name: method.responses for method in spec.load().methods if method.responses}


def pairs(frames: DataFrame, only: Collection[str] | None = None) -> DataFrame:
    """One row per request that asks for an answer.

    Requests and answers form a queue: an answer takes the oldest open request, and one that finds none open (its
    request was before the capture) takes none. That is counting: with +1 for a request and -1 for an answer, each new
    low below zero of the running sum is an answer without a request. Sums and lows go over buckets of frame numbers.

    Args:
        frames: `amqp091_frames`.
        only: requests to look for; all by default.

    Returns:
        The columns of `QUEUE`, and `asked` and `answer` (null when there is none), structs of frame_no, ts_ns, capture,
        packet, method, queue and consumer_tag.
    """
    wanted = {request: responses for request, responses in requests().items() if only is None or request in only}
    answers = [(response, request) for request, responses in wanted.items() for response in responses]
    request_of = sf.create_map(*(sf.lit(name) for pair in answers for name in pair))
    is_answer = sf.col("method").isin([response for response, _ in answers])
    open_request = sf.col("method").isin(list(wanted)) & ~sf.coalesce("no_wait", sf.lit(False))
    rows = frames.where(is_answer | open_request).select(
        *CHANNEL,
        sf.coalesce(request_of[sf.col("method")], "method").alias("request"),
        (sf.col("from_client") != is_answer).alias("asked_by_client"),
        sf.struct(*_END).alias("end"),
        "frame_no",
        bucket("frame_no").alias("bucket"),
        is_answer.cast("int").alias("answers"),
        (~is_answer).cast("int").alias("asks"),
    )
    rows = once(_counted(once(rows)))
    asked = rows.where("asks = 1").select(*QUEUE, sf.col("end").alias("asked"), sf.col("asks_so_far").alias("turn"))
    answer = rows.where("answers = 1 and surplus = surplus_before").select(
        *QUEUE, sf.col("end").alias("answer"), (sf.col("answers_so_far") - sf.col("surplus")).alias("turn")
    )
    return asked.join(answer, [*QUEUE, "turn"], "left").drop("turn")


def _counted(rows: DataFrame) -> DataFrame:
    """Adds asks_so_far, answers_so_far, and surplus: answers without a request, up to this row and up to before it."""
    by = [*QUEUE, "bucket"]
    inside = Window.partitionBy(*by).orderBy("frame_no")
    here = inside.rowsBetween(Window.unboundedPreceding, 0)
    rows = (
        rows.withColumn("asks_here", sf.sum("asks").over(here))
        .withColumn("answers_here", sf.sum("answers").over(here))
        .withColumn("level", sf.col("asks_here") - sf.col("answers_here"))
        .withColumn("low", sf.min("level").over(here))
        .withColumn("low_before", sf.min("level").over(inside.rowsBetween(Window.unboundedPreceding, -1)))
    )
    earlier = Window.partitionBy(*QUEUE).orderBy("bucket").rowsBetween(Window.unboundedPreceding, -1)
    zero = sf.lit(0)
    summary = (
        rows.groupBy(*by)
        .agg(sf.sum("asks").alias("asks"), sf.sum("answers").alias("answers"), sf.min("level").alias("lowest"))
        .withColumn("asks_base", sf.coalesce(sf.sum("asks").over(earlier), zero))
        .withColumn("answers_base", sf.coalesce(sf.sum("answers").over(earlier), zero))
        .withColumn("base", sf.col("asks_base") - sf.col("answers_base"))
        .withColumn("low_base", sf.least(zero, sf.min(sf.col("base") + sf.col("lowest")).over(earlier)))
        .select(*by, "asks_base", "answers_base", "base", "low_base")
    )
    return (
        rows.join(summary, by)
        .withColumn("asks_so_far", sf.col("asks_base") + sf.col("asks_here"))
        .withColumn("answers_so_far", sf.col("answers_base") + sf.col("answers_here"))
        .withColumn("surplus", -sf.least("low_base", sf.col("base") + sf.col("low")))
        .withColumn("surplus_before", -sf.least("low_base", sf.col("base") + sf.col("low_before")))
    )
