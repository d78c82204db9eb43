"""End connections: closed long ago, followed by another one, evicted, or at the end of the captures."""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.packets.segments import RST
from amqpscope.dissector.tcp.emit_in_order import ANYWHERE, flush, flush_both
from amqpscope.dissector.tcp.events import forget, observe_late_resets
from amqpscope.dissector.tcp.faults import note
from amqpscope.dissector.tcp.full_links import finish_both
from amqpscope.dissector.tcp.identities import identify
from amqpscope.dissector.tcp.late_syn import settle
from amqpscope.dissector.tcp.reorder_queue import buffered, drop_before
from amqpscope.dissector.tcp.slots import LINGER_NS, closed, ends_of, find, replaced_by, unlink
from amqpscope.dissector.tcp.state import (
    CLOSED,
    IDENTITIES,
    LEFT_OUT,
    OPEN,
    READ,
    REUSED,
    STARTED_BY_OTHER,
    TWICE,
    Conn,
    Control,
    Count,
    Direction,
    Facts,
    Flows,
    List,
    Queue,
    Results,
)
from amqpscope.dissector.tcp.vantage import close_elsewhere, last_elsewhere
from amqpscope.dissector.tcp.windows import change

LINGER_SEGMENTS = 256
"""Segments of other connections before a closed connection ends: a few wrong times end nothing."""
SEGMENT_COST = 1024
"""Bytes that a buffered segment counts for besides its data."""


@kernel
def sent(flows: Flows, slot: int, side: int) -> int:
    """Return the position up to which a side has sent, as far as anything shows it."""
    direction = flows.direction
    row = 2 * slot + side
    if direction[row, Direction.STARTED] == 0 or direction[row, Direction.STARTED] >= STARTED_BY_OTHER:
        return 0
    if direction[row, Direction.FIN] >= 0:
        fin: int = direction[row, Direction.FIN]
        return fin
    end: int = max(direction[row, Direction.SHOWN], direction[row, Direction.ACKED])
    # A FIN counts as a byte, and the capture may have missed it.
    return end - 1 if end == direction[row, Direction.TOP] + 1 else end


@kernel
def end(flows: Flows, out: Results, slot: int) -> int:
    """End a connection, and before it the one that it has replaced. Return 0 when there is no room for results yet."""
    return 1 if end_replaced(flows, out, slot) and end_one(flows, out, slot) else 0


@kernel
def end_replaced(flows: Flows, out: Results, slot: int) -> int:
    """End the connection that this one has replaced, if it is there. Return 0 when there is no room for results."""
    before = replaced_by(flows, slot)
    if before >= 0 and end_one(flows, out, before) == 0:
        return 0
    flows.conn[slot, Conn.FOLLOWS] = 0
    return 1


@kernel
def end_one(flows: Flows, out: Results, slot: int) -> int:
    """Emit all that a connection has buffered, over gaps, and end it. Return 0 when there is no room for results."""
    conn, direction, control, counts = flows.conn, flows.direction, flows.control, out.counts
    if 2 * control[Control.KNOWN] >= len(flows.younger):
        control[Control.WANT] = IDENTITIES
        return 0
    count = buffered(flows, slot)
    if (
        counts[Count.CHUNKS] + 2 * count + 8 > out.chunks.shape[1]
        or counts[Count.WINDOWS] + 2 > out.windows.shape[1]
        or counts[Count.FAULTS] + 3 > out.faults.shape[1]
        or counts[Count.EVENTS] + 4 > out.events.shape[1]
        or counts[Count.ENDED] == len(out.ended)
    ):
        control[Control.WANT] = READ
        return 0
    settle(flows, slot)
    if flows.facts[slot, Facts.ID] == 0:  # neither SYN nor data
        identify(flows, slot, conn[slot, Conn.ISN], conn[slot, Conn.FIRST_TS])
    observe_late_resets(flows, out, slot)
    finish_both(flows, out, slot)
    forget(flows, slot)
    if conn[slot, Conn.TWICE]:
        at = conn[slot, Conn.FIRST_PACKET], conn[slot, Conn.FIRST_TS], conn[slot, Conn.FIRST_CAPTURE]
        note(out, slot, conn[slot, Conn.UP_SIDE], TWICE, -1, conn[slot, Conn.PACKETS], at)
    end_0 = max(sent(flows, slot, 0), last_elsewhere(flows, 2 * slot))
    end_1 = max(sent(flows, slot, 1), last_elsewhere(flows, 2 * slot + 1))
    flush_both(flows, out, slot, end_0, end_1)
    close_elsewhere(flows, slot)
    for side in range(2):
        if direction[2 * slot + side, Direction.END] != 0 or direction[2 * slot + 1 - side, Direction.END] == RST:
            flows.facts[slot, Facts.ENDED] |= 1 << side
        drop_before(flows, 2 * slot + side, ANYWHERE)
        if direction[2 * slot + side, Direction.STALL]:
            change(flows, out, slot, side, 0, (0, conn[slot, Conn.LAST_TS], 0))
    left_out = conn[slot, Conn.EVENTS] - limits.TCP_EVENTS_PER_CONNECTION
    if left_out > 0:
        at = conn[slot, Conn.LAST_PACKET], conn[slot, Conn.LAST_TS], conn[slot, Conn.LAST_CAPTURE]
        note(out, slot, conn[slot, Conn.UP_SIDE], LEFT_OUT, -1, left_out, at)
    if conn[slot, Conn.REPLACED]:
        place = find(flows, ends_of(flows.facts, slot), 0)
        if place >= 0:
            note_reuse(flows, out, slot, flows.table[place] - 1)
    flows.table[find(flows, ends_of(flows.facts, slot), conn[slot, Conn.REPLACED])] = -1
    control[Control.TOMBSTONES] += 1
    unlink(flows, slot)
    flows.facts[slot, Facts.USED] = 2
    control[Control.LIVE] -= 1
    out.ended[counts[Count.ENDED]] = slot
    counts[Count.ENDED] += 1
    return 1


@kernel
def note_reuse(flows: Flows, out: Results, slot: int, by: int) -> None:
    """Note that another connection began with the endpoints of one whose end was not seen."""
    conn = flows.conn
    if closed(conn, slot) == 0:
        at = conn[by, Conn.FIRST_PACKET], conn[by, Conn.FIRST_TS], conn[by, Conn.FIRST_CAPTURE]
        note(out, slot, conn[by, Conn.UP_SIDE], REUSED, -1, conn[slot, Conn.PACKETS], at)


@kernel
def relieve(flows: Flows, out: Results) -> None:
    """Emit, over gaps, what directions with half of the mean or more have buffered: together, that is more than half.

    There must be no chunks yet, and room for two chunks per buffered segment.
    """
    total = count = 0
    for row in range(flows.direction.shape[0]):
        cost = weight(flows.queues, row) + weight(flows.elsewhere, row)
        total += cost
        count += 1 if cost else 0
    for row in range(flows.direction.shape[0]):
        cost = weight(flows.queues, row) + weight(flows.elsewhere, row)
        if cost and 2 * cost * count >= total:
            flush(flows, out, row >> 1, row & 1)
            drop_before(flows, row, ANYWHERE)


@kernel
def weight(queues: Array, row: int) -> int:
    """Return what a queue of a direction costs, in bytes."""
    cost: int = queues[row, Queue.BYTES] + SEGMENT_COST * queues[row, Queue.COUNT]
    return cost


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
        if flows.facts[slots[i], Facts.USED] == 1 and end(flows, out, slots[i]) == 0:
            return i
    return len(slots)
