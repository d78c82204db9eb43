"""Process the beginning of connections: SYN, SYN-ACK and the ACK of that (RFC 9293 §3.5; RFC 7323 §2.2)."""

from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.packets.segments import ACK, RST, SegmentBatch
from amqpscope.dissector.tcp.copies import COPY_NS, repeat
from amqpscope.dissector.tcp.identities import identify
from amqpscope.dissector.tcp.late_syn import rebase, rebase_by_syn
from amqpscope.dissector.tcp.numbers import difference
from amqpscope.dissector.tcp.state import (
    STARTED_BY_OTHER,
    STARTED_HERE,
    UNSEEN,
    Conn,
    Direction,
    Facts,
    Flows,
    Queue,
)

UNDER_WAY_NS = 200_000_000
"""Time that bytes need to their receiver, and their acknowledgement back."""


@kernel
def synchronize(batch: SegmentBatch, i: int, flows: Flows, slot: int, side: int, copy: int, ts: int) -> None:
    """Take a SYN or a SYN-ACK, which came at `ts`."""
    facts, direction = flows.facts, flows.direction
    row = 2 * slot + side
    other = 2 * slot + 1 - side
    at = batch.packet[i], ts, batch.capture[i]
    if direction[row, Direction.SYNS] == 0 or ts - direction[row, Direction.SYN_LAST_TS] > COPY_NS:
        direction[row, Direction.SYNS] += 1
        if direction[row, Direction.SYNS] > 1:
            repeat(flows, row, 0, at)
    direction[row, Direction.SYN_LAST_TS] = ts
    direction[row, Direction.SYN_COPIES] += copy
    if direction[row, Direction.SYN_PACKET] == 0:
        direction[row, Direction.SYN_TS] = ts
        direction[row, Direction.SYN_PACKET] = batch.packet[i]
        direction[row, Direction.SYN_CAPTURE] = batch.capture[i]
    taken = direction[row, Direction.POS] + direction[other, Direction.POS]
    buffered = flows.queues[row, Queue.COUNT] + flows.queues[other, Queue.COUNT]
    # Else its bytes already count as those of a connection begun before.
    if taken + buffered == 0 or facts[slot, Facts.SYN] != 0 or flows.conn[slot, Conn.UNSETTLED]:
        open_by(batch, i, flows, slot, side, copy, ts)
    if flows.conn[slot, Conn.UNSETTLED]:
        rebase_by_syn(batch, i, flows, slot, side)
    if facts[slot, Facts.ID] == 0:
        identify(flows, slot, flows.conn[slot, Conn.ISN], 0)
    if direction[row, Direction.STARTED] == 0:
        direction[row, Direction.NEXT] = (batch.seq[i] + 1) & 0xFFFFFFFF
        direction[row, Direction.STARTED] = STARTED_HERE
    elif direction[row, Direction.STARTED] >= STARTED_BY_OTHER:
        start(flows, slot, side, (batch.seq[i] + 1) & 0xFFFFFFFF)
    if direction[row, Direction.WSCALE] == -1:
        direction[row, Direction.WSCALE] = batch.wscale[i] if batch.wscale[i] >= 0 else -2


@kernel
def infer_start(batch: SegmentBatch, i: int, flows: Flows, slot: int, side: int) -> None:
    """Let the direction to this side, of which nothing was seen, begin where this segment acknowledges it.

    What it acknowledges later and nobody sees is missing. Of a connection that began before the capture, bytes may be
    under way that were sent before it: what is acknowledged in the first moments is none of those missing.
    """
    direction = flows.direction
    row = 2 * slot + 1 - side
    is_open = flows.facts[slot, Facts.SYN] != 0
    if direction[row, Direction.STARTED] != 0 and not (
        direction[row, Direction.STARTED] == UNSEEN and not is_open and is_under_way(batch, i, flows, slot, row)
    ):
        return
    if direction[row, Direction.STARTED] == UNSEEN:
        pass_unseen(flows, row, batch.ack[i])
    direction[row, Direction.NEXT] = batch.ack[i]
    direction[row, Direction.STARTED] = STARTED_BY_OTHER if is_open else UNSEEN


@kernel
def is_under_way(batch: SegmentBatch, i: int, flows: Flows, slot: int, row: int) -> bool:
    """Return whether bytes of a direction may be under way since before the capture, which has none of it."""
    is_new: bool = batch.ts_ns[i] <= flows.conn[slot, Conn.FIRST_TS] + UNDER_WAY_NS
    return is_new and flows.direction[row, Direction.POS] == 0 and flows.elsewhere[row, Queue.HEAD] < 0


@kernel
def pass_unseen(flows: Flows, row: int, number: int) -> None:
    """Note that bytes of a direction up to this sequence number were under way when the capture began, or are lost."""
    flows.facts[row >> 1, Facts.UNDER_WAY_A + (row & 1)] += difference(number, flows.direction[row, Direction.NEXT])


@kernel
def start(flows: Flows, slot: int, side: int, number: int) -> None:
    """Begin a direction that only the other side has shown so far: not after sequence number `number`."""
    direction = flows.direction
    row = 2 * slot + side
    if direction[row, Direction.POS] == 0:
        rebase(flows, slot, side, number)
    direction[row, Direction.STARTED] = STARTED_HERE


@kernel
def open_by(batch: SegmentBatch, i: int, flows: Flows, slot: int, side: int, copy: int, ts: int) -> None:
    """Note what a SYN or a SYN-ACK shows of its connection: who opened it, and with which number."""
    facts, conn = flows.facts, flows.conn
    if batch.flags[i] & ACK == 0:
        if facts[slot, Facts.SYN] & 1:
            if copy == 0 and conn[slot, Conn.UP_TS] == 0:
                conn[slot, Conn.SYN_TS] = 0  # retransmitted: it is unknown which one was answered
        else:
            conn[slot, Conn.SYN_TS] = ts
        if facts[slot, Facts.SYN] == 0:
            facts[slot, Facts.OPENER] = side
            conn[slot, Conn.UP_SIDE] = side
            conn[slot, Conn.ISN] = batch.seq[i]
        facts[slot, Facts.SYN] |= 1
    else:
        if facts[slot, Facts.SYN] == 0:
            facts[slot, Facts.OPENER] = 1 - side
            conn[slot, Conn.UP_SIDE] = 1 - side
            conn[slot, Conn.ISN] = (batch.ack[i] - 1) & 0xFFFFFFFF
        facts[slot, Facts.SYN] |= 2


@kernel
def come_up(batch: SegmentBatch, i: int, flows: Flows, slot: int, side: int) -> None:
    """Check whether a segment may be the client's acknowledgement of the SYN-ACK."""
    conn = flows.conn
    if (
        conn[slot, Conn.UP_TS] == 0
        and batch.flags[i] & (ACK | RST) == ACK
        and side == conn[slot, Conn.UP_SIDE]
        and (flows.facts[slot, Facts.SYN] != 0 or conn[slot, Conn.UNSETTLED])
    ):
        conn[slot, Conn.UP_TS] = batch.ts_ns[i]
        conn[slot, Conn.UP_PACKET] = batch.packet[i]
        conn[slot, Conn.UP_CAPTURE] = batch.capture[i]
