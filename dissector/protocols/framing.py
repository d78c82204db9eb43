"""What the framings have in common: the state of each direction, unfinished frames, and what goes wrong.

A walk takes the pieces of streams as they come, and remembers for each direction what the frame at hand lacks. A
payload that lies in one piece is used where it is; fragments of another wait until it is whole, and are put together
in the arena behind the batch's bytes. The length of a frame is known once its head is, so a gap within it costs
nothing but its bytes; behind one that swallowed a head `amqpscope.dissector.protocols.resync` looks for the next.
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
from amqpscope.dissector.kernels.words import copy_octets
from amqpscope.dissector.tcp.layout import (
    C_FRAMES,
    S_CAPTURE,
    S_FIRST_CAPTURE,
    S_FIRST_PACKET,
    S_FIRST_TS,
    S_HEIGHT,
    S_LENGTH,
    S_OFFSET,
    S_PACKET,
    S_POS,
    S_SIDE,
    S_SLOT,
    S_TS,
)

# States of a direction.
SEARCH, HEAD, PAYLOAD, END = range(4)

# Columns of `walk`, one row a direction (2 * slot + side).
(
    W_STATE,
    W_HEADS, W_HEAD,  # bytes of the head so far, and these as a big-endian number
    W_TYPE, W_CHANNEL, W_SIZE,  # of the frame at hand; W_SIZE: payload
    W_GOT, W_MISSING,  # payload bytes passed, and how many of these lay in gaps
    W_POS,  # stream position of the frame
    W_FIRST_PACKET, W_FIRST_TS, W_FIRST_CAPTURE,
    W_CHAIN, W_CHAIN_END, W_CHAINED,  # fragments of the payload; bytes in them
    W_SKIPPED,  # bytes passed over in the search at hand
    W_UNTIL, W_FOUND,  # position up to which bytes are passed over (-1: not known); 1: a frame begins there
    W_LOST,  # position at which the frame that was lost must have begun; -1: not known
    W_LARGEST,  # bytes of the largest frame so far
    W_TRIED,  # bytes that the last trial of the search at hand had
    W_DOUBT,  # segments that must begin with a frame before that is believed of another
    W_OCTETS, W_HOLES,  # of this direction among what its connection holds back
    W_LAST,  # bytes of the last piece that was
    W_QUEUE, W_QUEUE_END, W_QUEUED,  # side 0: pieces of the connection that are held back, and how many
    W_TAKEN,  # side 0: bytes of the first of them that are done with
    W_OVER,  # side 0: 1 when nothing will follow them
    W_REST,  # bytes still to come of a content that goes on in further frames, where the protocol tells
    W_WIDTH,
) = range(32)  # fmt: skip

# Columns of `fragments`: bytes of payloads that go on in a later piece.
F_NEXT, F_OFFSET, F_LENGTH, F_USED, F_WIDTH = range(5)

# Columns of `held`: pieces that are held back, their rows in front.
V_NEXT, V_USED, V_WIDTH = range(S_HEIGHT, S_HEIGHT + 3)

# Rows of `faults`, what becomes rows of `anomalies`. Y_VALUE depends on the code.
(
    Y_SLOT, Y_SIDE, Y_NO, Y_CAPTURE, Y_PACKET, Y_TS, Y_FIRST_CAPTURE, Y_FIRST_PACKET, Y_FIRST_TS,  # as in `rows`
    Y_CODE, Y_CHANNEL, Y_POS, Y_VALUE, Y_HEIGHT,
) = range(14)  # fmt: skip

FAULTS = (
    "tcp-gap",  # value: bytes lost
    "bytes-skipped",  # value: bytes
    "frame-type-unknown",  # value: what is in its place
    "frame-too-large",  # value: announced size
    "frame-cut",  # value: bytes still missing
    "limit-reached",  # value: bytes
)
HOLE, SKIPPED, TYPE_UNKNOWN, TOO_LARGE, CUT, LIMIT = range(len(FAULTS))

# Items of `control`.
(
    M_PIECE, M_AT,  # cursor: piece, and bytes of it already taken
    M_REPLAY,  # connection whose pieces held back are at hand; -1: none
    M_FRAMES, M_ASIDE, M_FAULTS,  # results so far; M_ASIDE: spans, or parts
    M_ARENA,
    M_CHAINED, M_HELD,  # bytes in all fragments, and in all pieces held back
    M_COUNT,  # pieces
    M_WIDTH,
) = range(11)  # fmt: skip


@kernel
def u16(data: Array, p: int) -> int:
    """Two bytes, big-endian."""
    return (i64(data[p]) << 8) | i64(data[p + 1])


@kernel
def u32(data: Array, p: int) -> int:
    """Four bytes, big-endian."""
    return (u16(data, p) << 16) | u16(data, p + 2)


@kernel
def fault(
    faults: Array, control: Array, pieces: Array, i: int, code: int, number: int, channel: int, pos: int, value: int,
    walk: Array, row: int,
) -> None:  # fmt: skip
    """Note a fault at this piece. One that finds no room is dropped: the caller leaves enough of it.

    `number` is that of the frame it lies in, -1 for none; where frames are lost, that of the next.
    """
    n = control[M_FAULTS]
    if n >= faults.shape[1]:
        return
    faults[Y_CODE, n] = code
    faults[Y_SLOT, n] = pieces[S_SLOT, i]
    faults[Y_SIDE, n] = pieces[S_SIDE, i]
    faults[Y_NO, n] = number
    faults[Y_CHANNEL, n] = channel
    faults[Y_POS, n] = pos
    faults[Y_VALUE, n] = value
    faults[Y_PACKET, n] = pieces[S_PACKET, i]
    faults[Y_TS, n] = pieces[S_TS, i]
    faults[Y_CAPTURE, n] = pieces[S_CAPTURE, i]
    if number >= 0 and code not in (HOLE, SKIPPED):
        faults[Y_FIRST_PACKET, n] = walk[row, W_FIRST_PACKET]
        faults[Y_FIRST_TS, n] = walk[row, W_FIRST_TS]
        faults[Y_FIRST_CAPTURE, n] = walk[row, W_FIRST_CAPTURE]
    else:
        faults[Y_FIRST_PACKET, n] = pieces[S_FIRST_PACKET, i]
        faults[Y_FIRST_TS, n] = pieces[S_FIRST_TS, i]
        faults[Y_FIRST_CAPTURE, n] = pieces[S_FIRST_CAPTURE, i]
    control[M_FAULTS] = n + 1


@kernel
def drop_chain(walk: Array, row: int, fragments: Array, free: Array, control: Array) -> None:
    """Give back the fragments of a direction."""
    fragment = walk[row, W_CHAIN]
    while fragment >= 0:
        fragments[fragment, F_USED] = 0
        control[M_CHAINED] -= fragments[fragment, F_LENGTH]
        give_row(free, fragment)
        fragment = fragments[fragment, F_NEXT]
    walk[row, W_CHAIN] = -1
    walk[row, W_CHAIN_END] = -1
    walk[row, W_CHAINED] = 0


@kernel
def chain(walk: Array, row: int, fragments: Array, free: Array, control: Array, offset: int, length: int) -> int:
    """Keep bytes of an unfinished payload; 0 when a limit forbids it."""
    if (
        free[0] == 0
        or walk[row, W_CHAINED] + length > limits.PAYLOAD
        or control[M_CHAINED] + length > limits.WAITING_OCTETS
    ):
        return 0
    fragment = take_row(free)
    fragments[fragment, F_NEXT] = -1
    fragments[fragment, F_OFFSET] = offset
    fragments[fragment, F_LENGTH] = length
    fragments[fragment, F_USED] = 1
    if walk[row, W_CHAIN] < 0:
        walk[row, W_CHAIN] = fragment
    else:
        fragments[walk[row, W_CHAIN_END], F_NEXT] = fragment
    walk[row, W_CHAIN_END] = fragment
    walk[row, W_CHAINED] += length
    control[M_CHAINED] += length
    return 1


@kernel
def put_together(data: Array, walk: Array, row: int, fragments: Array, control: Array) -> int:
    """Copy the fragments of a direction to the arena, one behind the other; returns where they begin."""
    offset: int = control[M_ARENA]
    at = offset
    fragment = walk[row, W_CHAIN]
    while fragment >= 0:
        start = fragments[fragment, F_OFFSET]
        length = fragments[fragment, F_LENGTH]
        if length > 0:  # the first and the last byte lie in the data, so all do; the arena is behind all fragments
            data[at] = data[start]
            data[at + length - 1] = data[start + length - 1]
            copy_octets(data, start, data, at, length)
        at += length
        fragment = fragments[fragment, F_NEXT]
    control[M_ARENA] = at
    return offset


@kernel
def begin_frame(walk: Array, row: int, pieces: Array, i: int, at: int) -> None:
    """Note where a frame's first byte was."""
    walk[row, W_POS] = pieces[S_POS, i] + at
    walk[row, W_FIRST_PACKET] = pieces[S_FIRST_PACKET, i]
    walk[row, W_FIRST_TS] = pieces[S_FIRST_TS, i]
    walk[row, W_FIRST_CAPTURE] = pieces[S_FIRST_CAPTURE, i]
    walk[row, W_GOT] = 0
    walk[row, W_MISSING] = 0


