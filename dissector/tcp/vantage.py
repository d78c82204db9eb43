"""Take segments seen at another capture point than the one whose times count for the connection.

Rows are those of the connection's own point. What others have seen is buffered, and emitted in place of gaps only
(`emit_in_order.pass_missing`).
"""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.packets.segments import ACK, FIN, RST, SYN, SegmentBatch
from amqpscope.dissector.tcp.buffering import crowded
from amqpscope.dissector.tcp.copies import earlier, remember
from amqpscope.dissector.tcp.emit_in_order import GAP_NS, flush_both
from amqpscope.dissector.tcp.faults import note
from amqpscope.dissector.tcp.identities import identify
from amqpscope.dissector.tcp.numbers import difference, first_byte, side_of
from amqpscope.dissector.tcp.opening import synchronize
from amqpscope.dissector.tcp.reorder_queue import drop_before, store
from amqpscope.dissector.tcp.state import (
    POINTS,
    STARTED_ELSEWHERE,
    Conn,
    Control,
    Direction,
    Facts,
    Flows,
    Queue,
    Results,
    Segment,
)

MOST_FARTHER = 32
"""Segments seen at a farther point of the same file that the nearest one may lack."""
SILENT_NS = 60_000_000_000
"""Time without a segment at the own point after which another one goes on in its place."""


@kernel
def is_elsewhere(batch: SegmentBatch, i: int, flows: Flows, slot: int) -> bool:
    """Return whether a segment was seen at another point than the connection's, which counts again when it returns."""
    conn = flows.conn
    point = flows.points[batch.capture[i]]
    if point == conn[slot, Conn.VANTAGE_CAPTURE]:
        conn[slot, Conn.POINT_CAPTURE] = point
    is_there: bool = point != conn[slot, Conn.POINT_CAPTURE] and not completes(flows, slot, side_of(batch, i), point)
    if not is_there:
        flows.direction[2 * slot + side_of(batch, i), Direction.POINT] = point + 1
    return is_there


@kernel
def completes(flows: Flows, slot: int, side: int, point: int) -> bool:
    """Return whether a point shows a direction that the connection's own one lacks, and nothing of the other one.

    So it is where each direction has a file: both are one capture point.
    """
    taken = flows.direction[2 * slot + side, Direction.POINT]
    is_only: bool = taken == 0 or taken == point + 1
    return is_only and flows.direction[2 * slot + 1 - side, Direction.ELSEWHERE] == 0


@kernel
def count_points(batch: SegmentBatch, i: int, flows: Flows, out: Results, slot: int, side: int) -> None:
    """Note at the client's first packet after the SYNs whether the file has several capture points.

    Then SYN and SYN-ACK were there several times: on the way to the client, a packet has passed all points but the one
    that is nearest to it, which counts.
    """
    conn, direction = flows.conn, flows.direction
    row, other = 2 * slot + side, 2 * slot + 1 - side
    if side != conn[slot, Conn.UP_SIDE] or direction[row, Direction.PACKETS] or batch.flags[i] & SYN:
        return
    copies = min(direction[row, Direction.SYN_COPIES], direction[other, Direction.SYN_COPIES])
    if flows.facts[slot, Facts.SYN] == 3 and copies > 0 and conn[slot, Conn.POINTS] == 0:
        conn[slot, Conn.POINTS] = copies + 1
        note(out, slot, side, POINTS, -1, copies + 1, (batch.packet[i], batch.ts_ns[i], batch.capture[i]))


@kernel
def is_farther(batch: SegmentBatch, i: int, flows: Flows, slot: int, side: int) -> bool:
    """Return whether a segment to the client was seen at a point of the file that is not the nearest to the client."""
    conn = flows.conn
    row = 2 * slot + side
    if conn[slot, Conn.POINTS] == 0 or side == conn[slot, Conn.UP_SIDE]:
        return False
    if flows.elsewhere[row, Queue.COUNT] > MOST_FARTHER:  # nothing comes from the nearest any more
        conn[slot, Conn.POINTS] = 0
        return False
    if earlier(batch, i, flows, row)[0] + 1 >= conn[slot, Conn.POINTS]:
        return False
    remember(batch, i, flows, row)
    return True


@kernel
def is_silent(conn: Array, slot: int, now: int) -> bool:
    """Return whether a connection's own point has seen nothing for long."""
    late: bool = conn[slot, Conn.LAST_TS] + SILENT_NS < now
    return late


@kernel
def goes_on(batch: SegmentBatch, i: int, flows: Flows, out: Results, slot: int, side: int) -> bool:
    """Return whether this other point is the connection's from here on, because its own sees nothing any more.

    New bytes show that: a minute after the last at the own point, or a second if more than may be buffered.
    """
    conn, direction = flows.conn, flows.direction
    row = 2 * slot + side
    now = batch.ts_ns[i]
    is_full = crowded(flows.elsewhere, row) and conn[slot, Conn.LAST_TS] + GAP_NS < now
    if batch.length[i] == 0 or conn[slot, Conn.ASIDE] or not (is_full or is_silent(conn, slot, now)):
        return False
    if direction[row, Direction.STARTED]:
        end = difference(first_byte(batch, i), direction[row, Direction.NEXT]) + batch.length[i]
        if end <= 0:
            return False
    flush_both(flows, out, slot, last_elsewhere(flows, 2 * slot), last_elsewhere(flows, 2 * slot + 1))
    conn[slot, Conn.POINT_CAPTURE] = flows.points[batch.capture[i]]
    return True


