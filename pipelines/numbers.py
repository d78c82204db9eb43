"""Numbers of publishes behind places where others may have been missed, as the confirms tell them.

Of a channel epoch let a publish be the k-th seen, and k + ahead its number. `ahead` changes only where publishes
may have been missed, and only grows. Two things tell what it is behind such a place:

- No confirm comes before its publish: a confirm of number t, before which k publishes were seen to begin, says that
  `ahead` is at least t - k. The largest of these bounds, from there on to the next such place, is the number itself if
  at any one time the newest publish was confirmed. It is too small where a client always has some under way.
- Where the client sent nothing for `QUIET_NS` after the confirm that the bound comes from, and no other confirm came,
  the newest publish was confirmed: a broker does not take that long. When it is reached by the confirm of another
  publish, too, for a broker may stall once, the bound is proven. So it is where it agrees with the number that the
  client itself puts into a header.

What comes first is judged by the time of a publish's first octet, not by the order of frames alone: what a client sends
behind a hole is read late, when it is certain that the hole will not be filled, and answers are read before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from amqpscope.pipelines import endings
from amqpscope.pipelines.buckets import BITS, CHANNEL, bucket, kept, once, running, spread
from amqpscope.pipelines.holes import union

QUIET_NS = 10_000_000_000
"""No confirm takes as long as this while others come."""

COUNTER = "$['x-dotnet-pub-seq-no']"
"""The header with the number of the publish, as a JSON path: RabbitMQ's .NET client from 7.0 on. Other headers with a
number that grows are applications' own."""

_NEVER = 1 << 62
_TIME_BITS = 32


def numbered(
    messages: DataFrame, frames: DataFrame, connections: DataFrame, places: DataFrame | None = None
) -> DataFrame:
    """Messages with the numbers that confirms tell.

    Args:
        messages: `messages`.
        frames: `amqp091_frames`.
        connections: `connections`.
        places: what `amqpscope.pipelines.holes.holes` found; None when nothing was lost.

    Returns:
        The messages, `publish_seq` filled in where it can be told, and `numbered_by`: `counted`, `proven`, `inferred`,
        or null where there is no number.
    """
    epochs = once(messages.where("publish_seq_unsure").select(*CHANNEL).distinct())
    rows = _placed(_rows(epochs, messages, frames, connections), places)
    facts = _segments(rows)
    rows = rows.where("publish_seq_unsure").withColumn("bucket", bucket("turn"))
    keys = [*CHANNEL, "segment"]
    # What was read late has the time at which that was, not its own.
    late = sf.coalesce(sf.col("begun_ns") < sf.col("segment_ts_ns"), sf.lit(False))
    told = rows.join(spread(facts, rows, keys, "turn"), [*keys, "bucket"]).select(
        "connection_id",
        "frame_no",
        sf.try_add("turn", "ahead").alias("told"),
        sf.when(late, "inferred").otherwise(sf.col("by")).alias("by"),
    )
    counted = sf.when(sf.col("publish_seq").isNotNull(), "counted")
    return once(
        messages.join(told.where("told > 0"), ["connection_id", "frame_no"], "left")
        .withColumns({"numbered_by": sf.coalesce("by", counted), "publish_seq": sf.coalesce("told", "publish_seq")})
        .drop("told", "by")
    )


def _rows(epochs: DataFrame, messages: DataFrame, frames: DataFrame, connections: DataFrame) -> DataFrame:
    """Publishes, confirms and the end of each of these epochs."""
    published = messages.where((sf.col("protocol") == "amqp-0-9-1") & (sf.col("kind") == "publish"))
    said = sf.get_json_object("headers", COUNTER).try_cast("bigint")
    confirms = frames.where(
        ~sf.col("from_client") & sf.col("method").isin("basic.ack", "basic.nack") & (sf.col("delivery_tag") > 0)
    )
    ends = endings.attach(epochs, frames, connections)
    return union(
        published.join(epochs, [*CHANNEL], "left_semi").select(
            *CHANNEL, "frame_no", "ts_ns", sf.col("first_ts_ns").alias("begun_ns"), "publish_seq", "publish_seq_unsure",
            said.alias("said"), sf.lit(1).cast("bigint").alias("one"),
        ),
        confirms.join(epochs, [*CHANNEL], "left_semi").select(
            *CHANNEL, "frame_no", "ts_ns", sf.col("delivery_tag").alias("tag")
        ),
        ends.select(
            *CHANNEL, sf.coalesce("client_close.frame_no", sf.lit(_NEVER)).alias("frame_no"),
            sf.col("end.ts_ns").alias("end_ns"),
        ),
    )  # fmt: skip


