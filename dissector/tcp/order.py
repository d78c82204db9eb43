"""Emit the bytes of both directions in order: each direction in its own, and no bytes before those they acknowledge.

A side that has received bytes may have answered them. If the capture has these bytes late, or not at all, the answer
waits until they come or count as lost: else it would be read before its question. Bytes that were not acknowledged have
no answer, so nothing waits for them.

Source: RFC 9293 §3.4 (acknowledgement covers all bytes before it).
"""

from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.buffered import drop, emit
from amqpscope.dissector.tcp.settling import settle
from amqpscope.dissector.tcp.state import At, Conn, Control, Direction, Flows, Results, Segment

ANYWHERE = 1 << 62
"""A position after all others."""
GAP_NS = 1_000_000_000
"""Time after which an acknowledged byte that is still missing counts as lost by the capture."""
NEAR = 16
"""Segments seen at another capture point that are skipped in search of one that was seen here."""
WAITS, NEEDS, READY = range(3)
"""The next segment of a direction (if there is one) waits; waits only for the other direction; need not wait."""


@kernel
def overdue(flows: Flows, row: int, clock: int) -> int:
    """Return the position up to which missing bytes of a direction count as lost: acknowledged a while ago, and absent.

    Of several gaps, that is the first one: each is waited for after the bytes that follow it.
    """
    direction, segments = flows.direction, flows.segments
    acked: int = direction[row, Direction.ACKED]
    if acked <= direction[row, Direction.POS] or direction[row, Direction.ACK_TS] + GAP_NS >= clock:
        return 0
    head = direction[row, Direction.HEAD]
    if head >= 0:
        if segments[head, Segment.TS] + GAP_NS >= clock:
            return 0
        acked = min(acked, segments[head, Segment.POS])
    return acked


@kernel
def settled(flows: Flows, row: int, through: int) -> int:
    """Return the position up to which bytes of a direction were emitted or, up to `through`, count as lost."""
    direction, segments = flows.direction, flows.segments
    here: int = direction[row, Direction.POS]
    head = direction[row, Direction.HEAD]
    return max(here, through if head < 0 else min(through, segments[head, Segment.POS]))


@kernel
def passed(flows: Flows, row: int) -> bool:
    """Return whether the next segment of a direction, or bytes after its begin, were seen here or acknowledged."""
    direction, segments = flows.direction, flows.segments
    first = direction[row, Direction.HEAD]
    known: bool = segments[first, Segment.POS] < max(direction[row, Direction.TOP], direction[row, Direction.ACKED])
    return known or segments[first, Segment.ELSEWHERE] == 0


@kernel
def turn(flows: Flows, row: int, other: int, through: int, other_through: int) -> int:
    """Return whether the next segment of a direction may be emitted: READY, NEEDS or WAITS."""
    direction, segments = flows.direction, flows.segments
    first = direction[row, Direction.HEAD]
    if first < 0:
        return WAITS
    start = segments[first, Segment.POS]
    if start > direction[row, Direction.POS] and start > through:
        return WAITS
    if not passed(flows, row):
        return WAITS
    needs = segments[first, Segment.NEEDS]
    if needs <= settled(flows, other, other_through):
        return READY
    answer = direction[other, Direction.HEAD]
    is_there = answer >= 0 and segments[answer, Segment.POS] <= direction[other, Direction.POS]
    return NEEDS if needs <= other_through or is_there else WAITS


@kernel
def witness(flows: Flows, slot: int, side: int) -> int:
    """Return the segment that shows that the first of a direction, seen at another capture point, passed here as well.

    It follows that segment or acknowledges it, whichever came first; -1: only the current packet does.
    """
    direction, segments = flows.direction, flows.segments
    row = 2 * slot + side
    first = direction[row, Direction.HEAD]
    found: int = segments[first, Segment.NEXT]
    for _ in range(NEAR):
        if found >= 0 and segments[found, Segment.ELSEWHERE]:
            found = segments[found, Segment.NEXT]
    if found >= 0 and segments[found, Segment.ELSEWHERE]:
        found = -1
    answer = direction[2 * slot + 1 - side, Direction.HEAD]
    if (
        answer >= 0
        and segments[answer, Segment.ELSEWHERE] == 0
        and segments[answer, Segment.NEEDS] > segments[first, Segment.POS]
        and (found < 0 or segments[answer, Segment.SEEN] < segments[found, Segment.SEEN])
    ):
        found = answer
    return found


