"""What all framings do: note where frames begin, keep what is unfinished, and lose the way.

The length of a frame is known once its head is, so a gap within it costs nothing but its bytes; after one that
contains a head `amqpscope.dissector.protocols.resync` looks for the next.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amqpscope.dissector.capture.scanner import MAX_RECORD
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import call, i64, kernel
from amqpscope.dissector.kernels.pool import Pool, give_row, grown, take_row
from amqpscope.dissector.kernels.retained import Buffer, Ranges
from amqpscope.dissector.kernels.words import copy_bytes
from amqpscope.dissector.protocols.state import (
    CUT,
    END,
    GAP,
    HEAD,
    HEAD_ROOM,
    LIMIT,
    PAYLOAD,
    SEARCH,
    SKIPPED,
    Cursor,
    Fault,
    Fragment,
    Frame,
    Held,
    Parser,
    Place,
    Span,
    Trial,
    Walk,
)
from amqpscope.dissector.tcp.order import ANYWHERE
from amqpscope.dissector.tcp.state import Chunk, Facts


@kernel
def fault(
    walk: Walk, chunks: Array, i: int, row: int, code: int, number: int, channel: int, pos: int, value: int
) -> None:
    """Note a fault at this chunk. One that finds no room is dropped: the caller leaves enough of it.

    `number` is that of the frame it lies in, -1 for none; where frames are lost, that of the next.
    """
    faults, n = walk.faults, walk.cursor[Cursor.FAULTS]
    if n >= faults.shape[1]:
        return
    put_packets(faults, n, chunks, i)
    faults[Place.NUMBER, n] = number
    if number >= 0 and code not in (GAP, SKIPPED):
        put_first(faults, n, walk.parsers, row)
    faults[Fault.CODE, n] = code
    faults[Fault.CHANNEL, n] = channel
    faults[Fault.POS, n] = pos
    faults[Fault.VALUE, n] = value
    walk.cursor[Cursor.FAULTS] = n + 1


@kernel
def frame_fault(walk: Walk, chunks: Array, i: int, row: int, code: int, value: int) -> None:
    """Note a fault of the current frame."""
    number = walk.facts[chunks[Chunk.SLOT, i], Facts.FRAMES]
    parsers = walk.parsers
    fault(walk, chunks, i, row, code, number, parsers[row, Parser.CHANNEL], parsers[row, Parser.POS], value)


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
def put_place(walk: Walk, chunks: Array, i: int) -> int:
    """Begin the row of a frame that lies in this chunk alone, and return which it is."""
    frames, facts, cursor = walk.frames, walk.facts, walk.cursor
    n: int = cursor[Cursor.FRAMES]
    slot = chunks[Chunk.SLOT, i]
    put_packets(frames, n, chunks, i)
    frames[Place.NUMBER, n] = facts[slot, Facts.FRAMES]
    facts[slot, Facts.FRAMES] += 1
    cursor[Cursor.FRAMES] = n + 1
    return n


@kernel
def payload(walk: Walk, row: int, offset: int) -> tuple[int, int]:
    """Return where the current payload lies, and its bytes before the first gap; -1 where there are none.

    `offset` is where it lies whole, -1 when it is in fragments: these are put together.
    """
    parsers = walk.parsers
    if offset >= 0:
        return offset, parsers[row, Parser.SIZE]
    length = parsers[row, Parser.CHAINED]
    return put_together(walk, row) if length > 0 else -1, length


@kernel
def put_frame(walk: Walk, chunks: Array, i: int, row: int, offset: int, length: int, size: int) -> int:
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
def put_span(walk: Walk, chunks: Array, i: int, channel: int, offset: int, length: int) -> int:
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


@kernel
def drop_chain(walk: Walk, row: int) -> None:
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
    parsers[row, Parser.LINKS] = 0


@kernel
def chain(walk: Walk, chunks: Array, i: int, row: int, offset: int, length: int) -> int:
    """Keep bytes of an unfinished payload; 0 when a limit forbids it."""
    parsers, fragments, cursor = walk.parsers, walk.fragments, walk.cursor
    if (
        walk.free[0] == 0
        or parsers[row, Parser.CHAINED] + length > limits.PAYLOAD
        or cursor[Cursor.CHAINED] + length > limits.WAITING_BYTES
    ):
        return 0
    fragment = take_row(walk.free)
    for k in range(Chunk.WIDTH):
        fragments[fragment, k] = chunks[k, i]
    fragments[fragment, Fragment.NEXT] = -1
    fragments[fragment, Fragment.POS] += offset - chunks[Chunk.OFFSET, i]
    fragments[fragment, Fragment.OFFSET] = offset
    fragments[fragment, Fragment.LENGTH] = length
    fragments[fragment, Fragment.USED] = 1
    if parsers[row, Parser.CHAIN] < 0:
        parsers[row, Parser.CHAIN] = fragment
    else:
        fragments[parsers[row, Parser.CHAIN_END], Fragment.NEXT] = fragment
    parsers[row, Parser.CHAIN_END] = fragment
    parsers[row, Parser.CHAINED] += length
    parsers[row, Parser.LINKS] += 1
    cursor[Cursor.CHAINED] += length
    return 1


@kernel
def keep_payload(walk: Walk, chunks: Array, i: int, row: int, offset: int, length: int, before: int) -> None:
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
def put_together(walk: Walk, row: int) -> int:
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
def begin_frame(walk: Walk, chunks: Array, i: int, at: int, row: int) -> None:
    """Note where a frame's first byte was."""
    parsers = walk.parsers
    parsers[row, Parser.POS] = chunks[Chunk.POS, i] + at
    parsers[row, Parser.FIRST_PACKET] = chunks[Chunk.FIRST_PACKET, i]
    parsers[row, Parser.FIRST_TS] = chunks[Chunk.FIRST_TS, i]
    parsers[row, Parser.FIRST_CAPTURE] = chunks[Chunk.FIRST_CAPTURE, i]
    parsers[row, Parser.GOT] = 0
    parsers[row, Parser.MISSING] = 0
    parsers[row, Parser.BELIEVED] = 0


