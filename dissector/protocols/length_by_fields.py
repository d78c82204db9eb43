"""Where a payload ends by its fields, which shows whether the length in its head is right where nothing marks ends.

The first kernels are templates: a protocol lays its own under their names.
"""

from collections.abc import Callable
from typing import Any

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel, specialize
from amqpscope.dissector.protocols.candidates import Own, next_frame
from amqpscope.dissector.protocols.state import Parser, ParserState, Trial
from amqpscope.dissector.tcp.state import Chunk


@kernel
def payload_end(walk: ParserState, row: int, p: int, end: int, own: Own) -> int:
    """Return where the payload at p of the current frame ends by its fields; below 0: they do not tell.

    Of its fields those before `end` are there.
    """
    raise NotImplementedError


@kernel
def note_payload_end(walk: ParserState, row: int, p: int, end: int, own: Own) -> None:
    """Note the length of the payload at p, whose head is doubted, if its fields tell from the bytes up to `end`."""
    found = payload_end(walk, row, p, end, own)
    walk.parsers[row, Parser.NATURAL] = found - p + 1 if found >= 0 else 0


@kernel
def payload_at(walk: ParserState, chunks: Array, i: int, row: int) -> int:
    """Return where the current payload begins in a chunk in which its head ends."""
    parsers = walk.parsers
    place = parsers[row, Parser.POS] + parsers[row, Parser.WANTED] - chunks[Chunk.POS, i]
    return int(place + chunks[Chunk.OFFSET, i])


@kernel
def look_for_end(walk: ParserState, chunks: Array, i: int, row: int, own: Own) -> None:
    """Have the search look first where the current payload ends by its fields, as far as this chunk shows it."""
    end = chunks[Chunk.OFFSET, i] + chunks[Chunk.LENGTH, i]
    note_payload_end(walk, row, payload_at(walk, chunks, i, row), end, own)


@kernel
def expected_boundary(walk: ParserState, base: int, n: int, pos: int, row: int, own: Own) -> int:
    """Return where the payload ends by its fields whose head is doubted; see `resync.expected_boundary`."""
    parsers = walk.parsers
    p = parsers[row, Parser.POS] + parsers[row, Parser.WANTED] - pos
    if parsers[row, Parser.NATURAL] == 0 and p >= 0:
        note_payload_end(walk, row, base + p, base + n, own)
    if parsers[row, Parser.NATURAL] <= 0:
        return -1
    place: int = p + parsers[row, Parser.NATURAL] - 1
    if place + parsers[row, Parser.WANTED] > n:
        return -2
    walk.trial[Trial.CHANNEL] = -1
    if place >= 0 and next_frame(walk.data, base + place, base + n, walk.trial, own) >= 0:
        return place
    parsers[row, Parser.NATURAL] = -1
    return -1


def build_kernels(**own: Any) -> tuple[Callable[..., None], Callable[..., None], Callable[..., int]]:
    """Return `note_payload_end`, `look_for_end` and `expected_boundary` for a protocol, with its kernels."""
    note = specialize(note_payload_end, **own)
    parts = own | {"note_payload_end": note}
    return note, specialize(look_for_end, **parts), specialize(expected_boundary, **parts)
