"""Connections that fall silent while segments are buffered: no more than two minutes pass until these are emitted.

Rows must not depend on other connections, whose packets alone show that time passes: a part of the capture may lack
them. So a connection that was silent for `IDLE_NS` emits what it has buffered before its next packet, as it does at its
end. When the packets of others show that this has come, it does so earlier, and nothing that comes changes it.
"""

from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.emit_in_order import flush_held
from amqpscope.dissector.tcp.endings import LINGER_SEGMENTS, sent
from amqpscope.dissector.tcp.reorder_queue import buffered
from amqpscope.dissector.tcp.slots import LINGER_NS
from amqpscope.dissector.tcp.state import READ, Conn, Control, Count, Facts, Flows, Queue, Results
from amqpscope.dissector.tcp.vantage import last_elsewhere

IDLE_NS = 120_000_000_000
"""A segment lives no longer (RFC 9293 §3.4.1, maximum segment lifetime)."""


@kernel
def waits(flows: Flows, slot: int, until: int) -> bool:
    """Return whether a connection has buffered segments, and no packet since a time."""
    if flows.conn[slot, Conn.CLOCK] >= until:
        return False
    found: bool = flows.queues[2 * slot, Queue.HEAD] >= 0 or flows.queues[2 * slot + 1, Queue.HEAD] >= 0
    return found


@kernel
def release_idle(flows: Flows, out: Results, slot: int) -> None:
    """Emit, over gaps, what a silent connection has buffered. There must be room for two chunks for each segment."""
    end_0 = max(sent(flows, slot, 0), last_elsewhere(flows, 2 * slot))
    end_1 = max(sent(flows, slot, 1), last_elsewhere(flows, 2 * slot + 1))
    flush_held(flows, out, slot, end_0, end_1)


@kernel
def sweep(flows: Flows, out: Results, clock: int) -> int:
    """Emit what silent connections have buffered, every half a minute; return 0 when there was no room to go on.

    Segments that come may be earlier than the clock (`slots.later`), and a few wrong times release nothing.
    """
    conn, control = flows.conn, flows.control
    now = clock // LINGER_NS
    if now == control[Control.SWEPT]:
        return 1
    for slot in range(len(conn) if flows.free_segments[0] < len(flows.segments) else 0):
        if (
            flows.facts[slot, Facts.USED] == 1
            and conn[slot, Conn.SEEN] + LINGER_SEGMENTS < control[Control.SEGMENTS]
            and waits(flows, slot, clock - IDLE_NS - LINGER_NS)
        ):
            if out.counts[Count.CHUNKS] + 2 * buffered(flows, slot) + 8 > out.chunks.shape[1]:
                control[Control.WANT] = READ
                return 0
            release_idle(flows, out, slot)
    control[Control.SWEPT] = now
    return 1
