"""A content of AMQP 0-9-1, from its method to its last byte: what is kept of it, and the row it becomes (§4.2.6).

Two rows of `contents` a channel: what the client, and what the server, is sending on it. The body is hashed as it
passes.
"""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import hash_begin, hash_end, hash_feed
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.protocols.amqp091.layout import PUBLISH
from amqpscope.dissector.protocols.amqp091.state import (
    DOUBTFUL,
    FOUND,
    KNOWN,
    LOST,
    OUT_OF_STEP,
    UNKNOWN,
    Assembly,
    Channel,
    Channels,
    Content,
    Frame,
    Message,
    Usage,
)
from amqpscope.dissector.protocols.bodies import UNFINISHED, begin_body, keep_bytes
from amqpscope.dissector.protocols.emitting import put_fault
from amqpscope.dissector.protocols.state import LIMIT, Place
from amqpscope.dissector.tcp.state import Facts

HUGE = 1 << 62
"""Announced body sizes from here on are no sizes; they are not computed with, and not shown."""


@kernel
def content_fault(of: Channels, frames: Array, i: int, code: int, value: int) -> None:
    """Note a fault at this frame. One that finds no room is dropped: the caller leaves enough of it."""
    faults, n = of.faults, of.assembly[Assembly.FAULTS]
    if n >= faults.shape[1]:
        return
    for k in range(Place.WIDTH):
        faults[k, n] = frames[k, i]
    put_fault(of.faults, n, code, value, frames[Frame.CHANNEL, i], frames[Frame.POS, i])
    of.assembly[Assembly.FAULTS] = n + 1


@kernel
def unfinished_fault(of: Channels, row: int, k: int, side: int, code: int, value: int) -> None:
    """Note a fault of a content that is under way, at the last frame it had."""
    faults, n = of.faults, of.assembly[Assembly.FAULTS]
    if n >= faults.shape[1]:
        return
    put_content(faults, n, of, row, k, side)
    put_fault(of.faults, n, code, value, of.channels[row, Channel.CHANNEL], -1)
    of.assembly[Assembly.FAULTS] = n + 1


@kernel
def put_content(rows: Array, n: int, of: Channels, row: int, k: int, side: int) -> None:
    """Write where a content is that `side` sends: at its last frame so far."""
    contents = of.contents
    rows[Place.SLOT, n] = of.channels[row, Channel.SLOT]
    rows[Place.SIDE, n] = side
    rows[Place.NUMBER, n] = contents[k, Content.NUMBER]
    rows[Place.CAPTURE, n] = contents[k, Content.CAPTURE]
    rows[Place.PACKET, n] = contents[k, Content.PACKET]
    rows[Place.TS, n] = contents[k, Content.TS]
    rows[Place.FIRST_CAPTURE, n] = contents[k, Content.FIRST_CAPTURE]
    rows[Place.FIRST_PACKET, n] = contents[k, Content.FIRST_PACKET]
    rows[Place.FIRST_TS, n] = contents[k, Content.FIRST_TS]


