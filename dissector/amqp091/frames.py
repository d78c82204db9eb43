"""AMQP 0-9-1 framing: pieces of streams to frames (specification §2.3.5, §4.2.3).

The walk is a state machine per direction that takes pieces as they come and remembers what a frame lacks.
A payload that lies in one piece is used where it is; one that does not is put together in the arena behind
the batch's octets. Bodies are never put together: their octets leave as spans, in order.
"""

from dissector import limits
from dissector.amqp091.layout import (
    BODY,
    END,
    END_WRONG,
    F_LENGTH,
    F_NEXT,
    F_OFFSET,
    F_USED,
    FRAME_END,
    HEAD,
    HEADER,
    HEADER_UNKNOWN,
    HEARTBEAT,
    HOLE,
    IDS,
    LIMIT,
    M_ARENA,
    M_AT,
    M_CHAINED,
    M_COUNT,
    M_FAULTS,
    M_FRAMES,
    M_PIECE,
    M_SPANS,
    METHOD,
    METHOD_UNKNOWN,
    OVERHEAD,
    PAYLOAD,
    PROTOCOL_HEADER,
    R_CAPTURE,
    R_CHANNEL,
    R_EPOCH,
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
    R_SIZE,
    R_SLOT,
    R_TS,
    R_TYPE,
    SEARCH,
    SKIPPED,
    TOO_LARGE,
    TYPE_UNKNOWN,
    W_CHAIN,
    W_CHAIN_END,
    W_CHAINED,
    W_CHANNEL,
    W_FIRST_CAPTURE,
    W_FIRST_PACKET,
    W_FIRST_TS,
    W_GOT,
    W_HEAD,
    W_HEADS,
    W_LAST,
    W_MISSING,
    W_POS,
    W_SIZE,
    W_SKIPPED,
    W_STATE,
    W_TYPE,
    X_BEFORE,
    X_CHANNEL,
    X_LENGTH,
    X_OFFSET,
    X_SIDE,
    X_SLOT,
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
from dissector.arrays import Array
from dissector.kernel import i64, kernel
from dissector.pool import give_row, take_row
from dissector.tcp.layout import (
    C_FRAMES,
    S_CAPTURE,
    S_FIRST_CAPTURE,
    S_FIRST_PACKET,
    S_FIRST_TS,
    S_LENGTH,
    S_OFFSET,
    S_PACKET,
    S_POS,
    S_SIDE,
    S_SLOT,
    S_TS,
)

PROTOCOL = 0x414D5150
"""`AMQP`, with which a protocol header begins (§4.2.2)."""


@kernel
def u16(data: Array, p: int) -> int:
    """Two octets, big-endian."""
    return (i64(data[p]) << 8) | i64(data[p + 1])


@kernel
def u32(data: Array, p: int) -> int:
    """Four octets, big-endian."""
    return (u16(data, p) << 16) | u16(data, p + 2)


@kernel
def whole_frames(data: Array, p: int, end: int, methods: Array) -> int:
    """How many whole plausible frames follow each other from p; -1 when one of them is none.

    A count of 1000 means that the last one ends exactly at `end`.
    """
    count = 0
    while p < end:
        kind = i64(data[p])
        if kind not in (METHOD, HEADER, BODY, HEARTBEAT):
            return -1
        if end - p < 7:
            return count
        size = u32(data, p + 3)
        if size > limits.FRAME:
            return -1
        if kind == HEARTBEAT and (size != 0 or u16(data, p + 1) != 0):
            return -1
        if kind == METHOD:
            if size < 4:
                return -1
            if end - p >= 11:
                class_id = u16(data, p + 7)
                method_id = u16(data, p + 9)
                if class_id >= IDS or method_id >= IDS or methods[class_id * IDS + method_id] < 0:
                    return -1
        if kind == HEADER and (size < 14 or (end - p >= 11 and u16(data, p + 9) != 0)):
            return -1
        if p + 7 + size >= end:
            return count
        if data[p + 7 + size] != FRAME_END:
            return -1
        p += size + OVERHEAD
        count += 1
        if count >= 8:
            return count
    return 1000 + count


@kernel
def boundary(data: Array, start: int, end: int, last: int, methods: Array) -> int:
    """Where the first frame begins in these octets, or -1.

    At the start of a piece one whole frame is enough, for senders like to begin segments with a frame; elsewhere
    a frame end must stand before it, and two whole frames or one that fills the rest must follow.
    """
    if whole_frames(data, start, end, methods) >= 1:
        return start
    if last == FRAME_END and whole_frames(data, start, end, methods) >= 0 and end - start >= 7:
        return start
    for p in range(start + 1, end):
        if data[p - 1] == FRAME_END and whole_frames(data, p, end, methods) >= 2:
            return p
    return -1


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
    """Keep octets of an unfinished payload; 0 when a limit forbids it."""
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
def finish_frame(
    data: Array, offset: int, pieces: Array, i: int, walk: Array, row: int, conn: Array, frames: Array, faults: Array,
    fragments: Array, free: Array, control: Array, methods: Array,
) -> None:  # fmt: skip
    """Write the row of the frame at hand; offset is where its payload lies, -1 when it is in fragments."""
    slot = pieces[S_SLOT, i]
    n = control[M_FRAMES]
    number = conn[slot, C_FRAMES]
    conn[slot, C_FRAMES] = number + 1
    kind = walk[row, W_TYPE]
    length = walk[row, W_SIZE] if offset >= 0 else walk[row, W_CHAINED]
    if offset < 0 and length > 0:
        offset = control[M_ARENA]
        at = offset
        fragment = walk[row, W_CHAIN]
        while fragment >= 0:
            start = fragments[fragment, F_OFFSET]
            for k in range(fragments[fragment, F_LENGTH]):
                data[at + k] = data[start + k]
            at += fragments[fragment, F_LENGTH]
            fragment = fragments[fragment, F_NEXT]
        control[M_ARENA] = at
    frames[R_SLOT, n] = slot
    frames[R_SIDE, n] = pieces[S_SIDE, i]
    frames[R_NO, n] = number
    frames[R_TYPE, n] = kind
    frames[R_CHANNEL, n] = walk[row, W_CHANNEL]
    frames[R_SIZE, n] = walk[row, W_SIZE] + OVERHEAD if kind != PROTOCOL_HEADER else OVERHEAD
    frames[R_OFFSET, n] = offset
    frames[R_LENGTH, n] = length
    frames[R_MISSING, n] = walk[row, W_MISSING]
    frames[R_METHOD, n] = -1
    frames[R_PACKET, n] = pieces[S_PACKET, i]
    frames[R_TS, n] = pieces[S_TS, i]
    frames[R_CAPTURE, n] = pieces[S_CAPTURE, i]
    frames[R_FIRST_PACKET, n] = walk[row, W_FIRST_PACKET]
    frames[R_FIRST_TS, n] = walk[row, W_FIRST_TS]
    frames[R_FIRST_CAPTURE, n] = walk[row, W_FIRST_CAPTURE]
    frames[R_EPOCH, n] = 0
    frames[R_POS, n] = walk[row, W_POS]
    if kind == METHOD and length >= 4:
        class_id = u16(data, offset)
        method_id = u16(data, offset + 2)
        method = -2
        if class_id < IDS and method_id < IDS and methods[class_id * IDS + method_id] >= 0:
            method = methods[class_id * IDS + method_id]
        frames[R_METHOD, n] = method
        if method == -2:
            fault(
                faults, control, pieces, i, METHOD_UNKNOWN, number, walk[row, W_CHANNEL], walk[row, W_POS],
                class_id << 16 | method_id, walk, row,
            )  # fmt: skip
    control[M_FRAMES] = n + 1
    drop_chain(walk, row, fragments, free, control)
    walk[row, W_STATE] = HEAD
    walk[row, W_HEADS] = 0
    walk[row, W_HEAD] = 0


@kernel
def begin_frame(walk: Array, row: int, pieces: Array, i: int, at: int) -> None:
    """Note where a frame's first octet was."""
    walk[row, W_POS] = pieces[S_POS, i] + at
    walk[row, W_FIRST_PACKET] = pieces[S_FIRST_PACKET, i]
    walk[row, W_FIRST_TS] = pieces[S_FIRST_TS, i]
    walk[row, W_FIRST_CAPTURE] = pieces[S_FIRST_CAPTURE, i]
    walk[row, W_GOT] = 0
    walk[row, W_MISSING] = 0


@kernel
def lose(walk: Array, row: int, fragments: Array, free: Array, control: Array) -> None:
    """The next boundary is not known any more."""
    drop_chain(walk, row, fragments, free, control)
    walk[row, W_STATE] = SEARCH
    walk[row, W_HEADS] = 0
    walk[row, W_HEAD] = 0
    walk[row, W_SKIPPED] = 0
    walk[row, W_LAST] = -1


@kernel
def cross_hole(
    pieces: Array, i: int, at: int, walk: Array, row: int, conn: Array, data: Array, frames: Array, spans: Array,
    faults: Array, fragments: Array, free: Array, control: Array, methods: Array,
) -> int:  # fmt: skip
    """Take octets of a hole; return how many. The length of a payload is known, so the walk goes on behind it."""
    left = pieces[S_LENGTH, i] - at
    state = walk[row, W_STATE]
    if state == PAYLOAD:
        take = min(left, walk[row, W_SIZE] - walk[row, W_GOT])
        if walk[row, W_TYPE] == BODY:
            span(spans, control, pieces, i, walk[row, W_CHANNEL], -1, take)
        walk[row, W_GOT] += take
        walk[row, W_MISSING] += take
        if walk[row, W_GOT] == walk[row, W_SIZE]:
            walk[row, W_STATE] = END
        return take
    if state == END:
        walk[row, W_MISSING] += 1
        finish_frame(
            data, -1, pieces, i, walk, row, conn, frames, faults, fragments, free, control, methods
        )  # fmt: skip
        return 1
    if state == HEAD:
        number = conn[pieces[S_SLOT, i], C_FRAMES]
        fault(faults, control, pieces, i, HOLE, number, -1, pieces[S_POS, i] + at, left, walk, row)
        skipped = walk[row, W_HEADS]
        lose(walk, row, fragments, free, control)
        walk[row, W_SKIPPED] = skipped
    walk[row, W_LAST] = -1
    return left


@kernel
def span(spans: Array, control: Array, pieces: Array, i: int, channel: int, offset: int, length: int) -> None:
    """Hand on octets of a body frame that is not whole in one piece."""
    n = control[M_SPANS]
    spans[X_BEFORE, n] = control[M_FRAMES]
    spans[X_SLOT, n] = pieces[S_SLOT, i]
    spans[X_SIDE, n] = pieces[S_SIDE, i]
    spans[X_CHANNEL, n] = channel
    spans[X_OFFSET, n] = offset
    spans[X_LENGTH, n] = length
    control[M_SPANS] = n + 1


@kernel
def walk_pieces(
    pieces: Array, data: Array, conn: Array, walk: Array, frames: Array, spans: Array, faults: Array,
    fragments: Array, free: Array, control: Array, methods: Array,
) -> None:  # fmt: skip
    """Walk from the cursor on until the pieces, or the room for results, end."""
    count = control[M_COUNT]
    i = control[M_PIECE]
    at = control[M_AT]
    while i < count:
        slot = pieces[S_SLOT, i]
        row = 2 * slot + pieces[S_SIDE, i]
        length = pieces[S_LENGTH, i]
        base = pieces[S_OFFSET, i]
        while at < length:
            if (
                control[M_FRAMES] + 1 > frames.shape[1]
                or control[M_SPANS] + 1 > spans.shape[1]
                or control[M_FAULTS] + 4 > faults.shape[1]
                or (free[0] == 0 and fragments.shape[0] < limits.FRAGMENTS)
                or control[M_ARENA] + walk[row, W_CHAINED] + length + 8 > len(data)
            ):
                control[M_PIECE] = i
                control[M_AT] = at
                return
            if base < 0:
                at += cross_hole(
                    pieces, i, at, walk, row, conn, data, frames, spans, faults, fragments, free, control, methods
                )  # fmt: skip
                continue
            state = walk[row, W_STATE]
            p = base + at
            end = base + length
            if state == HEAD:
                if walk[row, W_HEADS] == 0:
                    begin_frame(walk, row, pieces, i, at)
                    if end - p >= 8 and data[p] < 9:
                        # Most frames lie whole in one piece.
                        kind = i64(data[p])
                        size = u32(data, p + 3)
                        whole = kind in (METHOD, HEADER, BODY, HEARTBEAT) and p + size + 7 < end
                        if whole and data[p + 7 + size] == FRAME_END:
                            walk[row, W_TYPE] = kind
                            walk[row, W_CHANNEL] = u16(data, p + 1)
                            walk[row, W_SIZE] = size
                            finish_frame(
                                data, p + 7, pieces, i, walk, row, conn, frames, faults, fragments, free, control,
                                methods,
                            )  # fmt: skip
                            at += size + OVERHEAD
                            continue
                if walk[row, W_HEADS] == 0:
                    walk[row, W_TYPE] = PROTOCOL_HEADER if data[p] == PROTOCOL_HEADER else 0
                wanted = 8 if walk[row, W_TYPE] == PROTOCOL_HEADER else 7
                while walk[row, W_HEADS] < wanted and p < end:
                    walk[row, W_HEAD] = (walk[row, W_HEAD] & 0x7FFFFFFFFFFFFF) << 8 | i64(data[p])
                    walk[row, W_HEADS] += 1
                    p += 1
                at = p - base
                if walk[row, W_HEADS] < wanted:
                    continue
                head = walk[row, W_HEAD]
                kind = head >> 48
                size = head & 0xFFFFFFFF
                if wanted == 8:
                    walk[row, W_CHANNEL] = 0
                    walk[row, W_SIZE] = 8
                    if head >> 32 != PROTOCOL:
                        fault(
                            faults, control, pieces, i, HEADER_UNKNOWN, conn[slot, C_FRAMES], -1, walk[row, W_POS],
                            head >> 32, walk, row,
                        )  # fmt: skip
                        lose(walk, row, fragments, free, control)
                        walk[row, W_SKIPPED] = 8
                        continue
                    # The header is payload and head in one: hand it on through the arena.
                    top = control[M_ARENA]
                    for k in range(8):
                        data[top + k] = (head >> (56 - 8 * k)) & 0xFF
                    control[M_ARENA] = top + 8
                    finish_frame(
                        data, top, pieces, i, walk, row, conn, frames, faults, fragments, free, control, methods
                    )  # fmt: skip
                    continue
                if kind not in (METHOD, HEADER, BODY, HEARTBEAT) or size > limits.FRAME:
                    code = TOO_LARGE if kind in (METHOD, HEADER, BODY, HEARTBEAT) else TYPE_UNKNOWN
                    fault(
                        faults, control, pieces, i, code, conn[slot, C_FRAMES], (head >> 32) & 0xFFFF,
                        walk[row, W_POS], size if code == TOO_LARGE else kind, walk, row,
                    )  # fmt: skip
                    lose(walk, row, fragments, free, control)
                    walk[row, W_SKIPPED] = 7
                    continue
                walk[row, W_TYPE] = kind
                walk[row, W_CHANNEL] = (head >> 32) & 0xFFFF
                walk[row, W_SIZE] = size
                walk[row, W_STATE] = PAYLOAD if size > 0 else END
            elif state == PAYLOAD:
                take = min(end - p, walk[row, W_SIZE] - walk[row, W_GOT])
                if walk[row, W_TYPE] == BODY:
                    span(spans, control, pieces, i, walk[row, W_CHANNEL], p, take)
                elif (
                    walk[row, W_MISSING] == 0
                    and walk[row, W_CHAINED] == walk[row, W_GOT]
                    and chain(walk, row, fragments, free, control, p, take) == 0
                ):
                    fault(
                        faults, control, pieces, i, LIMIT, conn[slot, C_FRAMES], walk[row, W_CHANNEL],
                        walk[row, W_POS], walk[row, W_SIZE], walk, row,
                    )  # fmt: skip
                    drop_chain(walk, row, fragments, free, control)
                walk[row, W_GOT] += take
                at += take
                if walk[row, W_GOT] == walk[row, W_SIZE]:
                    walk[row, W_STATE] = END
            elif state == END:
                right = data[p] == FRAME_END
                if not right:
                    fault(
                        faults, control, pieces, i, END_WRONG, conn[slot, C_FRAMES], walk[row, W_CHANNEL],
                        pieces[S_POS, i] + at, i64(data[p]), walk, row,
                    )  # fmt: skip
                at += 1
                finish_frame(
                    data, -1, pieces, i, walk, row, conn, frames, faults, fragments, free, control, methods
                )  # fmt: skip
                if not right:
                    lose(walk, row, fragments, free, control)
            elif state == SEARCH:
                if pieces[S_POS, i] + at == 0 and end - p >= 8 and u32(data, p) == PROTOCOL:
                    found = p  # the beginning of a connection whose SYN was not captured
                else:
                    found = boundary(data, p, end, walk[row, W_LAST], methods)
                if found < 0:
                    walk[row, W_SKIPPED] += end - p
                    walk[row, W_LAST] = i64(data[end - 1])
                    at = length
                else:
                    at = found - base
                    skipped = walk[row, W_SKIPPED] + found - p
                    if skipped > 0:
                        fault(
                            faults, control, pieces, i, SKIPPED, conn[slot, C_FRAMES], -1,
                            pieces[S_POS, i] + at - skipped, skipped, walk, row,
                        )  # fmt: skip
                    walk[row, W_STATE] = HEAD
                    walk[row, W_HEADS] = 0
                    walk[row, W_HEAD] = 0
            else:
                at = length
        i += 1
        at = 0
    control[M_PIECE] = i
    control[M_AT] = 0
