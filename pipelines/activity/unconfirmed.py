"""Publishes outside of confirm mode: nothing answers them, so no other table of pairs has them unless delivered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
import pyarrow.compute as pc

from amqpscope.pipelines.model.events import MESSAGES, Events, what
from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.walk import Needs, Rows, conform

_COPIED = (
    "connection_id", "channel", "channel_epoch", "protocol", "exchange", "routing_key", "message_id", "body_size",
    "frame_no", "capture", "packet", "ts_ns",
)  # fmt: skip
_PUBLISH = what(MESSAGES, "publish")


class Unconfirmed(Remembers):
    """The walk that writes `unconfirmed`."""

    tables = ("unconfirmed",)
    needs: ClassVar[Mapping[int, Needs]] = {MESSAGES: Needs((*_COPIED[3:8], "publish_seq", "cut_by"), ("publish",))}

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; yield a row for each publish without a number."""
        at = np.flatnonzero(events.among((_PUBLISH,)))
        if not len(at):
            return
        rows = events.take(MESSAGES, at, (*_COPIED, "publish_seq", "cut_by"))
        rows = rows.filter(pc.is_null(rows["publish_seq"]))
        if len(rows):
            columns = {name: rows[name] for name in _COPIED} | {"incomplete": pc.is_valid(rows["cut_by"])}
            yield "unconfirmed", conform("unconfirmed", columns, len(rows))
