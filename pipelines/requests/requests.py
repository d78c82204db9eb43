"""The pairing machine: synchronous requests and their answers, first in, first out.

Any walk may use it: `Requests` holds the state, the kernels `channel_of`, `ask`, `answer`, `cut_frame` and
`refusals.closing` say what happened (after `connection.update_connection`), and `found` has what was decided
(`open_requests`).

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
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from amqpscope import spec
from amqpscope.dissector.kernels.kernel import called, kernel
from amqpscope.pipelines.model import connection
from amqpscope.pipelines.model.channels import CHANNELS
from amqpscope.pipelines.model.connection import open_connection
from amqpscope.pipelines.model.events import FRAMES_OF, SPOKEN, WORDS, what
from amqpscope.pipelines.model.store import grown
from amqpscope.pipelines.model.unanswered import ANSWERED, EVICTED
from amqpscope.pipelines.requests.open_requests import (
    CH,
    FO,
    HEAP,
    LOST,
    NO,
    NONE,
    ONCE,
    QU,
    SURE,
    State,
    append,
    cut_frame,
    emit,
    end_request,
    find_queue,
    free_node,
    new_node,
    pop,
    queue_of,
)  # fmt: skip
from amqpscope.pipelines.requests.uncertain import (
    TRUST,
    differ,
    drop_answers,
    drop_requests,
    is_uncertain,
    may_lack_requests,
    resolve,
    trusted,
)  # fmt: skip
from amqpscope.spec.model import Method

__all__ = [
    "HELD", "TRUST", "UNKNOWN", "Requests", "answer", "ask", "begin_connection", "channel_of",
    "cut_frame", "end_connection", "methods_of",
]  # fmt: skip

UNKNOWN, HELD = -2, -3
"""What `answer` returns besides ids and NONE: the request is unknown; or it may be known later."""
HELD_AT_MOST = 256
"""Most held answers of a queue."""
OPEN_AT_MOST = 1 << 18
"""Most open requests of a connection; for one more, the oldest of its queue is evicted."""
_CHANNEL_WIDTH = len(CH)

ASKS, ANSWERS, MAY_ANSWER, MAY_NOT_WAIT = range(4)


@cache
def asking(source: int) -> dict[str, Method]:
    """Return the methods of a protocol that ask, by name, but for commands: their answers name their ids."""
    methods = spec.load(SPOKEN[source]).methods
    return {method.full_name: method for method in methods if method.responses and method.kind != "command"}


@cache
def kinds(source: int) -> tuple[str, ...]:
    """Return the methods that ask for an answer; first what closes connection and channel, then what occurs once.

    Args:
        source: the protocol's table of frames.
    """
    frames = FRAMES_OF[source]
    first = ((*frames.closes, "")[0], frames.closes_channel, *frames.once)
    first += ("",) * (ONCE - len(first))
    return (*first, *(name for name in asking(source) if name not in first))


@cache
def roles(source: int) -> Any:
    """Return what methods ask and answer, by EV.WHAT.

    Columns: the kind that it asks, the kind that it answers, another that it answers where none of these is open (-1
    for none), whether it may not wait.
    """
    made = np.full((WORDS, 4), NONE, np.int64)
    for name, method in asking(source).items():
        kind, word = kinds(source).index(name), what(source, name)
        made[word, ASKS] = kind
        made[word, MAY_NOT_WAIT] = any(field.name == "no_wait" for field in method.fields)
        for response in method.responses:
            word = what(source, response)
            made[word, MAY_ANSWER] = made[word, ANSWERS]
            made[word, ANSWERS] = kind
    return made


def methods_of(source: int) -> tuple[str, ...]:
    """Return the methods of a table of frames that ask or answer."""
    found = asking(source)
    return (*found, *sorted({response for method in found.values() for response in method.responses}))


class Requests:
    """State of the machine: arrays that grow."""

    def __init__(self) -> None:
        self.conn, self.gaps = connection.fresh()
        self.places = np.full(CHANNELS, NONE, np.int32)
        self.channels = np.zeros((4, len(CH)), np.int64)
        self.queues = np.zeros((8, len(QU)), np.int64)
        self.nodes = np.zeros((16, len(NO)), np.int64)
        self.heap = np.zeros(len(HEAP), np.int64)
        self.heap[[HEAP.FREE_NODE, HEAP.FREE_QUEUE]] = NONE
        self.found = np.zeros((0, len(FO)), np.int64)

    def state(self, count: int, lacking: int) -> State:
        """Return what kernels take, with room for a batch of this many requests and answers; `found` is empty."""
        self.gaps = connection.with_room(self.conn, self.gaps, lacking)
        self.channels = grown(self.channels, min(int(self.heap[HEAP.CHANNELS]) + count, CHANNELS))
        self.queues = grown(self.queues, int(self.heap[HEAP.QUEUES]) + count)
        self.nodes = grown(self.nodes, int(self.heap[HEAP.NODES]) + count)
        self.found = np.empty((int(self.heap[HEAP.LIVE]) + count, len(FO)), np.int64)
        self.heap[HEAP.FOUND] = 0
        return self.conn, self.gaps, self.places, self.channels, self.queues, self.nodes, self.heap, self.found

    def decided(self) -> Any:
        """Return the rows of `found` since `state` was called."""
        return self.found[: int(self.heap[HEAP.FOUND])]

    def parts(self) -> dict[str, Any]:
        """Return the parts of a state (`store.pack`)."""
        heap = self.heap
        return {
            "conn": self.conn,
            "gaps": connection.used(self.conn, self.gaps),
            "channels": self.channels[: heap[HEAP.CHANNELS]],
            "queues": self.queues[: heap[HEAP.QUEUES]],
            "nodes": self.nodes[: heap[HEAP.NODES]],
            "heap": heap,
        }

    def put_back(self, parts: dict[str, Any]) -> None:
        """Restore what `parts` returned."""
        for name in ("conn", "gaps", "channels", "queues", "nodes", "heap"):
            setattr(self, name, parts[name])
        self.places[:] = NONE
        at = 2 * self.channels[:, CH.NUMBER] + (self.channels[:, CH.EPOCH] & 1)
        self.places[at] = np.arange(len(self.channels))


@called
def begin_connection(state: State, identity: int) -> None:
    """Begin a connection; the one before was ended."""
    conn, _, _, _, _, _, heap, _ = state
    open_connection(conn, identity)
    for side in range(2):
        heap[HEAP.ALONE_SERVER + side] = 0
        heap[HEAP.PIPELINED_SERVER + side] = 0


@called
def end_connection(state: State) -> None:
    """End all open requests without an answer."""
    _, _, places, channels, _, _, heap, _ = state
    for slot in range(heap[HEAP.CHANNELS]):
        release(state, slot)
        places[2 * channels[slot, CH.NUMBER] + (channels[slot, CH.EPOCH] & 1)] = NONE
    heap[HEAP.CHANNELS] = 0
    heap[HEAP.QUEUES] = 0
    heap[HEAP.NODES] = 0
    heap[HEAP.LIVE] = 0
    heap[HEAP.FREE_NODE] = NONE
    heap[HEAP.FREE_QUEUE] = NONE


@kernel
def channel_of(state: State, channel: int, epoch: int, frame: int, ts: int, opens: int) -> int:
    """Return the row of a channel epoch; the epoch before it ends now, and is over for good when the next begins.

    Args:
        state: see `open_requests`.
        channel: its number.
        epoch: its epoch.
        frame: frame that names it.
        ts: time of that.
        opens: 1 where that is its channel.open.
    """
    _, _, places, channels, _, _, heap, _ = state
    number = channel & (CHANNELS // 2 - 1)
    place = 2 * number + (epoch & 1)
    slot: int = places[place]
    if slot >= 0 and channels[slot, CH.EPOCH] == epoch:
        return slot
    if slot >= 0:
        release(state, slot)
    else:
        slot = heap[HEAP.CHANNELS]
        heap[HEAP.CHANNELS] = slot + 1
        places[place] = slot
    earlier = places[place ^ 1]
    if earlier >= 0 and channels[earlier, CH.EPOCH] < epoch and channels[earlier, CH.REOPENED] < 0:
        channels[earlier, CH.REOPENED] = frame
        channels[earlier, CH.REOPENED_TS] = ts
    for column in range(_CHANNEL_WIDTH):
        channels[slot, column] = NONE
    channels[slot, CH.NUMBER] = number
    channels[slot, CH.EPOCH] = epoch
    if opens == 1:
        channels[slot, CH.BORN] = frame
    return slot


@called
def release(state: State, slot: int) -> None:
    """End all open requests on a channel."""
    _, _, _, channels, queues, nodes, heap, _ = state
    q = channels[slot, CH.QUEUES]
    while q >= 0:
        unknown = 0
        if queues[q, QU.HELD] > 0:
            resolve(state, slot, q)
            if queues[q, QU.HELD] > 0:
                unknown = 1
                drop_answers(state, q)
        while queues[q, QU.COUNT] > 0:
            head = queues[q, QU.HEAD]
            end_request(state, slot, queues[q, QU.SIDE], queues[q, QU.KIND], head, unknown)
            pop(queues, nodes, heap, q)
        following = queues[q, QU.NEXT]
        queues[q, QU.NEXT] = heap[HEAP.FREE_QUEUE]
        heap[HEAP.FREE_QUEUE] = q
        q = following
    channels[slot, CH.QUEUES] = NONE


@kernel
def ask(state: State, slot: int, kind: int, side: int, identity: int, frame: int, ts: int, key: int, note: int) -> None:
    """Add a request that asks for an answer.

    Args:
        state: see `open_requests`.
        slot: its channel.
        kind: one of `kinds`.
        side: who asks.
        identity: the event's id.
        frame: its frame.
        ts: its time.
        key: digest of what its answer repeats; 0 for nothing.
        note: passed through.
    """
    conn, gaps, _, channels, queues, nodes, heap, _ = state
    q = queue_of(state, slot, kind, side)
    if queues[q, QU.HELD] > 0:
        resolve(state, slot, q)
    alone = kind < ONCE or trusted(heap, side)
    missing = may_lack_requests(conn, gaps, channels, slot, side, queues[q, QU.GOOD], frame)
    nothing_open = queues[q, QU.SLACK] == 0 and not missing
    if queues[q, QU.STATE] == LOST and queues[q, QU.COUNT] == 0 and (alone or nothing_open):
        queues[q, QU.STATE] = SURE
    if queues[q, QU.STATE] == SURE and missing and not alone:
        if queues[q, QU.HELD] > 0:
            drop_requests(state, slot, q)
        queues[q, QU.STATE] = LOST
        queues[q, QU.SLACK] = NONE
    channels[slot, CH.ASKED_SERVER + side] = frame
    node = new_node(nodes, heap, identity, frame, ts, key, note, queues[q, QU.ASKED] + 1)
    if queues[q, QU.STATE] == LOST:
        if queues[q, QU.SLACK] >= 0:
            queues[q, QU.SLACK] += 1
        end_request(state, slot, side, kind, node, 1)
        free_node(nodes, heap, node)
        return
    if kind < ONCE or not missing:
        queues[q, QU.GOOD] = frame
    queues[q, QU.ASKED] += 1
    append(queues, nodes, q, node)
    if heap[HEAP.LIVE] > OPEN_AT_MOST:
        if queues[q, QU.HELD] > 0:
            drop_requests(state, slot, q)
        else:
            head = queues[q, QU.HEAD]
            if queues[q, QU.SKIP] == 0:
                queues[q, QU.SKIP_FRAME] = nodes[head, NO.FRAME]
            queues[q, QU.SKIP] += 1
            emit(state, nodes[head, NO.ID], NONE, EVICTED, ts, nodes[head, NO.NOTE], 0)
            pop(queues, nodes, heap, q)


@kernel
def answer(state: State, slot: int, kind: int, side: int, identity: int, frame: int, ts: int, key: int) -> int:
    """Apply an answer.

    Args:
        state: see `open_requests`.
        slot: its channel.
        kind: one of `kinds`.
        side: who asked.
        identity: the event's id.
        frame: its frame.
        ts: its time.
        key: digest of what it repeats of its request; 0 for unknown.

    Returns:
        Id of the request; NONE: no request is open; UNKNOWN: it is unknown which one; HELD: that may be known later,
        and its row is needed until `found` says what became of it.
    """
    conn, gaps, _, channels, queues, nodes, heap, _ = state
    q = find_queue(channels, queues, slot, kind, side)
    if q < 0:
        return NONE
    if queues[q, QU.STATE] == LOST and queues[q, QU.COUNT] == 0:
        queues[q, QU.SLACK] = queues[q, QU.SLACK] - 1 if queues[q, QU.SLACK] > 0 else NONE
        return UNKNOWN
    if queues[q, QU.COUNT] == 0 and queues[q, QU.SKIP] == 0:
        return NONE
    if queues[q, QU.HELD] == 0 and not is_uncertain(conn, gaps, channels, queues, nodes, slot, q):
        if queues[q, QU.SKIP] > 0:
            queues[q, QU.SKIP] -= 1
            return UNKNOWN
        head = queues[q, QU.HEAD]
        if differ(nodes[head, NO.KEY], key):
            return NONE  # its request was not captured
        request: int = nodes[head, NO.ID]
        since = nodes[head, NO.FRAME]
        emit(state, request, identity, ANSWERED, NONE, nodes[head, NO.NOTE], 0)
        pop(queues, nodes, heap, q)
        if channels[slot, CH.ASKED_SERVER + side] > since:
            heap[HEAP.PIPELINED_SERVER + side] = 1
        elif not may_lack_requests(conn, gaps, channels, slot, side, since, frame):
            heap[HEAP.ALONE_SERVER + side] += 1
        return request
    if queues[q, QU.SKIP] > 0 or queues[q, QU.STATE] == LOST or queues[q, QU.HELD] >= HELD_AT_MOST:
        drop_requests(state, slot, q)
        return UNKNOWN
    node = new_node(nodes, heap, identity, frame, ts, key, NONE, queues[q, QU.ASKED])
    nodes[node, NO.ASKED] = channels[slot, CH.ASKED_SERVER + side]
    if queues[q, QU.HELD] > 0:
        nodes[queues[q, QU.HELD_TAIL], NO.NEXT] = node
    else:
        queues[q, QU.HELD_HEAD] = node
    queues[q, QU.HELD_TAIL] = node
    queues[q, QU.HELD] += 1
    return HELD
