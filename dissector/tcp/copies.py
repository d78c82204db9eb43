"""Find segments that were retransmitted, or captured twice."""

from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.packets.segments import SegmentBatch
from amqpscope.dissector.tcp.state import RECENT, REPEATS, At, Direction, Flows, Repeat

COPY_NS = 100_000_000
"""The same packet so soon after another is a copy by the capture, and so is another SYN: retransmissions of SYNs wait
for a second (RFC 6298 §2)."""


@kernel
def is_copy(batch: SegmentBatch, i: int, flows: Flows, row: int, is_new: bool) -> int:
    """1 when the capture has seen this very packet just before, as on several interfaces. Takes note of it.

    With `is_new` it brings bytes or an acknowledgement that none did before.
    """
    direction, recent = flows.direction, flows.recent
    content = batch.mark[i] << 40 ^ batch.length[i] << 24 ^ batch.window[i] << 8 ^ batch.flags[i]
    h = mix(mix(7, batch.seq[i] << 31 ^ batch.ack[i]), content)
    key = (h // 0x10000 & 0x3FFFFFFFFFFF) << 16 | (batch.ts_ns[i] // (COPY_NS // 3) & 0xFFFF)
    count = direction[row, Direction.RECENT]
    found = 0
    if not is_new:
        for k in range(min(count, RECENT)):
            last = recent[row, k]
            if (last ^ key) < 0x10000 and (key - last + 3) & 0xFFFF <= 6:
                found = 1
    recent[row, count % RECENT] = key
    direction[row, Direction.RECENT] = count + 1
    return found


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
