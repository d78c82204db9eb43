"""In which order bytes of both directions are handed on: each in its own, and none before what it acknowledges.

A side that has received bytes may have answered them. Where the capture has these bytes late, or not at all, the
answer waits until they come, or until they are given up: else it would be read before what it answers. Bytes that
were not acknowledged have no answer, so nobody waits for those.

Source: RFC 9293 §3.4 (acknowledgement covers all bytes before it).
"""

from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.buffered import drop, emit
from amqpscope.dissector.tcp.state import At, Control, Flows, Half, Results, Segment

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
    half, segments = flows.half, flows.segments
    acked: int = half[row, Half.ACKED]
    if acked <= half[row, Half.POS] or half[row, Half.ACK_TS] + GAP_NS >= clock:
        return 0
    head = half[row, Half.HEAD]
    if head >= 0:
        if segments[head, Segment.TS] + GAP_NS >= clock:
            return 0
        acked = min(acked, segments[head, Segment.POS])
    return acked


@kernel
def settled(flows: Flows, row: int, through: int) -> int:
    """Position up to which the bytes of a direction were emitted or, up to `through`, given up."""
    half, segments = flows.half, flows.segments
    here: int = half[row, Half.POS]
    head = half[row, Half.HEAD]
    return max(here, through if head < 0 else min(through, segments[head, Segment.POS]))


@kernel
def passed(flows: Flows, row: int) -> bool:
    """Whether the next segment of a direction was seen here, or bytes behind its begin were, or are acknowledged."""
    half, segments = flows.half, flows.segments
    first = half[row, Half.HEAD]
    known: bool = segments[first, Segment.POS] < max(half[row, Half.TOP], half[row, Half.ACKED])
    return known or segments[first, Segment.ELSEWHERE] == 0


@kernel
def turn(flows: Flows, row: int, other: int, through: int, other_through: int) -> int:
    """Whether the next segment of a direction may be emitted: READY, NEEDS or WAITS."""
    half, segments = flows.half, flows.segments
    first = half[row, Half.HEAD]
    if first < 0:
        return WAITS
    start = segments[first, Segment.POS]
    if start > half[row, Half.POS] and start > through:
        return WAITS
    if not passed(flows, row):
        return WAITS
    needs = segments[first, Segment.NEEDS]
    if needs <= settled(flows, other, other_through):
        return READY
    answer = half[other, Half.HEAD]
    is_there = answer >= 0 and segments[answer, Segment.POS] <= half[other, Half.POS]
    return NEEDS if needs <= other_through or is_there else WAITS


@kernel
def witness(flows: Flows, slot: int, side: int) -> int:
    """The segment that shows that the first of a direction, seen at another capture point, passed here as well.

    It follows it, or acknowledges it, whichever came first; -1 where only the packet at hand does.
    """
    half, segments = flows.half, flows.segments
    row = 2 * slot + side
    first = half[row, Half.HEAD]
    found: int = segments[first, Segment.NEXT]
    for _ in range(NEAR):
        if found >= 0 and segments[found, Segment.ELSEWHERE]:
            found = segments[found, Segment.NEXT]
    if found >= 0 and segments[found, Segment.ELSEWHERE]:
        found = -1
    answer = half[2 * slot + 1 - side, Half.HEAD]
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
    half, segments = flows.half, flows.segments
    row = 2 * slot + side
    first = half[row, Half.HEAD]
    shown = witness(flows, slot, side) if segments[first, Segment.ELSEWHERE] else first
    if shown < 0:
        packet, ts, capture = at
        half[row, Half.RUN_SEEN] = flows.control[Control.SEGMENTS]
        half[row, Half.RUN_PACKET] = packet
        half[row, Half.RUN_TS] = ts
        half[row, Half.RUN_CAPTURE] = capture
    elif (
        segments[first, Segment.POS] > half[row, Half.POS]
        or shown != first
        or segments[shown, Segment.SEEN] > half[row, Half.RUN_SEEN]
    ):
        half[row, Half.RUN_SEEN] = segments[shown, Segment.SEEN]
        half[row, Half.RUN_PACKET] = segments[shown, Segment.PACKET]
        half[row, Half.RUN_TS] = segments[shown, Segment.TS]
        half[row, Half.RUN_CAPTURE] = segments[shown, Segment.CAPTURE]
    return half[row, Half.RUN_PACKET], half[row, Half.RUN_TS], half[row, Half.RUN_CAPTURE]


