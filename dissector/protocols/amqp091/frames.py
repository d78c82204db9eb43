"""AMQP 0-9-1 framing: stream chunks to frames (specification §2.3.5, §4.2.3).

Bodies are never put together: bytes of those that do not lie whole in one chunk leave as spans, in order.
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.integers import be16, be32
from amqpscope.dissector.kernels.kernel import i64, kernel
from amqpscope.dissector.protocols.amqp091 import boundary
from amqpscope.dissector.protocols.amqp091.layout import (
    BODY,
    FRAME_END,
    FRAME_END_BYTES,
    HEAD_BYTES,
    HEADER,
    HEARTBEAT,
    METHOD,
    OVERHEAD,
    PROTOCOL_HEADER,
    method_index,
)
from amqpscope.dissector.protocols.amqp091.lengths import frame_inside_payload, has_length, shorter_end
from amqpscope.dissector.protocols.amqp091.state import (
    DESYNCHRONISED,
    END_WRONG,
    FOUND,
    HEADER_UNKNOWN,
    LOST,
    METHOD_UNKNOWN,
    NOT_TAKEN,
    Frame,
    Own,
)
from amqpscope.dissector.protocols.boundaries import lose, put_frame
from amqpscope.dissector.protocols.emitting import fault, frame_fault, put_place, put_span
from amqpscope.dissector.protocols.parser import build_parser
from amqpscope.dissector.protocols.payloads import keep_payload, payload
from amqpscope.dissector.protocols.state import (
    END,
    LENGTH_WRONG,
    PAYLOAD,
    TYPE_UNKNOWN,
    BodyRemainder,
    Cursor,
    Parser,
    ParserState,
)
from amqpscope.dissector.protocols.suspect_length import (
    agree,
    is_above,
    lose_after_head,
    other_protocol,
    report_length,
    rewind,
    suspect_length,
)
from amqpscope.dissector.tcp.state import Chunk, Facts

PROTOCOL = 0x414D5150
"""`AMQP`, with which a protocol header begins (§4.2.2)."""
LONG = 1_024
"""Methods and headers of more bytes are so rare that their lengths are doubted."""
TUNE_OK = 10 << 16 | 31
"""Class and method of connection.tune-ok (§1.4.2.6)."""


@kernel
def head_bytes(byte: int) -> int:
    """Return a protocol header has no other head than its eight bytes."""
    return OVERHEAD if byte == PROTOCOL_HEADER else HEAD_BYTES


@kernel
def take_whole(walk: ParserState, chunks: Array, i: int, at: int, row: int, own: Own) -> int:
    """Take a frame that begins here if it lies whole in the chunk, as most do; returns its bytes, else 0."""
    data, parsers = walk.data, walk.parsers
    p = chunks[Chunk.OFFSET, i] + at
    end = chunks[Chunk.OFFSET, i] + chunks[Chunk.LENGTH, i]
    if end - p < OVERHEAD or data[p] > HEARTBEAT:
        return 0
    kind = i64(data[p])
    size = be32(data, p + 3)
    if kind not in (METHOD, HEADER, BODY, HEARTBEAT) or p + size + 7 >= end or data[p + 7 + size] != FRAME_END:
        return 0
    method = -1
    if kind == METHOD and size >= 4:
        method = method_index(own.methods, be16(data, p + 7), be16(data, p + 9))
        if method < 0:
            return 0
    channel = be16(data, p + 1)
    length = size + OVERHEAD
    if 0 < parsers[row, Parser.MOST] < length or (kind == METHOD and not has_length(data, p + 7, size)):
        return 0
    if kind == BODY and is_beyond(parsers, row, channel, size, own.announced):
        return 0
    if kind in (METHOD, HEADER) and size <= LONG and frame_inside_payload(data, p + 7, size, kind, own) >= 0:
        return 0
    if kind == METHOD and channel == 0:
        note_agreement(walk, row, p + 7, size)
    parsers[row, Parser.LARGEST] = max(parsers[row, Parser.LARGEST], length)
    frames = walk.frames
    n = put_place(walk, chunks, i)
    frames[Frame.TYPE, n] = kind
    frames[Frame.SIZE, n] = length
    frames[Frame.OFFSET, n] = p + 7
    frames[Frame.LENGTH, n] = size
    frames[Frame.MISSING, n] = 0
    frames[Frame.POS, n] = chunks[Chunk.POS, i] + at
    put_method(frames, n, channel, method)
    expect_bodies(walk, row, kind, channel, p + 7, size, size, own.announced)
    return length


@kernel
def note_agreement(walk: ParserState, row: int, offset: int, length: int) -> None:
    """Note the frame-max of a connection.tune-ok: class, method, channel-max, frame-max, heartbeat (§1.4.2.6)."""
    if length >= 10 and be32(walk.data, offset) == TUNE_OK:
        agree(walk, row, be32(walk.data, offset + 6))


@kernel
def is_beyond(parsers: Array, row: int, channel: int, size: int, announced: Array) -> bool:
    """Return whether a body frame has more bytes than its content has left, where that is known."""
    is_known: bool = channel == announced[row, BodyRemainder.CHANNEL] and parsers[row, Parser.REST] > 0
    return is_known and parsers[row, Parser.REST] < size


@kernel
def put_method(frames: Array, n: int, channel: int, method: int) -> None:
    """Write what rows of frames have here besides."""
    frames[Frame.CHANNEL, n] = channel
    frames[Frame.METHOD, n] = method
    frames[Frame.EPOCH, n] = 0


@kernel
def expect_bodies(
    walk: ParserState, row: int, kind: int, channel: int, offset: int, length: int, size: int, announced: Array
) -> None:  # fmt: skip
    """Note how much of a content is still to come, by which a search after a gap knows what is a body."""
    parsers, data = walk.parsers, walk.data
    if kind == HEADER:
        announced[row, BodyRemainder.CHANNEL] = channel
        is_size = length >= 12 and be32(data, offset + 4) == 0
        parsers[row, Parser.REST] = be32(data, offset + 8) if is_size else 0
        announced[row, BodyRemainder.BODY] = 0
    elif kind == BODY and channel == announced[row, BodyRemainder.CHANNEL]:
        rest = parsers[row, Parser.REST] - size
        parsers[row, Parser.REST] = rest
        if rest > 0:
            announced[row, BodyRemainder.BODY] = size


@kernel
def begin_payload(walk: ParserState, chunks: Array, i: int, row: int, head: Array, p: int, own: Own) -> None:
    """Read a complete head: note the frame's type, channel and size, or desynchronise."""
    parsers = walk.parsers
    if parsers[row, Parser.WANTED] == OVERHEAD:
        begin_header(walk, chunks, i, row, head, p, own)
        return
    kind = i64(head[p])
    channel = be16(head, p + 1)
    size = be32(head, p + 3)
    parsers[row, Parser.CHANNEL] = channel
    parsers[row, Parser.SIZE] = size
    if kind not in (METHOD, HEADER, BODY, HEARTBEAT):
        other = other_protocol(be32(head, p))
        if other >= 0:
            frame_fault(walk, chunks, i, row, other, be32(head, p))
        else:
            frame_fault(walk, chunks, i, row, TYPE_UNKNOWN, kind)
        desynchronised(walk, chunks, i, row, own)
        parsers[row, Parser.TYPE] = -1
        lose_after_head(walk, row, True)
        suspect_length(walk, chunks, i, row, OVERHEAD)
        return
    parsers[row, Parser.TYPE] = kind
    parsers[row, Parser.STATE] = PAYLOAD if size > 0 else END
    if (
        is_above(walk, row, size + OVERHEAD, boundary.USUAL)
        or (kind != BODY and size > LONG)
        or (kind == BODY and is_beyond(parsers, row, channel, size, own.announced))
        or (kind == HEARTBEAT and size > 0)
    ):
        lose_after_head(walk, row, kind == BODY)
        suspect_length(walk, chunks, i, row, OVERHEAD)


