"""Closes as answers: a channel.close or connection.close is an error of the request that it names, if any."""

from __future__ import annotations

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import called
from amqpscope.pipelines.model.connection import CONN
from amqpscope.pipelines.requests.open_requests import (
    CH,
    HEAP,
    LOST,
    NO,
    NONE,
    QU,
    REFUSED,
    State,
    cut_frame,
    emit,
    find_queue,
    pop,
)
from amqpscope.pipelines.requests.uncertain import is_uncertain


@called
def closing(state: State, slot: int, side: int, frame: int, ts: int, whole: bool, named: int, identity: int) -> None:
    """Note a channel.close or connection.close, before it becomes a request itself.

    Args:
        state: see `open_requests`.
        slot: its channel.
        side: who closes.
        frame: its frame.
        ts: its time.
        whole: it closes the connection.
        named: kind of the request that it is an error of; -1 for none.
        identity: the id of the event.
    """
    conn, gaps, _, channels, queues, nodes, heap, _ = state
    first = slot
    end = slot + 1
    if whole:
        first = 0
        end = heap[HEAP.CHANNELS]
        if conn[CONN.SERVER_CLOSE + side] != frame:
            return
    elif channels[slot, CH.SERVER_CLOSE + side] >= 0:
        return
    else:
        channels[slot, CH.SERVER_CLOSE + side] = frame
        channels[slot, CH.SERVER_CLOSE_TS + side] = ts
        if conn[CONN.SERVER_CLOSE + side] >= 0:
            return
    if named < 0:
        return
    refused = NONE
    candidates = 0
    uncertain = 0
    for each in range(first, end):
        q = candidate(channels, queues, each, named, side, whole)
        if q >= 0:
            candidates += 1
            certain = queues[q, QU.COUNT] > 0 and queues[q, QU.HELD] == 0 and queues[q, QU.SKIP] == 0
            if certain and not is_uncertain(conn, gaps, channels, queues, nodes, each, q):
                refused = q
            else:
                uncertain += 1
    if uncertain > 0:  # it may be the error of any of these, as far as answers to the others are lost
        for each in range(first, end):
            q = candidate(channels, queues, each, named, side, whole)
            node = queues[q, QU.HEAD] if q >= 0 and queues[q, QU.COUNT] > 0 else NONE
            while node >= 0:
                if nodes[node, NO.CUT_FRAME] < 0:
                    nodes[node, NO.CUT_FRAME] = frame
                    nodes[node, NO.CUT_TS] = ts
                    nodes[node, NO.CUT_SINCE] = heap[HEAP.BEFORE]
                node = nodes[node, NO.NEXT]
            if q >= 0:
                queues[q, QU.UNMARKED] = NONE
    if candidates == 1 and refused >= 0:
        head = queues[refused, QU.HEAD]
        emit(state, nodes[head, NO.ID], identity, REFUSED, NONE, nodes[head, NO.NOTE], 0)
        pop(queues, nodes, heap, refused)


@called
def candidate(channels: Array, queues: Array, slot: int, named: int, side: int, whole: bool) -> int:
    """Return the queue of a channel that a side's close may be about; -1 for none."""
    if whole and (channels[slot, CH.SERVER_CLOSE + side] >= 0 or channels[slot, CH.REOPENED] >= 0):
        return NONE
    q = find_queue(channels, queues, slot, named, 1 - side)
    return q if q >= 0 and (queues[q, QU.COUNT] > 0 or queues[q, QU.STATE] == LOST) else NONE


@called
def close_missing(state: State, slot: int, side: int, frame: int, ts: int, whole: bool) -> None:
    """Note a close that may be the error of any open request: the close is missing, or what it says of that."""
    _, _, _, channels, _, _, heap, _ = state
    if channels[slot, CH.CUT_SERVER + side] < 0:
        for each in range(heap[HEAP.CHANNELS] if whole else 0):
            cut_frame(state, each, side, frame, ts)
    cut_frame(state, slot, side, frame, ts)