@kernel
def next_head(walk: Array, row: int, state: int) -> None:
    """What follows is a head, or the search for one."""
    walk[row, W_STATE] = state
    walk[row, W_HEADS] = 0
    walk[row, W_HEAD] = 0


@kernel
def lose(walk: Array, row: int, fragments: Array, free: Array, control: Array, pos: int, skipped: int) -> None:
    """The next boundary is not known any more; pos is where the frame began whose head is lost, -1 if none is."""
    drop_chain(walk, row, fragments, free, control)
    next_head(walk, row, SEARCH)
    walk[row, W_SKIPPED] = skipped
    walk[row, W_UNTIL] = -1
    walk[row, W_TRIED] = 0
    walk[row, W_LOST] = pos


@kernel
def lose_head(
    pieces: Array, i: int, at: int, conn: Array, walk: Array, row: int, faults: Array, fragments: Array, free: Array,
    control: Array,
) -> None:  # fmt: skip
    """A gap begins where the head of a frame must be."""
    here = pieces[S_POS, i] + at
    number = conn[pieces[S_SLOT, i], C_FRAMES]
    fault(faults, control, pieces, i, HOLE, number, -1, here, pieces[S_LENGTH, i] - at, walk, row)
    heads = walk[row, W_HEADS]
    lose(walk, row, fragments, free, control, here - heads, heads)


