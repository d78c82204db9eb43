"""What the walk over frames remembers between batches, and room for what it emits."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amqpscope.dissector.capture.scanner import MAX_RECORD
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Ints, among
from amqpscope.dissector.kernels.kernel import call
from amqpscope.dissector.kernels.pool import Pool, grown
from amqpscope.dissector.kernels.retained import Buffer, Ranges
from amqpscope.dissector.protocols.payloads import drop_chain
from amqpscope.dissector.protocols.state import (
    CUT,
    END,
    HEAD,
    HEAD_ROOM,
    PAYLOAD,
    SEARCH,
    SKIPPED,
    Cursor,
    Fault,
    Fragment,
    Parser,
    ParserState,
    PendingChunk,
    Place,
    Trial,
)
from amqpscope.dissector.tcp.emit_in_order import ANYWHERE
from amqpscope.dissector.tcp.state import Chunk, Facts


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
        self.fragments = Pool(Fragment.WIDTH, 2_048)
        self.held = Pool(PendingChunk.WIDTH, 256)
        self.chunk = Chunk.room(1)
        self.edges = np.zeros(limits.HELD_CHUNKS + 2, np.int64)
        self.marks = np.empty(limits.RESYNC + limits.HELD_CHUNKS, np.uint8)
        self.trial = Trial.make(1)[0]

    @property
    def ranges(self) -> list[Ranges]:
        """Bytes that must outlive their batch."""
        fragments, held = self.fragments, self.held
        return [
            Ranges(fragments.rows, Fragment.USED, Fragment.OFFSET, Fragment.LENGTH, fragments.taken),
            Ranges(held.rows, PendingChunk.USED, PendingChunk.OFFSET, PendingChunk.LENGTH, held.taken),
        ]

    def begin(self, slots: Ints, states: Ints, capacity: int) -> None:
        """Take over connections; `states` are HEAD where a stream is seen from its start, else SEARCH."""
        if len(self.parsers) < 2 * capacity:
            self.parsers = Parser.grown(self.parsers, 2 * capacity)
            self.heads = grown(self.heads, 2 * capacity * HEAD_ROOM)
        for side in range(2):
            Parser.clear(self.parsers, 2 * slots + side)
            self.parsers[2 * slots + side, Parser.STATE] = states

    def walk(self, buffer: Buffer, facts: Ints) -> ParserState:
        """Return the state as kernels take it."""
        return ParserState(
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
        for pool, needed in ((self.fragments, 0), (self.held, self.parsers[:, Parser.FRAGMENTS].max(initial=0))):
            while pool.left <= needed and len(pool) < limits.FRAGMENTS:
                pool.grow(2 * len(pool))

    def last_chunks(self, slots: Ints) -> Ints:
        """Return empty chunks that end the connections with chunks held back, or payloads under way."""
        parsers = self.parsers.reshape(-1, 2, Parser.WIDTH)[slots]
        slots = slots[(parsers[:, 0, Parser.QUEUE] >= 0) | among(parsers[:, :, Parser.STATE], (PAYLOAD, END)).any(1)]
        chunks = np.zeros((Chunk.WIDTH, len(slots)), np.int64)
        chunks[Chunk.SLOT], chunks[Chunk.POS] = slots, ANYWHERE
        return chunks

    def end(self, slots: Ints, facts: Ints, head_bytes: int, end_bytes: int) -> Iterator[Ints]:
        """Forget connections that are over; yields the faults of those that ended inside of a frame, or of a search."""
        rows = (2 * slots[:, None] + np.arange(2)).ravel()
        state = self.parsers[rows, Parser.STATE]
        head = state == HEAD
        inside = (state == PAYLOAD) | (state == END) | (head & (self.parsers[rows, Parser.HEADS] > 0))
        if inside.any():
            yield self._cuts(rows[inside], facts, head_bytes, end_bytes)
        searched = rows[(state == SEARCH) & (self.parsers[rows, Parser.SKIPPED] > 0)]
        if len(searched):
            yield self._faults(searched, facts, SKIPPED, -1, -1, self.parsers[searched, Parser.SKIPPED])
        walk = self.walk(Buffer(np.zeros(0, np.uint8), 0), facts)
        for row in rows[self.parsers[rows, Parser.CHAIN] >= 0].tolist():
            call(drop_chain, self.compiled, walk, row)

    def _cuts(self, rows: Ints, facts: Ints, head_bytes: int, end_bytes: int) -> Ints:
        parsers = self.parsers[rows]
        head = parsers[:, Parser.STATE] == HEAD
        rest = parsers[:, Parser.SIZE] - parsers[:, Parser.GOT] + end_bytes
        missing = np.where(head, head_bytes - parsers[:, Parser.HEADS], rest)
        channels = np.where(head, -1, parsers[:, Parser.CHANNEL])
        return self._faults(rows, facts, CUT, channels, parsers[:, Parser.POS], missing)

    def _faults(self, rows: Ints, facts: Ints, code: int, channel: Ints | int, pos: Ints | int, value: Ints) -> Ints:
        """Return faults of directions at their ends."""
        parsers = self.parsers[rows]
        faults = np.zeros((Fault.WIDTH, len(rows)), np.int64)
        faults[Fault.CODE], faults[Fault.CHANNEL], faults[Fault.POS], faults[Fault.VALUE] = code, channel, pos, value
        faults[Place.SLOT], faults[Place.SIDE] = rows // 2, rows % 2
        faults[Place.NUMBER] = facts[rows // 2, Facts.FRAMES]  # a length may be wrong: then others are in the frame
        for first, last, of in (
            (Place.FIRST_PACKET, Place.PACKET, Parser.FIRST_PACKET),
            (Place.FIRST_TS, Place.TS, Parser.FIRST_TS),
            (Place.FIRST_CAPTURE, Place.CAPTURE, Parser.FIRST_CAPTURE),
        ):
            faults[first] = faults[last] = parsers[:, of]
        return faults

    def holding(self, slots: Ints) -> Iterator[tuple[int, int, bool, int]]:
        """Return which of these connections hold chunks back (`registry.Stage`)."""
        for slot in slots[self.parsers[2 * slots, Parser.QUEUE] >= 0].tolist():
            first = self.held.rows[self.parsers[2 * slot, Parser.QUEUE]]
            row = self.parsers[2 * slot + first[PendingChunk.SIDE]]
            showed_none = bool(row[Parser.LARGEST] == 0 and row[Parser.LOST] < 0)
            yield slot, int(first[PendingChunk.SIDE]), showed_none, int(first[PendingChunk.TS])

    def end_lost(self, slots: Ints) -> NDArray[np.bool_]:
        """Return which connections may lack the last frames of a direction: its boundary was lost for good.

        A head that cannot be right hides nothing if it is the last that was sent.
        """
        parsers = self.parsers.reshape(-1, 2, Parser.WIDTH)[slots]
        lost = (parsers[:, :, Parser.LOST] >= 0) | (parsers[:, :, Parser.SKIPPED] > 0)
        alone = (parsers[:, :, Parser.DAMAGED] == 1) & (parsers[:, :, Parser.SKIPPED] == parsers[:, :, Parser.WANTED])
        return np.asarray(((parsers[:, :, Parser.STATE] == SEARCH) & lost & ~alone).any(1))
