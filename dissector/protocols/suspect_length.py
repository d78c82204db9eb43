"""Lengths that cannot be right, or are doubted: where the walk goes on when a head announces one.

A head is doubted when its length is above what the peers agreed upon, or where nothing was agreed, what is usual; or
when it contradicts the content that is under way. What follows is held back until the announced end is there. The head
counts if the frame ends there and another may begin; else the search for the next frame begins right after it.
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.pool import take_row
from amqpscope.dissector.protocols.boundaries import lose
from amqpscope.dissector.protocols.emitting import fault
from amqpscope.dissector.protocols.state import (
    AMQP_HEADER,
    END,
    HTTP,
    LENGTH_WRONG,
    PAYLOAD,
    TLS,
    TOO_LARGE,
    Cursor,
    Fragment,
    Parser,
    ParserState,
    PendingChunk,
)
from amqpscope.dissector.tcp.state import Chunk, Facts


@kernel
def other_protocol(word: int) -> int:
    """Return the fault for a head that begins with these four bytes of another protocol; -1: with none of them.

    TLS: an alert or a handshake record (RFC 8446 §5.1). HTTP: an answer, or a request such as health checks send.
    """
    if word == 0x414D5150:
        return AMQP_HEADER
    if word >> 8 in (0x150303, 0x150301, 0x160301, 0x160303):
        return TLS
    if word in (0x48545450, 0x47455420, 0x48454144, 0x504F5354):  # HTTP, GET, HEAD, POST
        return HTTP
    return -1


@kernel
def agree(walk: ParserState, row: int, most: int) -> None:
    """Note the size of the largest frame that both sides of a connection have agreed upon."""
    walk.parsers[row, Parser.MOST] = most
    walk.parsers[row ^ 1, Parser.MOST] = most


@kernel
def is_above(walk: ParserState, row: int, size: int, usual: int) -> bool:
    """Return whether a frame is larger than agreed upon; if nothing was, larger than is usual, and than any so far."""
    most = walk.parsers[row, Parser.MOST]
    if most == 0:
        most = max(usual, walk.parsers[row, Parser.LARGEST])
    return bool(size > most)


@kernel
def suspect_length(walk: ParserState, chunks: Array, i: int, row: int, overhead: int) -> None:
    """Have the search decide about the current head, whose frame has `overhead` bytes besides its payload."""
    parsers = walk.parsers
    size, most = parsers[row, Parser.SIZE], parsers[row, Parser.MOST]
    if most > 0 and size + overhead > most and parsers[row, Parser.TYPE] >= 0:
        too_large(walk, chunks, i, row, size)
    parsers[row, Parser.SUSPECT_SIZE] = size + 1


@kernel
def lose_after_head(walk: ParserState, row: int, is_body: bool) -> None:
    """Search after the current head. Where it may be a body's, frames in that are none, unless its content ends it."""
    parsers = walk.parsers
    is_known = not is_body or parsers[row, Parser.REST] > 0
    lose(walk, row, parsers[row, Parser.POS] if is_known else -1, parsers[row, Parser.WANTED])
    parsers[row, Parser.DAMAGED] = 0 if is_body else 1


@kernel
def pass_over(parsers: Array, row: int, pos: int, claimed: int) -> None:
    """Go on after the frame whose head has a type that does not exist, and a length that is right."""
    parsers[row, Parser.SUSPECT_SIZE] = 0
    parsers[row, Parser.UNTIL] = pos + claimed
    parsers[row, Parser.FOUND] = 1


@kernel
def too_large(walk: ParserState, chunks: Array, i: int, row: int, size: int) -> None:
    """Report that the length in the current head is above what was agreed upon."""
    report_length(walk, chunks, i, row, TOO_LARGE, size)


@kernel
def report_length(walk: ParserState, chunks: Array, i: int, row: int, code: int, size: int) -> None:
    """Report the length in the current head."""
    parsers = walk.parsers
    number = walk.facts[chunks[Chunk.SLOT, i], Facts.FRAMES]
    fault(walk, chunks, i, row, code, number, parsers[row, Parser.CHANNEL], parsers[row, Parser.POS], size)


@kernel
def is_agreed(walk: ParserState, row: int) -> bool:
    """Return whether the size of the current frame is one that the peers agreed upon."""
    parsers = walk.parsers
    return bool(parsers[row, Parser.SIZE] < max(parsers[row, Parser.MOST], parsers[row, Parser.LARGEST]))


@kernel
def accept_length(walk: ParserState, row: int) -> None:
    """Go on with the payload of the head that was doubted."""
    parsers = walk.parsers
    parsers[row, Parser.SUSPECT_SIZE] = 0
    parsers[row, Parser.LENGTH_ACCEPTED] = 1
    parsers[row, Parser.STATE] = PAYLOAD if parsers[row, Parser.SIZE] > 0 else END


@kernel
def reject_length(walk: ParserState, chunks: Array, i: int, row: int, overhead: int) -> bool:
    """Return whether the doubted head is refuted, and report it; at a gap, a length that was agreed upon counts."""
    parsers = walk.parsers
    claimed = parsers[row, Parser.SUSPECT_SIZE]
    if claimed == 0:
        return False
    parsers[row, Parser.SUSPECT_SIZE] = 0
    if claimed > 0 and parsers[row, Parser.TYPE] >= 0 and is_agreed(walk, row):
        accept_length(walk, row)
        return False
    size, most = parsers[row, Parser.SIZE], parsers[row, Parser.MOST]
    if (most == 0 or size + overhead <= most) and parsers[row, Parser.TYPE] >= 0:
        report_length(walk, chunks, i, row, LENGTH_WRONG, size)
    return True


@kernel
def rewind(walk: ParserState, chunks: Array, i: int, row: int) -> bool:
    """Hold back what came of the current payload before this chunk, for the search; False where there is no room."""
    parsers, fragments, held = walk.parsers, walk.fragments, walk.held
    first = fragment = parsers[row, Parser.CHAIN]
    count = 0
    while fragment >= 0 and fragments[fragment, Fragment.POS] < chunks[Chunk.POS, i]:
        count += 1
        fragment = fragments[fragment, Fragment.NEXT]
    if count == 0 or walk.free_held[0] <= count:
        return False
    queue = row // 2 * 2
    before = -1
    fragment = first
    for _ in range(count):
        h = take_row(walk.free_held)
        for k in range(Chunk.WIDTH):
            held[h, k] = fragments[fragment, k]
        held[h, PendingChunk.USED] = 1
        held[h, PendingChunk.NEXT] = parsers[queue, Parser.QUEUE] if before < 0 else held[before, PendingChunk.NEXT]
        if before < 0:
            parsers[queue, Parser.QUEUE] = h
        else:
            held[before, PendingChunk.NEXT] = h
        if held[h, PendingChunk.NEXT] < 0:
            parsers[queue, Parser.QUEUE_END] = h
        before = h
        parsers[row, Parser.BYTES] += held[h, PendingChunk.LENGTH]
        walk.cursor[Cursor.HELD] += held[h, PendingChunk.LENGTH]
        fragment = fragments[fragment, Fragment.NEXT]
    parsers[queue, Parser.QUEUED] += count
    parsers[queue, Parser.TAKEN] = 0
    parsers[row, Parser.GOT] = 0
    lose(walk, row, parsers[row, Parser.POS], fragments[first, Fragment.POS] - parsers[row, Parser.POS])
    parsers[row, Parser.DAMAGED] = 1
    return True
