"""Pairs that a gap makes uncertain: what held answers allow to conclude (`requests` has the rules)."""

from __future__ import annotations

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import called, kernel
from amqpscope.pipelines.model.connection import CONN, first_gap, may_lack
from amqpscope.pipelines.model.unanswered import ANSWERED
from amqpscope.pipelines.requests.open_requests import (
    CH,
    DROPPED,
    HEAP,
    LOST,
    NO,
    NONE,
    ONCE,
    QU,
    State,
    emit,
    end_request,
    free_node,
    pop,
)  # fmt: skip

TRUST = 2
"""Requests answered before the next of their kind which show that a side asks one at a time."""
LOOKED_AT = 256
"""Open requests among which the one of an answer is looked for by content."""


@kernel
def trusted(heap: Array, side: int) -> bool:
    """Return whether a side asks one at a time, so far."""
    return heap[HEAP.PIPELINED_SERVER + side] == 0 and heap[HEAP.ALONE_SERVER + side] >= TRUST


@kernel
def differ(key: int, other: int) -> bool:
    """Return whether a request and an answer cannot belong together."""
    return key != 0 and other not in (0, key)


@kernel
def may_lack_requests(conn: Array, gaps: Array, channels: Array, slot: int, side: int, after: int, before: int) -> bool:
    """Return whether requests of a side may be missing between two frames, as later frames of it show."""
    return may_lack(conn, gaps, side, after, before) or channels[slot, CH.CUT_SERVER + side] > after


@kernel
def may_be_last(conn: Array, queues: Array, q: int, frame: int) -> bool:
    """Return whether requests may be missing before a frame, because no later frame of that side was seen."""
    return queues[q, QU.KIND] >= ONCE and conn[CONN.LAST_SERVER + queues[q, QU.SIDE]] < frame


@kernel
def is_uncertain(conn: Array, gaps: Array, channels: Array, queues: Array, nodes: Array, slot: int, q: int) -> bool:
    """Return whether the answer to the oldest request may be missing, or an answer may be to a request before it."""
    if queues[q, QU.COUNT] > 0 and queues[q, QU.GOOD] < nodes[queues[q, QU.HEAD], NO.FRAME]:
        return True
    oldest = queues[q, QU.SKIP_FRAME] if queues[q, QU.SKIP] > 0 else nodes[queues[q, QU.HEAD], NO.FRAME]
    after = max(oldest, queues[q, QU.ALIGNED])
    other = 1 - queues[q, QU.SIDE]
    return first_gap(conn, gaps, other, after) >= 0 or channels[slot, CH.CUT_SERVER + other] > after


@called
def drop_answers(state: State, q: int) -> None:
    """Drop all held answers: whose they are stays unknown."""
    queues = state[4]
    while queues[q, QU.HELD] > 0:
        drop_answer(state, q)


@called
def drop_requests(state: State, slot: int, q: int) -> None:
    """Drop all requests of a queue, which is LOST: which of them were answered stays unknown."""
    _, _, _, _, queues, nodes, heap, _ = state
    slack = queues[q, QU.COUNT] - queues[q, QU.HELD]
    if slack < 0 or queues[q, QU.SKIP] > 0 or queues[q, QU.STATE] == LOST:
        slack = NONE
    queues[q, QU.SLACK] = slack
    queues[q, QU.STATE] = LOST
    queues[q, QU.SKIP] = 0
    drop_answers(state, q)
    while queues[q, QU.COUNT] > 0:
        end_request(state, slot, queues[q, QU.SIDE], queues[q, QU.KIND], queues[q, QU.HEAD], 1)
        pop(queues, nodes, heap, q)


