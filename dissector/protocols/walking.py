"""The walk over stream chunks, and those that are held back while a direction is searched for the next frame."""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.pool import give_row, take_row
from amqpscope.dissector.protocols.framing import (
    M_AT,
    M_COUNT,
    M_HELD,
    M_PIECE,
    M_REPLAY,
    SEARCH,
    V_NEXT,
    V_USED,
    W_FOUND,
    W_HOLES,
    W_LAST,
    W_OCTETS,
    W_OVER,
    W_QUEUE,
    W_QUEUE_END,
    W_QUEUED,
    W_STATE,
    W_TAKEN,
    W_UNTIL,
)
from amqpscope.dissector.protocols.resync import NO_ROOM, WAIT, Own, search
from amqpscope.dissector.tcp.layout import S_HEIGHT, S_LENGTH, S_OFFSET, S_POS, S_SIDE, S_SLOT


@kernel
def walk_piece(
    pieces: Array, i: int, at: int, data: Array, conn: Array, walk: Array, fragments: Array, free: Array,
    control: Array, frames: Array, faults: Array, own: Own,
) -> int:  # fmt: skip
    """Walk a piece from byte `at` on.

    Returns: how many of its bytes are done with: all, or less where a search must go before; the complement of that
    when there is no more room.
    """
    raise NotImplementedError


@kernel
def walk_pieces(
    pieces: Array, data: Array, conn: Array, walk: Array, fragments: Array, free: Array, held: Array, free_held: Array,
    piece: Array, edges: Array, marks: Array, trial: Array, control: Array, frames: Array, faults: Array, own: Own,
) -> None:  # fmt: skip
    """Walk from the cursor on until the pieces, or the room for results, end. One without bytes ends all waiting."""
    i = control[M_PIECE]
    at = control[M_AT]
    while True:
        if control[M_REPLAY] >= 0:
            done = replay(
                control[M_REPLAY], data, conn, walk, fragments, free, held, free_held, piece, edges, marks, trial,
                control, frames, faults, own,
            )  # fmt: skip
            if done == 0:
                break
            control[M_REPLAY] = -1
        if i >= control[M_COUNT]:
            break
        slot = pieces[S_SLOT, i]
        length = pieces[S_LENGTH, i]
        if length == 0:
            walk[2 * slot, W_OVER] = 1
            control[M_REPLAY] = slot
            i += 1
            continue
        if walk[2 * slot, W_QUEUE] < 0:
            at = walk_piece(pieces, i, at, data, conn, walk, fragments, free, control, frames, faults, own)
            if at < 0:
                at = -1 - at
                break
            if at == length:
                i += 1
                at = 0
                continue
        if free_held[0] == 0:
            if held.shape[0] < limits.FRAGMENTS:
                break
            if walk[2 * slot, W_QUEUE] >= 0:
                walk[2 * slot, W_OVER] = 1
                control[M_REPLAY] = slot
            else:  # nothing can be held back, so nothing is looked at
                row = 2 * slot + pieces[S_SIDE, i]
                walk[row, W_UNTIL] = pieces[S_POS, i] + length
                walk[row, W_FOUND] = 0
            continue
        hold(pieces, i, at, walk, held, free_held, control)
        control[M_REPLAY] = slot
        i += 1
        at = 0
    control[M_PIECE] = i
    control[M_AT] = at


@kernel
def hold(pieces: Array, i: int, at: int, walk: Array, held: Array, free: Array, control: Array) -> None:
    """Put a piece behind those of its connection that are held back; `at` of its bytes are done with."""
    queue = 2 * pieces[S_SLOT, i]
    row = queue + pieces[S_SIDE, i]
    h = take_row(free)
    for k in range(S_HEIGHT):
        held[h, k] = pieces[k, i]
    held[h, V_NEXT] = -1
    held[h, V_USED] = 1
    if walk[queue, W_QUEUE] < 0:
        walk[queue, W_QUEUE] = h
        walk[queue, W_TAKEN] = at
    else:
        held[walk[queue, W_QUEUE_END], V_NEXT] = h
    walk[queue, W_QUEUE_END] = h
    walk[queue, W_QUEUED] += 1
    if pieces[S_OFFSET, i] >= 0:
        walk[row, W_OCTETS] += pieces[S_LENGTH, i]
        walk[row, W_LAST] = pieces[S_LENGTH, i]
        control[M_HELD] += pieces[S_LENGTH, i]
    else:
        walk[row, W_HOLES] += 1


@kernel
def release_first(queue: int, walk: Array, held: Array, free: Array, control: Array) -> None:
    """Give back the first piece that is held back."""
    h = walk[queue, W_QUEUE]
    row = queue + held[h, S_SIDE]
    if held[h, S_OFFSET] >= 0:
        walk[row, W_OCTETS] -= held[h, S_LENGTH]
        control[M_HELD] -= held[h, S_LENGTH]
    else:
        walk[row, W_HOLES] -= 1
    walk[queue, W_QUEUE] = held[h, V_NEXT]
    walk[queue, W_QUEUED] -= 1
    walk[queue, W_TAKEN] = 0
    held[h, V_USED] = 0
    give_row(free, h)


@kernel
def replay(
    slot: int, data: Array, conn: Array, walk: Array, fragments: Array, free: Array, held: Array, free_held: Array,
    piece: Array, edges: Array, marks: Array, trial: Array, control: Array, frames: Array, faults: Array, own: Own,
) -> int:  # fmt: skip
    """Walk the pieces that a connection holds back, until a search must wait for more; 0 when there is no room."""
    queue = 2 * slot
    while walk[queue, W_QUEUE] >= 0:
        h = walk[queue, W_QUEUE]
        row = queue + held[h, S_SIDE]
        if walk[row, W_STATE] == SEARCH and walk[row, W_UNTIL] < 0 and held[h, S_OFFSET] >= 0:
            found = search(data, conn, walk, row, held, edges, marks, trial, control, own)
            if found == WAIT:
                return 1
            if found == NO_ROOM:
                return 0
        for k in range(S_HEIGHT):
            piece[k, 0] = held[h, k]
        at = walk_piece(
            piece, 0, walk[queue, W_TAKEN], data, conn, walk, fragments, free, control, frames, faults, own
        )  # fmt: skip
        if at < 0:
            walk[queue, W_TAKEN] = -1 - at
            return 0
        walk[queue, W_TAKEN] = at
        if at == held[h, S_LENGTH]:
            release_first(queue, walk, held, free_held, control)
    walk[queue, W_OVER] = 0
    return 1
