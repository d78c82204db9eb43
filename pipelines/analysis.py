"""All jobs over one folder of tables, in the order in which they need each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from amqpscope.pipelines.buckets import kept, once, small
from amqpscope.pipelines.confirms import confirms
from amqpscope.pipelines.failures import failures
from amqpscope.pipelines.flow_control import flow_control, zero_windows
from amqpscope.pipelines.heartbeats import heartbeats
from amqpscope.pipelines.holes import holes, mute
from amqpscope.pipelines.latency import latency_buckets, latency_summary
from amqpscope.pipelines.numbers import numbered
from amqpscope.pipelines.output import Output
from amqpscope.pipelines.reader import read_note, read_table
from amqpscope.pipelines.rpcs import rpcs
from amqpscope.pipelines.schemas import nothing
from amqpscope.pipelines.settlements import settlements
from amqpscope.pipelines.stream_confirms import stream_confirms
from amqpscope.pipelines.stream_credit import credit_waits, stream_credit
from amqpscope.pipelines.stream_deliveries import stream_deliveries
from amqpscope.pipelines.stream_rpcs import stream_rpcs
from amqpscope.pipelines.transits import transits

Read = Callable[..., DataFrame]
"""Gives a table by its name; `connections` as far as the time range goes unless with `whole=True`."""
Lost = Callable[[], DataFrame | None]
PACKET = 1400
"""Octets of a body that one packet holds, nearly always."""


def jobs() -> dict[str, Callable[[Read, Lost], DataFrame]]:
    """Tables in the order in which they are made, each with what makes it from the tables that are there already."""
    return {
        "confirms": lambda read, lost: _with_streams(
            confirms(read("amqp091_frames"), _numbered(read, lost), read("connections"), lost()),
            stream_confirms, read, "stream_frames", "messages", "connections", "anomalies",
        ),
        "settlements": lambda read, lost: settlements(
            read("amqp091_frames"), _timed(read, lost), read("connections"), lost()
        ),
        "rpcs": lambda read, lost: _with_streams(
            rpcs(read("amqp091_frames"), read("connections"), lost()),
            stream_rpcs, read, "stream_frames", "connections", "anomalies",
        ),
        "stream_credit": lambda read, _: _with_streams(
            nothing(read("connections").sparkSession, "stream_credit"),
            stream_credit, read, "stream_frames", "anomalies",
        ),
        "stream_deliveries": lambda read, _: _with_streams(
            nothing(read("connections").sparkSession, "stream_deliveries"),
            stream_deliveries, read, "stream_frames", "connections",
        ),
        "flow_control": lambda read, lost: _with_streams(
            flow_control(read("amqp091_frames"), read("settlements"), read("connections"), lost()).unionByName(
                zero_windows(read("tcp_windows"), read("connections"))
            ),
            credit_waits, read, "stream_credit", "stream_frames", "connections",
        ),
        "heartbeats": lambda read, lost: heartbeats(
            read("amqp091_frames"), read("anomalies"), read("connections"), lost()
        ),
        "failures": lambda read, _: failures(read("connections", whole=True)),
        "transits": lambda read, lost: transits(_timed(read, lost)),
        "latency_buckets": lambda read, _: latency_buckets(*_measured(read)),
        "latency_summary": lambda read, _: latency_summary(*_measured(read)),
    }  # fmt: skip


def _timed(read: Read, lost: Lost) -> DataFrame:
    """Messages; one that lies in a single packet has its time though the snap length cut its end."""
    messages = read("messages")
    if lost() is None:
        return messages
    snapped = read("captures").where(sf.col("snap_length") < PACKET).select("capture").distinct()
    rows = messages.join(sf.broadcast(snapped.withColumn("snapped", sf.lit(True))), "capture", "left")
    small = sf.coalesce(sf.col("snapped") & (sf.coalesce("body_size", sf.lit(0)) < PACKET), sf.lit(False))
    return rows.withColumn("unfinished", sf.col("unfinished") & ~small).drop("snapped")


def _numbered(read: Read, lost: Lost) -> DataFrame:
    """Messages; with the numbers that confirms tell, where there are any to be told."""
    messages = _timed(read, lost)
    if messages.where("publish_seq_unsure").isEmpty():
        return messages
    return numbered(messages, read("amqp091_frames"), read("connections"), lost())


def _with_streams(rows: DataFrame, job: Callable[..., DataFrame], read: Read, *tables: str) -> DataFrame:
    """The rows and those of a job over streams, which is not even planned where there are none."""
    return rows if not _streams(read) else rows.unionByName(job(*(read(table) for table in tables)))


@lru_cache(maxsize=1)
def _streams(read: Read) -> bool:
    """Whether there are any streams."""
    return not read("stream_frames").isEmpty()


def analyze(spark: SparkSession, folder: Path, output: Output, tell: Callable[[str], None] = lambda what: None) -> None:
    """Write all tables of statistics.

    Args:
        spark: the session.
        folder: what `dissect` wrote.
        output: where the statistics go.
        tell: called with the name of each table before it is made.

    Raises:
        ReadError: a table is missing.
        OutputError: a table cannot be made or written.
    """
    made = jobs()
    note = read_note(folder)

    @cache
    def read(table: str, *, whole: bool = False) -> DataFrame:
        rows = read_table(spark, output.folder if table in made else folder, table)
        rows = rows.coalesce(1) if small(spark) else rows
        if table != "connections":
            return rows
        rows = rows if note["complete"] else _with_missing(rows, _times(read))
        return rows if whole else _in_range(rows, note)

    @cache
    def silent() -> DataFrame | None:
        """Directions of which nothing was captured; in a part of a capture a side may just say nothing."""
        part = not note["complete"] or note["from_ns"] is not None or note["to_ns"] is not None
        return None if part else once(mute(read("amqp091_frames")))

    @cache
    def lost() -> DataFrame | None:
        """Where answers may be lost; None when nothing is."""
        lossy = read("connections").where("lost_bytes > 0 or skipped_bytes > 0")
        missing = silent()
        if note["complete"] and lossy.isEmpty() and (missing is None or missing.isEmpty()):
            return None
        places = holes(read("anomalies"), read("amqp091_frames"))
        return once(kept(places if missing is None else places.unionByName(missing)))

    for table, job in made.items():
        tell(table)
        with output.making(table):
            rows = job(read, lost)
        output.write(table, rows)
    output.finish()


def _times(read: Read) -> DataFrame:
    """Connections, protocols and times of all frames."""
    tables = (("amqp091_frames", "amqp-0-9-1"), ("stream_frames", "rabbitmq-stream"))
    first, second = (
        read(table).select("connection_id", sf.lit(protocol).alias("protocol"), "ts_ns") for table, protocol in tables
    )
    return first.unionByName(second)


def _with_missing(connections: DataFrame, frames: DataFrame) -> DataFrame:
    """Connections that were open when dissection was killed have no row: they get one, with protocol and times."""
    times = (sf.min("ts_ns").alias("first_ts_ns"), sf.max("ts_ns").alias("last_ts_ns"))
    seen = frames.groupBy("connection_id").agg(sf.min("protocol").alias("protocol"), *times)
    missing = seen.join(connections, "connection_id", "left_anti")
    return connections.unionByName(missing, allowMissingColumns=True)


def _in_range(connections: DataFrame, note: dict[str, Any]) -> DataFrame:
    """Connections as far as the time range goes that was asked for.

    What lies beyond it ends nothing that waits in it, and is no silence.
    """
    if note["from_ns"] is not None:
        from_ns = sf.lit(note["from_ns"]).cast("bigint")
        connections = connections.withColumn("first_ts_ns", sf.greatest("first_ts_ns", from_ns))
    if note["to_ns"] is not None:
        to_ns = sf.lit(note["to_ns"]).cast("bigint")
        closed = sf.coalesce("closed_ts_ns", "last_ts_ns") < to_ns
        connections = connections.withColumns(
            {
                "closed_by": sf.when(closed, sf.col("closed_by")),
                "closed_ts_ns": sf.when(closed, sf.col("closed_ts_ns")),
                "last_ts_ns": sf.least("last_ts_ns", to_ns),
            }
        )
    return connections


def _measured(read: Read) -> tuple[DataFrame, ...]:
    return read("confirms"), read("settlements"), read("rpcs"), read("transits")
