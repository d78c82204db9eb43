"""Chunks that a connection holds back while one of its directions is searched: hold, gather and release them."""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.pool import append_row, give_row, take_row
from amqpscope.dissector.kernels.words import copy_bytes
from amqpscope.dissector.protocols.state import Cursor, Parser, ParserState, PendingChunk, Trial
from amqpscope.dissector.tcp.state import Chunk, Facts

FULL, FULL_LOOPBACK = 1_200, 32_000
"""Segments of fewer bytes are not full: links carry more (IPv6 at least 1,280 with heads), and loopback far more."""
SHORT = 512
"""Segments of fewer bytes are not full, longer ones beside yet longer ones: TCP fills at least 536 (RFC 9293)."""


@kernel
def hold(walk: ParserState, chunks: Array, i: int, at: int) -> None:
    """Put a chunk after those of its connection that are held back; `at` of its bytes are processed."""
    parsers, held = walk.parsers, walk.held
    queue = 2 * chunks[Chunk.SLOT, i]
    row = queue + chunks[Chunk.SIDE, i]
    h = take_row(walk.free_held)
    for k in range(Chunk.WIDTH):
        held[h, k] = chunks[k, i]
    held[h, PendingChunk.USED] = 1
    if parsers[queue, Parser.QUEUE] < 0:
        parsers[queue, Parser.TAKEN] = at
    append_row(held, h, PendingChunk.NEXT, parsers, queue, Parser.QUEUE, Parser.QUEUE_END)
    parsers[queue, Parser.QUEUED] += 1
    if chunks[Chunk.OFFSET, i] >= 0:
        parsers[row, Parser.BYTES] += chunks[Chunk.LENGTH, i]
        parsers[row, Parser.LAST] = chunks[Chunk.LENGTH, i]
        walk.cursor[Cursor.HELD] += chunks[Chunk.LENGTH, i]
    else:
        parsers[row, Parser.GAPS] += 1


@kernel
def release_first(walk: ParserState, queue: int) -> None:
    """Give back the first chunk that is held back."""
    parsers, held = walk.parsers, walk.held
    h = parsers[queue, Parser.QUEUE]
    row = queue + held[h, PendingChunk.SIDE]
    if held[h, PendingChunk.OFFSET] >= 0:
        parsers[row, Parser.BYTES] -= held[h, PendingChunk.LENGTH]
        walk.cursor[Cursor.HELD] -= held[h, PendingChunk.LENGTH]
    else:
        parsers[row, Parser.GAPS] -= 1
    parsers[queue, Parser.QUEUE] = held[h, PendingChunk.NEXT]
    parsers[queue, Parser.QUEUED] -= 1
    parsers[queue, Parser.TAKEN] = 0
    held[h, PendingChunk.USED] = 0
    give_row(walk.free_held, h)


@kernel
def first_held(walk: ParserState, row: int) -> int:
    """Return the first chunk of a direction that its connection holds back; -1: there is none."""
    h: int = walk.parsers[row // 2 * 2, Parser.QUEUE]
    while h >= 0 and walk.held[h, PendingChunk.SIDE] != row & 1:
        h = walk.held[h, PendingChunk.NEXT]
    return h


@kernel
def processed(walk: ParserState, queue: int, h: int) -> int:
    """Return how many bytes of a chunk that is held back are processed."""
    return walk.parsers[queue, Parser.TAKEN] if h == walk.parsers[queue, Parser.QUEUE] else 0


@kernel
def gather(walk: ParserState, row: int, window: int) -> tuple[int, int, bool, bool]:
    """Copy what a direction holds back to the arena, up to its first gap, and note where segments begin.

    Returns: bytes; beginnings of segments; whether a gap follows; whether the snap length made it.
    """
    parsers, data, held, edges = walk.parsers, walk.data, walk.held, walk.edges
    queue = row // 2 * 2
    base = walk.cursor[Cursor.ARENA]
    n = 0
    count = 0
    packet = -1
    ended = False
    snapped = False
    longest = 0
    h = parsers[queue, Parser.QUEUE]
    while h >= 0 and n < window:
        if held[h, PendingChunk.SIDE] == row & 1:
            if held[h, PendingChunk.OFFSET] < 0:
                ended = True
                snapped = held[h, PendingChunk.FIRST_PACKET] == packet
                break
            packet = held[h, PendingChunk.FIRST_PACKET]
            begin = processed(walk, queue, h)
            if begin == 0:
                edges[count] = n
                count += 1
            longest = max(longest, held[h, PendingChunk.LENGTH])
            take = min(held[h, PendingChunk.LENGTH] - begin, window - n)
            start = held[h, PendingChunk.OFFSET] + begin
            copy_bytes(data, start, data, base + n, take)  # callers have made room for the window
            n += take
        h = held[h, PendingChunk.NEXT]
    for k in range(8):  # kernels may look a little beyond
        data[base + n + k] = 0
    edges[count] = n
    walk.trial[Trial.SHORT] = min(max(longest, SHORT), full_segment(walk.facts, row // 2))
    return n, count, ended, snapped


@kernel
def full_segment(facts: Array, slot: int) -> int:
    """Return the size below which a segment is not full."""
    high = facts[slot, Facts.A_HI] == facts[slot, Facts.B_HI]
    return FULL_LOOPBACK if high and facts[slot, Facts.A_LO] == facts[slot, Facts.B_LO] else FULL
