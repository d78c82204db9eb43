"""Emit rows of the walk over frames: frames, faults and spans, with the packets that they lie in."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import i64, kernel
from amqpscope.dissector.protocols.state import (
    GAP,
    SKIPPED,
    UNDER_WAY,
    AnyFrame,
    Cursor,
    Fault,
    Parser,
    ParserState,
    Place,
    Span,
)
from amqpscope.dissector.tcp.state import Chunk, Facts


@kernel
def fault(
    walk: ParserState, chunks: Array, i: int, row: int, code: int, number: int, channel: int, pos: int, value: int
) -> None:
    """Note a fault at this chunk. One that finds no room is dropped: the caller leaves enough of it.

    `number` is that of the frame it lies in, -1 for none; where frames are lost, that of the next.
    """
    faults, n = walk.faults, walk.cursor[Cursor.FAULTS]
    if n >= faults.shape[1]:
        return
    put_packets(faults, n, chunks, i)
    faults[Place.NUMBER, n] = number
    if number >= 0 and code not in (GAP, SKIPPED, UNDER_WAY):
        put_first(faults, n, walk.parsers, row)
    put_fault(faults, n, code, value, channel, pos)
    walk.cursor[Cursor.FAULTS] = n + 1


@kernel
def frame_fault(walk: ParserState, chunks: Array, i: int, row: int, code: int, value: int) -> None:
    """Note a fault of the current frame."""
    number = walk.facts[chunks[Chunk.SLOT, i], Facts.FRAMES]
    parsers = walk.parsers
    fault(walk, chunks, i, row, code, number, parsers[row, Parser.CHANNEL], parsers[row, Parser.POS], value)


@kernel
def put_fault(faults: Array, n: int, code: int, value: int, channel: int, pos: int) -> None:
    """Write what a fault has besides its place."""
    faults[Fault.CODE, n] = code
    faults[Fault.VALUE, n] = value
    faults[Fault.CHANNEL, n] = channel
    faults[Fault.POS, n] = pos


@kernel
def put_packets(rows: Array, n: int, chunks: Array, i: int) -> None:
    """Write whose a row is, and that it lies in this chunk alone."""
    rows[Place.SLOT, n] = chunks[Chunk.SLOT, i]
    rows[Place.SIDE, n] = chunks[Chunk.SIDE, i]
    rows[Place.PACKET, n] = chunks[Chunk.PACKET, i]
    rows[Place.TS, n] = chunks[Chunk.TS, i]
    rows[Place.CAPTURE, n] = chunks[Chunk.CAPTURE, i]
    rows[Place.FIRST_PACKET, n] = chunks[Chunk.FIRST_PACKET, i]
    rows[Place.FIRST_TS, n] = chunks[Chunk.FIRST_TS, i]
    rows[Place.FIRST_CAPTURE, n] = chunks[Chunk.FIRST_CAPTURE, i]


@kernel
def put_first(rows: Array, n: int, parsers: Array, row: int) -> None:
    """Write where the current frame began."""
    rows[Place.FIRST_PACKET, n] = parsers[row, Parser.FIRST_PACKET]
    rows[Place.FIRST_TS, n] = parsers[row, Parser.FIRST_TS]
    rows[Place.FIRST_CAPTURE, n] = parsers[row, Parser.FIRST_CAPTURE]


@kernel
def put_place(walk: ParserState, chunks: Array, i: int) -> int:
    """Begin the row of a frame that lies in this chunk alone, and return which it is."""
    frames, facts, cursor = walk.frames, walk.facts, walk.cursor
    n: int = cursor[Cursor.FRAMES]
    slot = chunks[Chunk.SLOT, i]
    put_packets(frames, n, chunks, i)
    frames[Place.NUMBER, n] = facts[slot, Facts.FRAMES]
    frames[AnyFrame.HELD, n] = 1 if cursor[Cursor.REPLAY] >= 0 else 0
    facts[slot, Facts.FRAMES] += 1
    cursor[Cursor.FRAMES] = n + 1
    return n


@kernel
def put_span(walk: ParserState, chunks: Array, i: int, channel: int, offset: int, length: int) -> int:
    """Yield bytes of a body frame that is not whole in one chunk; return which span they are."""
    spans, n = walk.aside, walk.cursor[Cursor.ASIDE]
    spans[Span.BEFORE, n] = walk.cursor[Cursor.FRAMES]
    spans[Span.SLOT, n] = chunks[Chunk.SLOT, i]
    spans[Span.SIDE, n] = chunks[Chunk.SIDE, i]
    spans[Span.CHANNEL, n] = channel
    spans[Span.OFFSET, n] = offset
    spans[Span.LENGTH, n] = length
    walk.cursor[Cursor.ASIDE] = n + 1
    return i64(n)
