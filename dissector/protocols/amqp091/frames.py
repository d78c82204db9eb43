"""AMQP 0-9-1 framing: pieces of streams to frames (specification §2.3.5, §4.2.3).

Bodies are never put together: bytes of those that do not lie whole in one piece leave as spans, in order.
"""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import i64, kernel, specialize
from amqpscope.dissector.protocols.amqp091 import boundary
from amqpscope.dissector.protocols.amqp091.boundary import expected_boundary, may_begin, next_frame, sender
from amqpscope.dissector.protocols.amqp091.layout import (
    A_BODY,
    A_CHANNEL,
    A_PASSED,
    BODY,
    END_WRONG,
    FOUND,
    FRAME_END,
    HEADER,
    HEADER_UNKNOWN,
    HEARTBEAT,
    LOST,
    LOST_WAY,
    METHOD,
    METHOD_UNKNOWN,
    NOT_TAKEN,
    OVERHEAD,
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
    X_BEFORE,
    X_CHANNEL,
    X_LENGTH,
    X_OFFSET,
    X_SIDE,
    X_SLOT,
    method_index,
)
from amqpscope.dissector.protocols.framing import (
    END,
    HEAD,
    LIMIT,
    M_ARENA,
    M_ASIDE,
    M_FAULTS,
    M_FRAMES,
    PAYLOAD,
    TOO_LARGE,
    TYPE_UNKNOWN,
    W_CHAINED,
    W_CHANNEL,
    W_FIRST_CAPTURE,
    W_FIRST_PACKET,
    W_FIRST_TS,
    W_FOUND,
    W_GOT,
    W_HEAD,
    W_HEADS,
    W_LARGEST,
    W_MISSING,
    W_POS,
    W_REST,
    W_SIZE,
    W_STATE,
    W_TYPE,
    W_UNTIL,
    begin_frame,
    chain,
    drop_chain,
    fault,
    lose,
    lose_head,
    next_head,
    pass_over,
    put_together,
    u16,
    u32,
)
from amqpscope.dissector.protocols.resync import Own, choose, follow, search, whole
from amqpscope.dissector.protocols.walking import replay
from amqpscope.dissector.protocols.walking import walk_pieces as any_walk_pieces
from amqpscope.dissector.tcp.layout import (
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
def put_frame(
    pieces: Array, i: int, conn: Array, frames: Array, control: Array, kind: int, channel: int, octets: int,
    offset: int, length: int, method: int,
) -> int:  # fmt: skip
    """Write what all rows of frames have; returns which row it is."""
    n: int = control[M_FRAMES]
    slot = pieces[S_SLOT, i]
    frames[R_SLOT, n] = slot
    frames[R_SIDE, n] = pieces[S_SIDE, i]
    frames[R_NO, n] = conn[slot, C_FRAMES]
    frames[R_TYPE, n] = kind
    frames[R_CHANNEL, n] = channel
    frames[R_SIZE, n] = octets
    frames[R_OFFSET, n] = offset
    frames[R_LENGTH, n] = length
    frames[R_METHOD, n] = method
    frames[R_PACKET, n] = pieces[S_PACKET, i]
    frames[R_TS, n] = pieces[S_TS, i]
    frames[R_CAPTURE, n] = pieces[S_CAPTURE, i]
    frames[R_EPOCH, n] = 0
    conn[slot, C_FRAMES] += 1
    control[M_FRAMES] = n + 1
    return n


@kernel
def expect_bodies(
    data: Array, offset: int, length: int, kind: int, channel: int, size: int, walk: Array, row: int, directions: Array
) -> None:  # fmt: skip
    """Note how much of a content is still to come, by which a search behind a gap knows what is a body."""
    if kind == HEADER:
        directions[row, A_CHANNEL] = channel
        walk[row, W_REST] = u32(data, offset + 8) if length >= 12 and u32(data, offset + 4) == 0 else 0
        directions[row, A_BODY] = 0
    elif kind == BODY and channel == directions[row, A_CHANNEL]:
        rest = walk[row, W_REST] - size
        walk[row, W_REST] = rest
        if rest > 0:
            directions[row, A_BODY] = size


@kernel
def finish_frame(
    data: Array, pieces: Array, i: int, walk: Array, row: int, conn: Array, frames: Array, faults: Array,
    fragments: Array, free: Array, control: Array, methods: Array, directions: Array, offset: int,
) -> None:  # fmt: skip
    """Write the row of the frame at hand; offset is where its payload lies, -1 when it is in fragments."""
    number = conn[pieces[S_SLOT, i], C_FRAMES]
    kind, channel, size = walk[row, W_TYPE], walk[row, W_CHANNEL], walk[row, W_SIZE]
    length = size if offset >= 0 else walk[row, W_CHAINED]
    if offset < 0 and length > 0:
        offset = put_together(data, walk, row, fragments, control)
    octets = size + OVERHEAD if kind != PROTOCOL_HEADER else OVERHEAD
    walk[row, W_LARGEST] = max(walk[row, W_LARGEST], octets)
    method = -1
    if kind == METHOD and length >= 4:
        method = method_index(methods, u16(data, offset), u16(data, offset + 2))
        if method < 0:
            method = -2
            fault(
                faults, control, pieces, i, METHOD_UNKNOWN, number, channel, walk[row, W_POS], u32(data, offset),
                walk, row,
            )  # fmt: skip
    n = put_frame(pieces, i, conn, frames, control, kind, channel, octets, offset, length, method)
    frames[R_MISSING, n] = walk[row, W_MISSING]
    frames[R_FIRST_PACKET, n] = walk[row, W_FIRST_PACKET]
    frames[R_FIRST_TS, n] = walk[row, W_FIRST_TS]
    frames[R_FIRST_CAPTURE, n] = walk[row, W_FIRST_CAPTURE]
    frames[R_POS, n] = walk[row, W_POS]
    expect_bodies(data, offset, length, kind, channel, size, walk, row, directions)
    drop_chain(walk, row, fragments, free, control)
    next_head(walk, row, HEAD)


@kernel
def take_whole(
    data: Array, pieces: Array, i: int, at: int, walk: Array, row: int, conn: Array, frames: Array, control: Array,
    methods: Array, directions: Array,
) -> int:  # fmt: skip
    """Take a frame that begins here if it lies whole in the piece, as most do; returns its bytes, else 0."""
    p = pieces[S_OFFSET, i] + at
    end = pieces[S_OFFSET, i] + pieces[S_LENGTH, i]
    if end - p < OVERHEAD or data[p] > HEARTBEAT:
        return 0
    kind = i64(data[p])
    size = u32(data, p + 3)
    if kind not in (METHOD, HEADER, BODY, HEARTBEAT) or p + size + 7 >= end or data[p + 7 + size] != FRAME_END:
        return 0
    method = -1
    if kind == METHOD and size >= 4:
        method = method_index(methods, u16(data, p + 7), u16(data, p + 9))
        if method < 0:
            return 0
    channel = u16(data, p + 1)
    octets = size + OVERHEAD
    walk[row, W_LARGEST] = max(walk[row, W_LARGEST], octets)
    n = put_frame(pieces, i, conn, frames, control, kind, channel, octets, p + 7, size, method)
    frames[R_MISSING, n] = 0
    frames[R_FIRST_PACKET, n] = pieces[S_FIRST_PACKET, i]
    frames[R_FIRST_TS, n] = pieces[S_FIRST_TS, i]
    frames[R_FIRST_CAPTURE, n] = pieces[S_FIRST_CAPTURE, i]
    frames[R_POS, n] = pieces[S_POS, i] + at
    expect_bodies(data, p + 7, size, kind, channel, size, walk, row, directions)
    return octets


@kernel
def span(spans: Array, control: Array, pieces: Array, i: int, channel: int, offset: int, length: int) -> None:
    """Hand on bytes of a body frame that is not whole in one piece."""
    n = control[M_ASIDE]
    spans[X_BEFORE, n] = control[M_FRAMES]
    spans[X_SLOT, n] = pieces[S_SLOT, i]
    spans[X_SIDE, n] = pieces[S_SIDE, i]
    spans[X_CHANNEL, n] = channel
    spans[X_OFFSET, n] = offset
    spans[X_LENGTH, n] = length
    control[M_ASIDE] = n + 1


@kernel
def cross_hole(
    pieces: Array, i: int, at: int, walk: Array, row: int, conn: Array, data: Array, frames: Array, spans: Array,
    faults: Array, fragments: Array, free: Array, control: Array, methods: Array, directions: Array,
) -> int:  # fmt: skip
    """Take bytes of a gap; return how many. The length of a payload is known, so the walk goes on behind it."""
    left: int = pieces[S_LENGTH, i] - at
    state = walk[row, W_STATE]
    if state == PAYLOAD:
        take: int = min(left, walk[row, W_SIZE] - walk[row, W_GOT])
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
            data, pieces, i, walk, row, conn, frames, faults, fragments, free, control, methods, directions, -1
        )  # fmt: skip
        return 1
    if state == HEAD:
        lose_head(pieces, i, at, conn, walk, row, faults, fragments, free, control)
        span(spans, control, pieces, i, -1, LOST_WAY, LOST)
    return left


