"""Publisher confirms: each publish in confirm mode and the broker's answer to it."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from amqpscope.pipelines import endings
from amqpscope.pipelines.buckets import CHANNEL, running
from amqpscope.pipelines.holes import earliest, reaching, swallowed, union
from amqpscope.pipelines.returns import returns
from amqpscope.pipelines.schemas import conform


def confirms(
    frames: DataFrame, messages: DataFrame, connections: DataFrame, places: DataFrame | None = None
) -> DataFrame:
    """One row per publish in confirm mode.

    The answer to publish s is the earliest, by frame number, of a single answer for s and
    a `multiple` answer for at least s, behind the publish: the minimum over the answers at or above s, taken along the
    numbers from above, where a `multiple` answer stands at the last number published before it. So do places where
    answers may be lost: behind one a `multiple` answer does not tell whether there was an earlier one.

    Args:
        frames: `amqp091_frames`.
        messages: `messages`.
        connections: `connections`.
        places: what `amqpscope.pipelines.holes.holes` found; None when nothing was lost.

    Returns:
        The table `confirms`.
    """
    if "numbered_by" not in messages.columns:
        messages = messages.withColumn("numbered_by", sf.lit("counted"))
    published = messages.where(
        (sf.col("protocol") == "amqp-0-9-1") & (sf.col("kind") == "publish") & sf.col("publish_seq").isNotNull()
    ).select(
        *CHANNEL,
        sf.col("publish_seq").alias("number"),
        sf.struct(
            "protocol",
            "exchange",
            "routing_key",
            "message_id",
            "body_size",
            "frame_no",
            "capture",
            "packet",
            "ts_ns",
            "numbered_by",
            "mandatory",
            "unfinished",
        ).alias("publish"),
    )
    answer = sf.struct(
        "frame_no", "ts_ns", "capture", "packet", "multiple", (sf.col("method") == "basic.nack").alias("negative")
    )
    answers = frames.where(
        ~sf.col("from_client") & sf.col("method").isin("basic.ack", "basic.nack") & sf.col("delivery_tag").isNotNull()
    ).select(*CHANNEL, "frame_no", sf.col("delivery_tag").alias("number"), "multiple", answer.alias("answer"))
    multiple = sf.coalesce("multiple", sf.lit(False))
    single = answers.where(~multiple).select(*CHANNEL, "number", sf.col("answer").alias("only"))
    sent = published.select(*CHANNEL, "number", "publish.frame_no")
    up_to = reaching(answers.where(multiple), sent).select(*CHANNEL, "number", sf.col("answer").alias("up_to"))
    back = returns(messages).select(
        *CHANNEL, sf.col("publish_seq").alias("number"), sf.struct("reply_code").alias("return")
    )
    aggregates = {"covered": ("min", "up_to")}
    parts = [published, single, up_to, back.where(sf.col("number").isNotNull())]
    if places is not None:
        parts.append(swallowed(sent, places, from_client=False).withColumnRenamed("lost", "lost_up_to"))
        aggregates["lost"] = ("min", "lost_up_to")
    rows = running(
        union(*parts),
        CHANNEL,
        "number",
        aggregates,
        descending=True,
        facts=lambda summary: endings.attach(summary, frames, connections),
    )
    same_number = Window.partitionBy(*CHANNEL, "bucket", "place")
    rows = rows.withColumn("sent", sf.max("publish.frame_no").over(same_number))
    behind = sf.when(sf.col("only.frame_no") > sf.col("sent"), sf.col("only"))
    rows = rows.withColumn("alone", sf.min(behind).over(same_number)).withColumn(
        "return", sf.max("return").over(same_number)
    )
    lost = sf.col("lost") if places is not None else None
    rows = rows.where(sf.col("publish").isNotNull())
    if lost is not None:
        rows = rows.withColumn("covered", earliest("covered", sf.col("covered.frame_no"), lost))
    rows = rows.withColumn("answer", sf.least("covered", "alone"))
    answered = sf.col("answer").isNotNull()
    ended_by, end_ts_ns = endings.unanswered(sf.col("publish"), "server_close", lost)
    returned = sf.col("return").isNotNull()
    if lost is not None:  # so may the return be
        gone = sf.coalesce(lost["frame_no"] <= sf.col("answer.frame_no"), lost.isNotNull())
        unknown = gone & sf.coalesce("publish.mandatory", sf.lit(True))
        returned = sf.when(returned | ~unknown, returned)
    timed = ~sf.coalesce("publish.unfinished", sf.lit(False))
    inferred = sf.col("publish.numbered_by") == "inferred"  # it may be another's answer
    result = rows.select(
        "publish.protocol",
        *CHANNEL,
        sf.col("number").alias("publish_seq"),
        "publish.numbered_by",
        "publish.exchange",
        "publish.routing_key",
        "publish.message_id",
        "publish.body_size",
        sf.col("publish.frame_no").alias("publish_frame_no"),
        sf.col("publish.capture").alias("publish_capture"),
        sf.col("publish.packet").alias("publish_packet"),
        sf.col("publish.ts_ns").alias("publish_ts_ns"),
        sf.col("answer.frame_no").alias("confirm_frame_no"),
        sf.col("answer.capture").alias("confirm_capture"),
        sf.col("answer.packet").alias("confirm_packet"),
        sf.col("answer.ts_ns").alias("confirm_ts_ns"),
        sf.when(~answered, "none").when(sf.col("answer.negative"), "nack").otherwise("ack").alias("outcome"),
        sf.col("answer.multiple").alias("multiple"),
        returned.alias("returned"),
        "return.reply_code",
        sf.when(~answered, ended_by).alias("ended_by"),
        sf.when(~answered, end_ts_ns).alias("end_ts_ns"),
        sf.when(~inferred & timed, sf.try_subtract("answer.ts_ns", "publish.ts_ns")).alias("latency_ns"),
        sf.lit(1).alias("records"),
    )
    return conform(result, "confirms")
