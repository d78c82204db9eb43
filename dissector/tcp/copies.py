"""Find segments that were retransmitted, or captured twice."""

from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.packets.segments import SegmentBatch
from amqpscope.dissector.tcp.state import RECENT, REPEATS, At, Direction, Flows, Repeat

COPY_NS = 100_000_000
"""An equal packet within this time is a copy made by the capture, and so is another SYN: SYNs are retransmitted after a
second (RFC 6298 §2)."""
LATE_COPY_NS = 2_000_000_000
"""An equal packet within this time, with the same identification of IPv4, may be a copy from a congested mirror port;
or it was sent again, by a host that does not change it. So may a SYN of an earlier connection."""


@kernel
def is_copy(batch: SegmentBatch, i: int, flows: Flows, row: int, is_new: bool, usual: int) -> tuple[int, int]:
    """Remember a packet, of which copies may have come before.

    Args:
        batch: segments.
        i: the packet.
        flows: connections.
        row: the direction.
        is_new: whether it has bytes or an acknowledgement that no packet had before.
        usual: how often another capture point in the same file has seen it before.

    Returns:
        1 when the capture has just seen it before, as on several interfaces, else 0; and 1 where it may be a copy that
        comes late, and shows nothing of its time.
    """
    seen, late = earlier(batch, i, flows, row)
    remember(batch, i, flows, row)
    return 1 if seen > usual and not is_new else 0, 1 if seen == 0 and late > 0 and not is_new else 0


@kernel
def key_of(batch: SegmentBatch, i: int) -> int:
    """Return what is equal for copies of a packet, and in the lowest 16 bits when it came."""
    content = batch.mark[i] << 40 ^ batch.length[i] << 24 ^ batch.window[i] << 8 ^ batch.flags[i]
    h = mix(mix(7, batch.seq[i] << 31 ^ batch.ack[i]), content)
    key: int = (h // 0x10000 & 0x3FFFFFFFFFFF) << 16 | (batch.ts_ns[i] // (COPY_NS // 3) & 0xFFFF)
    return key


@kernel
def earlier(batch: SegmentBatch, i: int, flows: Flows, row: int) -> tuple[int, int]:
    """Return how many copies of a packet came just before it, and how many within the time of late ones."""
    recent = flows.recent
    key = key_of(batch, i)
    near, late = 0, 0
    reach = LATE_COPY_NS // (COPY_NS // 3) if batch.mark[i] < 0x10000 else 0  # `headers`: else it is no identification
    for k in range(min(flows.direction[row, Direction.RECENT], RECENT)):
        last = recent[row, k]
        if (last ^ key) < 0x10000 and (key - last + 3) & 0xFFFF <= 6:
            near += 1
        if (last ^ key) < 0x10000 and (key - last) & 0xFFFF <= reach:
            late += 1
    return near, late


@kernel
def remember(batch: SegmentBatch, i: int, flows: Flows, row: int) -> None:
    """Remember a packet whose copies may come."""
    count = flows.direction[row, Direction.RECENT]
    flows.recent[row, count % RECENT] = key_of(batch, i)
    flows.direction[row, Direction.RECENT] = count + 1


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