@kernel
def begin_header(walk: ParserState, chunks: Array, i: int, row: int, head: Array, p: int, own: Own) -> None:
    """Yield a protocol header, which is payload and head in one, through the arena."""
    parsers, data, cursor = walk.parsers, walk.data, walk.cursor
    if be32(head, p) != PROTOCOL:
        number = walk.facts[chunks[Chunk.SLOT, i], Facts.FRAMES]
        fault(walk, chunks, i, row, HEADER_UNKNOWN, number, -1, parsers[row, Parser.POS], be32(head, p))
        desynchronised(walk, chunks, i, row, own)
        # or a method of which the type was damaged, and one byte more was read than its head has
        parsers[row, Parser.TYPE] = -1
        parsers[row, Parser.CHANNEL] = be16(head, p + 1)
        parsers[row, Parser.SIZE] = max(be32(head, p + 3) - OVERHEAD + HEAD_BYTES, 0)
        lose_after_head(walk, row, True)
        suspect_length(walk, chunks, i, row, OVERHEAD)
        return
    top = cursor[Cursor.ARENA]
    for k in range(OVERHEAD):
        data[top + k] = head[p + k]
    cursor[Cursor.ARENA] = top + OVERHEAD
    parsers[row, Parser.TYPE] = PROTOCOL_HEADER
    parsers[row, Parser.CHANNEL] = 0
    parsers[row, Parser.SIZE] = OVERHEAD
    finish_frame(walk, chunks, i, row, top, own)


