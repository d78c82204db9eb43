"""A content of AMQP 0-9-1, from its method to its last octet: what is kept of it, and the row it becomes (§4.2.6).

Two rows of `contents` a channel: what the client, and what the server, is sending on it. The body is hashed as it
passes.
"""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import hash_begin, hash_end, hash_feed
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.protocols.amqp091.layout import (
    B_BODY,
    B_CAPTURE,
    B_FIRST_CAPTURE,
    B_FIRST_NO,
    B_FIRST_PACKET,
    B_FIRST_TS,
    B_GOT,
    B_HEADER_LENGTH,
    B_HEADER_MISSING,
    B_HEADER_OFFSET,
    B_KEPT,
    B_KIND,
    B_LOST,
    B_METHOD,
    B_METHOD_LENGTH,
    B_METHOD_MISSING,
    B_METHOD_OFFSET,
    B_MISSING,
    B_NO,
    B_NO_ACK,
    B_OVER,
    B_PACKET,
    B_SEQ,
    B_SIZE,
    B_STATE,
    B_TS,
    DOUBTFUL,
    E_BODY,
    E_LENGTH,
    E_OFFSET,
    FOUND,
    G_BODY,
    G_CAPTURE,
    G_CHANNEL,
    G_EPOCH,
    G_FIRST_CAPTURE,
    G_FIRST_NO,
    G_FIRST_PACKET,
    G_FIRST_TS,
    G_HASH,
    G_HEADER_CUT,
    G_HEADER_LENGTH,
    G_HEADER_OFFSET,
    G_KIND,
    G_METHOD,
    G_METHOD_LENGTH,
    G_METHOD_OFFSET,
    G_MISSING,
    G_NO,
    G_NO_ACK,
    G_PACKET,
    G_PARTIAL,
    G_SEQ,
    G_SIDE,
    G_SIZE,
    G_SLOT,
    G_TS,
    KNOWN,
    LOST,
    N_CHANNEL,
    N_CONFIRM,
    N_EPOCH,
    N_NEXT,
    N_SEQ,
    N_SLOT,
    N_STRAYED,
    N_UNSURE,
    PUBLISH,
    Q_BODIES,
    Q_FAULTS,
    Q_FRAME,
    Q_HELD,
    Q_KEEPING,
    Q_KEPT,
    Q_MESSAGES,
    R_CAPTURE,
    R_CHANNEL,
    R_FIRST_CAPTURE,
    R_FIRST_PACKET,
    R_FIRST_TS,
    R_LENGTH,
    R_METHOD,
    R_MISSING,
    R_NO,
    R_OFFSET,
    R_PACKET,
    R_POS,
    R_SIDE,
    R_SLOT,
    R_TS,
    STRAYED,
    UNFINISHED,
    UNKNOWN,
)
from amqpscope.dissector.protocols.framing import (
    LIMIT,
    Y_CAPTURE,
    Y_CHANNEL,
    Y_CODE,
    Y_FIRST_CAPTURE,
    Y_FIRST_PACKET,
    Y_FIRST_TS,
    Y_NO,
    Y_PACKET,
    Y_POS,
    Y_SIDE,
    Y_SLOT,
    Y_TS,
    Y_VALUE,
)
from amqpscope.dissector.tcp.layout import C_GAPPED

HUGE = 1 << 62
"""Announced body sizes from here on are no sizes; they are not computed with, and not shown."""


