"""AMQP 0-10: what can be a frame, for searches and for recognition in the middle of connections.

Nothing marks where a frame ends, but half of its head's bits are given: reserved ones are 0, the track follows from
the type, and so do two of the flags. Frames of one track go on where the last one left off.
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.integers import be16, be32
from amqpscope.dissector.kernels.kernel import i64, kernel
from amqpscope.dissector.protocols import mid_stream_detection
from amqpscope.dissector.protocols.amqp010.layout import (
    BEGINS,
    BODY,
    BY_CLIENT,
    BY_SERVER,
    COMMAND,
    CONTROL,
    FIRST_FRAME,
    FIRST_SEGMENT,
    FLAGS,
    HEAD_BYTES,
    HEADER,
    IDS,
    LARGEST,
    LAST_FRAME,
    LAST_SEGMENT,
    NAME,
    method_table,
)
from amqpscope.dissector.protocols.amqp010.state import Own
from amqpscope.dissector.protocols.registry import Context
from amqpscope.dissector.protocols.state import Trial

MARKED_ENDS = False
"""Frames end where their sizes say, and with nothing else."""
MESSAGE_PROPERTIES, PROPERTIES_BYTES = 0x0403, 16
"""Class and code of the struct that announces the size of a body, as its first field, and its bytes up to there."""
ANYTHING, MORE, NEXT, NEW = range(4)
"""What may follow on a track: anything; a further frame of the segment; a further segment; an assembly."""


@kernel
def method_at(data: Array, p: int, kind: int, methods: Array) -> int:
    """Return the index of the control or command whose class and code stand at p; -1 when there is none."""
    return i64(methods[kind * IDS + be16(data, p)])


@kernel
def wrong_byte(head: Array, p: int) -> int:
    """Return which byte of the head at p is none that the protocol has, or contradicts others; -1: all are right."""
    flags, kind = i64(head[p]), i64(head[p + 1])
    if flags >= FLAGS:
        return 0
    if kind > BODY:
        return 1
    if be16(head, p + 2) < HEAD_BYTES:
        return 2
    if i64(head[p + 4]) != 0:
        return 4
    if i64(head[p + 5]) != (0 if kind == CONTROL else 1):
        return 5
    if be32(head, p + 8) != 0:
        return 8
    if (flags & FIRST_SEGMENT != 0) != (kind <= COMMAND) or (kind in (CONTROL, BODY) and flags & LAST_SEGMENT == 0):
        return 0
    return -1


@kernel
def may_begin_head(data: Array, p: int, end: int) -> bool:
    """Return whether a head may begin at p, of which there is one byte at least."""
    if end - p >= HEAD_BYTES:
        return bool(wrong_byte(data, p) < 0)
    if i64(data[p]) >= FLAGS or (end - p >= 2 and i64(data[p + 1]) > BODY):
        return False
    return bool((end - p < 4 or be16(data, p + 2) >= HEAD_BYTES) and (end - p < 5 or i64(data[p + 4]) == 0))


@kernel
def plausible(data: Array, p: int, end: int, methods: Array) -> int:
    """Return the size of the frame that may begin at p, wherever it ends; -1 when none can. A head must be there."""
    if wrong_byte(data, p) >= 0:
        return -1
    flags, kind, size = i64(data[p]), i64(data[p + 1]), be16(data, p + 2)
    if flags & BEGINS == BEGINS and end - p >= HEAD_BYTES + 2:
        if flags & LAST_FRAME != 0 and size < HEAD_BYTES + (4 if kind == CONTROL else 6):
            return -1
        if size >= HEAD_BYTES + 2 and method_at(data, p + HEAD_BYTES, kind, methods) < 0:
            return -1
    return size


@kernel
def next_frame(data: Array, p: int, end: int, trial: Array, own: Own) -> int:
    """Return the size of the frame that begins at p; 0 when its end is not there, -1 when none can begin here.

    Beside what a frame looks like, it must be of its sender, and in its place on its track; of the tracks only the one
    used last is remembered.
    """
    if end - p < HEAD_BYTES:
        return 0 if may_begin_head(data, p, end) else -1
    size: int = plausible(data, p, end, own.methods)
    if size < 0:
        return -1
    flags, kind = i64(data[p]), i64(data[p + 1])
    track = be16(data, p + 6) << 1 | i64(data[p + 5])
    expect = trial[Trial.EXPECT] if trial[Trial.CHANNEL] == track else ANYTHING
    begins = flags & BEGINS == BEGINS
    if expect == MORE and (flags & FIRST_FRAME != 0 or kind != trial[Trial.REST]):
        return -1
    if expect == NEXT and (flags & FIRST_FRAME == 0 or kind <= trial[Trial.REST]):
        return -1
    if expect == NEW and not begins:
        return -1
    if begins and size >= HEAD_BYTES + 2 and end - p >= HEAD_BYTES + 2:
        method = method_at(data, p + HEAD_BYTES, kind, own.methods)
        if own.traits[method] & trial[Trial.SENDER] == 0:
            return -1
    trial[Trial.CHANNEL] = track
    trial[Trial.REST] = kind
    trial[Trial.EXPECT] = MORE
    if flags & LAST_FRAME != 0:
        trial[Trial.EXPECT] = NEW if flags & LAST_SEGMENT != 0 else NEXT
    return size if p + size <= end else 0


@kernel
def may_begin(data: Array, p: int) -> bool:
    """Return whether a frame may begin at p; most bytes are settled by the flags, the type and what is reserved."""
    return i64(data[p]) < FLAGS and i64(data[p + 1]) <= BODY and data[p + 4] == 0


@kernel
def body_at(data: Array, p: int, channel: int) -> int:
    """Return the size of the payload of the body frame that seems to go on at p on this channel; -1: none does."""
    if i64(data[p + 1]) != BODY or i64(data[p]) & (FIRST_SEGMENT | FIRST_FRAME) != 0 or be16(data, p + 4) != 1:
        return -1
    return be16(data, p + 2) - HEAD_BYTES if be16(data, p + 6) == channel and be32(data, p + 8) == 0 else -1


@kernel
def content_length(data: Array, p: int, end: int) -> int:
    """Return the size of the body that a header segment from p to end announces; 0: it announces none."""
    while end - p >= PROPERTIES_BYTES:
        size = be32(data, p)
        if be16(data, p + 4) == MESSAGE_PROPERTIES:
            high = be32(data, p + 8)
            return high << 32 | be32(data, p + 12) if i64(data[p + 6]) & 1 != 0 and high < 1 << 16 else 0
        p += 4 + size
    return 0


@kernel
def sender(data: Array, p: int, end: int, own: Own) -> int:
    """Return who sends the frames that follow each other from p on: 1 the client, 2 the server, 3 unknown."""
    while end - p >= HEAD_BYTES + 2:
        size = plausible(data, p, end, own.methods)
        if size < 0:
            break
        if i64(data[p]) & BEGINS == BEGINS and size >= HEAD_BYTES + 2:
            method = method_at(data, p + HEAD_BYTES, i64(data[p + 1]), own.methods)
            who: int = own.traits[method] & (BY_CLIENT | BY_SERVER)
            if who in (BY_CLIENT, BY_SERVER):
                return who
        p += size
    return BY_CLIENT | BY_SERVER


@kernel
def may_be_long(data: Array, p: int) -> bool:
    """Return whether what may begin at p is a header or a body."""
    return i64(data[p + 1]) in (HEADER, BODY)


KERNELS = mid_stream_detection.build_kernels(
    HEAD_BYTES=HEAD_BYTES, USUAL=LARGEST, may_begin=may_begin, plausible=plausible, may_be_long=may_be_long
)


def recogniser(context: Context) -> mid_stream_detection.LongFramesRecogniser:
    """Return what sees AMQP 0-10 in the middle of connections."""
    methods = method_table(context.specification(NAME))
    return mid_stream_detection.LongFramesRecogniser(context.compiled, KERNELS, methods, HEAD_BYTES)