@called
def resolve(state: State, slot: int, q: int) -> None:
    """Pair held answers as far as possible: when the next request comes, or at the end."""
    conn, gaps, _, channels, queues, nodes, heap, _ = state
    side = queues[q, QU.SIDE]
    if queues[q, QU.HELD] == queues[q, QU.TRIED] and not trusted(heap, side):
        return  # nothing is new
    since = min(nodes[queues[q, QU.HEAD], NO.FRAME], queues[q, QU.GOOD])
    newest = nodes[queues[q, QU.HELD_TAIL], NO.FRAME]
    lacking = may_lack_requests(conn, gaps, channels, slot, side, since, newest) or may_be_last(conn, queues, q, newest)
    if queues[q, QU.COUNT] == queues[q, QU.HELD] and not lacking and nothing_lost(queues, nodes, q):
        while queues[q, QU.HELD] > 0:
            if nodes[queues[q, QU.HELD_HEAD], NO.ASKED] > nodes[queues[q, QU.HEAD], NO.FRAME]:
                heap[HEAP.PIPELINED_SERVER + side] = 1
            pair(state, q)
        return
    if trusted(heap, side):
        if one_at_a_time(state, slot, q):
            take_newest(state, slot, q)
            return
        heap[HEAP.PIPELINED_SERVER + side] = 1
    if not lacking:
        recognise(state, slot, q)
    queues[q, QU.TRIED] = queues[q, QU.HELD]


@called
def pair(state: State, q: int) -> None:
    """Pair the oldest held answer with the oldest request."""
    _, _, _, _, queues, nodes, heap, _ = state
    request = queues[q, QU.HEAD]
    held = queues[q, QU.HELD_HEAD]
    emit(state, nodes[request, NO.ID], nodes[held, NO.ID], ANSWERED, NONE, nodes[request, NO.NOTE], 1)
    queues[q, QU.HELD_HEAD] = nodes[held, NO.NEXT]
    queues[q, QU.HELD] -= 1
    free_node(nodes, heap, held)
    pop(queues, nodes, heap, q)


@called
def drop_answer(state: State, q: int) -> None:
    """Drop the oldest held answer: whose it is stays unknown."""
    _, _, _, _, queues, nodes, heap, _ = state
    held = queues[q, QU.HELD_HEAD]
    emit(state, NONE, nodes[held, NO.ID], DROPPED, NONE, NONE, 1)
    queues[q, QU.HELD_HEAD] = nodes[held, NO.NEXT]
    queues[q, QU.HELD] -= 1
    free_node(nodes, heap, held)


@called
def drop_request(state: State, slot: int, q: int) -> None:
    """Drop the oldest request: whether it was answered stays unknown."""
    _, _, _, _, queues, nodes, heap, _ = state
    end_request(state, slot, queues[q, QU.SIDE], queues[q, QU.KIND], queues[q, QU.HEAD], 1)
    pop(queues, nodes, heap, q)


@called
def nothing_lost(queues: Array, nodes: Array, q: int) -> bool:
    """Return whether held answers and as many requests can belong together one by one."""
    request = queues[q, QU.HEAD]
    held = queues[q, QU.HELD_HEAD]
    for _ in range(queues[q, QU.HELD]):
        early = nodes[held, NO.ORDINAL] < nodes[request, NO.ORDINAL]
        if early or differ(nodes[request, NO.KEY], nodes[held, NO.KEY]):
            return False
        request = nodes[request, NO.NEXT]
        held = nodes[held, NO.NEXT]
    return True


@called
def may_lack_answer(conn: Array, gaps: Array, nodes: Array, side: int, request: int, after: int, before: int) -> bool:
    """Return whether the answer to a request of a side may be missing between two frames."""
    cut = nodes[request, NO.CUT_FRAME]
    return may_lack(conn, gaps, 1 - side, after, before) or (cut > after and cut < before)


