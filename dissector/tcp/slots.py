"""Slots of connections: find them by endpoints, take them, and keep them in order of the last segment."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.pool import take_row
from amqpscope.dissector.packets.segments import SYN, SegmentBatch
from amqpscope.dissector.tcp.numbers import Ends, side_of
from amqpscope.dissector.tcp.state import OPEN, Conn, Control, Facts, Flows, List

LINGER_NS = 30_000_000_000
"""A closed connection ends after this time without a packet."""


@kernel
def find(flows: Flows, ends: Ends, replaced: int) -> int:
    """Return the place of this pair of endpoints in the hash table, or -1 - the place of a free entry.

    With `replaced` 1, that of the connection which the latest one has replaced.
    """
    facts, table = flows.facts, flows.table
    a_hi, a_lo, a_port, b_hi, b_lo, b_port = ends
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
                facts[slot, Facts.A_LO] == a_lo
                and facts[slot, Facts.B_LO] == b_lo
                and facts[slot, Facts.A_PORT] == a_port
                and facts[slot, Facts.B_PORT] == b_port
                and facts[slot, Facts.A_HI] == a_hi
                and facts[slot, Facts.B_HI] == b_hi
                and flows.conn[slot, Conn.REPLACED] == replaced
            ):
                return place
        place = (place + 1) & mask


@kernel
def ends_of(facts: Array, slot: int) -> Ends:
    """Return both endpoints of a connection."""
    return (
        facts[slot, Facts.A_HI], facts[slot, Facts.A_LO], facts[slot, Facts.A_PORT],
        facts[slot, Facts.B_HI], facts[slot, Facts.B_LO], facts[slot, Facts.B_PORT],
    )  # fmt: skip


@kernel
def replaced_by(flows: Flows, slot: int) -> int:
    """Return the slot of the connection that this one has replaced, and that has not ended; -1: there is none."""
    if flows.conn[slot, Conn.FOLLOWS] == 0:
        return -1
    place = find(flows, ends_of(flows.facts, slot), 1)
    found: int = flows.table[place] - 1 if place >= 0 else -1
    return found


@kernel
def unlink(flows: Flows, slot: int) -> None:
    """Take a connection out of its list."""
    conn, lists = flows.conn, flows.lists
    older = conn[slot, Conn.OLDER]
    newer = conn[slot, Conn.NEWER]
    if older < 0:
        lists[conn[slot, Conn.LIST], List.OLDEST] = newer
    else:
        conn[older, Conn.NEWER] = newer
    if newer < 0:
        lists[conn[slot, Conn.LIST], List.NEWEST] = older
    else:
        conn[newer, Conn.OLDER] = older


@kernel
def append(flows: Flows, slot: int, which: int) -> None:
    """Put a connection at the end of a list."""
    conn, lists = flows.conn, flows.lists
    newest = lists[which, List.NEWEST]
    conn[slot, Conn.LIST] = which
    conn[slot, Conn.OLDER] = newest
    conn[slot, Conn.NEWER] = -1
    if newest < 0:
        lists[which, List.OLDEST] = slot
    else:
        conn[newest, Conn.NEWER] = slot
    lists[which, List.NEWEST] = slot


@kernel
def touch(flows: Flows, slot: int) -> None:
    """Move a connection to the end of its list, because a segment of it came."""
    which = closed(flows.conn, slot)
    if flows.lists[which, List.NEWEST] != slot:
        unlink(flows, slot)
        append(flows, slot, which)
    flows.conn[slot, Conn.SEEN] = flows.control[Control.SEGMENTS]


@kernel
def open_slot(batch: SegmentBatch, i: int, flows: Flows, ends: Ends, before: int, is_beside: int) -> int:
    """Take a slot for a connection that begins with this segment, after others of the same endpoints.

    There must be a free one, with empty rows. `is_beside` is 1 if the one before it has not ended.
    """
    facts, conn = flows.facts, flows.conn
    a_hi, a_lo, a_port, b_hi, b_lo, b_port = ends
    point = flows.points[batch.capture[i]]
    slot = take_row(flows.free)
    facts[slot, Facts.USED] = 1
    facts[slot, Facts.A_HI] = a_hi
    facts[slot, Facts.A_LO] = a_lo
    facts[slot, Facts.A_PORT] = a_port
    facts[slot, Facts.B_HI] = b_hi
    facts[slot, Facts.B_LO] = b_lo
    facts[slot, Facts.B_PORT] = b_port
    conn[slot, Conn.ISN] = batch.seq[i]
    conn[slot, Conn.FIRST_TS] = batch.ts_ns[i]
    conn[slot, Conn.LAST_TS] = batch.ts_ns[i]
    conn[slot, Conn.CLOCK] = batch.ts_ns[i]
    conn[slot, Conn.BEFORE] = before
    conn[slot, Conn.FIRST_PACKET] = batch.packet[i]
    conn[slot, Conn.FIRST_CAPTURE] = batch.capture[i]
    conn[slot, Conn.VANTAGE_CAPTURE] = point
    conn[slot, Conn.POINT_CAPTURE] = point
    conn[slot, Conn.UP_SIDE] = side_of(batch, i)
    conn[slot, Conn.ASIDE] = 1 if before > 0 and batch.flags[i] & SYN else 0
    conn[slot, Conn.FOLLOWS] = is_beside
    conn[slot, Conn.UNSETTLED] = 1 if batch.flags[i] & SYN == 0 else 0
    append(flows, slot, OPEN)
    flows.control[Control.LIVE] += 1
    return slot


@kernel
def closed(conn: Array, slot: int) -> int:
    """Return 1 when both sides have closed the connection, or one reset it."""
    ends = conn[slot, Conn.CLOSED]
    return 1 if ends & 4 != 0 or ends & 3 == 3 else 0


@kernel
def over(conn: Array, slot: int, now: int) -> int:
    """Return 1 when a closed connection has been idle so long that a packet at this time belongs to another one."""
    return 1 if conn[slot, Conn.LAST_TS] + LINGER_NS < now and closed(conn, slot) else 0


@kernel
def later(clock: int, now: int) -> int:
    """Return the clock at a segment of this time; it steps back with times, as when another capture begins."""
    return now if now < clock - LINGER_NS else max(clock, now)


@kernel
def rebuild(flows: Flows) -> None:
    """Fill an empty hash table with the connections that have not ended."""
    for slot in range(flows.facts.shape[0]):
        if flows.facts[slot, Facts.USED] == 1:
            place = find(flows, ends_of(flows.facts, slot), flows.conn[slot, Conn.REPLACED])
            if place < 0:
                flows.table[-1 - place] = slot + 1
