"""Windows that stop a sender: intervals in which a window was zero, or full.

Sources: RFC 9293 §3.8.6 (managing the window); RFC 7323 §2 (window scale).
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.event_rows import has_room
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
def announce(direction: Array, row: int, other: int, window: int, acked: int) -> None:
    """Take the window that a side announces with a packet that acknowledges the other up to `acked`.

    A probe, bytes that nobody saw, or bytes that had room show that a packet is missing which closed it, or opened it.
    """
    was = direction[row, Direction.WINDOW]
    if window > 0:
        if was == 0 and acked > direction[other, Direction.ACKED] + 1:  # a probe may have a byte
            direction[row, Direction.STALL_PARTIAL] = 1
    elif was != 0:
        is_begun = was < 0 and direction[row, Direction.WSCALE] == -1
        is_late = direction[other, Direction.PROBED] == 1 or acked > direction[other, Direction.TOP]
        direction[row, Direction.STALL_PARTIAL] = 1 if is_begun or is_late else 0
    direction[row, Direction.WINDOW] = window


@kernel
def probe(direction: Array, row: int, pos: int, length: int) -> None:
    """Note whether a segment of a side only asks whether the other one has room (or is there): it has no new byte."""
    if length <= 1 and pos == direction[row, Direction.TOP] - 1:
        direction[row, Direction.PROBED] = 1
    elif length > 0 and pos + length > direction[row, Direction.TOP]:
        direction[row, Direction.PROBED] = 0


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
        windows[Window.PARTIAL, n] = direction[row, Direction.STALL_PARTIAL] if was == ZERO else 0
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
