"""AMQP 0-10 framing: stream chunks to frames.

A head of twelve bytes, and a payload that ends where the head says. Bodies are never put together: bytes of those that
do not lie whole in one chunk leave as spans, in order.
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.integers import be16, be32
from amqpscope.dissector.kernels.kernel import i64, kernel
from amqpscope.dissector.protocols.amqp010 import boundary, extent
from amqpscope.dissector.protocols.amqp010.boundary import content_length, method_at, wrong_byte
from amqpscope.dissector.protocols.amqp010.layout import (
    BEGINS,
    BODY,
    CONTROL,
    FLAGS,
    HEAD_BYTES,
    HEADER,
    HEADER_BYTES,
    IDS_BYTES,
    LARGEST,
    LAST_FRAME,
    LAST_SEGMENT,
    LOGS_IN,
    OPENS,
    PROTOCOL_HEADER,
    TUNES,
    VERSIONS,
    WHOLE,
)
from amqpscope.dissector.protocols.amqp010.lengths import (
    expected_rest,
    is_doubtful,
    may_be_of_body,
    may_be_over,
)
from amqpscope.dissector.protocols.amqp010.state import (
    DESYNCHRONISED,
    FLAGS_UNKNOWN,
    FOUND,
    HEAD_WRONG,
    HEADER_UNKNOWN,
    LOST,
    PASSED,
    RESERVED_SET,
    SEALED,
    TOO_SHORT,
    TRACK_WRONG,
    VERSION_UNKNOWN,
    Frame,
    Own,
    Sender,
    Span,
)
from amqpscope.dissector.protocols.boundaries import end_frame, lose
from amqpscope.dissector.protocols.emitting import frame_fault, put_first, put_place, put_span
from amqpscope.dissector.protocols.parser import build_parser
from amqpscope.dissector.protocols.payloads import keep_payload, put_together
from amqpscope.dissector.protocols.state import PAYLOAD, TYPE_UNKNOWN, BodyRemainder, Parser, ParserState
from amqpscope.dissector.protocols.suspect_length import agree, lose_after_head, other_protocol, suspect_length
from amqpscope.dissector.tcp.state import Chunk

PROTOCOL = 0x414D5150
"""`AMQP`, with which a protocol header begins."""
NEVER = 1 << 62
"""A position that no stream comes to."""
SMALL = 4_096
"""The least that peers may agree upon as the size of the largest frame (MIN-MAX-FRAME-SIZE)."""
SEALING = (0x44, 0x47, 0x4B, 0x4E)
"""First letters of SASL mechanisms that may encrypt: DIGEST-MD5, GSSAPI and GSS-SPNEGO, KERBEROS_V4, NTLM."""
TLS_ALERT, ALERT_BYTES = 0x15, 7
"""The first byte and the size of a TLS alert, which a proxy may send and which is shorter than a head."""


@kernel
def head_bytes(byte: int) -> int:
    """Return the size of the head that begins with this byte: a protocol header is nothing but its head."""
    if byte == TLS_ALERT:
        return ALERT_BYTES
    return HEADER_BYTES if byte == PROTOCOL_HEADER else HEAD_BYTES


@kernel
def take_whole(walk: ParserState, chunks: Array, i: int, at: int, row: int, own: Own) -> int:
    """Take a frame that begins here if it lies whole in the chunk, as most do; returns its bytes, else 0."""
    data = walk.data
    p = chunks[Chunk.OFFSET, i] + at
    end = chunks[Chunk.OFFSET, i] + chunks[Chunk.LENGTH, i]
    if end - p < HEAD_BYTES or wrong_byte(data, p) >= 0 or own.senders[row, Sender.OPENED] != 0:
        return 0
    flags, kind, size = i64(data[p]), i64(data[p + 1]), be16(data, p + 2)
    following = p + size
    if following > end or 0 < walk.parsers[row, Parser.MOST] < size:
        return 0
    if extent.is_told(flags, kind) and not extent.is_sound(data, p + HEAD_BYTES, size - HEAD_BYTES, end, kind, own):
        return 0
    if following + HEAD_BYTES <= end and wrong_byte(data, following) >= 0:
        return 0
    walk.parsers[row, Parser.LARGEST] = max(walk.parsers[row, Parser.LARGEST], size)
    n = put_place(walk, chunks, i)
    put_frame(walk.frames, n, kind, flags, i64(data[p + 5]), be16(data, p + 6))
    put_payload(walk, n, size, p + HEAD_BYTES, size - HEAD_BYTES, 0, chunks[Chunk.POS, i] + at)
    note_opening(walk, n, row, own)
    expect_bodies(walk, n, row, own)
    return size


@kernel
def put_frame(frames: Array, n: int, kind: int, flags: int, track: int, channel: int) -> None:
    """Write what a frame's head says."""
    frames[Frame.TYPE, n] = kind
    frames[Frame.FLAGS, n] = flags
    frames[Frame.TRACK, n] = track
    frames[Frame.CHANNEL, n] = channel


