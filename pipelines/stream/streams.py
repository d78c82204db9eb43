"""What the walks over RabbitMQ streams share: which events are theirs, rows to refer to."""

from __future__ import annotations

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.pipelines.model.events import MESSAGES, Events, what
from amqpscope.pipelines.model.speaking import events_of
from amqpscope.pipelines.stream.frames import STREAM_FRAMES

OK = 1
"""Response code of what went well."""
IDS = 257
"""Publisher ids or subscription ids of a connection: they have 8 bits, and larger ones share the last place."""
ASKED = 256
"""Open requests of a connection with correlation ids that differ in their last 8 bits."""

_PUBLISH = what(MESSAGES, "publish")


def of_streams(events: Events, conn: Ints, *, publishes: bool = False) -> Ints:
    """Return the positions of the events that concern streams (`speaking.events_of`).

    Args:
        events: the batch.
        conn: the connection that the walk has open (`connection.CONN`).
        publishes: whether messages that were published to streams are wanted.
    """
    messages = None
    if publishes and MESSAGES in events.tables and len(events.tables[MESSAGES]):
        ids = events.tables[MESSAGES].column("publisher_id")
        if ids.null_count < len(ids):
            messages = (events.ints({MESSAGES: "publisher_id"}) >= 0) & (events.what == _PUBLISH)
            messages &= events.ints({MESSAGES: "publish_seq"}) >= 0
    return events_of(events, conn, STREAM_FRAMES, messages)
