"""Requests without an answer yet: how they are stored, and how they end if nobody answers.

A connection has channels, one for each epoch that may still have frames. A channel has queues, one for each kind of
request and initiator. A queue has requests in order, and held answers, whose requests are not yet known. Sides are
numbers as in `connection`; -1 is what is not known.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from amqpscope.pipelines.model.opened import Opened
from amqpscope.pipelines.model.unanswered import DISCARDED, ENDED_BY, GAP, NOTHING, Lost, Scope

NONE = -1
CLOSES_CONNECTION, CLOSES_CHANNEL = 0, 1
ONCE = 6
"""Kinds below this occur once per epoch: no other request of theirs can be missing."""
REFUSED, DROPPED = len(ENDED_BY), len(ENDED_BY) + 1
"""What became of a request (`Found.how`), besides the numbers of `unanswered.ENDED_BY`; DROPPED: nothing, an answer was
dropped."""


@dataclass(slots=True)
class Request:
    """An open request."""

    event: int
    """The id of its event in the walk."""
    frame: int
    ts: int
    key: int = 0
    """Digest of what request and answer have in common; 0 for not known."""
    note: str | None = None
    """Passed through."""
    ordinal: int = 0
    """Its number in its queue."""
    cut: tuple[int, int, int] | None = None
    """The first cut frame after it, on its channel and from the other side (`unanswered.Lost`)."""


@dataclass(slots=True)
class Held:
    """An answer that is held."""

    event: int
    frame: int
    key: int
    ordinal: int
    """Number of the newest request before it."""
    asked: int
    """Frame of the channel's last request before it, of any kind."""


@dataclass(slots=True)
class Queue:
    """Requests of one kind by one side in one channel epoch."""

    kind: int
    side: int
    """Who asks."""
    good: int
    """No request before this frame is missing, or all earlier ones were answered."""
    open: deque[Request] = field(default_factory=deque)
    held: deque[Held] = field(default_factory=deque)
    lost: bool = False
    """Requests may be missing, or it is unknown which were answered: new ones stay unknown, open ones were sent
    before. Else an answer belongs to the oldest open request, except for gaps after that."""
    tried: int = 0
    """Held answers that were tried without success."""
    asked: int = 0
    """Requests so far."""
    aligned: int = NONE
    """Gaps before this frame are accounted for."""
    skip: int = 0
    """Answers to come for requests that were evicted."""
    skip_frame: int = NONE
    """Frame of the oldest of those."""
    slack: int = NONE
    """Where it is lost, most requests that may be open; -1 for any number."""


@dataclass(slots=True)
class Channel:
    """A channel epoch; of sides, the server is the first."""

    number: int
    epoch: int
    born: int = NONE
    """Frame that opened this epoch."""
    reopened: int = NONE
    """Frame by which the server opened the next one."""
    reopened_ts: int = NONE
    queues: dict[tuple[int, int], Queue] = field(default_factory=dict)
    """By kind and side."""
    closes: list[int] = field(default_factory=lambda: [NONE, NONE])
    """Frame of the first channel.close of each side."""
    closes_ts: list[int] = field(default_factory=lambda: [NONE, NONE])
    cut: list[int] = field(default_factory=lambda: [NONE, NONE])
    """Last frame of each side with unknown content."""
    asked: list[int] = field(default_factory=lambda: [NONE, NONE])
    """Frame of the last request of each side, of any kind."""
    declared: str | None = None
    """The queue declared last."""
    declared_frame: int = NONE
    """Frame that declares it."""
    declared_by: int = NONE
    """Event of that, where the server gives the name."""

    @property
    def scope(self) -> Scope:
        """How it ends."""
        (server, client), (server_ts, client_ts) = self.closes, self.closes_ts
        return server, client, server_ts, client_ts, self.reopened, self.reopened_ts

    def queue(self, kind: int, side: int) -> Queue:
        """Return the queue of this kind and initiator, made if there is none."""
        found = self.queues.get((kind, side))
        if found is None:
            found = self.queues[kind, side] = Queue(kind, side, self.born)
        return found