@kernel
def put_payload(walk: ParserState, n: int, size: int, offset: int, length: int, missing: int, pos: int) -> None:
    """Write where a frame's payload lies, and how much of it is there."""
    frames = walk.frames
    frames[Frame.SIZE, n] = size
    frames[Frame.OFFSET, n] = offset
    frames[Frame.LENGTH, n] = length
    frames[Frame.MISSING, n] = missing
    frames[Frame.POS, n] = pos


@kernel
def note_opening(walk: ParserState, n: int, row: int, own: Own) -> None:
    """Note whether a frame is one after which a SASL layer may begin, and what the peers agree upon."""
    frames = walk.frames
    opened = 0
    begins = frames[Frame.TYPE, n] == CONTROL and frames[Frame.FLAGS, n] & BEGINS == BEGINS
    if begins and frames[Frame.CHANNEL, n] == 0 and frames[Frame.LENGTH, n] >= IDS_BYTES:
        method = method_at(walk.data, frames[Frame.OFFSET, n], CONTROL, own.methods)
        traits = own.traits[method] if method >= 0 else 0
        if traits & OPENS != 0:
            opened = 1 - own.senders[row, Sender.BARE]
        if traits & LOGS_IN != 0 and not may_seal(walk.data, frames[Frame.OFFSET, n], frames[Frame.LENGTH, n]):
            own.senders[row, Sender.BARE] = 1
            own.senders[row ^ 1, Sender.BARE] = 1
        if traits & TUNES != 0 and walk.parsers[row, Parser.MOST] == 0:  # a later one is none that peers agree upon
            agree(walk, row, agreed_size(walk.data, frames[Frame.OFFSET, n] + IDS_BYTES, frames[Frame.LENGTH, n]))
    own.senders[row, Sender.OPENED] = opened


@kernel
def may_seal(data: Array, p: int, length: int) -> bool:
    """Return whether the mechanism of the connection.start-ok of this length at p may encrypt, or is not there."""
    end = p + length
    q = p + IDS_BYTES + 2
    if q + 4 > end or i64(data[p + IDS_BYTES]) & 2 == 0:
        return True
    if i64(data[p + IDS_BYTES]) & 1 != 0:
        q += 4 + be32(data, q)  # after client-properties
    return q + 2 > end or i64(data[q + 1]) in SEALING


@kernel
def agreed_size(data: Array, p: int, length: int) -> int:
    """Return the max-frame-size of the connection.tune-ok of this length whose packing flags stand at p."""
    if length < IDS_BYTES + 4 or i64(data[p]) & 2 == 0:
        return LARGEST
    p += 4 if i64(data[p]) & 1 != 0 else 2  # after channel-max, if that is given
    return max(be16(data, p), SMALL) if length >= IDS_BYTES + 6 else LARGEST


@kernel
def expect_bodies(walk: ParserState, n: int, row: int, own: Own) -> None:
    """Note how much of a body is still to come, by which a search after a gap knows what is one."""
    frames, parsers, announced = walk.frames, walk.parsers, own.announced
    kind, flags = frames[Frame.TYPE, n], frames[Frame.FLAGS, n]
    own.senders[row, Sender.BODY] = 0
    if kind == HEADER:
        p = frames[Frame.OFFSET, n]
        is_whole = flags & WHOLE == WHOLE and flags & LAST_SEGMENT == 0 and frames[Frame.MISSING, n] == 0
        parsers[row, Parser.REST] = content_length(walk.data, p, p + frames[Frame.LENGTH, n]) if is_whole else 0
        announced[row, BodyRemainder.CHANNEL] = frames[Frame.CHANNEL, n]
        announced[row, BodyRemainder.BODY] = 0
    elif kind == BODY:
        size = frames[Frame.SIZE, n] - HEAD_BYTES
        expected = expected_rest(walk, row, frames[Frame.CHANNEL, n], own)
        if flags & LAST_FRAME == 0 or size != expected:
            own.senders[row, Sender.BODY] = 1
        if frames[Frame.CHANNEL, n] == announced[row, BodyRemainder.CHANNEL]:
            rest = parsers[row, Parser.REST] - size if flags & LAST_FRAME == 0 else 0
            parsers[row, Parser.REST] = rest
            if rest > 0:
                announced[row, BodyRemainder.BODY] = size