@kernel
def note_fault(
    faults: Array, control: Array, code: int, value: int, slot: int, side: int, number: int, channel: int, pos: int,
    packet: int, ts: int, capture: int, first_packet: int, first_ts: int, first_capture: int,
) -> None:  # fmt: skip
    """Note a fault. One that finds no room is dropped: the caller leaves enough of it."""
    n = control[Q_FAULTS]
    if n >= faults.shape[1]:
        return
    faults[Y_CODE, n] = code
    faults[Y_SLOT, n] = slot
    faults[Y_SIDE, n] = side
    faults[Y_NO, n] = number
    faults[Y_CHANNEL, n] = channel
    faults[Y_POS, n] = pos
    faults[Y_VALUE, n] = value
    faults[Y_PACKET, n] = packet
    faults[Y_TS, n] = ts
    faults[Y_CAPTURE, n] = capture
    faults[Y_FIRST_PACKET, n] = first_packet
    faults[Y_FIRST_TS, n] = first_ts
    faults[Y_FIRST_CAPTURE, n] = first_capture
    control[Q_FAULTS] = n + 1


@kernel
def content_fault(faults: Array, control: Array, frames: Array, i: int, code: int, value: int) -> None:
    """Note a fault at this frame."""
    note_fault(
        faults, control, code, value, frames[R_SLOT, i], frames[R_SIDE, i], frames[R_NO, i], frames[R_CHANNEL, i],
        frames[R_POS, i], frames[R_PACKET, i], frames[R_TS, i], frames[R_CAPTURE, i], frames[R_FIRST_PACKET, i],
        frames[R_FIRST_TS, i], frames[R_FIRST_CAPTURE, i],
    )  # fmt: skip


@kernel
def unfinished_fault(
    faults: Array, control: Array, channels: Array, row: int, contents: Array, k: int, side: int, code: int, value: int
) -> None:  # fmt: skip
    """Note a fault of a content that is under way, at the last frame it had."""
    note_fault(
        faults, control, code, value, channels[row, N_SLOT], side, contents[k, B_NO], channels[row, N_CHANNEL], -1,
        contents[k, B_PACKET], contents[k, B_TS], contents[k, B_CAPTURE], contents[k, B_FIRST_PACKET],
        contents[k, B_FIRST_TS], contents[k, B_FIRST_CAPTURE],
    )  # fmt: skip


@kernel
def body_octets(
    contents: Array, lanes: Array, waiting: Array, kept: Array, control: Array, k: int, data: Array, offset: int,
    length: int, keep: int,
) -> int:  # fmt: skip
    """Count, hash and perhaps keep bytes of a body; returns how many are not kept any more, where that is too much."""
    if contents[k, B_STATE] != 2 or contents[k, B_LOST] != 0:
        return 0
    room = contents[k, B_SIZE] - contents[k, B_GOT]
    if length > room:
        contents[k, B_OVER] += length - room
        length = room
    contents[k, B_GOT] += length
    if offset < 0:
        contents[k, B_MISSING] += length
        return 0
    hash_feed(lanes, waiting, k, data, offset, length)
    if keep and contents[k, B_BODY] >= 0:
        n = control[Q_KEPT]
        control[Q_KEPT] = n + 1
        kept[E_BODY, n] = contents[k, B_BODY]
        kept[E_OFFSET, n] = offset
        kept[E_LENGTH, n] = length
        if contents[k, B_KEPT] + length > limits.BODY or control[Q_KEEPING] + length > limits.BODIES:
            kept[E_LENGTH, n] = -1
            dropped = contents[k, B_KEPT] + length
            control[Q_KEEPING] -= contents[k, B_KEPT]
            contents[k, B_KEPT] = 0
            contents[k, B_BODY] = -1
            return dropped
        contents[k, B_KEPT] += length
        control[Q_KEEPING] += length
    return 0


