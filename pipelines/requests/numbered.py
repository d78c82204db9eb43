"""Requests whose answers name them: by kind, number and initiator.

A number that is used again while its request is open belongs to the later request from then on. A close with an error
is that of the other side's oldest request.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from amqpscope.pipelines.model.opened import Opened
from amqpscope.pipelines.model.unanswered import ANSWERED, EVICTED, GAP, NOTHING, WHOLE
from amqpscope.pipelines.requests.queues import NONE, REFUSED, Decisions, Found
from amqpscope.pipelines.requests.requests import OPEN_AT_MOST


@dataclass(slots=True)
class Numbered:
    """An open request."""

    event: int
    """The id of its event in the walk."""
    frame: int
    ts: int
    kind: int
    number: int
    side: int
    """Who asks."""

    @property
    def key(self) -> tuple[int, int, int]:
        """What identifies its answer."""
        return self.kind, self.number, self.side


@dataclass(slots=True)
class Asked:
    """The open requests of a connection."""

    open: list[OrderedDict[int, Numbered]] = field(default_factory=lambda: [OrderedDict(), OrderedDict()])
    """Of the server and of the client, by event, in the order of sending."""
    by_key: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """Events of those whose answers can still be found."""


class NumberedRequests(Decisions):
    """The machine; `found` is what it decided.

    Args:
        opened: what else is known of the connection.
        closes: the kind of requests that close it: no error is theirs.
    """

    def __init__(self, opened: Opened, closes: int) -> None:
        super().__init__(opened)
        self.closes = closes
        self.asked = Asked()

    def over(self) -> None:
        """End all open requests without an answer: the connection is over."""
        for requests in self.asked.open:
            for each in requests.values():
                closes = int(each.kind == self.closes)
                how, ts = self.opened.unanswered(1 - each.side, each.frame, WHOLE, NOTHING, closes)
                self.emit(Found(each.event, NONE, how, ts if ts >= 0 else each.ts))
        self.asked = Asked()

    def _end(self, request: Numbered, found: Found) -> None:
        """Forget a request, of which is known what became of it."""
        del self.asked.open[request.side][request.event]
        if self.asked.by_key.get(request.key) == request.event:
            del self.asked.by_key[request.key]
        self.emit(found)

    def ask(self, request: Numbered) -> None:
        """Add a request; where there are too many, the oldest one of that side is evicted."""
        self.asked.by_key.pop(request.key, None)
        requests = self.asked.open[request.side]
        if sum(map(len, self.asked.open)) >= OPEN_AT_MOST:
            if not requests:
                self.emit(Found(request.event, NONE, EVICTED, request.ts))
                return
            oldest = next(iter(requests.values()))
            self._end(oldest, Found(oldest.event, NONE, EVICTED, request.ts))
        requests[request.event] = request
        self.asked.by_key[request.key] = request.event
        self.needed.add(request.event)

    def answer(self, kind: int, number: int, side: int, event: int) -> None:
        """Apply an answer to a request of a side."""
        asked = self.asked.by_key.get((kind, number, side))
        if asked is not None:
            self._end(self.asked.open[side][asked], Found(asked, event, ANSWERED))

    def close(self, side: int, frame: int, ts: int, event: int) -> None:
        """Apply a close by a side with an error: it answers the other side's oldest open request.

        If the answer to that one may be lost, it is unknown whose error it is: no open request has an answer.
        """
        if self.opened.closed_by(side) != frame:
            return
        others = [each for each in self.asked.open[1 - side].values() if each.kind != self.closes]
        if others and not self.opened.lacks(side, others[0].frame):
            self._end(others[0], Found(others[0].event, event, REFUSED))
            return
        for each in others:
            gap = self.opened.first_gap(side, each.frame)
            self._end(each, Found(each.event, NONE, GAP, self.opened.time_of(gap) if gap >= 0 else ts))