@kernel
def end_frame(walk: Walk, row: int, size: int) -> None:
    """End the current frame, of this size, which has its row; a head follows."""
    parsers = walk.parsers
    parsers[row, Parser.LARGEST] = max(parsers[row, Parser.LARGEST], size)
    drop_chain(walk, row)
    parsers[row, Parser.STATE] = HEAD
    parsers[row, Parser.HEADS] = 0


@kernel
def lose(walk: Walk, row: int, pos: int, skipped: int) -> None:
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
def lose_head(walk: Walk, chunks: Array, i: int, at: int, row: int) -> None:
    """Desynchronise at a gap where the head of a frame must be."""
    here = chunks[Chunk.POS, i] + at
    number = walk.facts[chunks[Chunk.SLOT, i], Facts.FRAMES]
    fault(walk, chunks, i, row, GAP, number, -1, here, chunks[Chunk.LENGTH, i] - at)
    heads = walk.parsers[row, Parser.HEADS]
    lose(walk, row, here - heads, heads)


@kernel
def skip(walk: Walk, chunks: Array, i: int, at: int, row: int) -> int:
    """Skip bytes before the next frame, as far as they are known to be none; returns their number."""
    parsers = walk.parsers
    here = chunks[Chunk.POS, i] + at
    take: int = min(chunks[Chunk.LENGTH, i] - at, max(parsers[row, Parser.UNTIL] - here, 0))
    parsers[row, Parser.SKIPPED] += take
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


