"""In which order bytes of both directions are handed on: each in its own, and none before what it acknowledges.

A side that has received bytes may have answered them. Where the capture has these bytes late, or not at all, the
answer waits until they come, or until they are given up: else it would be read before what it answers. Bytes that
were not acknowledged have no answer, so nobody waits for those.

Source: RFC 9293 §3.4 (acknowledgement covers all bytes before it).
"""

from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.buffered import drop, emit
from amqpscope.dissector.tcp.state import At, Conn, Control, Direction, Flows, Results, Segment

ANYWHERE = 1 << 62
"""Behind all positions."""
GAP_NS = 1_000_000_000
"""An acknowledged byte that is still missing after this long was lost by the capture."""
NEAR = 16
"""Segments seen at another capture point that are passed over in search of one that was seen here."""
WAITS, NEEDS, READY = range(3)
"""The next segment of a direction (if there is one) waits; waits for nothing but the other direction; need not wait."""


@kernel
def overdue(flows: Flows, row: int, clock: int) -> int:
    """Position up to which bytes missing from a direction are given up: acknowledged a while ago, and not there.

    Of several gaps that is the first: each is missed for as long after what came behind it.
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
    """Position up to which the bytes of a direction were emitted or, up to `through`, given up."""
    direction, segments = flows.direction, flows.segments
    here: int = direction[row, Direction.POS]
    head = direction[row, Direction.HEAD]
    return max(here, through if head < 0 else min(through, segments[head, Segment.POS]))


@kernel
def passed(flows: Flows, row: int) -> bool:
    """Whether the next segment of a direction was seen here, or bytes behind its begin were, or are acknowledged."""
    direction, segments = flows.direction, flows.segments
    first = direction[row, Direction.HEAD]
    known: bool = segments[first, Segment.POS] < max(direction[row, Direction.TOP], direction[row, Direction.ACKED])
    return known or segments[first, Segment.ELSEWHERE] == 0


@kernel
def turn(flows: Flows, row: int, other: int, through: int, other_through: int) -> int:
    """Whether the next segment of a direction may be emitted: READY, NEEDS or WAITS."""
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
    """The segment that shows that the first of a direction, seen at another capture point, passed here as well.

    It follows it, or acknowledges it, whichever came first; -1 where only the packet at hand does.
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
    """The packet after which the first segment of a direction could be read.

    That is its own, or one that filled a gap before it. Behind a gap that nothing filled here it waited for nothing
    that came. What was seen at another capture point has the packet that shows that it passed here, at the latest the
    one at hand: clocks differ.
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
    """Emit the first segment of a direction, and the gap before it; `at` is the packet at hand."""
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
    """Emit what need not wait any more, of both directions; gaps of each are given up as far as `through`."""
    direction, segments = flows.direction, flows.segments
    row = 2 * slot
    while direction[row, Direction.HEAD] >= 0 or direction[row + 1, Direction.HEAD] >= 0:
        first = turn(flows, row, row + 1, through_0, through_1)
        second = turn(flows, row + 1, row, through_1, through_0)
        if first == READY:
            side = 0
        elif second == READY:
            side = 1
        elif first == NEEDS and second == NEEDS:  # each acknowledges what the other is to bring: neither was sent first
            seen_0 = segments[direction[row, Direction.HEAD], Segment.SEEN]
            side = 0 if seen_0 <= segments[direction[row + 1, Direction.HEAD], Segment.SEEN] else 1
        else:
            break
        emit_first(flows, out, slot, side, at)


@kernel
def release_overdue(flows: Flows, out: Results, slot: int, at: At) -> None:
    """Emit what need not wait any more, with what was missing for too long given up."""
    clock = flows.conn[slot, Conn.CLOCK]
    release(flows, out, slot, at, overdue(flows, 2 * slot, clock), overdue(flows, 2 * slot + 1, clock))


@kernel
def flush(flows: Flows, out: Results, slot: int, side: int, at: At) -> None:
    """Emit all that is buffered of a direction, over gaps; before it what it waits for of the other, if it is there."""
    row = 2 * slot + side
    other = flows.direction[2 * slot + 1 - side, Direction.ACKED]
    if side == 0:
        release(flows, out, slot, at, ANYWHERE, other)
    else:
        release(flows, out, slot, at, other, ANYWHERE)
    while flows.direction[row, Direction.HEAD] >= 0 and passed(flows, row):
        emit_first(flows, out, slot, side, at)
