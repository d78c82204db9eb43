"""Read big-endian integers."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import i64, kernel


@kernel
def be16(data: Array, p: int) -> int:
    """Read an unsigned 16-bit integer."""
    return (i64(data[p]) << 8) | i64(data[p + 1])


@kernel
def be32(data: Array, p: int) -> int:
    """Read an unsigned 32-bit integer."""
    return (be16(data, p) << 16) | be16(data, p + 2)
