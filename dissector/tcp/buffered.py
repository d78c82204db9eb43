"""Bytes that wait for what comes before them: a list for each direction; and the pieces that are handed on."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.pool import give_row, take_row
from amqpscope.dissector.tcp.layout import (
    H_COUNT,
    H_ELSEWHERE,
    H_HEAD,
    H_TAIL,
    H_WAITING,
    K_PIECES,
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
    P_USED,
    S_CAPTURE,
    S_FIRST_CAPTURE,
    S_FIRST_PACKET,
    S_FIRST_TS,
    S_LENGTH,
    S_OFFSET,
    S_PACKET,
    S_POS,
    S_SIDE,
    S_SLOT,
    S_TS,
)


@kernel
def emit(
    pieces: Array, control: Array, slot: int, side: int, pos: int, offset: int, length: int,
    packet: int, ts: int, capture: int, first_packet: int, first_ts: int, first_capture: int,
) -> None:  # fmt: skip
    """Append one piece."""
    n = control[K_PIECES]
    pieces[S_SLOT, n] = slot
    pieces[S_SIDE, n] = side
    pieces[S_POS, n] = pos
    pieces[S_OFFSET, n] = offset
    pieces[S_LENGTH, n] = length
    pieces[S_PACKET, n] = packet
    pieces[S_TS, n] = ts
    pieces[S_CAPTURE, n] = capture
    pieces[S_FIRST_PACKET, n] = first_packet
    pieces[S_FIRST_TS, n] = first_ts
    pieces[S_FIRST_CAPTURE, n] = first_capture
    control[K_PIECES] = n + 1


@kernel
def keep(
    half: Array, parts: Array, control: Array, free: Array, row: int, before: int, after: int,
    pos: int, length: int, offset: int, packet: int, ts: int, capture: int, needs: int, elsewhere: int,
) -> int:  # fmt: skip
    """Put a part between two others of the list (-1: none) and return its index. A free one must be there."""
    part = take_row(free)
    parts[part, P_NEXT] = after
    parts[part, P_POS] = pos
    parts[part, P_LENGTH] = length
    parts[part, P_OFFSET] = offset
    parts[part, P_PACKET] = packet
    parts[part, P_TS] = ts
    parts[part, P_CAPTURE] = capture
    parts[part, P_NEEDS] = needs
    parts[part, P_SEEN] = control[K_SEGMENTS]
    parts[part, P_USED] = 1
    parts[part, P_ELSEWHERE] = elsewhere
    half[row, H_ELSEWHERE] += elsewhere
    if before < 0:
        half[row, H_HEAD] = part
    else:
        parts[before, P_NEXT] = part
    if after < 0:
        half[row, H_TAIL] = part
    if offset >= 0:
        half[row, H_WAITING] += length
        control[K_WAITING] += length
    half[row, H_COUNT] += 1
    return part


@kernel
def store(
    data: Array, half: Array, parts: Array, control: Array, free: Array, row: int, again: int,
    pos: int, length: int, offset: int, packet: int, ts: int, capture: int, needs: int, elsewhere: int,
) -> int:  # fmt: skip
    """Keep bytes that came too early, less those already waiting: the first copy wins.

    Those count in column `again` of `half`. Returns how many of them differ from the first copy.
    """
    different = 0
    end = pos + length
    before = -1
    part = half[row, H_HEAD]
    tail = half[row, H_TAIL]
    if tail >= 0 and parts[tail, P_POS] + parts[tail, P_LENGTH] <= pos:
        before = tail
        part = -1
    while part >= 0 and pos < end and free[0] > 0:
        start = parts[part, P_POS]
        stop = start + parts[part, P_LENGTH]
        if stop > pos:
            if start >= end:
                break
            if pos < start:
                before = keep(
                    half, parts, control, free, row, before, part,
                    pos, start - pos, offset, packet, ts, capture, needs, elsewhere,
                )  # fmt: skip
                if offset >= 0:
                    offset += start - pos
                pos = start
            lap = min(stop, end) - pos
            half[row, again] += lap
            if offset >= 0 and parts[part, P_OFFSET] >= 0 and elsewhere == 0:
                first = parts[part, P_OFFSET] + pos - start
                for k in range(lap):
                    if data[first + k] != data[offset + k]:
                        different += 1
            if offset >= 0:
                offset += lap
            pos += lap
        before = part
        part = parts[part, P_NEXT]
    if pos < end and free[0] > 0:
        keep(
            half, parts, control, free, row, before, part,
            pos, end - pos, offset, packet, ts, capture, needs, elsewhere,
        )  # fmt: skip
    return different


@kernel
def drop(half: Array, parts: Array, free: Array, row: int, part: int) -> None:
    """Give back a part that was taken out of the list."""
    half[row, H_COUNT] -= 1
    half[row, H_ELSEWHERE] -= parts[part, P_ELSEWHERE]
    parts[part, P_USED] = 0
    give_row(free, part)


@kernel
def displace(half: Array, parts: Array, control: Array, free: Array, row: int, pos: int, end: int) -> None:
    """Bytes came at the connection's own capture point: let go of what was kept of them from another."""
    before = -1
    part = half[row, H_HEAD]
    while part >= 0 and parts[part, P_POS] < end:
        after = parts[part, P_NEXT]
        start = parts[part, P_POS]
        length = parts[part, P_LENGTH]
        stop = start + length
        if parts[part, P_ELSEWHERE] == 0 or stop <= pos:
            before = part
        elif start < pos:
            parts[part, P_LENGTH] = pos - start
            half[row, H_WAITING] -= stop - pos
            control[K_WAITING] -= stop - pos
            before = part
        elif stop > end:
            parts[part, P_POS] = end
            parts[part, P_OFFSET] += end - start
            parts[part, P_LENGTH] = stop - end
            half[row, H_WAITING] -= end - start
            control[K_WAITING] -= end - start
            before = part
        else:
            if before < 0:
                half[row, H_HEAD] = after
            else:
                parts[before, P_NEXT] = after
            if after < 0:
                half[row, H_TAIL] = before
            half[row, H_WAITING] -= length
            control[K_WAITING] -= length
            drop(half, parts, free, row, part)
        part = after
