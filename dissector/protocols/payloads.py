"""Payloads that do not lie in one chunk: keep their bytes as fragments, put them together, drop them."""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.pool import append_row, give_row, take_row
from amqpscope.dissector.kernels.words import copy_bytes
from amqpscope.dissector.protocols.emitting import frame_fault
from amqpscope.dissector.protocols.state import LIMIT, Cursor, Fragment, Parser, ParserState
from amqpscope.dissector.tcp.state import Chunk


@kernel
def payload(walk: ParserState, row: int, offset: int) -> tuple[int, int]:
    """Return where the current payload lies, and its bytes before the first gap; -1 where there are none.

    `offset` is where it lies whole, -1 when it is in fragments: these are put together.
    """
    parsers = walk.parsers
    if offset >= 0:
        return offset, parsers[row, Parser.SIZE]
    length = parsers[row, Parser.CHAINED]
    return put_together(walk, row) if length > 0 else -1, length


@kernel
def keep_payload(walk: ParserState, chunks: Array, i: int, row: int, offset: int, length: int, before: int) -> None:
    """Keep bytes of a payload that does not lie in one chunk.

    Only what is before its first gap is kept; `before` are bytes of it that were put elsewhere.
    """
    parsers = walk.parsers
    if (
        offset >= 0
        and length > 0
        and parsers[row, Parser.MISSING] == 0
        and parsers[row, Parser.CHAINED] + before == parsers[row, Parser.GOT]
        and chain(walk, chunks, i, row, offset, length) == 0
    ):
        frame_fault(walk, chunks, i, row, LIMIT, parsers[row, Parser.SIZE])
        drop_chain(walk, row)


@kernel
def chain(walk: ParserState, chunks: Array, i: int, row: int, offset: int, length: int) -> int:
    """Keep bytes of an unfinished payload; 0 when a limit forbids it."""
    parsers, fragments, cursor = walk.parsers, walk.fragments, walk.cursor
    if (
        walk.free[0] == 0
        or parsers[row, Parser.FRAGMENTS] >= limits.FRAGMENTS_PER_CONNECTION
        or parsers[row, Parser.CHAINED] + length > limits.PAYLOAD
        or cursor[Cursor.CHAINED] + length > limits.WAITING_BYTES
    ):
        return 0
    fragment = take_row(walk.free)
    for k in range(Chunk.WIDTH):
        fragments[fragment, k] = chunks[k, i]
    fragments[fragment, Fragment.POS] += offset - chunks[Chunk.OFFSET, i]
    fragments[fragment, Fragment.OFFSET] = offset
    fragments[fragment, Fragment.LENGTH] = length
    fragments[fragment, Fragment.USED] = 1
    append_row(fragments, fragment, Fragment.NEXT, parsers, row, Parser.CHAIN, Parser.CHAIN_END)
    parsers[row, Parser.CHAINED] += length
    parsers[row, Parser.FRAGMENTS] += 1
    cursor[Cursor.CHAINED] += length
    return 1


@kernel
def put_together(walk: ParserState, row: int) -> int:
    """Copy the fragments of a direction to the arena, one after the other; returns where they begin."""
    data, fragments = walk.data, walk.fragments
    offset: int = walk.cursor[Cursor.ARENA]
    at = offset
    fragment = walk.parsers[row, Parser.CHAIN]
    while fragment >= 0:
        start = fragments[fragment, Fragment.OFFSET]
        length = fragments[fragment, Fragment.LENGTH]
        if length > 0:  # the first and the last byte lie in the data, so all do; the arena is after all fragments
            data[at] = data[start]
            data[at + length - 1] = data[start + length - 1]
            copy_bytes(data, start, data, at, length)
        at += length
        fragment = fragments[fragment, Fragment.NEXT]
    walk.cursor[Cursor.ARENA] = at
    return offset


@kernel
def drop_chain(walk: ParserState, row: int) -> None:
    """Give back the fragments of a direction."""
    parsers, fragments = walk.parsers, walk.fragments
    fragment = parsers[row, Parser.CHAIN]
    while fragment >= 0:
        fragments[fragment, Fragment.USED] = 0
        walk.cursor[Cursor.CHAINED] -= fragments[fragment, Fragment.LENGTH]
        give_row(walk.free, fragment)
        fragment = fragments[fragment, Fragment.NEXT]
    parsers[row, Parser.CHAIN] = -1
    parsers[row, Parser.CHAIN_END] = -1
    parsers[row, Parser.CHAINED] = 0
    parsers[row, Parser.FRAGMENTS] = 0
