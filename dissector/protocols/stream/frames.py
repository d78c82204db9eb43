"""Framing of RabbitMQ streams: pieces of streams to frames.

A frame is a 32-bit length, a key, a version, and a body. Long publishes and deliveries leave in parts.
"""

from amqpscope.dissector.fields.decoding import fits
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import i64, kernel, specialize
from amqpscope.dissector.protocols.framing import (
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
    W_GOT,
    W_HEAD,
    W_HEADS,
    W_LARGEST,
    W_MISSING,
    W_POS,
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
)
from amqpscope.dissector.protocols.resync import Own, choose, follow, search, whole
from amqpscope.dissector.protocols.stream import boundary
from amqpscope.dissector.protocols.stream.boundary import (
    expected_boundary,
    layout_row,
    may_begin,
    next_frame,
    old_chunk,
    sender,
)
from amqpscope.dissector.protocols.stream.layout import (
    A_KEEP,
    A_PARTED,
    CHUNK_HEADER_2021,
    COMMAND_UNKNOWN,
    DELIVER,
    HEAD_OCTETS,
    L_INDEX,
    L_KEEP,
    LENGTH_OCTETS,
    P_BEFORE,
    P_LAYOUT,
    P_LENGTH,
    P_OFFSET,
    P_PARTED,
    P_SIDE,
    P_SIZE,
    P_SLOT,
    PART,
    R_BODY,
    R_CAPTURE,
    R_CUT,
    R_FIRST_CAPTURE,
    R_FIRST_PACKET,
    R_FIRST_TS,
    R_KEY,
    R_LAYOUT,
    R_LENGTH,
    R_MISSING,
    R_NO,
    R_OFFSET,
    R_PACKET,
    R_PARTED,
    R_POS,
    R_SIDE,
    R_SIZE,
    R_SLOT,
    R_TS,
    R_VERSION,
    UNKNOWN_FRAME,
)
from amqpscope.dissector.protocols.walking import replay
from amqpscope.dissector.protocols.walking import walk_pieces as any_walk_pieces
from amqpscope.dissector.tcp.layout import (
    C_CLIENT,
    C_FRAMES,
    S_CAPTURE,
    S_LENGTH,
    S_OFFSET,
    S_PACKET,
    S_SIDE,
    S_SLOT,
    S_TS,
)


@kernel
def part(
    data: Array, pieces: Array, i: int, walk: Array, row: int, conn: Array, parts: Array, fragments: Array, free: Array,
    control: Array, layouts: Array, senders: Array, directions: Array,
) -> None:  # fmt: skip
    """Hand on what there is of a long publish or delivery, so that it need never lie together."""
    client = pieces[S_SIDE, i] == conn[pieces[S_SLOT, i], C_CLIENT]
    place = layout_row(walk[row, W_TYPE], walk[row, W_CHANNEL], client, layouts, senders)
    if place < 0 or layouts[place, L_KEEP] < 0 or walk[row, W_MISSING] > 0:
        return
    n = control[M_ASIDE]
    parts[P_BEFORE, n] = control[M_FRAMES]
    parts[P_SLOT, n] = pieces[S_SLOT, i]
    parts[P_SIDE, n] = pieces[S_SIDE, i]
    parts[P_LAYOUT, n] = layouts[place, L_INDEX]
    parts[P_SIZE, n] = walk[row, W_SIZE]
    parts[P_PARTED, n] = directions[row, A_PARTED]
    parts[P_LENGTH, n] = walk[row, W_CHAINED]
    directions[row, A_PARTED] += walk[row, W_CHAINED]
    parts[P_OFFSET, n] = put_together(data, walk, row, fragments, control)
    control[M_ASIDE] = n + 1
    drop_chain(walk, row, fragments, free, control)


