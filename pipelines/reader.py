"""Tables as DataFrames: from a folder of Parquet or Arrow parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike, fspath
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import spec
from pipelines.schemas import schema


class ReadError(Exception):
    """There is nothing to read; the message is one line that says what and where."""


def read_table(
    spark: SparkSession, paths: str | PathLike[str] | Sequence[str | PathLike[str]], table: str
) -> DataFrame:
    """See `pipelines.read`."""
    if table not in spec.tables():
        raise ReadError(f"{table}: no such table; there are {', '.join(spec.tables())}")
    given = [fspath(paths)] if isinstance(paths, str | PathLike) else [fspath(path) for path in paths]
    if len(given) != 1:
        raise ReadError("one folder with tables is needed")
    folder = Path(given[0], table)
    if not folder.is_dir():
        raise ReadError(f"{folder}: no such folder; was it written by amqpscope?")
    parts = sorted(str(path) for path in folder.glob("*.arrow"))
    if parts:
        return _arrow(spark, parts, table)
    return spark.read.schema(schema(table)).parquet(str(folder))


def _arrow(spark: SparkSession, parts: Sequence[str], table: str) -> DataFrame:
    """One task per part; the workers must see the same paths."""
    names = schema(table).names

    def batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            for part in batch.column("part").to_pylist():
                with pa.memory_map(part) as file:
                    for each in _reader(file):
                        yield each.select(names)

    listed = spark.createDataFrame([(part,) for part in parts], "part string").repartition(len(parts))
    return listed.mapInArrow(batches, schema(table))


def _reader(file: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    """Batches of an Arrow file or stream."""
    magic = file.read(6)
    file.seek(0)
    if magic == b"ARROW1":
        reader = pa.ipc.open_file(file)
        return (reader.get_batch(i) for i in range(reader.num_record_batches))
    return iter(pa.ipc.open_stream(file))
