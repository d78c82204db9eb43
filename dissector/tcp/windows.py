"""Windows that stop a sender: intervals in which a window was zero, or full.

Sources: RFC 9293 §3.8.6 (managing the window); RFC 7323 §2 (window scale).
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.events import has_room
from amqpscope.dissector.tcp.identities import identify
from amqpscope.dissector.tcp.state import FULL, ZERO, At, Conn, Count, Direction, Facts, Flows, Results, Window


@kernel
def shift(direction: Array, row: int, other: int) -> int:
    """Return by how many bits the window of a side is scaled; -1: unknown. Both SYNs must have had the option."""
    if direction[row, Direction.WSCALE] == -2 or direction[other, Direction.WSCALE] == -2:
        return 0
    if direction[other, Direction.WSCALE] < 0:
        return -1
    scale: int = min(direction[row, Direction.WSCALE], 14)
    return scale


@kernel
def stall(direction: Array, row: int, other: int) -> int:
    """Return whether the window of a side stops the other: ZERO, FULL (as much in flight as it has room for), or 0."""
    window = direction[row, Direction.WINDOW]
    if window <= 0:
        return ZERO if window == 0 else 0
    scale = shift(direction, row, other)
    if scale >= 0 and direction[other, Direction.TOP] - direction[other, Direction.ACKED] >= window << scale:
        return FULL
    return 0


@kernel
def change(flows: Flows, out: Results, slot: int, side: int, kind: int, at: At) -> None:
    """End the current interval of a side's window, if any, and begin one of this kind (0: none)."""
    direction, windows = flows.direction, out.windows
    packet, ts, capture = at
    packets = flows.conn[slot, Conn.PACKETS]
    row = 2 * slot + side
    was = direction[row, Direction.STALL]
    if was:
        took = max(ts - direction[row, Direction.STALL_TS], 0)
        direction[row, Direction.ZERO_NS if was == ZERO else Direction.FULL_NS] += took
        n = out.counts[Count.WINDOWS]
        windows[Window.SLOT, n] = slot
        windows[Window.SIDE, n] = side
        windows[Window.KIND, n] = was
        windows[Window.PACKET, n] = direction[row, Direction.STALL_PACKET]
        windows[Window.TS, n] = direction[row, Direction.STALL_TS]
        windows[Window.CAPTURE, n] = direction[row, Direction.STALL_CAPTURE]
        windows[Window.END_PACKET, n] = packet
        windows[Window.END_TS, n] = ts
        windows[Window.END_CAPTURE, n] = capture
        windows[Window.PACKETS, n] = packets - direction[row, Direction.STALL_COUNT]
        windows[Window.COUNTED, n] = has_room(flows, slot) if was == ZERO else 0
        out.counts[Count.WINDOWS] = n + 1
    direction[row, Direction.STALL] = kind
    direction[row, Direction.STALL_TS] = ts
    direction[row, Direction.STALL_PACKET] = packet
    direction[row, Direction.STALL_CAPTURE] = capture
    direction[row, Direction.STALL_COUNT] = packets


@kernel
def watch(flows: Flows, out: Results, slot: int, at: At) -> None:
    """Check whether a segment changed what the windows do."""
    for side in range(2):
        row = 2 * slot + side
        kind = stall(flows.direction, row, 2 * slot + 1 - side)
        if kind != flows.direction[row, Direction.STALL]:
            if flows.facts[slot, Facts.ID] == 0:  # a row needs the identity
                identify(flows, slot, flows.conn[slot, Conn.ISN], flows.conn[slot, Conn.FIRST_TS])
            change(flows, out, slot, side, kind, at)
