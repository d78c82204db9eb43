"""Requests without an answer yet: how they are stored, and how they end if nobody answers.

A connection has channels (`channels`, a row for each epoch that may still have frames; `places` says which, by channel
number and parity of the epoch). A channel has queues (`queues`, a linked list of rows), one for each kind of request
and initiator. A queue has requests in order, and held answers, whose requests are not yet known (`nodes`, linked lists
of rows). Decisions are appended to `found`.

Kernels take these together as `state`, a tuple of int64 arrays: conn, gaps (`connection`), places, channels, queues,
nodes, heap, found. Sides are numbers as in `connection`; `identity` is the id of an event in its walk.
"""

from __future__ import annotations

from typing import NamedTuple

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import called, kernel
from amqpscope.pipelines.model.connection import CONN
from amqpscope.pipelines.model.store import declare
from amqpscope.pipelines.model.unanswered import DISCARDED, ENDED_BY, GAP, NOTHING, unanswered

State = tuple[Array, ...]
"""conn, gaps, places, channels, queues, nodes, heap, found."""
NONE = -1


class Channel(NamedTuple):
    """Columns of `channels`; -1 where nothing is known."""

    NUMBER: int
    EPOCH: int
    BORN: int  # frame that opened this epoch
    REOPENED: int  # frame that opened the next
    REOPENED_TS: int
    QUEUES: int  # first of its queues
    SERVER_CLOSE: int  # frame of the first channel.close of that side
    CLIENT_CLOSE: int
    SERVER_CLOSE_TS: int
    CLIENT_CLOSE_TS: int
    CUT_SERVER: int  # last frame of that side with unknown content
    CUT_CLIENT: int
    ASKED_SERVER: int  # frame of the last request of that side, of any kind
    ASKED_CLIENT: int
    DECLARED: int  # the queue declared last, as the number of its name
    DECLARED_FRAME: int  # frame that declares it
    DECLARED_BY: int  # event of that, where the server gives the name


class Queue(NamedTuple):
    """Columns of `queues`: requests of one kind by one side in one channel epoch."""

    NEXT: int  # the channel's next queue, or the next free row
    KIND: int
    SIDE: int  # who asks
    STATE: int
    HEAD: int  # oldest open request, its node
    TAIL: int
    COUNT: int  # open requests
    HELD_HEAD: int  # oldest held answer
    HELD_TAIL: int
    HELD: int  # held answers
    TRIED: int  # of these, tried without success
    ASKED: int  # requests so far
    GOOD: int  # no request before this frame is missing, or all earlier ones were answered
    ALIGNED: int  # gaps before this frame are accounted for
    SKIP: int  # answers to come for requests that were evicted
    SKIP_FRAME: int  # frame of the oldest of those requests
    SLACK: int  # LOST: most requests that may be open; -1 for any number
    UNMARKED: int  # oldest open request without a cut frame after it


class Node(NamedTuple):
    """Columns of `nodes`: an open request, or an answer that is held."""

    NEXT: int
    ID: int  # of the event
    FRAME: int
    TS: int
    KEY: int  # digest of what request and answer have in common; 0 for not known
    NOTE: int  # passed through with a request
    CUT_FRAME: int  # first cut frame after it, on its channel and from the other side; -1 for none
    CUT_TS: int
    CUT_SINCE: int  # last frame of that side before it
    ORDINAL: int  # number of the request in its queue; of an answer, of the newest request before it
    ASKED: int  # of an answer: frame of the channel's last request before it, of any kind


class Heap(NamedTuple):
    """Places of `heap`: free rows, and what is known of the connection's two sides."""

    FREE_NODE: int  # first of a linked list of free rows
    NODES: int  # rows ever used
    FREE_QUEUE: int
    QUEUES: int
    CHANNELS: int
    LIVE: int  # nodes in use
    FOUND: int  # rows of `found`
    ALONE_SERVER: int  # requests of that side that were certainly answered before its next on that channel
    ALONE_CLIENT: int
    PIPELINED_SERVER: int  # 1: it asked again on a channel before it was answered
    PIPELINED_CLIENT: int
    BEFORE: int  # the last frame of the side that speaks, before this one


