"""Process a segment of a connection (RFC 9293 §3.10.7.4, segment arrival)."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.packets.segments import ACK, FIN, RST, SYN, SegmentBatch
from amqpscope.dissector.tcp.buffering import keep_waiting
from amqpscope.dissector.tcp.copies import is_copy, repeat
from amqpscope.dissector.tcp.emit_in_order import GAP_NS, release_overdue
from amqpscope.dissector.tcp.events import (
    observe_ack,
    observe_beyond,
    observe_bytes,
    observe_fin,
    observe_reset,
    observe_syn,
)
from amqpscope.dissector.tcp.faults import note
from amqpscope.dissector.tcp.identities import identify
from amqpscope.dissector.tcp.late_syn import is_due, rebase, settle
from amqpscope.dissector.tcp.numbered import observe_number
from amqpscope.dissector.tcp.numbers import difference, first_byte
from amqpscope.dissector.tcp.opening import come_up, infer_start, is_under_way, pass_unseen, start, synchronize
from amqpscope.dissector.tcp.reorder_queue import emit
from amqpscope.dissector.tcp.state import (
    BOTH,
    CLOCKS,
    SILENCE_NS,
    STARTED_BY_OTHER,
    STARTED_ELSEWHERE,
    STARTED_HERE,
    UNSEEN,
    Ack,
    At,
    Conn,
    Control,
    Count,
    Direction,
    Facts,
    Flows,
    Queue,
    Results,
    Segment,
)
from amqpscope.dissector.tcp.windows import announce, probe, shift, stall, watch

DISORDER_MS = 10
"""Time by which packets are out of order in usual captures."""
RESET_REACH = 1 << 20
"""Bytes beyond the highest seen that a reset may prove, or at which it may lie where no window is known. Devices on the
path forge resets, with any number."""


@kernel
def take(
    batch: SegmentBatch, i: int, data: Array, flows: Flows, out: Results, slot: int, side: int, needs: int
) -> None:  # fmt: skip
    """Take a segment; `needs` is the position up to which it acknowledges the other direction."""
    conn, direction = flows.conn, flows.direction
    row = 2 * slot + side
    other = 2 * slot + 1 - side
    flags = batch.flags[i]
    at = batch.packet[i], batch.ts_ns[i], batch.capture[i]
    usual = 0 if side == conn[slot, Conn.UP_SIDE] else max(conn[slot, Conn.POINTS] - 1, 0)
    copy, is_late = is_copy(batch, i, flows, row, brings(batch, i, direction, row, other, needs), usual)
    if is_late == 0:
        conn[slot, Conn.LAST_TS] = max(conn[slot, Conn.LAST_TS], batch.ts_ns[i])
        conn[slot, Conn.LAST_PACKET] = batch.packet[i]
        conn[slot, Conn.LAST_CAPTURE] = batch.capture[i]
    if copy == 0:
        conn[slot, Conn.PACKETS] += 1
        conn[slot, Conn.BYTES] += batch.length[i]
        if flags & SYN == 0:
            direction[row, Direction.PACKETS] += 1
    if flags & SYN:
        syns = direction[row, Direction.SYNS]
        synchronize(batch, i, flows, slot, side, copy, batch.ts_ns[i])
        observe_syn(batch, i, flows, out, slot, side, syns)
    else:
        come_up(batch, i, flows, slot, side)
        if conn[slot, Conn.UNSETTLED] and is_due(flows, slot):
            settle(flows, slot)
    if flags & (ACK | RST) == ACK:
        infer_start(batch, i, flows, slot, side)
    if conn[slot, Conn.CLOSER] < 0 and flags & (FIN | RST) == 0:
        direction[row, Direction.LAST_TS] = batch.ts_ns[i]
    if flags & RST:
        if copy == 0:
            observe_reset(batch, i, flows, out, slot, side)
        sent = position(direction, row, first_byte(batch, i))
        if not is_in_window(direction, row, other, sent):
            return
        prove_by_reset(direction, row, sent)
        prove_by_reset(direction, other, needs)
        close(batch, i, flows, slot, side)
        direction[row, Direction.WINDOW] = -1
        direction[other, Direction.WINDOW] = -1
    elif flags & ACK:
        if direction[other, Direction.STARTED]:
            observe_ack(batch, i, flows, out, slot, side, needs)
        acknowledge(batch, i, flows, row, other, needs)
        if direction[other, Direction.ACKED] > direction[other, Direction.REPORTED] and conn[slot, Conn.UNSETTLED] == 0:
            note_ack(flows, out, slot, 1 - side, at)
    if flags & (SYN | RST) == 0 and direction[row, Direction.STARTED] == STARTED_HERE:
        probe(direction, row, position(direction, row, first_byte(batch, i)), batch.length[i])
    if flags & ACK and is_beyond_by_one(batch, i, direction, other):
        direction[other, Direction.SHOWN] = max(direction[other, Direction.SHOWN], direction[other, Direction.TOP] + 1)
    if batch.length[i] > 0:
        if flags & RST == 0:  # a reset may carry an explanation: RFC 9293 §3.5.3
            take_bytes(batch, i, data, flows, out, slot, side, needs, copy)
    elif flags & RST == 0 and direction[row, Direction.STARTED]:
        if direction[row, Direction.STARTED] >= STARTED_BY_OTHER and (
            flows.facts[slot, Facts.SYN] or not is_under_way(batch, i, flows, slot, row)
        ):
            direction[row, Direction.STARTED] = STARTED_HERE
        sent = position(direction, row, first_byte(batch, i))
        direction[row, Direction.SHOWN] = max(direction[row, Direction.SHOWN], sent)
        observe_beyond(flows, row, sent, batch.ts_ns[i])
        if copy == 0 and conn[slot, Conn.UNSETTLED] == 0:
            observe_number(batch, i, flows, out, slot, side, -1)
    if lacks(flows, row) or lacks(flows, other):
        release_overdue(flows, out, slot)
    if conn[slot, Conn.UNSETTLED] == 0 and (
        stall(direction, row, other) != direction[row, Direction.STALL]
        or stall(direction, other, row) != direction[other, Direction.STALL]
    ):
        watch(flows, out, slot, at)
    if flags & (FIN | RST) == FIN:
        if copy == 0:
            observe_fin(batch, i, flows, out, slot, side)
        close(batch, i, flows, slot, side)


@kernel
def position(direction: Array, row: int, number: int) -> int:
    """Return the position in a direction of the byte with this sequence number."""
    pos: int = direction[row, Direction.POS] + difference(number, direction[row, Direction.NEXT])
    return pos


@kernel
def prove_by_reset(direction: Array, row: int, pos: int) -> None:
    """Note that a reset shows a direction to have come to a position, if that is plausible."""
    if direction[row, Direction.STARTED] and pos <= direction[row, Direction.TOP] + RESET_REACH:
        direction[row, Direction.SHOWN] = max(direction[row, Direction.SHOWN], pos)


@kernel
def is_in_window(direction: Array, row: int, other: int, pos: int) -> bool:
    """Return whether a reset lies in the window of the other side; else it is ignored, as that side does.

    Where the window is not known, it reaches RESET_REACH beyond what was seen.

    Source: RFC 9293 §3.5.3 (reset processing).
    """
    if direction[row, Direction.STARTED] != STARTED_HERE:
        return True
    scale = shift(direction, other, row)
    reach = direction[row, Direction.TOP] + RESET_REACH
    if scale >= 0 and direction[other, Direction.WINDOW] >= 0:
        reach = direction[row, Direction.ACKED] + (direction[other, Direction.WINDOW] << scale)
    is_near: bool = pos <= max(direction[row, Direction.TOP] + 1, reach)
    return is_near


@kernel
def reopen(flows: Flows, slot: int, side: int) -> None:
    """Take back the reset of a side that goes on sending: it was not this side's, or the other one ignored it."""
    conn, direction = flows.conn, flows.direction
    row = 2 * slot + side
    other = 2 * slot + 1 - side
    direction[row, Direction.END] = 0
    direction[row, Direction.END_ACKED] = -1
    direction[row, Direction.AFTER_PACKET] = 0
    if direction[other, Direction.END] != RST:
        conn[slot, Conn.CLOSED] &= 3
    conn[slot, Conn.CLOSER] = 1 - side if direction[other, Direction.END] else -1


