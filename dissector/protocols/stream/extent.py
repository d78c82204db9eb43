"""RabbitMQ streams: where a body ends by its fields. Nothing marks ends, so a damaged length shows in nothing else."""

from amqpscope.dissector.fields.decoding import fields_end
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.integers import be32
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.protocols import length_by_fields
from amqpscope.dissector.protocols.state import Parser, ParserState
from amqpscope.dissector.protocols.stream.boundary import is_chunk, layout_row, next_frame, plausible
from amqpscope.dissector.protocols.stream.entries import read_length, read_number
from amqpscope.dissector.protocols.stream.layout import (
    CHUNK_DATA_LENGTH,
    CHUNK_HEADER,
    CHUNK_HEADER_2021,
    CHUNK_MAGIC,
    DELIVER,
    PUBLISH,
)
from amqpscope.dissector.protocols.stream.state import FILTERED, PUBLISHED, Body, Layout, Own
from amqpscope.dissector.tcp.state import Facts

PUBLISH_HEAD = 5
"""Bytes of a publish before its entries: the publisher's id, and the number of entries."""


@kernel
def layout_of(walk: ParserState, row: int, own: Own) -> int:
    """Return the first layout of the command in the current head; -1: it is unknown."""
    place = place_of(walk, row, own)
    return own.layouts[place, Layout.INDEX] if place >= 0 else -1


@kernel
def place_of(walk: ParserState, row: int, own: Own) -> int:
    """Return the row in the table of layouts of the command in the current head, or -1."""
    client = row & 1 == walk.facts[row // 2, Facts.CLIENT]
    key, version = walk.parsers[row, Parser.TYPE], own.bodies[row, Body.VERSION]
    return layout_row(key, version, client, own.layouts, own.senders)


@kernel
def chunk_at(p: int, version: int) -> int:
    """Return where the chunk of a delivery begins whose body is at p."""
    return p + 1 + 8 * (version - 1)


@kernel
def entries_end(data: Array, p: int, end: int, kind: int) -> int:
    """Return where the entries of the publish at p end; -1: not before `end`."""
    if p + PUBLISH_HEAD > end:
        return -1
    left = be32(data, p + 1)
    p += PUBLISH_HEAD
    while left > 0:
        p, _, _, _, _ = read_number(data, p, end, kind)
        if p < 0:
            return -1
        p, length, _, _, _ = read_length(data, p, end, kind, end)
        if p < 0 or p + length > end:
            return -1
        p += length
        left -= 1
    return p


@kernel
def fitting_layout(data: Array, p: int, end: int, layout: int, own: Own) -> int:
    """Return the first layout, of those that differ in age alone, by which the body at p ends at `end`; -1: none."""
    while layout >= 0:
        begin, stop = own.starts[layout], own.starts[layout + 1]
        if fields_end(data, p, end, begin, stop, own.ops, own.members, own.shapes) == end:
            break
        layout = own.variants[layout]
    return layout


@kernel
def fits(data: Array, p: int, end: int, key: int, version: int, layout: int, own: Own) -> bool:
    """Return whether the body at p ends at `end` by its fields."""
    if key == DELIVER:
        chunk = chunk_at(p, version)
        return end - chunk >= CHUNK_HEADER_2021 and is_chunk(data, chunk, end - chunk)
    if key == PUBLISH:  # some clients leave out filter values that are null
        return entries_end(data, p, end, PUBLISHED) == end or (
            version > 1 and entries_end(data, p, end, FILTERED) == end
        )
    return fitting_layout(data, p, end, layout, own) >= 0


@kernel
def payload_end(data: Array, p: int, end: int, key: int, version: int, layout: int, own: Own) -> int:
    """Return where the body at p ends by its fields, of which those before `end` are there; -1: they do not tell."""
    if key == DELIVER:
        chunk = chunk_at(p, version)
        if chunk + CHUNK_HEADER_2021 > end or data[chunk] >> 4 != CHUNK_MAGIC:
            return -1
        return chunk + CHUNK_HEADER + be32(data, chunk + CHUNK_DATA_LENGTH)
    if key == PUBLISH:
        return entries_end(data, p, end, FILTERED if version > 1 else PUBLISHED)
    begin, stop = own.starts[layout], own.starts[layout + 1]
    return fields_end(data, p, end, begin, stop, own.ops, own.members, own.shapes)


@kernel
def may_follow(data: Array, p: int, end: int, own: Own) -> bool:
    """Return whether a head stands at p, all of it."""
    return plausible(data, p, end, own.layouts) not in (-1, 0)


@kernel
def is_sound(data: Array, p: int, size: int, end: int, key: int, version: int, layout: int, own: Own) -> bool:
    """Return whether a body may have this size that begins at p; the bytes up to `end` are there.

    Where it goes on after them and its fields do not, a head stands after these: else it has fields that may be left
    out, which are cut.
    """
    if layout < 0:
        return True
    if p + size <= end:
        return fits(data, p, p + size, key, version, layout, own)
    if key == DELIVER:
        return True
    q = payload_end(data, p, end, key, version, layout, own)
    return q < 0 or (q < end and not may_follow(data, q, end, own))


@kernel
def end_of_current(walk: ParserState, row: int, p: int, end: int, own: Own) -> int:
    """Return where the body at p of the current frame ends; see `length_by_fields.payload_end`."""
    key, version, layout = walk.parsers[row, Parser.TYPE], own.bodies[row, Body.VERSION], layout_of(walk, row, own)
    return payload_end(walk.data, p, end, key, version, layout, own) if layout >= 0 else -1


note_payload_end, look_for_end, expected_boundary = length_by_fields.build_kernels(
    payload_end=end_of_current, next_frame=next_frame
)
