"""Note what TCP itself does to latencies: bytes sent again, late acknowledgements and what waits for them, resets.

A direction remembers the segments it sent last, the unacknowledged ones and a few more, so that an acknowledgement and
a retransmission have a segment that they are about. Windows of zero are events as well: `windows` finds these.

Sources: RFC 9293 §3.7.4 (Nagle's algorithm), §3.8.6.3 (delayed acknowledgements), §3.10.7 (resets); RFC 6298 §3 (a
segment that was sent again times nothing).
"""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.pool import append_row, give_row, take_row
from amqpscope.dissector.packets.segments import FIN, RST, SYN, SegmentBatch
from amqpscope.dissector.tcp.event_rows import NOWHERE, add, sending_of
from amqpscope.dissector.tcp.full_links import observe_pace, observe_round_trip
from amqpscope.dissector.tcp.sending import Sending, Sent
from amqpscope.dissector.tcp.state import (
    AGAIN,
    DELAYED_ACK,
    HELD_WRITE,
    RESET,
    Conn,
    Direction,
    Facts,
    Flows,
    Queue,
    Results,
    Segment,
)

DELAY_NS = 30_000_000
"""By how much a delayed acknowledgement is later than the fastest one: the shortest timers run for 40 ms (Linux)."""
DELAY_MOST_NS = 600_000_000
"""By how much at most: RFC 9293 §3.8.6.3 allows half a second."""
RELEASE_NS = 1_000_000
"""Time in which a sender sends what waited for an acknowledgement, besides the way to it from the capture and back."""
REORDER_NS = 3_000_000
"""Time by which a network reorders packets, where the round trip is not known; so has Wireshark."""
KEPT = 4
"""Acknowledged segments that are remembered."""


@kernel
def round_trip(flows: Flows, slot: int) -> int:
    """Return the round trip of the handshake; 0: not known."""
    begin, up = flows.conn[slot, Conn.SYN_TS], flows.conn[slot, Conn.UP_TS]
    return up - begin if 0 < begin < up else 0


@kernel
def reordered_ns(flows: Flows, slot: int) -> int:
    """Return the time by which the network may reorder packets: what is later was lost, and sent again."""
    usual = round_trip(flows, slot)
    return usual if usual > 0 else REORDER_NS


@kernel
def observe_beyond(flows: Flows, row: int, pos: int, ts: int) -> None:
    """Note a segment without bytes whose position shows that bytes before it have not come yet."""
    mine = sending_of(flows, row)
    if mine >= 0 and pos > flows.direction[row, Direction.TOP] and flows.sending[mine, Sending.BEYOND_TS] == 0:
        flows.sending[mine, Sending.BEYOND_TS] = ts


@kernel
def observe_bytes(batch: SegmentBatch, i: int, flows: Flows, out: Results, slot: int, side: int, pos: int) -> None:
    """Note bytes that were sent again, and remember new ones, of a segment that begins at `pos`."""
    direction, sending = flows.direction, flows.sending
    row = 2 * slot + side
    top = direction[row, Direction.TOP]
    end = pos + batch.length[i]
    at = batch.packet[i], batch.ts_ns[i], batch.capture[i]
    mine, theirs = sending_of(flows, row), sending_of(flows, row ^ 1)
    if pos < top - 1:  # else it is a keep-alive, or follows one
        send_again(batch, i, flows, out, slot, side, pos)
    elif mine >= 0 and sending[mine, Sending.BEYOND_TS] > 0 and pos < direction[row, Direction.SHOWN]:
        late_ns = batch.ts_ns[i] - sending[mine, Sending.BEYOND_TS]
        if late_ns >= reordered_ns(flows, slot):
            size = min(end, direction[row, Direction.SHOWN]) - pos
            add(flows, out, slot, side, AGAIN, at, NOWHERE, size, late_ns, -1)
    if end <= top:
        return
    if theirs >= 0:
        sending[theirs, Sending.HELD_PACKET] = 0
    if mine < 0:
        flows.conn[slot, Conn.SENDING] = take_row(flows.free_sending)
        mine = sending_of(flows, row)
    elif sending[mine, Sending.HELD_PACKET] > 0:
        held = (
            sending[mine, Sending.HELD_PACKET], sending[mine, Sending.HELD_TS], sending[mine, Sending.HELD_CAPTURE],
        )  # fmt: skip
        near = handshake_took(flows, slot, 1 - side)
        if near < 0:
            near = round_trip(flows, slot)
        if 0 <= batch.ts_ns[i] - held[1] <= RELEASE_NS + near:
            add(flows, out, slot, side, HELD_WRITE, at, held, end - top, sending[mine, Sending.HELD_NS], -1)
        sending[mine, Sending.HELD_PACKET] = 0
    if end >= direction[row, Direction.SHOWN]:
        sending[mine, Sending.BEYOND_TS] = 0
    sending[mine, Sending.TTL] = 1 + batch.ttl[i]
    if sending[mine, Sending.COUNT] < limits.SENT_PER_STREAM and flows.free_sent[0] > 0:
        last = take_row(flows.free_sent)
        append_row(flows.sent, last, Sent.NEXT, sending, mine, Sending.HEAD, Sending.TAIL)
        sending[mine, Sending.COUNT] += 1
        flows.sent[last, Sent.BEGIN] = max(pos, top)
        flows.sent[last, Sent.END] = end
        flows.sent[last, Sent.PACKET], flows.sent[last, Sent.TS], flows.sent[last, Sent.CAPTURE] = at
        flows.sent[last, Sent.REPEATED] = 0


