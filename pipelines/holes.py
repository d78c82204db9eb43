"""Where frames may be lost: an answer that nobody saw may lie there."""

from __future__ import annotations

from functools import partial, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from amqpscope.pipelines.buckets import CHANNEL, once, running

CODES = (
    "tcp-gap", "bytes-skipped", "frame-type-unknown", "frame-too-large", "frame-end-wrong", "header-unknown",
)  # fmt: skip
"""Anomalies behind which frames of that direction may be missing."""

NUMBERED = ("basic.ack", "basic.nack", "basic.reject")
"""Answers that mean nothing without the number that they carry."""

OPENING = ("connection.start", "connection.close")
"""What a server may say to a client that says nothing."""

HOLE = "struct<frame_no:bigint,ts_ns:bigint,since:bigint>"

_union = partial(DataFrame.unionByName, allowMissingColumns=True)


def holes(anomalies: DataFrame, frames: DataFrame) -> DataFrame:
    """One row per place where an answer may be lost: between two frames, or in a method that is not all there.

    Args:
        anomalies: the table `anomalies`.
        frames: `amqp091_frames`.

    Returns:
        The columns of `CHANNEL` (channel and channel_epoch null where it may be any), `from_client` (the direction),
        `frame_no` (of the frame that is partial, or of the next frame), `since` (of the last frame of that direction in
        front of it, -1 for none), `ts_ns`, and `numbered` (bool: nothing but an answer with a number can be lost).
    """
    known = sf.col("method").isNotNull()
    unknown_number = sf.col("delivery_tag").isNull() | sf.col("multiple").isNull()
    cut = frames.where(
        sf.col("is_partial")
        & (sf.col("frame_type") == "method")
        & (~known | (sf.col("method").isin(*NUMBERED) & unknown_number))
    ).select(*CHANNEL, "from_client", "frame_no", "ts_ns", known.alias("numbered"))
    between = anomalies.where(sf.col("code").isin(*CODES) & sf.col("frame_no").isNotNull())
    any_frame = between.select("connection_id", "from_client", "frame_no", "ts_ns", sf.lit(False).alias("numbered"))
    places = once(union(any_frame, cut))
    seen = frames.join(sf.broadcast(places.select("connection_id").distinct()), "connection_id", "left_semi").select(
        "connection_id", "from_client", "frame_no", sf.col("frame_no").alias("seen")
    )
    rows = running(
        union(places, seen), ("connection_id", "from_client"), "frame_no", {"since": ("max", "seen")}, before=True
    )
    rows = rows.where(sf.col("numbered").isNotNull()).withColumn("since", sf.coalesce("since", sf.lit(-1)))
    return rows.drop("seen", "bucket", "place")


def mute(frames: DataFrame) -> DataFrame:
    """One row per connection of which one direction alone was captured, though both sides had spoken.

    Args:
        frames: `amqp091_frames`.

    Returns:
        What `holes` returns: of the direction that is missing, a place behind the last frame of the other.
    """
    spoken = sf.col("method").isNotNull() & (sf.col("from_client") | ~sf.col("method").isin(*OPENING))
    return one_way(frames, spoken).select(
        "connection_id",
        *(sf.lit(None).cast("int").alias(name) for name in CHANNEL[1:]),
        "from_client",
        "frame_no",
        sf.lit(-1).cast("bigint").alias("since"),
        "ts_ns",
        sf.lit(False).alias("numbered"),
    )


def one_way(frames: DataFrame, spoken: Column) -> DataFrame:
    """One row per connection of which one direction alone was captured, though both sides had spoken.

    Args:
        frames: frames of any protocol.
        spoken: whether a frame shows that the other side had spoken before.

    Returns:
        connection_id, `from_client` (the direction that is missing), and `frame_no` and `ts_ns` behind all frames.
    """
    found = frames.groupBy("connection_id").agg(
        sf.bool_or("from_client").alias("client"),
        sf.bool_or(~sf.col("from_client")).alias("server"),
        sf.bool_or(spoken).alias("spoken"),
        (sf.max("frame_no") + 1).alias("frame_no"),
        sf.max("ts_ns").alias("ts_ns"),
    )
    found = found.where(sf.col("spoken") & (sf.col("client") != sf.col("server")))
    return found.select("connection_id", sf.col("server").alias("from_client"), "frame_no", "ts_ns")


