"""AMQP 0-10: where the payload of a frame that holds a whole segment ends by its fields."""

from amqpscope.dissector.fields.decoding import fields_end
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.integers import be16
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.protocols import announced, natural
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
from amqpscope.dissector.protocols.state import Parser, Walk

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

    Where it goes on after them and its fields do not, a head stands after these. Of one without ids nothing is known.
    """
    if p + size <= end:
        return size < IDS_BYTES or segment_end(data, p, p + size, kind, own) == p + size
    q = segment_end(data, p, end, kind, own)
    return q < 0 or (q == end and kind == HEADER) or (q < end and not may_follow(data, q, end, own))


@kernel
def may_follow(data: Array, p: int, end: int, own: Own) -> bool:
    """Return whether a head stands at p, all of it."""
    return end - p >= HEAD_BYTES and plausible(data, p, end, own.methods) >= 0


@kernel
def natural_end(walk: Walk, row: int, p: int, end: int, own: Own) -> int:
    """Return where the payload at p of the current frame ends by its fields; see `natural.natural_end`."""
    kind = walk.parsers[row, Parser.TYPE]
    is_known = kind >= 0 and is_told(kind >> 16, (kind >> 8) & 0xFF)
    return segment_end(walk.data, p, end, (kind >> 8) & 0xFF, own) if is_known else -1


note_natural, look_for_end, end_by_fields = natural.laid_over(natural_end=natural_end, next_frame=next_frame)
end_of_body = announced.laid_over(
    OVERHEAD=HEAD_BYTES, HEAD_BYTES=HEAD_BYTES, USUAL=LARGEST, BINDING=False, body_at=body_at, next_frame=next_frame
)


@kernel
def expected_boundary(walk: Walk, base: int, n: int, pos: int, row: int, own: Own) -> int:
    """Return where the doubted or lost frame ends, by its fields or by the content of its body; see `resync`."""
    place = -1
    if walk.parsers[row, Parser.NATURAL] >= 0:
        place = end_by_fields(walk, base, n, pos, row, own)
    return end_of_body(walk, base, n, pos, row, own) if place == -1 else place
