"""Segments that were sent again, or captured twice."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.tcp.layout import COPY_NS, H_REPEAT, H_REPEATS, RECENT, REPEAT_WIDTH, REPEATS


@kernel
def is_copy(
    recent: Array, source: int, target: int, ports: int, seq: int, ack: int, mark: int, window: int, flags: int,
    length: int, now: int,
) -> int:  # fmt: skip
    """1 when the capture has seen this very packet just before, as on several interfaces. Takes note of it."""
    flow = mix(source ^ ports, target)
    h = mix(mix(flow, seq << 31 ^ ack), mark << 40 ^ length << 24 ^ window << 8 ^ flags)
    # Identifications count up: what came one behind the other is side by side here.
    place = ((flow & 0xFFFF) + (mark if mark < 0x10000 else h & 0xFFFF)) & (RECENT - 1)
    key = (h // 0x10000 & 0x3FFFFFFFFFFF) << 16 | (now // (COPY_NS // 3) & 0xFFFF)
    last = recent[place]
    recent[place] = key
    return 1 if (last ^ key) < 0x10000 and (key - last + 3) & 0xFFFF <= 6 else 0


@kernel
def repeat(half: Array, row: int, length: int, packet: int, ts: int, capture: int) -> None:
    """Keep the place of something that was sent again."""
    count = half[row, H_REPEATS]
    if count < REPEATS:
        place = H_REPEAT + count * REPEAT_WIDTH
        half[row, place] = ts
        half[row, place + 1] = packet
        half[row, place + 2] = capture
        half[row, place + 3] = length
        half[row, H_REPEATS] = count + 1