@dataclass(slots=True)
class Left:
    """An open request of a channel epoch that is over: what its answering side says next shows whether it is late."""

    request: Request
    kind: int
    scope: Scope
    frame: int
    """The frame by which the epoch was over."""


@dataclass(slots=True)
class Asked:
    """What is known of the requests of a connection."""

    swept: list[bool] = field(default_factory=lambda: [False, False])
    """Whether a close of each side, which may be the error of any request, was noted on all channels."""
    channels: dict[int, Channel] = field(default_factory=dict)
    """By number and parity of the epoch."""
    left: list[deque[Left]] = field(default_factory=lambda: [deque(), deque()])
    """By side that should have answered, in their order."""
    alone: list[int] = field(default_factory=lambda: [0, 0])
    """Requests of each side that were certainly answered before its next on that channel."""
    pipelined: list[bool] = field(default_factory=lambda: [False, False])
    """Whether a side asked again on a channel before it was answered."""
    live: int = 0
    """Open requests, also those left, and held answers."""


class Found(NamedTuple):
    """What became of a request."""

    request: int
    """Id of its event; -1 for what only says that an answer is no longer held."""
    answer: int
    """Id of its event, -1 for none."""
    how: int
    end_ts: int = NONE
    """When it ended without an answer."""
    note: str | None = None


class Decisions:
    """What machines that pair requests with answers decide.

    Args:
        opened: what else is known of the open connection.

    Attributes:
        found: what became of requests, and was not taken from here yet.
        needed: ids of events that are needed later: open requests and held answers, since this was emptied.
    """

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.found: list[Found] = []
        self.needed: set[int] = set()

    def emit(self, found: Found) -> None:
        """Note what became of a request."""
        self.found.append(found)
        self.needed.discard(found.request)
        self.needed.discard(found.answer)


class Queues(Decisions):
    """The queues of the open connection."""

    def __init__(self, opened: Opened) -> None:
        super().__init__(opened)
        self.asked = Asked()

    def pop(self, queue: Queue) -> Request:
        """Take the oldest request from its queue."""
        self.asked.live -= 1
        return queue.open.popleft()

    def end(self, channel: Channel, queue: Queue, request: Request, unknown: bool) -> None:
        """Note why a request has no answer, and when that was certain (`model.unanswered`).

        Args:
            channel: its channel.
            queue: its queue.
            request: the request.
            unknown: whether it may have been answered.
        """
        self._end(Left(request, queue.kind, channel.scope, NONE), 1 - queue.side, unknown)

    def _end(self, left: Left, other: int, unknown: bool = False) -> None:
        request, cut = left.request, left.request.cut or NOTHING
        closes = int(left.kind in (CLOSES_CHANNEL, CLOSES_CONNECTION))
        how, ts = self.opened.unanswered(other, request.frame, left.scope, cut, closes)
        if unknown and how not in (DISCARDED, GAP):
            how, ts = GAP, NONE
        self.emit(Found(request.event, NONE, how, ts if ts >= 0 else request.ts, request.note))

    def end_left(self, side: int, frame: int) -> None:
        """End what was left before a frame, and should have been answered by a side."""
        left = self.asked.left[side]
        while left and left[0].frame < frame:
            self.asked.live -= 1
            self._end(left.popleft(), side)

    def cut_frame(self, channel: Channel, side: int, frame: int, ts: int) -> None:
        """Note a frame of a side with unknown content: a request of that side, or an answer."""
        channel.cut[side] = frame
        lost = frame, ts, self.opened.last(side)
        for queue in channel.queues.values():
            if queue.side != side:
                mark(queue, lost)


def mark(queue: Queue, lost: Lost) -> None:
    """Note a cut frame after the open requests of a queue, where it is the first."""
    for request in reversed(queue.open):
        if request.cut is not None:
            break
        request.cut = lost