@kernel
def begin_payload(walk: ParserState, chunks: Array, i: int, row: int, head: Array, p: int, own: Own) -> None:
    """Read a complete head: note the frame's type, channel and size, or desynchronise."""
    parsers = walk.parsers
    if parsers[row, Parser.WANTED] == HEADER_BYTES:
        begin_header(walk, chunks, i, row, head, p, own)
        return
    parsers[row, Parser.CHANNEL] = -1
    if own.senders[row, Sender.OPENED] != 0 and be16(head, p) == 0:  # no frame is like that: controls have flags
        frame_fault(walk, chunks, i, row, SEALED, be32(head, p))
        stray(walk, chunks, i, row, HEAD_BYTES, own)
        parsers[row, Parser.UNTIL] = NEVER
        return
    size = be16(head, p + 2)
    parsers[row, Parser.SIZE] = size - HEAD_BYTES
    wrong = wrong_byte(head, p)
    if wrong >= 0:
        head_fault(walk, chunks, i, row, head, p, wrong)
        desynchronised(walk, chunks, i, row, own)
        own.senders[row, Sender.OPENED] = 0
        parsers[row, Parser.TYPE] = -1
        lose_after_head(walk, row, may_be_of_body(head, p, row, own))
        if size >= HEAD_BYTES:
            suspect_length(walk, chunks, i, row, HEAD_BYTES)
        return
    parsers[row, Parser.TYPE] = be16(head, p) << 8 | i64(head[p + 5])
    parsers[row, Parser.CHANNEL] = be16(head, p + 6)
    parsers[row, Parser.STATE] = PAYLOAD
    if is_doubtful(walk, chunks, i, row, own):
        lose_after_head(walk, row, extent.may_be_body(i64(head[p]), i64(head[p + 1])))
        suspect_length(walk, chunks, i, row, HEAD_BYTES)
        parsers[row, Parser.NATURAL] = 0
        if extent.is_told(i64(head[p]), i64(head[p + 1])):
            extent.look_for_end(walk, chunks, i, row, own)


@kernel
def head_fault(walk: ParserState, chunks: Array, i: int, row: int, head: Array, p: int, wrong: int) -> None:
    """Report a head of which this byte is wrong, or what it is the beginning of."""
    other = other_protocol(be32(head, p))
    flags, kind = i64(head[p]), i64(head[p + 1])
    code, value = HEAD_WRONG, flags << 16 | kind
    if other >= 0:
        code, value = other, be32(head, p)
    elif flags >= VERSIONS:
        code, value = VERSION_UNKNOWN, flags // VERSIONS
    elif flags >= FLAGS:
        code, value = FLAGS_UNKNOWN, flags
    elif wrong == 1:
        code, value = TYPE_UNKNOWN, kind
    elif wrong == 2:
        code, value = TOO_SHORT, be16(head, p + 2)
    elif wrong in (4, 5):
        code, value = TRACK_WRONG, be16(head, p + 4)
    elif wrong == 8:
        code, value = RESERVED_SET, be32(head, p + 8)
    frame_fault(walk, chunks, i, row, code, value)


@kernel
def begin_header(walk: ParserState, chunks: Array, i: int, row: int, head: Array, p: int, own: Own) -> None:
    """Read a protocol header, which is its own head and has no payload."""
    parsers = walk.parsers
    parsers[row, Parser.CHANNEL] = -1
    if be32(head, p) != PROTOCOL:
        frame_fault(walk, chunks, i, row, HEADER_UNKNOWN, be32(head, p))
        stray(walk, chunks, i, row, HEADER_BYTES, own)
        return
    n = put_place(walk, chunks, i)
    put_first(walk.frames, n, parsers, row)
    put_frame(walk.frames, n, PROTOCOL_HEADER, 0, -1, -1)
    put_payload(walk, n, HEADER_BYTES, 0, 0, 0, parsers[row, Parser.POS])
    parsers[row, Parser.SIZE] = 0
    end_frame(walk, row, HEADER_BYTES)


