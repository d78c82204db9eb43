"""Buffer segments that came early, or that wait for the bytes they acknowledge."""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.packets.segments import SegmentBatch
from amqpscope.dissector.tcp.buffered import displace, store
from amqpscope.dissector.tcp.faults import note
from amqpscope.dissector.tcp.order import ANYWHERE, flush, release
from amqpscope.dissector.tcp.settling import settle
from amqpscope.dissector.tcp.state import MISMATCH, Direction, Flows, Results


@kernel
def crowded(direction: Array, row: int) -> bool:
    """Return whether a direction may not buffer any more."""
    many: bool = direction[row, Direction.COUNT] >= limits.WAITING_PARTS_PER_STREAM
    return many or direction[row, Direction.WAITING] > limits.WAITING_BYTES_PER_STREAM


@kernel
def keep_waiting(
    batch: SegmentBatch, i: int, data: Array, flows: Flows, out: Results, slot: int, side: int, pos: int, again: int,
    needs: int,
) -> None:  # fmt: skip
    """Buffer the new bytes of a segment, from `pos` on, that wait for earlier bytes or for those that it acknowledges.

    Bytes that came before count in column AGAIN of `direction`.
    """
    row = 2 * slot + side
    at = batch.packet[i], batch.ts_ns[i], batch.capture[i]
    length, caplen, offset = batch.length[i], batch.caplen[i], batch.offset[i]
    if crowded(flows.direction, row):
        displace(flows, row, -1, ANYWHERE)
        # This direction may wait only for the other one.
        before = flows.direction[2 * slot + 1 - side, Direction.ACKED]
        through_0, through_1 = (0, before) if side == 0 else (before, 0)
        release(flows, out, slot, at, through_0, through_1)
        if crowded(flows.direction, row):
            flush(flows, out, slot, side, at)
    skip = min(max(flows.direction[row, Direction.POS] - pos, 0), length)
    different = 0
    if caplen > skip:
        different = store(data, flows, row, again, pos + skip, caplen - skip, offset + skip, at, needs, 0)
    there = max(caplen, skip)
    if length > there:
        store(data, flows, row, again, pos + there, length - there, -1, at, needs, 0)
    if different:
        settle(flows, slot)  # a row needs the identity
        note(out, slot, side, MISMATCH, pos, different, at)
