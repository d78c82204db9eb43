"""Queues of buffered segments, which are ahead of the next expected byte of a direction; and emission of chunks."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.pool import give_row, take_row
from amqpscope.dissector.tcp.state import At, Chunk, Control, Count, Direction, Flows, Queue, Results, Segment


@kernel
def emit(out: Results, slot: int, side: int, pos: int, offset: int, length: int, at: At, first: At) -> None:
    """Append a chunk: readable after packet `at`; packet `first` brought it."""
    packet, ts, capture = at
    first_packet, first_ts, first_capture = first
    chunks = out.chunks
    n = out.counts[Count.CHUNKS]
    chunks[Chunk.SLOT, n] = slot
    chunks[Chunk.SIDE, n] = side
    chunks[Chunk.POS, n] = pos
    chunks[Chunk.OFFSET, n] = offset
    chunks[Chunk.LENGTH, n] = length
    chunks[Chunk.PACKET, n] = packet
    chunks[Chunk.TS, n] = ts
    chunks[Chunk.CAPTURE, n] = capture
    chunks[Chunk.FIRST_PACKET, n] = first_packet
    chunks[Chunk.FIRST_TS, n] = first_ts
    chunks[Chunk.FIRST_CAPTURE, n] = first_capture
    out.counts[Count.CHUNKS] = n + 1


@kernel
def buffered(flows: Flows, slot: int) -> int:
    """Return the number of all buffered segments of a connection."""
    row = 2 * slot
    own: int = flows.queues[row, Queue.COUNT] + flows.queues[row + 1, Queue.COUNT]
    others: int = flows.elsewhere[row, Queue.COUNT] + flows.elsewhere[row + 1, Queue.COUNT]
    return own + others


@kernel
def keep(
    flows: Flows, queues: Array, row: int, before: int, after: int, pos: int, length: int, offset: int, at: At,
    needs: int,
) -> int:  # fmt: skip
    """Insert a segment between two others of a queue (-1: none) and return its row. There must be a free row."""
    segments, control = flows.segments, flows.control
    packet, ts, capture = at
    this = take_row(flows.free_segments)
    segments[this, Segment.NEXT] = after
    segments[this, Segment.POS] = pos
    segments[this, Segment.LENGTH] = length
    segments[this, Segment.OFFSET] = offset
    segments[this, Segment.PACKET] = packet
    segments[this, Segment.TS] = ts
    segments[this, Segment.CAPTURE] = capture
    segments[this, Segment.NEEDS] = needs
    segments[this, Segment.SEEN] = control[Control.SEGMENTS]
    segments[this, Segment.USED] = 1
    if before < 0:
        queues[row, Queue.HEAD] = this
    else:
        segments[before, Segment.NEXT] = this
    if after < 0:
        queues[row, Queue.TAIL] = this
    if offset >= 0:
        queues[row, Queue.BYTES] += length
        control[Control.WAITING] += length
    queues[row, Queue.COUNT] += 1
    return this


@kernel
def store(
    data: Array, flows: Flows, queues: Array, row: int, again: int, pos: int, length: int, offset: int, at: At,
    needs: int,
) -> int:  # fmt: skip
    """Buffer bytes that came early, without those already in this queue: the first copy wins.

    Bytes of later copies count in column AGAIN of `direction`. Return the number of them that differ from the first
    copy.
    """
    direction, segments, free = flows.direction, flows.segments, flows.free_segments
    different = 0
    end = pos + length
    before = -1
    this = queues[row, Queue.HEAD]
    tail = queues[row, Queue.TAIL]
    if tail >= 0 and segments[tail, Segment.POS] + segments[tail, Segment.LENGTH] <= pos:
        before = tail
        this = -1
    while this >= 0 and pos < end and free[0] > 0:
        start = segments[this, Segment.POS]
        stop = start + segments[this, Segment.LENGTH]
        if stop > pos:
            if start >= end:
                break
            if pos < start:
                before = keep(flows, queues, row, before, this, pos, start - pos, offset, at, needs)
                if offset >= 0:
                    offset += start - pos
                pos = start
            lap = min(stop, end) - pos
            direction[row, again] += lap
            if offset >= 0 and segments[this, Segment.OFFSET] >= 0:
                first = segments[this, Segment.OFFSET] + pos - start
                for k in range(lap):
                    if data[first + k] != data[offset + k]:
                        different += 1
            if offset >= 0:
                offset += lap
            pos += lap
        before = this
        this = segments[this, Segment.NEXT]
    if pos < end and free[0] > 0:
        keep(flows, queues, row, before, this, pos, end - pos, offset, at, needs)
    return different


@kernel
def drop_first(flows: Flows, queues: Array, row: int) -> None:
    """Take the first segment out of a queue."""
    segments = flows.segments
    first = queues[row, Queue.HEAD]
    if segments[first, Segment.OFFSET] >= 0:
        queues[row, Queue.BYTES] -= segments[first, Segment.LENGTH]
        flows.control[Control.WAITING] -= segments[first, Segment.LENGTH]
    queues[row, Queue.COUNT] -= 1
    queues[row, Queue.HEAD] = segments[first, Segment.NEXT]
    if segments[first, Segment.NEXT] < 0:
        queues[row, Queue.TAIL] = -1
    segments[first, Segment.USED] = 0
    give_row(flows.free_segments, first)


@kernel
def drop_before(flows: Flows, row: int, pos: int) -> None:
    """Drop segments seen elsewhere that lie before a position: their bytes are known."""
    queues, segments = flows.elsewhere, flows.segments
    while queues[row, Queue.HEAD] >= 0:
        first = queues[row, Queue.HEAD]
        if segments[first, Segment.POS] + segments[first, Segment.LENGTH] > pos:
            break
        flows.direction[row, Direction.TWICE] += segments[first, Segment.LENGTH]
        drop_first(flows, queues, row)