@called
def one_at_a_time(state: State, slot: int, q: int) -> bool:
    """Return whether each request may have been answered before the next one, and once."""
    conn, gaps, _, channels, queues, nodes, _, _ = state
    side = queues[q, QU.SIDE]
    request = queues[q, QU.HEAD]
    held = queues[q, QU.HELD_HEAD]
    left = queues[q, QU.HELD]
    for _ in range(queues[q, QU.COUNT]):
        frame = nodes[request, NO.FRAME]
        following = nodes[request, NO.NEXT]
        answers = 0
        while left > 0 and nodes[held, NO.ORDINAL] == nodes[request, NO.ORDINAL]:
            answers += 1
            if answers > 1 and not may_lack_requests(conn, gaps, channels, slot, side, frame, nodes[held, NO.FRAME]):
                return False
            held = nodes[held, NO.NEXT]
            left -= 1
        if answers == 0 and following >= 0:
            after = max(frame, queues[q, QU.ALIGNED])
            if not may_lack_answer(conn, gaps, nodes, side, request, after, nodes[following, NO.FRAME]):
                return False
        request = following
    return True


@called
def take_newest(state: State, slot: int, q: int) -> None:
    """Pair each answer with the newest request before it; the last request may still be open."""
    conn, gaps, _, channels, queues, nodes, _, _ = state
    side = queues[q, QU.SIDE]
    while queues[q, QU.HELD] > 0:
        request = queues[q, QU.HEAD]
        held = queues[q, QU.HELD_HEAD]
        if nodes[held, NO.ORDINAL] > nodes[request, NO.ORDINAL]:
            drop_request(state, slot, q)
            continue
        frame = nodes[request, NO.FRAME]
        answered = nodes[held, NO.FRAME]
        ordinal = nodes[request, NO.ORDINAL]
        lacking = may_lack_requests(conn, gaps, channels, slot, side, frame, answered)
        lacking = lacking or may_be_last(conn, queues, q, answered)
        of_another = lacking and may_lack_answer(conn, gaps, nodes, side, request, frame, answered)
        if of_another or differ(nodes[request, NO.KEY], nodes[held, NO.KEY]):
            drop_request(state, slot, q)
            drop_answer(state, q)
        else:
            queues[q, QU.GOOD] = max(queues[q, QU.GOOD], frame)
            pair(state, q)
        while queues[q, QU.HELD] > 0 and nodes[queues[q, QU.HELD_HEAD], NO.ORDINAL] == ordinal:
            drop_answer(state, q)


@called
def recognise(state: State, slot: int, q: int) -> None:
    """Pair answers with the only requests that fit their content; then in order, up to the next gap."""
    conn, gaps, _, _, queues, nodes, _, _ = state
    held = queues[q, QU.HELD_HEAD]
    passed = 0
    for _ in range(queues[q, QU.HELD]):
        frame = nodes[held, NO.FRAME]
        following = nodes[held, NO.NEXT]
        before = place_of(conn, gaps, queues, nodes, q, held, passed)
        if before < 0:
            passed += 1
        else:
            for _ in range(before):
                drop_request(state, slot, q)
            for _ in range(passed):
                drop_answer(state, q)
            passed = 0
            pair(state, q)
            queues[q, QU.ALIGNED] = frame
        held = following


@called
def place_of(conn: Array, gaps: Array, queues: Array, nodes: Array, q: int, held: int, passed: int) -> int:
    """Return the number of open requests before the one that an answer belongs to; -1 where that is unknown."""
    if queues[q, QU.COUNT] == 0:
        return NONE
    key = nodes[held, NO.KEY]
    asked = nodes[held, NO.ORDINAL]
    request = queues[q, QU.HEAD]
    aligned = queues[q, QU.ALIGNED]
    if passed == 0 and aligned >= 0 and nodes[request, NO.ORDINAL] <= asked and not differ(nodes[request, NO.KEY], key):
        since = max(aligned, nodes[request, NO.FRAME])
        if not may_lack_answer(conn, gaps, nodes, queues[q, QU.SIDE], request, since, nodes[held, NO.FRAME]):
            return 0
    place = NONE
    number = 0
    while key != 0 and request >= 0 and nodes[request, NO.ORDINAL] <= asked:
        if not differ(nodes[request, NO.KEY], key):
            if place >= 0:
                return NONE
            place = number
        number += 1
        if number > LOOKED_AT:
            return NONE
        request = nodes[request, NO.NEXT]
    return place
