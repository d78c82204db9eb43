"""Find when a link is full: bytes pass at a steady rate and without a pause, and round trips are long, by a queue.

A round trip is that of any bytes: from a segment to the acknowledgement of its last byte. It is long where it is twice
the shortest, and 20 ms longer. Where a side sends more than the link lets through, its bytes wait before it, and its
acknowledgements; so the other side's round trips show it as well, which are all that a capture near the receiver has.

Nothing else looks like it all the time. Where a path becomes longer, there is a pause as long as its round trips become
longer; where a queue grows, bytes go on passing: so the round trip has grown by three times the longest pause since.
A sender that waits for the window of its receiver, or for its application, has pauses between
acknowledgements, or no long round trips; a busy host has no steady rate. A SYN may be answered by a device on the path:
it is none of the round trips. Which of two directions is full is not known where bytes pass in both.

A path that became longer bit by bit, within seconds and without a pause, would look the same.
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.event_rows import add, sending_of
from amqpscope.dissector.tcp.sending import Sending
from amqpscope.dissector.tcp.state import FULL_LINK, At, Conn, Count, Direction, Event, Flows, Results

MS = 1_000_000
RISE_NS = 20_000_000
"""By how much a long round trip is longer than the shortest, at least: hosts and queues of fast links take less."""
SLICE_NS = 250_000_000
"""A rate is that of so long, and of SLICE_BYTES."""
SLICE_BYTES = 10_000
SLICES = 4
"""So many of these have the same rate, within a third."""
GROWS_NS = 3_000_000_000
"""Time in which a queue grows, at most."""
IDLE_NS = 200_000_000
"""A pause after which a queue grows anew: there may have been nothing to send."""
SILENT_NS = 1_000_000_000
"""So long goes without a round trip."""
OWN, OTHER = 1, 2
"""Whose round trips show that a direction is full: its own, or those of the other one."""


@kernel
def is_long(direction: Array, row: int, took: int) -> bool:
    """Return whether a round trip of a direction is long."""
    base = direction[row, Direction.TRIP_NS]
    return bool(base >= 0 and took >= 2 * base and took - base >= RISE_NS)


@kernel
def observe_round_trip(flows: Flows, out: Results, slot: int, side: int, took: int, at: At, is_all: bool) -> None:
    """Note how long bytes of a side took to be acknowledged; `is_all`: nothing that it sent waits for that any more."""
    sending = flows.sending
    own, other = sending_of(flows, 2 * slot + side), sending_of(flows, 2 * slot + 1 - side)
    long = is_long(flows.direction, 2 * slot + side, took)
    if sending[own, Sending.FULL_BY] == OWN and (is_all or not long):
        finish(flows, out, slot, side)
    if sending[other, Sending.FULL_BY] == OTHER and not long:
        finish(flows, out, slot, 1 - side)
    if has_grown(sending, own, OWN, took, at[1], long) and long and not is_all:
        go_on(flows, 2 * slot + side, own, OWN, took, at)
    if has_grown(sending, other, OTHER, took, at[1], long) and long:
        go_on(flows, 2 * slot + 1 - side, other, OTHER, took, at)


@kernel
def has_grown(sending: Array, row: int, by: int, took: int, ts: int, long: bool) -> bool:
    """Return whether a queue grew before the bytes of a direction, or is there; by round trips of OWN or OTHER."""
    if sending[row, Sending.FULL_BY] == by:
        return True
    trip = Sending.OWN_TRIP_NS if by == OWN else Sending.OTHER_TRIP_NS
    trip_ts = Sending.OWN_TRIP_TS if by == OWN else Sending.OTHER_TRIP_TS
    longest = Sending.OWN_PAUSE_NS if by == OWN else Sending.OTHER_PAUSE_NS
    since, beyond = ts - sending[row, trip_ts], sending[row, trip] + max(RISE_NS, 3 * sending[row, longest])
    is_recent = sending[row, trip_ts] > 0 and 0 <= since <= GROWS_NS
    if is_recent and took >= beyond:
        return True
    if not is_recent or not long or took <= sending[row, trip] or sending[row, longest] >= IDLE_NS:
        sending[row, trip], sending[row, trip_ts], sending[row, longest] = took, ts, 0
    return False


@kernel
def go_on(flows: Flows, direction: int, row: int, by: int, took: int, at: At) -> None:
    """Note a long round trip (OWN, OTHER) while bytes of a direction pass, whose row in Sending is `row`."""
    sending = flows.sending
    if sending[row, Sending.FULL_BY] == by:
        sending[row, Sending.FULL_TRIP_TS] = at[1]
        sending[row, Sending.FULL_TRIP_NS] = min(sending[row, Sending.FULL_TRIP_NS], took)
    if sending[row, Sending.FULL_BY] != 0:
        return
    sending[row, Sending.FULL_BY] = by
    sending[row, Sending.FULL_TRIP_TS], sending[row, Sending.FULL_TRIP_NS] = at[1], took
    acked = flows.direction[direction, Direction.ACKED]
    sending[row, Sending.FULL_PACKET], sending[row, Sending.FULL_TS], sending[row, Sending.FULL_CAPTURE] = at
    sending[row, Sending.SLICE_PACKET], sending[row, Sending.SLICE_TS], sending[row, Sending.SLICE_CAPTURE] = at
    sending[row, Sending.FULL_POS] = sending[row, Sending.SLICE_POS] = acked
    sending[row, Sending.SLICES] = 0


@kernel
def observe_pace(flows: Flows, out: Results, slot: int, side: int, acked: int, at: At) -> None:
    """Note that bytes of a side have passed, up to a position; their round trips are noted after this."""
    sending = flows.sending
    row = sending_of(flows, 2 * slot + side)
    pause = at[1] - sending[row, Sending.PACE_TS]
    own = at[1] - max(sending[row, Sending.PACE_TS], sending[row, Sending.OWN_TRIP_TS])
    other = at[1] - max(sending[row, Sending.PACE_TS], sending[row, Sending.OTHER_TRIP_TS])
    sending[row, Sending.OWN_PAUSE_NS] = max(sending[row, Sending.OWN_PAUSE_NS], own)
    sending[row, Sending.OTHER_PAUSE_NS] = max(sending[row, Sending.OTHER_PAUSE_NS], other)
    sending[row, Sending.PACE_TS] = at[1]
    if sending[row, Sending.FULL_BY] == 0:
        return
    trip = sending[row, Sending.FULL_TRIP_NS]
    if not 0 <= 3 * pause <= trip or at[1] - sending[row, Sending.FULL_TRIP_TS] > max(SILENT_NS, 3 * trip):
        finish(flows, out, slot, side)
        return
    took = at[1] - sending[row, Sending.SLICE_TS]
    passed = acked - sending[row, Sending.SLICE_POS]
    if took < SLICE_NS or passed < SLICE_BYTES:
        return
    before = (sending[row, Sending.SLICE_TS] - sending[row, Sending.FULL_TS]) // MS
    now = passed * before  # the rate of this slice, times both of their times
    then = (sending[row, Sending.SLICE_POS] - sending[row, Sending.FULL_POS]) * (took // MS)
    if sending[row, Sending.SLICES] > 0 and (3 * now < 2 * then or 2 * now > 3 * then):
        finish(flows, out, slot, side)
        return
    sending[row, Sending.SLICES] += 1
    sending[row, Sending.SLICE_POS] = acked
    sending[row, Sending.SLICE_PACKET], sending[row, Sending.SLICE_TS], sending[row, Sending.SLICE_CAPTURE] = at


@kernel
def finish(flows: Flows, out: Results, slot: int, side: int) -> None:
    """End the time in which the link was full for what a side sends, and note it if it was long enough."""
    sending, row = flows.sending, sending_of(flows, 2 * slot + side)
    by = sending[row, Sending.FULL_BY]
    sending[row, Sending.FULL_BY] = 0
    if by == 0 or sending[row, Sending.SLICES] < SLICES:
        return
    at = sending[row, Sending.SLICE_PACKET], sending[row, Sending.SLICE_TS], sending[row, Sending.SLICE_CAPTURE]
    of = sending[row, Sending.FULL_PACKET], sending[row, Sending.FULL_TS], sending[row, Sending.FULL_CAPTURE]
    passed = sending[row, Sending.SLICE_POS] - sending[row, Sending.FULL_POS]
    n = out.counts[Count.EVENTS]
    add(flows, out, slot, side, FULL_LINK, at, of, passed, at[1] - of[1], -1)
    if out.counts[Count.EVENTS] > n:
        out.events[Event.TRIP_NS, n] = sending[row, Sending.FULL_TRIP_NS]
        of_side = side if by == OWN else 1 - side
        out.events[Event.USUAL_TRIP_NS, n] = flows.direction[2 * slot + of_side, Direction.TRIP_NS]


@kernel
def finish_both(flows: Flows, out: Results, slot: int) -> None:
    """End the times that last until the connection ends."""
    if flows.conn[slot, Conn.SENDING] >= 0:
        for side in range(2):
            finish(flows, out, slot, side)
