"""The walk over stream chunks: chunks of all connections to frames, and chunks that are held back during a search.

The kernels in the first part are templates: a protocol lays its own under their names (`build_parser`), and the walk is
compiled for it as if it had been written for it alone.
"""

from collections.abc import Callable
from typing import Any

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel, specialize
from amqpscope.dissector.protocols import client_side, resync
from amqpscope.dissector.protocols.boundaries import (
    begin_frame,
    lose_head,
    put_frame,
    report_further_gap,
    report_under_way,
    skip,
)
from amqpscope.dissector.protocols.candidates import Own
from amqpscope.dissector.protocols.client_side import find_client
from amqpscope.dissector.protocols.payloads import keep_payload, payload
from amqpscope.dissector.protocols.pending_chunks import hold, release_first
from amqpscope.dissector.protocols.resync import DECIDED, NO_ROOM, WAIT, search
from amqpscope.dissector.protocols.state import (
    END,
    HEAD,
    HEAD_ROOM,
    PAYLOAD,
    SEARCH,
    Cursor,
    Parser,
    ParserState,
    PendingChunk,
)
from amqpscope.dissector.protocols.suspect_length import reject_length
from amqpscope.dissector.tcp.state import Chunk

END_BYTES = 0
"""Bytes after a payload that belong to the frame."""
OVERHEAD = 0
"""Bytes of a frame besides its payload, where lengths are limited."""


@kernel
def head_bytes(byte: int) -> int:
    """Return the size of a head that begins with this byte; HEAD_ROOM at most."""
    raise NotImplementedError


@kernel
def take_whole(walk: ParserState, chunks: Array, i: int, at: int, row: int, own: Own) -> int:
    """Take a frame that begins here if it lies whole in the chunk, without a note in its direction.

    Returns: its bytes; 0 when it is not whole, or nothing for haste.
    """
    return 0


@kernel
def begin_payload(walk: ParserState, chunks: Array, i: int, row: int, head: Array, p: int, own: Own) -> None:
    """Read a complete head, in `head` at p: note type, channel and size of the frame, or desynchronise."""
    raise NotImplementedError


@kernel
def pass_payload(walk: ParserState, chunks: Array, i: int, row: int, offset: int, length: int, own: Own) -> None:
    """Take bytes of a payload that does not lie whole in one chunk; offset -1: they lie in a gap."""
    keep_payload(walk, chunks, i, row, offset, length, 0)


@kernel
def take_end(walk: ParserState, chunks: Array, i: int, at: int, row: int, own: Own) -> bool:
    """Look at the bytes after a payload, and finish the frame; False when all of it was given back to the search."""
    return True


@kernel
def may_be_over(walk: ParserState, chunks: Array, i: int, at: int, row: int, own: Own) -> bool:
    """Return whether a frame with nothing after its payload may end before byte `at` of the chunk.

    If not, all of it is given back to the search. Asked of all frames where a gap begins in the payload, and where the
    connection ends.
    """
    return True


@kernel
def check_length(walk: ParserState, chunks: Array, i: int, at: int, row: int, own: Own) -> None:
    """Look at a complete head, whose payload begins at byte `at`; desynchronise if no frame can end there."""
    return


@kernel
def finish_frame(walk: ParserState, chunks: Array, i: int, row: int, offset: int, own: Own) -> None:
    """Write the row of the current frame; offset is where its payload lies, -1 when it is in fragments."""
    parsers = walk.parsers
    at, length = payload(walk, row, offset)
    size = parsers[row, Parser.WANTED] + parsers[row, Parser.SIZE] + END_BYTES
    put_frame(walk, chunks, i, row, at, length, size)


@kernel
def begins_connection(data: Array, p: int, end: int) -> bool:
    """Return whether a connection begins with these bytes, also where its SYN was not captured."""
    return False


@kernel
def desynchronised(walk: ParserState, chunks: Array, i: int, row: int, own: Own) -> None:
    """Note that the next boundary is unknown."""
    return


@kernel
def resynchronised(walk: ParserState, chunks: Array, i: int, row: int, own: Own) -> None:
    """Begin a frame after skipped bytes."""
    return


