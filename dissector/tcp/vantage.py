"""Take segments seen at another capture point than the one whose times count for the connection."""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.packets.segments import ACK, RST, SYN, SegmentBatch
from amqpscope.dissector.tcp.buffered import store
from amqpscope.dissector.tcp.buffering import crowded
from amqpscope.dissector.tcp.identities import identify
from amqpscope.dissector.tcp.numbers import difference, first_byte
from amqpscope.dissector.tcp.opening import synchronize
from amqpscope.dissector.tcp.order import GAP_NS, release_overdue
from amqpscope.dissector.tcp.state import Conn, Control, Direction, Facts, Flows, Results


@kernel
def is_elsewhere(batch: SegmentBatch, i: int, flows: Flows, slot: int, side: int) -> bool:
    """Return whether a segment was seen elsewhere. New bytes long after the last at the own point change that point."""
    direction, conn = flows.direction, flows.conn
    row = 2 * slot + side
    point = flows.points[batch.capture[i]]
    if point == conn[slot, Conn.POINT_CAPTURE]:
        return False
    end = difference(first_byte(batch, i), direction[row, Direction.NEXT]) + batch.length[i]
    new = batch.length[i] > 0 and (direction[row, Direction.STARTED] == 0 or end > 0)
    if new and conn[slot, Conn.LAST_TS] + GAP_NS < batch.ts_ns[i]:
        conn[slot, Conn.POINT_CAPTURE] = point
        return False
    return True


@kernel
def take_elsewhere(
    batch: SegmentBatch, i: int, data: Array, flows: Flows, out: Results, slot: int, side: int, needs: int
) -> None:  # fmt: skip
    """Take a segment seen elsewhere, as far as the connection's own point may have missed it.

    It gets the time of the connection's last packet: clocks differ.
    """
    now = flows.conn[slot, Conn.LAST_TS]
    if batch.flags[i] & SYN:
        isn = batch.seq[i] if batch.flags[i] & ACK == 0 else (batch.ack[i] - 1) & 0xFFFFFFFF
        if flows.facts[slot, Facts.SYN] == 0 or flows.conn[slot, Conn.ISN] != isn:
            return  # of another connection
        if flows.direction[2 * slot + side, Direction.SYNS] == 0:
            synchronize(batch, i, flows, slot, side, 1, now)
    if batch.length[i] > 0 and batch.flags[i] & RST == 0:
        fill(batch, i, data, flows, slot, side, needs)
        release_overdue(flows, out, slot, (batch.packet[i], now, batch.capture[i]))


@kernel
def fill(batch: SegmentBatch, i: int, data: Array, flows: Flows, slot: int, side: int, needs: int) -> None:
    """Buffer a segment's bytes in case the connection's own point missed them."""
    direction, control = flows.direction, flows.control
    row = 2 * slot + side
    now = flows.conn[slot, Conn.LAST_TS]
    start = first_byte(batch, i)
    caplen = min(batch.caplen[i], batch.length[i])
    if direction[row, Direction.STARTED] == 0:
        direction[row, Direction.STARTED] = 1
        direction[row, Direction.NEXT] = start
    here = direction[row, Direction.POS]
    pos = here + difference(start, direction[row, Direction.NEXT])
    skip = min(max(here - pos, 0), caplen)
    direction[row, Direction.TWICE] += skip
    if (
        skip == caplen
        or pos > max(direction[row, Direction.TOP], direction[row, Direction.ACKED]) + limits.WAITING_BYTES_PER_STREAM
        or flows.free_segments[0] < direction[row, Direction.COUNT] + 4
        or control[Control.WAITING] > limits.WAITING_BYTES
        or crowded(direction, row)
    ):
        return
    if flows.facts[slot, Facts.ID] == 0:
        identify(flows, slot, start, now)
    at = batch.packet[i], now, batch.capture[i]
    store(data, flows, row, Direction.TWICE, pos + skip, caplen - skip, batch.offset[i] + skip, at, needs, 1)