@kernel
def finish_frame(
    data: Array, offset: int, pieces: Array, i: int, walk: Array, row: int, conn: Array, frames: Array, faults: Array,
    fragments: Array, free: Array, control: Array, layouts: Array, senders: Array, directions: Array,
) -> None:  # fmt: skip
    """Write the row of the frame at hand; offset is where its body lies, -1 when it is in fragments."""
    slot = pieces[S_SLOT, i]
    n = control[M_FRAMES]
    number = conn[slot, C_FRAMES]
    conn[slot, C_FRAMES] = number + 1
    key = walk[row, W_TYPE]
    version = walk[row, W_CHANNEL]
    place = layout_row(key, version, pieces[S_SIDE, i] == conn[slot, C_CLIENT], layouts, senders)
    wanted = walk[row, W_SIZE]
    if place >= 0 and layouts[place, L_KEEP] >= 0:
        wanted = min(wanted, layouts[place, L_KEEP])
    length = walk[row, W_SIZE] if offset >= 0 else walk[row, W_CHAINED]
    if offset < 0 and length > 0:
        offset = put_together(data, walk, row, fragments, control)
    frames[R_SLOT, n] = slot
    frames[R_SIDE, n] = pieces[S_SIDE, i]
    frames[R_NO, n] = number
    frames[R_LAYOUT, n] = -1
    frames[R_KEY, n] = key
    frames[R_VERSION, n] = version
    frames[R_SIZE, n] = walk[row, W_SIZE] + HEAD_OCTETS
    frames[R_OFFSET, n] = max(offset, 0)
    frames[R_LENGTH, n] = min(length, wanted)
    frames[R_CUT, n] = 1 if length + directions[row, A_PARTED] < wanted else 0
    frames[R_MISSING, n] = walk[row, W_MISSING]
    frames[R_PACKET, n] = pieces[S_PACKET, i]
    frames[R_TS, n] = pieces[S_TS, i]
    frames[R_CAPTURE, n] = pieces[S_CAPTURE, i]
    frames[R_FIRST_PACKET, n] = walk[row, W_FIRST_PACKET]
    frames[R_FIRST_TS, n] = walk[row, W_FIRST_TS]
    frames[R_FIRST_CAPTURE, n] = walk[row, W_FIRST_CAPTURE]
    frames[R_POS, n] = walk[row, W_POS]
    frames[R_BODY, n] = length
    frames[R_PARTED, n] = directions[row, A_PARTED]
    if place >= 0:
        frames[R_LAYOUT, n] = layouts[place, L_INDEX]
    else:
        fault(
            faults, control, pieces, i, COMMAND_UNKNOWN, number, -1, walk[row, W_POS], key << 16 | version, walk, row
        )  # fmt: skip
    walk[row, W_LARGEST] = max(walk[row, W_LARGEST], walk[row, W_SIZE] + HEAD_OCTETS)
    control[M_FRAMES] = n + 1
    drop_chain(walk, row, fragments, free, control)
    next_head(walk, row, HEAD)


@kernel
def begin_body(
    pieces: Array, i: int, walk: Array, row: int, conn: Array, faults: Array, fragments: Array, free: Array,
    control: Array, layouts: Array, senders: Array, directions: Array,
) -> None:  # fmt: skip
    """A head is complete: find out how long the body is, and how much of it is wanted."""
    head = walk[row, W_HEAD]
    size = (head >> 32) & 0xFFFFFFFF
    key = (head >> 16) & 0xFFFF
    version = head & 0xFFFF
    place = layout_row(key, version, pieces[S_SIDE, i] == conn[pieces[S_SLOT, i], C_CLIENT], layouts, senders)
    if size < LENGTH_OCTETS or size > limits.STREAM_FRAME or (place < 0 and size > UNKNOWN_FRAME):
        large = size > limits.STREAM_FRAME
        fault(
            faults, control, pieces, i, TOO_LARGE if large else TYPE_UNKNOWN, -1, -1, walk[row, W_POS],
            size if large else key, walk, row,
        )  # fmt: skip
        lose(walk, row, fragments, free, control, -1, HEAD_OCTETS)
        return
    walk[row, W_TYPE] = key
    walk[row, W_CHANNEL] = version
    walk[row, W_SIZE] = size - LENGTH_OCTETS
    walk[row, W_STATE] = PAYLOAD
    directions[row, A_KEEP] = size - LENGTH_OCTETS if place >= 0 else 0
    directions[row, A_PARTED] = 0


@kernel
def cross_hole(
    pieces: Array, i: int, at: int, conn: Array, walk: Array, row: int, faults: Array, fragments: Array, free: Array,
    control: Array,
) -> int:  # fmt: skip
    """Take bytes of a gap; return how many. The length of a body is known, so the walk goes on behind it."""
    left: int = pieces[S_LENGTH, i] - at
    if walk[row, W_STATE] == PAYLOAD:
        take: int = min(left, walk[row, W_SIZE] - walk[row, W_GOT])
        walk[row, W_GOT] += take
        walk[row, W_MISSING] += take
        return take
    if walk[row, W_STATE] == HEAD:
        lose_head(pieces, i, at, conn, walk, row, faults, fragments, free, control)
    return left


@kernel
def take_body(
    pieces: Array, i: int, p: int, left: int, walk: Array, row: int, conn: Array, faults: Array, fragments: Array,
    free: Array, control: Array, directions: Array,
) -> int:  # fmt: skip
    """Take bytes of a body that does not lie in one piece; returns how many."""
    take: int = min(left, walk[row, W_SIZE] - walk[row, W_GOT])
    wanted = min(take, directions[row, A_KEEP])
    if (
        wanted > 0
        and walk[row, W_MISSING] == 0
        and walk[row, W_CHAINED] + directions[row, A_PARTED] == walk[row, W_GOT]
        and chain(walk, row, fragments, free, control, p, wanted) == 0
    ):
        fault(
            faults, control, pieces, i, LIMIT, conn[pieces[S_SLOT, i], C_FRAMES], -1, walk[row, W_POS],
            walk[row, W_SIZE], walk, row,
        )  # fmt: skip
        drop_chain(walk, row, fragments, free, control)
    walk[row, W_GOT] += take
    return take


