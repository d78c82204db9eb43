"""Requests of the stream protocol and their answers."""

from __future__ import annotations

from functools import cache

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from amqpscope import spec
from amqpscope.pipelines import streams
from amqpscope.pipelines.buckets import POINT, running
from amqpscope.pipelines.schemas import conform
from amqpscope.pipelines.streams import CHALLENGE, OK, PROTOCOL


@cache
def requests() -> list[str]:
    """Commands that are always answered: those with a correlation id, and tune; credit is answered where it fails."""
    methods = [m for m in spec.load(PROTOCOL).methods if m.class_id == 0 and m.responses]
    return sorted({m.name for m in methods if m.name == "tune" or any(f.name == "correlation_id" for f in m.fields)})


def stream_rpcs(frames: DataFrame, connections: DataFrame, anomalies: DataFrame) -> DataFrame:
    """One row per request that asks for an answer, of either side.

    A close by the other side for any reason but 1 (ok) is an error in answer to the oldest request that was open then.

    Args:
        frames: `stream_frames`.
        connections: `connections`.
        anomalies: the table `anomalies`.

    Returns:
        Rows of the table `rpcs`.
    """
    rows = streams.asked(frames, requests())
    for facts in (streams.endings(frames, connections), streams.holes(frames, anomalies)):
        rows = rows.join(facts, "connection_id", "left")
    for what in ("close", "hole"):
        other = sf.when(sf.col("asked_by_client"), sf.col(f"server_{what}")).otherwise(sf.col(f"client_{what}"))
        rows = rows.withColumn(f"other_{what}", other)
    refused = (
        sf.col("answer").isNull()
        & (sf.col("command") != "close")
        & (sf.col("other_close.frame_no") > sf.col("frame_no"))
        & (sf.col("other_close.code") != OK)
    )
    rows = rows.withColumn("refused_at", sf.when(refused, sf.col("frame_no")))
    side = ("connection_id", "asked_by_client")
    rows = running(rows, side, "frame_no", {"older": ("min", "refused_at")}, before=True)
    rows = rows.withColumn("refused", sf.col("refused_at").isNotNull() & sf.col("older").isNull())
    point = sf.struct(*(sf.col(f"other_close.{name}") for name in POINT), sf.col("other_close.code"))
    told = sf.struct(*(sf.col(f"answer.{name}") for name in POINT), sf.col("answer.response_code").alias("code"))
    rows = rows.withColumn("end", sf.when(sf.col("refused"), point).when(sf.col("answer").isNotNull(), told))
    open_still = sf.col("end").isNull()
    failed = sf.col("refused") | ~sf.coalesce(sf.col("end.code").isin(OK, CHALLENGE), sf.lit(True))
    response = sf.when(sf.col("refused"), "close").otherwise(sf.concat("command", sf.lit("-response")))
    ended_by, end_ts_ns = streams.unanswered(sf.col("frame_no"), sf.col("other_close"), sf.col("other_hole"))
    result = rows.select(
        "connection_id",
        sf.col("asked_by_client").alias("from_client"),
        sf.col("command").alias("request"),
        sf.when(~open_still, response).alias("response"),
        *(sf.col(name).alias(f"request_{name}") for name in POINT),
        *(sf.col(f"end.{name}").alias(f"response_{name}") for name in POINT),
        sf.when(open_still, "none").when(failed, "error").otherwise("ok").alias("outcome"),
        sf.when(failed, sf.col("end.code")).alias("reply_code"),
        sf.when(open_still, ended_by).alias("ended_by"),
        sf.when(open_still, end_ts_ns).alias("end_ts_ns"),
        sf.try_subtract("end.ts_ns", "ts_ns").alias("latency_ns"),
    )
    return conform(result, "rpcs")
