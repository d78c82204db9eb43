"""Transits: deliveries and the publishes that they came from, on whichever connection."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from amqpscope.pipelines.returns import equal
from amqpscope.pipelines.schemas import conform

_END = ("connection_id", "frame_no", "capture", "packet", "ts_ns")
AMBIGUOUS = "ambiguous"


def transits(messages: DataFrame) -> DataFrame:
    """One row per delivery, pushed or got, with the publish it came from.

    A delivery has come from the one publish with its message id, if there is one and no other with that id; else from
    the one publish with its trace and span; else from the one with equal exchange, routing key, properties and body,
    which must not be empty. Several deliveries may have come from one publish. Where none of these is found, because
    several publishes are alike or none was captured, the delivery is ambiguous.

    Args:
        messages: `messages`.

    Returns:
        The table `transits`.
    """
    end = sf.struct(*_END, sf.coalesce("unfinished", sf.lit(False)).alias("unfinished"))
    publish = end.alias("publish")
    published = messages.where(sf.col("kind") == "publish")
    rows = messages.where(sf.col("kind").isin("deliver", "get")).select(
        "exchange",
        "routing_key",
        end.alias("deliver"),
        *(key.alias(name) for name, key in _keys().items()),
    )
    for name, key in _keys().items():
        unique = (
            published.where(key.isNotNull())
            .groupBy(key.alias("key"))
            .agg(sf.count("*").alias("likes"), sf.min(publish).alias(f"by_{name}"))
        )
        # Rows without this key would all be one task: each gets a key that finds nothing.
        nothing = sf.concat(sf.lit("-"), sf.col("deliver.connection_id"), sf.lit("-"), sf.col("deliver.frame_no"))
        wanted = sf.coalesce(sf.concat(sf.lit("="), name), nothing)
        unique = unique.where("likes = 1").select(sf.concat(sf.lit("="), "key").alias("key"), f"by_{name}")
        rows = rows.withColumn("key", wanted).join(unique, "key", "left").drop("key", name)
    found = sf.coalesce(*(f"by_{name}" for name in _keys()))
    matched_by = sf.coalesce(*(sf.when(sf.col(f"by_{name}").isNotNull(), name) for name in _keys()), sf.lit(AMBIGUOUS))
    rows = rows.withColumn("publish", found)
    timed = ~sf.col("publish.unfinished") & ~sf.col("deliver.unfinished")
    result = rows.select(
        *(sf.col(f"{side}.{name}").alias(f"{side}_{name}") for side in ("publish", "deliver") for name in _END),
        "exchange",
        "routing_key",
        sf.when(timed, sf.try_subtract("deliver.ts_ns", "publish.ts_ns")).alias("latency_ns"),
        matched_by.alias("matched_by"),
    )
    return conform(result, "transits")


def _keys() -> dict[str, Column]:
    """What makes a match, best first; each null where a message does not have it."""
    body = (sf.col("body_size") > 0) & sf.col("body_hash").isNotNull()
    return {
        "message-id": sf.nullif("message_id", sf.lit("")),
        "trace": sf.concat("trace_id", sf.lit("-"), "span_id"),
        "content": sf.when(body, equal()),
    }
