"""Walk over segments, in capture order, and pass each to its connection.

Source: RFC 9293 §3.4 (sequence numbers).
"""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.packets.segments import ACK, SYN, SegmentBatch
from amqpscope.dissector.tcp.arrival import acknowledged, take
from amqpscope.dissector.tcp.copies import LATE_COPY_NS
from amqpscope.dissector.tcp.endings import due, end, end_replaced, expire
from amqpscope.dissector.tcp.faults import note
from amqpscope.dissector.tcp.identities import identity, is_known
from amqpscope.dissector.tcp.idle_timeout import IDLE_NS, release_idle, sweep, waits
from amqpscope.dissector.tcp.late_syn import begins
from amqpscope.dissector.tcp.numbers import Ends, endpoints, side_of
from amqpscope.dissector.tcp.reorder_queue import buffered
from amqpscope.dissector.tcp.replaced import LATE_NS, is_late, replace
from amqpscope.dissector.tcp.slots import closed, find, later, open_slot, over, replaced_by, touch
from amqpscope.dissector.tcp.state import (
    BY_CONTENT,
    CROWDED,
    FEWER,
    IDENTITIES,
    READ,
    REUSED,
    SEGMENTS,
    SENT,
    SLOT,
    Conn,
    Control,
    Count,
    Direction,
    Facts,
    Flows,
    Results,
)
from amqpscope.dissector.tcp.vantage import (
    count_points,
    goes_on,
    is_elsewhere,
    is_farther,
    is_silent,
    take_elsewhere,
)


@kernel
def reassemble(batch: SegmentBatch, begin: int, most: int, data: Array, flows: Flows, out: Results) -> int:
    """Take segments from `begin` on; return the index of the first not taken, with the reason in Control.WANT.

    The result depends on the sequence of segments alone, not on where the walk stopped: it takes a whole segment, or
    only ends connections for it. At most `most` connections are open.
    """
    control = flows.control
    for i in range(begin, len(batch.ts_ns)):
        now = batch.ts_ns[i]
        control[Control.CLOCK] = later(control[Control.CLOCK], now)
        side = side_of(batch, i)
        slot = slot_of(batch, i, side, most, flows, out)
        if slot < 0:
            return i
        needs = acknowledged(flows.direction, 2 * slot + 1 - side, batch.ack[i]) if batch.flags[i] & ACK else 0
        if is_elsewhere(batch, i, flows, slot):
            is_own = goes_on(batch, i, flows, out, slot, side)
        else:
            count_points(batch, i, flows, out, slot, side)
            is_own = not is_farther(batch, i, flows, slot, side)
        if not is_own:
            take_elsewhere(batch, i, data, flows, slot, side, needs)
        else:
            flows.conn[slot, Conn.CLOCK] = later(flows.conn[slot, Conn.CLOCK], now)
            take(batch, i, data, flows, out, slot, side, needs)
        touch(flows, slot)
        control[Control.SEGMENTS] += 1
    return len(batch.ts_ns)


@kernel
def slot_of(batch: SegmentBatch, i: int, side: int, most: int, flows: Flows, out: Results) -> int:
    """Return the slot of a segment's connection, which may begin with it and end another; -1 when there is no room."""
    table, control, conn = flows.table, flows.control, flows.conn
    clock = control[Control.CLOCK]
    if (due(flows, clock) and expire(flows, out, clock) == 0) or sweep(flows, out, clock) == 0:
        return -1
    ends = endpoints(batch, i, side)
    place = find(flows, ends, 0)
    slot = table[place] - 1 if place >= 0 else -1
    earlier = replaced_by(flows, slot) if slot >= 0 else -1
    if earlier >= 0 and batch.ts_ns[i] > conn[slot, Conn.FIRST_TS] + LATE_NS:
        if end_replaced(flows, out, slot) == 0:
            return -1
        earlier = -1
    is_earlier = earlier >= 0 and is_late(batch, i, side, flows, slot, earlier)
    if is_earlier:
        slot = earlier
    control[Control.WANT] = wanted(batch, i, flows, out, slot)
    if control[Control.WANT] >= 0:
        return -1
    if slot >= 0 and waits(flows, slot, batch.ts_ns[i] - IDLE_NS):
        release_idle(flows, out, slot)
        control[Control.WANT] = READ  # it is read as what the connection was
        return -1
    if is_earlier or (slot >= 0 and not is_followed(batch, i, side, flows, slot)):
        return slot
    if slot < 0:
        return begin_connection(batch, i, flows, ends, most, 0, 0)
    if end_replaced(flows, out, slot) == 0:
        return -1
    if flows.free[0] == 0 and control[Control.LIVE] < most:
        control[Control.WANT] = SLOT
        return -1
    if over(conn, slot, batch.ts_ns[i]):
        return begin_connection(batch, i, flows, ends, most, 0, 0) if end(flows, out, slot) else -1
    before = conn[slot, Conn.BEFORE] + 1
    if control[Control.LIVE] < most:
        replace(flows, slot, place)
        return begin_connection(batch, i, flows, ends, most, before, 1)
    count = conn[slot, Conn.PACKETS]
    is_reused = closed(flows.conn, slot) == 0
    if end(flows, out, slot) == 0:
        return -1
    if is_reused:
        note(out, slot, side, REUSED, -1, count, (batch.packet[i], batch.ts_ns[i], batch.capture[i]))
    return begin_connection(batch, i, flows, ends, most, before, 0)


