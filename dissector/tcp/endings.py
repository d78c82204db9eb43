"""Connections that are over: closed long ago, followed by another, given up for others, or at the end of it all."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.buffered import displace
from amqpscope.dissector.tcp.identities import identify
from amqpscope.dissector.tcp.layout import (
    ANYWHERE,
    C_A_HI,
    C_A_LO,
    C_A_PORT,
    C_B_HI,
    C_B_LO,
    C_B_PORT,
    C_FIRST_TS,
    C_ID,
    C_ISN,
    C_LAST_TS,
    C_SEEN,
    C_USED,
    CLOSED,
    H_COUNT,
    H_STALL,
    H_TAIL,
    H_WAITING,
    IDENTITIES,
    K_ENDED,
    K_GIVEN_UP,
    K_KNOWN,
    K_LIVE,
    K_OLDEST,
    K_PIECES,
    K_SEGMENTS,
    K_TOMBSTONES,
    K_WANT,
    K_WINDOWS,
    LINGER_NS,
    LINGER_SEGMENTS,
    OPEN,
    P_CAPTURE,
    P_PACKET,
    P_TS,
    READ,
)
from amqpscope.dissector.tcp.order import flush
from amqpscope.dissector.tcp.slots import find, unlink
from amqpscope.dissector.tcp.windows import change


@kernel
def emit_buffered(
    half: Array, parts: Array, control: Array, free_parts: Array, pieces: Array, slot: int, side: int
) -> None:  # fmt: skip
    """Hand on all that waits in a direction, over gaps."""
    tail = half[2 * slot + side, H_TAIL]
    if tail >= 0:
        flush(
            half, parts, control, free_parts, pieces, slot, side,
            parts[tail, P_PACKET], parts[tail, P_TS], parts[tail, P_CAPTURE],
        )  # fmt: skip
        displace(half, parts, control, free_parts, 2 * slot + side, -1, ANYWHERE)


@kernel
def end(
    slot: int, conn: Array, half: Array, table: Array, parts: Array, free_parts: Array, younger: Array, older: Array,
    pieces: Array, windows: Array, ended: Array, control: Array,
) -> int:  # fmt: skip
    """End a connection: hand on all that still waits, over gaps. 0 when there is no room yet for what comes out."""
    if 2 * control[K_KNOWN] >= len(younger):
        control[K_WANT] = IDENTITIES
        return 0
    count = half[2 * slot, H_COUNT] + half[2 * slot + 1, H_COUNT]
    if (
        control[K_PIECES] + 2 * count + 8 > pieces.shape[1]
        or control[K_WINDOWS] + 2 > windows.shape[1]
        or control[K_ENDED] == len(ended)
    ):
        control[K_WANT] = READ
        return 0
    if conn[slot, C_ID] == 0:  # neither SYN nor data
        identify(conn, slot, conn[slot, C_ISN], conn[slot, C_FIRST_TS], younger, older, control)
    for side in range(2):
        emit_buffered(half, parts, control, free_parts, pieces, slot, side)
        if half[2 * slot + side, H_STALL]:
            change(conn, half, windows, control, slot, side, 0, 0, conn[slot, C_LAST_TS], 0)
    place = find(
        conn, table, conn[slot, C_A_HI], conn[slot, C_A_LO], conn[slot, C_A_PORT],
        conn[slot, C_B_HI], conn[slot, C_B_LO], conn[slot, C_B_PORT],
    )  # fmt: skip
    table[place] = -1
    control[K_TOMBSTONES] += 1
    unlink(conn, control, slot)
    conn[slot, C_USED] = 2
    control[K_LIVE] -= 1
    ended[control[K_ENDED]] = slot
    control[K_ENDED] += 1
    return 1


PART_COST = 1024
"""Bytes as which a part that waits counts besides its own."""


@kernel
def relieve(half: Array, parts: Array, control: Array, free_parts: Array, pieces: Array) -> None:
    """Hand on, over gaps, what waits where half of the mean or more does: together that is more than half of all.

    `pieces` must be empty; there is room in it for two of each part.
    """
    total = count = 0
    for row in range(half.shape[0]):
        if half[row, H_COUNT] > 0:
            total += half[row, H_WAITING] + PART_COST * half[row, H_COUNT]
            count += 1
    for row in range(half.shape[0]):
        if half[row, H_COUNT] > 0:
            weight = half[row, H_WAITING] + PART_COST * half[row, H_COUNT]
            if 2 * weight * count >= total:
                emit_buffered(half, parts, control, free_parts, pieces, row >> 1, row & 1)


@kernel
def due(conn: Array, control: Array, clock: int) -> int:
    """1 when there is a closed connection that no further segment can belong to."""
    slot = control[K_OLDEST + CLOSED]
    if slot < 0 or conn[slot, C_SEEN] + LINGER_SEGMENTS >= control[K_SEGMENTS]:
        return 0
    return 1 if conn[slot, C_LAST_TS] + LINGER_NS < clock else 0


@kernel
def expire(
    clock: int, conn: Array, half: Array, table: Array, parts: Array, free_parts: Array, younger: Array, older: Array,
    pieces: Array, windows: Array, ended: Array, control: Array,
) -> int:  # fmt: skip
    """End the closed connections that no further segment can belong to; 0 when it could not go on."""
    while due(conn, control, clock):
        slot = control[K_OLDEST + CLOSED]
        if end(slot, conn, half, table, parts, free_parts, younger, older, pieces, windows, ended, control) == 0:
            return 0
    return 1


@kernel
def evict(
    count: int, conn: Array, half: Array, table: Array, parts: Array, free_parts: Array, younger: Array, older: Array,
    pieces: Array, windows: Array, ended: Array, control: Array,
) -> int:  # fmt: skip
    """End so many connections, closed ones first, those before others whose last segment is the oldest.

    Returns how many of them are still to be ended when it could not go on.
    """
    while count > 0 and control[K_LIVE] > 0:
        slot = control[K_OLDEST + CLOSED]
        is_open = 0
        if slot < 0:
            slot = control[K_OLDEST + OPEN]
            is_open = 1
        if end(slot, conn, half, table, parts, free_parts, younger, older, pieces, windows, ended, control) == 0:
            return count
        control[K_GIVEN_UP] += is_open
        count -= 1
    return 0


@kernel
def end_all(
    slots: Array, begin: int, conn: Array, half: Array, table: Array, parts: Array, free_parts: Array, younger: Array,
    older: Array, pieces: Array, windows: Array, ended: Array, control: Array,
) -> int:  # fmt: skip
    """End connections from `begin` on; returns the index of the first that could not be ended yet."""
    for i in range(begin, len(slots)):
        if end(slots[i], conn, half, table, parts, free_parts, younger, older, pieces, windows, ended, control) == 0:
            return i
    return len(slots)
