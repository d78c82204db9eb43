"""What the walks over RabbitMQ streams share: which events are theirs, rows to refer to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.pipelines.model.events import CONNECTIONS, MESSAGES, Events, what
from amqpscope.pipelines.model.speaking import events_of
from amqpscope.pipelines.stream.frames import STREAM_FRAMES

OK = 1
"""Response code of what went well."""
IDS = 257
"""Publisher ids or subscription ids of a connection: they have 8 bits, and larger ones share the last place."""
ASKED = 256
"""Open requests of a connection with correlation ids that differ in their last 8 bits."""

_PUBLISH = what(MESSAGES, "publish")


class Servers:
    """The brokers of the open connection, and of those in the batch."""

    def __init__(self) -> None:
        self._known: dict[int, str | None] = {}
        self.get = self._known.get

    def begin(self, events: Events) -> None:
        """Note those of a batch, which has `server_ip` of connections."""
        at = np.flatnonzero(events.source == CONNECTIONS)
        if len(at):
            rows = events.take(CONNECTIONS, at, ["connection_id", "server_ip"])
            self._known.update(zip(rows["connection_id"].to_pylist(), rows["server_ip"].to_pylist(), strict=True))

    def of(self, connections: Iterable[int]) -> pa.Array:
        """Return the address of the broker of each connection; null where it is not known."""
        return pa.array([self._known.get(identity) for identity in connections], pa.string())

    def end(self, identity: int) -> None:
        """Forget all but that of the open connection."""
        known = {identity: self._known[identity]} if identity in self._known else {}
        self._known.clear()
        self._known.update(known)

    def parts(self) -> list[Any]:
        """Return what `put_back` takes."""
        return [list(each) for each in self._known.items()]

    def put_back(self, known: list[Any]) -> None:
        """Restore what `parts` returned."""
        self._known.update(known)


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