@kernel
def evict_contents(contents: Array, frames: Array, faults: Array, control: Array) -> None:
    """Give up methods and headers of contents under way, where too much of them is kept: more than half of it.

    These are all that have half of their mean or more. The fault is noted at the frame that was one too many.
    """
    count = held = 0
    for k in range(contents.shape[0]):
        if contents[k, B_STATE] != 0:
            has = contents[k, B_METHOD_LENGTH] + contents[k, B_HEADER_LENGTH]
            count += 1 if has > 0 else 0
            held += has
    dropped = 0
    for k in range(contents.shape[0]):
        if contents[k, B_STATE] != 0:
            has = contents[k, B_METHOD_LENGTH] + contents[k, B_HEADER_LENGTH]
            if has > 0 and 2 * has * count >= held:
                contents[k, B_METHOD_MISSING] += contents[k, B_METHOD_LENGTH]
                contents[k, B_HEADER_MISSING] += contents[k, B_HEADER_LENGTH]
                contents[k, B_METHOD_LENGTH] = 0
                contents[k, B_HEADER_LENGTH] = 0
                dropped += has
    control[Q_HELD] = held - dropped
    content_fault(faults, control, frames, control[Q_FRAME] - 1, LIMIT, dropped)


@kernel
def desynchronise(
    slot: int, server: int, how: int, conn: Array, channels: Array, contents: Array, first: Array
) -> None:
    """Frames of one direction of a connection are lost, or not taken: its contents may not be joined with others.

    Nor do the client's publishes have numbers then, nor answers their requests, unless it turns out that no frame but
    of bodies was lost.
    """
    if server == 0 and how == LOST:
        conn[slot, C_GAPPED] = 1
    row = first[slot]
    while row >= 0:
        contents[2 * row + server, B_LOST] = how
        strayed = channels[row, N_STRAYED]
        if how == LOST:
            channels[row, N_STRAYED] = strayed | (1 << server if (strayed >> server) & 1 == 0 else STRAYED)
        elif how == FOUND:
            channels[row, N_STRAYED] = strayed & ~(1 << server)
        if server == 0 and how == LOST:
            channels[row, N_UNSURE] = DOUBTFUL if channels[row, N_UNSURE] == KNOWN else UNKNOWN
        elif server == 0 and how == FOUND and channels[row, N_UNSURE] == DOUBTFUL:
            channels[row, N_UNSURE] = KNOWN
        row = channels[row, N_NEXT]


@kernel
def touch(frames: Array, i: int, contents: Array, k: int) -> None:
    """Note the last frame of a content so far."""
    contents[k, B_NO] = frames[R_NO, i]
    contents[k, B_PACKET] = frames[R_PACKET, i]
    contents[k, B_TS] = frames[R_TS, i]
    contents[k, B_CAPTURE] = frames[R_CAPTURE, i]


