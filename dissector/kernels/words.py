"""Bytes eight at a time: little-endian words out of arrays of bytes and into them, wherever they lie."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import proven, u64

MASK = 0xFFFFFFFFFFFFFFFF
WORD = 8
HIGH_BITS = 0x8080808080808080
"""Of each byte of a word; none is set where all are ASCII."""


@proven
def word(data: Array, p: int) -> int:
    """Eight bytes, as uint64. The caller has shown that they lie in `data`."""
    low = data[p] | data[p + 1] << 8 | data[p + 2] << 16 | data[p + 3] << 24
    high = data[p + 4] | data[p + 5] << 8 | data[p + 6] << 16 | data[p + 7] << 24
    return u64(low) | ((u64(high) << u64(32)) & MASK)


@proven
def part(value: int, octets: int) -> int:
    """The first bytes (1 to 7) of a word; zeros behind them."""
    return value & ((u64(1) << u64(8 * octets)) - u64(1))


@proven
def put_word(target: Array, p: int, value: int) -> None:
    """Write eight bytes. The caller has shown that they lie in `target`."""
    target[p] = value & u64(0xFF)
    target[p + 1] = (value >> u64(8)) & u64(0xFF)
    target[p + 2] = (value >> u64(16)) & u64(0xFF)
    target[p + 3] = (value >> u64(24)) & u64(0xFF)
    target[p + 4] = (value >> u64(32)) & u64(0xFF)
    target[p + 5] = (value >> u64(40)) & u64(0xFF)
    target[p + 6] = (value >> u64(48)) & u64(0xFF)
    target[p + 7] = (value >> u64(56)) & u64(0xFF)


@proven
def copy_bytes(data: Array, p: int, target: Array, j: int, octets: int) -> None:
    """Copy bytes from p on to `target` from j on. The caller has shown that they lie in both and do not overlap."""
    end = p + octets
    while p + WORD <= end:
        put_word(target, j, word(data, p))
        p += WORD
        j += WORD
    while p < end:
        target[j] = data[p]
        p += 1
        j += 1
