"""XXH64 as a kernel, fed chunk by chunk: the hash of bodies, with seed 42 like Spark's `xxhash64(body)`.

The state of one hash is a row of eight uint64 (four lanes, number of bytes so far, three unused) and a row of 32 bytes
that wait for a full stripe. Every uint64 operation is masked, so that Python's integers and numba's agree.
Source: the XXH64 description in the xxHash specification, release 0.8. `mix` is for identities and hash tables.
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import i64, kernel, proven, u64
from amqpscope.dissector.kernels.words import MASK, word

SEED = 42
P1 = 0x9E3779B185EBCA87
P2 = 0xC2B2AE3D27D4EB4F
P3 = 0x165667B19E3779F9
P4 = 0x85EBCA77C2B2AE63
P5 = 0x27D4EB2F165667C5
LANE_1 = (SEED + P1 + P2) & MASK
LANE_2 = (SEED + P2) & MASK
LANE_3 = SEED
LANE_4 = (SEED - P1) & MASK

TOTAL, LANES = 4, 8
"""Where in its row a hash counts bytes, and uint64 of a row."""


@proven
def turn(lane: int, value: int) -> int:
    """Run one round of a lane."""
    lane = (lane + ((value * P2) & MASK)) & MASK
    lane = ((lane << 31) | (lane >> 33)) & MASK
    return (lane * P1) & MASK


@kernel
def hash_begin(lanes: Array, row: int) -> None:
    """Reset one hash."""
    lanes[row, 0] = LANE_1
    lanes[row, 1] = LANE_2
    lanes[row, 2] = LANE_3
    lanes[row, 3] = LANE_4
    lanes[row, TOTAL] = 0


@proven
def stripes(data: Array, p: int, end: int, a: int, b: int, c: int, d: int) -> tuple[int, int, int, int, int]:
    """Hash whole stripes of 32 bytes from p on; return the four lanes and the position after them.

    Bounds: the caller has shown that [p, end) lies in data.
    """
    while p + 32 <= end:
        a = turn(a, word(data, p))
        b = turn(b, word(data, p + 8))
        c = turn(c, word(data, p + 16))
        d = turn(d, word(data, p + 24))
        p += 32
    return a, b, c, d, p


@kernel
def absorb(lanes: Array, row: int, data: Array, p: int, end: int) -> int:
    """Hash whole stripes, as `stripes` does, into one state; return the position after them."""
    a, b, c, d, p = stripes(data, p, end, lanes[row, 0], lanes[row, 1], lanes[row, 2], lanes[row, 3])
    lanes[row, 0] = a
    lanes[row, 1] = b
    lanes[row, 2] = c
    lanes[row, 3] = d
    return p


@kernel
def hash_feed(lanes: Array, waiting: Array, row: int, data: Array, offset: int, length: int) -> None:
    """Add bytes to one hash. `waiting` is uint8 with 32 bytes a row, in one dimension."""
    if offset < 0 or length <= 0 or offset + length > len(data):
        return
    have = i64(lanes[row, TOTAL]) & 31
    lanes[row, TOTAL] = lanes[row, TOTAL] + u64(length)
    base = 32 * row
    p = offset
    end = offset + length
    if have > 0:
        while have < 32 and p < end:
            waiting[base + have] = data[p]
            have += 1
            p += 1
        if have < 32:
            return
        absorb(lanes, row, waiting, base, base + 32)
    p = absorb(lanes, row, data, p, end)
    have = 0
    while p < end:
        waiting[base + have] = data[p]
        have += 1
        p += 1


@kernel
def hash_end(lanes: Array, waiting: Array, row: int) -> int:
    """Return the hash so far, as uint64."""
    total = lanes[row, TOTAL]
    p = 32 * row
    end = p + (i64(total) & 31)
    h = u64(LANE_3 + P5)
    if i64(total) >= 32:
        h = converge(lanes[row, 0], lanes[row, 1], lanes[row, 2], lanes[row, 3])
    return finish((h + total) & MASK, waiting, p, end)


@proven
def hash_bytes(data: Array, p: int, length: int) -> int:
    """Return the hash of contiguous bytes, as uint64; the caller has shown that they lie in data."""
    end = p + length
    h = u64(LANE_3 + P5)
    if length >= 32:
        a, b, c, d, p = stripes(data, p, end, u64(LANE_1), u64(LANE_2), u64(LANE_3), u64(LANE_4))
        h = converge(a, b, c, d)
    return finish((h + u64(length)) & MASK, data, p, end)


@proven
def converge(a: int, b: int, c: int, d: int) -> int:
    """Merge the four lanes."""
    h = ((a << 1 | a >> 63) & MASK) + ((b << 7 | b >> 57) & MASK)
    h = (h + ((c << 12 | c >> 52) & MASK) + ((d << 18 | d >> 46) & MASK)) & MASK
    h = ((((h ^ turn(u64(0), a)) * P1) & MASK) + P4) & MASK
    h = ((((h ^ turn(u64(0), b)) * P1) & MASK) + P4) & MASK
    h = ((((h ^ turn(u64(0), c)) * P1) & MASK) + P4) & MASK
    return ((((h ^ turn(u64(0), d)) * P1) & MASK) + P4) & MASK


@proven
def finish(h: int, data: Array, p: int, end: int) -> int:
    """Hash the last bytes, fewer than 32; the caller has shown that they lie in data."""
    while p + 8 <= end:
        h ^= turn(u64(0), word(data, p))
        h = (((((h << 27) | (h >> 37)) & MASK) * P1) + P4) & MASK
        p += 8
    if p + 4 <= end:
        four = data[p] | data[p + 1] << 8 | data[p + 2] << 16 | data[p + 3] << 24
        h ^= (u64(four) * P1) & MASK
        h = (((((h << 23) | (h >> 41)) & MASK) * P2) + u64(P3)) & MASK
        p += 4
    while p < end:
        h ^= (u64(data[p]) * u64(P5)) & MASK
        h = ((((h << 11) | (h >> 53)) & MASK) * P1) & MASK
        p += 1
    h = ((h ^ (h >> 33)) * P2) & MASK
    h = ((h ^ (h >> 29)) * u64(P3)) & MASK
    return h ^ (h >> 32)


@kernel
def mix(h: int, value: int) -> int:
    """Run one step of a 63-bit multiplicative hash. Products wrap, which only unsigned integers may."""
    product = ((u64(h) ^ u64(value)) * u64(0x1D8E4E27C47D124F)) & u64(0x7FFFFFFFFFFFFFFF)
    return i64(product ^ (product >> u64(31)))