@kernel
def take_head(
    pieces: Array, i: int, p: int, end: int, data: Array, conn: Array, walk: Array, row: int, fragments: Array,
    free: Array, control: Array, frames: Array, faults: Array, spans: Array, methods: Array, directions: Array,
) -> int:  # fmt: skip
    """Take bytes of a head from p on; returns where it or the piece ends."""
    if walk[row, W_HEADS] == 0:
        walk[row, W_TYPE] = PROTOCOL_HEADER if data[p] == PROTOCOL_HEADER else 0
    wanted = 8 if walk[row, W_TYPE] == PROTOCOL_HEADER else 7
    while walk[row, W_HEADS] < wanted and p < end:
        walk[row, W_HEAD] = (walk[row, W_HEAD] & 0x7FFFFFFFFFFFFF) << 8 | i64(data[p])
        walk[row, W_HEADS] += 1
        p += 1
    if walk[row, W_HEADS] < wanted:
        return p
    head = walk[row, W_HEAD]
    number = conn[pieces[S_SLOT, i], C_FRAMES]
    if wanted == 8:
        walk[row, W_CHANNEL] = 0
        walk[row, W_SIZE] = 8
        if head >> 32 != PROTOCOL:
            fault(
                faults, control, pieces, i, HEADER_UNKNOWN, number, -1, walk[row, W_POS], head >> 32, walk, row
            )  # fmt: skip
            span(spans, control, pieces, i, -1, LOST_WAY, LOST)
            lose(walk, row, fragments, free, control, -1, 8)
            return p
        # The header is payload and head in one: hand it on through the arena.
        top = control[M_ARENA]
        for k in range(8):
            data[top + k] = (head >> (56 - 8 * k)) & 0xFF
        control[M_ARENA] = top + 8
        finish_frame(
            data, pieces, i, walk, row, conn, frames, faults, fragments, free, control, methods, directions, top
        )  # fmt: skip
        return p
    kind = head >> 48
    size = head & 0xFFFFFFFF
    known = kind in (METHOD, HEADER, BODY, HEARTBEAT)
    if not known or size > limits.FRAME:
        fault(
            faults, control, pieces, i, TOO_LARGE if known else TYPE_UNKNOWN, number, (head >> 32) & 0xFFFF,
            walk[row, W_POS], size if known else kind, walk, row,
        )  # fmt: skip
        span(spans, control, pieces, i, -1, LOST_WAY, LOST)
        lose(walk, row, fragments, free, control, -1, 7)
        return p
    walk[row, W_TYPE] = kind
    walk[row, W_CHANNEL] = (head >> 32) & 0xFFFF
    walk[row, W_SIZE] = size
    walk[row, W_STATE] = PAYLOAD if size > 0 else END
    return p