@kernel
def finish_message(
    channels: Array, row: int, contents: Array, k: int, side: int, lanes: Array, waiting: Array, hashes: Array,
    messages: Array, control: Array,
) -> None:  # fmt: skip
    """Write the row of a message that is complete, or given up."""
    n = control[Q_MESSAGES]
    messages[G_SLOT, n] = channels[row, N_SLOT]
    messages[G_SIDE, n] = side
    messages[G_KIND, n] = contents[k, B_KIND]
    messages[G_CHANNEL, n] = channels[row, N_CHANNEL]
    messages[G_EPOCH, n] = channels[row, N_EPOCH]
    messages[G_NO, n] = contents[k, B_NO]
    messages[G_FIRST_NO, n] = contents[k, B_FIRST_NO]
    messages[G_METHOD, n] = contents[k, B_METHOD]
    messages[G_METHOD_OFFSET, n] = contents[k, B_METHOD_OFFSET]
    messages[G_METHOD_LENGTH, n] = contents[k, B_METHOD_LENGTH]
    messages[G_HEADER_OFFSET, n] = contents[k, B_HEADER_OFFSET]
    messages[G_HEADER_LENGTH, n] = contents[k, B_HEADER_LENGTH]
    messages[G_HEADER_CUT, n] = 1 if contents[k, B_HEADER_MISSING] > 0 or contents[k, B_STATE] == 1 else 0
    messages[G_SIZE, n] = contents[k, B_SIZE] if contents[k, B_STATE] == 2 and contents[k, B_SIZE] < HUGE else -1
    lost = contents[k, B_MISSING] + contents[k, B_METHOD_MISSING] + contents[k, B_HEADER_MISSING]
    short = contents[k, B_SIZE] - contents[k, B_GOT] if contents[k, B_STATE] == 2 else 0
    messages[G_MISSING, n] = lost + short
    whole = contents[k, B_STATE] == 2 and contents[k, B_LOST] == 0
    ended = whole and short == 0
    messages[G_PARTIAL, n] = UNFINISHED if not ended else int(lost > 0)
    if whole and contents[k, B_MISSING] == 0 and short == 0 and contents[k, B_OVER] == 0:
        hashes[n] = hash_end(lanes, waiting, k)
        messages[G_HASH, n] = 1
    else:
        messages[G_HASH, n] = 0
    messages[G_SEQ, n] = contents[k, B_SEQ]
    messages[G_NO_ACK, n] = contents[k, B_NO_ACK]
    messages[G_PACKET, n] = contents[k, B_PACKET]
    messages[G_TS, n] = contents[k, B_TS]
    messages[G_CAPTURE, n] = contents[k, B_CAPTURE]
    messages[G_FIRST_PACKET, n] = contents[k, B_FIRST_PACKET]
    messages[G_FIRST_TS, n] = contents[k, B_FIRST_TS]
    messages[G_FIRST_CAPTURE, n] = contents[k, B_FIRST_CAPTURE]
    messages[G_BODY, n] = contents[k, B_BODY]
    control[Q_MESSAGES] = n + 1
    control[Q_HELD] -= contents[k, B_METHOD_LENGTH] + contents[k, B_HEADER_LENGTH]
    control[Q_KEEPING] -= contents[k, B_KEPT]
    contents[k, B_KIND] = 0
    contents[k, B_STATE] = 0


@kernel
def begin_content(
    frames: Array, i: int, role: int, no_ack: int, channels: Array, row: int, contents: Array, k: int, lanes: Array,
    control: Array, keep: int,
) -> None:  # fmt: skip
    """Remember the method of a content."""
    contents[k, B_KIND] = role
    contents[k, B_STATE] = 1
    contents[k, B_METHOD] = frames[R_METHOD, i]
    contents[k, B_METHOD_OFFSET] = frames[R_OFFSET, i]
    contents[k, B_METHOD_LENGTH] = frames[R_LENGTH, i]
    contents[k, B_METHOD_MISSING] = frames[R_MISSING, i]
    contents[k, B_HEADER_OFFSET] = -1
    contents[k, B_HEADER_LENGTH] = 0
    contents[k, B_HEADER_MISSING] = 0
    contents[k, B_SIZE] = 0
    contents[k, B_GOT] = 0
    contents[k, B_MISSING] = 0
    contents[k, B_SEQ] = -1
    if role == PUBLISH:
        channels[row, N_SEQ] += channels[row, N_CONFIRM]
        if channels[row, N_UNSURE] != KNOWN:
            contents[k, B_SEQ] = -2
        elif channels[row, N_CONFIRM]:
            contents[k, B_SEQ] = channels[row, N_SEQ]
    contents[k, B_NO_ACK] = no_ack
    contents[k, B_FIRST_NO] = frames[R_NO, i]
    contents[k, B_FIRST_PACKET] = frames[R_FIRST_PACKET, i]
    contents[k, B_FIRST_TS] = frames[R_FIRST_TS, i]
    contents[k, B_FIRST_CAPTURE] = frames[R_FIRST_CAPTURE, i]
    contents[k, B_OVER] = 0
    contents[k, B_LOST] = 0
    touch(frames, i, contents, k)
    contents[k, B_KEPT] = 0
    contents[k, B_BODY] = -1
    if keep:
        contents[k, B_BODY] = control[Q_BODIES]
        control[Q_BODIES] += 1
    hash_begin(lanes, k)
    control[Q_HELD] += frames[R_LENGTH, i]
