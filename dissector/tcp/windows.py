"""Windows that hold a sender up: intervals in which one was zero, or full.

Sources: RFC 9293 §3.8.6 (managing the window); RFC 7323 §2 (window scale).
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.identities import identify
from amqpscope.dissector.tcp.layout import (
    C_FIRST_TS,
    C_ID,
    C_ISN,
    C_PACKETS,
    FULL,
    H_ACKED,
    H_FULL_NS,
    H_STALL,
    H_STALL_CAPTURE,
    H_STALL_COUNT,
    H_STALL_PACKET,
    H_STALL_TS,
    H_TOP,
    H_WINDOW,
    H_WSCALE,
    H_ZERO_NS,
    K_WINDOWS,
    V_CAPTURE,
    V_END_CAPTURE,
    V_END_PACKET,
    V_END_TS,
    V_KIND,
    V_PACKET,
    V_PACKETS,
    V_SIDE,
    V_SLOT,
    V_TS,
    ZERO,
)


@kernel
def shift(half: Array, row: int, other: int) -> int:
    """By how many bits the window of a side is scaled; -1: not known. Both SYNs must have had the option."""
    if half[row, H_WSCALE] == -2 or half[other, H_WSCALE] == -2:
        return 0
    if half[other, H_WSCALE] < 0:
        return -1
    scale: int = min(half[row, H_WSCALE], 14)
    return scale


@kernel
def stall(half: Array, row: int, other: int) -> int:
    """Whether the window of a side holds the other up: ZERO, FULL (as much is under way as it has room for), or 0."""
    window = half[row, H_WINDOW]
    if window <= 0:
        return ZERO if window == 0 else 0
    scale = shift(half, row, other)
    if scale >= 0 and half[other, H_TOP] - half[other, H_ACKED] >= window << scale:
        return FULL
    return 0


@kernel
def change(
    conn: Array, half: Array, windows: Array, control: Array, slot: int, side: int, kind: int,
    packet: int, ts: int, capture: int,
) -> None:  # fmt: skip
    """End the interval of a side's window that is under way, if any, and begin one of this kind (0: none)."""
    row = 2 * slot + side
    was = half[row, H_STALL]
    if was:
        took = max(ts - half[row, H_STALL_TS], 0)
        half[row, H_ZERO_NS if was == ZERO else H_FULL_NS] += took
        n = control[K_WINDOWS]
        windows[V_SLOT, n] = slot
        windows[V_SIDE, n] = side
        windows[V_KIND, n] = was
        windows[V_PACKET, n] = half[row, H_STALL_PACKET]
        windows[V_TS, n] = half[row, H_STALL_TS]
        windows[V_CAPTURE, n] = half[row, H_STALL_CAPTURE]
        windows[V_END_PACKET, n] = packet
        windows[V_END_TS, n] = ts
        windows[V_END_CAPTURE, n] = capture
        windows[V_PACKETS, n] = conn[slot, C_PACKETS] - half[row, H_STALL_COUNT]
        control[K_WINDOWS] = n + 1
    half[row, H_STALL] = kind
    half[row, H_STALL_TS] = ts
    half[row, H_STALL_PACKET] = packet
    half[row, H_STALL_CAPTURE] = capture
    half[row, H_STALL_COUNT] = conn[slot, C_PACKETS]


@kernel
def watch(
    conn: Array, half: Array, windows: Array, younger: Array, older: Array, control: Array, slot: int,
    packet: int, ts: int, capture: int,
) -> None:  # fmt: skip
    """See whether a segment changed what the windows do."""
    for side in range(2):
        row = 2 * slot + side
        kind = stall(half, row, 2 * slot + 1 - side)
        if kind != half[row, H_STALL]:
            if conn[slot, C_ID] == 0:  # a row needs to say whose it is
                identify(conn, slot, conn[slot, C_ISN], conn[slot, C_FIRST_TS], younger, older, control)
            change(conn, half, windows, control, slot, side, kind, packet, ts, capture)
