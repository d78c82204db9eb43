"""Read and write eight bytes at a time: little-endian words in arrays of bytes, at any position.

Byte by byte, interpreted, would take five to seventy times as long as what Python has for that.
"""

from struct import Struct

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.declared import interpreted_as
from amqpscope.dissector.kernels.kernel import proven, u64

MASK = 0xFFFFFFFFFFFFFFFF
WORD = 8
HIGH_BITS = 0x8080808080808080
"""The highest bit of each byte of a word; none is set if all bytes are ASCII."""
_WORD = Struct("<Q")


def _word(data: Array, p: int) -> int:
    value: int = _WORD.unpack_from(data, p)[0]
    return value


def _put_word(target: Array, p: int, value: int) -> None:
    _WORD.pack_into(target, p, value)


def _copy_bytes(data: Array, p: int, target: Array, j: int, count: int) -> None:
    target[j : j + count] = data[p : p + count]


@interpreted_as(_word)
@proven
def word(data: Array, p: int) -> int:
    """Read eight bytes, as uint64. The caller has shown that they lie in `data`."""
    low = data[p] | data[p + 1] << 8 | data[p + 2] << 16 | data[p + 3] << 24
    high = data[p + 4] | data[p + 5] << 8 | data[p + 6] << 16 | data[p + 7] << 24
    return u64(low) | ((u64(high) << u64(32)) & MASK)


@proven
def part(value: int, count: int) -> int:
    """Return the first bytes (1 to 7) of a word, followed by zeros."""
    return value & ((u64(1) << u64(8 * count)) - u64(1))


@interpreted_as(_put_word)
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


@interpreted_as(_copy_bytes)
@proven
def copy_bytes(data: Array, p: int, target: Array, j: int, count: int) -> None:
    """Copy bytes from p on to `target` from j on. The caller has shown that they lie in both and do not overlap."""
    end = p + count
    while p + WORD <= end:
        put_word(target, j, word(data, p))
        p += WORD
        j += WORD
    while p < end:
        target[j] = data[p]
        p += 1
        j += 1
