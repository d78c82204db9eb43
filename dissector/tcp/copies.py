"""Find segments that were retransmitted, or captured twice."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.packets.segments import SegmentBatch
from amqpscope.dissector.tcp.state import REPEATS, At, Direction, Flows, Repeat

COPY_NS = 100_000_000
"""An equal packet within this time is a copy made by the capture, and so is another SYN: SYNs are retransmitted after a
second (RFC 6298 §2)."""
RECENT = 1 << 16
"""Packets remembered to recognise copies. In a capture of several interfaces, hundreds of one may lie in between."""


@kernel
def is_copy(batch: SegmentBatch, i: int, recent: Array) -> int:
    """Remember a packet; return 1 when the capture has just seen it before, as on several interfaces."""
    mark = batch.mark[i]
    flow = mix(batch.src_lo[i] ^ (batch.sport[i] << 16 | batch.dport[i]), batch.dst_lo[i])
    content = mark << 40 ^ batch.length[i] << 24 ^ batch.window[i] << 8 ^ batch.flags[i]
    h = mix(mix(flow, batch.seq[i] << 31 ^ batch.ack[i]), content)
    # Identifications count up: consecutive packets have neighbouring places here.
    place = ((flow & 0xFFFF) + (mark if mark < 0x10000 else h & 0xFFFF)) & (RECENT - 1)
    key = (h // 0x10000 & 0x3FFFFFFFFFFF) << 16 | (batch.ts_ns[i] // (COPY_NS // 3) & 0xFFFF)
    last = recent[place]
    recent[place] = key
    return 1 if (last ^ key) < 0x10000 and (key - last + 3) & 0xFFFF <= 6 else 0


@kernel
def repeat(flows: Flows, row: int, length: int, at: At) -> None:
    """Note the place of a retransmission."""
    count = flows.direction[row, Direction.REPEATS]
    if count < REPEATS:
        packet, ts, capture = at
        place = REPEATS * row + count
        flows.repeats[place, Repeat.TS] = ts
        flows.repeats[place, Repeat.PACKET] = packet
        flows.repeats[place, Repeat.CAPTURE] = capture
        flows.repeats[place, Repeat.LENGTH] = length
        flows.direction[row, Direction.REPEATS] = count + 1