def first_behind(rows: DataFrame, places: DataFrame | None, position: str, from_client: Column) -> DataFrame:
    """Adds `lost`, the first place behind each row where its answer may be (null for none).

    That is a struct of frame_no, ts_ns and since.

    Args:
        rows: rows with the columns of `CHANNEL`.
        places: what `holes` found; None when nothing was lost.
        position: name of the column with the number of the frame that waits.
        from_client: whether the answer would come from the client.
    """
    hole = sf.struct("frame_no", "ts_ns", "since")
    if places is None:
        return rows.withColumn("lost", sf.lit(None).cast(HOLE))
    rows = rows.withColumn("answerer", from_client).withColumn("waits", sf.lit(True))
    whole = sf.col("channel").isNull()
    for keys, some, name in ((("connection_id",), whole, "on_any"), (CHANNEL, ~whole, "on_channel")):
        by = (*keys, "answerer")
        points = places.where(some).select(
            *keys, sf.col("from_client").alias("answerer"), sf.col("frame_no").alias(position), hole.alias("hole")
        )
        rows = running(_union(rows, points), by, position, {name: ("min", "hole")}, descending=True, before=True)
        rows = rows.where("waits").drop("hole", "place", "bucket")
    return rows.withColumn("lost", sf.least("on_any", "on_channel")).drop("answerer", "waits", "on_any", "on_channel")


def swallowed(sent: DataFrame, places: DataFrame, *, from_client: bool) -> DataFrame:
    """For each place where answers may be lost, the highest number sent before it; few rows.

    Args:
        sent: the columns of `CHANNEL`, `frame_no`, and `number`, which grows with it.
        places: what `holes` found.
        from_client: whether the answers would come from the client.

    Returns:
        The columns of `CHANNEL`, `number` and `lost`: what waits for an answer at most at that number lost it there.
    """
    places = places.where(sf.col("from_client") == from_client)
    sent = sent.join(sf.broadcast(places.select("connection_id").distinct()), "connection_id", "left_semi")
    rows = first_behind(sent, places, "frame_no", sf.lit(from_client)).where(sf.col("lost").isNotNull())
    return rows.groupBy(*CHANNEL, "lost").agg(sf.max("number").alias("number"))


def earliest(answer: str, frame_no: Column, lost: Column) -> Column:
    """An answer to many, or null where an earlier one may be lost.

    Args:
        answer: name of the column.
        frame_no: of that answer.
        lost: the first place behind what it answers where answers may be lost, a struct with frame_no.
    """
    return sf.when(sf.coalesce(frame_no < lost["frame_no"], sf.lit(True)), sf.col(answer))


def reaching(bulk: DataFrame, sent: DataFrame) -> DataFrame:
    """Answers to many numbers, each with the highest number that it can mean: none that was sent behind it.

    Args:
        bulk: the columns of `CHANNEL`, `frame_no`, `number` (null for all) and others.
        sent: the columns of `CHANNEL`, `frame_no`, and `number`, which grows with it.

    Returns:
        The rows of `bulk` that can mean any.
    """
    columns = bulk.columns
    rows = _union(
        bulk.withColumn("answers", sf.lit(True)), sent.select(*CHANNEL, "frame_no", sf.col("number").alias("sent"))
    )
    rows = running(rows, CHANNEL, "frame_no", {"last": ("max", "sent")}).where(
        sf.col("answers") & sf.col("last").isNotNull()
    )
    return rows.withColumn("number", sf.least("number", "last")).select(*columns)


def union(*parts: DataFrame) -> DataFrame:
    """All rows; columns that a part does not have are null there."""
    return reduce(_union, parts)