@kernel
def add_body(of: Channels, k: int, data: Array, offset: int, length: int) -> int:
    """Count, hash and perhaps keep bytes of a body. Returns the number dropped where too many are kept."""
    contents = of.contents
    if contents[k, Content.STATE] != 2 or contents[k, Content.LOST] != 0:
        return 0
    room = contents[k, Content.SIZE] - contents[k, Content.GOT]
    if length > room:
        contents[k, Content.OVER] += length - room
        length = room
    contents[k, Content.GOT] += length
    if offset < 0:
        contents[k, Content.MISSING] += length
        return 0
    hash_feed(of.lanes, of.waiting, k, data, offset, length)
    slot = of.channels[k // 2, Channel.SLOT]
    return keep_bytes(contents, k, of.kept, of.assembly, of.usage, slot, offset, length)


@kernel
def count_held(of: Channels, slot: int, length: int) -> None:
    """Count bytes of a method or header that is kept; with a negative number, count them no more."""
    assembly, usage = of.assembly, of.usage
    assembly[Assembly.HELD] += length
    usage[slot, Usage.HELD] += length
    if assembly[Assembly.HELD] > limits.CONTENTS or usage[slot, Usage.HELD] > limits.CONTENTS_PER_CONNECTION:
        assembly[Assembly.CROWDED] = slot


@kernel
def evict_contents(of: Channels, facts: Array, slot: int) -> None:
    """Drop methods and headers of a connection's contents under way: more than half of what is kept of them.

    These are all that have half of their mean or more. The fault is noted at the last of these contents.
    """
    channels, contents, held = of.channels, of.contents, of.usage[slot, Usage.HELD]
    count = 0
    row = of.first[slot]
    while row >= 0:
        for k in range(2 * row, 2 * row + 2):
            count += 1 if kept_of(contents, k) > 0 else 0
        row = channels[row, Channel.NEXT]
    dropped = 0
    last = -1
    row = of.first[slot]
    while row >= 0:
        for k in range(2 * row, 2 * row + 2):
            has = kept_of(contents, k)
            if has > 0 and 2 * has * count >= held:
                contents[k, Content.METHOD_MISSING] += contents[k, Content.METHOD_LENGTH]
                contents[k, Content.HEADER_MISSING] += contents[k, Content.HEADER_LENGTH]
                contents[k, Content.METHOD_LENGTH] = 0
                contents[k, Content.HEADER_LENGTH] = 0
                dropped += has
                if last < 0 or contents[k, Content.NUMBER] > contents[last, Content.NUMBER]:
                    last = k
        row = channels[row, Channel.NEXT]
    count_held(of, slot, -dropped)
    of.assembly[Assembly.CROWDED] = -1
    if last >= 0:
        side = facts[slot, Facts.CLIENT] if last & 1 == 0 else 1 - facts[slot, Facts.CLIENT]
        unfinished_fault(of, last // 2, last, side, LIMIT, dropped)


@kernel
def kept_of(contents: Array, k: int) -> int:
    """Return the bytes of method and header that are kept of a content, if it is under way."""
    if contents[k, Content.STATE] == 0:
        return 0
    has: int = contents[k, Content.METHOD_LENGTH] + contents[k, Content.HEADER_LENGTH]
    return has


@kernel
def desynchronise(of: Channels, slot: int, server: int, how: int) -> None:
    """Mark frames of one direction as lost or ignored: its contents may not be joined with others.

    Nor do the client's publishes have numbers then, nor answers their requests, unless it turns out that no frame but
    of bodies was lost.
    """
    channels, contents = of.channels, of.contents
    if server == 0 and how == LOST:
        of.usage[slot, Usage.GAPPED] = 1
    row = of.first[slot]
    while row >= 0:
        contents[2 * row + server, Content.LOST] = how
        out_of_step = channels[row, Channel.OUT_OF_STEP]
        if how == LOST:
            channels[row, Channel.OUT_OF_STEP] = out_of_step | (
                1 << server if (out_of_step >> server) & 1 == 0 else OUT_OF_STEP
            )
        elif how == FOUND:
            channels[row, Channel.OUT_OF_STEP] = out_of_step & ~(1 << server)
        if server == 0 and how == LOST:
            channels[row, Channel.UNSURE] = DOUBTFUL if channels[row, Channel.UNSURE] == KNOWN else UNKNOWN
        elif server == 0 and how == FOUND and channels[row, Channel.UNSURE] == DOUBTFUL:
            channels[row, Channel.UNSURE] = KNOWN
        row = channels[row, Channel.NEXT]


@kernel
def touch(frames: Array, i: int, contents: Array, k: int) -> None:
    """Note the last frame of a content so far."""
    contents[k, Content.NUMBER] = frames[Frame.NUMBER, i]
    contents[k, Content.PACKET] = frames[Frame.PACKET, i]
    contents[k, Content.TS] = frames[Frame.TS, i]
    contents[k, Content.CAPTURE] = frames[Frame.CAPTURE, i]


@kernel
def finish_message(of: Channels, row: int, k: int, side: int, how: int) -> None:
    """Write the row of a message: its last frame was seen (0), or it is dropped, as UNFINISHED or CUT_BY_*."""
    channels, contents, messages, assembly = of.channels, of.contents, of.messages, of.assembly
    n = assembly[Assembly.MESSAGES]
    put_content(messages, n, of, row, k, side)
    messages[Message.KIND, n] = contents[k, Content.KIND]
    messages[Message.CHANNEL, n] = channels[row, Channel.CHANNEL]
    messages[Message.EPOCH, n] = channels[row, Channel.EPOCH]
    messages[Message.FIRST_NUMBER, n] = contents[k, Content.FIRST_NUMBER]
    messages[Message.METHOD, n] = contents[k, Content.METHOD]
    messages[Message.METHOD_OFFSET, n] = contents[k, Content.METHOD_OFFSET]
    messages[Message.METHOD_LENGTH, n] = contents[k, Content.METHOD_LENGTH]
    messages[Message.HEADER_OFFSET, n] = contents[k, Content.HEADER_OFFSET]
    messages[Message.HEADER_LENGTH, n] = contents[k, Content.HEADER_LENGTH]
    in_body = contents[k, Content.STATE] == 2
    messages[Message.HEADER_CUT, n] = 1 if contents[k, Content.HEADER_MISSING] > 0 or not in_body else 0
    size = contents[k, Content.SIZE]
    messages[Message.SIZE, n] = size if in_body and size < HUGE else -1
    lost = contents[k, Content.MISSING] + contents[k, Content.METHOD_MISSING] + contents[k, Content.HEADER_MISSING]
    short = size - contents[k, Content.GOT] if in_body else 0
    messages[Message.MISSING, n] = lost + short
    whole = in_body and contents[k, Content.LOST] == 0
    if whole and short == 0 and how == 0:
        messages[Message.PARTIAL, n] = int(lost > 0)
    else:
        is_sure = lost == 0 and contents[k, Content.LOST] == 0
        messages[Message.PARTIAL, n] = how if how > 0 and is_sure else UNFINISHED
    if whole and contents[k, Content.MISSING] == 0 and short == 0 and contents[k, Content.OVER] == 0:
        of.hashes[n] = hash_end(of.lanes, of.waiting, k)
        messages[Message.HASH, n] = 1
    else:
        messages[Message.HASH, n] = 0
    messages[Message.SEQ, n] = contents[k, Content.SEQ]
    messages[Message.NO_ACK, n] = contents[k, Content.NO_ACK]
    messages[Message.BODY, n] = contents[k, Content.BODY]
    assembly[Assembly.MESSAGES] = n + 1
    slot = channels[row, Channel.SLOT]
    count_held(of, slot, -kept_of(contents, k))
    assembly[Assembly.KEEPING] -= contents[k, Content.KEPT]
    of.usage[slot, Usage.KEEPING] -= contents[k, Content.KEPT]
    contents[k, Content.KIND] = 0
    contents[k, Content.STATE] = 0


@kernel
def begin_content(of: Channels, frames: Array, i: int, row: int, k: int, role: int, no_ack: int) -> None:
    """Remember the method of a content."""
    channels, contents, assembly = of.channels, of.contents, of.assembly
    contents[k, Content.KIND] = role
    contents[k, Content.STATE] = 1
    contents[k, Content.METHOD] = frames[Frame.METHOD, i]
    contents[k, Content.METHOD_OFFSET] = frames[Frame.OFFSET, i]
    contents[k, Content.METHOD_LENGTH] = frames[Frame.LENGTH, i]
    contents[k, Content.METHOD_MISSING] = frames[Frame.MISSING, i]
    contents[k, Content.HEADER_OFFSET] = -1
    contents[k, Content.HEADER_LENGTH] = 0
    contents[k, Content.HEADER_MISSING] = 0
    contents[k, Content.SIZE] = 0
    contents[k, Content.GOT] = 0
    contents[k, Content.MISSING] = 0
    contents[k, Content.SEQ] = -1
    if role == PUBLISH:
        channels[row, Channel.SEQ] += channels[row, Channel.CONFIRM]
        if channels[row, Channel.UNSURE] != KNOWN:
            contents[k, Content.SEQ] = -2
        elif channels[row, Channel.CONFIRM]:
            contents[k, Content.SEQ] = channels[row, Channel.SEQ]
    contents[k, Content.NO_ACK] = no_ack
    contents[k, Content.FIRST_NUMBER] = frames[Frame.NUMBER, i]
    contents[k, Content.FIRST_PACKET] = frames[Frame.FIRST_PACKET, i]
    contents[k, Content.FIRST_TS] = frames[Frame.FIRST_TS, i]
    contents[k, Content.FIRST_CAPTURE] = frames[Frame.FIRST_CAPTURE, i]
    contents[k, Content.OVER] = 0
    contents[k, Content.LOST] = 0
    touch(frames, i, contents, k)
    begin_body(contents, k, assembly)
    hash_begin(of.lanes, k)
    count_held(of, frames[Frame.SLOT, i], frames[Frame.LENGTH, i])
