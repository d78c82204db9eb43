"""Which queue the deliveries of AMQP 0-10 come from: by the subscription of their destination."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amqpscope.pipelines.across.consumed import LEADING, Consumed
from amqpscope.pipelines.model.plain import Row


class SubscribedQueues(Consumed):
    """The walk; it remembers nothing."""

    SOURCE = "amqp010_frames"
    NAMES = ("message.subscribe",)
    COLUMNS = (*LEADING, "queue", "destination")

    def fresh(self) -> Any:
        """See `Plain`."""
        return None

    def frame(self, frame: Row) -> Iterator[Row]:
        """See `Plain`; yield from which frame on deliveries of a destination come from a queue."""
        named = {"consumer_tag": frame["destination"], "queue": frame["queue"]}
        yield {name: frame[name] for name in LEADING} | named