@kernel
def is_beyond_by_one(batch: SegmentBatch, i: int, direction: Array, row: int) -> bool:
    """Return whether a segment acknowledges one byte more of a direction than was seen: a FIN that was not captured."""
    pos = position(direction, row, batch.ack[i])
    is_known: bool = direction[row, Direction.STARTED] == STARTED_HERE and direction[row, Direction.FIN] < 0
    return is_known and pos == direction[row, Direction.TOP] + 1


@kernel
def lacks(flows: Flows, row: int) -> bool:
    """Return whether a direction has buffered segments, or acknowledged bytes are missing."""
    direction = flows.direction
    is_missing: bool = direction[row, Direction.ACKED] > direction[row, Direction.POS]
    return is_missing or flows.queues[row, Queue.HEAD] >= 0


@kernel
def brings(batch: SegmentBatch, i: int, direction: Array, row: int, other: int, needs: int) -> bool:
    """Return whether a segment has bytes beyond all seen, or acknowledges bytes that were not acknowledged."""
    end = position(direction, row, first_byte(batch, i))
    is_beyond: bool = batch.length[i] > 0 and end + batch.length[i] > direction[row, Direction.TOP]
    is_acknowledged: bool = needs > direction[other, Direction.ACKED]
    return is_acknowledged or (is_beyond and direction[row, Direction.STARTED] != 0)


