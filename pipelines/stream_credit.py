"""The credit of subscriptions to streams: what was granted, what deliveries used, and since when there is none left.

A unit of credit is one chunk. A subscription begins with some; each delivery uses one, whatever it holds; the consumer
grants more (the broker reads the number as signed).
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from amqpscope.pipelines import streams
from amqpscope.pipelines.buckets import POINT, running
from amqpscope.pipelines.flow_control import intervals
from amqpscope.pipelines.schemas import conform
from amqpscope.pipelines.streams import SUBSCRIPTION

_ACCOUNT = (*SUBSCRIPTION, "subscription_epoch")
_EVENTS = ("credit", "deliver", "unsubscribe")


def stream_credit(frames: DataFrame, anomalies: DataFrame | None = None) -> DataFrame:
    """One row per frame that changes the credit of a subscription.

    Args:
        frames: `stream_frames`.
        anomalies: the table `anomalies`; None when nothing was lost.

    Returns:
        The table `stream_credit`. Of a subscription that was not seen to begin the balance is null; so it is behind a
        place where credit or deliveries may be lost.
    """
    events = frames.where(
        sf.col("command").isin(list(_EVENTS)) & ~sf.col("is_response") & sf.col("subscription_id").isNotNull()
    ).select(*SUBSCRIPTION, *POINT, "credit", sf.col("command").alias("event"))
    rows = streams.of_subscriptions(events, frames).withColumn("event", sf.coalesce("event", sf.lit("subscribe")))
    rows = rows.withColumns(
        {
            "grant": sf.when(sf.col("event").isin("subscribe", "credit"), sf.col("credit").cast("bigint")),
            "use": sf.when(sf.col("event") == "deliver", 1),
        }
    )
    rows = running(rows, _ACCOUNT, "frame_no", {"granted": ("sum", "grant"), "used": ("sum", "use")})
    rows = rows.drop("bucket", "place")
    known = sf.col("subscription_epoch") > 0
    if anomalies is not None:
        rows = _with_losses(rows, frames, anomalies)
        known = known & sf.coalesce(sf.col("hole") <= sf.col("begun"), sf.lit(True))
    rows = rows.withColumn("balance", sf.when(known, sf.col("granted") - sf.col("used"))).drop("hole", "begun")
    waits = (sf.col("balance") <= 0) & (sf.col("event") != "unsubscribe")
    rows = rows.withColumn("waits", sf.coalesce(waits, sf.lit(False)))
    # A wait begins with the first row behind one that does not wait.
    rows = rows.withColumn("state", sf.struct("frame_no", "waits"))
    rows = running(rows, _ACCOUNT, "frame_no", {"previous": ("max", "state")}, before=True).drop("bucket", "place")
    begins = sf.col("waits") & ~sf.coalesce("previous.waits", sf.lit(False))
    rows = rows.withColumn("begins", sf.when(begins, sf.struct("frame_no", "ts_ns")))
    rows = running(rows, _ACCOUNT, "frame_no", {"begun": ("max", "begins")})
    rows = rows.withColumn("zero_since_ts_ns", sf.when(sf.col("waits"), sf.col("begun.ts_ns")))
    names = ("stream", "consumer", *POINT, "event", "credit", "granted", "used", "balance", "zero_since_ts_ns")
    return conform(rows.select(*_ACCOUNT, *names), "stream_credit")


def _with_losses(rows: DataFrame, frames: DataFrame, anomalies: DataFrame) -> DataFrame:
    """Adds `hole`, the last place up to a row where frames may be lost, and `begun`, where its subscription began."""
    places = anomalies.where(sf.col("code").isin(*streams.LOST) & sf.col("frame_no").isNotNull())
    silent = streams.mute(frames).select("connection_id", sf.lit(1 << 62).alias("mute"))
    places = places.select("connection_id", "frame_no", sf.col("frame_no").alias("gone"))
    rows = running(streams.union(rows, places), ("connection_id",), "frame_no", {"hole": ("max", "gone")})
    rows = rows.where(sf.col("event").isNotNull()).drop("gone", "bucket", "place")
    rows = rows.withColumn("subscribed", sf.when(sf.col("event") == "subscribe", sf.col("frame_no")))
    rows = running(rows, _ACCOUNT, "frame_no", {"begun": ("max", "subscribed")}).drop("subscribed", "bucket", "place")
    rows = rows.join(sf.broadcast(silent), "connection_id", "left")
    return rows.withColumn("hole", sf.coalesce("mute", "hole")).drop("mute")


def credit_waits(credit: DataFrame, frames: DataFrame, connections: DataFrame) -> DataFrame:
    """One row per interval in which a subscription had no credit: rows of the table `flow_control`.

    `proven` when a delivery follows the credit that ended it within two round trips; else there may have been nothing
    to deliver (brokers from 3.11.8 on also wait for half of the first credit).

    Args:
        credit: the table `stream_credit`.
        frames: `stream_frames`.
        connections: `connections`.
    """
    held = sf.coalesce(sf.col("balance") <= 0, sf.lit(False)) & (sf.col("event") != "unsubscribe")
    rows = credit.withColumns(
        {
            "held": held,
            "released": sf.when(~held, sf.struct(*POINT, (sf.col("event") == "credit").alias("credits"))),
            "delivered": sf.when(sf.col("event") == "deliver", sf.struct("frame_no", "ts_ns")),
        }
    )
    rtt = connections.select("connection_id", "rtt_ns")
    rows = (
        intervals(rows, _ACCOUNT)
        .join(streams.endings(frames, connections), "connection_id", "left")
        .join(rtt, "connection_id", "left")
    )
    over = sf.struct(*(sf.col(f"over.{name}") for name in POINT))
    release = sf.struct(*(sf.col(f"end_event.{name}") for name in POINT))
    closed = sf.col("over.by") == "connection-close"
    rows = rows.withColumn("finish", sf.when(sf.col("end_event").isNotNull(), release).otherwise(over))
    seen = sf.col("end_event").isNotNull() | sf.coalesce(closed, sf.lit(False))
    soon = sf.try_subtract("next_delivery.ts_ns", "end_event.ts_ns") <= sf.try_multiply(sf.lit(2), "rtt_ns")
    proven = sf.coalesce(sf.col("end_event.credits") & soon, sf.lit(False))
    return conform(
        rows.select(
            "connection_id",
            sf.col("subscription_id").cast("string").alias("consumer_tag"),
            "subscription_id",
            sf.lit("stream-credit").alias("cause"),
            *(sf.col(f"start.{name}").alias(f"start_{name}") for name in POINT),
            *(sf.when(seen, sf.col(f"finish.{name}")).alias(f"end_{name}") for name in POINT),
            sf.try_subtract("finish.ts_ns", "start.ts_ns").alias("duration_ns"),
            sf.lit("client").alias("side"),
            sf.when(proven, "proven").otherwise("possible").alias("evidence"),
        ),
        "flow_control",
    )