@kernel
def emit_first(flows: Flows, out: Results, slot: int, side: int, at: At) -> None:
    """Emit the first segment of a direction, and the gap before it; `at` is the packet at hand."""
    half, segments = flows.half, flows.segments
    row = 2 * slot + side
    first = half[row, Half.HEAD]
    start = segments[first, Segment.POS]
    here = half[row, Half.POS]
    at = timed(flows, slot, side, at)
    if start > here:
        emit(out, slot, side, here, -1, start - here, at, at)
        half[row, Half.LOST] += start - here
        half[row, Half.NEXT] = (half[row, Half.NEXT] + start - here) & 0xFFFFFFFF
        here = start
    skip = here - start
    length = segments[first, Segment.LENGTH]
    if skip < length:
        offset = segments[first, Segment.OFFSET]
        if offset >= 0:
            offset += skip
        else:
            half[row, Half.LOST] += length - skip
        own = segments[first, Segment.PACKET], segments[first, Segment.TS], segments[first, Segment.CAPTURE]
        emit(out, slot, side, here, offset, length - skip, at, own)
        half[row, Half.NEXT] = (half[row, Half.NEXT] + length - skip) & 0xFFFFFFFF
        here += length - skip
        half[row, Half.AGAIN] += skip
    else:
        half[row, Half.AGAIN] += length
    half[row, Half.POS] = here
    if segments[first, Segment.OFFSET] >= 0:
        half[row, Half.WAITING] -= length
        flows.control[Control.WAITING] -= length
    half[row, Half.HEAD] = segments[first, Segment.NEXT]
    if segments[first, Segment.NEXT] < 0:
        half[row, Half.TAIL] = -1
    drop(flows, row, first)


@kernel
def release(flows: Flows, out: Results, slot: int, at: At, through_0: int, through_1: int) -> None:
    """Emit what need not wait any more, of both directions; gaps of each are given up as far as `through`."""
    half, segments = flows.half, flows.segments
    row = 2 * slot
    while half[row, Half.HEAD] >= 0 or half[row + 1, Half.HEAD] >= 0:
        first = turn(flows, row, row + 1, through_0, through_1)
        second = turn(flows, row + 1, row, through_1, through_0)
        if first == READY:
            side = 0
        elif second == READY:
            side = 1
        elif first == NEEDS and second == NEEDS:  # each acknowledges what the other is to bring: neither was sent first
            seen_0 = segments[half[row, Half.HEAD], Segment.SEEN]
            side = 0 if seen_0 <= segments[half[row + 1, Half.HEAD], Segment.SEEN] else 1
        else:
            break
        emit_first(flows, out, slot, side, at)


@kernel
def release_overdue(flows: Flows, out: Results, slot: int, at: At) -> None:
    """Emit what need not wait any more, with what was missing for too long given up."""
    clock = flows.control[Control.CLOCK]
    release(flows, out, slot, at, overdue(flows, 2 * slot, clock), overdue(flows, 2 * slot + 1, clock))


@kernel
def flush(flows: Flows, out: Results, slot: int, side: int, at: At) -> None:
    """Emit all that is buffered of a direction, over gaps; before it what it waits for of the other, if it is there."""
    row = 2 * slot + side
    other = flows.half[2 * slot + 1 - side, Half.ACKED]
    if side == 0:
        release(flows, out, slot, at, ANYWHERE, other)
    else:
        release(flows, out, slot, at, other, ANYWHERE)
    while flows.half[row, Half.HEAD] >= 0 and passed(flows, row):
        emit_first(flows, out, slot, side, at)
