"""Deliveries of streams: how old a chunk was when it came, and how far behind its stream the consumer was."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from amqpscope.pipelines import streams
from amqpscope.pipelines.buckets import POINT, running
from amqpscope.pipelines.schemas import conform
from amqpscope.pipelines.streams import SUBSCRIPTION, union

_STREAM = ("server_ip", "stream")
SECOND_BITS = 30
"""A bucket of times: 2**30 ns, a little more than a second."""


def stream_deliveries(frames: DataFrame, connections: DataFrame) -> DataFrame:
    """One row per chunk delivered.

    The lag is counted against the highest offset that was seen of that stream until then, on whichever connection to
    that broker: in chunks delivered, in ids of committed chunks (deliveries of version 2, stream statistics), and in
    stored offsets. It is no more than a lower bound, for nobody tells how long a stream is.

    Args:
        frames: `stream_frames`.
        connections: `connections`.

    Returns:
        The table `stream_deliveries`.
    """
    delivered = frames.where(
        (sf.col("command") == "deliver") & sf.col("chunk_id").isNotNull() & sf.col("subscription_id").isNotNull()
    )
    names = ("chunk_type", "chunk_id", "chunk_entries", "chunk_records", "chunk_timestamp", "committed_chunk_id")
    events = delivered.select(*SUBSCRIPTION, *POINT, *names, "size", sf.lit(True).alias("delivers"))
    rows = streams.of_subscriptions(events, frames).where("delivers").drop("credit")
    last = sf.try_subtract(sf.try_add("chunk_id", "chunk_records"), sf.lit(1))
    rows = rows.withColumn("last_offset", last)
    told = sf.greatest("last_offset", "committed_chunk_id")
    servers = sf.broadcast(connections.select("connection_id", "server_ip"))
    rows = union(rows.withColumn("told", told), _told(frames)).join(servers, "connection_id", "left")
    of_known = sf.col("stream").isNotNull() & sf.col("server_ip").isNotNull()
    known = running(rows.where(of_known), _STREAM, "ts_ns", {"seen": ("max", "told")}, bits=SECOND_BITS)
    rows = union(known.drop("bucket", "place"), rows.where(~of_known)).where("delivers")
    sane = sf.try_multiply("chunk_timestamp", sf.lit(1_000_000))
    return conform(
        rows.select(
            *SUBSCRIPTION,
            *("subscription_epoch", "stream", "consumer", *POINT, "chunk_type", "chunk_id", "last_offset", "size"),
            sf.col("chunk_entries").alias("entries"),
            sf.col("chunk_records").alias("records"),
            sane.alias("chunk_ts_ns"),
            sf.try_subtract("ts_ns", sane).alias("age_ns"),
            sf.col("seen").alias("stream_offset"),
            sf.try_subtract("seen", "last_offset").alias("lag_records"),
        ),
        "stream_deliveries",
    )


def _told(frames: DataFrame) -> DataFrame:
    """Offsets of streams that other commands tell."""
    stored = frames.where((sf.col("command") == "store-offset") & sf.col("offset").isNotNull())
    statistics = streams.asked(frames, ["stream-stats"]).where(sf.col("answer.statistics").isNotNull())
    committed = sf.get_json_object("answer.statistics", "$.committed_chunk_id").try_cast("bigint")
    return union(
        stored.select("connection_id", "stream", "ts_ns", sf.col("offset").alias("told")),
        statistics.select("connection_id", "stream", sf.col("answer.ts_ns").alias("ts_ns"), committed.alias("told")),
    ).where(sf.col("told").isNotNull() & sf.col("stream").isNotNull())