@kernel
def stray(walk: ParserState, chunks: Array, i: int, row: int, skipped: int, own: Own) -> None:
    """Desynchronise at bytes that are no frame, and search right after them."""
    desynchronised(walk, chunks, i, row, own)
    lose(walk, row, -1, skipped)
    own.senders[row, Sender.OPENED] = 0


@kernel
def pass_payload(walk: ParserState, chunks: Array, i: int, row: int, offset: int, length: int, own: Own) -> None:
    """Yield bytes of bodies, keep those of other frames."""
    kind = walk.parsers[row, Parser.TYPE]
    if (kind >> 8) & 0xFF == BODY:
        n = put_span(walk, chunks, i, walk.parsers[row, Parser.CHANNEL], offset, length)
        walk.aside[Span.FLAGS, n] = kind >> 16
    else:
        keep_payload(walk, chunks, i, row, offset, length, 0)


@kernel
def finish_frame(walk: ParserState, chunks: Array, i: int, row: int, offset: int, own: Own) -> None:
    """Write the row of the current frame; offset is where its payload lies, -1 when it is in fragments."""
    parsers, frames = walk.parsers, walk.frames
    kind = parsers[row, Parser.TYPE]
    size = parsers[row, Parser.SIZE]
    length = size if offset >= 0 else parsers[row, Parser.CHAINED]
    if offset < 0 and length > 0:
        offset = put_together(walk, row)
    n = put_place(walk, chunks, i)
    put_first(frames, n, parsers, row)
    put_frame(frames, n, (kind >> 8) & 0xFF, kind >> 16, kind & 0xFF, parsers[row, Parser.CHANNEL])
    put_payload(walk, n, size + HEAD_BYTES, offset, length, parsers[row, Parser.MISSING], parsers[row, Parser.POS])
    note_opening(walk, n, row, own)
    expect_bodies(walk, n, row, own)
    end_frame(walk, row, size + HEAD_BYTES)


@kernel
def desynchronised(walk: ParserState, chunks: Array, i: int, row: int, own: Own) -> None:
    """Mark frames of this direction as lost: assemblies under way may not be joined with what follows."""
    put_span(walk, chunks, i, -1, DESYNCHRONISED, LOST)


@kernel
def resynchronised(walk: ParserState, chunks: Array, i: int, row: int, own: Own) -> None:
    """A frame begins after what was skipped; where a body goes on there, nothing else was lost.

    Where it has ended, its last frame was not seen, which says so.
    """
    passed = own.announced[row, BodyRemainder.PASSED]
    own.announced[row, BodyRemainder.PASSED] = 0
    if passed > 0 and walk.parsers[row, Parser.REST] > 0:
        put_span(walk, chunks, i, -1, DESYNCHRONISED, FOUND)
        n = put_span(walk, chunks, i, own.announced[row, BodyRemainder.CHANNEL], -1, passed)
        walk.aside[Span.FLAGS, n] = PASSED


@kernel
def begins_connection(data: Array, p: int, end: int) -> bool:
    """Return whether a protocol header stands here."""
    return end - p >= HEADER_BYTES and be32(data, p) == PROTOCOL


walk_chunks = build_parser(
    {
        "USUAL": LARGEST,
        "MARKED_ENDS": boundary.MARKED_ENDS,
        "expected_boundary": extent.expected_boundary,
        "sender": boundary.sender,
        "may_begin": boundary.may_begin,
        "next_frame": boundary.next_frame,
        "may_end": extent.may_end,
        "HIDES_NONE": HEAD_BYTES,
    },
    OVERHEAD=HEAD_BYTES,
    may_be_over=may_be_over,
    head_bytes=head_bytes,
    take_whole=take_whole,
    begin_payload=begin_payload,
    pass_payload=pass_payload,
    finish_frame=finish_frame,
    begins_connection=begins_connection,
    desynchronised=desynchronised,
    resynchronised=resynchronised,
)
"""The walk over chunks with AMQP 0-10's kernels in it."""
