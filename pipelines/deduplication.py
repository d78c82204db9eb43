"""What a broker had stored of a publisher's ids when the publisher began, as far as a capture tells.

A broker keeps the highest publishing id for each stream and reference, over reconnections, and drops what is not above
it. Three things tell of it: the answer to query-publisher-sequence, what publishers of that reference sent before, and
the creation of the stream, before which nothing was stored.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from amqpscope.pipelines.streams import OK, asked, union

_NAME = ("stream", "publisher_reference")


def stored(published: DataFrame, frames: DataFrame) -> DataFrame:
    """For each publisher with a reference what was stored before its first publish; few rows.

    Args:
        published: rows with connection_id, publisher_id, epoch, stream, publisher_reference, ts_ns, and `accepted` (the
            publishing id, null where it was refused).
        frames: `stream_frames`.

    Returns:
        connection_id, publisher_id, epoch; `stored` (the highest id known to be stored, null for none), `known` (bool:
        nothing above it was stored), `queried` (bool: a query says so).
    """
    publishers = (
        published.where(sf.col("publisher_reference").isNotNull())
        .groupBy("connection_id", "publisher_id", "epoch", *_NAME)
        .agg(sf.min("ts_ns").alias("ts_ns"), sf.max("accepted").alias("value"))
    )
    queries = asked(frames, ["query-publisher-sequence"]).where(sf.col("answer.response_code") == OK)
    creations = asked(frames, ["create"]).where(sf.col("answer.response_code") == OK)
    created = (
        creations.select("stream", sf.col("answer.ts_ns").alias("ts_ns"))
        .join(publishers.select(*_NAME).distinct(), "stream")
        .withColumn("creates", sf.lit(1))
    )
    events = union(
        publishers,
        queries.select(
            *_NAME,
            sf.col("answer.ts_ns").alias("ts_ns"),
            sf.col("answer.sequence").alias("value"),
            sf.lit(True).alias("queries"),
        ),
        created,
    )
    in_time = Window.partitionBy(*_NAME).orderBy("ts_ns")
    events = events.withColumn("generation", sf.coalesce(sf.sum("creates").over(in_time), sf.lit(0)))
    before = Window.partitionBy(*_NAME, "generation").orderBy("ts_ns").rangeBetween(Window.unboundedPreceding, -1)
    no = sf.lit(False)
    told = sf.coalesce("queries", no) | sf.col("creates").isNotNull()
    return (
        events.withColumn("stored", sf.max("value").over(before))
        .withColumn("known", sf.coalesce(sf.bool_or(told).over(before), no))
        .withColumn("queried", sf.coalesce(sf.bool_or("queries").over(before), no))
        .where(sf.col("connection_id").isNotNull())
        .select("connection_id", "publisher_id", "epoch", "stored", "known", "queried")
    )