@kernel
def pass_payload(walk: ParserState, chunks: Array, i: int, row: int, offset: int, length: int, own: Own) -> None:
    """Yield bytes of bodies, keep those of other frames."""
    if walk.parsers[row, Parser.TYPE] == BODY:
        put_span(walk, chunks, i, walk.parsers[row, Parser.CHANNEL], offset, length)
    else:
        keep_payload(walk, chunks, i, row, offset, length, 0)


@kernel
def take_end(walk: ParserState, chunks: Array, i: int, at: int, row: int, own: Own) -> bool:
    """Look at the byte after a payload. A receiver takes no frame with a wrong one (§4.2.3): it completes nothing.

    Where no frame begins after it either, the length is wrong.
    """
    is_end = i64(walk.data[chunks[Chunk.OFFSET, i] + at]) == FRAME_END
    place = next_in_fragments(walk, row, is_end, own)
    if place >= 0 and rewind(walk, chunks, i, row):
        go_on_at(walk, chunks, i, row, place, own)
        return False
    if is_end:
        finish_frame(walk, chunks, i, row, -1, own)
        return True
    end_fault(walk, chunks, i, at, row)
    skipped = 0
    if is_contradicted(walk, chunks, i, at, own):
        desynchronised(walk, chunks, i, row, own)
        if rewind(walk, chunks, i, row):
            return False
        skipped = chunks[Chunk.POS, i] + at + FRAME_END_BYTES - walk.parsers[row, Parser.POS]
    else:
        put_span(walk, chunks, i, -1, DESYNCHRONISED, NOT_TAKEN)
        finish_frame(walk, chunks, i, row, -1, own)
        desynchronised(walk, chunks, i, row, own)
    lose(walk, row, -1, skipped)
    return True


@kernel
def may_be_over(walk: ParserState, chunks: Array, i: int, at: int, row: int, own: Own) -> bool:
    """Have the search decide, and return False, where a connection ends in a method or header; see `parser`."""
    parsers = walk.parsers
    there = parsers[row, Parser.CHAINED]
    if (
        chunks[Chunk.LENGTH, i] > 0
        or parsers[row, Parser.LENGTH_ACCEPTED]
        or there == 0
        or there < parsers[row, Parser.GOT]
    ):
        return True
    if not rewind(walk, chunks, i, row):
        return True
    suspect_length(walk, chunks, i, row, OVERHEAD)
    return False


@kernel
def is_fitting(walk: ParserState, chunks: Array, i: int, at: int, row: int) -> bool:
    """Return whether the payload at byte `at` of a chunk, which has all of it, is as long as its fields say."""
    if walk.parsers[row, Parser.TYPE] != METHOD:
        return True
    return bool(has_length(walk.data, chunks[Chunk.OFFSET, i] + at, walk.parsers[row, Parser.SIZE]))


@kernel
def end_fault(walk: ParserState, chunks: Array, i: int, at: int, row: int) -> None:
    """Report the byte at the end of a frame, which is another one than frame-end."""
    number = walk.facts[chunks[Chunk.SLOT, i], Facts.FRAMES]
    channel = walk.parsers[row, Parser.CHANNEL]
    byte = i64(walk.data[chunks[Chunk.OFFSET, i] + at])
    fault(walk, chunks, i, row, END_WRONG, number, channel, chunks[Chunk.POS, i] + at, byte)


@kernel
def is_contradicted(walk: ParserState, chunks: Array, i: int, at: int, own: Own) -> bool:
    """Return whether byte `at` of a chunk ends no frame, and another head that shows it follows."""
    data = walk.data
    p = chunks[Chunk.OFFSET, i] + at
    end = chunks[Chunk.OFFSET, i] + chunks[Chunk.LENGTH, i]
    return bool(data[p] != FRAME_END and p + 1 < end and not boundary.may_begin_head(data, p + 1, end, own))


@kernel
def check_length(walk: ParserState, chunks: Array, i: int, at: int, row: int, own: Own) -> None:
    """Look at a complete head, whose payload begins at byte `at`; desynchronise if no frame can end there."""
    size = walk.parsers[row, Parser.SIZE]
    kind = walk.parsers[row, Parser.TYPE]
    end = at + size
    if end < chunks[Chunk.LENGTH, i] and kind in (METHOD, HEADER) and size <= LONG:
        p = chunks[Chunk.OFFSET, i] + at
        place = frame_inside_payload(walk.data, p, size, kind, own) if walk.data[p + size] == FRAME_END else -1
        if place >= 0:
            lose(walk, row, -1, HEAD_BYTES)
            go_on_at(walk, chunks, i, row, place - p, own)
            return
    if end < chunks[Chunk.LENGTH, i] and not is_fitting(walk, chunks, i, at, row):
        lose_after_head(walk, row, False)
        suspect_length(walk, chunks, i, row, OVERHEAD)
    elif end < chunks[Chunk.LENGTH, i] and is_contradicted(walk, chunks, i, end, own):
        end_fault(walk, chunks, i, end, row)
        desynchronised(walk, chunks, i, row, own)
        lose_after_head(walk, row, walk.parsers[row, Parser.TYPE] == BODY)


