"""Tables as DataFrames: from a folder of Parquet or Arrow parts, or from captures."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from amqpscope import dissector, spec
from amqpscope.dissector.tables.output import NOTE
from amqpscope.errors import Error, MissingError
from amqpscope.pipelines.schemas import schema


class ReadError(Error):
    """There is nothing to read; the message is one line that says what and where."""


class MissingTablesError(ReadError, MissingError):
    """A file or folder to read is not there."""


def dissected(folder: Path) -> Path:
    """The folder, when it holds tables of `dissect`.

    Raises:
        ReadError: it does not.
    """
    if not folder.is_dir():
        if not folder.exists():
            raise MissingTablesError(f"{folder}: no such folder")
        raise ReadError(f"{folder}: not a folder")
    wanted = [name for name, table in spec.tables().items() if table.written_by == "dissect"]
    missing = [name for name in wanted if not (folder / name).is_dir()]
    if missing:
        raise ReadError(f"{folder}: no table {missing[0]} here; name a folder that amqpscope dissect wrote")
    return folder


def read_note(folder: Path) -> dict[str, Any]:
    """What `dissect` noted of its output: at least complete, from_ns and to_ns.

    A folder without a note, which somebody else wrote, is complete.
    """
    default = {"complete": True, "from_ns": None, "to_ns": None}
    try:
        found = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    return default | (found if isinstance(found, dict) else {})


def read_table(
    spark: SparkSession, paths: str | PathLike[str] | Sequence[str | PathLike[str]], table: str
) -> DataFrame:
    """See `pipelines.read`."""
    if table not in spec.tables():
        raise ReadError(f"{table}: no such table; there are {', '.join(spec.tables())}")
    given = [fspath(paths)] if isinstance(paths, str | PathLike) else [fspath(path) for path in paths]
    folder = Path(given[0], table) if len(given) == 1 else Path()
    if len(given) != 1 or not folder.is_dir():
        return _captures(spark, given, table)
    parts = sorted(str(path.absolute()) for path in folder.glob("[!._]*.arrow"))
    if parts:
        return _arrow(spark, parts, table)
    return spark.read.schema(schema(table)).parquet(str(folder.absolute()))


def _captures(spark: SparkSession, paths: Sequence[str], table: str) -> DataFrame:
    """Dissects inside Spark: one task for the set, for its files are one sequence."""
    if spec.tables()[table].written_by != "dissect":
        raise ReadError(f"{paths[0]}: no table {table} here")
    missing = [path for path in paths if not Path(path).exists() and not glob.glob(path)]  # noqa: PTH207 - as the dissector
    if missing:
        raise MissingTablesError(f"{missing[0]}: no such file or folder")
    absolute = [str(Path(path).absolute()) for path in paths]
    names = schema(table).names

    def batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in given:
            pass
        for batch in dissector.read(absolute)[table]:
            yield batch.select(names)

    return spark.range(1, numPartitions=1).mapInArrow(batches, schema(table))


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
