"""What a segment does to its connection (RFC 9293 §3.10.7.4, segment arrival)."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.packets.segments import ACK, FIN, RST, SYN, SegmentBatch
from amqpscope.dissector.tcp.buffered import displace, emit
from amqpscope.dissector.tcp.buffering import keep_waiting
from amqpscope.dissector.tcp.copies import is_copy, repeat
from amqpscope.dissector.tcp.identities import identify
from amqpscope.dissector.tcp.numbers import difference, first_byte
from amqpscope.dissector.tcp.opening import come_up, synchronize
from amqpscope.dissector.tcp.order import overdue, release_overdue, settled
from amqpscope.dissector.tcp.state import Conn, Control, Facts, Flows, Half, Results, Segment
from amqpscope.dissector.tcp.windows import stall, watch


@kernel
def take(
    batch: SegmentBatch, i: int, data: Array, flows: Flows, out: Results, slot: int, side: int, needs: int
) -> None:  # fmt: skip
    """Take a segment; `needs` is the position up to which it acknowledges the other direction."""
    conn, half = flows.conn, flows.half
    row = 2 * slot + side
    other = 2 * slot + 1 - side
    flags = batch.flags[i]
    at = batch.packet[i], batch.ts_ns[i], batch.capture[i]
    copy = is_copy(batch, i, flows.recent)
    conn[slot, Conn.LAST_TS] = max(conn[slot, Conn.LAST_TS], batch.ts_ns[i])
    conn[slot, Conn.LAST_PACKET] = batch.packet[i]
    if copy == 0:
        conn[slot, Conn.PACKETS] += 1
        conn[slot, Conn.BYTES] += batch.length[i]
        if flags & SYN == 0:
            half[row, Half.PACKETS] += 1
    if flags & SYN:
        synchronize(batch, i, flows, slot, side, copy, batch.ts_ns[i])
    else:
        come_up(batch, i, flows, slot, side)
    if flags & RST:
        half[row, Half.WINDOW] = -1
        half[other, Half.WINDOW] = -1
    elif flags & ACK:
        acknowledge(batch, i, flows, row, other, needs)
    if batch.length[i] > 0 and flags & RST == 0:  # a reset may carry an explanation: RFC 9293 §3.5.3
        take_bytes(batch, i, data, flows, out, slot, side, needs, copy)
    if half[row, Half.HEAD] >= 0 or half[other, Half.HEAD] >= 0:
        release_overdue(flows, out, slot, at)
    if stall(half, row, other) != half[row, Half.STALL] or stall(half, other, row) != half[other, Half.STALL]:
        watch(flows, out, slot, at)
    if flags & (FIN | RST):
        close(batch, i, flows, slot, side)


@kernel
def acknowledged(half: Array, row: int, ack: int) -> int:
    """Position in a direction up to which this number acknowledges it."""
    if half[row, Half.STARTED] == 0:
        return 0
    acked: int = half[row, Half.POS] + difference(ack, half[row, Half.NEXT])
    # A FIN counts as a byte, and may have been missed.
    return acked - 1 if acked == half[row, Half.TOP] + 1 else acked


@kernel
def acknowledge(batch: SegmentBatch, i: int, flows: Flows, row: int, other: int, acked: int) -> None:
    """Take what a side says of the bytes it received, and of the room it has for more."""
    half, segments = flows.half, flows.segments
    if half[other, Half.STARTED]:
        before = half[other, Half.ACKED]
        if acked > before:
            head = half[other, Half.HEAD]
            # What is missing was acknowledged once, though bytes behind it go on to be.
            if before <= half[other, Half.POS] or (head >= 0 and before < segments[head, Segment.POS]):
                half[other, Half.ACK_TS] = batch.ts_ns[i]
            half[other, Half.ACKED] = acked
        elif acked < before:
            return  # overtaken by a later one
    if batch.flags[i] & SYN == 0:  # where the window is never scaled
        half[row, Half.WINDOW] = batch.window[i]


@kernel
def take_bytes(
    batch: SegmentBatch, i: int, data: Array, flows: Flows, out: Results, slot: int, side: int, needs: int, copy: int
) -> None:  # fmt: skip
    """Emit or buffer what is new of a segment's bytes."""
    half = flows.half
    row = 2 * slot + side
    other = 2 * slot + 1 - side
    start = first_byte(batch, i)
    length = batch.length[i]
    if half[row, Half.STARTED] == 0:
        half[row, Half.STARTED] = 1
        half[row, Half.NEXT] = start
    if flows.facts[slot, Facts.ID] == 0:
        identify(flows, slot, start, batch.ts_ns[i])
    again = Half.TWICE if copy else Half.AGAIN
    here = half[row, Half.POS]
    pos = here + difference(start, half[row, Half.NEXT])
    behind = pos + length
    if not copy and behind <= half[row, Half.TOP] and not (length == 1 and behind == half[row, Half.TOP]):
        repeat(flows, row, length, (batch.packet[i], batch.ts_ns[i], batch.capture[i]))
    if behind <= here:
        if not (length == 1 and pos == here - 1):  # a keep-alive is no loss
            half[row, again] += length
        return
    half[row, again] += max(here - pos, 0)
    if behind <= half[row, Half.ACKED]:
        needs = 0  # sent again, or captured late: that tells nothing of when the bytes were first sent
    half[row, Half.TOP] = max(half[row, Half.TOP], behind)
    if flows.conn[slot, Conn.CLOSER] < 0:
        half[row, Half.SAID_TS] = batch.ts_ns[i]
    if half[row, Half.ELSEWHERE]:
        displace(flows, row, pos, behind)
    if (
        pos > here
        or half[row, Half.HEAD] >= 0
        or needs > settled(flows, other, overdue(flows, other, flows.control[Control.CLOCK]))
    ):
        keep_waiting(batch, i, data, flows, out, slot, side, pos, again, needs)
    else:
        emit_whole(batch, i, flows, out, slot, side, pos)


@kernel
def emit_whole(batch: SegmentBatch, i: int, flows: Flows, out: Results, slot: int, side: int, pos: int) -> None:
    """Emit what is new of a segment that begins at `pos` and waits for nothing."""
    half = flows.half
    row = 2 * slot + side
    at = batch.packet[i], batch.ts_ns[i], batch.capture[i]
    here = half[row, Half.POS]
    behind = pos + batch.length[i]
    skip = here - pos
    caplen = batch.caplen[i]
    if caplen > skip:
        emit(out, slot, side, here, batch.offset[i] + skip, caplen - skip, at, at)
    cut = batch.length[i] - max(caplen, skip)  # the snap length may have cut some off
    if cut > 0:
        half[row, Half.LOST] += cut
        emit(out, slot, side, behind - cut, -1, cut, at, at)
    half[row, Half.POS] = behind
    half[row, Half.NEXT] = (half[row, Half.NEXT] + behind - here) & 0xFFFFFFFF


@kernel
def close(batch: SegmentBatch, i: int, flows: Flows, slot: int, side: int) -> None:
    """Note a FIN or a RST."""
    conn, half = flows.conn, flows.half
    row = 2 * slot + side
    is_reset = batch.flags[i] & RST
    if conn[slot, Conn.CLOSER] < 0:
        conn[slot, Conn.CLOSER] = side
    conn[slot, Conn.CLOSED] |= 4 if is_reset else 1 << side
    if half[row, Half.END] == 0:
        half[row, Half.END] = RST if is_reset else FIN
        half[row, Half.END_TS] = batch.ts_ns[i]
        half[row, Half.END_PACKET] = batch.packet[i]
        half[row, Half.END_CAPTURE] = batch.capture[i]
