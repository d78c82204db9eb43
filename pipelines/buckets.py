"""Windows over a channel that are not one task: by bucket first, then across the buckets.

A window function over (connection, channel, epoch) puts a whole channel into one task, and a channel may hold fifty
million messages. Running aggregates do not need that. Positions (delivery tags, publish numbers, frame numbers) are cut
into buckets of 2**16; a window runs inside each bucket; one summary row per bucket, of which there are few, carries the
aggregate of all buckets before it; both are put together by an ordinary join on (keys, bucket). The same summary rows
carry what is known once per channel, such as its end, so that no join has a whole channel under one key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

BITS = 16
"""Positions of one bucket: 2**16, at most that many rows where positions are unique."""

CHANNEL = ("connection_id", "channel", "channel_epoch")
"""What delivery tags, publish numbers and consumers belong to."""
POINT = ("frame_no", "ts_ns", "capture", "packet")
"""When and where something was seen."""

SMALL = "spark.amqpscope.small"
"""The setting that says that there is little data."""


def _add(before: Column, here: Column) -> Column:
    return sf.coalesce(before, sf.lit(0)) + sf.coalesce(here, sf.lit(0))


_AGGREGATES: dict[str, tuple[Callable[[Column | str], Column], Callable[[Column, Column], Column]]] = {
    "min": (sf.min, sf.least),
    "max": (sf.max, sf.greatest),
    "sum": (sf.sum, _add),
}


def bucket(position: Column | str, bits: int = BITS) -> Column:
    """The bucket of a position (int64): 2**bits positions."""
    return sf.shiftright(position, bits)


def small(spark: SparkSession) -> bool:
    """Whether the session is one for little data."""
    return spark.conf.get(SMALL, "false") == "true"


def once(rows: DataFrame) -> DataFrame:
    """Rows that are used in several places, computed once where there are few of them.

    In a session for little data (`amqpscope.pipelines.session`) the plan ends here: what follows reads the rows from
    memory, and is planned without what led to them, which nearly all of the time would go into. Elsewhere the rows as
    they are, for Spark shares what it exchanges.
    """
    return rows.localCheckpoint(eager=False) if small(rows.sparkSession) else rows


def kept(rows: DataFrame) -> DataFrame:
    """Rows that several steps, one behind the other, each use more than once: computed once, and kept.

    The plan ends here, for each step would double it: a few make one of which the text alone takes minutes. Executors
    hold them, in memory or on disk. Where there is little data, `running` does the same.
    """
    return rows if small(rows.sparkSession) else rows.localCheckpoint(eager=False)


def running(
    rows: DataFrame,
    keys: Sequence[str],
    position: str,
    columns: Mapping[str, tuple[str, str]],
    *,
    descending: bool = False,
    before: bool = False,
    facts: Callable[[DataFrame], DataFrame] | None = None,
    bits: int = BITS,
) -> DataFrame:
    """Adds running aggregates along a position, each row's own and its peers' values included.

    Args:
        rows: any rows with the keys and the position (int64, not null).
        keys: within these columns.
        position: name of the column to go along.
        columns: name of a new column to (`min`, `max` or `sum`, name of the column aggregated). Nulls do not count.
        descending: from the highest position down.
        before: leave each row's own and its peers' values out.
        facts: adds columns to a frame with one row per (keys, bucket); they come with the rows.
        bits: a bucket has 2**bits positions.

    Returns:
        The rows with the new columns, `bucket`, `place` (the position, ordered in the direction gone) and the columns
        that `facts` added.
    """
    by = [*keys, "bucket"]
    place = sf.bitwise_not(position) if descending else sf.col(position)  # unlike a minus, cannot overflow
    rows = once(rows.withColumn("bucket", bucket(position, bits)).withColumn("place", place))
    summary = rows.groupBy(*by).agg(*(_AGGREGATES[how][0](value).alias(name) for name, (how, value) in columns.items()))
    order = sf.desc("bucket") if descending else sf.asc("bucket")
    earlier = Window.partitionBy(*keys).orderBy(order).rowsBetween(Window.unboundedPreceding, -1)
    summary = summary.select(
        *by, *(_AGGREGATES[how][0](name).over(earlier).alias(f"{name}_before") for name, (how, _) in columns.items())
    )
    if facts is not None:
        summary = facts(summary)
    inside = Window.partitionBy(*by).orderBy("place").rangeBetween(Window.unboundedPreceding, -1 if before else 0)
    result = rows.join(summary, by)
    for name, (how, value) in columns.items():
        aggregate, merge = _AGGREGATES[how]
        result = result.withColumn(name, merge(sf.col(f"{name}_before"), aggregate(value).over(inside)))
    return result.drop(*(f"{name}_before" for name in columns))


def spread(facts: DataFrame, rows: DataFrame, keys: Sequence[str], position: str) -> DataFrame:
    """The facts once for every bucket that the rows have, with a column `bucket` to join on.

    Args:
        facts: rows with the keys; few for each.
        rows: rows with the keys and the position.
        keys: columns of both.
        position: name of a column of `rows`.
    """
    return rows.select(*keys, bucket(position).alias("bucket")).distinct().join(facts, [*keys])