class Framing:
    """What a walk remembers between batches, and room for what it brings.

    Args:
        compiled: run kernels compiled.
        frames: room for frames, one column each.
        aside: room for what the protocol brings besides.
    """

    def __init__(self, compiled: bool, frames: Ints, aside: Ints) -> None:
        self.compiled = compiled
        room = frames.shape[1]
        self.frames, self.aside, self.faults = frames, aside, Fault.room(room)
        self.cursor = Cursor.make(1)[0]
        self.parsers = Parser.make(0)
        self.heads = np.zeros(0, np.uint8)
        self.fragments = Pool(Fragment.WIDTH, room)
        self.held = Pool(Held.WIDTH, 256)
        self.chunk = Chunk.room(1)
        self.edges = np.zeros(limits.HELD_CHUNKS + 2, np.int64)
        self.marks = np.zeros(limits.RESYNC + limits.HELD_CHUNKS, np.uint8)
        self.trial = Trial.make(1)[0]

    @property
    def ranges(self) -> list[Ranges]:
        """Bytes that must outlive their batch."""
        fragments, held = self.fragments, self.held
        return [
            Ranges(fragments.rows, Fragment.USED, Fragment.OFFSET, Fragment.LENGTH, fragments.taken),
            Ranges(held.rows, Held.USED, Held.OFFSET, Held.LENGTH, held.taken),
        ]

    def begin(self, slots: Ints, states: Ints, capacity: int) -> None:
        """Take over connections; `states` are HEAD where a stream is seen from its start, else SEARCH."""
        if len(self.parsers) < 2 * capacity:
            self.parsers = Parser.grown(self.parsers, 2 * capacity)
            self.heads = grown(self.heads, 2 * capacity * HEAD_ROOM)
        for side in range(2):
            Parser.clear(self.parsers, 2 * slots + side)
            self.parsers[2 * slots + side, Parser.STATE] = states

    def walk(self, buffer: Buffer, facts: Ints) -> Walk:
        """Return the state as kernels take it."""
        return Walk(
            buffer.data, facts, self.parsers, self.heads, self.fragments.rows, self.fragments.free, self.held.rows,
            self.held.free, self.edges, self.marks, self.trial, self.cursor, self.chunk, self.frames, self.aside,
            self.faults,
        )  # fmt: skip

    def rounds(
        self, chunks: Ints, count: int, buffer: Buffer, walk_chunks: Callable[..., None], facts: Ints, own: Any
    ) -> Iterator[None]:
        """Walk the first `count` chunks; yields whenever there are results to be taken, before others replace them."""
        cursor = self.cursor
        cursor[Cursor.CHUNK] = cursor[Cursor.AT] = 0
        cursor[Cursor.COUNT] = count
        while cursor[Cursor.CHUNK] < count or cursor[Cursor.REPLAY] >= 0:
            cursor[Cursor.FRAMES] = cursor[Cursor.ASIDE] = cursor[Cursor.FAULTS] = 0
            cursor[Cursor.ARENA] = buffer.top
            call(walk_chunks, self.compiled, self.walk(buffer, facts), chunks, own)
            buffer.top = int(cursor[Cursor.ARENA])
            yield
            if cursor[Cursor.CHUNK] < count or cursor[Cursor.REPLAY] >= 0:
                self._make_room(buffer)

    @property
    def found(self) -> tuple[int, int]:
        """The numbers of frames and of other rows that the last round emitted."""
        return int(self.cursor[Cursor.FRAMES]), int(self.cursor[Cursor.ASIDE])

    @property
    def new_faults(self) -> Ints:
        """Faults of the last round: (Fault, n)."""
        faults: Ints = self.faults[:, : self.cursor[Cursor.FAULTS]]
        return faults

    def _make_room(self, buffer: Buffer) -> None:
        if not self.cursor[[Cursor.FRAMES, Cursor.ASIDE, Cursor.FAULTS]].any():  # it stopped for want of room for bytes
            buffer.reserve(MAX_RECORD + limits.PAYLOAD + 64)
        for pool, needed in ((self.fragments, 0), (self.held, self.parsers[:, Parser.LINKS].max(initial=0))):
            while pool.left <= needed and len(pool) < limits.FRAGMENTS:
                pool.grow(2 * len(pool))

    def last_chunks(self, slots: Ints) -> Ints:
        """Return empty chunks that end the connections with chunks held back, or payloads under way."""
        parsers = self.parsers.reshape(-1, 2, Parser.WIDTH)[slots]
        slots = slots[(parsers[:, 0, Parser.QUEUE] >= 0) | np.isin(parsers[:, :, Parser.STATE], (PAYLOAD, END)).any(1)]
        chunks = np.zeros((Chunk.WIDTH, len(slots)), np.int64)
        chunks[Chunk.SLOT], chunks[Chunk.POS] = slots, ANYWHERE
        return chunks

    def end(self, slots: Ints, facts: Ints, head_bytes: int, end_bytes: int) -> Iterator[Ints]:
        """Forget connections that are over; yields the faults of those that ended inside of a frame."""
        rows = (2 * slots[:, None] + np.arange(2)).ravel()
        state = self.parsers[rows, Parser.STATE]
        head = state == HEAD
        inside = (state == PAYLOAD) | (state == END) | (head & (self.parsers[rows, Parser.HEADS] > 0))
        if inside.any():
            yield self._cuts(rows[inside], head_bytes, end_bytes)
        walk = self.walk(Buffer(np.zeros(0, np.uint8), 0), facts)
        for row in rows[self.parsers[rows, Parser.CHAIN] >= 0].tolist():
            call(drop_chain, self.compiled, walk, row)

    def _cuts(self, rows: Ints, head_bytes: int, end_bytes: int) -> Ints:
        parsers = self.parsers[rows]
        head = parsers[:, Parser.STATE] == HEAD
        faults = np.zeros((Fault.WIDTH, len(rows)), np.int64)
        faults[Fault.CODE] = CUT
        faults[Place.SLOT], faults[Place.SIDE] = rows // 2, rows % 2
        faults[Place.NUMBER] = -1
        faults[Fault.CHANNEL] = np.where(head, -1, parsers[:, Parser.CHANNEL])
        faults[Fault.POS] = parsers[:, Parser.POS]
        rest = parsers[:, Parser.SIZE] - parsers[:, Parser.GOT] + end_bytes
        faults[Fault.VALUE] = np.where(head, head_bytes - parsers[:, Parser.HEADS], rest)
        for first, last, of in (
            (Place.FIRST_PACKET, Place.PACKET, Parser.FIRST_PACKET),
            (Place.FIRST_TS, Place.TS, Parser.FIRST_TS),
            (Place.FIRST_CAPTURE, Place.CAPTURE, Parser.FIRST_CAPTURE),
        ):
            faults[first] = faults[last] = parsers[:, of]
        return faults

    def holding(self, slots: Ints) -> Iterator[tuple[int, int, bool]]:
        """Return which of these connections hold chunks back, the side searched, and whether it showed no frame."""
        for slot in slots[self.parsers[2 * slots, Parser.QUEUE] >= 0].tolist():
            side = int(self.held.rows[self.parsers[2 * slot, Parser.QUEUE], Held.SIDE])
            row = self.parsers[2 * slot + side]
            yield slot, side, bool(row[Parser.LARGEST] == 0 and row[Parser.LOST] < 0)

    def end_lost(self, slots: Ints) -> NDArray[np.bool_]:
        """Of which connections the last frames of a direction may be missing: its boundary was lost for good."""
        parsers = self.parsers.reshape(-1, 2, Parser.WIDTH)[slots]
        lost = (parsers[:, :, Parser.LOST] >= 0) | (parsers[:, :, Parser.SKIPPED] > 0)
        return np.asarray(((parsers[:, :, Parser.STATE] == SEARCH) & lost).any(1))

    def skipped(self, slots: Ints) -> Ints:
        """Return the bytes skipped in current searches, of both directions together."""
        parsers = self.parsers.reshape(-1, 2, Parser.WIDTH)[slots]
        skipped: Ints = np.where(parsers[:, :, Parser.STATE] == SEARCH, parsers[:, :, Parser.SKIPPED], 0).sum(1)
        return skipped
