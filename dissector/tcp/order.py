"""In which order bytes of both directions are handed on: each in its own, and none before what it acknowledges.

A side that has received bytes may have answered them. Where the capture has these bytes late, or not at all, the
answer waits until they come, or until they are given up: else it would be read before what it answers. Bytes that
were not acknowledged have no answer, so nobody waits for those.

Source: RFC 9293 §3.4 (acknowledgement covers all bytes before it).
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.buffered import drop, emit
from amqpscope.dissector.tcp.layout import (
    ANYWHERE,
    H_ACK_TS,
    H_ACKED,
    H_AGAIN,
    H_HEAD,
    H_LOST,
    H_NEXT,
    H_POS,
    H_RUN_CAPTURE,
    H_RUN_PACKET,
    H_RUN_SEEN,
    H_RUN_TS,
    H_TAIL,
    H_TOP,
    H_WAITING,
    HOLE_NS,
    K_SEGMENTS,
    K_WAITING,
    P_CAPTURE,
    P_ELSEWHERE,
    P_LENGTH,
    P_NEEDS,
    P_NEXT,
    P_OFFSET,
    P_PACKET,
    P_POS,
    P_SEEN,
    P_TS,
)

NEAR = 16
"""Parts seen at another capture point that are passed over in search of one that was seen here."""
WAITS, NEEDS, READY = range(3)
"""The next part of a direction (if there is one) waits; waits for nothing but the other direction; need not wait."""


@kernel
def overdue(half: Array, parts: Array, row: int, clock: int) -> int:
    """Position up to which bytes missing from a direction are given up: acknowledged a while ago, and not there.

    Of several gaps that is the first: each is missed for as long after what came behind it.
    """
    acked: int = half[row, H_ACKED]
    if acked <= half[row, H_POS] or half[row, H_ACK_TS] + HOLE_NS >= clock:
        return 0
    head = half[row, H_HEAD]
    if head >= 0:
        if parts[head, P_TS] + HOLE_NS >= clock:
            return 0
        acked = min(acked, parts[head, P_POS])
    return acked


@kernel
def settled(half: Array, parts: Array, row: int, through: int) -> int:
    """Position up to which the bytes of a direction were handed on or, up to `through`, given up."""
    here: int = half[row, H_POS]
    head = half[row, H_HEAD]
    return max(here, through if head < 0 else min(through, parts[head, P_POS]))


@kernel
def passed(half: Array, parts: Array, row: int) -> bool:
    """Whether the next part of a direction was seen here, or bytes behind its begin were, or are acknowledged."""
    part = half[row, H_HEAD]
    known: bool = parts[part, P_POS] < max(half[row, H_TOP], half[row, H_ACKED])
    return known or parts[part, P_ELSEWHERE] == 0


@kernel
def turn(half: Array, parts: Array, row: int, other: int, through: int, other_through: int) -> int:
    """Whether the next part of a direction may be handed on: READY, NEEDS or WAITS."""
    part = half[row, H_HEAD]
    if part < 0:
        return WAITS
    start = parts[part, P_POS]
    if start > half[row, H_POS] and start > through:
        return WAITS
    if not passed(half, parts, row):
        return WAITS
    needs = parts[part, P_NEEDS]
    if needs <= settled(half, parts, other, other_through):
        return READY
    answer = half[other, H_HEAD]
    is_there = answer >= 0 and parts[answer, P_POS] <= half[other, H_POS]
    return NEEDS if needs <= other_through or is_there else WAITS


@kernel
def witness(half: Array, parts: Array, slot: int, side: int) -> int:
    """The part that shows that the first of a direction, seen at another capture point, passed here as well.

    It follows it, or acknowledges it, whichever came first; -1 where only the packet at hand does.
    """
    row = 2 * slot + side
    first = half[row, H_HEAD]
    found: int = parts[first, P_NEXT]
    for _ in range(NEAR):
        if found >= 0 and parts[found, P_ELSEWHERE]:
            found = parts[found, P_NEXT]
    if found >= 0 and parts[found, P_ELSEWHERE]:
        found = -1
    answer = half[2 * slot + 1 - side, H_HEAD]
    if (
        answer >= 0
        and parts[answer, P_ELSEWHERE] == 0
        and parts[answer, P_NEEDS] > parts[first, P_POS]
        and (found < 0 or parts[answer, P_SEEN] < parts[found, P_SEEN])
    ):
        found = answer
    return found


@kernel
def emit_first(
    half: Array, parts: Array, control: Array, free: Array, pieces: Array,
    slot: int, side: int, packet: int, ts: int, capture: int,
) -> None:  # fmt: skip
    """Hand on the first part of a direction, and the gap before it.

    It has the packet with which it could be read: its own, or one that filled a gap before it. Behind a gap that
    nothing filled here it waited for nothing that came. What was seen at another capture point has the packet that
    shows that it passed here, at the latest the one at hand: clocks differ.
    """
    row = 2 * slot + side
    part = half[row, H_HEAD]
    start = parts[part, P_POS]
    here = half[row, H_POS]
    timed = witness(half, parts, slot, side) if parts[part, P_ELSEWHERE] else part
    if timed < 0:
        half[row, H_RUN_SEEN] = control[K_SEGMENTS]
        half[row, H_RUN_PACKET] = packet
        half[row, H_RUN_TS] = ts
        half[row, H_RUN_CAPTURE] = capture
    elif start > here or timed != part or parts[timed, P_SEEN] > half[row, H_RUN_SEEN]:
        half[row, H_RUN_SEEN] = parts[timed, P_SEEN]
        half[row, H_RUN_PACKET] = parts[timed, P_PACKET]
        half[row, H_RUN_TS] = parts[timed, P_TS]
        half[row, H_RUN_CAPTURE] = parts[timed, P_CAPTURE]
    packet = half[row, H_RUN_PACKET]
    ts = half[row, H_RUN_TS]
    capture = half[row, H_RUN_CAPTURE]
    if start > here:
        emit(pieces, control, slot, side, here, -1, start - here, packet, ts, capture, packet, ts, capture)
        half[row, H_LOST] += start - here
        half[row, H_NEXT] = (half[row, H_NEXT] + start - here) & 0xFFFFFFFF
        here = start
    skip = here - start
    length = parts[part, P_LENGTH]
    if skip < length:
        offset = parts[part, P_OFFSET]
        if offset >= 0:
            offset += skip
        else:
            half[row, H_LOST] += length - skip
        emit(
            pieces, control, slot, side, here, offset, length - skip, packet, ts, capture,
            parts[part, P_PACKET], parts[part, P_TS], parts[part, P_CAPTURE],
        )  # fmt: skip
        half[row, H_NEXT] = (half[row, H_NEXT] + length - skip) & 0xFFFFFFFF
        here += length - skip
        half[row, H_AGAIN] += skip
    else:
        half[row, H_AGAIN] += length
    half[row, H_POS] = here
    if parts[part, P_OFFSET] >= 0:
        half[row, H_WAITING] -= length
        control[K_WAITING] -= length
    half[row, H_HEAD] = parts[part, P_NEXT]
    if parts[part, P_NEXT] < 0:
        half[row, H_TAIL] = -1
    drop(half, parts, free, row, part)


@kernel
def release(
    half: Array, parts: Array, control: Array, free: Array, pieces: Array,
    slot: int, packet: int, ts: int, capture: int, through_0: int, through_1: int,
) -> None:  # fmt: skip
    """Hand on what need not wait any more, of both directions; gaps of each are given up as far as `through`."""
    row = 2 * slot
    while half[row, H_HEAD] >= 0 or half[row + 1, H_HEAD] >= 0:
        first = turn(half, parts, row, row + 1, through_0, through_1)
        second = turn(half, parts, row + 1, row, through_1, through_0)
        if first == READY:
            side = 0
        elif second == READY:
            side = 1
        elif first == NEEDS and second == NEEDS:  # each acknowledges what the other is to bring: neither was sent first
            side = 0 if parts[half[row, H_HEAD], P_SEEN] <= parts[half[row + 1, H_HEAD], P_SEEN] else 1
        else:
            break
        emit_first(half, parts, control, free, pieces, slot, side, packet, ts, capture)


@kernel
def flush(
    half: Array, parts: Array, control: Array, free: Array, pieces: Array,
    slot: int, side: int, packet: int, ts: int, capture: int,
) -> None:  # fmt: skip
    """Hand on all that waits in a direction, over gaps; before it what it waits for of the other, if that is there."""
    row = 2 * slot + side
    other = half[2 * slot + 1 - side, H_ACKED]
    if side == 0:
        release(half, parts, control, free, pieces, slot, packet, ts, capture, ANYWHERE, other)
    else:
        release(half, parts, control, free, pieces, slot, packet, ts, capture, other, ANYWHERE)
    while half[row, H_HEAD] >= 0 and passed(half, parts, row):
        emit_first(half, parts, control, free, pieces, slot, side, packet, ts, capture)
