"""Returned messages and the publishes they came from."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from amqpscope import spec
from amqpscope.pipelines.buckets import CHANNEL, running

_CLASS = (*CHANNEL, "equal")
_REWRITTEN = ("cluster_id",)  # RabbitMQ puts an empty one into what it passes on


def returns(messages: DataFrame) -> DataFrame:
    """The publish of each return: the oldest of its epoch, mandatory and not yet returned, that equals it.

    Equal are exchange, routing key, properties and body. The k-th return of a class of equal messages therefore belongs
    to the k-th mandatory publish of that class.

    Args:
        messages: `messages`.

    Returns:
        The columns of `CHANNEL`, `publish_seq` (of the publish; null before confirm mode) and `reply_code` (of the
        return), one row per matched return.
    """
    messages = messages.where((sf.col("protocol") == "amqp-0-9-1") & ~sf.coalesce("is_partial", sf.lit(False)))
    columns: list[Column | str] = [
        *CHANNEL,
        "frame_no",
        "publish_seq",
        "reply_code",
        equal().alias("equal"),
        sf.lit(1).alias("one"),
    ]
    returned = messages.where(sf.col("kind") == "return")
    published = messages.where((sf.col("kind") == "publish") & sf.col("mandatory"))
    published = published.join(sf.broadcast(returned.select(*CHANNEL).distinct()), [*CHANNEL], "left_semi")
    returned, published = returned.select(*columns), published.select(*columns)
    published = published.join(returned.select(*_CLASS).distinct(), [*_CLASS], "left_semi")
    turn = {"turn": ("sum", "one")}
    first = running(published, _CLASS, "frame_no", turn).select(*_CLASS, "turn", "publish_seq")
    second = running(returned, _CLASS, "frame_no", turn).select(*_CLASS, "turn", "reply_code")
    return first.join(second, [*_CLASS, "turn"]).select(*CHANNEL, "publish_seq", "reply_code")


def equal() -> Column:
    """A digest of what stays the same when a message is passed on: exchange, routing key, properties and body."""
    properties = [name for name in spec.load().property_columns() if name not in _REWRITTEN]
    return sf.md5(sf.to_json(sf.struct("exchange", "routing_key", "body_size", "body_hash", *properties)))