@kernel
def send_again(batch: SegmentBatch, i: int, flows: Flows, out: Results, slot: int, side: int, pos: int) -> None:
    """Note a segment that begins before the highest byte seen, unless the network only reordered it."""
    direction, sent, segments = flows.direction, flows.sent, flows.segments
    row = 2 * slot + side
    at = batch.packet[i], batch.ts_ns[i], batch.capture[i]
    end = pos + batch.length[i]
    size = min(end, direction[row, Direction.TOP]) - pos
    of, late_ns = NOWHERE, -1
    mine = sending_of(flows, row)
    k = flows.sending[mine, Sending.HEAD] if mine >= 0 else -1
    while k >= 0:
        if sent[k, Sent.BEGIN] < end and pos < sent[k, Sent.END]:
            sent[k, Sent.REPEATED] = 1
            if sent[k, Sent.BEGIN] <= pos:
                of = sent[k, Sent.PACKET], sent[k, Sent.TS], sent[k, Sent.CAPTURE]
                late_ns = max(batch.ts_ns[i] - of[1], 0)
        k = sent[k, Sent.NEXT]
    if of[0] == 0 and pos >= direction[row, Direction.POS]:
        k = flows.queues[row, Queue.HEAD]
        while k >= 0 and segments[k, Segment.POS] + segments[k, Segment.LENGTH] <= pos:
            k = segments[k, Segment.NEXT]
        if k < 0:
            return
        if segments[k, Segment.POS] > pos:  # missing until now: was it lost before the capture point, or overtaken?
            late_ns = batch.ts_ns[i] - segments[k, Segment.TS]
            if late_ns < reordered_ns(flows, slot):
                return
    if end <= direction[row, Direction.ACKED]:
        late_ns = -1  # the other side has them: nothing waits for them
    add(flows, out, slot, side, AGAIN, at, of, size, late_ns, -1)


@kernel
def observe_ack(batch: SegmentBatch, i: int, flows: Flows, out: Results, slot: int, side: int, acked: int) -> None:
    """Note an acknowledgement that is late, and forget segments before `acked`, up to which it acknowledges."""
    direction, sending, sent = flows.direction, flows.sending, flows.sent
    other = 2 * slot + 1 - side
    before = direction[other, Direction.ACKED]
    mine = sending_of(flows, other)
    if mine < 0 or acked <= before:
        return
    observe_pace(flows, out, slot, 1 - side, acked, (batch.packet[i], batch.ts_ns[i], batch.capture[i]))
    last = -1
    k = sending[mine, Sending.HEAD]
    while k >= 0 and sent[k, Sent.END] <= acked:
        last = k
        k = sent[k, Sent.NEXT]
    if last >= 0 and sent[last, Sent.END] == acked and sent[last, Sent.REPEATED] == 0:
        took = batch.ts_ns[i] - sent[last, Sent.TS]
        least = sending[mine, Sending.LEAST_NS]
        if least < 0:
            least = handshake_took(flows, slot, 1 - side)
        is_alone = batch.length[i] == 0 and batch.flags[i] & (SYN | FIN | RST) == 0
        if is_alone and least >= 0 and DELAY_NS <= took - least <= DELAY_MOST_NS:
            at = batch.packet[i], batch.ts_ns[i], batch.capture[i]
            of = sent[last, Sent.PACKET], sent[last, Sent.TS], sent[last, Sent.CAPTURE]
            add(flows, out, slot, side, DELAYED_ACK, at, of, acked - before, took, -1)
            if acked >= direction[other, Direction.TOP]:
                sending[mine, Sending.HELD_PACKET], sending[mine, Sending.HELD_TS] = at[0], at[1]
                sending[mine, Sending.HELD_CAPTURE], sending[mine, Sending.HELD_NS] = at[2], took
        if took >= 0:
            sending[mine, Sending.LEAST_NS] = took if least < 0 else min(least, took)
        at = batch.packet[i], batch.ts_ns[i], batch.capture[i]
        observe_round_trip(flows, out, slot, 1 - side, took, at, acked >= direction[other, Direction.TOP])
        if took >= 0:
            note_trip(direction, other, Direction.TRIP_NS, took)
            if is_alone:
                note_trip(direction, other, Direction.BARE_TRIP_NS, took)
    k = sending[mine, Sending.HEAD]
    while sending[mine, Sending.COUNT] > KEPT and sent[k, Sent.END] <= acked:
        sending[mine, Sending.HEAD] = sent[k, Sent.NEXT]
        sending[mine, Sending.COUNT] -= 1
        give_row(flows.free_sent, k)
        k = sending[mine, Sending.HEAD]


