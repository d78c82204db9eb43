"""Which segments are buffered: those that came early, were captured elsewhere, or wait for what they acknowledge."""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.buffered import displace, store
from amqpscope.dissector.tcp.faults import note
from amqpscope.dissector.tcp.identities import identify
from amqpscope.dissector.tcp.layout import (
    ANYWHERE,
    C_ID,
    C_LAST_TS,
    H_ACKED,
    H_COUNT,
    H_NEXT,
    H_POS,
    H_STARTED,
    H_TOP,
    H_TWICE,
    H_WAITING,
    K_WAITING,
    MISMATCH,
)
from amqpscope.dissector.tcp.numbers import difference
from amqpscope.dissector.tcp.order import flush, release


@kernel
def crowded(half: Array, row: int) -> int:
    """1 when no more may wait in a direction."""
    if half[row, H_COUNT] >= limits.WAITING_PARTS_PER_STREAM:
        return 1
    return 1 if half[row, H_WAITING] > limits.WAITING_OCTETS_PER_STREAM else 0


@kernel
def keep_waiting(
    data: Array, half: Array, parts: Array, free_parts: Array, pieces: Array, faults: Array, control: Array,
    slot: int, side: int, pos: int, skip: int, length: int, offset: int, caplen: int, needs: int, again: int,
    packet: int, ts: int, capture: int,
) -> None:  # fmt: skip
    """Take bytes at `pos` that must wait for others, or others before them: all but the first `skip`, had before."""
    row = 2 * slot + side
    if crowded(half, row):
        displace(half, parts, control, free_parts, row, -1, ANYWHERE)
        before = half[2 * slot + 1 - side, H_ACKED]  # this direction may wait for nothing but the other
        through_0, through_1 = (0, before) if side == 0 else (before, 0)
        release(half, parts, control, free_parts, pieces, slot, packet, ts, capture, through_0, through_1)
        if crowded(half, row):
            flush(half, parts, control, free_parts, pieces, slot, side, packet, ts, capture)
        skip = min(max(half[row, H_POS] - pos, 0), length)
    different = 0
    if caplen > skip:
        different = store(
            data, half, parts, control, free_parts, row, again,
            pos + skip, caplen - skip, offset + skip, packet, ts, capture, needs, 0,
        )  # fmt: skip
    there = max(caplen, skip)
    if length > there:
        store(
            data, half, parts, control, free_parts, row, again,
            pos + there, length - there, -1, packet, ts, capture, needs, 0,
        )  # fmt: skip
    if different:
        note(faults, control, slot, side, MISMATCH, pos, different, packet, ts, capture)


@kernel
def fill(
    data: Array, conn: Array, half: Array, parts: Array, free_parts: Array, pieces: Array, younger: Array,
    older: Array, control: Array, slot: int, side: int, start: int, offset: int, caplen: int, needs: int,
    packet: int, capture: int,
) -> None:  # fmt: skip
    """Take bytes seen at another capture point than the connection's, for the case that this one missed them.

    Their time is that of the connection's last packet: clocks differ.
    """
    row = 2 * slot + side
    now = conn[slot, C_LAST_TS]
    if half[row, H_STARTED] == 0:
        half[row, H_STARTED] = 1
        half[row, H_NEXT] = start
    here = half[row, H_POS]
    pos = here + difference(start, half[row, H_NEXT])
    skip = min(max(here - pos, 0), caplen)
    half[row, H_TWICE] += skip
    if (
        skip == caplen
        or pos > max(half[row, H_TOP], half[row, H_ACKED]) + limits.WAITING_OCTETS_PER_STREAM
        or free_parts[0] < half[row, H_COUNT] + 4
        or control[K_WAITING] > limits.WAITING_OCTETS
        or crowded(half, row)
    ):
        return
    if conn[slot, C_ID] == 0:
        identify(conn, slot, start, now, younger, older, control)
    store(
        data, half, parts, control, free_parts, row, H_TWICE,
        pos + skip, caplen - skip, offset + skip, packet, now, capture, needs, 1,
    )  # fmt: skip
