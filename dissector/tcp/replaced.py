"""Connections that another one of the same endpoints has replaced: for a moment, segments of them may still come.

Where two cards capture a direction each, the clock of one may be ahead: it shows the next connection before the other
one shows the end of this one. The sequence numbers of the side that opened the next one tell them apart: that begins
with its SYN, and a SYN-ACK acknowledges it.

Source: RFC 9293 §3.4.1 (a new connection's sequence numbers do not overlap those of an earlier one).
"""

from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.packets.segments import ACK, SYN, SegmentBatch
from amqpscope.dissector.tcp.numbers import difference, first_byte
from amqpscope.dissector.tcp.slots import ends_of, find
from amqpscope.dissector.tcp.state import Conn, Control, Direction, Facts, Flows

LATE_NS = 10_000_000
"""Time for which segments of a connection may come late once another one has replaced it."""
REACH = 1 << 20
"""Bytes before and behind the last ones of a direction that a segment may be about."""


@kernel
def replace(flows: Flows, slot: int, place: int) -> None:
    """Keep a connection, whose entry in the hash table is at `place`, beside one that begins."""
    flows.table[place] = -1
    flows.control[Control.TOMBSTONES] += 1
    flows.conn[slot, Conn.REPLACED] = 1
    kept = -1 - find(flows, ends_of(flows.facts, slot), 1)
    if flows.table[kept] < 0:
        flows.control[Control.TOMBSTONES] -= 1
    flows.table[kept] = slot + 1


@kernel
def is_late(batch: SegmentBatch, i: int, side: int, flows: Flows, slot: int, before: int) -> bool:
    """Return whether a segment belongs to the connection that the one in `slot` has replaced.

    It does where its number cannot be of the one and is near to the last of the other.
    """
    facts, conn, direction = flows.facts, flows.conn, flows.direction
    opener = facts[slot, Facts.OPENER]
    is_acked = batch.flags[i] & ACK != 0
    if batch.flags[i] & SYN:
        isn = (batch.ack[i] - 1) & 0xFFFFFFFF if is_acked else batch.seq[i]
        is_missing = facts[before, Facts.SYN] == (1 if is_acked else 2)
        is_opener: bool = facts[before, Facts.OPENER] == (1 - side if is_acked else side)
        return is_missing and is_opener and conn[before, Conn.ISN] == isn and conn[slot, Conn.ISN] != isn
    of = 1 - side if side != opener and is_acked else side
    number = first_byte(batch, i) if of == side else batch.ack[i]
    row, old = 2 * slot + of, 2 * before + of
    if direction[row, Direction.STARTED] == 0 or direction[old, Direction.STARTED] == 0:
        return False
    here = direction[row, Direction.POS] + difference(number, direction[row, Direction.NEXT])
    there = direction[old, Direction.POS] + difference(number, direction[old, Direction.NEXT])
    is_own = -1 <= here <= direction[row, Direction.TOP] + REACH
    return not is_own and abs(there - direction[old, Direction.TOP]) <= REACH
