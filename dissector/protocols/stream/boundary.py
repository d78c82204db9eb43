"""RabbitMQ streams: what can be a frame, and how its body is laid out."""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array, Bytes
from amqpscope.dissector.kernels.integers import be16, be32
from amqpscope.dissector.kernels.kernel import call, kernel, specialize
from amqpscope.dissector.protocols import mid_stream_detection
from amqpscope.dissector.protocols.registry import Context
from amqpscope.dissector.protocols.state import Trial
from amqpscope.dissector.protocols.stream.layout import (
    CHUNK_DATA_LENGTH,
    CHUNK_HEADER,
    CHUNK_HEADER_2021,
    CHUNK_MAGIC,
    CHUNK_TRAILER_LENGTH,
    COMMANDS,
    DELIVER,
    HEAD_BYTES,
    LENGTH_BYTES,
    NAME,
    RESPONSE,
    UNMARKED,
    VERSIONS,
    layout_table,
)
from amqpscope.dissector.protocols.stream.state import Layout, Own

USUAL = 1 << 20
"""The frame size that brokers propose."""
BOTH = 3
"""Client and server."""
MARKED_ENDS = False
"""Frames end where their lengths say, and with nothing else."""
PORTS = (5552, 5551)
"""Where brokers listen: frames in a record may end a frame, and would decide which side is the client."""
HIDES_NONE = 9
"""In a gap that is shorter no frame with a body can begin."""


@kernel
def layout_row(key: int, version: int, from_client: bool, layouts: Array, senders: Array) -> int:
    """Return the row in the table of layouts, or -1.

    The key's highest bit says what is a response, with two exceptions in the wild: the client's answer to tune, and
    the answers to route and partitions up to 3.11.0. There the sender decides, for it may not send the request.
    """
    command = key & 0x7FFF
    if command >= COMMANDS or version >= VERSIONS:
        return -1
    row = command * VERSIONS + version
    answer = row + COMMANDS * VERSIONS
    may = senders[command] & 1 if from_client else senders[command] >> 1
    if (key & RESPONSE) != 0 or (may == 0 and layouts[answer, Layout.INDEX] >= 0):
        row = answer
    if layouts[row, Layout.INDEX] < 0:
        return -1
    return row


@kernel
def old_chunk(data: Array, at: int, size: int) -> bool:
    """Return whether a chunk of this size has the header of early 2021, by exact fit; `size` is beyond all reads."""
    if size < CHUNK_HEADER_2021:
        return False
    body = be32(data, at + CHUNK_DATA_LENGTH)
    trailer = be32(data, at + CHUNK_TRAILER_LENGTH)
    rest = size - CHUNK_HEADER
    if rest in (body, body + trailer):
        return False
    return size - CHUNK_HEADER_2021 in (body, body + trailer)


@kernel
def is_chunk(data: Array, p: int, length: int) -> bool:
    """Return whether a chunk of this length seems to begin at p, where the bytes of its header are."""
    if data[p] >> 4 != CHUNK_MAGIC:
        return False
    body = be32(data, p + CHUNK_DATA_LENGTH)
    trailer = be32(data, p + CHUNK_TRAILER_LENGTH)
    rest = length - CHUNK_HEADER
    return rest in (body, body + trailer) or old_chunk(data, p, length)


@kernel
def plausible(data: Array, p: int, end: int, layouts: Array) -> int:
    """Return the size of the frame that seems to begin here; -1 when none does, 0 when too few bytes are there.

    Of a delivery whose chunk's header is there and agrees with its length, the complement of its length: that is
    as good as a second frame.
    """
    if end - p < HEAD_BYTES:
        return 0
    size = be32(data, p) + LENGTH_BYTES
    key = be16(data, p + 4)
    version = be16(data, p + 6)
    command = key & 0x7FFF
    if size < HEAD_BYTES or size > limits.STREAM_FRAME or command >= COMMANDS or version >= VERSIONS:
        return -1
    row = command * VERSIONS + version
    if key & RESPONSE:
        row += COMMANDS * VERSIONS
    if layouts[row, Layout.INDEX] < 0:
        return -1
    if key != DELIVER and layouts[row, Layout.KEEP] < 0 and size > limits.PAYLOAD:
        return -1
    if key == DELIVER:
        chunk = p + HEAD_BYTES + 1 + 8 * (version - 1)
        length = p + size - chunk
        if length < CHUNK_HEADER_2021:
            return -1
        if end - chunk >= CHUNK_HEADER_2021:
            return ~size if is_chunk(data, chunk, length) else -1
    return size


@kernel
def next_frame(data: Array, p: int, end: int, trial: Array, own: Own) -> int:
    """Return the size of the frame that begins at p; 0 when its end is not there, -1 when none can begin here.

    A delivery whose chunk is in order counts twice. Requests and answers must be of their senders.
    """
    layouts, senders = own.layouts, own.senders
    size: int = plausible(data, p, end, layouts)
    if size in (-1, 0):
        return size
    key = be16(data, p + 4)
    may = senders[key & 0x7FFF]
    if key & RESPONSE == 0:
        answer = ((key & 0x7FFF) + COMMANDS) * VERSIONS + be16(data, p + 6)
        if may & trial[Trial.SENDER] == 0 and layouts[answer, Layout.INDEX] < 0:
            return -1
    elif may == trial[Trial.SENDER] and may != BOTH:
        return -1
    if size < 0:
        size = ~size
        trial[Trial.COUNT] += 1
    return size if p + size <= end else 0


@kernel
def may_begin(data: Array, p: int) -> bool:
    """Return whether a frame may begin at p; most bytes are settled by the upper ones of key and version."""
    likely: bool = data[p + 4] & 0x7F == 0 and data[p + 6] == 0
    return likely


@kernel
def sender(data: Array, p: int, end: int, own: Own) -> int:
    """Return who sends the frames that follow each other from p on: 1 the client, 2 the server, 3 unknown."""
    layouts, senders = own.layouts, own.senders
    while end - p >= HEAD_BYTES:
        size = plausible(data, p, end, layouts)
        if size in (-1, 0):
            break
        key = be16(data, p + 4)
        who: int = senders[key & 0x7FFF]
        # of some commands the answers may lack the response bit
        if who in (1, 2) and key not in UNMARKED:
            return who if key & RESPONSE == 0 else BOTH - who
        p += ~size if size < 0 else size
    return BOTH


looks_like_frames = specialize(
    mid_stream_detection.looks_like_frames, HEAD_BYTES=HEAD_BYTES, may_begin=may_begin, plausible=plausible
)


class StreamRecogniser:
    """Sees streams in the middle of connections."""

    def __init__(self, context: Context) -> None:
        protocol = context.specification(NAME)
        self.compiled = context.compiled
        self.layouts = layout_table(protocol)

    def look(self, data: Bytes, begin: int, end: int, position: int, due: int) -> tuple[bool, int]:
        """Return whether these bytes are frames; see `registry.Recogniser`."""
        return call(looks_like_frames, self.compiled, data, begin, end, self.layouts) >= 0, -1