@kernel
def next_in_fragments(walk: ParserState, row: int, is_end: bool, own: Own) -> int:
    """Return where in a payload in fragments another frame begins; -1: nowhere. `is_end`: a frame-end follows it."""
    parsers = walk.parsers
    size, kind = parsers[row, Parser.SIZE], parsers[row, Parser.TYPE]
    if kind not in (METHOD, HEADER) or not 0 < size <= LONG or parsers[row, Parser.CHAINED] < size:
        return -1
    p, _ = payload(walk, row, -1)
    walk.cursor[Cursor.ARENA] = p
    if is_end:
        walk.data[p + size] = FRAME_END
        place = frame_inside_payload(walk.data, p, size, kind, own)
    else:
        place = shorter_end(walk.data, p, size, kind, own)
    return place - p if place >= 0 else -1


@kernel
def go_on_at(walk: ParserState, chunks: Array, i: int, row: int, place: int, own: Own) -> None:
    """Go on at this byte of the current payload, with which another frame begins, after the boundary was lost."""
    report_length(walk, chunks, i, row, LENGTH_WRONG, walk.parsers[row, Parser.SIZE])
    desynchronised(walk, chunks, i, row, own)
    walk.parsers[row, Parser.UNTIL] = walk.parsers[row, Parser.POS] + HEAD_BYTES + place
    walk.parsers[row, Parser.FOUND] = 1


@kernel
def finish_frame(walk: ParserState, chunks: Array, i: int, row: int, offset: int, own: Own) -> None:
    """Write the row of the current frame; offset is where its payload lies, -1 when it is in fragments."""
    parsers, data, frames = walk.parsers, walk.data, walk.frames
    kind = parsers[row, Parser.TYPE]
    channel = parsers[row, Parser.CHANNEL]
    size = parsers[row, Parser.SIZE]
    at, length = payload(walk, row, offset)
    method = -1
    if kind == METHOD and length >= 4:
        method = method_index(own.methods, be16(data, at), be16(data, at + 2))
        if method < 0:
            method = -2
            frame_fault(walk, chunks, i, row, METHOD_UNKNOWN, be32(data, at))
        if channel == 0:
            note_agreement(walk, row, at, length)
    expect_bodies(walk, row, kind, channel, at, length, size, own.announced)
    n = put_frame(walk, chunks, i, row, at, length, size + OVERHEAD if kind != PROTOCOL_HEADER else OVERHEAD)
    put_method(frames, n, channel, method)


@kernel
def desynchronised(walk: ParserState, chunks: Array, i: int, row: int, own: Own) -> None:
    """Mark frames of this direction as lost: contents under way may not be joined with what follows."""
    put_span(walk, chunks, i, -1, DESYNCHRONISED, LOST)


@kernel
def resynchronised(walk: ParserState, chunks: Array, i: int, row: int, own: Own) -> None:
    """Begin a frame after skipped bytes; where those were a body, nothing else is lost."""
    passed = own.announced[row, BodyRemainder.PASSED]
    if passed > 0:
        put_span(walk, chunks, i, -1, DESYNCHRONISED, FOUND)
        put_span(walk, chunks, i, own.announced[row, BodyRemainder.CHANNEL], -1, passed)
        own.announced[row, BodyRemainder.PASSED] = 0


@kernel
def begins_connection(data: Array, p: int, end: int) -> bool:
    """Return whether a protocol header stands here."""
    return end - p >= OVERHEAD and be32(data, p) == PROTOCOL


walk_chunks = build_parser(
    {
        "USUAL": boundary.USUAL,
        "HIDES_NONE": boundary.HIDES_NONE,
        "expected_boundary": boundary.expected_boundary,
        "sender": boundary.sender,
        "may_begin": boundary.may_begin,
        "next_frame": boundary.next_frame,
        "may_end": boundary.may_end,
        "END_BYTES": FRAME_END_BYTES,
    },
    END_BYTES=FRAME_END_BYTES,
    OVERHEAD=OVERHEAD,
    check_length=check_length,
    head_bytes=head_bytes,
    take_whole=take_whole,
    begin_payload=begin_payload,
    pass_payload=pass_payload,
    take_end=take_end,
    may_be_over=may_be_over,
    finish_frame=finish_frame,
    begins_connection=begins_connection,
    desynchronised=desynchronised,
    resynchronised=resynchronised,
)
"""The walk over chunks with AMQP 0-9-1's kernels in it."""