@kernel
def acknowledged(direction: Array, row: int, ack: int) -> int:
    """Return the position in a direction up to which this number acknowledges it."""
    if direction[row, Direction.STARTED] == 0 or direction[row, Direction.STARTED] == UNSEEN:
        return 0
    acked: int = position(direction, row, ack)
    # A FIN counts as a byte, and the capture may have missed it.
    end = direction[row, Direction.FIN] if direction[row, Direction.FIN] >= 0 else direction[row, Direction.TOP]
    return acked - 1 if acked == end + 1 else acked


@kernel
def acknowledge(batch: SegmentBatch, i: int, flows: Flows, row: int, other: int, acked: int) -> None:
    """Take the acknowledgement and the window that a side sends."""
    direction, segments = flows.direction, flows.segments
    before = direction[other, Direction.ACKED]
    if direction[other, Direction.STARTED] and acked < before:
        return  # overtaken by a later segment
    if batch.flags[i] & SYN == 0:  # in which the window is never scaled
        announce(direction, row, other, batch.window[i], acked)
    if direction[other, Direction.STARTED] and acked > before:
        head = flows.queues[other, Queue.HEAD]
        # Missing bytes are acknowledged once, although later bytes still are.
        if before <= direction[other, Direction.POS] or (head >= 0 and before < segments[head, Segment.POS]):
            direction[other, Direction.ACK_TS] = batch.ts_ns[i]
            if acked > direction[other, Direction.POS]:
                direction[other, Direction.ACK_POS] = acked
                direction[other, Direction.ACK_SEEN] = flows.control[Control.SEGMENTS]
                direction[other, Direction.ACK_PACKET] = batch.packet[i]
                direction[other, Direction.ACK_CAPTURE] = batch.capture[i]
        if acked > direction[other, Direction.POS]:
            direction[other, Direction.LATE_SEEN] = flows.control[Control.SEGMENTS]
            direction[other, Direction.LATE_TS] = batch.ts_ns[i]
            direction[other, Direction.LATE_PACKET] = batch.packet[i]
            direction[other, Direction.LATE_CAPTURE] = batch.capture[i]
        direction[other, Direction.ACKED] = acked
        if flows.conn[row >> 1, Conn.CLOSER] < 0:
            is_all = acked >= direction[other, Direction.TOP]
            direction[other, Direction.UNACKED_TS] = 0 if is_all else batch.ts_ns[i]


@kernel
def note_ack(flows: Flows, out: Results, slot: int, side: int, at: At) -> None:
    """Append an acknowledgement of what a side has sent."""
    acks, direction, row = out.acks, flows.direction, 2 * slot + side
    n = out.counts[Count.ACKS]
    acks[Ack.SLOT, n] = slot
    acks[Ack.SIDE, n] = side
    acks[Ack.POS, n] = direction[row, Direction.ACKED]
    acks[Ack.READ, n] = direction[row, Direction.POS]
    acks[Ack.PACKET, n], acks[Ack.TS, n], acks[Ack.CAPTURE, n] = at
    direction[row, Direction.REPORTED] = direction[row, Direction.ACKED]
    out.counts[Count.ACKS] = n + 1


