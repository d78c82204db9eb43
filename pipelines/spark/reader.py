"""Tables as DataFrames: from a folder of Parquet or Arrow parts, or from captures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from amqpscope import spec
from amqpscope.dissector.places import Place, mapped, place, readable
from amqpscope.pipelines.folder import (
    MissingTablesError,
    ReadError,
    batches_of,
    check_paths,
    dissected,
    parts,
    read_note,
)
from amqpscope.pipelines.spark.schemas import schema
from amqpscope.pipelines.spark.versions import version

__all__ = ["MissingTablesError", "ReadError", "dissected", "read_note", "read_table"]


def read_table(
    spark: SparkSession, paths: str | PathLike[str] | Sequence[str | PathLike[str]], table: str, **options: str
) -> DataFrame:
    """Read a table as files have it; the arguments are those of `pipelines.read`."""
    if table not in spec.tables():
        raise ReadError(f"{table}: no such table; there are {', '.join(spec.tables())}")
    given = [fspath(paths)] if isinstance(paths, str | PathLike) else [fspath(path) for path in paths]
    folder = place(given[0]) / table
    if len(given) != 1 or not folder.is_dir():
        return _captures(spark, given, table, options)
    if options:
        raise ReadError(f"{folder.parent}: the option {next(iter(options))} is for captures; these are their tables")
    found = parts(folder.parent, table)
    if not isinstance(folder, Path) or any(part.suffix == ".arrow" for part in found):
        return by_tasks(spark, found, schema(table))
    return spark.read.schema(schema(table)).parquet(str(folder.absolute()))


def _captures(spark: SparkSession, paths: Sequence[str], table: str, options: Mapping[str, str]) -> DataFrame:
    """Dissect captures inside Spark."""
    if version() < (4, 0):
        raise ReadError(f"{paths[0]}: captures are read by Spark 4.0 and newer; have them dissected first")
    from amqpscope.pipelines.spark import source  # noqa: PLC0415 - readers of tables need no dissector

    if spec.tables()[table].written_by != "dissect":
        raise ReadError(f"{paths[0]}: no table {table} in it")
    check_paths(paths)
    source.register(spark)
    return spark.read.format(source.Captures.name()).options(table=table, **options).load(list(paths))


def by_tasks(spark: SparkSession, files: Sequence[Place], declared: StructType) -> DataFrame:
    """Return the rows of part files that tasks read, one each; they see them under the same paths."""
    names = declared.names

    def batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            for part in batch.column("part").to_pylist():
                path = place(part)
                if path.suffix == ".parquet":
                    with pq.ParquetFile(readable(path)) as rows:
                        yield from rows.iter_batches(columns=names)
                    continue
                with mapped(path) as file:
                    for each in batches_of(file):
                        yield each.select(names)

    listed = spark.createDataFrame([(str(file.absolute()),) for file in files], "part string").repartition(len(files))
    return listed.mapInArrow(batches, declared)
