"""AMQP 0-10: where the payload of a frame that holds a whole segment ends by its fields."""

from amqpscope.dissector.fields.decoding import fields_end
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.integers import be16
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.protocols import body_remainder, length_by_fields
from amqpscope.dissector.protocols.amqp010.boundary import body_at, method_at, next_frame, plausible
from amqpscope.dissector.protocols.amqp010.layout import (
    BODY,
    HEAD_BYTES,
    HEADER,
    IDS_BYTES,
    LARGEST,
    LAST_SEGMENT,
    WHOLE,
)
from amqpscope.dissector.protocols.amqp010.state import Own
from amqpscope.dissector.protocols.candidates import FRAMES_IN_A_ROW
from amqpscope.dissector.protocols.state import Parser, ParserState, Trial

SIZE_BITS = 16
"""Bits of a size in a head."""
ALL = 1 << 16
"""More frames than fit into what a search holds."""
STRUCT_SIZE = 4
"""Bytes of the size of a struct in a header, of which the upper two are 0; no head begins like that."""


@kernel
def is_told(flags: int, kind: int) -> bool:
    """Return whether the fields of a frame say where it ends: it holds a whole segment, and may not be a body."""
    return flags & WHOLE == WHOLE and not may_be_body(flags, kind)


@kernel
def may_be_body(flags: int, kind: int) -> bool:
    """Return whether a head may be that of a body: it says so, or that it is a header without one, which is rare."""
    return kind == BODY or (kind == HEADER and flags & LAST_SEGMENT != 0)


@kernel
def segment_end(data: Array, p: int, end: int, kind: int, own: Own) -> int:
    """Return where the segment of this type at p ends by its fields; -1: not before `end`, or they are unknown."""
    if kind == HEADER:
        while end - p >= STRUCT_SIZE and be16(data, p) == 0:
            p += STRUCT_SIZE + be16(data, p + 2)
        return p if p <= end else -1
    method = method_at(data, p, kind, own.methods) if end - p >= IDS_BYTES else -1
    if method < 0:
        return -1
    begin, stop = own.starts[method], own.starts[method + 1]
    return fields_end(data, p + IDS_BYTES, end, begin, stop, own.ops, own.members, own.shapes)


@kernel
def is_sound(data: Array, p: int, size: int, end: int, kind: int, own: Own) -> bool:
    """Return whether the segment at p may have this size; the bytes up to `end` are there.

    Where it goes on after them and its fields do not, or has no ids, a head stands after the fields.
    """
    if size <= end - p and (size >= IDS_BYTES or kind == HEADER):
        return segment_end(data, p, p + size, kind, own) == p + size
    q = segment_end(data, p, end, kind, own)
    return q < 0 or (q == end and kind == HEADER) or (q < end and not may_follow(data, q, end, own))


@kernel
def may_follow(data: Array, p: int, end: int, own: Own) -> bool:
    """Return whether a head stands at p, all of it."""
    return end - p >= HEAD_BYTES and plausible(data, p, end, own.methods) >= 0


@kernel
def may_end(data: Array, p: int, end: int, trial: Array, own: Own) -> bool:
    """Return whether a frame may end before p: a head follows, or what a bit of damage leaves of one."""
    if p == end or next_frame(data, p, end, trial, own) >= 0:
        return True
    return (
        end - p >= HEAD_BYTES and be16(data, p + 2) >= HEAD_BYTES and may_follow(data, p + be16(data, p + 2), end, own)
    )


@kernel
def near_end(walk: ParserState, p: int, size: int, end: int, enough: int, own: Own) -> int:
    """Return where the payload at p ends if one bit of its size is wrong; -1: nowhere, -2: there are several places.

    So many frames must follow each other there, or those up to `end`.
    """
    found = -1
    for bit in range(SIZE_BITS):
        q = p - HEAD_BYTES + ((size + HEAD_BYTES) ^ (1 << bit))
        if p <= q <= end and are_frames(walk, q, end, enough, own):
            found = q if found == -1 else -2
    return found


@kernel
def are_frames(walk: ParserState, p: int, end: int, enough: int, own: Own) -> bool:
    """Return whether so many frames follow each other from p on, or those up to `end`; of ALL the last is whole."""
    walk.trial[Trial.CHANNEL] = -1
    count = 0
    while p < end and count < enough:
        size = next_frame(walk.data, p, end, walk.trial, own)
        if size <= 0:
            return size == 0 and enough < ALL and end - p >= HEAD_BYTES
        p += size
        count += 1
    return True


@kernel
def payload_end(walk: ParserState, row: int, p: int, end: int, own: Own) -> int:
    """Return where the payload at p of the current frame ends by its fields; see `length_by_fields.payload_end`.

    Where they do not tell, that is where it ends if one bit of its size is wrong, once it is refuted or never comes.
    """
    parsers = walk.parsers
    head, size, claimed = parsers[row, Parser.TYPE], parsers[row, Parser.SIZE], parsers[row, Parser.SUSPECT_SIZE]
    if head < 0:
        return -1
    if is_told(head >> 16, head >> 8 & 0xFF):
        return segment_end(walk.data, p, end, head >> 8 & 0xFF, own)
    if claimed > 0 and p + size <= end:
        return -1
    return near_end(walk, p, size, end, FRAMES_IN_A_ROW if claimed < 0 else ALL, own)


note_payload_end, look_for_end, end_by_fields = length_by_fields.build_kernels(
    payload_end=payload_end, next_frame=next_frame
)
end_of_body = body_remainder.build_kernels(
    OVERHEAD=HEAD_BYTES, HEAD_BYTES=HEAD_BYTES, USUAL=LARGEST, BINDING=False, body_at=body_at, next_frame=next_frame
)


@kernel
def expected_boundary(walk: ParserState, base: int, n: int, pos: int, row: int, own: Own) -> int:
    """Return where the doubted or lost frame ends, by its fields or by the content of its body; see `resync`."""
    place = -1
    if walk.parsers[row, Parser.NATURAL] >= 0:
        place = end_by_fields(walk, base, n, pos, row, own)
    return end_of_body(walk, base, n, pos, row, own) if place == -1 else place
