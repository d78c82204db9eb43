"""How channels and connections ended, for everything that was still waiting then."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from amqpscope.pipelines.buckets import CHANNEL

_FIELDS = {"frame_no": "bigint", "ts_ns": "bigint", "capture": "string", "packet": "bigint", "reply_code": "int"}


def _end(by: str) -> Column:
    return sf.struct(*_FIELDS, sf.lit(by).alias("by"))


def _closes(frames: DataFrame, method: str, keys: tuple[str, ...], name: str) -> DataFrame:
    """First close of each side: `<name>_by_client`, `<name>_by_server`."""
    end = _end("channel-close" if name == "channel" else "connection-close")
    return (
        frames.where(sf.col("method") == method)
        .groupBy(*keys)
        .agg(
            sf.min(sf.when(sf.col("from_client"), end)).alias(f"{name}_by_client"),
            sf.min(sf.when(~sf.col("from_client"), end)).alias(f"{name}_by_server"),
        )
    )


def attach(rows: DataFrame, frames: DataFrame, connections: DataFrame) -> DataFrame:
    """Adds how the row's channel ended; meant for few rows per channel (`buckets.running` takes it as `facts`).

    Args:
        rows: rows with the columns of `CHANNEL`.
        frames: `amqp091_frames`.
        connections: `connections`.

    Returns:
        The rows with `client_close` and `server_close` (the first channel.close or connection.close of that side),
        `end` (the first close of either side, the opening of the same channel number anew, or else `silence`) and
        `silence` (the first FIN or RST, or else the last packet), each a struct of frame_no, ts_ns, capture, packet,
        reply_code and by.
    """
    channels = _closes(frames, "channel.close", CHANNEL, "channel")
    reopened = (
        frames.where((sf.col("method") == "channel.open") & sf.col("from_client"))
        .withColumn("channel_epoch", sf.col("channel_epoch") - 1)
        .groupBy(*CHANNEL)
        .agg(sf.min(_end("channel-close")).alias("reopened"))
    )
    closes = _closes(frames, "connection.close", ("connection_id",), "connection")
    ends = connections.select(
        "connection_id",
        sf.struct(
            *(
                (sf.coalesce("closed_ts_ns", "last_ts_ns") if name == "ts_ns" else sf.lit(None)).cast(kind).alias(name)
                for name, kind in _FIELDS.items()
            ),
            sf.when(sf.col("closed_by").isNull(), "capture-end").otherwise("connection-close").alias("by"),
        ).alias("silence"),
    )
    joined = (
        rows.join(channels, [*CHANNEL], "left")
        .join(reopened, [*CHANNEL], "left")
        .join(closes, ["connection_id"], "left")
        .join(ends, ["connection_id"], "left")
    )
    names = ("channel_by_client", "channel_by_server", "connection_by_client", "connection_by_server", "reopened")
    return (
        joined.withColumn("client_close", sf.least("channel_by_client", "connection_by_client"))
        .withColumn("server_close", sf.least("channel_by_server", "connection_by_server"))
        .withColumn("end", sf.coalesce(sf.least("client_close", "server_close", "reopened"), "silence"))
        .drop(*names)
    )


def unanswered(waits: Column, other_close: str, lost: Column | None = None) -> tuple[Column, Column]:
    """Why nobody answered a frame, and when that was certain: `ended_by` and `end_ts_ns`, neither of them null.

    A frame sent behind the other side's close was discarded, from that close on. Otherwise it waited until the channel
    ended, or until the first place behind it where its answer may be lost, if that begins in front of the end.

    Args:
        waits: the frame that waits, a struct with frame_no and ts_ns.
        other_close: name of the column with the close of the side that should have answered.
        lost: that place, a struct of frame_no, ts_ns and since; None when nothing was lost.
    """
    no = sf.lit(False)
    end, close = sf.col("end"), sf.col(other_close)
    discarded = sf.coalesce(waits["frame_no"] > close["frame_no"], no)
    by = sf.coalesce(end["by"], sf.lit("capture-end"))
    # Of a connection without a row no more is known than that the frame was not answered at once.
    when = sf.coalesce(end["ts_ns"], waits["ts_ns"])
    if lost is not None:
        swallowed = lost.isNotNull() & sf.coalesce(lost["since"] < end["frame_no"], sf.lit(True))
        by = sf.when(swallowed, "gap").otherwise(by)
        when = sf.when(swallowed, lost["ts_ns"]).otherwise(when)
    return sf.when(discarded, "discarded").otherwise(by), sf.when(discarded, close["ts_ns"]).otherwise(when)
