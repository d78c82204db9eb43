"""Sequence numbers, which wrap, and the order of endpoints (RFC 9293, section 3.4)."""

from amqpscope.dissector.kernels.kernel import kernel


@kernel
def difference(a: int, b: int) -> int:
    """A - b of 32-bit sequence numbers, as a signed number."""
    return ((a - b + 0x80000000) & 0xFFFFFFFF) - 0x80000000


@kernel
def lower(src_hi: int, src_lo: int, sport: int, dst_hi: int, dst_lo: int, dport: int) -> int:
    """Side of the sender: 0 when its endpoint is the lower one."""
    if src_hi != dst_hi:
        return 1 if src_hi > dst_hi else 0
    if src_lo != dst_lo:
        return 1 if src_lo > dst_lo else 0
    return 1 if sport > dport else 0
