"""Slots of connections: found by their endpoints, opened, over, forgotten; and who they are."""

from dissector.arrays import Array
from dissector.hashing import mix
from dissector.kernel import kernel
from dissector.pool import give_row, take_row
from dissector.tcp.layout import (
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
    C_LAST_TS,
    C_RTT,
    C_USED,
    C_WIDTH,
    H_HEAD,
    H_TAIL,
    H_WIDTH,
    H_WSCALE,
    K_TOMBSTONES,
    LINGER_NS,
)


@kernel
def identity(conn: Array, slot: int, anchor: int, time: int) -> int:
    """`connection_id`, of both addresses and ports and the client's initial sequence number (time 0).

    Without a SYN the anchor is the first data segment's sequence number, and its time counts too.
    """
    h = mix(0x2545F4914F6CDD1D, conn[slot, C_A_HI])
    h = mix(h, conn[slot, C_A_LO])
    h = mix(h, conn[slot, C_A_PORT])
    h = mix(h, conn[slot, C_B_HI])
    h = mix(h, conn[slot, C_B_LO])
    h = mix(h, conn[slot, C_B_PORT])
    h = mix(mix(mix(h, anchor), time), 0)
    if h == 0:
        h = 1
    return h


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
def open_slot(
    conn: Array, half: Array, free_slots: Array,
    a_hi: int, a_lo: int, a_port: int, b_hi: int, b_lo: int, b_port: int, ts: int, packet: int, capture: int,
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
    conn[slot, C_CLOSER] = -1
    conn[slot, C_RTT] = -1
    conn[slot, C_FIRST_TS] = ts
    conn[slot, C_LAST_TS] = ts
    conn[slot, C_FIRST_PACKET] = packet
    conn[slot, C_FIRST_CAPTURE] = capture
    for row in range(2 * slot, 2 * slot + 2):
        for column in range(H_WIDTH):
            half[row, column] = 0
        half[row, H_HEAD] = -1
        half[row, H_TAIL] = -1
        half[row, H_WSCALE] = -1
    return slot


@kernel
def over(conn: Array, slot: int, clock: int) -> int:
    """1 when a closed connection has been idle for so long that a further packet belongs to another one."""
    closed = conn[slot, C_CLOSED]
    if (closed & 4 or closed & 3 == 3) and conn[slot, C_LAST_TS] + LINGER_NS < clock:
        return 1
    return 0


@kernel
def rebuild(conn: Array, table: Array, live: Array) -> None:
    """Fill an empty hash table with the slots that are marked live."""
    for slot in range(len(live)):
        if live[slot]:
            place = find(
                conn, table, conn[slot, C_A_HI], conn[slot, C_A_LO], conn[slot, C_A_PORT],
                conn[slot, C_B_HI], conn[slot, C_B_LO], conn[slot, C_B_PORT],
            )  # fmt: skip
            if place < 0:
                table[-1 - place] = slot + 1


@kernel
def forget(slots: Array, conn: Array, table: Array, free_slots: Array, control: Array) -> None:
    """Free these slots, and take them out of the hash table where they still are."""
    for i in range(len(slots)):
        slot = slots[i]
        place = find(
            conn, table, conn[slot, C_A_HI], conn[slot, C_A_LO], conn[slot, C_A_PORT],
            conn[slot, C_B_HI], conn[slot, C_B_LO], conn[slot, C_B_PORT],
        )  # fmt: skip
        if place >= 0 and table[place] == slot + 1:
            table[place] = -1
            control[K_TOMBSTONES] += 1
        conn[slot, C_USED] = 0
        give_row(free_slots, slot)
