"""Spark jobs over the tables of the dissector: DataFrames in, a DataFrame out.

Each job is a function in a module of the same name: `confirms.confirms(frames, messages, connections)`. They are
DataFrame expressions and windows only, and a busy channel is spread over as many tasks as any other data (`buckets`
says how). Importing this package does not import Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read"]


def read(spark: SparkSession, paths: str | PathLike[str] | Sequence[str | PathLike[str]], table: str) -> DataFrame:
    """A table as a DataFrame, with the declared columns, also when it is empty.

    Args:
        spark: the session, best made by `amqpscope.pipelines.session.session`.
        paths: a folder written by `amqpscope dissect` or `amqpscope analyze`; or captures, which are then dissected
            inside Spark.
        table: its name, such as `amqp091_frames`.

    Raises:
        amqpscope.pipelines.reader.ReadError: there is no such table, or nothing at `paths`.
    """
    from amqpscope.pipelines.reader import read_table  # noqa: PLC0415 - Spark is optional

    return read_table(spark, paths, table)