@kernel
def walk_piece(
    pieces: Array, i: int, at: int, data: Array, conn: Array, walk: Array, fragments: Array, free: Array,
    control: Array, frames: Array, faults: Array, own: Own,
) -> int:  # fmt: skip
    """Walk a piece, as `resync.walk_piece` says."""
    spans, methods, _, directions = own
    slot = pieces[S_SLOT, i]
    row = 2 * slot + pieces[S_SIDE, i]
    length: int = pieces[S_LENGTH, i]
    base = pieces[S_OFFSET, i]
    arena = length + 8 if base >= 0 else 8
    while at < length:
        if (
            control[M_FRAMES] + 1 > frames.shape[1]
            or control[M_ASIDE] + 2 > spans.shape[1]
            or control[M_FAULTS] + 4 > faults.shape[1]
            or (free[0] == 0 and fragments.shape[0] < limits.FRAGMENTS)
            or control[M_ARENA] + walk[row, W_CHAINED] + arena > len(data)
        ):
            return -1 - at
        if base < 0:
            at += cross_hole(
                pieces, i, at, walk, row, conn, data, frames, spans, faults, fragments, free, control, methods,
                directions,
            )  # fmt: skip
            continue
        state = walk[row, W_STATE]
        p = base + at
        end = base + length
        if state == HEAD:
            if walk[row, W_HEADS] == 0:
                octets = take_whole(data, pieces, i, at, walk, row, conn, frames, control, methods, directions)
                at += octets
                if octets > 0:
                    continue
                begin_frame(walk, row, pieces, i, at)
            at = take_head(
                pieces, i, p, end, data, conn, walk, row, fragments, free, control, frames, faults, spans, methods,
                directions,
            ) - base  # fmt: skip
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
                    faults, control, pieces, i, LIMIT, conn[slot, C_FRAMES], walk[row, W_CHANNEL], walk[row, W_POS],
                    walk[row, W_SIZE], walk, row,
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
                # A receiver takes no such frame (§4.2.3), so it completes nothing.
                span(spans, control, pieces, i, -1, LOST_WAY, NOT_TAKEN)
            at += 1
            finish_frame(
                data, pieces, i, walk, row, conn, frames, faults, fragments, free, control, methods, directions, -1
            )  # fmt: skip
            if not right:
                span(spans, control, pieces, i, -1, LOST_WAY, LOST)
                lose(walk, row, fragments, free, control, -1, 0)
        else:
            if pieces[S_POS, i] + at == 0 and end - p >= 8 and u32(data, p) == PROTOCOL:
                # the beginning of a connection whose SYN was not captured
                walk[row, W_UNTIL] = 0
                walk[row, W_FOUND] = 1
            if walk[row, W_UNTIL] < 0:
                return at
            at += pass_over(pieces, i, at, conn, walk, row, faults, control)
            if walk[row, W_STATE] == HEAD and directions[row, A_PASSED] > 0:
                span(spans, control, pieces, i, -1, LOST_WAY, FOUND)
                span(spans, control, pieces, i, directions[row, A_CHANNEL], -1, directions[row, A_PASSED])
                directions[row, A_PASSED] = 0
    return at


_search = specialize(
    search,
    USUAL=boundary.USUAL,
    HIDES_NONE=boundary.HIDES_NONE,
    expected_boundary=expected_boundary,
    sender=sender,
    whole=specialize(whole, BROKERS=boundary.BROKERS, sender=sender),
    choose=specialize(choose, may_begin=may_begin, follow=specialize(follow, next_frame=next_frame)),
)
walk_pieces = specialize(
    any_walk_pieces, walk_piece=walk_piece, replay=specialize(replay, walk_piece=walk_piece, search=_search)
)
"""`resync.walk_pieces` with `own` a tuple of spans, the table of methods, that of their traits, and directions."""
