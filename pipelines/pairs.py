"""Synchronous requests and their answers, first in, first out."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from amqpscope import spec
from amqpscope.pipelines.buckets import CHANNEL, bucket, kept, once, running
from amqpscope.pipelines.holes import HOLE, union

QUEUE = (*CHANNEL, "request", "asked_by_client")
"""Requests of one kind by one side on one channel: their answers come in their order."""

_END = ("frame_no", "ts_ns", "capture", "packet", "method", "queue", "consumer_tag")


def requests() -> dict[str, tuple[str, ...]]:
    """Methods that ask for an answer, with the methods that answer them."""
    return {method.full_name: method.responses for method in spec.load().methods if method.responses}


def _may_not_wait() -> list[str]:
    return [method.full_name for method in spec.load().methods if any(f.name == "no_wait" for f in method.fields)]


def pairs(frames: DataFrame, only: Collection[str] | None = None, places: DataFrame | None = None) -> DataFrame:
    """One row per request that asks for an answer.

    Requests and answers form a queue: an answer takes the oldest open request, and one that finds none open (its
    request was before the capture) takes none. That is counting: with +1 for a request and -1 for an answer, each new
    low below zero of the running sum is an answer without a request. Sums and lows go over buckets of frame numbers.
    Where requests or answers may be lost, counting tells nothing; see `_certain`.

    Args:
        frames: `amqp091_frames`.
        only: requests to look for; all by default.
        places: what `amqpscope.pipelines.holes.holes` found; None when nothing was lost.

    Returns:
        The columns of `QUEUE`, and `asked` and `answer` (null when there is none), structs of frame_no, ts_ns, capture,
        packet, method, queue and consumer_tag; and `doubt` (null for none), the place for which it is not known which
        answer is the request's, a struct of frame_no, ts_ns and since.
    """
    wanted = {request: responses for request, responses in requests().items() if only is None or request in only}
    answers = [(response, request) for request, responses in wanted.items() for response in responses]
    request_of = sf.create_map(*(sf.lit(name) for pair in answers for name in pair))
    is_answer = sf.col("method").isin([response for response, _ in answers])
    unknown = sf.col("no_wait").isNull() & sf.col("is_partial") & sf.col("method").isin(_may_not_wait())
    open_request = sf.col("method").isin(list(wanted)) & ~sf.coalesce("no_wait", unknown, sf.lit(False))
    rows = frames.where(is_answer | open_request).select(
        *CHANNEL,
        sf.coalesce(request_of[sf.col("method")], "method").alias("request"),
        (sf.col("from_client") != is_answer).alias("asked_by_client"),
        sf.struct(*_END).alias("end"),
        "frame_no",
        bucket("frame_no").alias("bucket"),
        is_answer.cast("int").alias("answers"),
        (~is_answer).cast("int").alias("asks"),
    )
    rows = once(_counted(once(rows)))
    if places is None:
        return _by_turn(rows).withColumn("doubt", sf.lit(None).cast(HOLE))
    lossy = sf.broadcast(places.select("connection_id").distinct())
    whole = _by_turn(rows.join(lossy, "connection_id", "left_anti")).withColumn("doubt", sf.lit(None).cast(HOLE))
    rows = kept(rows.join(lossy, "connection_id", "left_semi"))
    return whole.unionByName(kept(_certain(rows, places.where("not numbered"))))


def _by_turn(rows: DataFrame) -> DataFrame:
    asked = rows.where("asks = 1").select(*QUEUE, sf.col("end").alias("asked"), sf.col("asks_so_far").alias("turn"))
    answer = rows.where("answers = 1 and surplus = surplus_before").select(
        *QUEUE, sf.col("end").alias("answer"), (sf.col("answers_so_far") - sf.col("surplus")).alias("turn")
    )
    return asked.join(answer, [*QUEUE, "turn"], "left").drop("turn")


def _certain(rows: DataFrame, places: DataFrame) -> DataFrame:
    """Pairs where requests or answers may be lost.

    Where a client asks one at a time, the answer is what comes next, unless the next request comes first. It may be the
    answer to another request only where both that and the own answer are lost. Where requests are sent before those in
    front of them are answered, what is lost shifts all that follows: from there on nothing is known.

    Args:
        rows: requests and answers, counted.
        places: where they may be lost.

    Returns:
        What `pairs` returns.
    """
    rows = kept(_with_losses(rows, places))
    asks = sf.col("asks") == 1
    point = [sf.col(f"end.{name}") for name in _END]
    losses = ("requests_begun", "requests_ended", "answers_begun", "answers_ended", "latest")
    rows = running(
        rows.withColumn("ask", sf.when(asks, sf.struct("frame_no", "answers_begun"))).withColumn(
            "reply", sf.when(~asks, sf.struct(*point, *losses))
        ),
        QUEUE,
        "frame_no",
        {"next_ask": ("min", "ask"), "next_reply": ("min", "reply")},
        descending=True,
        before=True,
    ).drop("ask", "reply", "place")
    rows = once(kept(rows).withColumn("end", sf.struct(*point, *losses, "next_ask", "next_reply")))
    overtaken = sf.coalesce(sf.col("next_ask.frame_no") < sf.col("next_reply.frame_no"), sf.col("next_ask").isNotNull())
    nothing_lost = sf.col("next_ask.answers_begun") == sf.col("answers_ended")
    queues = rows.groupBy(*QUEUE).agg(
        sf.min(sf.struct("frame_no", "answers_ended")).alias("first"),
        sf.bool_or(asks & overtaken & nothing_lost).alias("pipelined"),
    )
    pipelined = queues.where("pipelined").select(*QUEUE, sf.col("first.answers_ended").alias("lost_before"))
    found = _by_turn(rows).join(sf.broadcast(pipelined), [*QUEUE], "left")
    asked, answer, following = sf.col("asked"), sf.col("answer"), sf.col("asked.next_reply")
    in_turn = sf.col("lost_before").isNotNull()

    def shifted(row: Column) -> Column:
        return (row["requests_begun"] > 0) | (row["answers_ended"] > sf.col("lost_before"))

    taken = following.isNotNull() & sf.coalesce(following["frame_no"] < asked["next_ask"]["frame_no"], sf.lit(True))
    of_another = (following["answers_ended"] > asked["answers_ended"]) & (
        following["requests_begun"] > asked["requests_ended"]
    )
    own = sf.when(in_turn, sf.when(~shifted(answer), _only(answer))).otherwise(
        sf.when(taken & ~of_another, _only(following))
    )
    counted = sf.coalesce(answer, asked)
    doubt = sf.when(in_turn, sf.when(shifted(counted), counted["latest"])).otherwise(
        sf.when(taken & of_another, following["latest"])
    )
    since_asked = sf.struct(doubt["frame_no"], sf.greatest(doubt["ts_ns"], asked["ts_ns"]), doubt["since"])
    doubt = sf.when(doubt.isNotNull(), since_asked.cast(HOLE))
    return found.select(*QUEUE, _only(asked).alias("asked"), own.alias("answer"), doubt.alias("doubt"))


def _only(end: Column) -> Column:
    return sf.when(end.isNotNull(), sf.struct(*(end[name].alias(name) for name in _END)))


def _with_losses(rows: DataFrame, places: DataFrame) -> DataFrame:
    """Adds how many places there are up to each row where requests, and answers, may be lost: begun and ended.

    Returns:
        The rows with `requests_begun`, `requests_ended`, `answers_begun`, `answers_ended`, and `latest`, the last place
        that has begun: a struct of frame_no, ts_ns and since.
    """
    sides = {"client": sf.col("from_client"), "server": ~sf.col("from_client")}
    begins, ends = (
        places.select(
            "connection_id",
            position.alias("frame_no"),
            *(sf.when(side, 1).cast("bigint").alias(f"{name}_{what}") for name, side in sides.items()),
            *([sf.struct("frame_no", "ts_ns", "since").alias("latest")] if what == "begun" else []),
        )
        for what, position in (("begun", sf.col("since") + 1), ("ended", sf.col("frame_no")))
    )
    sums = [f"{name}_{what}" for name in sides for what in ("begun", "ended")]
    result = running(
        union(rows.drop("bucket"), begins, ends),
        ("connection_id",),
        "frame_no",
        {name: ("sum", name) for name in sums} | {"latest": ("max", "latest")},
    ).where(sf.col("asks").isNotNull())
    mine = sf.col("asked_by_client")
    for what in ("begun", "ended"):
        client, server = sf.col(f"client_{what}"), sf.col(f"server_{what}")
        result = result.withColumn(f"requests_{what}", sf.when(mine, client).otherwise(server))
        result = result.withColumn(f"answers_{what}", sf.when(mine, server).otherwise(client))
    return result.drop(*sums, "place")


def _counted(rows: DataFrame) -> DataFrame:
    """Adds asks_so_far, answers_so_far, and surplus: answers without a request, up to this row and up to before it."""
    by = [*QUEUE, "bucket"]
    inside = Window.partitionBy(*by).orderBy("frame_no")
    here = inside.rowsBetween(Window.unboundedPreceding, 0)
    rows = (
        rows.withColumn("asks_here", sf.sum("asks").over(here))
        .withColumn("answers_here", sf.sum("answers").over(here))
        .withColumn("level", sf.col("asks_here") - sf.col("answers_here"))
        .withColumn("low", sf.min("level").over(here))
        .withColumn("low_before", sf.min("level").over(inside.rowsBetween(Window.unboundedPreceding, -1)))
    )
    earlier = Window.partitionBy(*QUEUE).orderBy("bucket").rowsBetween(Window.unboundedPreceding, -1)
    zero = sf.lit(0)
    summary = (
        rows.groupBy(*by)
        .agg(sf.sum("asks").alias("asks"), sf.sum("answers").alias("answers"), sf.min("level").alias("lowest"))
        .withColumn("asks_base", sf.coalesce(sf.sum("asks").over(earlier), zero))
        .withColumn("answers_base", sf.coalesce(sf.sum("answers").over(earlier), zero))
        .withColumn("base", sf.col("asks_base") - sf.col("answers_base"))
        .withColumn("low_base", sf.least(zero, sf.min(sf.col("base") + sf.col("lowest")).over(earlier)))
        .select(*by, "asks_base", "answers_base", "base", "low_base")
    )
    return (
        rows.join(summary, by)
        .withColumn("asks_so_far", sf.col("asks_base") + sf.col("asks_here"))
        .withColumn("answers_so_far", sf.col("answers_base") + sf.col("answers_here"))
        .withColumn("surplus", -sf.least("low_base", sf.col("base") + sf.col("low")))
        .withColumn("surplus_before", -sf.least("low_base", sf.col("base") + sf.col("low_before")))
    )
