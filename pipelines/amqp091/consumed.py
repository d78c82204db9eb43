"""Which queue the deliveries of AMQP 0-9-1 come from: by the consume of their tag, or by the get that they answer.

Rules are those of `settlements.consumers`, which knows the queue of each settlement.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amqpscope.pipelines.across.consumed import LEADING, Consumed
from amqpscope.pipelines.model.connection import CLIENT, SERVER
from amqpscope.pipelines.model.plain import Row

CHANNELS = 1 << 12
"""Channel epochs of a connection that are remembered, the latest ones; there may be a new one for each message."""
MOST = 1 << 12
"""Consumers, and requests without an answer, that are remembered of a channel."""


class ConsumedQueues(Consumed):
    """The walk. Its state is a dict for each channel epoch.

    `declared`: the queue declared last; `get`, `consume`: requests whose answer names what they got, as frame and
    queue; `tags`: consumers; `got`: the queue of the last got message.
    """

    SOURCE = "amqp091_frames"
    NAMES = (
        "basic.consume", "basic.consume-ok", "basic.cancel-ok", "basic.get", "basic.get-ok", "basic.get-empty",
        "queue.declare-ok",
    )  # fmt: skip
    COLUMNS = (*LEADING, "from_client", "method", "queue", "consumer_tag")

    def fresh(self) -> Any:
        """See `Plain`."""
        return {}

    def frame(self, frame: Row) -> Iterator[Row]:
        """See `Plain`; yield from which frame on deliveries come from another queue."""
        key = f"{frame['channel']} {frame['channel_epoch']}"
        fresh: Row = {"declared": None, "get": [], "consume": [], "tags": {}, "got": 0}
        channel = self.state[key] = self.state.pop(key, fresh)  # the latest ones stay
        if len(self.state) > CHANNELS:
            del self.state[next(iter(self.state))]
        method, tag = frame["method"], frame["consumer_tag"]
        if method == "queue.declare-ok":
            channel["declared"] = frame["queue"]
        elif method == "basic.get":
            self._ask(frame, channel, "get")
        elif method in ("basic.get-ok", "basic.get-empty"):
            queue = self._answered(channel["get"])
            if method == "basic.get-ok" and queue != channel["got"]:
                channel["got"] = queue
                yield self._begun(frame, None, queue)
        elif method == "basic.consume" and frame["from_client"]:
            if tag:
                yield self._consumer(frame, channel, self._named(frame, channel))
            else:
                self._ask(frame, channel, "consume")
        elif method == "basic.consume-ok" and tag and tag not in channel["tags"] and channel["consume"]:
            yield self._consumer(frame, channel, self._answered(channel["consume"]))
        elif method == "basic.cancel-ok" and tag in channel["tags"]:
            del channel["tags"][tag]
            yield self._begun(frame, tag, None)

    @staticmethod
    def _named(frame: Row, channel: Row) -> str | None:
        queue: str | None = frame["queue"]
        return channel["declared"] if queue == "" and channel["declared"] is not None else queue

    def _ask(self, frame: Row, channel: Row, kind: str) -> None:
        asked = channel[kind]
        if asked is not None and len(asked) < MOST:
            asked.append([frame["frame_no"], self._named(frame, channel)])
        else:
            channel[kind] = None  # too many: nobody knows any more which one is answered

    def _answered(self, asked: list[Any] | None) -> str | None:
        """Take the oldest request; return its queue, null where a gap makes it uncertain which one is answered."""
        if not asked:
            return None
        answers_lost, requests_lost = (self.lacks(side, asked[0][0]) for side in (SERVER, CLIENT))
        if (len(asked) > 1 and (answers_lost or requests_lost)) or (answers_lost and requests_lost):
            asked.clear()
            return None
        queue: str | None = asked.pop(0)[1]
        return queue

    def _consumer(self, frame: Row, channel: Row, queue: str | None) -> Row:
        tag = frame["consumer_tag"]
        channel["tags"][tag] = True
        if len(channel["tags"]) > MOST:
            del channel["tags"][next(iter(channel["tags"]))]
        return self._begun(frame, tag, queue)

    @staticmethod
    def _begun(frame: Row, tag: str | None, queue: str | None) -> Row:
        return {name: frame[name] for name in LEADING} | {"consumer_tag": tag, "queue": queue}