@kernel
def take_bytes(
    batch: SegmentBatch, i: int, data: Array, flows: Flows, out: Results, slot: int, side: int, needs: int, copy: int
) -> None:  # fmt: skip
    """Emit or buffer the new bytes of a segment."""
    direction = flows.direction
    row = 2 * slot + side
    other = 2 * slot + 1 - side
    first = first_byte(batch, i)
    length = batch.length[i]
    started = direction[row, Direction.STARTED]
    if started == 0 or (
        started == UNSEEN and flows.facts[slot, Facts.SYN] == 0 and is_under_way(batch, i, flows, slot, row)
    ):
        if started == UNSEEN:
            pass_unseen(flows, row, first)
        direction[row, Direction.NEXT] = first
    elif started == STARTED_ELSEWHERE or (flows.conn[slot, Conn.UNSETTLED] and length > 1):
        rebase(flows, slot, side, first)
    elif started >= STARTED_BY_OTHER:
        start(flows, slot, side, first)
    direction[row, Direction.STARTED] = STARTED_HERE
    if flows.conn[slot, Conn.UNSETTLED] == 0 and flows.facts[slot, Facts.ID] == 0:
        identify(flows, slot, first, batch.ts_ns[i])
    again = Direction.TWICE if copy else Direction.AGAIN
    here = direction[row, Direction.POS]
    pos = position(direction, row, first)
    end_pos = pos + length
    if (
        not copy
        and end_pos <= direction[row, Direction.TOP]
        and not (length == 1 and end_pos == direction[row, Direction.TOP])
    ):
        repeat(flows, row, length, (batch.packet[i], batch.ts_ns[i], batch.capture[i]))
        if flows.conn[slot, Conn.CLOSER] < 0:
            direction[row, Direction.AGAIN_TS] = batch.ts_ns[i]
    if not copy and flows.conn[slot, Conn.UNSETTLED] == 0:
        observe_number(batch, i, flows, out, slot, side, pos)
        observe_bytes(batch, i, flows, out, slot, side, pos)
    if end_pos <= here:
        if not (length == 1 and pos == here - 1):  # a keep-alive is no loss
            direction[row, again] += length
        return
    acked = direction[row, Direction.ACKED]
    if length == 1 and end_pos == acked and direction[row, Direction.ACK_TS] + GAP_NS < batch.ts_ns[i]:
        return  # a keep-alive after bytes that are missing: its byte is none of them
    direction[row, again] += max(here - pos, 0)
    if end_pos <= direction[row, Direction.ACKED]:
        needs = 0  # retransmitted, or captured late: its time is not that of the bytes
    if direction[row, Direction.END] == RST and end_pos > max(
        direction[row, Direction.TOP], direction[row, Direction.RESET_POS]
    ):
        reopen(flows, slot, side)
    if direction[row, Direction.TOP] < min(end_pos, direction[other, Direction.END_ACKED]):
        direction[other, Direction.AFTER_PACKET] = batch.packet[i]
        direction[other, Direction.AFTER_CAPTURE] = batch.capture[i]
    if end_pos <= acked and end_pos > direction[row, Direction.TOP]:
        compare_clocks(batch, i, flows, out, slot, side)
    if flows.conn[slot, Conn.CLOSER] < 0:
        if end_pos > direction[row, Direction.TOP]:
            hear(flows, slot, side, batch.ts_ns[i])
        direction[row, Direction.SENT_TS] = batch.ts_ns[i]
        if direction[row, Direction.UNACKED_TS] == 0 and end_pos > max(acked, direction[row, Direction.TOP]):
            direction[row, Direction.UNACKED_TS] = batch.ts_ns[i]
    direction[row, Direction.TOP] = max(direction[row, Direction.TOP], end_pos)
    if (
        pos > here
        or flows.conn[slot, Conn.UNSETTLED]
        or flows.queues[row, Queue.HEAD] >= 0
        or needs > direction[other, Direction.POS]
    ):
        keep_waiting(batch, i, data, flows, out, slot, side, pos, again, needs)
    else:
        emit_whole(batch, i, flows, out, slot, side, pos)


@kernel
def hear(flows: Flows, slot: int, side: int, ts: int) -> None:
    """Note new bytes of a side: how long both sides were silent before, and whether these bytes were answered since."""
    conn, direction = flows.conn, flows.direction
    latest = max(direction[2 * slot, Direction.SENT_TS], direction[2 * slot + 1, Direction.SENT_TS])
    if conn[slot, Conn.HEARD] == 1 << side and direction[2 * slot + side, Direction.UNACKED_TS] == 0:
        conn[slot, Conn.HEARD] = BOTH  # the other side acknowledged all before
    conn[slot, Conn.HEARD] |= 1 << side
    if conn[slot, Conn.HEARD] == BOTH:
        conn[slot, Conn.OUTLIVED_NS] = max(conn[slot, Conn.OUTLIVED_NS], conn[slot, Conn.QUIET_NS])
    if latest > 0 and ts - latest >= SILENCE_NS:
        conn[slot, Conn.QUIET_NS] = ts - latest
        conn[slot, Conn.HEARD] = 1 << side


