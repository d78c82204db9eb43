"""Sequence numbers, which wrap, and the order of endpoints (RFC 9293 §3.4)."""

from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.packets.segments import SYN, SegmentBatch

Ends = tuple[int, int, int, int, int, int]
"""Address (two halves) and port of side 0, and of side 1."""


@kernel
def difference(a: int, b: int) -> int:
    """Return a - b of 32-bit sequence numbers, as a signed number."""
    return ((a - b + 0x80000000) & 0xFFFFFFFF) - 0x80000000


@kernel
def first_byte(batch: SegmentBatch, i: int) -> int:
    """Return the sequence number of a segment's first byte, which follows a SYN."""
    number: int = batch.seq[i]
    return (number + 1) & 0xFFFFFFFF if batch.flags[i] & SYN else number


@kernel
def side_of(batch: SegmentBatch, i: int) -> int:
    """Return the side of the sender: 0 when its endpoint is the lower one."""
    if batch.src_hi[i] != batch.dst_hi[i]:
        return 1 if batch.src_hi[i] > batch.dst_hi[i] else 0
    if batch.src_lo[i] != batch.dst_lo[i]:
        return 1 if batch.src_lo[i] > batch.dst_lo[i] else 0
    return 1 if batch.sport[i] > batch.dport[i] else 0


@kernel
def endpoints(batch: SegmentBatch, i: int, side: int) -> Ends:
    """Return both endpoints of a segment that this side sent."""
    if side == 0:
        return batch.src_hi[i], batch.src_lo[i], batch.sport[i], batch.dst_hi[i], batch.dst_lo[i], batch.dport[i]
    return batch.dst_hi[i], batch.dst_lo[i], batch.dport[i], batch.src_hi[i], batch.src_lo[i], batch.sport[i]
