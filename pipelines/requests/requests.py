"""The pairing machine: synchronous requests and their answers, first in, first out.

A pair is certain, or there is none:

- An answer belongs to the oldest open request, unless there is a gap after that request in the direction of answers:
  its answer may be lost; or before it in that of requests: the answer may be to a lost one. Such answers are held until
  the next request of that kind, or the end.
- Then, if there are as many answers as requests, and no request can be missing, nothing was lost.
- Otherwise, of a side that asks one at a time (it did so `TRUST` times on this connection, and never otherwise), an
  answer belongs to the newest request before it, unless both that one's answer and a request may be lost between them.
- Otherwise the content of an answer may decide: the name of a queue, a consumer's tag.
- Otherwise nothing is known of these requests and answers, and of later ones until all are answered as far as can be
  counted, or the side proves to ask one at a time, or the channel is opened again.
- After a gap in the direction of requests, nothing is known of a side that does not ask one at a time.

A channel.close or connection.close is an error of the request that it names, if any.
"""

from __future__ import annotations

from amqpscope.pipelines.model.channels import CHANNELS
from amqpscope.pipelines.model.connection import SERVER
from amqpscope.pipelines.model.unanswered import ANSWERED, EVICTED, NEVER
from amqpscope.pipelines.requests.queues import (
    NONE,
    ONCE,
    REFUSED,
    Asked,
    Channel,
    Found,
    Held,
    Left,
    Queue,
    Request,
    mark,
)
from amqpscope.pipelines.requests.uncertain import Uncertain, differ

UNKNOWN, HELD = -2, -3
"""What `answer` returns besides ids and NONE: the request is unknown; or it may be known later."""
HELD_AT_MOST = 256
"""Most held answers of a queue."""
OPEN_AT_MOST = 1 << 18
"""Most open requests of a connection; for one more, the oldest of its queue is evicted."""


