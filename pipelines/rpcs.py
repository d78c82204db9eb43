"""Synchronous requests: what was asked, what came back, how long it took."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from amqpscope.pipelines import endings
from amqpscope.pipelines.buckets import CHANNEL, bucket, running
from amqpscope.pipelines.holes import first_behind
from amqpscope.pipelines.pairs import pairs, requests
from amqpscope.pipelines.schemas import conform


def rpcs(frames: DataFrame, connections: DataFrame, places: DataFrame | None = None) -> DataFrame:
    """One row per synchronous request that asks for an answer, of either side.

    A close of the channel or connection by the other side, for any reason but 200, is an error in answer to the oldest
    request of the channel that was open then. Requests pipelined behind that one have no answer, nor has one whose own
    answer may be lost.

    Args:
        frames: `amqp091_frames`.
        connections: `connections`.
        places: what `amqpscope.pipelines.holes.holes` found; None when nothing was lost.

    Returns:
        The table `rpcs`.
    """
    asked = frames.where(sf.col("method").isin(list(requests()))).select(*CHANNEL, bucket("frame_no").alias("bucket"))
    ends = endings.attach(asked.distinct(), frames, connections)
    rows = pairs(frames, places=places).withColumn("bucket", bucket(sf.col("asked.frame_no")))
    rows = rows.join(ends, [*CHANNEL, "bucket"], "left")
    rows = rows.withColumn(
        "other_close", sf.when(sf.col("asked_by_client"), sf.col("server_close")).otherwise(sf.col("client_close"))
    )
    closing = sf.col("request").isin("channel.close", "connection.close")
    rows = rows.withColumn("end", sf.when(closing, sf.col("silence")).otherwise(sf.col("end")))
    rows = first_behind(
        rows.drop("bucket").withColumn("place_asked", sf.col("asked.frame_no")),
        None if places is None else places.where("not numbered"),
        "place_asked",
        ~sf.col("asked_by_client"),
    )
    seen = sf.col("doubt").isNull() & sf.coalesce(
        sf.col("other_close.frame_no") < sf.col("lost.frame_no"), sf.lit(True)
    )
    refused = (
        sf.col("answer").isNull()
        & seen
        & (sf.col("other_close.frame_no") > sf.col("asked.frame_no"))
        & (sf.col("other_close.reply_code") != 200)
        & (sf.col("request") != "connection.close")
        & ((sf.col("request") != "channel.close") | (sf.col("other_close.by") == "connection-close"))
    )
    rows = rows.withColumn("refused_at", sf.when(refused, sf.col("asked.frame_no")))
    channel_and_side = (*CHANNEL, "asked_by_client")
    rows = running(rows, channel_and_side, "place_asked", {"older": ("min", "refused_at")}, before=True).withColumn(
        "refused", sf.col("refused_at").isNotNull() & sf.col("older").isNull()
    )
    close = sf.struct(*(f"other_close.{name}" for name in ("frame_no", "ts_ns", "capture", "packet")))
    method = sf.when(sf.col("other_close.by") == "channel-close", "channel.close").otherwise("connection.close")
    rows = rows.withColumn("response", sf.when(sf.col("refused"), method).otherwise(sf.col("answer.method")))
    names = ("frame_no", "ts_ns", "capture", "packet")
    rows = rows.withColumn(
        "answer", sf.when(sf.col("refused"), close).otherwise(sf.struct(*(f"answer.{name}" for name in names)))
    )
    ended_by, end_ts_ns = endings.unanswered(sf.col("asked"), "other_close", sf.least("doubt", "lost"))
    open_still = sf.col("response").isNull()
    result = rows.select(
        *CHANNEL,
        sf.col("asked_by_client").alias("from_client"),
        "request",
        "response",
        *(sf.col(f"asked.{name}").alias(f"request_{name}") for name in names),
        *(sf.col(f"answer.{name}").alias(f"response_{name}") for name in names),
        sf.when(open_still, "none").when(sf.col("refused"), "error").otherwise("ok").alias("outcome"),
        sf.when(sf.col("refused"), sf.col("other_close.reply_code")).alias("reply_code"),
        sf.when(open_still, ended_by).alias("ended_by"),
        sf.when(open_still, end_ts_ns).alias("end_ts_ns"),
        sf.try_subtract("answer.ts_ns", "asked.ts_ns").alias("latency_ns"),
    )
    return conform(result, "rpcs")
