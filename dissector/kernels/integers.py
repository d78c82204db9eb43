"""Read integers: big-endian, unless a byte order is given."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import i64, kernel, proven


@kernel
def be16(data: Array, p: int) -> int:
    """Read an unsigned 16-bit integer."""
    return (i64(data[p]) << 8) | i64(data[p + 1])


@kernel
def be32(data: Array, p: int) -> int:
    """Read an unsigned 32-bit integer."""
    return (be16(data, p) << 16) | be16(data, p + 2)


@kernel
def be64(data: Array, p: int) -> int:
    """Read a signed 64-bit integer."""
    high = be32(data, p)
    if high >= 1 << 31:
        high -= 1 << 32
    return high * (1 << 32) + be32(data, p + 4)


@kernel
def ordered32(data: Array, p: int, big: int) -> int:
    """Read an unsigned 32-bit integer, in either byte order."""
    if big:
        return be32(data, p)
    return i64(data[p]) | i64(data[p + 1]) << 8 | i64(data[p + 2]) << 16 | i64(data[p + 3]) << 24


@proven
def proven32(data: Array, p: int) -> int:
    """Read an unsigned 32-bit integer. The caller has shown that its bytes lie in `data`."""
    return i64(data[p]) << 24 | i64(data[p + 1]) << 16 | i64(data[p + 2]) << 8 | i64(data[p + 3])


@kernel
def unsigned(data: Array, at: int, width: int) -> int:
    """Read an unsigned integer of at most 7 bytes."""
    value = 0
    for i in range(at, at + width):
        value = value * 256 + data[i]
    return value
