"""Lists of buffered segments, which are ahead of the next expected byte of a direction; and emission of chunks."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.pool import give_row, take_row
from amqpscope.dissector.tcp.state import At, Chunk, Control, Count, Direction, Flows, Results, Segment


@kernel
def emit(out: Results, slot: int, side: int, pos: int, offset: int, length: int, at: At, first: At) -> None:
    """Append a chunk: readable after packet `at`, carried by packet `first`."""
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
def keep(
    flows: Flows, row: int, before: int, after: int, pos: int, length: int, offset: int, at: At, needs: int,
    elsewhere: int,
) -> int:  # fmt: skip
    """Insert a segment between two others of the list (-1: none) and return its row. There must be a free row."""
    direction, segments, control = flows.direction, flows.segments, flows.control
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
    segments[this, Segment.ELSEWHERE] = elsewhere
    direction[row, Direction.ELSEWHERE] += elsewhere
    if before < 0:
        direction[row, Direction.HEAD] = this
    else:
        segments[before, Segment.NEXT] = this
    if after < 0:
        direction[row, Direction.TAIL] = this
    if offset >= 0:
        direction[row, Direction.WAITING] += length
        control[Control.WAITING] += length
    direction[row, Direction.COUNT] += 1
    return this


@kernel
def store(
    data: Array, flows: Flows, row: int, again: int, pos: int, length: int, offset: int, at: At, needs: int,
    elsewhere: int,
) -> int:  # fmt: skip
    """Buffer bytes that came early, without those already buffered: the first copy wins.

    Bytes of later copies count in column AGAIN of `direction`. Return the number of them differ from the first copy.
    """
    direction, segments, free = flows.direction, flows.segments, flows.free_segments
    different = 0
    end = pos + length
    before = -1
    this = direction[row, Direction.HEAD]
    tail = direction[row, Direction.TAIL]
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
                before = keep(flows, row, before, this, pos, start - pos, offset, at, needs, elsewhere)
                if offset >= 0:
                    offset += start - pos
                pos = start
            lap = min(stop, end) - pos
            direction[row, again] += lap
            if offset >= 0 and segments[this, Segment.OFFSET] >= 0 and elsewhere == 0:
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
        keep(flows, row, before, this, pos, end - pos, offset, at, needs, elsewhere)
    return different


@kernel
def drop(flows: Flows, row: int, this: int) -> None:
    """Free the row of a segment that was taken out of the list."""
    flows.direction[row, Direction.COUNT] -= 1
    flows.direction[row, Direction.ELSEWHERE] -= flows.segments[this, Segment.ELSEWHERE]
    flows.segments[this, Segment.USED] = 0
    give_row(flows.free_segments, this)


@kernel
def displace(flows: Flows, row: int, pos: int, end: int) -> None:
    """Drop bytes buffered from another capture point, because the connection's own point has them."""
    direction, segments, control = flows.direction, flows.segments, flows.control
    before = -1
    this = direction[row, Direction.HEAD]
    while this >= 0 and segments[this, Segment.POS] < end:
        after = segments[this, Segment.NEXT]
        start = segments[this, Segment.POS]
        length = segments[this, Segment.LENGTH]
        stop = start + length
        if segments[this, Segment.ELSEWHERE] == 0 or stop <= pos:
            before = this
        elif start < pos:
            segments[this, Segment.LENGTH] = pos - start
            direction[row, Direction.WAITING] -= stop - pos
            control[Control.WAITING] -= stop - pos
            before = this
        elif stop > end:
            segments[this, Segment.POS] = end
            segments[this, Segment.OFFSET] += end - start
            segments[this, Segment.LENGTH] = stop - end
            direction[row, Direction.WAITING] -= end - start
            control[Control.WAITING] -= end - start
            before = this
        else:
            if before < 0:
                direction[row, Direction.HEAD] = after
            else:
                segments[before, Segment.NEXT] = after
            if after < 0:
                direction[row, Direction.TAIL] = before
            direction[row, Direction.WAITING] -= length
            control[Control.WAITING] -= length
            drop(flows, row, this)
        this = after