class Found(NamedTuple):
    """Columns of `found`."""

    REQUEST: int  # id of its event; -1 for a row that only says that an answer is no longer held
    ANSWER: int  # id of its event, -1 for none
    HOW: int
    END_TS: int  # when it ended without an answer
    NOTE: int
    HELD: int  # 1: the answer was held


CH, QU, NO, HEAP, FO = declare(Channel), declare(Queue), declare(Node), declare(Heap), declare(Found)

SURE, LOST = range(2)
"""States of a queue. SURE: an answer belongs to the oldest open request, except for gaps after that. LOST: requests may
be missing, or it is unknown which were answered; new requests stay unknown, and open ones were sent before."""

REFUSED, DROPPED = len(ENDED_BY), len(ENDED_BY) + 1
"""What became of a request (FO.HOW), besides the numbers of `unanswered.ENDED_BY`; DROPPED: nothing, an answer was
dropped."""

_WIDTH = len(QU)
CLOSES_CONNECTION, CLOSES_CHANNEL = 0, 1
ONCE = 6
"""Kinds below this occur once per epoch: no other request of theirs can be missing."""


@kernel
def emit(state: State, request: int, answer: int, how: int, end_ts: int, note: int, held: int) -> None:
    """Append what became of a request."""
    _, _, _, _, _, _, heap, found = state
    row = heap[HEAP.FOUND]
    found[row, FO.REQUEST] = request
    found[row, FO.ANSWER] = answer
    found[row, FO.HOW] = how
    found[row, FO.END_TS] = end_ts
    found[row, FO.NOTE] = note
    found[row, FO.HELD] = held
    heap[HEAP.FOUND] = row + 1


@kernel
def new_node(nodes: Array, heap: Array, identity: int, frame: int, ts: int, key: int, note: int, ordinal: int) -> int:
    """Return a node that is in no list; there must be room."""
    node: int = heap[HEAP.FREE_NODE]
    if node >= 0:
        heap[HEAP.FREE_NODE] = nodes[node, NO.NEXT]
    else:
        node = heap[HEAP.NODES]
        heap[HEAP.NODES] = node + 1
    heap[HEAP.LIVE] += 1
    nodes[node, NO.NEXT] = NONE
    nodes[node, NO.ID] = identity
    nodes[node, NO.FRAME] = frame
    nodes[node, NO.TS] = ts
    nodes[node, NO.KEY] = key
    nodes[node, NO.NOTE] = note
    nodes[node, NO.CUT_FRAME] = NONE
    nodes[node, NO.CUT_TS] = NONE
    nodes[node, NO.CUT_SINCE] = NONE
    nodes[node, NO.ORDINAL] = ordinal
    nodes[node, NO.ASKED] = NONE
    return node


@kernel
def free_node(nodes: Array, heap: Array, node: int) -> None:
    """Free the row of a node."""
    nodes[node, NO.NEXT] = heap[HEAP.FREE_NODE]
    heap[HEAP.FREE_NODE] = node
    heap[HEAP.LIVE] -= 1


@kernel
def append(queues: Array, nodes: Array, q: int, node: int) -> None:
    """Put a request at the end of its queue."""
    if queues[q, QU.COUNT] > 0:
        nodes[queues[q, QU.TAIL], NO.NEXT] = node
    else:
        queues[q, QU.HEAD] = node
    queues[q, QU.TAIL] = node
    queues[q, QU.COUNT] += 1
    if queues[q, QU.UNMARKED] < 0:
        queues[q, QU.UNMARKED] = node


@kernel
def pop(queues: Array, nodes: Array, heap: Array, q: int) -> None:
    """Take the oldest request from its queue."""
    node = queues[q, QU.HEAD]
    if queues[q, QU.UNMARKED] == node:
        queues[q, QU.UNMARKED] = nodes[node, NO.NEXT]
    queues[q, QU.HEAD] = nodes[node, NO.NEXT]
    queues[q, QU.COUNT] -= 1
    free_node(nodes, heap, node)


