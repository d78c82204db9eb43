"""AMQP 0-9-1: what can be a frame, for searches (specification §2.3.5, §4.2.3, §4.2.6)."""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.integers import be16, be32
from amqpscope.dissector.kernels.kernel import i64, kernel
from amqpscope.dissector.protocols import body_remainder, mid_stream_detection
from amqpscope.dissector.protocols.amqp091.layout import (
    BODY,
    BY_CLIENT,
    BY_SERVER,
    CARRIES_CONTENT,
    FRAME_END,
    HEAD_BYTES,
    HEADER,
    HEARTBEAT,
    METHOD,
    NAME,
    OF_CONNECTION,
    OVERHEAD,
    method_index,
    method_table,
)
from amqpscope.dissector.protocols.amqp091.state import Own
from amqpscope.dissector.protocols.registry import Context
from amqpscope.dissector.protocols.state import Trial

USUAL = 131_072
"""The frame size that brokers propose (RabbitMQ `frame_max`), ends included."""
HIDES_NONE = 29
"""In a gap that is shorter, and no content under way, no body can begin: there is no room for header and head."""
ANY_HEADER, ANY_BODY, NO_CONTENT, ANYTHING = range(4)
"""What may follow on a channel."""
HEADER_BYTES = 14
"""A content header without properties: class, weight, body size, property flags."""


@kernel
def plausible(data: Array, p: int, end: int, methods: Array) -> int:
    """Return the size of the frame that may begin at p, wherever it ends; -1 when none can. Seven bytes are there."""
    kind = i64(data[p])
    channel = be16(data, p + 1)
    size = be32(data, p + 3)
    if kind not in (METHOD, HEADER, BODY, HEARTBEAT) or size > limits.RESYNC:
        return -1
    if kind == HEARTBEAT and (size != 0 or channel != 0):
        return -1
    if kind in (HEADER, BODY) and channel == 0:
        return -1
    if kind == METHOD and (
        size < 4 or (end - p >= 11 and method_index(methods, be16(data, p + 7), be16(data, p + 9)) < 0)
    ):
        return -1
    if kind == HEADER and (size < HEADER_BYTES or (end - p >= 11 and be16(data, p + 9) != 0)):
        return -1
    if p + 7 + size < end and data[p + 7 + size] != FRAME_END:
        return -1
    return size + OVERHEAD


@kernel
def next_frame(data: Array, p: int, end: int, trial: Array, own: Own) -> int:
    """Return the size of the frame that begins at p; 0 when its end is not there, -1 when none can begin here.

    Beside what a frame looks like, it must be of its sender, and in its place on its channel; of the channels only the
    one used last is remembered.
    """
    methods, traits = own.methods, own.traits
    if end - p < 7:
        return 0 if data[p] in (METHOD, HEADER, BODY, HEARTBEAT) else -1
    size: int = plausible(data, p, end, methods)
    if size < 0 or 0 < trial[Trial.MOST] < size:
        return -1
    kind = data[p]
    if kind != HEARTBEAT:
        channel = be16(data, p + 1)
        expect = trial[Trial.EXPECT] if trial[Trial.CHANNEL] == channel else ANYTHING
        trial[Trial.CHANNEL] = channel
        if kind == METHOD:
            if expect in (ANY_HEADER, ANY_BODY):
                return -1
            trial[Trial.EXPECT] = ANYTHING
            if end - p >= 11:
                trait = traits[method_index(methods, be16(data, p + 7), be16(data, p + 9))]
                if (trait & OF_CONNECTION != 0) != (channel == 0) or trait & trial[Trial.SENDER] == 0:
                    return -1
                trial[Trial.EXPECT] = ANY_HEADER if trait & CARRIES_CONTENT != 0 else NO_CONTENT
                trial[Trial.REST] = be16(data, p + 7)
        elif kind == HEADER:
            if expect in (ANY_BODY, NO_CONTENT):
                return -1
            trial[Trial.EXPECT] = ANYTHING
            if end - p >= 7 + 12:
                high = be32(data, p + 11)
                if high >= 1 << 16 or (expect == ANY_HEADER and be16(data, p + 7) != trial[Trial.REST]):
                    return -1
                trial[Trial.REST] = high << 32 | be32(data, p + 15)
                trial[Trial.EXPECT] = ANY_BODY if trial[Trial.REST] > 0 else NO_CONTENT
        else:
            if expect in (ANY_HEADER, NO_CONTENT):
                return -1
            if expect == ANY_BODY:
                trial[Trial.REST] -= size - OVERHEAD
                if trial[Trial.REST] < 0:
                    return -1
                trial[Trial.EXPECT] = ANY_BODY if trial[Trial.REST] > 0 else NO_CONTENT
            else:
                trial[Trial.EXPECT] = ANYTHING
    return size if p + size <= end else 0


@kernel
def may_begin(data: Array, p: int) -> bool:
    """Return whether a frame may have ended before p."""
    return i64(data[p - 1]) == FRAME_END


@kernel
def sender(data: Array, p: int, end: int, own: Own) -> int:
    """Return who sends the frames that follow each other from p on: 1 the client, 2 the server, 3 unknown."""
    methods, traits = own.methods, own.traits
    while end - p >= 11:
        size = plausible(data, p, end, methods)
        if size < 0:
            break
        if data[p] == METHOD:
            who: int = traits[method_index(methods, be16(data, p + 7), be16(data, p + 9))] & (BY_CLIENT | BY_SERVER)
            if who in (BY_CLIENT, BY_SERVER):
                return who
        p += size
    return BY_CLIENT | BY_SERVER


@kernel
def body_at(data: Array, p: int, channel: int) -> int:
    """Return the size of the payload of the body frame of this channel that seems to begin at p; -1: none does."""
    return be32(data, p + 3) if data[p] == BODY and be16(data, p + 1) == channel else -1


expected_boundary = body_remainder.build_kernels(
    OVERHEAD=OVERHEAD, HEAD_BYTES=HEAD_BYTES, USUAL=USUAL, may_end=may_begin, body_at=body_at, next_frame=next_frame
)


@kernel
def may_end(data: Array, p: int, end: int, trial: Array, own: Own) -> bool:
    """Return whether a frame may end before p, and another begin there."""
    return data[p - 1] == FRAME_END and (p == end or may_begin_head(data, p, end, own))


@kernel
def may_begin_head(data: Array, p: int, end: int, own: Own) -> bool:
    """Return whether the head of a frame may begin at p, of which there is one byte at least."""
    if end - p < HEAD_BYTES:
        return data[p] in (METHOD, HEADER, BODY, HEARTBEAT)
    return bool(plausible(data, p, end, own.methods) >= 0)


@kernel
def may_be_long(data: Array, p: int) -> bool:
    """Return whether what may begin at p is a body."""
    return i64(data[p]) == BODY


KERNELS = mid_stream_detection.build_kernels(
    HEAD_BYTES=HEAD_BYTES, USUAL=USUAL, may_begin=may_begin, plausible=plausible, may_be_long=may_be_long
)


def recogniser(context: Context) -> mid_stream_detection.LongFramesRecogniser:
    """Return what sees AMQP 0-9-1 in the middle of connections."""
    methods = method_table([(m.class_id, m.id) for m in context.specification(NAME).methods])
    return mid_stream_detection.LongFramesRecogniser(context.compiled, KERNELS, methods, HEAD_BYTES)
