"""Deliveries and what became of them: acknowledged, refused, voided, or nothing."""

from __future__ import annotations

from functools import partial

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from amqpscope.pipelines import endings
from amqpscope.pipelines.buckets import CHANNEL, kept, once, running
from amqpscope.pipelines.consumers import with_queue
from amqpscope.pipelines.holes import earliest, first_behind, reaching, swallowed
from amqpscope.pipelines.pairs import pairs
from amqpscope.pipelines.schemas import conform

_union = partial(DataFrame.unionByName, allowMissingColumns=True)

_EFFECT = (
    # When it took effect comes first, then when it was said: the minimum of these structs is what counts.
    "struct<frame_no:bigint,said:bigint,ts_ns:bigint,capture:string,packet:bigint,"
    "outcome:string,multiple:boolean,requeue:boolean>"
)


def settlements(
    frames: DataFrame, messages: DataFrame, connections: DataFrame, places: DataFrame | None = None
) -> DataFrame:
    """One row per delivery, pushed or got.

    What settles delivery s is the earliest of a single acknowledgement of s, of a `multiple` one that reaches s, and of
    a basic.recover behind it, which voids all that is outstanding when it is done (recover-ok). In a transaction an
    acknowledgement takes effect with tx.commit-ok, and never after tx.rollback. What the client says behind the
    server's close does nothing. Behind a place where acknowledgements may be lost, one of many does not tell whether
    there was an earlier one.

    Args:
        frames: `amqp091_frames`.
        messages: `messages`.
        connections: `connections`.
        places: what `amqpscope.pipelines.holes.holes` found; None when nothing was lost.

    Returns:
        The table `settlements`.
    """
    delivered = messages.where(
        (sf.col("protocol") == "amqp-0-9-1")
        & sf.col("kind").isin("deliver", "get")
        & sf.col("delivery_tag").isNotNull()
    )
    acts = _acts(frames, delivered, places)
    names = ("frame_no", "first_frame_no", "ts_ns", "capture", "packet", "kind", "consumer_tag", "queue", "exchange")
    deliveries = with_queue(delivered, frames, places).select(
        *CHANNEL,
        sf.col("delivery_tag").alias("number"),
        sf.struct(*names, "routing_key", "redelivered", "body_size", "no_ack", "protocol", "unfinished").alias(
            "delivery"
        ),
    )
    aggregates = {"covered": ("min", "up_to"), "dropped": ("min", "dropped_up_to")}
    if places is not None:
        deliveries, acts = kept(deliveries), kept(acts)
        sent = deliveries.select(*CHANNEL, "number", "delivery.frame_no")
        acts = _union(acts, swallowed(sent, places, from_client=True).withColumnRenamed("lost", "lost_up_to"))
        aggregates["lost"] = ("min", "lost_up_to")
    rows = running(
        _union(deliveries, acts),
        CHANNEL,
        "number",
        aggregates,
        descending=True,
        facts=lambda summary: endings.attach(summary, frames, connections),
    )
    same_tag = Window.partitionBy(*CHANNEL, "bucket", "place")
    rows = rows.withColumn("sent", sf.max("delivery.first_frame_no").over(same_tag))
    only, dropped_only = (
        sf.when(sf.col(f"{name}.said") > sf.col("sent"), sf.col(name)) for name in ("only", "dropped_only")
    )
    rows = (
        rows.withColumn("alone", sf.min(only).over(same_tag))
        .withColumn("dropped_alone", sf.min(dropped_only).over(same_tag))
        .where(sf.col("delivery").isNotNull())
    )
    lost = sf.col("lost") if places is not None else None
    if lost is not None:
        rows = rows.withColumns({name: earliest(name, sf.col(f"{name}.said"), lost) for name in ("covered", "dropped")})
    rows = rows.withColumn("effect", sf.least("covered", "alone")).withColumn(
        "dropped", sf.least("dropped", "dropped_alone")
    )
    return _result(rows, lost)