@kernel
def walk_piece(
    pieces: Array, i: int, at: int, data: Array, conn: Array, walk: Array, fragments: Array, free: Array,
    control: Array, frames: Array, faults: Array, own: Own,
) -> int:  # fmt: skip
    """Walk a piece, as `resync.walk_piece` says."""
    directions, layouts, senders, parts = own
    row = 2 * pieces[S_SLOT, i] + pieces[S_SIDE, i]
    length: int = pieces[S_LENGTH, i]
    base = pieces[S_OFFSET, i]
    arena = length + 8 if base >= 0 else 8
    # a frame without a body is complete when its head is
    while at < length or (walk[row, W_STATE] == PAYLOAD and walk[row, W_GOT] == walk[row, W_SIZE]):
        if (
            control[M_FRAMES] + 1 > frames.shape[1]
            or control[M_FAULTS] + 4 > faults.shape[1]
            or control[M_ASIDE] + 1 > parts.shape[1]
            or (free[0] == 0 and fragments.shape[0] < limits.FRAGMENTS)
            or control[M_ARENA] + walk[row, W_CHAINED] + arena > len(data)
        ):
            return -1 - at
        state = walk[row, W_STATE]
        if state == PAYLOAD and walk[row, W_GOT] == walk[row, W_SIZE]:
            finish_frame(
                data, -1, pieces, i, walk, row, conn, frames, faults, fragments, free, control, layouts, senders,
                directions,
            )  # fmt: skip
            continue
        if base < 0:
            at += cross_hole(pieces, i, at, conn, walk, row, faults, fragments, free, control)
            continue
        p = base + at
        end = base + length
        if state == HEAD:
            if walk[row, W_HEADS] == 0:
                begin_frame(walk, row, pieces, i, at)
            while walk[row, W_HEADS] < HEAD_OCTETS and p < end:
                octet = i64(data[p])
                if walk[row, W_HEADS] == 0:
                    octet = min(octet, 0x7F)  # far too large is enough, and stays within 63 bits
                walk[row, W_HEAD] = walk[row, W_HEAD] << 8 | octet
                walk[row, W_HEADS] += 1
                p += 1
            at = p - base
            if walk[row, W_HEADS] < HEAD_OCTETS:
                continue
            begin_body(pieces, i, walk, row, conn, faults, fragments, free, control, layouts, senders, directions)
            if walk[row, W_STATE] == PAYLOAD and p + walk[row, W_SIZE] <= end:
                # most frames lie whole in one piece
                at += walk[row, W_SIZE]
                walk[row, W_GOT] = walk[row, W_SIZE]
                finish_frame(
                    data, p, pieces, i, walk, row, conn, frames, faults, fragments, free, control, layouts, senders,
                    directions,
                )  # fmt: skip
        elif state == PAYLOAD:
            at += take_body(pieces, i, p, end - p, walk, row, conn, faults, fragments, free, control, directions)
            if walk[row, W_CHAINED] >= PART and walk[row, W_GOT] < walk[row, W_SIZE]:
                part(
                    data, pieces, i, walk, row, conn, parts, fragments, free, control, layouts, senders, directions
                )  # fmt: skip
        else:
            if walk[row, W_UNTIL] < 0:
                return at
            at += pass_over(pieces, i, at, conn, walk, row, faults, control)
    return at


_search = specialize(
    search,
    USUAL=boundary.USUAL,
    HIDES_NONE=boundary.HIDES_NONE,
    PORTS=boundary.PORTS,
    MARKED_ENDS=boundary.MARKED_ENDS,
    expected_boundary=expected_boundary,
    sender=sender,
    whole=specialize(whole, BROKERS=boundary.BROKERS, MARKED_ENDS=boundary.MARKED_ENDS, sender=sender),
    choose=specialize(choose, may_begin=may_begin, follow=specialize(follow, next_frame=next_frame)),
)
walk_pieces = specialize(
    any_walk_pieces, walk_piece=walk_piece, replay=specialize(replay, walk_piece=walk_piece, search=_search)
)
"""`resync.walk_pieces` with `own` a tuple of directions, the table of layouts, that of senders, and parts."""


@kernel
def choose_layouts(
    data: Array, frames: Array, n: int, variants: Array, starts: Array, ops: Array, members: Array, shapes: Array
) -> None:
    """Where a command has layouts that differ in age alone, take the first that ends with the frame."""
    for i in range(n):
        layout = frames[R_LAYOUT, i]
        if layout < 0 or variants[layout] < 0 or frames[R_CUT, i] != 0:
            continue
        at = frames[R_OFFSET, i]
        if frames[R_KEY, i] == DELIVER:
            header = at + 1
            octets = frames[R_SIZE, i] - HEAD_OCTETS - 1
            if frames[R_LENGTH, i] > CHUNK_HEADER_2021 and old_chunk(data, header, octets):
                frames[R_LAYOUT, i] = variants[layout]
                frames[R_LENGTH, i] = CHUNK_HEADER_2021 + 1
            continue
        end = at + frames[R_LENGTH, i]
        while layout >= 0:
            if fits(data, at, end, starts[layout], starts[layout + 1], ops, members, shapes):
                frames[R_LAYOUT, i] = layout
                break
            layout = variants[layout]
