"""Emit the bytes of both directions in order: each direction in its own, and no bytes before those they acknowledge.

A side that has received bytes may have answered them. If the capture has these bytes late, or not at all, the answer
waits until they come or count as lost: else it would be read before its question. Bytes that were not acknowledged have
no answer, so nothing waits for them. What counts as lost is filled by what other capture points have seen of it.

Source: RFC 9293 §3.4 (acknowledgement covers all bytes before it).
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.late_syn import settle
from amqpscope.dissector.tcp.reorder_queue import drop_before, drop_first, emit
from amqpscope.dissector.tcp.state import STARTED_BY_OTHER, UNSEEN, At, Conn, Direction, Flows, Queue, Results, Segment

ANYWHERE = 1 << 62
"""A position after all others."""
GAP_NS = 1_000_000_000
"""Time after which an acknowledged byte that is still missing counts as lost by the capture.

The times are those of the connection's own packets: what other connections do must not decide about its rows, and a
part of the capture may lack them. Where a connection falls silent, its next packet or its end skips a gap, or two
minutes (`idle_timeout`).
"""
WAITS, NEEDS, READY = range(3)
"""The next bytes of a direction (if there are any) wait; wait only for the other direction; need not wait."""


@kernel
def overdue(flows: Flows, row: int, clock: int) -> int:
    """Return the position up to which missing bytes of a direction count as lost: acknowledged a while ago, and absent.

    Of several gaps, that is the first one: each is waited for after the bytes that follow it.
    """
    direction, segments = flows.direction, flows.segments
    acked: int = direction[row, Direction.ACKED]
    if acked <= direction[row, Direction.POS] or direction[row, Direction.ACK_TS] + GAP_NS >= clock:
        return 0
    head = flows.queues[row, Queue.HEAD]
    if head >= 0:
        if segments[head, Segment.TS] + GAP_NS >= clock:
            return 0
        acked = min(acked, segments[head, Segment.POS])
    return acked


@kernel
def turn(flows: Flows, row: int, other: int, other_through: int) -> int:
    """Return whether the next segment of a direction may be emitted: READY, NEEDS or WAITS.

    Bytes of the other direction up to `other_through` count as lost if they are missing.
    """
    direction, queues, segments = flows.direction, flows.queues, flows.segments
    first = queues[row, Queue.HEAD]
    if first < 0 or segments[first, Segment.POS] > direction[row, Direction.POS]:
        return WAITS
    if segments[first, Segment.NEEDS] <= max(direction[other, Direction.POS], other_through):
        return READY
    answer = queues[other, Queue.HEAD]
    return NEEDS if answer >= 0 and segments[answer, Segment.POS] <= direction[other, Direction.POS] else WAITS


@kernel
def emit_first(flows: Flows, out: Results, slot: int, side: int) -> None:
    """Emit the first segment of a direction, before which nothing is missing.

    It could be read after its own packet, or one that filled a gap before it.
    """
    direction, segments = flows.direction, flows.segments
    row = 2 * slot + side
    first = flows.queues[row, Queue.HEAD]
    own = segments[first, Segment.PACKET], segments[first, Segment.TS], segments[first, Segment.CAPTURE]
    if segments[first, Segment.SEEN] > direction[row, Direction.RUN_SEEN]:
        run(flows, row, segments[first, Segment.SEEN], own)
    at = read_after(direction, row)
    here = direction[row, Direction.POS]
    skip = here - segments[first, Segment.POS]
    left = segments[first, Segment.LENGTH] - skip
    offset = segments[first, Segment.OFFSET]
    direction[row, Direction.AGAIN] += min(skip, segments[first, Segment.LENGTH])
    if left > 0:
        if offset < 0:
            direction[row, Direction.LOST] += left
        emit(out, slot, side, here, offset + skip if offset >= 0 else -1, left, at, own)
        advance(direction, row, here + left)
    drop_first(flows, flows.queues, row)


@kernel
def run(flows: Flows, row: int, seen: int, at: At) -> None:
    """Note the latest segment that emitted ones had to wait for."""
    packet, ts, capture = at
    flows.direction[row, Direction.RUN_SEEN] = seen
    flows.direction[row, Direction.RUN_PACKET] = packet
    flows.direction[row, Direction.RUN_TS] = ts
    flows.direction[row, Direction.RUN_CAPTURE] = capture


@kernel
def advance(direction: Array, row: int, pos: int) -> None:
    """Let the next byte be that at `pos`."""
    here = direction[row, Direction.POS]
    direction[row, Direction.NEXT] = (direction[row, Direction.NEXT] + pos - here) & 0xFFFFFFFF
    direction[row, Direction.POS] = pos


@kernel
def lacking(flows: Flows, row: int, other: int, through: int) -> int:
    """Return whether the next missing bytes of a direction, up to `through`, may be emitted: READY, NEEDS or WAITS."""
    direction, segments = flows.direction, flows.segments
    here = direction[row, Direction.POS]
    if here >= through:
        return WAITS
    drop_before(flows, row, here)
    first = flows.elsewhere[row, Queue.HEAD]
    if first < 0 or segments[first, Segment.POS] > here:
        return READY
    return READY if segments[first, Segment.NEEDS] <= direction[other, Direction.POS] else NEEDS


@kernel
def pass_missing(flows: Flows, out: Results, slot: int, lost_0: int, lost_1: int) -> None:
    """Emit missing bytes of both directions before these positions, seen elsewhere or not, and segments after them."""
    while pass_first(flows, out, slot, lost_0, lost_1):
        pass


@kernel
def pass_first(flows: Flows, out: Results, slot: int, lost_0: int, lost_1: int) -> bool:
    """Emit the first missing bytes before these positions, and segments after them; return False if there are none.

    An acknowledgement alone may be wrong: bytes that nothing follows here, and nobody else has seen, go on missing.
    Where both directions lack bytes, those count first that come before the earlier segment.
    """
    direction, elsewhere, segments = flows.direction, flows.elsewhere, flows.segments
    row = 2 * slot
    through_0, through_1 = known(flows, row, lost_0), known(flows, row + 1, lost_1)
    first = lacking(flows, row, row + 1, through_0)
    second = lacking(flows, row + 1, row, through_1)
    side = 0 if first == READY else 1
    if first == READY and second == READY and next_seen(flows, row + 1) < next_seen(flows, row):
        side = 1
    elif first != READY and second != READY:
        before = direction[row, Direction.POS] + direction[row + 1, Direction.POS]
        release(flows, out, slot, 0, 0)
        if direction[row, Direction.POS] + direction[row + 1, Direction.POS] > before:
            return True
        if first == WAITS and second == WAITS:
            return False
        # Each acknowledges what the other brings, or nobody has what it acknowledges.
        side = 0 if first == NEEDS else 1
        if first == NEEDS and second == NEEDS:
            seen_0 = segments[elsewhere[row, Queue.HEAD], Segment.SEEN]
            side = 0 if seen_0 <= segments[elsewhere[row + 1, Queue.HEAD], Segment.SEEN] else 1
    emit_missing(flows, out, slot, side, through_1 if side else through_0)
    release(flows, out, slot, 0, 0)
    return True


@kernel
def next_seen(flows: Flows, row: int) -> int:
    """Return the number of the segment that follows the missing bytes of a direction; ANYWHERE: there is none."""
    head = flows.queues[row, Queue.HEAD]
    return flows.segments[head, Segment.SEEN] if head >= 0 else ANYWHERE


@kernel
def known(flows: Flows, row: int, lost: int) -> int:
    """Return the position up to which lost bytes of a direction are followed by others, or were seen elsewhere.

    What follows may have no bytes: a sequence number or a FIN says as much of what its side has sent.
    """
    direction, segments = flows.direction, flows.segments
    head = flows.queues[row, Queue.HEAD]
    if head >= 0:
        begin: int = min(lost, segments[head, Segment.POS])
        return begin
    end: int = direction[row, Direction.SHOWN]
    if direction[row, Direction.FIN] >= 0:
        end = direction[row, Direction.FIN]
    elif end == direction[row, Direction.TOP] + 1:  # a FIN counts as a byte, and the capture may have missed it
        end = direction[row, Direction.TOP]
    tail = flows.elsewhere[row, Queue.TAIL]
    if tail >= 0:
        end = max(end, segments[tail, Segment.POS] + segments[tail, Segment.LENGTH])
    return min(lost, end)


@kernel
def emit_missing(flows: Flows, out: Results, slot: int, side: int, through: int) -> None:
    """Emit the next missing bytes of a direction: from the first segment seen elsewhere, or the gap before that.

    A gap ends where the other side answered before it had the rest: the answer comes first. Elsewhere clocks may
    differ, so the time is that of the own packet that shows the bytes; a farther point of the same file has its clock,
    and its time is much nearer to the one that is missing.
    """
    conn, segments = flows.conn, flows.segments
    row = 2 * slot + side
    here = flows.direction[row, Direction.POS]
    first = flows.elsewhere[row, Queue.HEAD]
    is_gap = first < 0 or segments[first, Segment.POS] > here
    at = shown(flows, row, 2 * slot + 1 - side)
    packet, ts, _ = at
    if is_gap:
        if packet == 0:
            at = conn[slot, Conn.LAST_PACKET], conn[slot, Conn.LAST_TS], conn[slot, Conn.LAST_CAPTURE]
        end = through if first < 0 else min(through, segments[first, Segment.POS])
        answer = flows.queues[2 * slot + 1 - side, Queue.HEAD]
        if answer >= 0 and here < segments[answer, Segment.NEEDS] < end:
            end = segments[answer, Segment.NEEDS]
        emit(out, slot, side, here, -1, end - here, at, at)
        flows.direction[row, Direction.LOST] += end - here
    else:
        skip = here - segments[first, Segment.POS]
        end = min(through, here - skip + segments[first, Segment.LENGTH])
        packet_there, ts_there = segments[first, Segment.PACKET], segments[first, Segment.TS]
        capture_there = segments[first, Segment.CAPTURE]
        if packet == 0:
            ts = max(conn[slot, Conn.LAST_TS], ts_there)
            at = packet_there, ts, capture_there
        own = packet_there, min(ts, ts_there), capture_there
        if flows.points[capture_there] == conn[slot, Conn.POINT_CAPTURE]:
            own = packet_there, ts_there, capture_there
            at = own
            if segments[first, Segment.SEEN] < flows.direction[row, Direction.RUN_SEEN]:
                at = read_after(flows.direction, row)
        emit(out, slot, side, here, segments[first, Segment.OFFSET] + skip, end - here, at, own)
    advance(flows.direction, row, end)
    flows.direction[row, Direction.RUN_SEEN] = -1  # what follows waited for no packet


@kernel
def shown(flows: Flows, row: int, other: int) -> At:
    """Return the packet that shows that missing bytes of a direction passed here; zeros: none does.

    That is the next segment of the direction or one that acknowledges them, whichever came first, though not before the
    packet after which earlier bytes could be read.
    """
    direction, queues, segments = flows.direction, flows.queues, flows.segments
    here = direction[row, Direction.POS]
    seen = ANYWHERE
    at = 0, 0, 0
    if here < direction[row, Direction.ACK_POS]:
        seen = direction[row, Direction.ACK_SEEN]
        packet, capture = direction[row, Direction.ACK_PACKET], direction[row, Direction.ACK_CAPTURE]
        at = packet, direction[row, Direction.ACK_TS], capture
    elif here < direction[row, Direction.ACKED]:
        seen = direction[row, Direction.LATE_SEEN]
        packet, capture = direction[row, Direction.LATE_PACKET], direction[row, Direction.LATE_CAPTURE]
        at = packet, direction[row, Direction.LATE_TS], capture
    answer = queues[other, Queue.HEAD]
    if answer >= 0 and segments[answer, Segment.NEEDS] <= here:
        answer = -1
    for found in (queues[row, Queue.HEAD], answer):
        if found >= 0 and segments[found, Segment.SEEN] < seen:
            seen = segments[found, Segment.SEEN]
            at = segments[found, Segment.PACKET], segments[found, Segment.TS], segments[found, Segment.CAPTURE]
    if seen < direction[row, Direction.RUN_SEEN]:
        at = read_after(direction, row)
    return at


@kernel
def read_after(direction: Array, row: int) -> At:
    """Return the latest packet that bytes of a direction had to wait for."""
    packet, capture = direction[row, Direction.RUN_PACKET], direction[row, Direction.RUN_CAPTURE]
    return packet, direction[row, Direction.RUN_TS], capture


@kernel
def release(flows: Flows, out: Results, slot: int, lost_0: int, lost_1: int) -> None:
    """Emit the segments of both directions that need not wait any more; nothing waits for bytes before `lost`."""
    queues, segments = flows.queues, flows.segments
    row = 2 * slot
    if flows.conn[slot, Conn.UNSETTLED]:
        return
    while queues[row, Queue.HEAD] >= 0 or queues[row + 1, Queue.HEAD] >= 0:
        first = turn(flows, row, row + 1, lost_1)
        second = turn(flows, row + 1, row, lost_0)
        if first == READY:
            side = 0
        elif second == READY:
            side = 1
        elif first == NEEDS and second == NEEDS:  # each acknowledges what the other brings: neither was sent first
            seen_0 = segments[queues[row, Queue.HEAD], Segment.SEEN]
            side = 0 if seen_0 <= segments[queues[row + 1, Queue.HEAD], Segment.SEEN] else 1
        else:
            break
        emit_first(flows, out, slot, side)


@kernel
def give_up(flows: Flows, out: Results, slot: int, lost_0: int, lost_1: int) -> None:
    """Emit the segments that need not wait any more; missing bytes before `lost` count as lost."""
    pass_missing(flows, out, slot, lost_0, lost_1)
    release(flows, out, slot, lost_0, lost_1)


@kernel
def release_overdue(flows: Flows, out: Results, slot: int) -> None:
    """Emit the segments that need not wait any more; bytes missing for too long count as lost."""
    clock = flows.conn[slot, Conn.CLOCK]
    if flows.conn[slot, Conn.UNSETTLED] == 0:
        first, second = overdue(flows, 2 * slot, clock), overdue(flows, 2 * slot + 1, clock)
        while pass_first(flows, out, slot, first, second):  # what comes then may be overdue, and before the rest
            first, second = overdue(flows, 2 * slot, clock), overdue(flows, 2 * slot + 1, clock)
        release(flows, out, slot, first, second)
        for row in range(2 * slot, 2 * slot + 2):
            if flows.direction[row, Direction.STARTED] == STARTED_BY_OTHER and overdue(flows, row, clock):
                flows.direction[row, Direction.STARTED] = UNSEEN
                flows.direction[row, Direction.ACKED] = flows.direction[row, Direction.POS]


@kernel
def give_up_acknowledged(flows: Flows, out: Results, slot: int, side: int) -> None:
    """Emit the segments that need not wait any more; missing bytes of a side that were acknowledged count as lost."""
    row = 2 * slot + side
    lost = min(flows.direction[row, Direction.ACKED], next_buffered(flows, row))
    give_up(flows, out, slot, 0 if side else lost, lost if side else 0)


@kernel
def next_buffered(flows: Flows, row: int) -> int:
    """Return the position of the next buffered segment of a direction; ANYWHERE: there is none."""
    head = flows.queues[row, Queue.HEAD]
    return flows.segments[head, Segment.POS] if head >= 0 else ANYWHERE


@kernel
def flush(flows: Flows, out: Results, slot: int, side: int) -> None:
    """Emit all that a direction has buffered, over gaps, after the bytes of the other direction that it waits for."""
    row = 2 * slot + side
    settle(flows, slot)
    while flows.queues[row, Queue.HEAD] >= 0:
        first = flows.queues[row, Queue.HEAD]
        begin = flows.segments[first, Segment.POS]
        give_up(flows, out, slot, 0 if side else begin, begin if side else 0)
        if flows.queues[row, Queue.HEAD] == first:
            give_up_acknowledged(flows, out, slot, 1 - side)
        if flows.queues[row, Queue.HEAD] == first:
            emit_first(flows, out, slot, side)


@kernel
def emit_needed(flows: Flows, out: Results, slot: int, side: int, end: int) -> None:
    """Emit the missing bytes, up to `end`, that the first segment of a side acknowledges and nothing follows."""
    row, other = 2 * slot + side, 2 * slot + 1 - side
    if flows.queues[other, Queue.HEAD] < 0:
        through = min(end, flows.segments[flows.queues[row, Queue.HEAD], Segment.NEEDS])
        while lacking(flows, other, row, through) != WAITS:
            emit_missing(flows, out, slot, 1 - side, through)


@kernel
def flush_held(flows: Flows, out: Results, slot: int, end_0: int, end_1: int) -> None:
    """Emit all that both directions have buffered, over gaps, and what they acknowledge up to these positions."""
    direction, queues, segments = flows.direction, flows.queues, flows.segments
    row = 2 * slot
    settle(flows, slot)
    end_0 = max(end_0, direction[row, Direction.TOP])
    end_1 = max(end_1, direction[row + 1, Direction.TOP])
    pass_missing(flows, out, slot, end_0, end_1)
    while queues[row, Queue.HEAD] >= 0 or queues[row + 1, Queue.HEAD] >= 0:
        first, second = queues[row, Queue.HEAD], queues[row + 1, Queue.HEAD]
        is_second = first < 0 or (second >= 0 and segments[second, Segment.SEEN] < segments[first, Segment.SEEN])
        side = 1 if is_second else 0
        emit_needed(flows, out, slot, side, end_0 if is_second else end_1)
        emit_first(flows, out, slot, side)
        pass_missing(flows, out, slot, end_0, end_1)


@kernel
def flush_both(flows: Flows, out: Results, slot: int, end_0: int, end_1: int) -> None:
    """Emit all that both directions have buffered, over gaps, and what is missing up to these positions."""
    flush_held(flows, out, slot, end_0, end_1)
    for side in range(2):
        row = 2 * slot + side
        end = max(end_1 if side else end_0, flows.direction[row, Direction.TOP])
        while lacking(flows, row, row ^ 1, end) != WAITS:
            emit_missing(flows, out, slot, side, end)