def _acts(frames: DataFrame, delivered: DataFrame, places: DataFrame | None) -> DataFrame:
    """What was said of tags: `number`, and an effect in one of `up_to`, `only`, `dropped_up_to`, `dropped_only`."""
    answers = frames.where(
        sf.col("from_client") & sf.col("method").isin("basic.ack", "basic.nack", "basic.reject")
    ).select(
        *CHANNEL,
        "frame_no",
        sf.col("delivery_tag").alias("number"),
        sf.coalesce("multiple", sf.lit(False)).alias("all"),
        _effect(sf.regexp_replace("method", "^basic\\.", "")).alias("effect"),
    )
    recovered = frames.where(sf.col("method").isin("basic.recover-async", "basic.recover-ok"))
    voids = _voiding(recovered)
    if places is not None:  # its answer may be lost
        asked = pairs(frames, ("basic.recover",), places).where(sf.col("answer").isNull())
        open_still = asked.select("connection_id", sf.col("asked.frame_no").alias("frame_no"))
        voids = voids.unionByName(_voiding(frames.join(open_still, ["connection_id", "frame_no"], "left_semi")))
    tagged = _heard(answers.where(sf.col("number").isNotNull()), frames)
    said = once(_committed(tagged.unionByName(voids), frames, places))
    sent = delivered.select(
        *CHANNEL, sf.col("first_frame_no").alias("frame_no"), sf.col("delivery_tag").alias("number")
    )
    bulk = said.where("all").withColumn("number", sf.nullif("number", sf.lit(0)))
    said = said.where(~sf.col("all")).unionByName(reaching(bulk, sent))
    return said.select(
        *CHANNEL,
        "number",
        *(
            sf.when(sf.col("all") == all_, sf.col(column)).alias(name)
            for name, all_, column in (
                ("up_to", True, "effect"),
                ("only", False, "effect"),
                ("dropped_up_to", True, "dropped"),
                ("dropped_only", False, "dropped"),
            )
        ),
    )


def _voiding(recovers: DataFrame) -> DataFrame:
    return recovers.select(
        *CHANNEL,
        "frame_no",
        sf.lit(0).cast("bigint").alias("number"),
        sf.lit(True).alias("all"),
        _effect(sf.lit("recover")).alias("effect"),
    )


def _heard(answers: DataFrame, frames: DataFrame) -> DataFrame:
    """Without those sent behind a close of the server. Such closes are few, and are sent to all tasks."""
    closes = frames.where(~sf.col("from_client"))
    first = sf.min("frame_no")
    channels = closes.where(sf.col("method") == "channel.close").groupBy(*CHANNEL).agg(first.alias("channel_closed"))
    whole = closes.where(sf.col("method") == "connection.close").groupBy("connection_id").agg(first.alias("closed"))
    heard = sf.least("channel_closed", "closed").isNull() | (sf.col("frame_no") < sf.least("channel_closed", "closed"))
    joined = answers.join(sf.broadcast(channels), [*CHANNEL], "left").join(sf.broadcast(whole), "connection_id", "left")
    return joined.where(heard).drop("channel_closed", "closed")


def _effect(outcome: Column) -> Column:
    names = ("ts_ns", "capture", "packet")
    multiple = sf.coalesce("multiple", sf.lit(False)).alias("multiple")
    said = (sf.col("frame_no"), sf.col("frame_no").alias("said"))
    return sf.struct(*said, *names, outcome.alias("outcome"), multiple, "requeue").cast(_EFFECT)


