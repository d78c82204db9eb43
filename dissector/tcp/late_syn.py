"""Connections that begin without a SYN: their first bytes wait for a moment, for captures may have the SYN after them.

Several queues of a network card deliver packets in an order of their own.
"""

from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.packets.segments import ACK, SegmentBatch
from amqpscope.dissector.tcp.identities import identify
from amqpscope.dissector.tcp.numbers import difference
from amqpscope.dissector.tcp.state import STARTED_HERE, Conn, Direction, Facts, Flows, Queue, Segment

SETTLE_NS = 10_000_000
"""Time for which a SYN may come late."""
SETTLE_PACKETS = 4
"""Packets of the connection that may come before it."""
SETTLE_BYTES = 1 << 16
"""Bytes of a direction that may come before it."""


@kernel
def is_due(flows: Flows, slot: int) -> bool:
    """Return whether a connection has waited long enough for its SYN."""
    conn = flows.conn
    late: bool = conn[slot, Conn.CLOCK] > conn[slot, Conn.FIRST_TS] + SETTLE_NS
    return late or conn[slot, Conn.PACKETS] > SETTLE_PACKETS


@kernel
def begins(batch: SegmentBatch, i: int, flows: Flows, slot: int, side: int) -> bool:
    """Return whether this SYN may be the late one of a connection that waits for it."""
    conn, direction = flows.conn, flows.direction
    if conn[slot, Conn.UNSETTLED] == 0 or batch.ts_ns[i] > conn[slot, Conn.FIRST_TS] + SETTLE_NS:
        return False
    if direction[2 * slot + side, Direction.STARTED]:
        first = direction[2 * slot + side, Direction.NEXT]
    elif conn[slot, Conn.UP_SIDE] == side:
        first = conn[slot, Conn.ISN]
    else:
        return True
    ahead = difference(first, batch.seq[i] + 1)
    return 0 <= ahead <= SETTLE_BYTES


@kernel
def rebase(flows: Flows, slot: int, side: int, first: int) -> None:
    """Let a direction of which nothing was emitted begin at sequence number `first`."""
    direction = flows.direction
    row = 2 * slot + side
    ahead = difference(direction[row, Direction.NEXT], first) if direction[row, Direction.STARTED] else 0
    if not 0 <= ahead <= SETTLE_BYTES:
        return
    direction[row, Direction.STARTED] = STARTED_HERE
    direction[row, Direction.NEXT] = first & 0xFFFFFFFF
    flows.facts[slot, Facts.UNDER_WAY_A + side] -= ahead
    direction[row, Direction.TOP] += ahead
    direction[row, Direction.ACKED] += ahead
    if direction[row, Direction.FIN] >= 0:
        direction[row, Direction.FIN] += ahead
    direction[row, Direction.SHOWN] += ahead
    for queues in (flows.queues, flows.elsewhere):
        shift(flows, queues[row, Queue.HEAD], Segment.POS, ahead)
        shift(flows, queues[2 * slot + 1 - side, Queue.HEAD], Segment.NEEDS, ahead)


@kernel
def shift(flows: Flows, first: int, column: int, by: int) -> None:
    """Add to a column of the buffered segments of a list."""
    while first >= 0:
        flows.segments[first, column] += by
        first = flows.segments[first, Segment.NEXT]


@kernel
def rebase_by_syn(batch: SegmentBatch, i: int, flows: Flows, slot: int, side: int) -> None:
    """Let the directions of a connection that waits for its SYN begin where this SYN or SYN-ACK shows."""
    rebase(flows, slot, side, batch.seq[i] + 1)
    if batch.flags[i] & ACK:
        rebase(flows, slot, 1 - side, batch.ack[i])
    conn = flows.conn
    conn[slot, Conn.UNSETTLED] = 0
    if conn[slot, Conn.UP_SIDE] != flows.facts[slot, Facts.OPENER]:
        conn[slot, Conn.UP_TS] = 0


@kernel
def settle(flows: Flows, slot: int) -> None:
    """Wait no longer for the SYN of a connection: its identity comes from its first bytes, if there are any."""
    conn = flows.conn
    if conn[slot, Conn.UNSETTLED] == 0:
        return
    conn[slot, Conn.UNSETTLED] = 0
    conn[slot, Conn.UP_TS] = 0
    earliest = oldest(flows, flows.queues[2 * slot, Queue.HEAD])
    other = oldest(flows, flows.queues[2 * slot + 1, Queue.HEAD])
    row = 2 * slot
    if earliest < 0 or (other >= 0 and flows.segments[other, Segment.SEEN] < flows.segments[earliest, Segment.SEEN]):
        earliest = other
        row += 1
    if earliest >= 0 and flows.facts[slot, Facts.ID] == 0:
        start = flows.direction[row, Direction.NEXT] + flows.segments[earliest, Segment.POS]
        identify(flows, slot, start & 0xFFFFFFFF, flows.segments[earliest, Segment.TS])


@kernel
def oldest(flows: Flows, first: int) -> int:
    """Return the segment of a list that came first; -1: there is none."""
    found = first
    while first >= 0:
        if flows.segments[first, Segment.SEEN] < flows.segments[found, Segment.SEEN]:
            found = first
        first = flows.segments[first, Segment.NEXT]
    return found
