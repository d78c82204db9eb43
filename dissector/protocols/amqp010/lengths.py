"""AMQP 0-10: lengths in heads of frames that cannot be right, and heads that are none.

Nothing marks where a frame ends, but its fields say so, unless it is a body or a part of a segment, and what follows
must be a head, half of whose bits are given. So a length is refuted by these.
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import i64, kernel
from amqpscope.dissector.protocols.amqp010.boundary import may_begin_head
from amqpscope.dissector.protocols.amqp010.extent import (
    is_sound,
    is_told,
    may_be_body,
    may_end,
    may_follow,
    near_end,
    note_payload_end,
    payload_end,
)
from amqpscope.dissector.protocols.amqp010.layout import (
    BODY,
    BY_CLIENT,
    BY_SERVER,
    FIRST_SEGMENT,
    HEAD_BYTES,
    HEADER,
    LARGEST,
    LAST_FRAME,
)
from amqpscope.dissector.protocols.amqp010.state import Own, Sender
from amqpscope.dissector.protocols.candidates import FRAMES_IN_A_ROW
from amqpscope.dissector.protocols.length_by_fields import payload_at
from amqpscope.dissector.protocols.payloads import put_together
from amqpscope.dissector.protocols.state import BodyRemainder, Cursor, Parser, ParserState, Trial
from amqpscope.dissector.protocols.suspect_length import is_above, rewind, suspect_length
from amqpscope.dissector.tcp.state import Chunk

LONG = 1_024
"""Controls, commands and headers of more bytes are so rare that their lengths are doubted."""


@kernel
def expected_rest(walk: ParserState, row: int, channel: int, own: Own) -> int:
    """Return the bytes still to come of the body under way on a channel; 0: they are not known."""
    return i64(walk.parsers[row, Parser.REST]) if channel == own.announced[row, BodyRemainder.CHANNEL] else 0


@kernel
def is_doubtful(walk: ParserState, chunks: Array, i: int, row: int, own: Own) -> bool:
    """Return whether the size in the current head is above what was agreed upon, rare, or contradicted.

    It is by its fields, or by what is known of its body; where neither tells, if no frame follows, but would with one
    bit of it changed.
    """
    parsers = walk.parsers
    size, head = parsers[row, Parser.SIZE], parsers[row, Parser.TYPE]
    flags, kind = head >> 16, head >> 8 & 0xFF
    p, end = payload_at(walk, chunks, i, row), chunks[Chunk.OFFSET, i] + chunks[Chunk.LENGTH, i]
    if is_above(walk, row, size + HEAD_BYTES, LARGEST) or (size > LONG and kind != BODY and p + size > end):
        return True
    if is_told(flags, kind):
        return not is_sound(walk.data, p, size, end, kind, own)
    rest = expected_rest(walk, row, parsers[row, Parser.CHANNEL], own) if kind == BODY else 0
    if rest > 0:
        return bool(size > rest or (size < rest and flags & LAST_FRAME != 0))
    walk.trial[Trial.CHANNEL] = -1
    walk.trial[Trial.SENDER] = BY_CLIENT | BY_SERVER
    if p + size <= end and may_end(walk.data, p + size, end, walk.trial, own):
        return False
    return near_end(walk, p, size, end, FRAMES_IN_A_ROW, own) != -1


@kernel
def may_be_of_body(head: Array, p: int, row: int, own: Own) -> bool:
    """Return whether bytes that are no head may be that of a body, or lie in one whose end is not known for sure."""
    flags, kind = i64(head[p]), i64(head[p + 1])
    if own.senders[row, Sender.BODY] != 0 or may_be_body(flags, kind):
        return True
    return kind != HEADER and flags & FIRST_SEGMENT == 0


@kernel
def may_be_over(walk: ParserState, chunks: Array, i: int, at: int, row: int, own: Own) -> bool:
    """Return whether the frame whose payload is over before byte `at` of the chunk may end there; see `parser`.

    Its fields must end there as well. If only a part of it is there, they do not if they end in it and a head follows.
    Where they do not tell, a head follows, or none would with one bit of its size changed.
    """
    parsers = walk.parsers
    size, there, head = parsers[row, Parser.SIZE], parsers[row, Parser.CHAINED], parsers[row, Parser.TYPE]
    if parsers[row, Parser.LENGTH_ACCEPTED] or there == 0 or there < parsers[row, Parser.GOT]:
        return True
    top = walk.cursor[Cursor.ARENA]
    p = put_together(walk, row)
    walk.cursor[Cursor.ARENA] = top
    if not is_told(head >> 16, head >> 8 & 0xFF):
        offset, left = chunks[Chunk.OFFSET, i], chunks[Chunk.LENGTH, i] - at
        follows = offset < 0 or left <= 0 or may_begin_head(walk.data, offset + at, offset + at + left)
        is_wrong = (
            not follows and there == size <= LONG and near_end(walk, p, size, p + size, FRAMES_IN_A_ROW, own) != -1
        )
    elif there == size:
        is_wrong = not is_sound(walk.data, p, size, p + size, head >> 8 & 0xFF, own)
    else:
        q = payload_end(walk, row, p, p + there, own)
        is_wrong = q >= 0 and may_follow(walk.data, q, p + there, own)
    if not is_wrong or not rewind(walk, chunks, i, row):
        return True
    suspect_length(walk, chunks, i, row, HEAD_BYTES)
    note_payload_end(walk, row, p, p + there, own)
    return False
