"""Flow control: the intervals in which one side made the other wait.

Every cause is brought into the same form: events along the frames of a scope (a connection, a channel, a consumer),
each of which says whether the scope is held from then on. An interval begins with the first event that holds, and ends
with the first after it that does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from amqpscope.pipelines import endings
from amqpscope.pipelines.buckets import CHANNEL, POINT, bucket, kept, running
from amqpscope.pipelines.holes import first_behind
from amqpscope.pipelines.prefetch import windows
from amqpscope.pipelines.schemas import conform

_SCOPE = (*CHANNEL, "cause", "side", "consumer")


def flow_control(
    frames: DataFrame, settlements: DataFrame, connections: DataFrame, places: DataFrame | None = None
) -> DataFrame:
    """One row per interval of waiting, for connection.blocked, channel.flow and full prefetch windows.

    A wait for connection.blocked or channel.flow is `proven`: it was asked for. A full window is `proven` when a
    delivery follows the acknowledgement that opened it within two round trips, and `possible` otherwise: there may have
    been nothing to deliver. Behind a place where frames may be lost nobody knows whether a wait goes on: what was
    waited until there is counted.

    Args:
        frames: `amqp091_frames`.
        settlements: the table `settlements`.
        connections: `connections`.
        places: what `amqpscope.pipelines.holes.holes` found; None when nothing was lost.

    Returns:
        The table `flow_control`.
    """
    union = partial(DataFrame.unionByName, allowMissingColumns=True)
    events = reduce(union, (_blocked(frames), _flow(frames), _prefetch(frames, settlements, places)))
    point = sf.struct(*POINT, "acknowledges")
    rows = events.withColumn("released", sf.when(~sf.col("held"), point)).withColumn(
        "delivered", sf.when(sf.col("delivers"), sf.struct("frame_no", "ts_ns"))
    )
    found = intervals(rows.select(*_SCOPE, *POINT, "held", "released", "delivered"), _SCOPE)
    found = _first_lost(found, places).withColumn("bucket", bucket(sf.col("start.frame_no")))
    scopes = events.select(*CHANNEL, bucket("frame_no").alias("bucket")).distinct()
    found = found.join(endings.attach(scopes, frames, connections), [*CHANNEL, "bucket"], "left")
    found = found.join(connections.select("connection_id", "rtt_ns"), "connection_id", "left")
    return conform(_result(found), "flow_control")


def intervals(events: DataFrame, scope: Sequence[str]) -> DataFrame:
    """One row per interval in which a scope is held.

    All events that hold and have the same release behind them are one interval. Nothing is delivered while a window is
    full, so what comes next behind the last of them is what comes next behind the release.

    Args:
        events: along the frames of each scope, with `frame_no`, `ts_ns`, `capture`, `packet`; `held` says whether the
            scope is held from then on, `released` (what ends a wait) and `delivered` are structs that begin with
            `frame_no`, null where an event is none.
        scope: columns.

    Returns:
        The scope, `start` (frame_no, ts_ns, capture, packet), `end_event` and `next_delivery`.
    """
    rows = running(
        events,
        scope,
        "frame_no",
        {"end_event": ("min", "released"), "next_delivery": ("min", "delivered")},
        descending=True,
        before=True,
    )
    return (
        rows.where("held")
        .groupBy(*scope, "end_event")
        .agg(sf.min(sf.struct(*POINT)).alias("start"), sf.max("next_delivery").alias("next_delivery"))
    )


def _first_lost(intervals: DataFrame, places: DataFrame | None) -> DataFrame:
    """Adds `lost`, the first place behind the beginning of each where frames may be lost: a struct like its ends."""
    point = "struct<frame_no:bigint,ts_ns:bigint,capture:string,packet:bigint>"
    if places is None:
        return intervals.withColumn("lost", sf.lit(None).cast(point))
    rows = kept(intervals.withColumn("begun", sf.col("start.frame_no")))
    for from_client in (True, False):
        side = f"lost_by_{'client' if from_client else 'server'}"
        rows = first_behind(rows.drop("bucket"), places, "begun", sf.lit(from_client)).withColumnRenamed("lost", side)
    lost = sf.least("lost_by_client", "lost_by_server")
    nowhere = (sf.lit(None).cast("string").alias("capture"), sf.lit(None).cast("bigint").alias("packet"))
    place = sf.struct(lost["frame_no"].alias("frame_no"), lost["ts_ns"].alias("ts_ns"), *nowhere)
    return rows.withColumn("lost", sf.when(lost.isNotNull(), place)).drop("begun", "lost_by_client", "lost_by_server")


def zero_windows(windows: DataFrame, connections: DataFrame) -> DataFrame:
    """One row per interval in which the receiver of a connection announced a window of nothing, of any protocol.

    Args:
        windows: `tcp_windows`.
        connections: `connections`.

    Returns:
        Rows of the table `flow_control`. No frame begins or ends them.
    """
    last = connections.select("connection_id", sf.col("last_ts_ns").alias("over_ns"))
    rows = windows.where(sf.col("kind") == "zero").join(last, "connection_id", "left")
    return conform(
        rows.select(
            "connection_id",
            sf.lit("zero-window").alias("cause"),
            *(f"{end}_{name}" for end in ("start", "end") for name in ("ts_ns", "capture", "packet")),
            sf.try_subtract(sf.coalesce("end_ts_ns", "over_ns"), "start_ts_ns").alias("duration_ns"),
            sf.when(sf.col("from_client"), "client").otherwise("server").alias("side"),
            sf.lit("proven").alias("evidence"),
        ),
        "flow_control",
    )


def _result(intervals: DataFrame) -> DataFrame:
    release = sf.when(sf.col("end_event").isNotNull(), sf.struct(*(f"end_event.{name}" for name in POINT)))
    ending = sf.struct(*(f"end.{name}" for name in POINT))
    first = sf.least(release, sf.when(sf.col("end.frame_no").isNotNull(), ending))
    seen = first.isNotNull() | (sf.col("end.by") == "connection-close")
    later = sf.try_subtract("next_delivery.ts_ns", "end_event.ts_ns")
    soon = later <= sf.try_multiply(sf.lit(2), "rtt_ns")
    proven = (sf.col("cause") != "prefetch") | (sf.col("end_event.acknowledges") & soon)
    whole_connection = sf.col("cause") == "connection-blocked"
    lost = sf.col("lost")
    gone = lost.isNotNull() & sf.coalesce(lost["frame_no"] <= first["frame_no"], sf.lit(True))
    until = sf.when(gone, lost).otherwise(sf.coalesce(first, ending))
    rows = intervals.withColumns({"finish": until, "seen": sf.coalesce(seen, sf.lit(False)) & ~gone})
    return rows.select(
        "connection_id",
        *(sf.when(~whole_connection, sf.col(name)).alias(name) for name in ("channel", "channel_epoch")),
        sf.nullif("consumer", sf.lit("")).alias("consumer_tag"),
        "cause",
        *(sf.col(f"start.{name}").alias(f"start_{name}") for name in POINT),
        *(sf.when(sf.col("seen"), sf.col(f"finish.{name}")).alias(f"end_{name}") for name in POINT),
        sf.try_subtract("finish.ts_ns", "start.ts_ns").alias("duration_ns"),
        "side",
        sf.when(proven, "proven").otherwise("possible").alias("evidence"),
    )


def _event(rows: DataFrame, cause: str, side: Column, held: Column) -> DataFrame:
    return rows.select(
        *CHANNEL,
        sf.lit(cause).alias("cause"),
        side.alias("side"),
        sf.lit("").alias("consumer"),
        *POINT,
        held.alias("held"),
        sf.lit(False).alias("delivers"),
        sf.lit(False).alias("acknowledges"),
    )


def _blocked(frames: DataFrame) -> DataFrame:
    rows = frames.where(sf.col("method").isin("connection.blocked", "connection.unblocked") & ~sf.col("from_client"))
    return _event(rows, "connection-blocked", sf.lit("server"), sf.col("method") == "connection.blocked")


def _flow(frames: DataFrame) -> DataFrame:
    rows = frames.where((sf.col("method") == "channel.flow") & sf.col("active").isNotNull())
    return _event(rows, "channel-flow", sf.when(sf.col("from_client"), "client").otherwise("server"), ~sf.col("active"))


def _prefetch(frames: DataFrame, settlements: DataFrame, places: DataFrame | None) -> DataFrame:
    return windows(frames, settlements, places).select(
        *CHANNEL,
        sf.lit("prefetch").alias("cause"),
        sf.lit("client").alias("side"),
        "consumer",
        *POINT,
        ((sf.col("limit") > 0) & (sf.col("outstanding") >= sf.col("limit"))).alias("held"),
        "delivers",
        "acknowledges",
    )