class Requests(Uncertain):
    """The machine; `found` is what it decided."""

    def over(self) -> None:
        """End all open requests without an answer: the connection is over."""
        for side in range(2):
            self.end_left(side, NEVER)
        for channel in self.asked.channels.values():
            self.leave(channel, NEVER)
        self.asked = Asked()

    def _end_left(self) -> None:
        """End what was left and can have no late answer any more."""
        for side, left in enumerate(self.asked.left):
            if left:
                self.end_left(side, self.opened.last_so_far(side))

    def channel(self, number: int, epoch: int, frame: int, opens: bool) -> Channel:
        """Return a channel epoch; the one before the one before it is over for good.

        Args:
            number: of the channel.
            epoch: its epoch.
            frame: frame that names it.
            opens: whether that is its channel.open.
        """
        number &= CHANNELS // 2 - 1
        place, channels = 2 * number + (epoch & 1), self.asked.channels
        self._end_left()
        found = channels.get(place)
        if found is not None and found.epoch == epoch:
            return found
        if found is not None:
            self.leave(found, frame)
        channels[place] = made = Channel(number, epoch, frame if opens else NONE)
        return made

    def reopened(self, channel: Channel, frame: int, ts: int) -> None:
        """Note that the server has opened a channel epoch: the one before is over.

        So is this one where the server closed it before: the channel.open of the next one is missing. A client may
        close a channel whose channel.open is not answered yet.
        """
        earlier = self.asked.channels.get(2 * channel.number + (channel.epoch & 1 ^ 1))
        if earlier is not None and earlier.epoch < channel.epoch and earlier.reopened < 0:
            earlier.reopened, earlier.reopened_ts = frame, ts
        if channel.closes[SERVER] >= 0 and channel.reopened < 0:
            channel.reopened, channel.reopened_ts = frame, ts

    def leave(self, channel: Channel, frame: int) -> None:
        """End all open requests on a channel, or leave them until the side that should have answered says more."""
        for queue in channel.queues.values():
            if queue.held:
                self.resolve(channel, queue)
            unknown = bool(queue.held)
            self.drop_answers(queue)
            while queue.open:
                if unknown or frame == NEVER:
                    self.end(channel, queue, self.pop(queue), unknown)
                else:
                    self.asked.left[1 - queue.side].append(Left(queue.open.popleft(), queue.kind, channel.scope, frame))
        channel.queues = {}

    def ask(self, channel: Channel, kind: int, side: int, request: Request) -> None:
        """Add a request that asks for an answer.

        Args:
            channel: its channel.
            kind: one of `kinds`.
            side: who asks.
            request: the request.
        """
        queue, frame = channel.queue(kind, side), request.frame
        if queue.held:
            self.resolve(channel, queue)
        alone = kind < ONCE or self.trusts(side)
        missing = self.may_lack_requests(channel, side, queue.good, frame)
        if queue.lost and not queue.open and (alone or (queue.slack == 0 and not missing)):
            queue.lost = False
        if not queue.lost and missing and not alone:
            if queue.held:
                self.drop_all(channel, queue)
            queue.lost, queue.slack = True, NONE
        channel.asked[side] = frame
        if queue.lost:
            queue.slack += queue.slack >= 0
            self.end(channel, queue, request, unknown=True)
            return
        if kind < ONCE or not missing:
            queue.good = frame
        queue.asked += 1
        request.ordinal = queue.asked
        queue.open.append(request)
        self.needed.add(request.event)
        self.asked.live += 1
        if self.asked.live > OPEN_AT_MOST:
            self._evict(channel, queue, request.ts)

    def _evict(self, channel: Channel, queue: Queue, ts: int) -> None:
        """Make room for a request of a queue."""
        left = next(filter(None, self.asked.left), None)
        if left is not None:
            request = left.popleft().request
            self.asked.live -= 1
            self.emit(Found(request.event, NONE, EVICTED, ts, request.note))
            return
        if queue.held:
            self.drop_all(channel, queue)
            return
        oldest = self.pop(queue)
        if queue.skip == 0:
            queue.skip_frame = oldest.frame
        queue.skip += 1
        self.emit(Found(oldest.event, NONE, EVICTED, ts, oldest.note))

    def answer(self, channel: Channel, kind: int, side: int, event: int, frame: int, key: int) -> int:
        """Apply an answer.

        Args:
            channel: its channel.
            kind: one of `kinds`.
            side: who asked.
            event: the event's id.
            frame: its frame.
            key: digest of what it repeats of its request; 0 for unknown.

        Returns:
            Id of the request; NONE: no request is open; UNKNOWN: it is unknown which one; HELD: that may be known
            later, and its row is needed until `found` says what became of it.
        """
        queue = channel.queues.get((kind, side))
        if queue is None:
            return NONE
        if queue.lost and not queue.open:
            queue.slack = queue.slack - 1 if queue.slack > 0 else NONE
            return UNKNOWN
        if not queue.open and queue.skip == 0:
            return NONE
        if not queue.held and not self.is_uncertain(channel, queue):
            if queue.skip > 0:
                queue.skip -= 1
                return UNKNOWN
            return self._pair(channel, queue, event, frame, key)
        if queue.skip > 0 or queue.lost or len(queue.held) >= HELD_AT_MOST:
            self.drop_all(channel, queue)
            return UNKNOWN
        queue.held.append(Held(event, frame, key, queue.asked, channel.asked[side]))
        self.needed.add(event)
        self.asked.live += 1
        return HELD

    def _pair(self, channel: Channel, queue: Queue, event: int, frame: int, key: int) -> int:
        """Pair a certain answer with the oldest request; return the id of that, NONE if it was not captured."""
        request, side = queue.open[0], queue.side
        if differ(request.key, key):
            return NONE
        self.emit(Found(request.event, event, ANSWERED, note=request.note))
        self.pop(queue)
        if channel.asked[side] > request.frame:
            self.asked.pipelined[side] = True
        elif not self.may_lack_requests(channel, side, request.frame, frame):
            self.asked.alone[side] += 1
        return request.event

    def close(self, channel: Channel, side: int, frame: int, ts: int, whole: bool, named: int, event: int) -> None:
        """Note a channel.close or connection.close, before it becomes a request itself.

        Args:
            channel: its channel.
            side: who closes.
            frame: its frame.
            ts: its time.
            whole: whether it closes the connection.
            named: kind of the request that it is an error of; -1 for none.
            event: the id of the event.
        """
        if whole:
            if self.opened.closed_by(side) != frame:
                return
        elif channel.closes[side] >= 0:
            return
        else:
            channel.closes[side], channel.closes_ts[side] = frame, ts
            if self.opened.closed_by(side) >= 0:
                return
        if named < 0:
            return
        channels = self.asked.channels.values() if whole else (channel,)
        refusable = [(each, queue) for each in channels if (queue := _refusable(each, named, side, whole)) is not None]
        certain = [queue for each, queue in refusable if self._may_be_refused(each, queue)]
        if len(certain) < len(refusable):  # it may be the error of any of these, as far as answers to others are lost
            for _, queue in refusable:
                mark(queue, (frame, ts, self.opened.last(side)))
        elif len(certain) == 1:
            (queue,) = certain
            refused = queue.open[0]
            self.emit(Found(refused.event, event, REFUSED, note=refused.note))
            self.pop(queue)

    def _may_be_refused(self, channel: Channel, queue: Queue) -> bool:
        """Return whether a close is certainly about the oldest request of a queue, if about any of it."""
        certain = queue.open and not queue.held and queue.skip == 0
        return bool(certain) and not self.is_uncertain(channel, queue)

    def close_missing(self, channel: Channel, side: int, frame: int, ts: int, whole: bool) -> None:
        """Note a close that may be the error of any open request: the close is missing, or what it says of that."""
        if whole and not self.asked.swept[side]:
            self.asked.swept[side] = True
            for each in self.asked.channels.values():
                self.cut_frame(each, side, frame, ts)
        self.cut_frame(channel, side, frame, ts)


def _refusable(channel: Channel, named: int, side: int, whole: bool) -> Queue | None:
    """Return the queue of a channel that a side's close may be about; None for none."""
    if whole and (channel.closes[side] >= 0 or channel.reopened >= 0):
        return None
    queue = channel.queues.get((named, 1 - side))
    return queue if queue is not None and (queue.open or queue.lost) else None
