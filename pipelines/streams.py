"""What the jobs over RabbitMQ streams share: how their connections ended, and who a subscription is."""

from __future__ import annotations

from functools import partial, reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from amqpscope.pipelines.buckets import POINT, running
from amqpscope.pipelines.holes import one_way

PROTOCOL = "rabbitmq-stream"
SUBSCRIPTION = ("connection_id", "subscription_id")
OK, CHALLENGE = 1, 10
"""Response codes of what went well."""
LOST = ("tcp-gap", "bytes-skipped", "frame-type-unknown", "frame-too-large")
"""Anomalies behind which frames of that direction may be missing."""

_union = partial(DataFrame.unionByName, allowMissingColumns=True)


def union(*parts: DataFrame) -> DataFrame:
    """All rows; columns that a part does not have are null there."""
    return reduce(_union, parts)


def endings(frames: DataFrame, connections: DataFrame) -> DataFrame:
    """How each connection ended: one row each.

    Args:
        frames: `stream_frames`.
        connections: `connections`.

    Returns:
        `connection_id`; `client_close` and `server_close` (the first close of that side), structs of POINT and `code`;
        `over` (the first of them, or the end of what was captured), a struct of POINT and `by`.
    """
    close = sf.struct(*POINT, sf.col("closing_code").alias("code"))
    closes = (
        frames.where((sf.col("command") == "close") & ~sf.col("is_response"))
        .groupBy("connection_id")
        .agg(
            sf.min(sf.when(sf.col("from_client"), close)).alias("client_close"),
            sf.min(sf.when(~sf.col("from_client"), close)).alias("server_close"),
        )
    )
    first = sf.least("client_close", "server_close")
    by = sf.when(sf.col("closed_by").isNull(), "capture-end").otherwise("connection-close")
    nowhere = (sf.lit(None).cast(kind).alias(name) for name, kind in (("capture", "string"), ("packet", "bigint")))
    silence = sf.struct(
        sf.lit(None).cast("bigint").alias("frame_no"), sf.col("last_ts_ns").alias("ts_ns"), *nowhere, by.alias("by")
    )
    closed = sf.struct(*(first[name].alias(name) for name in POINT), sf.lit("connection-close").alias("by"))
    return (
        connections.where(sf.col("protocol") == PROTOCOL)
        .join(closes, "connection_id", "left")
        .select(
            "connection_id",
            "client_close",
            "server_close",
            sf.when(first.isNotNull(), closed).otherwise(silence).alias("over"),
        )
    )


def holes(frames: DataFrame, anomalies: DataFrame) -> DataFrame:
    """Where frames of each side may be lost: one row per connection that has such places.

    Of a direction of which nothing was captured, though the other shows that there was something, all may be.

    Args:
        frames: `stream_frames`.
        anomalies: the table `anomalies`.

    Returns:
        `connection_id`; `client_hole` and `server_hole`, the last place in what that side sent, structs of frame_no (of
        the frame that is partial, or of the next one) and ts_ns.
    """
    place = sf.struct("frame_no", "ts_ns")
    parts = (
        anomalies.where(sf.col("code").isin(*LOST) & sf.col("frame_no").isNotNull()),
        frames.where("is_partial"),
        mute(frames),
    )
    rows = union(*(part.select("connection_id", "from_client", place.alias("place")) for part in parts))
    return rows.groupBy("connection_id").agg(
        sf.max(sf.when(sf.col("from_client"), sf.col("place"))).alias("client_hole"),
        sf.max(sf.when(~sf.col("from_client"), sf.col("place"))).alias("server_hole"),
    )


def mute(frames: DataFrame) -> DataFrame:
    """What `holes.one_way` finds: the server speaks when it is asked, the client goes on when it is answered.

    Args:
        frames: `stream_frames`.
    """
    return one_way(frames, ~sf.col("from_client") | (sf.col("command") != "peer-properties"))


def unanswered(frame_no: Column, other_close: Column, other_hole: Column) -> tuple[Column, Column]:
    """Why nobody answered a frame, and when that was certain: `ended_by` and `end_ts_ns`, with `over` of `endings`.

    Args:
        frame_no: of the frame that waits.
        other_close: the close of the side that should have answered.
        other_hole: the last place where frames of that side may be lost.
    """
    no = sf.lit(False)
    discarded = sf.coalesce(frame_no > other_close["frame_no"], no)
    lost = sf.coalesce(other_hole["frame_no"] > frame_no, no)
    by = sf.when(lost, "gap").otherwise(sf.coalesce(sf.col("over.by"), sf.lit("capture-end")))
    when = sf.when(lost, other_hole["ts_ns"]).otherwise(sf.col("over.ts_ns"))
    return sf.when(discarded, "discarded").otherwise(by), sf.when(discarded, other_close["ts_ns"]).otherwise(when)


def asked(frames: DataFrame, commands: list[str]) -> DataFrame:
    """Requests with their answers, by initiator, command and correlation id; where an id is used anew, in their order.

    Args:
        frames: `stream_frames`.
        commands: which requests.

    Returns:
        The columns of the requests' frames, and `answer` (null when there is none), a struct of POINT, response_code,
        sequence and statistics.
    """
    both = frames.where(sf.col("command").isin(commands) & sf.col("is_response").isNotNull())
    key = ("connection_id", "command", "correlation_id", "asked_by_client")
    both = both.withColumn("asked_by_client", sf.col("from_client") != sf.col("is_response"))
    order = Window.partitionBy(*key).orderBy("frame_no")
    answer = sf.struct(*POINT, "response_code", "sequence", "statistics")
    following = sf.lead(sf.when(sf.col("is_response"), answer)).over(order)
    return both.withColumn("answer", following).where(~sf.col("is_response"))


def subscriptions(frames: DataFrame) -> DataFrame:
    """Subscriptions that were granted, or not refused as far as was seen.

    Args:
        frames: `stream_frames`.

    Returns:
        The columns of SUBSCRIPTION and POINT; `credit` (what it began with), `stream`, `consumer` (its property name).
    """
    rows = asked(frames, ["subscribe"])
    rows = rows.where(sf.coalesce(sf.col("answer.response_code") == OK, sf.lit(True)))
    return rows.select(
        *SUBSCRIPTION, *POINT, "credit", "stream", sf.get_json_object("properties", "$.name").alias("consumer")
    ).where(sf.col("subscription_id").isNotNull())


def of_subscriptions(events: DataFrame, frames: DataFrame) -> DataFrame:
    """Adds to events whose subscription they are of.

    Args:
        events: the columns of SUBSCRIPTION and POINT, and any others.
        frames: `stream_frames`.

    Returns:
        The events and, as events of their own with `credit`, the subscriptions; with `subscription_epoch` (counts what
        was granted under that id, 0 before the first that was seen), `stream` and `consumer`.
    """
    begun = sf.struct("frame_no", "stream", "consumer")
    begins = subscriptions(frames).withColumn("begun", begun).withColumn("begins", sf.lit(1))
    rows = running(
        union(events, begins.drop("stream", "consumer")),
        SUBSCRIPTION,
        "frame_no",
        {"subscription_epoch": ("sum", "begins"), "latest": ("max", "begun")},
    )
    return rows.withColumns(
        {
            "subscription_epoch": sf.col("subscription_epoch").cast("int"),
            "stream": sf.col("latest.stream"),
            "consumer": sf.col("latest.consumer"),
        }
    ).drop("begins", "begun", "latest", "bucket", "place")
