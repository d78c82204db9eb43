"""AMQP 0-9-1 contents: method, header and body frames of a channel to messages (specification §4.2.6).

Frames of other channels may come between; anything else inside a content is a fault, and the content is dropped.
What else a message row must say, and only earlier frames know, is kept in the channel's row: its epoch, the publish
number (RabbitMQ: from the client's first confirm.select), and whether the consumer or get acknowledges. A publish that
nobody saw has a number, too: after a gap that may hold one, or a confirm.select, and on a channel that was open
before, numbers are not known until channel.open is seen.
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.integers import be32
from amqpscope.dissector.kernels.kernel import i64, kernel
from amqpscope.dissector.protocols.amqp091.channels import (
    add_consumer,
    answered,
    channel_row,
    clear,
    consumer,
    end_channel,
    push,
)
from amqpscope.dissector.protocols.amqp091.content import (
    HUGE,
    add_body,
    begin_content,
    content_fault,
    count_held,
    desynchronise,
    finish_message,
    touch,
    unfinished_fault,
)
from amqpscope.dissector.protocols.amqp091.layout import (
    BODY,
    CLOSE,
    CONFIRMS,
    CONNECTION,
    CONSUME,
    CONSUME_OK,
    DELIVER,
    GET,
    GET_EMPTY,
    GET_OK,
    HEADER,
    METHOD,
    OPEN,
    PLAIN,
    PROTOCOL_HEADER,
    PUBLISH,
    RETURN,
    SELECT,
)
from amqpscope.dissector.protocols.amqp091.state import (
    ABANDONED,
    BODY_TOO_LARGE,
    CHANNEL_WRONG,
    DESYNCHRONISED,
    INTERRUPTED,
    KNOWN,
    LOST,
    OUT_OF_STEP,
    UNEXPECTED,
    UNKNOWN,
    Assembly,
    Batch,
    Channel,
    Channels,
    Content,
    Frame,
    Node,
    Span,
    Usage,
)
from amqpscope.dissector.protocols.bodies import CUT_BY_SENDER, UNFINISHED, cut_by
from amqpscope.dissector.protocols.channels import channel_at
from amqpscope.dissector.protocols.state import LIMIT, TOO_LARGE
from amqpscope.dissector.tcp.state import Facts


@kernel
def assemble(batch: Batch, of: Channels) -> None:
    """Take frames and spans from the cursor on until they end or the room for results does.

    It also ends where too much is held of contents under way; see `evict_contents`. Fills Frame.EPOCH.
    """
    spans, assembly = batch.spans, of.assembly
    i = assembly[Assembly.FRAME]
    s = assembly[Assembly.SPAN]
    row = -1
    while (i < assembly[Assembly.FRAMES] or s < assembly[Assembly.SPANS]) and not is_full(of):
        if s < assembly[Assembly.SPANS] and (i >= assembly[Assembly.FRAMES] or spans[Span.BEFORE, s] <= i):
            slot = spans[Span.SLOT, s]
            server = 0 if spans[Span.SIDE, s] == batch.facts[slot, Facts.CLIENT] else 1
            if spans[Span.OFFSET, s] == DESYNCHRONISED:
                desynchronise(of, slot, server, spans[Span.LENGTH, s])
            else:
                row = take_span(batch, of, s, server)
            s += 1
            continue
        row = take_frame(batch, of, i, row)
        i += 1
    assembly[Assembly.FRAME] = i
    assembly[Assembly.SPAN] = s


@kernel
def is_full(of: Channels) -> bool:
    """Return whether there may be too little room for what the next frame brings."""
    assembly = of.assembly
    return (
        assembly[Assembly.MESSAGES] + 3 > of.messages.shape[1]
        or assembly[Assembly.FAULTS] + 5 > of.faults.shape[1]
        or assembly[Assembly.KEPT] + 2 > of.kept.shape[1]
        or (of.free[0] == 0 and assembly[Assembly.FULL] == 0)
        or assembly[Assembly.CROWDED] >= 0
    )


@kernel
def take_span(batch: Batch, of: Channels, s: int, server: int) -> int:
    """Take bytes of a body whose frame is not complete yet; returns the channel's row, -1 when it is not known."""
    spans = batch.spans
    row: int = channel_at(of.channels, of.table, spans[Span.SLOT, s], spans[Span.CHANNEL, s])
    if row >= 0:
        k = 2 * row + server
        dropped = add_body(of, k, batch.data, spans[Span.OFFSET, s], spans[Span.LENGTH, s])
        if dropped > 0:
            unfinished_fault(of, row, k, spans[Span.SIDE, s], LIMIT, dropped)
    return row


