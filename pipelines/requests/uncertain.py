"""Pairs that a gap makes uncertain: what held answers allow to conclude (`requests` has the rules)."""

from __future__ import annotations

from itertools import islice

from amqpscope.pipelines.model.unanswered import ANSWERED
from amqpscope.pipelines.requests.queues import DROPPED, NONE, ONCE, Channel, Found, Held, Queue, Queues, Request

TRUST = 2
"""Requests answered before the next of their kind which show that a side asks one at a time."""
LOOKED_AT = 256
"""Open requests among which the one of an answer is looked for by content."""


def differ(key: int, other: int) -> bool:
    """Return whether a request and an answer cannot belong together."""
    return key != 0 and other not in (0, key)


class Uncertain(Queues):
    """Queues, and pairs of what is in them."""

    def trusts(self, side: int) -> bool:
        """Return whether a side asks one at a time, so far."""
        return not self.asked.pipelined[side] and self.asked.alone[side] >= TRUST

    def may_lack_requests(self, channel: Channel, side: int, after: int, before: int) -> bool:
        """Return whether requests of a side may be missing between two frames, as later frames of it show."""
        return channel.cut[side] > after or self.opened.may_lack(side, after, before)

    def may_lack_answer(self, side: int, request: Request, after: int, before: int) -> bool:
        """Return whether the answer to a request of a side may be missing between two frames."""
        cut = request.cut
        return (cut is not None and after < cut[0] < before) or self.opened.may_lack(1 - side, after, before)

    def may_be_last(self, queue: Queue, frame: int) -> bool:
        """Return whether requests may be missing before a frame, because no later frame of that side was seen."""
        return queue.kind >= ONCE and self.opened.last_so_far(queue.side) < frame

    def is_uncertain(self, channel: Channel, queue: Queue) -> bool:
        """Return whether the answer to the oldest request may be missing, or an answer may be to one before it."""
        if queue.open and queue.good < queue.open[0].frame:
            return True
        oldest = queue.skip_frame if queue.skip > 0 else queue.open[0].frame
        after, other = max(oldest, queue.aligned), 1 - queue.side
        return channel.cut[other] > after or self.opened.lacks(other, after)

    def drop_answer(self, queue: Queue) -> None:
        """Drop the oldest held answer: whose it is stays unknown."""
        self.asked.live -= 1
        self.emit(Found(NONE, queue.held.popleft().event, DROPPED))

    def drop_answers(self, queue: Queue) -> None:
        """Drop all held answers."""
        while queue.held:
            self.drop_answer(queue)

    def drop_request(self, channel: Channel, queue: Queue) -> None:
        """Drop the oldest request: whether it was answered stays unknown."""
        self.end(channel, queue, self.pop(queue), unknown=True)

    def drop_all(self, channel: Channel, queue: Queue) -> None:
        """Drop all requests of a queue, which is lost: which of them were answered stays unknown."""
        slack = len(queue.open) - len(queue.held)
        queue.slack = NONE if slack < 0 or queue.skip > 0 or queue.lost else slack
        queue.lost, queue.skip = True, 0
        self.drop_answers(queue)
        while queue.open:
            self.drop_request(channel, queue)

    def pair(self, queue: Queue) -> None:
        """Pair the oldest held answer with the oldest request."""
        request, held = self.pop(queue), queue.held.popleft()
        self.asked.live -= 1
        self.emit(Found(request.event, held.event, ANSWERED, note=request.note))

    def resolve(self, channel: Channel, queue: Queue) -> None:
        """Pair held answers as far as possible: when the next request comes, or at the end."""
        side = queue.side
        if len(queue.held) == queue.tried and not self.trusts(side):
            return  # nothing is new
        if not queue.open:
            self.drop_answers(queue)
            return
        newest, oldest = queue.held[-1].frame, queue.open[0].frame
        lacking = self.may_lack_requests(channel, side, min(oldest, queue.good), newest)
        lacking = lacking or self.may_be_last(queue, newest)
        if len(queue.open) == len(queue.held) and not lacking and nothing_lost(queue):
            while queue.held:
                if queue.held[0].asked > queue.open[0].frame:
                    self.asked.pipelined[side] = True
                self.pair(queue)
            return
        if self.trusts(side):
            if self.one_at_a_time(channel, queue):
                self.take_newest(channel, queue)
                return
            self.asked.pipelined[side] = True
        if not lacking:
            self.recognise(channel, queue)
        queue.tried = len(queue.held)

    def one_at_a_time(self, channel: Channel, queue: Queue) -> bool:
        """Return whether each request may have been answered before the next one, and once."""
        held = iter(queue.held)
        answer = next(held, None)
        for request, following in zip(queue.open, [*islice(queue.open, 1, None), None], strict=True):
            answers = 0
            while answer is not None and answer.ordinal == request.ordinal:
                answers += 1
                if answers > 1 and not self.may_lack_requests(channel, queue.side, request.frame, answer.frame):
                    return False
                answer = next(held, None)
            if answers == 0 and following is not None:
                after = max(request.frame, queue.aligned)
                if not self.may_lack_answer(queue.side, request, after, following.frame):
                    return False
        return True

    def take_newest(self, channel: Channel, queue: Queue) -> None:
        """Pair each answer with the newest request before it; the last request may still be open."""
        side = queue.side
        while queue.held and queue.open:
            request, held = queue.open[0], queue.held[0]
            if held.ordinal > request.ordinal:
                self.drop_request(channel, queue)
                continue
            lacking = self.may_lack_requests(channel, side, request.frame, held.frame)
            lacking = lacking or self.may_be_last(queue, held.frame)
            of_another = lacking and self.may_lack_answer(side, request, request.frame, held.frame)
            if of_another or differ(request.key, held.key):
                self.drop_request(channel, queue)
                self.drop_answer(queue)
            else:
                queue.good = max(queue.good, request.frame)
                self.pair(queue)
            while queue.held and queue.held[0].ordinal == request.ordinal:
                self.drop_answer(queue)
        self.drop_answers(queue)

    def recognise(self, channel: Channel, queue: Queue) -> None:
        """Pair answers with the only requests that fit their content; then in order, up to the next gap."""
        passed = 0
        for held in tuple(queue.held):
            before = self.place_of(queue, held, passed)
            if before < 0:
                passed += 1
                continue
            for _ in range(before):
                self.drop_request(channel, queue)
            for _ in range(passed):
                self.drop_answer(queue)
            passed = 0
            self.pair(queue)
            queue.aligned = held.frame

    def place_of(self, queue: Queue, held: Held, passed: int) -> int:
        """Return the number of open requests before the one that an answer belongs to; -1 where that is unknown."""
        if not queue.open:
            return NONE
        request, aligned = queue.open[0], queue.aligned
        fits = request.ordinal <= held.ordinal and not differ(request.key, held.key)
        if passed == 0 and aligned >= 0 and fits:
            since = max(aligned, request.frame)
            if not self.may_lack_answer(queue.side, request, since, held.frame):
                return 0
        place = NONE
        for number, each in enumerate(queue.open if held.key != 0 else ()):
            if each.ordinal > held.ordinal:
                break
            if not differ(each.key, held.key):
                if place >= 0:
                    return NONE
                place = number
            if number + 1 > LOOKED_AT:
                return NONE
        return place


def nothing_lost(queue: Queue) -> bool:
    """Return whether held answers and as many requests can belong together one by one."""
    pairs = zip(queue.open, queue.held, strict=False)
    return not any(held.ordinal < request.ordinal or differ(request.key, held.key) for request, held in pairs)
