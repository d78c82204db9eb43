"""Latency as log-linear buckets and as exact percentiles, by a closed list of groupings.

Buckets have 7 bits: below 256 ns each nanosecond has its own; above, each power of two is cut into 128. A bucket is
narrower than 0.8 % of the values in it, so that its middle is off by less than 0.4 %. They add up over files, days and
groups, and are what plots are drawn from.

Percentiles are exact: the bucket that holds the rank is known from the counts, and only the values in that bucket are
sorted. Sketches bound the error of the rank, not of the value, and were off by an order of magnitude on stalls.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from amqpscope.pipelines.buckets import once
from amqpscope.pipelines.schemas import conform

BITS = 7
"""A power of two is cut into 2**7 buckets."""

COLUMNS = (
    "connection_id", "channel", "channel_epoch", "exchange", "routing_key", "queue", "consumer_tag", "request",
    "stream",
)  # fmt: skip
"""Columns that name a group; those that its grouping does not use are null."""

GROUPINGS: dict[str, tuple[str, ...]] = {
    "all": (),
    "connection": ("connection_id",),
    "channel": ("connection_id", "channel", "channel_epoch"),
    "exchange": ("exchange",),
    "routing_key": ("exchange", "routing_key"),
    "queue": ("queue",),
    "consumer_tag": ("connection_id", "channel", "channel_epoch", "consumer_tag"),
    "request": ("request",),
    "stream": ("stream",),
}
"""The closed list of groupings, and the columns of each."""

_NEEDED = {"channel": "channel", "exchange": "exchange", "routing_key": "exchange", "stream": "stream"}
"""What is not null in the rows of a grouping: streams have no channels and exchanges, the others no streams."""

PERCENTILES = {"p50_ns": 5_000, "p90_ns": 9_000, "p99_ns": 9_900, "p999_ns": 9_990, "p9999_ns": 9_999}
"""Columns of `latency_summary` and their quantiles, in parts of ten thousand."""

COUNTS = ("count", "failed", "censored", "unanswered", "unusable")
"""Columns of `latency_summary` that count operations."""

_USED = {
    "confirm": ("all", "connection", "channel", "exchange", "routing_key", "stream"),
    "settlement": ("all", "connection", "channel", "exchange", "routing_key", "queue", "consumer_tag"),
    "rpc": ("all", "connection", "channel", "request"),
    "transit": ("all", "exchange", "routing_key"),
}
_GROUP = ("metric", "grouping", *COLUMNS)
_CENSORED = ("capture-end", "gap")


def bucket_of(value: Column) -> Column:
    """The bucket (int64) of a value of at least 0 (int64, nanoseconds)."""
    shift = sf.greatest(sf.length(sf.bin(value)) - (BITS + 1), sf.lit(0))
    number: Column = shift * 2**BITS + sf.call_function("shiftright", value, shift)
    return number.cast("bigint")


def low_of(bucket: Column) -> Column:
    """The smallest value of a bucket (int64)."""
    shift = _shift(bucket)
    return sf.call_function("shiftleft", bucket - shift * 2**BITS, shift)


def high_of(bucket: Column) -> Column:
    """The smallest value above a bucket (int64); the last bucket of all ends with the largest int64."""
    shift = _shift(bucket)
    width = sf.call_function("shiftleft", sf.lit(1).cast("bigint"), shift)
    return sf.coalesce(sf.try_add(low_of(bucket), width), sf.lit(2**63 - 1))


def _shift(bucket: Column) -> Column:
    return sf.greatest(sf.shiftright(bucket, BITS) - 1, sf.lit(0)).cast("int")


def latency_buckets(
    confirms: DataFrame | None = None,
    settlements: DataFrame | None = None,
    rpcs: DataFrame | None = None,
    transits: DataFrame | None = None,
) -> DataFrame:
    """Counts of latencies by metric, group and log-linear bucket.

    Args:
        confirms: the table `confirms`; None leaves the metric out, as with the others.
        settlements: the table `settlements`.
        rpcs: the table `rpcs`.
        transits: the table `transits`.

    Returns:
        The table `latency_buckets`. Latencies below zero are left out.
    """
    counts = _bucketed(_samples(confirms, settlements, rpcs, transits))
    return conform(
        counts.withColumn("low_ns", low_of(sf.col("bucket"))).withColumn("high_ns", high_of(sf.col("bucket"))),
        "latency_buckets",
    )


def latency_summary(
    confirms: DataFrame | None = None,
    settlements: DataFrame | None = None,
    rpcs: DataFrame | None = None,
    transits: DataFrame | None = None,
) -> DataFrame:
    """Count, exact percentiles (nearest rank) and maximum of latencies by metric and group.

    Args:
        confirms: the table `confirms`; None leaves the metric out, as with the others.
        settlements: the table `settlements`.
        rpcs: the table `rpcs`.
        transits: the table `transits`.

    Returns:
        The table `latency_summary`. `count` is of answers, good and bad, with a latency of at least zero, and the
        percentiles are theirs. Everything that asked for an answer is in one of `count`, `unusable` (answered, but
        without such a latency: clocks stepped, the publish of a delivery is ambiguous, or the number of a publish only
        inferred), `censored` (the capture may have missed the answer) and `unanswered` (a close, a recover or a
        rollback came first); so they add up. `failed` is of bad answers (nack, reject, error) and all that is
        `unanswered`.
    """
    samples = _samples(confirms, settlements, rpcs, transits)
    groups = _grouped(
        samples.groupBy("metric", *COLUMNS).agg(
            *(sf.count_if("usable" if name == "count" else name).alias(name) for name in COUNTS),
            sf.max(sf.when(sf.col("usable"), sf.col("latency_ns"))).alias("max_ns"),
        )
    )
    totals = groups.groupBy(*_GROUP).agg(
        *(sf.sum(name).alias(name) for name in COUNTS), sf.max("max_ns").alias("max_ns")
    )
    return conform(_joined(totals, _percentiles(samples), _GROUP, "left"), "latency_summary")


def _samples(
    confirms: DataFrame | None, settlements: DataFrame | None, rpcs: DataFrame | None, transits: DataFrame | None
) -> DataFrame:
    """Rows of metric, the columns of `COLUMNS`, latency_ns, and usable, failed, censored, unanswered, unusable."""
    given = {"confirm": confirms, "settlement": settlements, "rpc": rpcs, "transit": transits}
    parts = [_sample(metric, table) for metric, table in given.items() if table is not None]
    if not parts:
        raise ValueError("no table to summarise")
    return once(reduce(DataFrame.unionByName, parts))


def _sample(metric: str, table: DataFrame) -> DataFrame:
    used = {name for grouping in _USED[metric] for name in GROUPINGS[grouping]}
    no = sf.lit(False)
    usable = sf.coalesce(sf.col("latency_ns") >= 0, no)
    outcome = sf.col("outcome") if "outcome" in table.columns else sf.lit("ok")
    # `auto` and `unknown` ones have not asked for an answer, or may not have.
    ended_by = sf.when(outcome == "none", sf.col("ended_by")) if "ended_by" in table.columns else sf.lit(None)
    censored = sf.coalesce(ended_by.isin(*_CENSORED), no)
    unanswered = sf.coalesce(~ended_by.isin(*_CENSORED), no)
    failed = sf.coalesce(outcome.isin("nack", "reject", "error"), no) | unanswered
    unusable = ~usable & ~sf.coalesce(outcome.isin("none", "auto", "unknown"), sf.lit(True))
    types = {"connection_id": "bigint", "channel": "int", "channel_epoch": "int"}
    return table.select(
        sf.lit(metric).alias("metric"),
        *(
            (sf.col(name) if name in used else sf.lit(None)).cast(types.get(name, "string")).alias(name)
            for name in COLUMNS
        ),
        "latency_ns",
        usable.alias("usable"),
        failed.alias("failed"),
        censored.alias("censored"),
        unanswered.alias("unanswered"),
        unusable.alias("unusable"),
    )


def _grouped(rows: DataFrame) -> DataFrame:
    """Each row once for every grouping of its metric, with the columns that the grouping does not use set to null."""
    entries = []
    for grouping, columns in GROUPINGS.items():
        metrics = [metric for metric, used in _USED.items() if grouping in used]
        entry = sf.struct(
            sf.lit(grouping).alias("grouping"),
            *((sf.col(name) if name in columns else sf.lit(None)).alias(name) for name in COLUMNS),
        )
        there = sf.col(_NEEDED[grouping]).isNotNull() if grouping in _NEEDED else sf.lit(True)
        entries.append(sf.when(sf.col("metric").isin(metrics) & there, entry))
    each = rows.withColumn("group", sf.explode(sf.array_compact(sf.array(*entries))))
    rest = [name for name in rows.columns if name not in _GROUP]
    return each.select("metric", "group.*", *rest)


def _bucketed(samples: DataFrame) -> DataFrame:
    """Count of usable latencies by group and bucket; counted by the finest group before it is multiplied."""
    finest = (
        samples.where("usable")
        .groupBy("metric", *COLUMNS, bucket_of(sf.col("latency_ns")).alias("bucket"))
        .agg(sf.count("*").alias("count"))
    )
    return _grouped(finest).groupBy(*_GROUP, "bucket").agg(sf.sum("count").alias("count"))


def _percentiles(samples: DataFrame) -> DataFrame:
    """The columns of `PERCENTILES` by group: find the bucket of each rank, then the value inside the bucket."""
    group = Window.partitionBy(*_GROUP)
    counts = (
        once(_bucketed(samples))
        .withColumn(
            "before",
            sf.coalesce(
                sf.sum("count").over(group.orderBy("bucket").rowsBetween(Window.unboundedPreceding, -1)), sf.lit(0)
            ),
        )
        .withColumn("total", sf.sum("count").over(group))
    )
    rank = sf.expr("(total * share + 9999) div 10000")
    wanted = sf.array(
        *(
            sf.struct(sf.lit(name).alias("name"), sf.lit(share).cast("bigint").alias("share"))
            for name, share in PERCENTILES.items()
        )
    )
    ranks = once(
        counts.select(*_GROUP, "bucket", "count", "before", "total", sf.inline(wanted))
        .withColumn("rank", rank)
        .where((sf.col("rank") > sf.col("before")) & (sf.col("rank") <= sf.col("before") + sf.col("count")))
    )
    targets = ranks.select(*_GROUP, "bucket", "before").distinct()
    finest = (
        samples.where("usable")
        .withColumn("bucket", bucket_of(sf.col("latency_ns")))
        .join(sf.broadcast(targets.select("metric", "bucket").distinct()), ["metric", "bucket"], "left_semi")
        .groupBy("metric", *COLUMNS, "bucket", "latency_ns")
        .agg(sf.count("*").alias("here"))
    )
    values = (
        _joined(_grouped(finest), targets, (*_GROUP, "bucket"), "inner")
        .groupBy(*_GROUP, "bucket", "before", "latency_ns")
        .agg(sf.sum("here").alias("here"))
    )
    upward = Window.partitionBy(*_GROUP, "bucket").orderBy("latency_ns").rowsBetween(Window.unboundedPreceding, 0)
    values = values.withColumn("last", sf.col("before") + sf.sum("here").over(upward))
    values = values.withColumn("first", sf.col("last") - sf.col("here") + 1)
    found = _joined(ranks.select(*_GROUP, "bucket", "name", "rank"), values, (*_GROUP, "bucket"), "inner")
    found = found.where(sf.col("rank").between(sf.col("first"), sf.col("last")))
    return found.groupBy(*_GROUP).agg(
        *(sf.max(sf.when(sf.col("name") == name, sf.col("latency_ns"))).alias(name) for name in PERCENTILES)
    )


def _joined(left: DataFrame, right: DataFrame, keys: tuple[str, ...], how: str) -> DataFrame:
    """A join in which null equals null, with the keys of the left side."""
    renamed = right.select(*(sf.col(name).alias(f"right_{name}" if name in keys else name) for name in right.columns))
    same = reduce(lambda a, b: a & b, (sf.col(name).eqNullSafe(sf.col(f"right_{name}")) for name in keys))
    return left.join(renamed, same, how).drop(*(f"right_{name}" for name in keys))