@kernel
def take_frame(batch: Batch, of: Channels, i: int, row: int) -> int:
    """Take a frame.

    Args:
        batch: has it.
        of: channels and contents.
        i: which frame.
        row: of the channel of the frame before it, for frames of one channel mostly follow each other; -1: none.

    Returns:
        The row of its channel; where it has none, that which was given.
    """
    frames, channels = batch.frames, of.channels
    slot = frames[Frame.SLOT, i]
    kind = frames[Frame.TYPE, i]
    number = frames[Frame.CHANNEL, i]
    method = frames[Frame.METHOD, i]
    role = PLAIN
    if method >= 0:
        role = batch.roles[method]
    frames[Frame.EPOCH, i] = 0
    if kind == PROTOCOL_HEADER or number == 0:
        if kind in (HEADER, BODY) or (kind == METHOD and role not in (PLAIN, CONNECTION, CLOSE)):
            content_fault(of, frames, i, CHANNEL_WRONG, 0)
        return row
    if row < 0 or channels[row, Channel.SLOT] != slot or channels[row, Channel.CHANNEL] != number:
        row = channel_row(of, slot, number)
        if row < 0:
            content_fault(of, frames, i, LIMIT, 0)
            return row
    server = 0 if frames[Frame.SIDE, i] == batch.facts[slot, Facts.CLIENT] else 1
    if kind == METHOD:
        take_method(batch, of, i, row, server, role)
    elif kind == HEADER:
        take_header(batch, of, i, row, 2 * row + server)
    elif kind == BODY:
        take_body(batch, of, i, row, 2 * row + server)
    frames[Frame.EPOCH, i] = channels[row, Channel.EPOCH]
    return row


@kernel
def take_method(batch: Batch, of: Channels, i: int, row: int, server: int, role: int) -> None:
    """Apply a method to contents under way and to its channel."""
    frames, channels, contents = batch.frames, of.channels, of.contents
    k = 2 * row + server
    side = frames[Frame.SIDE, i]
    opens = role == OPEN and server == 0
    for other in range(2 * row if opens else k, 2 * row + 2 if opens else k + 1):
        if contents[other, Content.STATE] != 0:
            first = contents[other, Content.FIRST_NUMBER]
            if opens:
                content_fault(of, frames, i, ABANDONED, first)
            elif not may_be_cut(batch, of, i, row, other):
                content_fault(of, frames, i, INTERRUPTED, first)
                lose_count(of, row, k)
            # what else interrupts it may be no method at all, but a frame whose header is damaged
            how = CUT_BY_SENDER if other == k and role == CLOSE else UNFINISHED
            finish_message(of, row, other, side if other == k else 1 - side, how)
    if opens:
        clear(of, row)
        channels[row, Channel.EPOCH] += 1
        channels[row, Channel.CONFIRM] = 0
        channels[row, Channel.SEQ] = 0
        channels[row, Channel.UNSURE] = KNOWN
        channels[row, Channel.OUT_OF_STEP] = 0
    elif role == SELECT:
        begun_before = channels[row, Channel.EPOCH] == 0 and of.usage[frames[Frame.SLOT, i], Usage.GAPPED] == 0
        if begun_before and channels[row, Channel.CONFIRM] == 0:
            channels[row, Channel.UNSURE] = KNOWN  # nothing shows that there was another select
        channels[row, Channel.CONFIRM] = 1
    elif role == CONFIRMS:
        if server and channels[row, Channel.EPOCH] == 0:
            channels[row, Channel.CONFIRM] = 1
    elif role in (PUBLISH, DELIVER, GET_OK, RETURN):
        begin_content(of, frames, i, row, k, role, acknowledgement(of, row, role, batch.tags[i]))
    elif role == CONNECTION:
        content_fault(of, frames, i, CHANNEL_WRONG, 0)
    elif role != PLAIN:
        take_request(batch, of, i, row, role)
    if frames[Frame.METHOD, i] < 0:  # what it was is not known
        contents[k, Content.LOST] = LOST
        channels[row, Channel.OUT_OF_STEP] |= OUT_OF_STEP
        if server == 0:
            channels[row, Channel.UNSURE] = UNKNOWN


@kernel
def may_be_cut(batch: Batch, of: Channels, i: int, row: int, k: int) -> bool:
    """Return whether the capture may lack frames of a content, so that what is there is no fault of its sender's."""
    facts, slot, contents = batch.facts, batch.frames[Frame.SLOT, i], of.contents
    if of.channels[row, Channel.EPOCH] == 0 and contents[k, Content.FIRST_PACKET] == 0:
        return bool(facts[slot, Facts.SYN] == 0 or of.usage[slot, Usage.GAPPED] != 0)
    return bool(contents[k, Content.LOST] != 0 or contents[k, Content.MISSING] > 0)


@kernel
def lose_count(of: Channels, row: int, k: int) -> None:
    """Note that a frame of a content is not what was sent, for others are missing, and may have been publishes."""
    if k & 1 == 0:
        of.channels[row, Channel.UNSURE] = UNKNOWN


@kernel
def acknowledgement(of: Channels, row: int, role: int, tag: int) -> int:
    """Return the no_ack of what a delivery, or the answer to a get, belongs to; -1 where it is not known."""
    node = -1
    if role == DELIVER:
        node = consumer(of, row, tag)
    elif role == GET_OK:
        node = answered(of, row, Channel.GETS, 0)
    flag: int = of.nodes[node, Node.VALUE] if node >= 0 else -1
    return flag