@kernel
def note_trip(direction: Array, row: int, column: int, took: int) -> None:
    """Keep the shortest time that bytes of a direction took to be acknowledged."""
    if direction[row, column] < 0 or took < direction[row, column]:
        direction[row, column] = took


@kernel
def handshake_took(flows: Flows, slot: int, side: int) -> int:
    """Return how long the SYN of a side waited for its acknowledgement: to the other one and back; -1: not known."""
    direction = flows.direction
    mine, theirs = 2 * slot + side, 2 * slot + 1 - side
    begin = direction[mine, Direction.SYN_TS]
    end = direction[theirs, Direction.SYN_TS]
    if side != flows.facts[slot, Facts.OPENER]:
        end = flows.conn[slot, Conn.UP_TS]
    is_known = begin > 0 and direction[mine, Direction.SYNS] == 1 and end >= begin
    return end - begin if is_known else -1


@kernel
def observe_reset(batch: SegmentBatch, i: int, flows: Flows, out: Results, slot: int, side: int) -> None:
    """Note a reset; where the connection has no identity yet, it is noted at its end."""
    at = batch.packet[i], batch.ts_ns[i], batch.capture[i]
    add(flows, out, slot, side, RESET, at, NOWHERE, batch.length[i], -1, batch.ttl[i])


@kernel
def observe_late_resets(flows: Flows, out: Results, slot: int) -> None:
    """Note the resets of a connection that had no identity when they came, so no event either."""
    is_first = flows.conn[slot, Conn.EVENTS] == 0
    for side in range(2):
        row = 2 * slot + side
        if is_first and flows.direction[row, Direction.END] == RST:
            at = (
                flows.direction[row, Direction.END_PACKET], flows.direction[row, Direction.END_TS],
                flows.direction[row, Direction.END_CAPTURE],
            )  # fmt: skip
            add(flows, out, slot, side, RESET, at, NOWHERE, 0, -1, -1)


@kernel
def observe_syn(batch: SegmentBatch, i: int, flows: Flows, out: Results, slot: int, side: int, before: int) -> None:
    """Note a SYN that was sent again, when `before` were there."""
    row = 2 * slot + side
    if 0 < before < flows.direction[row, Direction.SYNS]:
        at = batch.packet[i], batch.ts_ns[i], batch.capture[i]
        of = (
            flows.direction[row, Direction.SYN_PACKET], flows.direction[row, Direction.SYN_TS],
            flows.direction[row, Direction.SYN_CAPTURE],
        )  # fmt: skip
        add(flows, out, slot, side, AGAIN, at, of, 0, max(at[1] - of[1], 0), -1)


@kernel
def observe_fin(batch: SegmentBatch, i: int, flows: Flows, out: Results, slot: int, side: int) -> None:
    """Note a FIN without bytes that was sent again."""
    row = 2 * slot + side
    if batch.length[i] == 0 and flows.direction[row, Direction.END] == FIN:
        at = batch.packet[i], batch.ts_ns[i], batch.capture[i]
        of = (
            flows.direction[row, Direction.END_PACKET], flows.direction[row, Direction.END_TS],
            flows.direction[row, Direction.END_CAPTURE],
        )  # fmt: skip
        add(flows, out, slot, side, AGAIN, at, of, 0, max(at[1] - of[1], 0), -1)


@kernel
def forget(flows: Flows, slot: int) -> None:
    """Forget what a connection sent."""
    pair = flows.conn[slot, Conn.SENDING]
    if pair < 0:
        return
    for mine in range(2 * pair, 2 * pair + 2):
        k = flows.sending[mine, Sending.HEAD]
        while k >= 0:
            give_row(flows.free_sent, k)
            k = flows.sent[k, Sent.NEXT]
        empty(flows, mine)
    give_row(flows.free_sending, pair)
    flows.conn[slot, Conn.SENDING] = -1


@kernel
def empty(flows: Flows, row: int) -> None:
    """Empty a row of `Sending`, for its next direction."""
    for number in range(flows.sending.shape[1]):
        flows.sending[row, number] = 0
    flows.sending[row, Sending.HEAD] = -1
    flows.sending[row, Sending.TAIL] = -1
    flows.sending[row, Sending.LEAST_NS] = -1