@kernel
def timed(flows: Flows, slot: int, side: int, at: At) -> At:
    """Return the packet after which the first segment of a direction could be read.

    That is its own packet, or one that filled a gap before it. After a gap that nothing filled here, the segment waited
    for no packet. A segment seen at another capture point has the packet that shows that it passed here, at the latest
    the current one: clocks differ.
    """
    direction, segments = flows.direction, flows.segments
    row = 2 * slot + side
    first = direction[row, Direction.HEAD]
    shown = witness(flows, slot, side) if segments[first, Segment.ELSEWHERE] else first
    if shown < 0:
        packet, ts, capture = at
        direction[row, Direction.RUN_SEEN] = flows.control[Control.SEGMENTS]
        direction[row, Direction.RUN_PACKET] = packet
        direction[row, Direction.RUN_TS] = ts
        direction[row, Direction.RUN_CAPTURE] = capture
    elif (
        segments[first, Segment.POS] > direction[row, Direction.POS]
        or shown != first
        or segments[shown, Segment.SEEN] > direction[row, Direction.RUN_SEEN]
    ):
        direction[row, Direction.RUN_SEEN] = segments[shown, Segment.SEEN]
        direction[row, Direction.RUN_PACKET] = segments[shown, Segment.PACKET]
        direction[row, Direction.RUN_TS] = segments[shown, Segment.TS]
        direction[row, Direction.RUN_CAPTURE] = segments[shown, Segment.CAPTURE]
    return direction[row, Direction.RUN_PACKET], direction[row, Direction.RUN_TS], direction[row, Direction.RUN_CAPTURE]


@kernel
def emit_first(flows: Flows, out: Results, slot: int, side: int, at: At) -> None:
    """Emit the first segment of a direction, and the gap before it; `at` is the current packet."""
    direction, segments = flows.direction, flows.segments
    row = 2 * slot + side
    first = direction[row, Direction.HEAD]
    start = segments[first, Segment.POS]
    here = direction[row, Direction.POS]
    at = timed(flows, slot, side, at)
    if start > here:
        emit(out, slot, side, here, -1, start - here, at, at)
        direction[row, Direction.LOST] += start - here
        direction[row, Direction.NEXT] = (direction[row, Direction.NEXT] + start - here) & 0xFFFFFFFF
        here = start
    skip = here - start
    length = segments[first, Segment.LENGTH]
    if skip < length:
        offset = segments[first, Segment.OFFSET]
        if offset >= 0:
            offset += skip
        else:
            direction[row, Direction.LOST] += length - skip
        own = segments[first, Segment.PACKET], segments[first, Segment.TS], segments[first, Segment.CAPTURE]
        emit(out, slot, side, here, offset, length - skip, at, own)
        direction[row, Direction.NEXT] = (direction[row, Direction.NEXT] + length - skip) & 0xFFFFFFFF
        here += length - skip
        direction[row, Direction.AGAIN] += skip
    else:
        direction[row, Direction.AGAIN] += length
    direction[row, Direction.POS] = here
    if segments[first, Segment.OFFSET] >= 0:
        direction[row, Direction.WAITING] -= length
        flows.control[Control.WAITING] -= length
    direction[row, Direction.HEAD] = segments[first, Segment.NEXT]
    if segments[first, Segment.NEXT] < 0:
        direction[row, Direction.TAIL] = -1
    drop(flows, row, first)


@kernel
def release(flows: Flows, out: Results, slot: int, at: At, through_0: int, through_1: int) -> None:
    """Emit the segments of both directions that need not wait any more; bytes missing up to `through` are lost."""
    direction, segments = flows.direction, flows.segments
    row = 2 * slot
    if flows.conn[slot, Conn.UNSETTLED]:
        return
    while direction[row, Direction.HEAD] >= 0 or direction[row + 1, Direction.HEAD] >= 0:
        first = turn(flows, row, row + 1, through_0, through_1)
        second = turn(flows, row + 1, row, through_1, through_0)
        if first == READY:
            side = 0
        elif second == READY:
            side = 1
        elif first == NEEDS and second == NEEDS:  # each acknowledges what the other brings: neither was sent first
            seen_0 = segments[direction[row, Direction.HEAD], Segment.SEEN]
            side = 0 if seen_0 <= segments[direction[row + 1, Direction.HEAD], Segment.SEEN] else 1
        else:
            break
        emit_first(flows, out, slot, side, at)


@kernel
def release_overdue(flows: Flows, out: Results, slot: int, at: At) -> None:
    """Emit the segments that need not wait any more; bytes missing for too long count as lost."""
    clock = flows.conn[slot, Conn.CLOCK]
    release(flows, out, slot, at, overdue(flows, 2 * slot, clock), overdue(flows, 2 * slot + 1, clock))


@kernel
def flush(flows: Flows, out: Results, slot: int, side: int, at: At) -> None:
    """Emit all that a direction has buffered, over gaps, after the bytes of the other direction that it waits for."""
    row = 2 * slot + side
    settle(flows, slot)
    other = flows.direction[2 * slot + 1 - side, Direction.ACKED]
    if side == 0:
        release(flows, out, slot, at, ANYWHERE, other)
    else:
        release(flows, out, slot, at, other, ANYWHERE)
    while flows.direction[row, Direction.HEAD] >= 0 and passed(flows, row):
        emit_first(flows, out, slot, side, at)