@kernel
def take_request(batch: Batch, of: Channels, i: int, row: int, role: int) -> None:
    """Remember consumers and gets, and pair answers with them."""
    tag = batch.tags[i]
    no_ack = -1
    if batch.frames[Frame.MISSING, i] == 0:
        no_ack = is_set(batch.no_acks, i)
    if role == CONSUME:
        if no_ack < 0:  # nor is it known whether an answer will come
            of.channels[row, Channel.OUT_OF_STEP] |= OUT_OF_STEP
        add_consumer(of, row, tag, no_ack)
        if is_set(batch.no_waits, i) == 0:
            push(of, row, Channel.CONSUMES, tag, no_ack)
    elif role == CONSUME_OK:
        node = answered(of, row, Channel.CONSUMES, tag)
        if node >= 0 and of.nodes[node, Node.KEY] == 0:
            add_consumer(of, row, tag, of.nodes[node, Node.VALUE])
    elif role == GET:
        push(of, row, Channel.GETS, 0, no_ack)
    elif role == GET_EMPTY:
        answered(of, row, Channel.GETS, 0)


@kernel
def is_set(bits: Array, i: int) -> int:
    """Return an item of a bitmap."""
    return (i64(bits[i >> 3]) >> (i & 7)) & 1


@kernel
def take_header(batch: Batch, of: Channels, i: int, row: int, k: int) -> None:
    """Take the header of a content."""
    frames, contents = batch.frames, of.contents
    side, length = frames[Frame.SIDE, i], frames[Frame.LENGTH, i]
    if contents[k, Content.STATE] != 1 or contents[k, Content.LOST] != 0 or length < 12:
        if frames[Frame.MISSING, i] == 0 and not may_be_cut(batch, of, i, row, k):
            content_fault(of, frames, i, UNEXPECTED, HEADER)
            lose_count(of, row, k)
        if contents[k, Content.STATE] != 0:
            finish_message(of, row, k, side, UNFINISHED)
        return
    touch(frames, i, contents, k)
    offset = frames[Frame.OFFSET, i]
    contents[k, Content.STATE] = 2
    contents[k, Content.HEADER_OFFSET] = offset
    contents[k, Content.HEADER_LENGTH] = length
    contents[k, Content.HEADER_MISSING] = frames[Frame.MISSING, i]
    count_held(of, frames[Frame.SLOT, i], length)
    high = be32(batch.data, offset + 4)
    if high < 1 << 30:
        contents[k, Content.SIZE] = (high << 32) | be32(batch.data, offset + 8)
    else:
        contents[k, Content.SIZE] = HUGE
        content_fault(of, frames, i, TOO_LARGE, HUGE)
    if contents[k, Content.SIZE] == 0:
        finish_message(of, row, k, side, 0)


@kernel
def take_body(batch: Batch, of: Channels, i: int, row: int, k: int) -> None:
    """Take a body frame of a content."""
    frames, contents = batch.frames, of.contents
    side = frames[Frame.SIDE, i]
    if contents[k, Content.STATE] != 2 or contents[k, Content.LOST] != 0:
        if not may_be_cut(batch, of, i, row, k):
            content_fault(of, frames, i, UNEXPECTED, BODY)
            lose_count(of, row, k)
        if contents[k, Content.STATE] != 0 and contents[k, Content.LOST] != 0:
            finish_message(of, row, k, side, UNFINISHED)
        return
    touch(frames, i, contents, k)
    if frames[Frame.OFFSET, i] >= 0:
        dropped = add_body(of, k, batch.data, frames[Frame.OFFSET, i], frames[Frame.LENGTH, i])
        if dropped > 0:
            unfinished_fault(of, row, k, side, LIMIT, dropped)
    if contents[k, Content.OVER] > 0:
        content_fault(of, frames, i, BODY_TOO_LARGE, contents[k, Content.OVER])
    if contents[k, Content.GOT] >= contents[k, Content.SIZE]:
        finish_message(of, row, k, side, 0)


@kernel
def end_channels(of: Channels, facts: Array, slots: Array, begin: int) -> int:
    """Forget the channels of connections that are over; contents under way become partial messages and faults.

    Returns the index of the first slot not done for lack of room in `messages` or `faults`.
    """
    assembly, contents = of.assembly, of.contents
    for i in range(begin, len(slots)):
        slot = slots[i]
        while of.first[slot] >= 0:
            if (
                assembly[Assembly.MESSAGES] + 2 > of.messages.shape[1]
                or assembly[Assembly.FAULTS] + 2 > of.faults.shape[1]
            ):
                return i
            row = of.first[slot]
            for k in range(2 * row, 2 * row + 2):
                if contents[k, Content.STATE] != 0:
                    side = facts[slot, Facts.CLIENT] if k & 1 == 0 else 1 - facts[slot, Facts.CLIENT]
                    unfinished_fault(of, row, k, side, ABANDONED, contents[k, Content.FIRST_NUMBER])
                    finish_message(of, row, k, side, cut_by(facts, slot, side))
            end_channel(of, row)
    return len(slots)
