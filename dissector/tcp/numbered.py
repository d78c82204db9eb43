"""Note bytes that come late because a packet with them was lost before the capture, where nothing else shows it.

A sender that numbers its packets one by one (IPv4; Linux does so for each connection) left out a number, and paused
before these bytes, though they are the next ones and it owed no acknowledgement: it sent them again. Windows numbers
what goes to one address together, and its packets begin with a time to live of 128: they show nothing. Nor does what
follows a packet that is larger than any on a link: its card cuts it into several, each of which has a number.

Sources: RFC 6864 §4 (identification), RFC 6298 §5 (what is lost last is sent again by a timer).
"""

from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.packets.segments import SegmentBatch
from amqpscope.dissector.tcp.event_rows import NOWHERE, add, sending_of
from amqpscope.dissector.tcp.events import round_trip
from amqpscope.dissector.tcp.sending import Sending
from amqpscope.dissector.tcp.state import AGAIN, Direction, Flows, Results

IN_ORDER = 8
"""Packets in a row with numbers in a row, after which a number that is left out means something."""
MOST_LOST = 4
"""Numbers that are left out at most."""
PAUSE_NS = 100_000_000
"""How long the sender paused, at least; and twice the round trip."""
TTL = 64
"""Time to live at most of senders that number each connection for itself."""
LARGEST = 1460
"""Bytes in a packet of Ethernet at most."""
TIMER_NS = 200_000_000
"""Most of a pause that is its timer's (Linux: at least this); before, it may have had nothing to send."""


@kernel
def observe_number(batch: SegmentBatch, i: int, flows: Flows, out: Results, slot: int, side: int, pos: int) -> None:
    """Note the number of a packet that is no copy and begins at `pos` (-1: no bytes), and a loss that it shows."""
    direction, sending = flows.direction, flows.sending
    row = 2 * slot + side
    mine = sending_of(flows, row)
    if mine < 0:
        return
    number = batch.mark[i] if batch.mark[i] < 0x10000 else 0
    passed = (
        (number - sending[mine, Sending.NUMBER]) & 0xFFFF if number > 0 and sending[mine, Sending.NUMBER] > 0 else 0
    )
    pause = batch.ts_ns[i] - sending[mine, Sending.NUMBER_TS]
    top = direction[row ^ 1, Direction.TOP]
    if passed == 1:
        sending[mine, Sending.IN_ORDER] += 1
    elif (
        2 <= passed <= 1 + MOST_LOST
        and sending[mine, Sending.IN_ORDER] >= IN_ORDER
        and batch.ttl[i] <= TTL
        and pos == direction[row, Direction.TOP]
        and sending[mine, Sending.NUMBER_TOP] == top
        and pause >= max(PAUSE_NS, 2 * round_trip(flows, slot))
    ):
        at = batch.packet[i], batch.ts_ns[i], batch.capture[i]
        add(flows, out, slot, side, AGAIN, at, NOWHERE, batch.length[i], min(pause, TIMER_NS), -1)
    else:
        sending[mine, Sending.IN_ORDER] = 0
    sending[mine, Sending.NUMBER] = number if batch.length[i] <= LARGEST else 0
    sending[mine, Sending.NUMBER_TS] = batch.ts_ns[i]
    sending[mine, Sending.NUMBER_TOP] = top if direction[row ^ 1, Direction.ACKED] >= top else -1
