"""Buffer segments that came early, or that wait for the bytes they acknowledge."""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.packets.segments import SegmentBatch
from amqpscope.dissector.tcp.emit_in_order import flush, give_up_acknowledged
from amqpscope.dissector.tcp.faults import note
from amqpscope.dissector.tcp.late_syn import settle
from amqpscope.dissector.tcp.reorder_queue import store
from amqpscope.dissector.tcp.state import MISMATCH, Direction, Flows, Queue, Results


@kernel
def crowded(queues: Array, row: int) -> bool:
    """Return whether a queue of a direction may not grow any more."""
    many: bool = queues[row, Queue.COUNT] >= limits.WAITING_PARTS_PER_STREAM
    return many or queues[row, Queue.BYTES] > limits.WAITING_BYTES_PER_STREAM


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
    if crowded(flows.queues, row):
        # This direction may wait only for the other one.
        give_up_acknowledged(flows, out, slot, 1 - side)
        if crowded(flows.queues, row):
            flush(flows, out, slot, side)
    skip = min(max(flows.direction[row, Direction.POS] - pos, 0), length)
    different = 0
    if caplen > skip:
        different = store(data, flows, flows.queues, row, again, pos + skip, caplen - skip, offset + skip, at, needs)
    there = max(caplen, skip)
    if length > there:
        store(data, flows, flows.queues, row, again, pos + there, length - there, -1, at, needs)
    if different:
        settle(flows, slot)  # a row needs the identity
        note(out, slot, side, MISMATCH, pos, different, at)