@kernel
def compare_clocks(batch: SegmentBatch, i: int, flows: Flows, out: Results, slot: int, side: int) -> None:
    """Note once that bytes are later than their acknowledgement, where each direction has a file of its own."""
    conn, direction = flows.conn, flows.direction
    row = 2 * slot + side
    late_ms = (batch.ts_ns[i] - direction[row, Direction.ACK_TS]) // 1_000_000
    # Files of a rotation are one point, and packets may be out of order from one to the next. Files of directions that
    # do not overlap, for their clocks are so far apart, look like a rotation, but have a SYN each.
    is_apart = flows.points[direction[row, Direction.ACK_CAPTURE]] != flows.points[batch.capture[i]]
    if direction[row, Direction.SYN_PACKET] > 0 and direction[row ^ 1, Direction.SYN_PACKET] > 0:
        is_apart |= direction[row, Direction.SYN_CAPTURE] != direction[row ^ 1, Direction.SYN_CAPTURE]
    if is_apart and late_ms >= DISORDER_MS and conn[slot, Conn.CONTRADICTED] == 0:
        settle(flows, slot)  # a row needs the identity
        if flows.facts[slot, Facts.ID] == 0:
            identify(flows, slot, conn[slot, Conn.ISN], conn[slot, Conn.FIRST_TS])
        conn[slot, Conn.CONTRADICTED] = 1
        note(out, slot, side, CLOCKS, -1, late_ms, (batch.packet[i], batch.ts_ns[i], batch.capture[i]))


@kernel
def emit_whole(batch: SegmentBatch, i: int, flows: Flows, out: Results, slot: int, side: int, pos: int) -> None:
    """Emit the new bytes of a segment that begins at `pos` and waits for nothing."""
    direction = flows.direction
    row = 2 * slot + side
    at = batch.packet[i], batch.ts_ns[i], batch.capture[i]
    here = direction[row, Direction.POS]
    end_pos = pos + batch.length[i]
    skip = here - pos
    caplen = batch.caplen[i]
    if caplen > skip:
        emit(out, slot, side, here, batch.offset[i] + skip, caplen - skip, at, at)
    cut = batch.length[i] - max(caplen, skip)  # the snap length may have cut off some bytes
    if cut > 0:
        direction[row, Direction.LOST] += cut
        emit(out, slot, side, end_pos - cut, -1, cut, at, at)
    direction[row, Direction.POS] = end_pos
    direction[row, Direction.NEXT] = (direction[row, Direction.NEXT] + end_pos - here) & 0xFFFFFFFF


@kernel
def close(batch: SegmentBatch, i: int, flows: Flows, slot: int, side: int) -> None:
    """Note a FIN or a RST."""
    conn, direction = flows.conn, flows.direction
    row = 2 * slot + side
    other = 2 * slot + 1 - side
    is_reset = batch.flags[i] & RST
    if not is_reset and direction[row, Direction.STARTED]:
        direction[row, Direction.FIN] = position(direction, row, first_byte(batch, i)) + batch.length[i]
    # A FIN that acknowledges the other side's came after it, whichever was captured first.
    if conn[slot, Conn.CLOSER] < 0:
        answers = not is_reset and batch.flags[i] & ACK and is_beyond_by_one(batch, i, direction, other)
        conn[slot, Conn.CLOSER] = 1 - side if answers else side
    elif 0 <= direction[row, Direction.FIN] < direction[other, Direction.END_ACKED]:
        conn[slot, Conn.CLOSER] = side
    conn[slot, Conn.CLOSED] |= 4 if is_reset else 1 << side
    if direction[row, Direction.END] == 0:
        direction[row, Direction.END] = RST if is_reset else FIN
        direction[row, Direction.RESET_POS] = position(direction, row, first_byte(batch, i))
        direction[row, Direction.END_TS] = batch.ts_ns[i]
        direction[row, Direction.END_PACKET] = batch.packet[i]
        direction[row, Direction.END_CAPTURE] = batch.capture[i]
        if batch.flags[i] & ACK and direction[other, Direction.STARTED]:
            direction[row, Direction.END_ACKED] = position(direction, other, batch.ack[i])
