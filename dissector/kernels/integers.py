"""Integers out of bytes, most significant byte first."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import i64, kernel


@kernel
def be16(data: Array, p: int) -> int:
    """Two bytes."""
    return (i64(data[p]) << 8) | i64(data[p + 1])


@kernel
def be32(data: Array, p: int) -> int:
    """Four bytes."""
    return (be16(data, p) << 16) | be16(data, p + 2)
