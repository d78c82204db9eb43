"""All jobs over one folder of tables, in the order in which they need each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pipelines.buckets import small
from pipelines.confirms import confirms
from pipelines.flow_control import flow_control
from pipelines.latency import latency_buckets, latency_summary
from pipelines.output import Output
from pipelines.reader import read_table
from pipelines.rpcs import rpcs
from pipelines.settlements import settlements

Read = Callable[[str], DataFrame]


def jobs() -> dict[str, Callable[[Read], DataFrame]]:
    """Tables in the order in which they are made, each with what makes it from the tables that are there already."""
    return {
        "confirms": lambda read: confirms(read("amqp091_frames"), read("messages"), read("connections")),
        "settlements": lambda read: settlements(read("amqp091_frames"), read("messages"), read("connections")),
        "rpcs": lambda read: rpcs(read("amqp091_frames"), read("connections")),
        "flow_control": lambda read: flow_control(read("amqp091_frames"), read("settlements"), read("connections")),
        "latency_buckets": lambda read: latency_buckets(*_measured(read)),
        "latency_summary": lambda read: latency_summary(*_measured(read)),
    }


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

    def read(table: str) -> DataFrame:
        rows = read_table(spark, output.folder if table in made else folder, table)
        return rows.coalesce(1) if small(spark) else rows

    for table, job in made.items():
        tell(table)
        output.write(table, job(read))
    output.finish()


def _measured(read: Read) -> tuple[DataFrame, ...]:
    return read("confirms"), read("settlements"), read("rpcs")