@kernel
def last_elsewhere(flows: Flows, row: int) -> int:
    """Return the end of what other points have seen of a direction, as far as they show it as acknowledged."""
    tail = flows.elsewhere[row, Queue.TAIL]
    if tail < 0:
        return 0
    end: int = flows.segments[tail, Segment.POS] + flows.segments[tail, Segment.LENGTH]
    acked: int = flows.elsewhere[row, Queue.ACKED]
    return min(end, acked)


@kernel
def take_elsewhere(batch: SegmentBatch, i: int, data: Array, flows: Flows, slot: int, side: int, needs: int) -> None:
    """Take a segment seen elsewhere, as far as the connection's own point may have missed it."""
    conn, direction, elsewhere = flows.conn, flows.direction, flows.elsewhere
    row = 2 * slot + side
    other = 2 * slot + 1 - side
    direction[row, Direction.ELSEWHERE] = 1
    if batch.flags[i] & SYN:
        isn = batch.seq[i] if batch.flags[i] & ACK == 0 else (batch.ack[i] - 1) & 0xFFFFFFFF
        is_same = flows.facts[slot, Facts.SYN] != 0 and conn[slot, Conn.ISN] == isn
        conn[slot, Conn.ASIDE] = 0 if is_same else 1
        if is_same and direction[row, Direction.SYNS] == 0:
            synchronize(batch, i, flows, slot, side, 1, conn[slot, Conn.LAST_TS])
    if conn[slot, Conn.ASIDE]:
        return
    if batch.length[i] > 0 and batch.flags[i] & RST == 0:
        fill(batch, i, data, flows, slot, side, needs)
    if batch.flags[i] & ACK and direction[other, Direction.STARTED]:
        elsewhere[other, Queue.ACKED] = max(elsewhere[other, Queue.ACKED], needs)
    if batch.flags[i] & (FIN | RST) and elsewhere[row, Queue.END] == 0:
        elsewhere[row, Queue.END] = RST if batch.flags[i] & RST else FIN
        elsewhere[row, Queue.END_SEEN] = flows.control[Control.SEGMENTS]
        elsewhere[row, Queue.END_TS] = batch.ts_ns[i]
        elsewhere[row, Queue.END_PACKET] = batch.packet[i]
        elsewhere[row, Queue.END_CAPTURE] = batch.capture[i]


@kernel
def close_elsewhere(flows: Flows, slot: int) -> None:
    """Take a FIN or RST from other points, at the end of a connection of which the own point saw none."""
    conn, direction, elsewhere = flows.conn, flows.direction, flows.elsewhere
    if conn[slot, Conn.CLOSED]:
        return
    for side in range(2):
        row = 2 * slot + side
        if direction[2 * slot, Direction.ELSEWHERE] or direction[2 * slot + 1, Direction.ELSEWHERE]:
            direction[row, Direction.UNACKED_TS] = 0  # what the own point has not seen acknowledged another may have
        if elsewhere[row, Queue.END]:
            direction[row, Direction.END] = elsewhere[row, Queue.END]
            direction[row, Direction.END_TS] = elsewhere[row, Queue.END_TS]
            direction[row, Direction.END_PACKET] = elsewhere[row, Queue.END_PACKET]
            direction[row, Direction.END_CAPTURE] = elsewhere[row, Queue.END_CAPTURE]
            if conn[slot, Conn.CLOSER] < 0 or elsewhere[row, Queue.END_SEEN] < elsewhere[row - 1, Queue.END_SEEN]:
                conn[slot, Conn.CLOSER] = side
            conn[slot, Conn.CLOSED] |= 4 if elsewhere[row, Queue.END] == RST else 1 << side


@kernel
def fill(batch: SegmentBatch, i: int, data: Array, flows: Flows, slot: int, side: int, needs: int) -> None:
    """Buffer a segment's bytes in case the connection's own point missed them."""
    direction, elsewhere = flows.direction, flows.elsewhere
    row = 2 * slot + side
    start = first_byte(batch, i)
    caplen = min(batch.caplen[i], batch.length[i])
    if direction[row, Direction.STARTED] == 0:
        direction[row, Direction.STARTED] = STARTED_ELSEWHERE
        direction[row, Direction.NEXT] = start
    here = direction[row, Direction.POS]
    pos = here + difference(start, direction[row, Direction.NEXT])
    skip = min(max(here - pos, 0), caplen)
    direction[row, Direction.TWICE] += skip
    drop_before(flows, row, here)
    known = max(direction[row, Direction.TOP], direction[row, Direction.ACKED])
    if skip == caplen or pos > known + limits.WAITING_BYTES_PER_STREAM or crowded(elsewhere, row):
        return
    if flows.facts[slot, Facts.ID] == 0 and flows.conn[slot, Conn.UNSETTLED] == 0:
        identify(flows, slot, start, flows.conn[slot, Conn.LAST_TS])
    if pos + batch.length[i] <= elsewhere[row, Queue.ACKED]:
        needs = 0  # retransmitted: what it acknowledges may be later than its bytes
    at = batch.packet[i], batch.ts_ns[i], batch.capture[i]
    store(data, flows, elsewhere, row, Direction.TWICE, pos + skip, caplen - skip, batch.offset[i] + skip, at, needs)
