"""Tables as DataFrames: from a folder of Parquet or Arrow parts, or from captures."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from amqpscope import spec
from amqpscope.pipelines.folder import MissingTablesError, ReadError, batches_of, dissected, read_note
from amqpscope.pipelines.schemas import schema

__all__ = ["MissingTablesError", "ReadError", "dissected", "read_note", "read_table"]


def read_table(
    spark: SparkSession, paths: str | PathLike[str] | Sequence[str | PathLike[str]], table: str, **options: str
) -> DataFrame:
    """Read a table; see `pipelines.read`."""
    if table not in spec.tables():
        raise ReadError(f"{table}: no such table; there are {', '.join(spec.tables())}")
    given = [fspath(paths)] if isinstance(paths, str | PathLike) else [fspath(path) for path in paths]
    folder = Path(given[0], table) if len(given) == 1 else Path()
    if len(given) != 1 or not folder.is_dir():
        return _captures(spark, given, table, options)
    if options:
        raise ReadError(f"{folder.parent}: the option {next(iter(options))} is for captures; these are their tables")
    parts = sorted(str(path.absolute()) for path in folder.glob("[!._]*.arrow"))
    if parts:
        return _arrow(spark, parts, table)
    return spark.read.schema(schema(table)).parquet(str(folder.absolute()))


def _captures(spark: SparkSession, paths: Sequence[str], table: str, options: Mapping[str, str]) -> DataFrame:
    """Dissect captures inside Spark."""
    from amqpscope.pipelines import source  # noqa: PLC0415 - readers of tables need no dissector

    if spec.tables()[table].written_by != "dissect":
        raise ReadError(f"{paths[0]}: no table {table} in it")
    missing = [path for path in paths if not Path(path).exists() and not glob.glob(path)]  # noqa: PTH207 - as the dissector
    if missing:
        raise MissingTablesError(f"{missing[0]}: no such file or folder")
    source.register(spark)
    return spark.read.format(source.Captures.name()).options(table=table, **options).load(list(paths))


def _arrow(spark: SparkSession, parts: Sequence[str], table: str) -> DataFrame:
    """Read Arrow parts, one task per part; the workers must see the same paths."""
    names = schema(table).names

    def batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            for part in batch.column("part").to_pylist():
                with pa.memory_map(part) as file:
                    for each in batches_of(file):
                        yield each.select(names)

    listed = spark.createDataFrame([(part,) for part in parts], "part string").repartition(len(parts))
    return listed.mapInArrow(batches, schema(table))
