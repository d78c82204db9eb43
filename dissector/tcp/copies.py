"""Segments that were sent again, or captured twice."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.packets.segments import SegmentBatch
from amqpscope.dissector.tcp.state import REPEATS, At, Direction, Flows, Repeat

COPY_NS = 100_000_000
"""The same packet so soon after another is a copy by the capture, and so is another SYN: retransmissions of SYNs wait
for a second (RFC 6298 §2)."""
RECENT = 1 << 16
"""Places for packets whose copies may come. A capture of several interfaces may have hundreds of one in between."""


@kernel
def is_copy(batch: SegmentBatch, i: int, recent: Array) -> int:
    """1 when the capture has seen this very packet just before, as on several interfaces. Takes note of it."""
    mark = batch.mark[i]
    flow = mix(batch.src_lo[i] ^ (batch.sport[i] << 16 | batch.dport[i]), batch.dst_lo[i])
    content = mark << 40 ^ batch.length[i] << 24 ^ batch.window[i] << 8 ^ batch.flags[i]
    h = mix(mix(flow, batch.seq[i] << 31 ^ batch.ack[i]), content)
    # Identifications count up: what came one behind the other is side by side here.
    place = ((flow & 0xFFFF) + (mark if mark < 0x10000 else h & 0xFFFF)) & (RECENT - 1)
    key = (h // 0x10000 & 0x3FFFFFFFFFFF) << 16 | (batch.ts_ns[i] // (COPY_NS // 3) & 0xFFFF)
    last = recent[place]
    recent[place] = key
    return 1 if (last ^ key) < 0x10000 and (key - last + 3) & 0xFFFF <= 6 else 0


@kernel
def repeat(flows: Flows, row: int, length: int, at: At) -> None:
    """Keep the place of something that was sent again."""
    count = flows.direction[row, Direction.REPEATS]
    if count < REPEATS:
        packet, ts, capture = at
        place = REPEATS * row + count
        flows.repeats[place, Repeat.TS] = ts
        flows.repeats[place, Repeat.PACKET] = packet
        flows.repeats[place, Repeat.CAPTURE] = capture
        flows.repeats[place, Repeat.LENGTH] = length
        flows.direction[row, Direction.REPEATS] = count + 1
