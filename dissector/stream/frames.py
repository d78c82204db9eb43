"""Framing of RabbitMQ streams: pieces of streams to frames.

A frame is a 32-bit length, a key, a version, and a body. The walk is a state machine per direction, as that of AMQP
0-9-1. A body that lies in one piece is used where it is; one that does not is put together in the arena. Long publishes
and deliveries leave in parts.
"""

from dissector import limits
from dissector.amqp091.frames import begin_frame, chain, drop_chain, fault, lose, u16, u32
from dissector.amqp091.layout import (
    F_LENGTH,
    F_NEXT,
    F_OFFSET,
    HEAD,
    HOLE,
    LIMIT,
    M_ARENA,
    M_AT,
    M_COUNT,
    M_FAULTS,
    M_FRAMES,
    M_PIECE,
    PAYLOAD,
    SEARCH,
    SKIPPED,
    TOO_LARGE,
    TYPE_UNKNOWN,
    W_CHAIN,
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
)
from dissector.arrays import Array
from dissector.fields import fits
from dissector.kernel import i64, kernel
from dissector.stream.layout import (
    CHUNK_DATA_LENGTH,
    CHUNK_HEADER,
    CHUNK_HEADER_2021,
    CHUNK_MAGIC,
    CHUNK_TRAILER_LENGTH,
    COMMAND_UNKNOWN,
    COMMANDS,
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
    RESPONSE,
    UNKNOWN_FRAME,
    VERSIONS,
    W_KEEP,
    W_PARTED,
)
from dissector.tcp.layout import (
    C_CLIENT,
    C_FRAMES,
    S_CAPTURE,
    S_LENGTH,
    S_OFFSET,
    S_PACKET,
    S_POS,
    S_SIDE,
    S_SLOT,
    S_TS,
)


@kernel
def layout_row(key: int, version: int, from_client: bool, layouts: Array, senders: Array) -> int:
    """Row in the table of layouts, or -1.

    The key's highest bit says what is a response, with two exceptions in the wild: the client's answer to tune, and
    the answers to route and partitions up to 3.11.0. There the sender tells, for it may not send the request.
    """
    command = key & 0x7FFF
    if command >= COMMANDS or version >= VERSIONS:
        return -1
    row = command * VERSIONS + version
    answer = row + COMMANDS * VERSIONS
    may = senders[command] & 1 if from_client else senders[command] >> 1
    if (key & RESPONSE) != 0 or (may == 0 and layouts[answer, L_INDEX] >= 0):
        row = answer
    if layouts[row, L_INDEX] < 0:
        return -1
    return row


@kernel
def old_chunk(data: Array, at: int, octets: int) -> bool:
    """Whether a chunk of this many octets has the header of early 2021, by exact fit; `octets` is beyond all reads."""
    if octets < CHUNK_HEADER_2021:
        return False
    body = u32(data, at + CHUNK_DATA_LENGTH)
    trailer = u32(data, at + CHUNK_TRAILER_LENGTH)
    rest = octets - CHUNK_HEADER
    if rest in (body, body + trailer):
        return False
    return octets - CHUNK_HEADER_2021 in (body, body + trailer)


@kernel
def plausible(data: Array, p: int, end: int, layouts: Array) -> int:
    """Octets of the frame that seems to begin here, -1 when none does, 0 when there is too little to see.

    Of a delivery whose chunk's header is there and agrees with its length, the complement of its octets: that is
    as good as a second frame.
    """
    if end - p < HEAD_OCTETS:
        return 0
    size = u32(data, p) + LENGTH_OCTETS
    key = u16(data, p + 4)
    version = u16(data, p + 6)
    command = key & 0x7FFF
    if size < HEAD_OCTETS or size > limits.STREAM_FRAME or command >= COMMANDS or version >= VERSIONS:
        return -1
    row = command * VERSIONS + version
    if key & RESPONSE:
        row += COMMANDS * VERSIONS
    if layouts[row, L_INDEX] < 0:
        return -1
    if key != DELIVER and layouts[row, L_KEEP] < 0 and size > limits.PAYLOAD:
        return -1
    if key == DELIVER:
        chunk = p + HEAD_OCTETS + 1 + 8 * (version - 1)
        octets = p + size - chunk
        if octets < CHUNK_HEADER_2021:
            return -1
        if end - chunk >= CHUNK_HEADER_2021:
            if data[chunk] >> 4 != CHUNK_MAGIC:
                return -1
            body = u32(data, chunk + CHUNK_DATA_LENGTH)
            trailer = u32(data, chunk + CHUNK_TRAILER_LENGTH)
            rest = octets - CHUNK_HEADER
            if rest not in (body, body + trailer) and not old_chunk(data, chunk, octets):
                return -1
            return ~size
    return size