@kernel
def pass_over(
    pieces: Array, i: int, at: int, conn: Array, walk: Array, row: int, faults: Array, control: Array
) -> int:  # fmt: skip
    """Skip bytes in front of the next frame, as far as they are known to be none; returns how many."""
    here = pieces[S_POS, i] + at
    take: int = min(pieces[S_LENGTH, i] - at, max(walk[row, W_UNTIL] - here, 0))
    walk[row, W_SKIPPED] += take
    if here + take >= walk[row, W_UNTIL]:
        if walk[row, W_FOUND] == 1:
            skipped = walk[row, W_SKIPPED]
            if skipped > 0:
                number = conn[pieces[S_SLOT, i], C_FRAMES]
                fault(
                    faults, control, pieces, i, SKIPPED, number, -1, here + take - skipped, skipped, walk, row
                )  # fmt: skip
            next_head(walk, row, HEAD)
            walk[row, W_LOST] = -1
        walk[row, W_UNTIL] = -1
        walk[row, W_TRIED] = 0
    return take


class Framing:
    """What a walk remembers between batches: `walk`, unfinished frames, and pieces held back.

    Args:
        room: how many frames and faults a call of the kernel may bring, and fragments there are to begin with.
    """

    def __init__(self, compiled: bool, room: int) -> None:
        self.compiled = compiled
        self.control = np.zeros(M_WIDTH, np.int64)
        self.control[M_REPLAY] = -1
        self.walk = np.zeros((0, W_WIDTH), np.int64)
        self.faults = np.empty((Y_HEIGHT, room), np.int64)
        self.fragments = Pool(F_WIDTH, room)
        self.held = Pool(V_WIDTH, 256)
        self.piece = np.zeros((S_HEIGHT, 1), np.int64)
        self.edges = np.zeros(limits.HELD_PIECES + 2, np.int64)
        self.marks = np.zeros(limits.RESYNC + limits.HELD_PIECES, np.uint8)
        self.trial = np.zeros(16, np.int64)

    @property
    def ranges(self) -> list[Ranges]:
        """Bytes that must outlive their batch."""
        return [
            Ranges(self.fragments.rows, F_USED, F_OFFSET, F_LENGTH, self.fragments.taken),
            Ranges(self.held.rows, V_USED, S_OFFSET, S_LENGTH, self.held.taken),
        ]

    def begin(self, slots: Ints, states: Ints, capacity: int) -> None:
        """Take over connections; `states` are HEAD where a stream is seen from its start, else SEARCH."""
        if len(self.walk) < 2 * capacity:
            self.walk = grown(self.walk, 2 * capacity)
        for side in range(2):
            rows = 2 * slots + side
            self.walk[rows] = 0
            self.walk[rows, W_STATE] = states
            for column in (W_CHAIN, W_CHAIN_END, W_UNTIL, W_LOST, W_QUEUE, W_QUEUE_END):
                self.walk[rows, column] = -1

    def rounds(
        self, pieces: Ints, count: int, buffer: Buffer, walk_pieces: Callable[..., None], conn: Ints, frames: Ints,
        own: tuple[NDArray[Any], ...],
    ) -> Iterator[None]:  # fmt: skip
        """Walk the first `count` pieces; yields whenever there are results to be taken, before others replace them."""
        m = self.control
        m[M_PIECE] = m[M_AT] = 0
        m[M_COUNT] = count
        while m[M_PIECE] < count or m[M_REPLAY] >= 0:
            m[M_FRAMES] = m[M_ASIDE] = m[M_FAULTS] = 0
            m[M_ARENA] = buffer.top
            call(
                walk_pieces, self.compiled, pieces, buffer.data, conn, self.walk, self.fragments.rows,
                self.fragments.free, self.held.rows, self.held.free, self.piece, self.edges, self.marks, self.trial, m,
                frames, self.faults, own,
            )  # fmt: skip
            buffer.top = int(m[M_ARENA])
            yield
            if m[M_PIECE] < count or m[M_REPLAY] >= 0:
                self._make_room(buffer)

    @property
    def found(self) -> tuple[int, int]:
        """How many frames, and spans or parts, the last round brought."""
        return int(self.control[M_FRAMES]), int(self.control[M_ASIDE])

    @property
    def new_faults(self) -> Ints:
        """Faults of the last round: (Y_HEIGHT, n)."""
        return self.faults[:, : self.control[M_FAULTS]]

    def _make_room(self, buffer: Buffer) -> None:
        if not self.control[[M_FRAMES, M_ASIDE, M_FAULTS]].any():  # it stopped for want of room for bytes
            buffer.reserve(MAX_RECORD + limits.PAYLOAD + 64)
        if self.fragments.left == 0 and len(self.fragments) < limits.FRAGMENTS:
            self.fragments.grow(2 * len(self.fragments))
        if self.held.left == 0 and len(self.held) < limits.FRAGMENTS:
            self.held.grow(2 * len(self.held))

    def last_pieces(self, slots: Ints) -> Ints:
        """Pieces without bytes, which say of the connections that hold some back that there are no more."""
        slots = slots[self.walk[2 * slots, W_QUEUE] >= 0]
        pieces = np.zeros((S_HEIGHT, len(slots)), np.int64)
        pieces[S_SLOT] = slots
        return pieces

    def end(self, slots: Ints, head_octets: int, end_octets: int) -> Iterator[Ints]:
        """Forget connections that are over; yields the faults of those that ended inside of a frame."""
        rows = (2 * slots[:, None] + np.arange(2)).ravel()
        state = self.walk[rows, W_STATE]
        head = state == HEAD
        inside = (state == PAYLOAD) | (state == END) | (head & (self.walk[rows, W_HEADS] > 0))
        if inside.any():
            yield self._cuts(rows[inside], head_octets, end_octets)
        for row in rows[self.walk[rows, W_CHAIN] >= 0].tolist():
            call(drop_chain, self.compiled, self.walk, row, self.fragments.rows, self.fragments.free, self.control)

    def _cuts(self, rows: Ints, head_octets: int, end_octets: int) -> Ints:
        walk = self.walk[rows]
        head = walk[:, W_STATE] == HEAD
        faults = np.zeros((Y_HEIGHT, len(rows)), np.int64)
        faults[Y_CODE] = CUT
        faults[Y_SLOT], faults[Y_SIDE] = rows // 2, rows % 2
        faults[Y_NO] = -1
        # without frame ends there are no channels
        faults[Y_CHANNEL] = np.where(head | (end_octets == 0), -1, walk[:, W_CHANNEL])
        faults[Y_POS] = walk[:, W_POS]
        rest = walk[:, W_SIZE] - walk[:, W_GOT] + end_octets
        faults[Y_VALUE] = np.where(head, head_octets - walk[:, W_HEADS], rest)
        for first, last, of in (
            (Y_FIRST_PACKET, Y_PACKET, W_FIRST_PACKET), (Y_FIRST_TS, Y_TS, W_FIRST_TS),
            (Y_FIRST_CAPTURE, Y_CAPTURE, W_FIRST_CAPTURE),
        ):  # fmt: skip
            faults[first] = faults[last] = walk[:, of]
        return faults

    def holding(self, slots: Ints) -> Iterator[tuple[int, int, bool]]:
        """Of these connections those that hold pieces back, the side looked at, and whether no frame of it was seen."""
        for slot in slots[self.walk[2 * slots, W_QUEUE] >= 0].tolist():
            side = int(self.held.rows[self.walk[2 * slot, W_QUEUE], S_SIDE])
            row = self.walk[2 * slot + side]
            yield slot, side, bool(row[W_LARGEST] == 0 and row[W_LOST] < 0)

    def skipped(self, slots: Ints) -> Ints:
        """Bytes passed over in the searches at hand, both directions together."""
        walk = self.walk.reshape(-1, 2, W_WIDTH)[slots]
        skipped: Ints = np.where(walk[:, :, W_STATE] == SEARCH, walk[:, :, W_SKIPPED], 0).sum(1)
        return skipped
