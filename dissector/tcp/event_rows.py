"""Rows of events of TCP, and where a connection keeps what they follow from."""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.sending import Sending
from amqpscope.dissector.tcp.state import At, Conn, Count, Event, Facts, Flows, Results

NOWHERE: At = (0, 0, 0)


@kernel
def has_room(flows: Flows, slot: int) -> int:
    """Count an event of a connection; return 1 if it is to have a row."""
    flows.conn[slot, Conn.EVENTS] += 1
    return 1 if flows.conn[slot, Conn.EVENTS] <= limits.TCP_EVENTS_PER_CONNECTION else 0


@kernel
def sending_of(flows: Flows, row: int) -> int:
    """Return the row in `Sending` of a direction; -1 where its connection has sent no bytes."""
    pair = flows.conn[row >> 1, Conn.SENDING]
    return 2 * pair + (row & 1) if pair >= 0 else -1


@kernel
def add(
    flows: Flows, out: Results, slot: int, side: int, kind: int, at: At, of: At, size: int, late_ns: int, ttl: int
) -> None:  # fmt: skip
    """Append an event of a connection with an identity, if it is to have a row."""
    if flows.facts[slot, Facts.ID] == 0 or has_room(flows, slot) == 0:
        return
    events, sending = out.events, sending_of(flows, 2 * slot + side)
    n = out.counts[Count.EVENTS]
    events[Event.SLOT, n] = slot
    events[Event.SIDE, n] = side
    events[Event.KIND, n] = kind
    events[Event.PACKET, n], events[Event.TS, n], events[Event.CAPTURE, n] = at
    events[Event.OF_PACKET, n], events[Event.OF_TS, n], events[Event.OF_CAPTURE, n] = of
    events[Event.BYTES, n] = size
    events[Event.LATE_NS, n] = late_ns
    events[Event.TTL, n] = ttl
    events[Event.USUAL_TTL, n] = flows.sending[sending, Sending.TTL] - 1 if ttl >= 0 and sending >= 0 else -1
    events[Event.TRIP_NS, n] = events[Event.USUAL_TRIP_NS, n] = -1
    out.counts[Count.EVENTS] = n + 1
