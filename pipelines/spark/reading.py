"""Tables as people read them: statistics with times and addresses besides, computed where a folder lacks them."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

from pyspark.sql import DataFrame, SparkSession

from amqpscope import spec
from amqpscope.dissector.places import place
from amqpscope.pipelines.folder import parts
from amqpscope.pipelines.relations.compute import NAMES
from amqpscope.pipelines.relations.texts import SOURCES
from amqpscope.pipelines.spark.reader import read_table
from amqpscope.pipelines.spark.relations import relations
from amqpscope.pipelines.spark.when_read import completed


def read(
    spark: SparkSession, paths: str | PathLike[str] | Sequence[str | PathLike[str]], table: str, **options: str
) -> DataFrame:
    """Read a table; see `pipelines.read`."""
    declared = spec.tables().get(table)
    folder = place(paths) if isinstance(paths, str | PathLike) else None
    if folder is None or declared is None or declared.written_by == "dissect":
        return read_table(spark, paths, table, **options)
    has_endpoints = bool(parts(folder, "endpoints"))
    if has_endpoints and table in NAMES and not parts(folder, table):
        known = {name: read_table(spark, folder, name) for name in SOURCES if parts(folder, name)}
        rows = dict(relations(spark, known, [table]))[table]
    else:
        rows = read_table(spark, paths, table, **options)
    return completed(table, rows, read_table(spark, folder, "endpoints") if has_endpoints else None)
