"""End connections: closed long ago, followed by another one, evicted, or at the end of the captures."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.buffered import displace
from amqpscope.dissector.tcp.identities import identify
from amqpscope.dissector.tcp.order import ANYWHERE, flush
from amqpscope.dissector.tcp.settling import settle
from amqpscope.dissector.tcp.slots import LINGER_NS, ends_of, find, unlink
from amqpscope.dissector.tcp.state import (
    CLOSED,
    IDENTITIES,
    OPEN,
    READ,
    Conn,
    Control,
    Count,
    Direction,
    Facts,
    Flows,
    List,
    Results,
    Segment,
)
from amqpscope.dissector.tcp.windows import change

LINGER_SEGMENTS = 256
"""Segments of other connections before a closed connection ends: a few wrong times end nothing."""
SEGMENT_COST = 1024
"""Bytes that a buffered segment counts for besides its data."""


@kernel
def emit_buffered(flows: Flows, out: Results, slot: int, side: int) -> None:
    """Emit all that a direction has buffered, over gaps."""
    segments = flows.segments
    tail = flows.direction[2 * slot + side, Direction.TAIL]
    if tail >= 0:
        at = segments[tail, Segment.PACKET], segments[tail, Segment.TS], segments[tail, Segment.CAPTURE]
        flush(flows, out, slot, side, at)
        displace(flows, 2 * slot + side, -1, ANYWHERE)


@kernel
def end(flows: Flows, out: Results, slot: int) -> int:
    """End a connection: emit all that it has buffered, over gaps. Return 0 when there is no room for results yet."""
    conn, direction, control, counts = flows.conn, flows.direction, flows.control, out.counts
    if 2 * control[Control.KNOWN] >= len(flows.younger):
        control[Control.WANT] = IDENTITIES
        return 0
    count = direction[2 * slot, Direction.COUNT] + direction[2 * slot + 1, Direction.COUNT]
    if (
        counts[Count.CHUNKS] + 2 * count + 8 > out.chunks.shape[1]
        or counts[Count.WINDOWS] + 2 > out.windows.shape[1]
        or counts[Count.ENDED] == len(out.ended)
    ):
        control[Control.WANT] = READ
        return 0
    settle(flows, slot)
    if flows.facts[slot, Facts.ID] == 0:  # neither SYN nor data
        identify(flows, slot, conn[slot, Conn.ISN], conn[slot, Conn.FIRST_TS])
    for side in range(2):
        emit_buffered(flows, out, slot, side)
        if direction[2 * slot + side, Direction.STALL]:
            change(flows, out, slot, side, 0, (0, conn[slot, Conn.LAST_TS], 0))
    flows.table[find(flows, ends_of(flows.facts, slot))] = -1
    control[Control.TOMBSTONES] += 1
    unlink(flows, slot)
    flows.facts[slot, Facts.USED] = 2
    control[Control.LIVE] -= 1
    out.ended[counts[Count.ENDED]] = slot
    counts[Count.ENDED] += 1
    return 1


@kernel
def relieve(flows: Flows, out: Results) -> None:
    """Emit, over gaps, what directions with half of the mean or more have buffered: together, that is more than half.

    There must be no chunks yet, and room for two chunks per buffered segment.
    """
    direction = flows.direction
    total = count = 0
    for row in range(direction.shape[0]):
        if direction[row, Direction.COUNT] > 0:
            total += direction[row, Direction.WAITING] + SEGMENT_COST * direction[row, Direction.COUNT]
            count += 1
    for row in range(direction.shape[0]):
        if direction[row, Direction.COUNT] > 0:
            weight = direction[row, Direction.WAITING] + SEGMENT_COST * direction[row, Direction.COUNT]
            if 2 * weight * count >= total:
                emit_buffered(flows, out, row >> 1, row & 1)


@kernel
def due(flows: Flows, clock: int) -> int:
    """Return 1 when there is a closed connection that no further segment can belong to.

    Segments that come may be earlier than the clock, by so much that it does not step back.
    """
    slot = flows.lists[CLOSED, List.OLDEST]
    if slot < 0 or flows.conn[slot, Conn.SEEN] + LINGER_SEGMENTS >= flows.control[Control.SEGMENTS]:
        return 0
    return 1 if flows.conn[slot, Conn.LAST_TS] + 2 * LINGER_NS < clock else 0


@kernel
def expire(flows: Flows, out: Results, clock: int) -> int:
    """End the closed connections that no further segment can belong to; return 0 when there was no room to go on."""
    while due(flows, clock):
        if end(flows, out, flows.lists[CLOSED, List.OLDEST]) == 0:
            return 0
    return 1


@kernel
def evict(flows: Flows, out: Results, count: int) -> int:
    """End a number of connections, closed ones first, in the order of their last segments.

    Return the number of them are still to be ended when there was no room to go on.
    """
    control = flows.control
    while count > 0 and control[Control.LIVE] > 0:
        slot = flows.lists[CLOSED, List.OLDEST]
        is_open = 0
        if slot < 0:
            slot = flows.lists[OPEN, List.OLDEST]
            is_open = 1
        if end(flows, out, slot) == 0:
            return count
        control[Control.EVICTED] += is_open
        count -= 1
    return 0


@kernel
def end_all(flows: Flows, out: Results, slots: Array, begin: int) -> int:
    """End connections from `begin` on; return the index of the first that could not be ended yet."""
    for i in range(begin, len(slots)):
        if end(flows, out, slots[i]) == 0:
            return i
    return len(slots)
