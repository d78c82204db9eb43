"""Frame boundaries: begin and end frames, lose the boundary, and skip bytes up to the next.

The length of a frame is known once its head is, so a gap within it costs nothing but its bytes; after one that
contains a head `amqpscope.dissector.protocols.resync` looks for the next.
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.protocols.emitting import fault, put_first, put_place
from amqpscope.dissector.protocols.payloads import drop_chain
from amqpscope.dissector.protocols.state import (
    GAP,
    HEAD,
    HEAD_ROOM,
    SEARCH,
    SKIPPED,
    UNDER_WAY,
    Frame,
    Parser,
    ParserState,
)
from amqpscope.dissector.tcp.state import Chunk, Facts


@kernel
def begin_frame(walk: ParserState, chunks: Array, i: int, at: int, row: int) -> None:
    """Note where a frame's first byte was."""
    parsers = walk.parsers
    parsers[row, Parser.POS] = chunks[Chunk.POS, i] + at
    note_packet(parsers, row, chunks, i)
    parsers[row, Parser.GOT] = 0
    parsers[row, Parser.MISSING] = 0
    parsers[row, Parser.LENGTH_ACCEPTED] = 0


@kernel
def note_packet(parsers: Array, row: int, chunks: Array, i: int) -> None:
    """Note the first packet of a chunk."""
    parsers[row, Parser.FIRST_PACKET] = chunks[Chunk.FIRST_PACKET, i]
    parsers[row, Parser.FIRST_TS] = chunks[Chunk.FIRST_TS, i]
    parsers[row, Parser.FIRST_CAPTURE] = chunks[Chunk.FIRST_CAPTURE, i]


@kernel
def put_frame(walk: ParserState, chunks: Array, i: int, row: int, offset: int, length: int, size: int) -> int:
    """Write the row of the current frame, whose `payload` is there, and which has `size` bytes on the wire.

    Returns which row it is.
    """
    parsers, frames = walk.parsers, walk.frames
    n = put_place(walk, chunks, i)
    put_first(frames, n, parsers, row)
    frames[Frame.TYPE, n] = parsers[row, Parser.TYPE]
    frames[Frame.SIZE, n] = size
    frames[Frame.OFFSET, n] = offset
    frames[Frame.LENGTH, n] = length
    frames[Frame.MISSING, n] = parsers[row, Parser.MISSING]
    frames[Frame.POS, n] = parsers[row, Parser.POS]
    end_frame(walk, row, size)
    return n


@kernel
def end_frame(walk: ParserState, row: int, size: int) -> None:
    """End the current frame, of this size, which has its row; a head follows."""
    parsers = walk.parsers
    parsers[row, Parser.LARGEST] = max(parsers[row, Parser.LARGEST], size)
    drop_chain(walk, row)
    parsers[row, Parser.STATE] = HEAD
    parsers[row, Parser.HEADS] = 0


@kernel
def lose(walk: ParserState, row: int, pos: int, skipped: int) -> None:
    """Desynchronise: the next boundary is unknown; `pos` is where the frame with the lost head began, or -1."""
    parsers = walk.parsers
    drop_chain(walk, row)
    parsers[row, Parser.STATE] = SEARCH
    parsers[row, Parser.HEADS] = 0
    parsers[row, Parser.SKIPPED] = skipped
    parsers[row, Parser.UNTIL] = -1
    parsers[row, Parser.TRIED] = 0
    parsers[row, Parser.TRIED_SLOW] = 0
    parsers[row, Parser.TRIED_MARKED] = 0
    parsers[row, Parser.LOST] = pos
    parsers[row, Parser.NATURAL] = -1
    parsers[row, Parser.DAMAGED] = 0


@kernel
def lose_head(walk: ParserState, chunks: Array, i: int, at: int, row: int) -> None:
    """Desynchronise at a gap where the head of a frame must be."""
    report_gap(walk, chunks, i, at, row)
    heads = walk.parsers[row, Parser.HEADS]
    lose(walk, row, chunks[Chunk.POS, i] + at - heads, heads)


@kernel
def report_gap(walk: ParserState, chunks: Array, i: int, at: int, row: int) -> None:
    """Report a gap that frames may lie in."""
    number = walk.facts[chunks[Chunk.SLOT, i], Facts.FRAMES]
    fault(walk, chunks, i, row, GAP, number, -1, chunks[Chunk.POS, i] + at, chunks[Chunk.LENGTH, i] - at)


@kernel
def report_further_gap(walk: ParserState, chunks: Array, i: int, at: int, row: int) -> None:
    """Report a gap in a search that nothing was skipped in: behind another gap, or where the capture begins.

    What was lost in it was sent later, and answers are missing.
    """
    parsers = walk.parsers
    if parsers[row, Parser.TRIED] == 0 and parsers[row, Parser.SKIPPED] < HEAD_ROOM:
        report_gap(walk, chunks, i, at, row)


@kernel
def report_under_way(walk: ParserState, chunks: Array, i: int, row: int) -> None:
    """Report bytes before the first of a direction that the capture may have lost, or that were sent before it."""
    facts, slot = walk.facts, chunks[Chunk.SLOT, i]
    value = facts[slot, Facts.UNDER_WAY_A + (row & 1)]
    if value > 0 and facts[slot, Facts.SYN] == 0:
        fault(walk, chunks, i, row, UNDER_WAY, facts[slot, Facts.FRAMES], -1, -1, value)


@kernel
def skip(walk: ParserState, chunks: Array, i: int, at: int, row: int) -> int:
    """Skip bytes before the next frame, as far as they are known to be none; returns their number."""
    parsers = walk.parsers
    here = chunks[Chunk.POS, i] + at
    take: int = min(chunks[Chunk.LENGTH, i] - at, max(parsers[row, Parser.UNTIL] - here, 0))
    parsers[row, Parser.SKIPPED] += take
    note_packet(parsers, row, chunks, i)
    if here + take >= parsers[row, Parser.UNTIL]:
        if parsers[row, Parser.FOUND] == 1:
            skipped = parsers[row, Parser.SKIPPED]
            if skipped > 0:
                number = walk.facts[chunks[Chunk.SLOT, i], Facts.FRAMES]
                fault(walk, chunks, i, row, SKIPPED, number, -1, here + take - skipped, skipped)
            parsers[row, Parser.STATE] = HEAD
            parsers[row, Parser.HEADS] = 0
            parsers[row, Parser.LOST] = -1
        parsers[row, Parser.UNTIL] = -1
        parsers[row, Parser.TRIED] = 0
        parsers[row, Parser.TRIED_SLOW] = 0
        parsers[row, Parser.TRIED_MARKED] = 0
    return take
