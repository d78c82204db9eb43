"""Framing of RabbitMQ streams: stream chunks to frames.

A frame is a 32-bit length, a key, a version, and a body. Long publishes and deliveries leave in parts.
"""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.integers import be16, be32
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.protocols.boundaries import put_frame
from amqpscope.dissector.protocols.emitting import frame_fault
from amqpscope.dissector.protocols.length_by_fields import payload_at
from amqpscope.dissector.protocols.parser import build_parser
from amqpscope.dissector.protocols.payloads import drop_chain, keep_payload, payload, put_together
from amqpscope.dissector.protocols.state import (
    LENGTH_WRONG,
    PAYLOAD,
    TOO_LARGE,
    TYPE_UNKNOWN,
    Cursor,
    Parser,
    ParserState,
)
from amqpscope.dissector.protocols.stream import boundary, extent
from amqpscope.dissector.protocols.stream.boundary import old_chunk
from amqpscope.dissector.protocols.stream.extent import place_of
from amqpscope.dissector.protocols.stream.layout import (
    CHUNK_HEADER_2021,
    DELIVER,
    HEAD_BYTES,
    LENGTH_BYTES,
    TUNE,
    UNKNOWN_FRAME,
)
from amqpscope.dissector.protocols.stream.state import COMMAND_UNKNOWN, PART, Body, Frame, Layout, Own, Part
from amqpscope.dissector.protocols.suspect_length import (
    agree,
    is_above,
    lose_after_head,
    other_protocol,
    rewind,
    suspect_length,
)
from amqpscope.dissector.tcp.state import Chunk


@kernel
def head_bytes(byte: int) -> int:
    """Return the size of a head, which is always the same."""
    return HEAD_BYTES


@kernel
def begin_payload(walk: ParserState, chunks: Array, i: int, row: int, head: Array, p: int, own: Own) -> None:
    """Read a complete head: the length of the body, and how much of it is wanted."""
    parsers, bodies = walk.parsers, own.bodies
    size = be32(head, p)
    key = be16(head, p + 4)
    version = be16(head, p + 6)
    parsers[row, Parser.TYPE] = key
    parsers[row, Parser.SIZE] = size - LENGTH_BYTES
    parsers[row, Parser.STATE] = PAYLOAD
    bodies[row, Body.VERSION] = version
    place = place_of(walk, row, own)
    bodies[row, Body.KEEP] = size - LENGTH_BYTES if place >= 0 else 0
    bodies[row, Body.PARTED] = 0
    other = other_protocol(size)
    if other >= 0 or size < LENGTH_BYTES or size > limits.STREAM_FRAME or (place < 0 and size > UNKNOWN_FRAME):
        code, value = TYPE_UNKNOWN, key
        if other >= 0:
            code, value = other, size
        elif size < LENGTH_BYTES or size > limits.STREAM_FRAME:
            code, value = TOO_LARGE if size > limits.STREAM_FRAME else LENGTH_WRONG, size
        frame_fault(walk, chunks, i, row, code, value)
        lose_after_head(walk, row, other >= 0 or is_content(place, own))
        extent.look_for_end(walk, chunks, i, row, own)
    elif is_doubtful(walk, chunks, i, row, place, own):
        lose_after_head(walk, row, is_content(place, own))
        suspect_length(walk, chunks, i, row, LENGTH_BYTES)
        extent.look_for_end(walk, chunks, i, row, own)


@kernel
def is_content(place: int, own: Own) -> bool:
    """Return whether a body with this row in the table of layouts may hold messages, in which may be anything."""
    return place < 0 or own.layouts[place, Layout.KEEP] >= 0


@kernel
def is_doubtful(walk: ParserState, chunks: Array, i: int, row: int, place: int, own: Own) -> bool:
    """Return whether the length in a head is above what was agreed upon, or another one than its fields need.

    Deliveries may be above it: a chunk is sent as it lies in its file. Where its header is not there to tell, and the
    length is more than can be held back, the head counts.
    """
    key, size, version = walk.parsers[row, Parser.TYPE], walk.parsers[row, Parser.SIZE], own.bodies[row, Body.VERSION]
    p, end = payload_at(walk, chunks, i, row), chunks[Chunk.OFFSET, i] + chunks[Chunk.LENGTH, i]
    if key == DELIVER:
        chunk = extent.chunk_at(p, version)
        if chunk + CHUNK_HEADER_2021 <= end:
            return not boundary.is_chunk(walk.data, chunk, p + size - chunk)
        if size > limits.RESYNC // 2:
            return False
    layout = own.layouts[place, Layout.INDEX] if place >= 0 else -1
    is_sound = extent.is_sound(walk.data, p, size, end, key, version, layout, own)
    return not is_sound or is_above(walk, row, size + LENGTH_BYTES, boundary.USUAL)


@kernel
def may_be_over(walk: ParserState, chunks: Array, i: int, at: int, row: int, own: Own) -> bool:
    """Return whether the fields of a body that is over agree with its length; see `parser.may_be_over`.

    Where only a part of it is there, they do not if they end in it, and a head follows.
    """
    parsers = walk.parsers
    size, there = parsers[row, Parser.SIZE], parsers[row, Parser.CHAINED]
    place = place_of(walk, row, own)
    if parsers[row, Parser.LENGTH_ACCEPTED] or place < 0 or there == 0 or there < parsers[row, Parser.GOT]:
        return True
    top = walk.cursor[Cursor.ARENA]
    p = put_together(walk, row)
    walk.cursor[Cursor.ARENA] = top
    layout, key, version = own.layouts[place, Layout.INDEX], parsers[row, Parser.TYPE], own.bodies[row, Body.VERSION]
    if there == size:
        is_wrong = not extent.fits(walk.data, p, p + size, key, version, layout, own)
    else:
        q = extent.payload_end(walk.data, p, p + there, key, version, layout, own)
        is_wrong = q >= 0 and extent.may_follow(walk.data, q, p + there, own)
    if not is_wrong or not rewind(walk, chunks, i, row):
        return True
    if is_content(place, own):
        parsers[row, Parser.LOST] = -1
        parsers[row, Parser.DAMAGED] = 0
    suspect_length(walk, chunks, i, row, LENGTH_BYTES)
    extent.note_payload_end(walk, row, p, p + there, own)
    return False