@kernel
def whole_frames(data: Array, p: int, end: int, layouts: Array) -> int:
    """How many plausible frames follow each other from p; -1 when one of them is none. 1000 more: they fill all."""
    count = 0
    while p < end:
        size = plausible(data, p, end, layouts)
        if size == -1:
            return -1
        if size == 0:
            return count
        if size < 0:
            size = ~size
            count += 1
        if p + size > end:
            return count
        p += size
        count += 1
        if count >= 8:
            return count
    return 1000 + count


@kernel
def boundary(data: Array, start: int, end: int, layouts: Array) -> int:
    """Where the first frame begins in these octets, or -1.

    At the start of a piece one whole frame is enough, for senders like to begin segments with a frame; elsewhere there
    must be two, or one that fills the rest. Heads are 30 bits of evidence each.
    """
    if whole_frames(data, start, end, layouts) >= 1:
        return start
    for p in range(start + 1, end - HEAD_OCTETS + 1):
        # most octets are settled by the key's upper one
        if data[p + 4] & 0x7F == 0 and data[p + 6] == 0 and whole_frames(data, p, end, layouts) >= 2:
            return p
    return -1


@kernel
def put_together(data: Array, walk: Array, row: int, fragments: Array, control: Array) -> int:
    """Copy the fragments of a direction to the arena, one behind the other; returns where they begin."""
    offset: int = control[M_ARENA]
    at = offset
    fragment = walk[row, W_CHAIN]
    while fragment >= 0:
        start = fragments[fragment, F_OFFSET]
        for k in range(fragments[fragment, F_LENGTH]):
            data[at + k] = data[start + k]
        at += fragments[fragment, F_LENGTH]
        fragment = fragments[fragment, F_NEXT]
    control[M_ARENA] = at
    return offset


@kernel
def part(
    data: Array, pieces: Array, i: int, walk: Array, row: int, conn: Array, parts: Array, fragments: Array, free: Array,
    control: Array, part_control: Array, layouts: Array, senders: Array,
) -> None:  # fmt: skip
    """Hand on what there is of a long publish or delivery, so that it need never lie together."""
    client = pieces[S_SIDE, i] == conn[pieces[S_SLOT, i], C_CLIENT]
    place = layout_row(walk[row, W_TYPE], walk[row, W_CHANNEL], client, layouts, senders)
    if place < 0 or layouts[place, L_KEEP] < 0 or walk[row, W_MISSING] > 0:
        return
    n = part_control[0]
    parts[P_BEFORE, n] = control[M_FRAMES]
    parts[P_SLOT, n] = pieces[S_SLOT, i]
    parts[P_SIDE, n] = pieces[S_SIDE, i]
    parts[P_LAYOUT, n] = layouts[place, L_INDEX]
    parts[P_SIZE, n] = walk[row, W_SIZE]
    parts[P_PARTED, n] = walk[row, W_PARTED]
    parts[P_LENGTH, n] = walk[row, W_CHAINED]
    walk[row, W_PARTED] += walk[row, W_CHAINED]
    parts[P_OFFSET, n] = put_together(data, walk, row, fragments, control)
    part_control[0] = n + 1
    drop_chain(walk, row, fragments, free, control)