@kernel
def find_queue(channels: Array, queues: Array, slot: int, kind: int, side: int) -> int:
    """Return a channel's queue of this kind and initiator; -1 for none."""
    q: int = channels[slot, CH.QUEUES]
    while q >= 0 and (queues[q, QU.KIND] != kind or queues[q, QU.SIDE] != side):
        q = queues[q, QU.NEXT]
    return q


@kernel
def queue_of(state: State, slot: int, kind: int, side: int) -> int:
    """Return a channel's queue of this kind and initiator, made if there is none; there must be room."""
    _, _, _, channels, queues, _, heap, _ = state
    q = find_queue(channels, queues, slot, kind, side)
    if q < 0:
        q = heap[HEAP.FREE_QUEUE]
        if q >= 0:
            heap[HEAP.FREE_QUEUE] = queues[q, QU.NEXT]
        else:
            q = heap[HEAP.QUEUES]
            heap[HEAP.QUEUES] = q + 1
        for column in range(_WIDTH):
            queues[q, column] = NONE
        queues[q, QU.NEXT] = channels[slot, CH.QUEUES]
        channels[slot, CH.QUEUES] = q
        queues[q, QU.KIND] = kind
        queues[q, QU.SIDE] = side
        queues[q, QU.STATE] = SURE
        queues[q, QU.COUNT] = 0
        queues[q, QU.HELD] = 0
        queues[q, QU.ASKED] = 0
        queues[q, QU.SKIP] = 0
        queues[q, QU.GOOD] = channels[slot, CH.BORN]
    return q


@called
def end_request(state: State, slot: int, side: int, kind: int, node: int, unknown: int) -> None:
    """Append why a request has no answer, and when that was certain (`model.unanswered`).

    Args:
        state: see the module.
        slot: its channel.
        side: who asked.
        kind: of the request.
        node: the request.
        unknown: 1 where it may have been answered.
    """
    conn, gaps, _, channels, _, nodes, _, _ = state
    scope = (
        channels[slot, CH.SERVER_CLOSE],
        channels[slot, CH.CLIENT_CLOSE],
        channels[slot, CH.SERVER_CLOSE_TS],
        channels[slot, CH.CLIENT_CLOSE_TS],
        channels[slot, CH.REOPENED],
        channels[slot, CH.REOPENED_TS],
    )
    cut = NOTHING
    if nodes[node, NO.CUT_FRAME] >= 0:
        cut = nodes[node, NO.CUT_FRAME], nodes[node, NO.CUT_TS], nodes[node, NO.CUT_SINCE]
    closes = 1 if kind in (CLOSES_CHANNEL, CLOSES_CONNECTION) else 0
    how, ts = unanswered(conn, gaps, 1 - side, nodes[node, NO.FRAME], scope, cut, closes)
    if unknown == 1 and how != DISCARDED and how != GAP:
        how, ts = GAP, NONE
    emit(state, nodes[node, NO.ID], NONE, how, ts if ts >= 0 else nodes[node, NO.TS], nodes[node, NO.NOTE], 0)


@called
def cut_frame(state: State, slot: int, side: int, frame: int, ts: int) -> None:
    """Note a frame of a side with unknown content: a request of that side, or an answer."""
    conn, _, _, channels, queues, nodes, heap, _ = state
    last = conn[CONN.LAST_SERVER + side]
    since = heap[HEAP.BEFORE] if last == frame else last
    channels[slot, CH.CUT_SERVER + side] = frame
    q = channels[slot, CH.QUEUES]
    while q >= 0:
        if queues[q, QU.SIDE] != side:
            node = queues[q, QU.UNMARKED]
            while node >= 0:
                nodes[node, NO.CUT_FRAME] = frame
                nodes[node, NO.CUT_TS] = ts
                nodes[node, NO.CUT_SINCE] = since
                node = nodes[node, NO.NEXT]
            queues[q, QU.UNMARKED] = NONE
        q = queues[q, QU.NEXT]
