"""Confirms of streams: each publishing id and the broker's answer to it."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from amqpscope.pipelines import streams
from amqpscope.pipelines.buckets import once, running
from amqpscope.pipelines.deduplication import stored
from amqpscope.pipelines.schemas import conform
from amqpscope.pipelines.streams import PROTOCOL, union

PUBLISHER = ("connection_id", "publisher_id", "epoch")
"""A publisher: an id may be declared anew. The epoch is 0 where the declaration was not seen."""
_NUMBER = ("connection_id", "publisher_id", "publish_seq")
_SENT = ("publisher_epoch", "publisher_reference", "stream", "frame_no", "ts_ns", "capture", "packet")


def stream_confirms(frames: DataFrame, messages: DataFrame, connections: DataFrame, anomalies: DataFrame) -> DataFrame:
    """One row per publishing id and publisher; per sending, where a publisher sends one id several times.

    The answer is the first confirm or error for that id behind the publish. One that comes when the publisher's id was
    declared anew is of the publisher that used the publishing id last. Windows go over a publishing id of a publisher,
    of which there are few rows.

    Args:
        frames: `stream_frames`.
        messages: `messages`.
        connections: `connections`.
        anomalies: the table `anomalies`.

    Returns:
        Rows of the table `confirms`.
    """
    published = (
        messages.where((sf.col("protocol") == PROTOCOL) & (sf.col("kind") == "publish"))
        .where(sf.col("publish_seq").isNotNull())
        .groupBy(*_NUMBER, *_SENT)
        .agg(
            sf.count("*").alias("records"),
            sf.sum("body_size").alias("body_size"),
            sf.min("message_id").alias("message_id"),
        )
    )
    rows = union(published, answers(frames))
    of_number = Window.partitionBy(*_NUMBER).orderBy("frame_no").rowsBetween(Window.unboundedPreceding, 0)
    rows = rows.withColumn("epoch", sf.coalesce(sf.max("publisher_epoch").over(of_number), sf.lit(0)))
    behind = Window.partitionBy(*_NUMBER, "epoch").orderBy(sf.desc("frame_no"))
    rows = rows.withColumn("answer", sf.min("answer").over(behind.rowsBetween(Window.unboundedPreceding, 0)))
    rows = once(rows.where(sf.col("records").isNotNull()))
    rows = rows.withColumn("accepted", sf.when(_outcome() != "nack", sf.col("publish_seq")))
    ends = streams.endings(frames, connections).join(streams.holes(frames, anomalies), "connection_id", "left")
    rows = running(
        rows,
        PUBLISHER,
        "frame_no",
        {"sent_before": ("max", "accepted")},
        before=True,
        facts=lambda summary: summary.join(stored(rows, frames), [*PUBLISHER], "left").join(
            ends, "connection_id", "left"
        ),
    )
    return conform(_result(rows), "confirms")


def answers(frames: DataFrame) -> DataFrame:
    """One row per publishing id that a publish-confirm or publish-error names.

    Ids are cut out of the JSON text as digits, for they may be larger than 63 bits; those are left out.
    """
    named = frames.where(sf.col("command").isin("publish-confirm", "publish-error") & ~sf.col("from_client"))
    ids = sf.regexp_extract_all("publishing_ids", sf.lit(r"(\d+)"), 1)
    errors = sf.regexp_extract_all("publishing_errors", sf.lit(r'"publishing_id":(\d+,"code":\d+)'), 1)
    point = ("frame_no", "ts_ns", "capture", "packet")
    rows = named.select(
        "connection_id",
        "publisher_id",
        *point,
        (sf.coalesce(sf.size(ids), sf.lit(0)) + sf.coalesce(sf.size(errors), sf.lit(0)) > 1).alias("multiple"),
        sf.explode(sf.coalesce(ids, errors)).alias("told"),
    )
    parts = sf.split("told", ',"code":')
    return (
        rows.withColumn("publish_seq", parts[0].try_cast("bigint"))
        .where(sf.col("publish_seq").isNotNull())
        .select(
            "connection_id",
            "publisher_id",
            "publish_seq",
            "frame_no",
            sf.struct(*point, "multiple", sf.get(parts, sf.lit(1)).cast("int").alias("code")).alias("answer"),
        )
    )


def _outcome() -> Column:
    return sf.when(sf.col("answer").isNull(), "none").when(sf.col("answer.code").isNotNull(), "nack").otherwise("ack")


def _deduplicated() -> Column:
    """Dropped, for the broker had the id: it was sent before, or is not above what was stored.

    Without a reference nothing is dropped. An id above all that is known is new where what was stored is known: from
    the answer to a query, or for a stream that was created within the capture. A stored id of 0 may also mean none.
    """
    number = sf.col("publish_seq")
    told = number > 0
    return (
        sf.when(_outcome() != "ack", sf.lit(None))
        .when(sf.col("publisher_epoch").isNull(), sf.lit(None))
        .when(sf.col("publisher_reference").isNull(), False)
        .when(number <= sf.col("sent_before"), True)
        .when(told & (number <= sf.col("stored")), True)
        .when(sf.col("known") & (told | ~sf.col("queried")), False)
    )


def _result(rows: DataFrame) -> DataFrame:
    answered = sf.col("answer").isNotNull()
    ended_by, end_ts_ns = streams.unanswered(sf.col("frame_no"), sf.col("server_close"), sf.col("server_hole"))
    return rows.select(
        sf.lit(PROTOCOL).alias("protocol"),
        *_NUMBER,
        *("publisher_epoch", "publisher_reference", "stream", "records", "body_size", "message_id"),
        *(sf.col(name).alias(f"publish_{name}") for name in ("frame_no", "capture", "packet", "ts_ns")),
        *(sf.col(f"answer.{name}").alias(f"confirm_{name}") for name in ("frame_no", "capture", "packet", "ts_ns")),
        _outcome().alias("outcome"),
        sf.col("answer.multiple").alias("multiple"),
        sf.lit(False).alias("returned"),
        sf.col("answer.code").alias("reply_code"),
        sf.when(~answered, ended_by).alias("ended_by"),
        sf.when(~answered, end_ts_ns).alias("end_ts_ns"),
        sf.try_subtract("answer.ts_ns", "ts_ns").alias("latency_ns"),
        _deduplicated().alias("deduplicated"),
    )