@kernel
def finish_frame(
    data: Array, offset: int, pieces: Array, i: int, walk: Array, row: int, conn: Array, frames: Array, faults: Array,
    fragments: Array, free: Array, control: Array, layouts: Array, senders: Array,
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
    frames[R_CUT, n] = 1 if length + walk[row, W_PARTED] < wanted else 0
    frames[R_MISSING, n] = walk[row, W_MISSING]
    frames[R_PACKET, n] = pieces[S_PACKET, i]
    frames[R_TS, n] = pieces[S_TS, i]
    frames[R_CAPTURE, n] = pieces[S_CAPTURE, i]
    frames[R_FIRST_PACKET, n] = walk[row, W_FIRST_PACKET]
    frames[R_FIRST_TS, n] = walk[row, W_FIRST_TS]
    frames[R_FIRST_CAPTURE, n] = walk[row, W_FIRST_CAPTURE]
    frames[R_POS, n] = walk[row, W_POS]
    frames[R_BODY, n] = length
    frames[R_PARTED, n] = walk[row, W_PARTED]
    if place >= 0:
        frames[R_LAYOUT, n] = layouts[place, L_INDEX]
    else:
        fault(
            faults, control, pieces, i, COMMAND_UNKNOWN, number, -1, walk[row, W_POS], key << 16 | version, walk, row
        )  # fmt: skip
    control[M_FRAMES] = n + 1
    drop_chain(walk, row, fragments, free, control)
    walk[row, W_STATE] = HEAD
    walk[row, W_HEADS] = 0
    walk[row, W_HEAD] = 0


@kernel
def begin_body(
    pieces: Array, i: int, walk: Array, row: int, conn: Array, faults: Array, fragments: Array, free: Array,
    control: Array, layouts: Array, senders: Array,
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
        lose(walk, row, fragments, free, control)
        walk[row, W_SKIPPED] = HEAD_OCTETS
        return
    walk[row, W_TYPE] = key
    walk[row, W_CHANNEL] = version
    walk[row, W_SIZE] = size - LENGTH_OCTETS
    walk[row, W_STATE] = PAYLOAD
    walk[row, W_KEEP] = size - LENGTH_OCTETS if place >= 0 else 0
    walk[row, W_PARTED] = 0


@kernel
def cross_hole(
    pieces: Array, i: int, at: int, walk: Array, row: int, conn: Array, faults: Array, fragments: Array, free: Array,
    control: Array,
) -> int:  # fmt: skip
    """Take octets of a hole; return how many. The length of a body is known, so the walk goes on behind it."""
    left: int = pieces[S_LENGTH, i] - at
    state = walk[row, W_STATE]
    if state == PAYLOAD:
        take: int = min(left, walk[row, W_SIZE] - walk[row, W_GOT])
        walk[row, W_GOT] += take
        walk[row, W_MISSING] += take
        return take
    if state == HEAD:
        number = conn[pieces[S_SLOT, i], C_FRAMES]
        fault(faults, control, pieces, i, HOLE, number, -1, pieces[S_POS, i] + at, left, walk, row)
        skipped = walk[row, W_HEADS]
        lose(walk, row, fragments, free, control)
        walk[row, W_SKIPPED] = skipped
    return left


@kernel
def take_body(
    pieces: Array, i: int, p: int, left: int, walk: Array, row: int, conn: Array, faults: Array, fragments: Array,
    free: Array, control: Array,
) -> int:  # fmt: skip
    """Take octets of a body that does not lie in one piece; returns how many."""
    take: int = min(left, walk[row, W_SIZE] - walk[row, W_GOT])
    wanted = min(take, walk[row, W_KEEP])
    if (
        wanted > 0
        and walk[row, W_MISSING] == 0
        and walk[row, W_CHAINED] + walk[row, W_PARTED] == walk[row, W_GOT]
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
def walk_pieces(
    pieces: Array, data: Array, conn: Array, walk: Array, frames: Array, faults: Array, parts: Array, fragments: Array,
    free: Array, control: Array, part_control: Array, layouts: Array, senders: Array,
) -> None:  # fmt: skip
    """Walk from the cursor on until the pieces, or the room for results, end."""
    count = control[M_COUNT]
    i = control[M_PIECE]
    at = control[M_AT]
    while i < count:
        row = 2 * pieces[S_SLOT, i] + pieces[S_SIDE, i]
        length = pieces[S_LENGTH, i]
        base = pieces[S_OFFSET, i]
        # a frame without a body is complete when its head is
        while at < length or (walk[row, W_STATE] == PAYLOAD and walk[row, W_GOT] == walk[row, W_SIZE]):
            if (
                control[M_FRAMES] + 1 > frames.shape[1]
                or control[M_FAULTS] + 4 > faults.shape[1]
                or part_control[0] + 1 > parts.shape[1]
                or (free[0] == 0 and fragments.shape[0] < limits.FRAGMENTS)
                or control[M_ARENA] + walk[row, W_CHAINED] + length + 8 > len(data)
            ):
                control[M_PIECE] = i
                control[M_AT] = at
                return
            state = walk[row, W_STATE]
            if state == PAYLOAD and walk[row, W_GOT] == walk[row, W_SIZE]:
                finish_frame(
                    data, -1, pieces, i, walk, row, conn, frames, faults, fragments, free, control, layouts, senders
                )  # fmt: skip
                continue
            if base < 0:
                at += cross_hole(pieces, i, at, walk, row, conn, faults, fragments, free, control)
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
                begin_body(pieces, i, walk, row, conn, faults, fragments, free, control, layouts, senders)
                if walk[row, W_STATE] == PAYLOAD and p + walk[row, W_SIZE] <= end:
                    # most frames lie whole in one piece
                    at += walk[row, W_SIZE]
                    walk[row, W_GOT] = walk[row, W_SIZE]
                    finish_frame(
                        data, p, pieces, i, walk, row, conn, frames, faults, fragments, free, control, layouts, senders
                    )  # fmt: skip
            elif state == PAYLOAD:
                at += take_body(pieces, i, p, end - p, walk, row, conn, faults, fragments, free, control)
                if walk[row, W_CHAINED] >= PART and walk[row, W_GOT] < walk[row, W_SIZE]:
                    part(
                        data, pieces, i, walk, row, conn, parts, fragments, free, control, part_control, layouts,
                        senders,
                    )  # fmt: skip
            elif state == SEARCH:
                found = boundary(data, p, end, layouts)
                if found < 0:
                    walk[row, W_SKIPPED] += end - p
                    walk[row, W_LAST] = i64(data[end - 1])
                    at = length
                else:
                    at = found - base
                    skipped = walk[row, W_SKIPPED] + found - p
                    if skipped > 0:
                        fault(
                            faults, control, pieces, i, SKIPPED, conn[pieces[S_SLOT, i], C_FRAMES], -1,
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


@kernel
def choose(
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
