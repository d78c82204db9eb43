"""Requests of the stream protocol and their answers: by command, correlation id and initiator.

Open requests lie in `nodes`: in chains by what identifies their answers (`chains`, heads by hash), and in a list in the
order of sending, because a close is an error of the oldest one. A correlation id that is used again while its request
is open belongs to the later request from then on.

Kernels take these together as `state`: conn, gaps (`connection`), chains, nodes, heap, found (as in `open_requests`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from amqpscope import spec
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import called, kernel
from amqpscope.pipelines.model.connection import CONN, GAP_TS, first_gap
from amqpscope.pipelines.model.events import what
from amqpscope.pipelines.model.store import declare, grown
from amqpscope.pipelines.model.unanswered import ANSWERED, EVICTED, GAP, NOTHING, WHOLE, unanswered
from amqpscope.pipelines.requests.open_requests import FO, NONE, REFUSED, State
from amqpscope.pipelines.requests.requests import OPEN_AT_MOST
from amqpscope.pipelines.stream.frames import PROTOCOL, STREAM_FRAMES

ANSWERED_ALWAYS = tuple(
    sorted(
        {
            method.name
            for method in spec.load(PROTOCOL).methods
            if method.class_id == 0
            and method.responses
            and (method.name == "tune" or any(field.name == "correlation_id" for field in method.fields))
        }
    )
)
"""Commands with a correlation id, and tune; credit is answered where it fails."""
_TUNE, _CLOSE = what(STREAM_FRAMES, "tune"), what(STREAM_FRAMES, "close")
OK = 1
"""Code of a close without an error."""


class Node(NamedTuple):
    """Columns of `nodes`: an open request."""

    CHAIN: int  # next of its chain, or the next free row
    CHAINED: int  # 0: its answer can no longer be found
    EARLIER: int  # of the same side, in their order
    LATER: int
    ID: int  # of the event
    FRAME: int
    TS: int
    COMMAND: int  # EV.WHAT
    CORRELATION: int
    SIDE: int


class Heap(NamedTuple):
    """Places of `heap`."""

    FREE: int  # first of a linked list of free rows
    NODES: int  # rows ever used
    LIVE: int  # open requests
    FOUND: int  # rows of `found`
    OLDEST_SERVER: int  # open requests of that side, in their order
    OLDEST_CLIENT: int
    NEWEST_SERVER: int
    NEWEST_CLIENT: int


SN, SH = declare(Node), declare(Heap)


def _roles() -> Any:
    numbers = {name: what(STREAM_FRAMES, name) for name in {method.name for method in spec.load(PROTOCOL).methods}}
    roles = np.zeros(max(numbers.values()) + 1, np.int64)
    for name in ANSWERED_ALWAYS:
        roles[numbers[name]] = 1
    return roles


ROLES = _roles()
"""By EV.WHAT of a stream frame: 1 for ANSWERED_ALWAYS."""


class StreamRequests:
    """State of the machine: arrays that grow."""

    def __init__(self) -> None:
        self.chains = np.full(64, NONE, np.int64)
        self.nodes = np.zeros((16, len(SN)), np.int64)
        self.heap = np.full(len(SH), NONE, np.int64)
        self.heap[[SH.NODES, SH.LIVE]] = 0
        self.found = np.zeros((0, len(FO)), np.int64)

    def state(self, conn: Array, gaps: Array, count: int) -> State:
        """Return what kernels take, with room for a batch of this many events; `found` is empty."""
        self.nodes = grown(self.nodes, int(self.heap[SH.NODES]) + count)
        live = int(self.heap[SH.LIVE])
        if len(self.chains) < live + count:
            self.chains = np.full(1 << (2 * (live + count)).bit_length(), NONE, np.int64)
            self._chain_all()
        self.found = np.empty((live + count, len(FO)), np.int64)
        self.heap[SH.FOUND] = 0
        return conn, gaps, self.chains, self.nodes, self.heap, self.found

    def _chain_all(self) -> None:
        for side in range(2):
            node = int(self.heap[SH.OLDEST_SERVER + side])
            while node >= 0:
                if self.nodes[node, SN.CHAINED]:
                    where = chain_of(self.chains, *self.nodes[node, [SN.COMMAND, SN.CORRELATION, SN.SIDE]].tolist())
                    self.nodes[node, SN.CHAIN] = self.chains[where]
                    self.chains[where] = node
                node = int(self.nodes[node, SN.LATER])

    def decided(self) -> Any:
        """Return the rows of `found` since `state` was called."""
        return self.found[: int(self.heap[SH.FOUND])]

    def parts(self) -> dict[str, Any]:
        """Return the parts of a state (`store.pack`)."""
        return {
            "chains": self.chains,
            "nodes": self.nodes[: self.heap[SH.NODES]],
            "heap": self.heap,
        }

    def put_back(self, parts: dict[str, Any]) -> None:
        """Restore what `parts` returned."""
        for name in ("chains", "nodes", "heap"):
            setattr(self, name, parts[name])


@kernel
def chain_of(chains: Array, command: int, correlation: int, side: int) -> int:
    """Return where the chain of these requests begins."""
    return ((correlation & 0xFFFFFFFF) * 2654435761 + command * 131 + side) & (len(chains) - 1)


@kernel
def emit_stream(state: State, request: int, answer: int, how: int, end_ts: int) -> None:
    """Append what became of a request."""
    _, _, _, _, heap, found = state
    row = heap[SH.FOUND]
    found[row, FO.REQUEST] = request
    found[row, FO.ANSWER] = answer
    found[row, FO.HOW] = how
    found[row, FO.END_TS] = end_ts
    found[row, FO.NOTE] = NONE
    found[row, FO.HELD] = 0
    heap[SH.FOUND] = row + 1


@kernel
def unchain(chains: Array, nodes: Array, node: int) -> None:
    """Take a request out of its chain."""
    if nodes[node, SN.CHAINED] == 1:
        where = chain_of(chains, nodes[node, SN.COMMAND], nodes[node, SN.CORRELATION], nodes[node, SN.SIDE])
        each = chains[where]
        if each == node:
            chains[where] = nodes[node, SN.CHAIN]
        else:
            while nodes[each, SN.CHAIN] != node:
                each = nodes[each, SN.CHAIN]
            nodes[each, SN.CHAIN] = nodes[node, SN.CHAIN]
        nodes[node, SN.CHAINED] = 0


@kernel
def forget(state: State, node: int) -> None:
    """Remove a request that is no longer open."""
    _, _, chains, nodes, heap, _ = state
    unchain(chains, nodes, node)
    side = nodes[node, SN.SIDE]
    earlier = nodes[node, SN.EARLIER]
    later = nodes[node, SN.LATER]
    if earlier >= 0:
        nodes[earlier, SN.LATER] = later
    else:
        heap[SH.OLDEST_SERVER + side] = later
    if later >= 0:
        nodes[later, SN.EARLIER] = earlier
    else:
        heap[SH.NEWEST_SERVER + side] = earlier
    nodes[node, SN.CHAIN] = heap[SH.FREE]
    heap[SH.FREE] = node
    heap[SH.LIVE] -= 1


@kernel
def find_request(state: State, command: int, correlation: int, side: int) -> int:
    """Return the open request that an answer belongs to; -1 for none."""
    _, _, chains, nodes, _, _ = state
    node: int = chains[chain_of(chains, command, correlation, side)]
    while node >= 0:
        same = nodes[node, SN.COMMAND] == command and nodes[node, SN.CORRELATION] == correlation
        if same and nodes[node, SN.SIDE] == side:
            break
        node = nodes[node, SN.CHAIN]
    return node


@kernel
def ask_stream(state: State, command: int, correlation: int, side: int, identity: int, frame: int, ts: int) -> None:
    """Add a request."""
    _, _, chains, nodes, heap, _ = state
    node = find_request(state, command, correlation, side)
    if node >= 0:
        unchain(chains, nodes, node)
    if heap[SH.LIVE] >= OPEN_AT_MOST:
        oldest = heap[SH.OLDEST_SERVER + side]
        if oldest < 0:
            emit_stream(state, identity, NONE, EVICTED, ts)
            return
        emit_stream(state, nodes[oldest, SN.ID], NONE, EVICTED, ts)
        forget(state, oldest)
    node = heap[SH.FREE]
    if node >= 0:
        heap[SH.FREE] = nodes[node, SN.CHAIN]
    else:
        node = heap[SH.NODES]
        heap[SH.NODES] = node + 1
    heap[SH.LIVE] += 1
    where = chain_of(chains, command, correlation, side)
    newest = heap[SH.NEWEST_SERVER + side]
    nodes[node, SN.CHAIN] = chains[where]
    nodes[node, SN.CHAINED] = 1
    nodes[node, SN.EARLIER] = newest
    nodes[node, SN.LATER] = NONE
    nodes[node, SN.ID] = identity
    nodes[node, SN.FRAME] = frame
    nodes[node, SN.TS] = ts
    nodes[node, SN.COMMAND] = command
    nodes[node, SN.CORRELATION] = correlation
    nodes[node, SN.SIDE] = side
    chains[where] = node
    if newest >= 0:
        nodes[newest, SN.LATER] = node
    else:
        heap[SH.OLDEST_SERVER + side] = node
    heap[SH.NEWEST_SERVER + side] = node


@kernel
def answer_stream(state: State, command: int, correlation: int, side: int, identity: int) -> None:
    """Apply an answer to a request of a side."""
    _, _, _, nodes, _, _ = state
    node = find_request(state, command, correlation, side)
    if node >= 0:
        emit_stream(state, nodes[node, SN.ID], identity, ANSWERED, NONE)
        forget(state, node)


@called
def close_stream(state: State, side: int, frame: int, ts: int, code: int, identity: int) -> None:
    """Apply a close by a side: if it gives an error, it answers the other side's oldest open request.

    If the answer to that one may be lost, it is unknown whose error it is: no open request has an answer.
    """
    conn, gaps, _, nodes, heap, _ = state
    if conn[CONN.SERVER_CLOSE + side] != frame or code < 0 or code == OK:
        return
    node = heap[SH.OLDEST_SERVER + 1 - side]
    while node >= 0 and nodes[node, SN.COMMAND] == _CLOSE:
        node = nodes[node, SN.LATER]
    if node >= 0 and first_gap(conn, gaps, side, nodes[node, SN.FRAME]) < 0:
        emit_stream(state, nodes[node, SN.ID], identity, REFUSED, NONE)
        forget(state, node)
        return
    while node >= 0:
        following = nodes[node, SN.LATER]
        if nodes[node, SN.COMMAND] != _CLOSE:
            gap = first_gap(conn, gaps, side, nodes[node, SN.FRAME])
            emit_stream(state, nodes[node, SN.ID], NONE, GAP, gaps[gap, GAP_TS] if gap >= 0 else ts)
            forget(state, node)
        node = following


@called
def end_stream(state: State) -> None:
    """End the connection: all open requests end without an answer."""
    conn, gaps, _, nodes, heap, _ = state
    for side in range(2):
        while heap[SH.OLDEST_SERVER + side] >= 0:
            node = heap[SH.OLDEST_SERVER + side]
            closes = 1 if nodes[node, SN.COMMAND] == _CLOSE else 0
            how, ts = unanswered(conn, gaps, 1 - side, nodes[node, SN.FRAME], WHOLE, NOTHING, closes)
            ts = ts if ts >= 0 else nodes[node, SN.TS]
            emit_stream(state, nodes[node, SN.ID], NONE, how, ts)
            forget(state, node)
    heap[SH.NODES] = 0
    heap[SH.FREE] = NONE
