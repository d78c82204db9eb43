"""Slots of connections: found by their endpoints, taken, kept in order of their last segment, given back."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.pool import give_row, take_row
from amqpscope.dissector.tcp.layout import (
    C_A_HI,
    C_A_LO,
    C_A_PORT,
    C_B_HI,
    C_B_LO,
    C_B_PORT,
    C_CLIENT,
    C_CLOSED,
    C_CLOSER,
    C_FIRST_CAPTURE,
    C_FIRST_PACKET,
    C_FIRST_TS,
    C_ISN,
    C_LAST_TS,
    C_LIST,
    C_NEWER,
    C_OLDER,
    C_OPENER,
    C_POINT,
    C_RTT,
    C_SEEN,
    C_USED,
    C_VANTAGE,
    C_WIDTH,
    H_HEAD,
    H_TAIL,
    H_WIDTH,
    H_WINDOW,
    H_WSCALE,
    K_LIVE,
    K_NEWEST,
    K_OLDEST,
    K_SEGMENTS,
    LINGER_NS,
    OPEN,
)


@kernel
def find(conn: Array, table: Array, a_hi: int, a_lo: int, a_port: int, b_hi: int, b_lo: int, b_port: int) -> int:
    """Place in the hash table of this pair of endpoints, or -1 - place of a free entry."""
    mask = len(table) - 1
    place = mix(mix(mix(mix(a_lo, b_lo), a_port << 16 | b_port), a_hi), b_hi) & mask
    free = -1
    while True:
        entry = table[place]
        if entry == 0:
            return -1 - (free if free >= 0 else place)
        if entry < 0:
            if free < 0:
                free = place
        else:
            slot = entry - 1
            if (
                conn[slot, C_A_LO] == a_lo
                and conn[slot, C_B_LO] == b_lo
                and conn[slot, C_A_PORT] == a_port
                and conn[slot, C_B_PORT] == b_port
                and conn[slot, C_A_HI] == a_hi
                and conn[slot, C_B_HI] == b_hi
            ):
                return place
        place = (place + 1) & mask


@kernel
def unlink(conn: Array, control: Array, slot: int) -> None:
    """Take a connection out of its list."""
    older = conn[slot, C_OLDER]
    newer = conn[slot, C_NEWER]
    if older < 0:
        control[K_OLDEST + conn[slot, C_LIST]] = newer
    else:
        conn[older, C_NEWER] = newer
    if newer < 0:
        control[K_NEWEST + conn[slot, C_LIST]] = older
    else:
        conn[newer, C_OLDER] = older


@kernel
def append(conn: Array, control: Array, slot: int, which: int) -> None:
    """Put a connection at the end of a list."""
    newest = control[K_NEWEST + which]
    conn[slot, C_LIST] = which
    conn[slot, C_OLDER] = newest
    conn[slot, C_NEWER] = -1
    if newest < 0:
        control[K_OLDEST + which] = slot
    else:
        conn[newest, C_NEWER] = slot
    control[K_NEWEST + which] = slot


@kernel
def touch(conn: Array, control: Array, slot: int) -> None:
    """Put a connection at the end of the list where it belongs, for a segment of it came."""
    which = closed(conn, slot)
    if control[K_NEWEST + which] != slot:
        unlink(conn, control, slot)
        append(conn, control, slot, which)
    conn[slot, C_SEEN] = control[K_SEGMENTS]


@kernel
def open_slot(
    conn: Array, half: Array, control: Array, free_slots: Array,
    a_hi: int, a_lo: int, a_port: int, b_hi: int, b_lo: int, b_port: int,
    seq: int, ts: int, packet: int, capture: int, point: int,
) -> int:  # fmt: skip
    """A fresh slot for a connection. A free one must be there."""
    slot = take_row(free_slots)
    for column in range(C_WIDTH):
        conn[slot, column] = 0
    conn[slot, C_A_HI] = a_hi
    conn[slot, C_A_LO] = a_lo
    conn[slot, C_A_PORT] = a_port
    conn[slot, C_B_HI] = b_hi
    conn[slot, C_B_LO] = b_lo
    conn[slot, C_B_PORT] = b_port
    conn[slot, C_USED] = 1
    conn[slot, C_CLIENT] = -1
    conn[slot, C_OPENER] = -1
    conn[slot, C_ISN] = seq
    conn[slot, C_CLOSER] = -1
    conn[slot, C_RTT] = -1
    conn[slot, C_FIRST_TS] = ts
    conn[slot, C_LAST_TS] = ts
    conn[slot, C_FIRST_PACKET] = packet
    conn[slot, C_FIRST_CAPTURE] = capture
    conn[slot, C_VANTAGE] = point
    conn[slot, C_POINT] = point
    for row in range(2 * slot, 2 * slot + 2):
        for column in range(H_WIDTH):
            half[row, column] = 0
        half[row, H_HEAD] = -1
        half[row, H_TAIL] = -1
        half[row, H_WSCALE] = -1
        half[row, H_WINDOW] = -1
    append(conn, control, slot, OPEN)
    control[K_LIVE] += 1
    return slot


@kernel
def closed(conn: Array, slot: int) -> int:
    """1 when both sides have closed the connection, or one reset it."""
    ends = conn[slot, C_CLOSED]
    return 1 if ends & 4 != 0 or ends & 3 == 3 else 0


@kernel
def over(conn: Array, slot: int, clock: int) -> int:
    """1 when a closed connection has been idle for so long that a further packet belongs to another one."""
    return 1 if conn[slot, C_LAST_TS] + LINGER_NS < clock and closed(conn, slot) else 0


@kernel
def rebuild(conn: Array, table: Array) -> None:
    """Fill an empty hash table with the connections that are not over."""
    for slot in range(conn.shape[0]):
        if conn[slot, C_USED] == 1:
            place = find(
                conn, table, conn[slot, C_A_HI], conn[slot, C_A_LO], conn[slot, C_A_PORT],
                conn[slot, C_B_HI], conn[slot, C_B_LO], conn[slot, C_B_PORT],
            )  # fmt: skip
            if place < 0:
                table[-1 - place] = slot + 1


@kernel
def free(slots: Array, conn: Array, free_slots: Array) -> None:
    """Give back the slots of connections that are over."""
    for i in range(len(slots)):
        conn[slots[i], C_USED] = 0
        give_row(free_slots, slots[i])