def _committed(said: DataFrame, frames: DataFrame, places: DataFrame | None) -> DataFrame:
    """Moves effects in transactions to their tx.commit-ok; adds `dropped`, the effect taken back by a rollback."""
    first = (
        frames.where(sf.col("method").startswith("tx.") & sf.col("from_client"))
        .groupBy(*CHANNEL)
        .agg(
            sf.min("frame_no").alias("first"),
            sf.min(sf.when(sf.col("method") == "tx.select", sf.col("frame_no"))).alias("selected"),
        )
    )
    # Where tx.select may have been missed, all in front of the first commit is taken for a transaction.
    missed = sf.col("channel_epoch") == 0
    if places is not None:
        lost = places.where("from_client").groupBy("connection_id").agg(sf.min("frame_no").alias("lost"))
        first = first.join(sf.broadcast(lost), "connection_id", "left")
        missed = missed | sf.coalesce(sf.col("lost") <= sf.col("first"), sf.lit(False))
    missed = missed & sf.coalesce(sf.col("first") < sf.col("selected"), sf.lit(True))
    begun = first.select(*CHANNEL, sf.when(missed, -1).otherwise(sf.col("selected")).alias("begun"))
    said = said.join(sf.broadcast(begun), [*CHANNEL], "left")
    inside = (sf.col("begun") < sf.col("frame_no")) & (sf.col("effect.outcome") != "recover")
    said = once(said.withColumn("inside", sf.coalesce(inside, sf.lit(False))).drop("begun"))
    ends = pairs(frames, ("tx.commit", "tx.rollback"), places).select(
        *CHANNEL,
        sf.col("asked.frame_no").alias("frame_no"),
        sf.struct(sf.col("asked.frame_no").alias("at"), "request", "answer").alias("end"),
    )
    rows = running(
        _union(said.where("inside"), ends), CHANNEL, "frame_no", {"ending": ("min", "end")}, descending=True
    ).where("inside")
    answer = sf.col("ending.answer")
    if places is not None:
        rows = first_behind(kept(rows.drop("place")), places, "frame_no", sf.lit(True))
        answer = earliest("ending.answer", sf.col("ending.at"), sf.col("lost"))
    ended = sf.struct(
        answer["frame_no"].alias("frame_no"),
        sf.col("effect.said").alias("said"),
        *(answer[name].alias(name) for name in ("ts_ns", "capture", "packet")),
        *(sf.col(f"effect.{name}").alias(name) for name in ("outcome", "multiple", "requeue")),
    ).cast(_EFFECT)
    happened = answer.isNotNull()
    committed = sf.col("ending.request") == "tx.commit"
    columns = (*CHANNEL, "frame_no", "number", "all")
    nothing = sf.lit(None).cast(_EFFECT)
    outside = said.where(~sf.col("inside")).select(*columns, "effect", nothing.alias("dropped"))
    return outside.unionByName(
        rows.select(
            *columns,
            sf.when(happened & committed, ended).alias("effect"),
            sf.when(happened & ~committed, ended).alias("dropped"),
        )
    )


def _result(rows: DataFrame, lost: Column | None) -> DataFrame:
    voided = sf.col("effect.outcome") == "recover"
    no_ack = sf.col("delivery.no_ack")
    rows = (
        rows.withColumn("auto", sf.coalesce(no_ack, sf.lit(False)))
        .withColumn("settled", sf.col("effect").isNotNull() & ~sf.coalesce(voided, sf.lit(False)) & ~sf.col("auto"))
        .withColumn("taken_back", sf.col("dropped").isNotNull() & sf.col("effect").isNull())
        .withColumn("unknown", no_ack.isNull() & ~sf.col("settled") & ~sf.col("taken_back"))
        .withColumn("nobody", ~sf.col("auto") & ~sf.col("settled"))
    )
    outcome = (
        sf.when(sf.col("auto"), "auto")
        .when(sf.col("settled"), sf.col("effect.outcome"))
        .when(sf.col("unknown"), "unknown")
        .otherwise("none")
    )
    by, end_ts_ns = endings.unanswered(sf.col("delivery"), "client_close", lost)
    by = sf.when(voided, "recover").when(sf.col("taken_back"), "rollback").otherwise(by)
    end_ts_ns = sf.coalesce("effect.ts_ns", "dropped.ts_ns", end_ts_ns)
    names = ("protocol", "kind", "consumer_tag", "queue", "exchange", "routing_key", "redelivered", "body_size")
    ends = ("ts_ns", "frame_no", "capture", "packet")
    timed = ~sf.coalesce("delivery.unfinished", sf.lit(False))
    result = rows.select(
        *CHANNEL,
        sf.col("number").alias("delivery_tag"),
        *(sf.col(f"delivery.{name}").alias(name) for name in names),
        *(sf.col(f"delivery.{name}").alias(f"deliver_{name}") for name in ends),
        *(sf.when(sf.col("settled"), sf.col(f"effect.{name}")).alias(f"settle_{name}") for name in ends),
        outcome.alias("outcome"),
        sf.when(sf.col("settled"), sf.col("effect.multiple")).alias("multiple"),
        sf.when(sf.col("settled"), sf.col("effect.requeue")).alias("requeue"),
        sf.when(sf.col("nobody"), by).alias("ended_by"),
        sf.when(sf.col("nobody"), end_ts_ns).alias("end_ts_ns"),
        sf.when(sf.col("settled") & timed, sf.try_subtract("effect.ts_ns", "delivery.ts_ns")).alias("latency_ns"),
    )
    return conform(result, "settlements")