@kernel
def begin_connection(
    batch: SegmentBatch, i: int, flows: Flows, ends: Ends, most: int, before: int, is_beside: int
) -> int:  # fmt: skip
    """Take a slot for a connection that begins with a segment, and enter it in the hash table; -1: there is no room."""
    table, control = flows.table, flows.control
    if control[Control.LIVE] >= most:
        control[Control.WANT] = FEWER
        return -1
    if flows.free[0] == 0:
        control[Control.WANT] = SLOT
        return -1
    slot = open_slot(batch, i, flows, ends, before, is_beside)
    place = -1 - find(flows, ends, 0)
    if table[place] < 0:
        control[Control.TOMBSTONES] -= 1
    table[place] = slot + 1
    return slot


@kernel
def wanted(batch: SegmentBatch, i: int, flows: Flows, out: Results, slot: int) -> int:
    """Return what needs room before a segment of this connection (-1: a new one) is taken; -1: nothing."""
    direction, control, counts = flows.direction, flows.control, out.counts
    if 2 * control[Control.KNOWN] >= len(flows.younger):
        return IDENTITIES
    count = 0
    is_late = False
    shows_client = False
    if slot >= 0:
        count = buffered(flows, slot)
        # What the reader of earlier chunks knows of the connection must not depend on a later SYN.
        seen = flows.facts[slot, Facts.SYN]
        emitted = direction[2 * slot, Direction.POS] + direction[2 * slot + 1, Direction.POS]
        if batch.flags[i] & SYN and seen != 0 and emitted > 0:
            is_late = seen & (2 if batch.flags[i] & ACK else 1) == 0
        # A SYN shows who the client is, and so do bytes: earlier rows are made with what was known then.
        is_shown = flows.facts[slot, Facts.ROLES_BY] >= BY_CONTENT or flows.facts[slot, Facts.FRAMES] > 0
        if flows.facts[slot, Facts.OPENER] < 0 and not is_shown:
            shows_client = batch.flags[i] & SYN != 0 or batch.length[i] > 0
    if (
        (is_late and counts[Count.CHUNKS] > 0)
        or (shows_client and counts[Count.FAULTS] + counts[Count.WINDOWS] + counts[Count.EVENTS] > 0)
        or counts[Count.CHUNKS] + 2 * count + 8 > out.chunks.shape[1]
        or counts[Count.FAULTS] + 3 > out.faults.shape[1]
        or counts[Count.WINDOWS] + 4 > out.windows.shape[1]
        or counts[Count.EVENTS] + 8 > out.events.shape[1]
        or counts[Count.ACKS] == out.acks.shape[1]
    ):
        return READ
    if flows.free_sending[0] == 0 or (flows.free_sent[0] == 0 and control[Control.UNTIMED] == 0):
        return SENT
    if flows.free_segments[0] < count + 4:
        return SEGMENTS if flows.segments.shape[0] < limits.WAITING_PARTS else CROWDED
    return CROWDED if control[Control.WAITING] > limits.WAITING_BYTES else -1


@kernel
def is_followed(batch: SegmentBatch, i: int, side: int, flows: Flows, slot: int) -> bool:
    """Return whether a segment with the endpoints of this connection belongs to a later one."""
    facts, conn = flows.facts, flows.conn
    if over(conn, slot, batch.ts_ns[i]):
        return True
    if batch.flags[i] & SYN == 0:
        return False
    is_answer = batch.flags[i] & ACK != 0
    opener = 1 - side if is_answer else side
    isn = (batch.ack[i] - 1) & 0xFFFFFFFF if is_answer else batch.seq[i]
    if is_answer and facts[slot, Facts.SYN] & 2 == 0 and closed(conn, slot) == 0:
        return False
    if facts[slot, Facts.SYN] != 0:
        if facts[slot, Facts.OPENER] != opener or conn[slot, Conn.ISN] == isn:
            return False
    elif not is_answer and begins(batch, i, flows, slot, side):
        return False
    is_of_earlier = is_known(flows, identity(facts, slot, isn, 0))
    if conn[slot, Conn.POINT_CAPTURE] == flows.points[batch.capture[i]]:
        return not is_of_earlier or batch.ts_ns[i] > conn[slot, Conn.FIRST_TS] + LATE_COPY_NS
    # Another capture point may see the next connection before ours sees the end of this one, and an earlier one later.
    if is_of_earlier:
        return False
    return closed(conn, slot) != 0 or is_silent(conn, slot, batch.ts_ns[i])
