"""Statistics over the tables of the dissector.

`analyze` makes all of them. In a notebook there is a function for each table, from pyarrow Tables to a pyarrow Table,
or from DataFrames to a DataFrame: `pipelines.confirms(frames, messages, connections)`; see `jobs`. They are imported
when they are first used, so importing this package loads neither Arrow nor Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from pyspark.sql import DataFrame, SparkSession

    from amqpscope.pipelines.jobs import (
        calls,
        channel_errors,
        commands,
        confirms,
        deaths,
        endpoints,
        failures,
        flow_control,
        gaps,
        heartbeats,
        latency_buckets,
        latency_summary,
        operations,
        published,
        relation,
        rpcs,
        settlements,
        stream_credit,
        stream_deliveries,
        stream_metadata,
        tcp_delays,
        transits,
        unconfirmed,
        violations,
    )

__all__ = [
    "calls",
    "channel_errors",
    "commands",
    "confirms",
    "deaths",
    "endpoints",
    "failures",
    "flow_control",
    "gaps",
    "heartbeats",
    "latency_buckets",
    "latency_summary",
    "operations",
    "published",
    "read",
    "relation",
    "rpcs",
    "settlements",
    "stream_credit",
    "stream_deliveries",
    "stream_metadata",
    "tcp_delays",
    "transits",
    "unconfirmed",
    "violations",
]


def read(
    spark: SparkSession, paths: str | PathLike[str] | Sequence[str | PathLike[str]], table: str, **options: str
) -> DataFrame:
    """Return a table as a DataFrame with the declared columns, even when it is empty.

    Args:
        spark: the session, best made by `amqpscope.pipelines.spark.session.session`.
        paths: a folder written by `amqpscope dissect` or `amqpscope analyze`; or captures, which are then dissected
            inside Spark when the first of their tables is read.
        table: its name, such as `amqp091_frames`.
        options: of the data source, for captures: `keylog="keys.log"` (`pipelines.spark.source.Captures`).

    Raises:
        amqpscope.pipelines.spark.reader.ReadError: there is no such table, or nothing at `paths`.
    """
    from amqpscope.pipelines.spark import reading  # noqa: PLC0415 - Spark is optional

    return reading.read(spark, paths, table, **options)


if not TYPE_CHECKING:  # type checkers would take any name for one that is there

    def __getattr__(name: str) -> Any:
        """Import a function of `jobs` when it is asked for."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from amqpscope.pipelines import jobs  # noqa: PLC0415

        found = globals()[name] = getattr(jobs, name)
        return found


def __dir__() -> list[str]:
    """Return names for completion, including those that were not used yet."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
