"""AMQP 0-10: lengths in heads of frames that cannot be right, and heads that are none.

Nothing marks where a frame ends, but what follows must be a head, half of whose bits are given. So a length is refuted
where no head follows, and frames begin in what it spans.
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import i64, kernel
from amqpscope.dissector.protocols.amqp010.boundary import may_begin, may_begin_head, next_frame, wrong_byte
from amqpscope.dissector.protocols.amqp010.layout import (
    BODY,
    BY_CLIENT,
    BY_SERVER,
    FIRST_SEGMENT,
    HEAD_BYTES,
    HEADER,
    LARGEST,
    LAST_FRAME,
    LAST_SEGMENT,
)
from amqpscope.dissector.protocols.amqp010.state import DESYNCHRONISED, LOST, Own, Sender
from amqpscope.dissector.protocols.doubt import is_above, lose_after_head, rewind, too_large
from amqpscope.dissector.protocols.emitting import put_span
from amqpscope.dissector.protocols.payloads import put_together
from amqpscope.dissector.protocols.state import Announced, Cursor, Parser, Trial, Walk
from amqpscope.dissector.tcp.state import Chunk

LONG = 1_024
"""Controls, commands and headers of more bytes are so rare that their lengths are doubted."""


@kernel
def may_be_body(flags: int, kind: int) -> bool:
    """Return whether a head may be that of a body: it says so, or that it is a header without one, which is rare."""
    return kind == BODY or (kind == HEADER and flags & LAST_SEGMENT != 0)


@kernel
def expected_rest(walk: Walk, row: int, channel: int, own: Own) -> int:
    """Return the bytes still to come of the body under way on a channel; 0: they are not known."""
    return i64(walk.parsers[row, Parser.REST]) if channel == own.announced[row, Announced.CHANNEL] else 0


@kernel
def is_doubtful(walk: Walk, row: int, kind: int, flags: int, size: int, channel: int, own: Own) -> bool:
    """Return whether the size in a head is above what was agreed upon, rare, or another one than its content states."""
    if is_above(walk, row, size, LARGEST):
        return True
    if kind != BODY:
        return size > LONG
    rest = expected_rest(walk, row, channel, own)
    excess = size - HEAD_BYTES - rest
    return bool(rest > 0 and (excess > 0 or (excess < 0 and flags & LAST_FRAME != 0)))


@kernel
def may_be_of_body(head: Array, p: int, row: int, own: Own) -> bool:
    """Return whether bytes that are no head may be that of a body, or lie in one whose end is not known for sure."""
    flags, kind = i64(head[p]), i64(head[p + 1])
    if own.senders[row, Sender.BODY] != 0 or may_be_body(flags, kind):
        return True
    return kind != HEADER and flags & FIRST_SEGMENT == 0


@kernel
def check_length(walk: Walk, chunks: Array, i: int, at: int, row: int, own: Own) -> None:
    """A head is complete, and its payload begins at byte `at` of the chunk: lose the way if the length is refuted."""
    size = walk.parsers[row, Parser.SIZE]
    p, end = chunks[Chunk.OFFSET, i] + at, chunks[Chunk.OFFSET, i] + chunks[Chunk.LENGTH, i]
    kind = walk.parsers[row, Parser.TYPE]
    if (
        may_be_body(kind >> 16, (kind >> 8) & 0xFF)
        or p + size + HEAD_BYTES > end
        or wrong_byte(walk.data, p + size) < 0
    ):
        return
    if begins_within(walk, p, p + size, end, own):
        too_large(walk, chunks, i, row, size)
        put_span(walk, chunks, i, -1, DESYNCHRONISED, LOST)
        lose_after_head(walk, row, False)


@kernel
def may_be_over(walk: Walk, chunks: Array, i: int, at: int, row: int, own: Own) -> bool:
    """Return whether the frame whose payload ends before byte `at` of the chunk may end there."""
    offset, length = chunks[Chunk.OFFSET, i], walk.parsers[row, Parser.CHAINED]
    left = chunks[Chunk.LENGTH, i] - at
    if offset < 0 or left <= 0 or may_begin_head(walk.data, offset + at, offset + at + left):
        return True
    kind = walk.parsers[row, Parser.TYPE]
    if length != walk.parsers[row, Parser.SIZE] or length > LONG or may_be_body(kind >> 16, (kind >> 8) & 0xFF):
        return True
    p = put_together(walk, row)
    walk.cursor[Cursor.ARENA] = p
    if not begins_within(walk, p, p + length, p + length, own):
        return True
    too_large(walk, chunks, i, row, length)
    put_span(walk, chunks, i, -1, DESYNCHRONISED, LOST)
    return not rewind(walk, chunks, i, row)


@kernel
def begins_within(walk: Walk, p: int, last: int, end: int, own: Own) -> bool:
    """Return whether a whole frame, and another after it, begins between p and `last`; there are bytes up to `end`."""
    for q in range(p, last - HEAD_BYTES + 1):
        if may_begin(walk.data, q):
            walk.trial[Trial.CHANNEL] = -1
            walk.trial[Trial.SENDER] = BY_CLIENT | BY_SERVER
            size = next_frame(walk.data, q, end, walk.trial, own)
            if size > 0 and q + size < end and next_frame(walk.data, q + size, end, walk.trial, own) >= 0:
                return True
    return False