@kernel
def pass_payload(walk: ParserState, chunks: Array, i: int, row: int, offset: int, length: int, own: Own) -> None:
    """Keep bytes of a body; what there is of a long publish or delivery is passed on."""
    parsers, bodies = walk.parsers, own.bodies
    wanted = min(length, bodies[row, Body.KEEP])
    keep_payload(walk, chunks, i, row, offset, wanted, bodies[row, Body.PARTED])
    is_more = parsers[row, Parser.GOT] + length < parsers[row, Parser.SIZE]
    if offset >= 0 and is_more and parsers[row, Parser.CHAINED] >= PART:
        put_part(walk, chunks, i, row, own)


@kernel
def put_part(walk: ParserState, chunks: Array, i: int, row: int, own: Own) -> None:
    """Yield what there is of a long publish or delivery, so that it need never lie together."""
    parsers, layouts, bodies, parts = walk.parsers, own.layouts, own.bodies, walk.aside
    place = place_of(walk, row, own)
    if place < 0 or layouts[place, Layout.KEEP] < 0 or parsers[row, Parser.MISSING] > 0:
        return
    n = walk.cursor[Cursor.ASIDE]
    length = parsers[row, Parser.CHAINED]
    parts[Part.BEFORE, n] = walk.cursor[Cursor.FRAMES]
    parts[Part.SLOT, n] = chunks[Chunk.SLOT, i]
    parts[Part.SIDE, n] = chunks[Chunk.SIDE, i]
    parts[Part.LAYOUT, n] = layouts[place, Layout.INDEX]
    parts[Part.SIZE, n] = parsers[row, Parser.SIZE]
    parts[Part.PARTED, n] = bodies[row, Body.PARTED]
    parts[Part.LENGTH, n] = length
    parts[Part.OFFSET, n] = put_together(walk, row)
    bodies[row, Body.PARTED] += length
    walk.cursor[Cursor.ASIDE] = n + 1
    drop_chain(walk, row)


@kernel
def finish_frame(walk: ParserState, chunks: Array, i: int, row: int, offset: int, own: Own) -> None:
    """Write the row of the current frame; offset is where its body lies, -1 when it is in fragments."""
    parsers, frames = walk.parsers, walk.frames
    key = parsers[row, Parser.TYPE]
    size = parsers[row, Parser.SIZE]
    version = own.bodies[row, Body.VERSION]
    parted = own.bodies[row, Body.PARTED]
    place = place_of(walk, row, own)
    wanted = size
    layout = -1
    if place >= 0:
        layout = own.layouts[place, Layout.INDEX]
        if own.layouts[place, Layout.KEEP] >= 0:
            wanted = min(wanted, own.layouts[place, Layout.KEEP])
    else:
        frame_fault(walk, chunks, i, row, COMMAND_UNKNOWN, key << 16 | version)
    at, length = payload(walk, row, offset)
    if key & 0x7FFF == TUNE and length >= 4:
        agree(walk, row, be32(walk.data, at))
    n = put_frame(walk, chunks, i, row, max(at, 0), min(length, wanted), size + HEAD_BYTES)
    frames[Frame.LAYOUT, n] = layout
    frames[Frame.VERSION, n] = version
    frames[Frame.CUT, n] = 1 if length + parted < wanted else 0
    frames[Frame.BODY, n] = length
    frames[Frame.PARTED, n] = parted


walk_chunks = build_parser(
    {
        "USUAL": boundary.USUAL,
        "HIDES_NONE": boundary.HIDES_NONE,
        "PORTS": boundary.PORTS,
        "MARKED_ENDS": boundary.MARKED_ENDS,
        "sender": boundary.sender,
        "may_begin": boundary.may_begin,
        "next_frame": boundary.next_frame,
        "expected_boundary": extent.expected_boundary,
    },
    OVERHEAD=LENGTH_BYTES,
    head_bytes=head_bytes,
    begin_payload=begin_payload,
    may_be_over=may_be_over,
    pass_payload=pass_payload,
    finish_frame=finish_frame,
)
"""The walk over chunks with the kernels of streams in it."""


@kernel
def choose_layouts(data: Array, frames: Array, n: int, own: Own) -> None:
    """Choose the first layout that ends with the frame, where layouts differ in age alone."""
    for i in range(n):
        layout = frames[Frame.LAYOUT, i]
        if layout < 0 or own.variants[layout] < 0 or frames[Frame.CUT, i] != 0:
            continue
        at = frames[Frame.OFFSET, i]
        if frames[Frame.TYPE, i] == DELIVER:
            header = at + 1
            size = frames[Frame.SIZE, i] - HEAD_BYTES - 1
            if frames[Frame.LENGTH, i] > CHUNK_HEADER_2021 and old_chunk(data, header, size):
                frames[Frame.LAYOUT, i] = own.variants[layout]
                frames[Frame.LENGTH, i] = CHUNK_HEADER_2021 + 1
            continue
        end = at + frames[Frame.LENGTH, i]
        layout = extent.fitting_layout(data, at, end, layout, own)
        if layout >= 0:
            frames[Frame.LAYOUT, i] = layout