def build_parser(search_kernels: dict[str, Any], **kernels: Any) -> Callable[..., None]:
    """Return the walk over chunks of a protocol.

    Args:
        search_kernels: the kernels and constants of `resync` that are its own.
        kernels: those of this module.
    """
    walk_own = specialize(walk_chunk, **kernels, **_parts(kernels))
    found = resync.build_search(**search_kernels)
    client = client_side.build_kernels(search=found, **search_kernels)
    return specialize(
        walk_chunks,
        walk_chunk=walk_own,
        replay=specialize(replay, walk_chunk=walk_own, search=found, find_client=client),
        look_at_ends=specialize(look_at_ends, **kernels),
    )


def _parts(kernels: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of `walk_chunk` that use the protocol's kernels."""
    return {
        "cross_gap": specialize(cross_gap, **kernels, take_payload=specialize(take_payload, **kernels)),
        "take_head": specialize(take_head, **kernels),
        "take_payload": specialize(take_payload, **kernels),
        "is_complete": specialize(is_complete, **kernels),
        "skip_bytes": specialize(skip_bytes, **kernels),
    }


# ------------------------------------------------------------------------------------------------------ one chunk


@kernel
def walk_chunk(walk: ParserState, chunks: Array, i: int, at: int, own: Own) -> int:
    """Walk a chunk from byte `at` on.

    Returns the number of bytes processed: all, or fewer where a search must go before; the complement of that
    when there is no more room.
    """
    row = 2 * chunks[Chunk.SLOT, i] + chunks[Chunk.SIDE, i]
    length: int = chunks[Chunk.LENGTH, i]
    is_gap = chunks[Chunk.OFFSET, i] < 0
    arena = 8 if is_gap else length + HEAD_ROOM
    # a frame without a payload is complete when its head is
    while at < length or is_complete(walk.parsers, row):
        if is_full(walk, row, arena):
            return -1 - at
        state = walk.parsers[row, Parser.STATE]
        if is_complete(walk.parsers, row):
            if not may_be_over(walk, chunks, i, at, row, own):
                return 0
            finish_frame(walk, chunks, i, row, -1, own)
        elif is_gap and at == 0 and state == PAYLOAD and not may_be_over(walk, chunks, i, 0, row, own):
            return 0
        elif is_gap:
            at += cross_gap(walk, chunks, i, at, row, own)
        elif state == HEAD:
            at += take_head(walk, chunks, i, at, row, own)
        elif state == PAYLOAD:
            at += take_payload(walk, chunks, i, at, row, own)
        elif state == END:
            if not take_end(walk, chunks, i, at, row, own):
                return 0
            at += END_BYTES
        else:
            taken = skip_bytes(walk, chunks, i, at, row, own)
            if taken < 0:
                return at
            at += taken
    return at


@kernel
def is_full(walk: ParserState, row: int, arena: int) -> bool:
    """Return whether there may be too little room for what the next bytes bring."""
    cursor = walk.cursor
    return bool(
        cursor[Cursor.FRAMES] + 1 > walk.frames.shape[1]
        or cursor[Cursor.ASIDE] + 2 > walk.aside.shape[1]
        or cursor[Cursor.FAULTS] + 4 > walk.faults.shape[1]
        or (walk.free[0] == 0 and walk.fragments.shape[0] < limits.FRAGMENTS)
        or (walk.free_held[0] <= walk.parsers[row, Parser.FRAGMENTS] and walk.held.shape[0] < limits.FRAGMENTS)
        or cursor[Cursor.ARENA] + walk.parsers[row, Parser.CHAINED] + arena > len(walk.data)
    )


@kernel
def is_complete(parsers: Array, row: int) -> bool:
    """Return whether a frame that has nothing after its payload has all of that."""
    return bool(
        END_BYTES == 0
        and parsers[row, Parser.STATE] == PAYLOAD
        and parsers[row, Parser.GOT] == parsers[row, Parser.SIZE]
    )


@kernel
def take_head(walk: ParserState, chunks: Array, i: int, at: int, row: int, own: Own) -> int:
    """Take a frame that lies whole in the chunk, as most do, else bytes of its head; returns their number."""
    parsers, data, heads = walk.parsers, walk.data, walk.heads
    p = chunks[Chunk.OFFSET, i] + at
    left: int = chunks[Chunk.LENGTH, i] - at
    head = HEAD_ROOM * row
    if parsers[row, Parser.HEADS] == 0:
        length: int = take_whole(walk, chunks, i, at, row, own)
        if length > 0:
            return length
        begin_frame(walk, chunks, i, at, row)
        parsers[row, Parser.WANTED] = head_bytes(data[p])
    had = parsers[row, Parser.HEADS]
    wanted = parsers[row, Parser.WANTED]
    take: int = min(wanted - had, left)
    for k in range(take):
        heads[head + had + k] = data[p + k]
    parsers[row, Parser.HEADS] = had + take
    if had + take < wanted:
        return take
    begin_payload(walk, chunks, i, row, heads, head, own)
    size: int = parsers[row, Parser.SIZE]
    if parsers[row, Parser.STATE] == PAYLOAD:
        check_length(walk, chunks, i, at + take, row, own)
    if parsers[row, Parser.STATE] == PAYLOAD and END_BYTES == 0 and take + size <= left:
        parsers[row, Parser.GOT] = size
        finish_frame(walk, chunks, i, row, p + take, own)
        return take + size
    return take


@kernel
def take_payload(walk: ParserState, chunks: Array, i: int, at: int, row: int, own: Own) -> int:
    """Take bytes of a payload, or of a gap in it; returns their number."""
    parsers = walk.parsers
    size = parsers[row, Parser.SIZE]
    take: int = min(chunks[Chunk.LENGTH, i] - at, size - parsers[row, Parser.GOT])
    offset = chunks[Chunk.OFFSET, i]
    pass_payload(walk, chunks, i, row, offset + at if offset >= 0 else -1, take, own)
    parsers[row, Parser.GOT] += take
    if offset < 0:
        parsers[row, Parser.MISSING] += take
    if END_BYTES > 0 and parsers[row, Parser.GOT] == size:
        parsers[row, Parser.STATE] = END
    return take


@kernel
def cross_gap(walk: ParserState, chunks: Array, i: int, at: int, row: int, own: Own) -> int:
    """Take bytes of a gap; returns their number. The length of a payload is known, so the walk goes on after it."""
    parsers = walk.parsers
    state = parsers[row, Parser.STATE]
    if state == PAYLOAD:
        return take_payload(walk, chunks, i, at, row, own)
    left: int = chunks[Chunk.LENGTH, i] - at
    if state == END:
        take: int = min(left, END_BYTES)
        parsers[row, Parser.MISSING] += take
        finish_frame(walk, chunks, i, row, -1, own)
        return take
    if state == HEAD:
        lose_head(walk, chunks, i, at, row)
        desynchronised(walk, chunks, i, row, own)
    elif reject_length(walk, chunks, i, row, OVERHEAD):
        desynchronised(walk, chunks, i, row, own)
    elif parsers[row, Parser.STATE] != SEARCH:
        return 0
    else:
        report_further_gap(walk, chunks, i, at, row)
        parsers[row, Parser.DAMAGED] = 0
    return left


@kernel
def skip_bytes(walk: ParserState, chunks: Array, i: int, at: int, row: int, own: Own) -> int:
    """Skip bytes in a search; returns their number, -1 where nothing is known of them yet."""
    parsers = walk.parsers
    p = chunks[Chunk.OFFSET, i] + at
    if chunks[Chunk.POS, i] + at == 0:
        if begins_connection(walk.data, p, p + chunks[Chunk.LENGTH, i] - at):
            parsers[row, Parser.UNTIL] = 0
            parsers[row, Parser.FOUND] = 1
        elif parsers[row, Parser.UNTIL] >= 0:
            report_under_way(walk, chunks, i, row)
    if parsers[row, Parser.UNTIL] < 0:
        return -1
    if reject_length(walk, chunks, i, row, OVERHEAD):
        desynchronised(walk, chunks, i, row, own)
    take = skip(walk, chunks, i, at, row)
    if parsers[row, Parser.STATE] == HEAD:
        resynchronised(walk, chunks, i, row, own)
    return take


# ------------------------------------------------------------------------------------------------------ all chunks


@kernel
def walk_chunks(walk: ParserState, chunks: Array, own: Own) -> None:
    """Walk from the cursor on until the chunks, or the room for results, end. One without bytes ends all waiting."""
    cursor, parsers = walk.cursor, walk.parsers
    i = cursor[Cursor.CHUNK]
    at = cursor[Cursor.AT]
    while True:
        if cursor[Cursor.REPLAY] >= 0:
            if replay(walk, cursor[Cursor.REPLAY], own) == 0:
                break
            cursor[Cursor.REPLAY] = -1
        if i >= cursor[Cursor.COUNT]:
            break
        slot = chunks[Chunk.SLOT, i]
        length = chunks[Chunk.LENGTH, i]
        if length == 0:
            if not look_at_ends(walk, chunks, i, slot, own):
                break
            parsers[2 * slot, Parser.OVER] = 1
            cursor[Cursor.REPLAY] = slot
            i += 1
            continue
        if parsers[2 * slot, Parser.QUEUE] < 0:
            at = walk_chunk(walk, chunks, i, at, own)
            if at < 0:
                at = -1 - at
                break
            if at == length:
                i += 1
                at = 0
                continue
        if walk.free_held[0] == 0:
            if walk.held.shape[0] < limits.FRAGMENTS:
                break
            cursor[Cursor.CROWDED] = 1
            if parsers[2 * slot, Parser.QUEUE] >= 0:
                parsers[2 * slot, Parser.OVER] = 1
                cursor[Cursor.REPLAY] = slot
            else:  # nothing can be held back, so nothing is looked at
                row = 2 * slot + chunks[Chunk.SIDE, i]
                parsers[row, Parser.UNTIL] = chunks[Chunk.POS, i] + length
                parsers[row, Parser.FOUND] = 0
            continue
        hold(walk, chunks, i, at)
        cursor[Cursor.REPLAY] = slot
        i += 1
        at = 0
    cursor[Cursor.CHUNK] = i
    cursor[Cursor.AT] = at


@kernel
def look_at_ends(walk: ParserState, chunks: Array, i: int, slot: int, own: Own) -> bool:
    """Look at the unfinished payloads of a connection that is over; return False when there is no room yet."""
    parsers = walk.parsers
    for row in (2 * slot, 2 * slot + 1):
        if parsers[row, Parser.STATE] in (PAYLOAD, END) and parsers[2 * slot, Parser.TAKEN] == 0:
            if is_full(walk, row, 0):
                return False
            may_be_over(walk, chunks, i, 0, row, own)
    return True


def replay(walk: ParserState, slot: int, own: Own) -> int:
    """Walk the chunks that a connection holds back, until a search must wait for more; 0 when there is no room."""
    parsers, held, chunk = walk.parsers, walk.held, walk.chunk
    queue = 2 * slot
    while parsers[queue, Parser.QUEUE] >= 0:
        h = parsers[queue, Parser.QUEUE]
        row = queue + held[h, PendingChunk.SIDE]
        is_searching = parsers[row, Parser.STATE] == SEARCH
        found = DECIDED
        if is_searching and parsers[row, Parser.UNTIL] < 0 and held[h, PendingChunk.OFFSET] >= 0:
            found = search(walk, row, own)
        if found == DECIDED and is_searching and parsers[row, Parser.UNTIL] >= 0 and parsers[row, Parser.FOUND] == 1:
            found = find_client(walk, row, own)
        if found == WAIT:
            return 1
        if found == NO_ROOM:
            return 0
        for k in range(Chunk.WIDTH):
            chunk[k, 0] = held[h, k]
        at = walk_chunk(walk, chunk, 0, parsers[queue, Parser.TAKEN], own)
        if at < 0:
            parsers[queue, Parser.TAKEN] = -1 - at
            return 0
        parsers[queue, Parser.TAKEN] = at
        if at == held[h, PendingChunk.LENGTH]:
            release_first(walk, queue)
    parsers[queue, Parser.OVER] = 0
    return 1