def _placed(rows: DataFrame, places: DataFrame | None) -> DataFrame:
    """Adds where each row stands.

    `turn`: of publishes the how-manieth they are; of confirms and ends that of the publish that follows.
    `segment`: the last place before that publish where others may have been missed (number of the frame behind it, -1
    for none), and `segment_ts_ns`, when that was certain.
    `since`: the same for the row itself, in the order of frames; `lost`: how many places before where answers may be.
    """
    confirm = sf.col("tag").isNotNull()
    hole = sf.struct("frame_no", "ts_ns")
    if places is None:
        rows = rows.withColumn("hole", sf.lit(None).cast("struct<frame_no:bigint,ts_ns:bigint>"))
        rows = rows.withColumn("lost", sf.lit(0).cast("bigint"))
    else:
        points = places.where(~sf.col("from_client") | ~sf.col("numbered")).select(
            "connection_id", "frame_no", sf.when(sf.col("from_client"), hole).alias("point"),
            sf.when(~sf.col("from_client"), 1).cast("bigint").alias("gone"),
        )  # fmt: skip
        points = points.join(rows.select("connection_id").distinct(), "connection_id", "left_semi")
        rows = _running(
            union(rows, points), ("connection_id",), "frame_no", {"hole": ("max", "point"), "lost": ("sum", "gone")}
        ).where(sf.col("channel").isNotNull()).drop("point", "gone")  # fmt: skip
    rows = _running(rows, CHANNEL, "frame_no", {"seen": ("sum", "one"), "until_ns": ("max", "ts_ns")})
    rows = rows.withColumn("begun", sf.when(sf.col("begun_ns").isNotNull(), sf.col("seen"))).withColumn(
        "when", sf.coalesce("begun_ns", "until_ns", sf.lit(_NEVER))
    )
    rows = _running(rows, CHANNEL, "when", {"sent": ("max", "begun")}, bits=_TIME_BITS).drop("when")
    turn = sf.when(confirm, sf.coalesce("sent", sf.lit(0)) + 1).when(sf.col("begun").isNull(), sf.col("seen") + 1)
    rows = rows.withColumn("turn", sf.coalesce(turn, "begun")).withColumn("own", sf.when(~confirm, sf.col("hole")))
    rows = _running(rows.drop("sent", "begun", "seen"), CHANNEL, "turn", {"segment_hole": ("max", "own")})
    return once(
        kept(
            rows.withColumn("segment", sf.coalesce("segment_hole.frame_no", sf.lit(-1)))
            .withColumn("segment_ts_ns", sf.col("segment_hole.ts_ns"))
            .withColumn("since", sf.coalesce("hole.frame_no", sf.lit(-1)))
            .drop("segment_hole", "hole", "own")
        )
    )


def _running(
    rows: DataFrame, keys: Sequence[str], position: str, columns: Mapping[str, tuple[str, str]], bits: int = BITS
) -> DataFrame:
    return running(kept(rows), keys, position, columns, bits=bits).drop("bucket", "place")


def _segments(rows: DataFrame) -> DataFrame:
    """The columns of `CHANNEL`, `segment`, `ahead`, and `by`, for those of which the confirms tell anything."""

    def of_confirms(column: str) -> Column:
        return sf.max(sf.when(sf.col("tag").isNotNull(), sf.col(column)))

    turns = rows.groupBy(*CHANNEL, "segment", "turn").agg(
        sf.max("tag").alias("tag"),
        of_confirms("until_ns").alias("answered_ns"),
        of_confirms("since").alias("since"),
        of_confirms("lost").alias("lost_before"),
        sf.max("lost").alias("lost"),
        sf.max("one").alias("followed"),
        sf.min(sf.coalesce("begun_ns", "end_ns")).alias("next_ns"),
        sf.max(sf.try_subtract("publish_seq", "turn")).alias("counted"),
        sf.max(sf.try_subtract("said", "turn")).alias("said"),
        sf.max(sf.when(sf.col("publish_seq_unsure"), sf.col("turn"))).alias("unnumbered"),
    )
    bound = sf.try_subtract("tag", sf.col("turn") - 1)
    pause = sf.try_subtract("next_ns", "answered_ns")
    quiet = (sf.col("since") == sf.col("segment")) & (pause >= QUIET_NS)
    segments = turns.groupBy(*CHANNEL, "segment").agg(
        sf.max("tag").alias("tag"),
        sf.max(bound).alias("bound"),
        sf.max(sf.struct(bound.alias("bound"), "turn")).alias("last_reached"),
        sf.max(sf.struct(bound.alias("bound"), (-sf.col("turn")).alias("turn"))).alias("first_reached"),
        sf.max(sf.when(sf.col("followed").isNotNull(), bound)).alias("followed"),
        sf.max(sf.when(quiet, sf.struct("lost_before", bound.alias("bound")))).alias("quiet"),
        sf.max("lost").alias("lost"),
        sf.max("counted").alias("counted"),
        sf.when(sf.min("said") == sf.max("said"), sf.max("said")).alias("said"),
        sf.min("unnumbered").alias("first"),
    )
    of_channel = Window.partitionBy(*CHANNEL).orderBy("segment")  # a row for each hole
    whole = of_channel.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    no, yes = sf.lit(False), sf.lit(True)

    def allowed(column: str) -> Column:
        return sf.when(sf.coalesce(sf.col(column) >= sf.col("followed"), yes), sf.col(column))

    segments = segments.withColumns({"counted": allowed("counted"), "said": allowed("said")}).withColumns(
        {
            "lost": sf.max("lost").over(whole),
            "ahead": sf.max(sf.coalesce("counted", "said", "bound")).over(of_channel),
        }
    )
    ahead = sf.col("ahead")
    counted = sf.coalesce((sf.col("counted") == ahead) & ~sf.coalesce(sf.col("bound") > ahead, no), no)
    # Behind the last publish seen may be others that were not, which nothing that follows tells.
    followed = sf.coalesce(sf.col("followed") == ahead, no)
    again = sf.col("last_reached.turn") != -sf.col("first_reached.turn")
    all_seen = sf.col("quiet.lost_before") == sf.col("lost")
    at_rest = sf.coalesce((sf.col("quiet.bound") == ahead) & all_seen & again, no)
    agreed = sf.coalesce((sf.col("said") == ahead) & (followed | (sf.col("bound") == ahead)), no)
    told = sf.coalesce(sf.try_subtract("tag", "ahead") >= sf.col("first"), no) | sf.col("counted").isNotNull()
    by = sf.when(counted, "counted").when((at_rest & followed) | agreed, "proven").otherwise("inferred")
    return segments.where(sf.col("first").isNotNull() & told).select(*CHANNEL, "segment", "ahead", by.alias("by"))
