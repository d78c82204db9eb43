"""What versions of Spark lack that others have: 3.5 and 4.0 beside the later ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

OLDEST, BEHIND = (3, 5), (5, 0)
"""The oldest version that is known to work, and the first one that nobody knows."""
MASK = 0xFFFFFFFF


def version() -> tuple[int, int]:
    """Return major and minor version of PySpark."""
    major, minor, *_ = pyspark.__version__.split(".")
    return int(major), int(minor)


def unsupported() -> str | None:
    """Return why this version cannot be used, in one line; None if it can."""
    if OLDEST <= version() < BEHIND:
        return None
    return f"this is PySpark {pyspark.__version__}, and 3.5 to 4 are supported"


def disable_loggers(names: Sequence[str]) -> None:
    """Disable loggers of PySpark, which 4.0 came with."""
    if version() >= (4, 0):
        from pyspark.logger import PySparkLogger  # noqa: PLC0415

        for name in names:
            PySparkLogger.getLogger(name).disabled = True


def to_arrow(frame: DataFrame) -> pa.Table:
    """Return the rows of a DataFrame; `toArrow` came with 4.0."""
    if version() >= (4, 0):
        found: pa.Table = frame.toArrow()
        return found
    collect: Any = frame._collect_as_arrow
    return pa.Table.from_batches(collect(), to_arrow_schema(frame.schema))


def of_arrow(spark: SparkSession, rows: pa.Table, schema: StructType | None = None) -> DataFrame:
    """Return a DataFrame of a few rows; `createDataFrame` takes Arrow from 4.0 on."""
    schema = schema or from_arrow_schema(rows.schema)  # Spark Connect infers none where there are no rows
    if version() >= (4, 0):
        return spark.createDataFrame(rows.combine_chunks(), schema)  # 4.3 stops at an empty chunk
    tuples = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    return spark.createDataFrame(tuples, schema)


def by_part(rows: DataFrame, count: int) -> DataFrame:
    """Return rows in partitions, each in that of its column `part`; `repartitionById` came with 4.1."""
    if version() >= (4, 1):
        return rows.repartitionById(count, "part")
    seat = sf.element_at(sf.array(*[sf.lit(each) for each in seats(count)]), sf.col("part") + sf.lit(1))
    return rows.repartition(count, seat)


def seats(count: int) -> list[int]:
    """Return for each partition of `count` a 32-bit number that Spark's partitioning by hash sends there."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < count:
        found.setdefault(_hash(number) % count, number)
        number += 1
    return [found[part] for part in range(count)]


def _hash(number: int) -> int:
    """Return Spark's hash of an `int`, signed: MurmurHash3_x86_32 of four bytes with seed 42."""
    mixed = _turned(number * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK
    h = (_turned(42 ^ mixed, 13) * 5 + 0xE6546B64 & MASK) ^ 4
    h = (h ^ h >> 16) * 0x85EBCA6B & MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & MASK
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def _turned(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & MASK
