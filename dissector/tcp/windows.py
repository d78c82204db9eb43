"""Windows that hold a sender up: intervals in which one was zero, or full.

Sources: RFC 9293 §3.8.6 (managing the window); RFC 7323 §2 (window scale).
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.identities import identify
from amqpscope.dissector.tcp.state import FULL, ZERO, At, Conn, Count, Facts, Flows, Half, Results, Window


@kernel
def shift(half: Array, row: int, other: int) -> int:
    """By how many bits the window of a side is scaled; -1: not known. Both SYNs must have had the option."""
    if half[row, Half.WSCALE] == -2 or half[other, Half.WSCALE] == -2:
        return 0
    if half[other, Half.WSCALE] < 0:
        return -1
    scale: int = min(half[row, Half.WSCALE], 14)
    return scale


@kernel
def stall(half: Array, row: int, other: int) -> int:
    """Whether the window of a side holds the other up: ZERO, FULL (as much is under way as it has room for), or 0."""
    window = half[row, Half.WINDOW]
    if window <= 0:
        return ZERO if window == 0 else 0
    scale = shift(half, row, other)
    if scale >= 0 and half[other, Half.TOP] - half[other, Half.ACKED] >= window << scale:
        return FULL
    return 0


@kernel
def change(flows: Flows, out: Results, slot: int, side: int, kind: int, at: At) -> None:
    """End the interval of a side's window that is under way, if any, and begin one of this kind (0: none)."""
    half, windows = flows.half, out.windows
    packet, ts, capture = at
    packets = flows.conn[slot, Conn.PACKETS]
    row = 2 * slot + side
    was = half[row, Half.STALL]
    if was:
        took = max(ts - half[row, Half.STALL_TS], 0)
        half[row, Half.ZERO_NS if was == ZERO else Half.FULL_NS] += took
        n = out.counts[Count.WINDOWS]
        windows[Window.SLOT, n] = slot
        windows[Window.SIDE, n] = side
        windows[Window.KIND, n] = was
        windows[Window.PACKET, n] = half[row, Half.STALL_PACKET]
        windows[Window.TS, n] = half[row, Half.STALL_TS]
        windows[Window.CAPTURE, n] = half[row, Half.STALL_CAPTURE]
        windows[Window.END_PACKET, n] = packet
        windows[Window.END_TS, n] = ts
        windows[Window.END_CAPTURE, n] = capture
        windows[Window.PACKETS, n] = packets - half[row, Half.STALL_COUNT]
        out.counts[Count.WINDOWS] = n + 1
    half[row, Half.STALL] = kind
    half[row, Half.STALL_TS] = ts
    half[row, Half.STALL_PACKET] = packet
    half[row, Half.STALL_CAPTURE] = capture
    half[row, Half.STALL_COUNT] = packets


@kernel
def watch(flows: Flows, out: Results, slot: int, at: At) -> None:
    """See whether a segment changed what the windows do."""
    for side in range(2):
        row = 2 * slot + side
        kind = stall(flows.half, row, 2 * slot + 1 - side)
        if kind != flows.half[row, Half.STALL]:
            if flows.facts[slot, Facts.ID] == 0:  # a row needs to say whose it is
                identify(flows, slot, flows.conn[slot, Conn.ISN], flows.conn[slot, Conn.FIRST_TS])
            change(flows, out, slot, side, kind, at)
