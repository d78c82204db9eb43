"""AMQP 0-9-1 contents: method, header and body frames of a channel to messages (specification §4.2.6).

Frames of other channels may come between; anything else inside a content is a fault, and the content is given up.
What else a message row must say, and only earlier frames know, is kept in the channel's row: its epoch, the publish
number (RabbitMQ: from the client's first confirm.select), and whether the consumer or get acknowledges. A publish that
nobody saw has a number, too: behind a gap that may hold one, or a confirm.select, and on a channel that was open
before, numbers are not known until channel.open is seen.
"""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import i64, kernel
from amqpscope.dissector.kernels.pool import give_row
from amqpscope.dissector.protocols.amqp091.channels import add_consumer, answered, channel_row, clear, consumer, push
from amqpscope.dissector.protocols.amqp091.content import (
    HUGE,
    begin_content,
    body_octets,
    content_fault,
    desynchronise,
    finish_message,
    touch,
    unfinished_fault,
)
from amqpscope.dissector.protocols.amqp091.layout import (
    ABANDONED,
    B_FIRST_NO,
    B_GOT,
    B_HEADER_LENGTH,
    B_HEADER_MISSING,
    B_HEADER_OFFSET,
    B_LOST,
    B_OVER,
    B_SIZE,
    B_STATE,
    BODY,
    BODY_TOO_LARGE,
    CHANNEL_WRONG,
    CONNECTION,
    CONSUME,
    CONSUME_OK,
    DELIVER,
    GET,
    GET_EMPTY,
    GET_OK,
    HEADER,
    INTERRUPTED,
    KNOWN,
    LOST_WAY,
    METHOD,
    N_CHANNEL,
    N_CONFIRM,
    N_CONSUMES,
    N_EPOCH,
    N_GETS,
    N_NEXT,
    N_SEQ,
    N_SLOT,
    N_STRAYED,
    N_UNSURE,
    N_USED,
    NOT_TAKEN,
    OPEN,
    PLAIN,
    PROTOCOL_HEADER,
    PUBLISH,
    Q_FAULTS,
    Q_FRAME,
    Q_FULL,
    Q_HELD,
    Q_KEPT,
    Q_MESSAGES,
    Q_SPAN,
    Q_TOMBSTONES,
    R_CHANNEL,
    R_EPOCH,
    R_LENGTH,
    R_METHOD,
    R_MISSING,
    R_OFFSET,
    R_SIDE,
    R_SLOT,
    R_TYPE,
    RETURN,
    SELECT,
    STRAYED,
    UNEXPECTED,
    UNKNOWN,
    X_BEFORE,
    X_CHANNEL,
    X_LENGTH,
    X_OFFSET,
    X_SIDE,
    X_SLOT,
    Z_KEY,
    Z_VALUE,
)
from amqpscope.dissector.protocols.framing import LIMIT, TOO_LARGE, u32
from amqpscope.dissector.tcp.layout import C_CLIENT, C_GAPPED

NONE = -1
"""No fault."""


@kernel
def take_method(
    frames: Array, i: int, role: int, tag: int, no_ack: int, no_wait: int, channels: Array, row: int,
    contents: Array, lanes: Array, nodes: Array, free_nodes: Array, control: Array, server: int, keep: int,
) -> None:  # fmt: skip
    """What a method changes on its channel."""
    if role in (PUBLISH, DELIVER, GET_OK, RETURN):
        flag = -1
        if role == DELIVER:
            node = consumer(channels, row, nodes, tag)
            if node >= 0:
                flag = nodes[node, Z_VALUE]
        elif role == GET_OK:
            node = answered(channels, row, N_GETS, nodes, free_nodes, 0)
            if node >= 0:
                flag = nodes[node, Z_VALUE]
        begin_content(frames, i, role, flag, channels, row, contents, 2 * row + server, lanes, control, keep)
    elif role == SELECT:
        channels[row, N_CONFIRM] = 1
    elif role == CONSUME:
        if no_ack < 0:  # nor is it known whether an answer will come
            channels[row, N_STRAYED] |= STRAYED
        add_consumer(channels, row, nodes, free_nodes, tag, no_ack)
        if no_wait == 0:
            push(channels, row, N_CONSUMES, nodes, free_nodes, tag, no_ack)
    elif role == CONSUME_OK:
        node = answered(channels, row, N_CONSUMES, nodes, free_nodes, tag)
        if node >= 0 and nodes[node, Z_KEY] == 0:
            add_consumer(channels, row, nodes, free_nodes, tag, nodes[node, Z_VALUE])
    elif role == GET:
        push(channels, row, N_GETS, nodes, free_nodes, 0, no_ack)
    elif role == GET_EMPTY:
        answered(channels, row, N_GETS, nodes, free_nodes, 0)


@kernel
def is_set(bits: Array, i: int) -> int:
    """An item of a bitmap."""
    return (i64(bits[i >> 3]) >> (i & 7)) & 1


@kernel
def assemble(
    frames: Array, count: int, spans: Array, span_count: int, data: Array, conn: Array, roles: Array, tags: Array,
    no_acks: Array, no_waits: Array,
    channels: Array, contents: Array, lanes: Array, waiting: Array, table: Array, first: Array, free_channels: Array,
    nodes: Array, free_nodes: Array, messages: Array, hashes: Array, faults: Array, kept: Array, control: Array,
    keep: int,
) -> None:  # fmt: skip
    """Take frames and spans from the cursor on until they end or the room for results does.

    It also ends where too much is held of contents under way; see `give_up`.

    `tags`: per frame the hash of its consumer tag (0: none or empty); `no_acks`, `no_waits`: bitmaps of two arguments.
    Fills R_EPOCH of the frames.
    """
    i = control[Q_FRAME]
    s = control[Q_SPAN]
    row = -1
    while i < count or s < span_count:
        if (
            control[Q_MESSAGES] + 3 > messages.shape[1]
            or control[Q_FAULTS] + 5 > faults.shape[1]
            or control[Q_KEPT] + 2 > kept.shape[1]
            or (free_channels[0] == 0 and control[Q_FULL] == 0)
            or control[Q_HELD] > limits.CONTENTS
        ):
            break
        if s < span_count and (i >= count or spans[X_BEFORE, s] <= i):
            if spans[X_OFFSET, s] == LOST_WAY:
                server = 0 if spans[X_SIDE, s] == conn[spans[X_SLOT, s], C_CLIENT] else 1
                desynchronise(spans[X_SLOT, s], server, spans[X_LENGTH, s], conn, channels, contents, first)
                s += 1
                continue
            row = channel_row(
                spans[X_SLOT, s], spans[X_CHANNEL, s], 0, channels, contents, lanes, table, first, free_channels,
                control,
            )  # fmt: skip
            if row >= 0:
                side = spans[X_SIDE, s]
                k = 2 * row + (0 if side == conn[spans[X_SLOT, s], C_CLIENT] else 1)
                dropped = body_octets(
                    contents, lanes, waiting, kept, control, k, data, spans[X_OFFSET, s], spans[X_LENGTH, s], keep
                )  # fmt: skip
                if dropped > 0:
                    unfinished_fault(faults, control, channels, row, contents, k, side, LIMIT, dropped)
            s += 1
            continue
        slot = frames[R_SLOT, i]
        kind = frames[R_TYPE, i]
        number = frames[R_CHANNEL, i]
        method = frames[R_METHOD, i]
        role = PLAIN
        if method >= 0:
            role = roles[method]
        epoch = 0
        wrong = NONE
        value = 0
        is_over = False
        side = frames[R_SIDE, i]
        server = 0 if side == conn[slot, C_CLIENT] else 1
        k = 0
        if kind == PROTOCOL_HEADER or number == 0:
            if kind in (HEADER, BODY) or (kind == METHOD and role not in (PLAIN, CONNECTION)):
                wrong = CHANNEL_WRONG
            number = 0
        # Frames of one channel mostly follow each other.
        elif row < 0 or channels[row, N_SLOT] != slot or channels[row, N_CHANNEL] != number:
            row = channel_row(slot, number, 1, channels, contents, lanes, table, first, free_channels, control)
            if row < 0:
                wrong = LIMIT
                number = 0
        if number != 0:
            k = 2 * row + server
            if kind == METHOD:
                wrong = CHANNEL_WRONG if role == CONNECTION else NONE
                opens = role == OPEN and server == 0
                for other in range(2 * row if opens else k, 2 * row + 2 if opens else k + 1):
                    if contents[other, B_STATE] != 0:
                        broken = ABANDONED if opens else INTERRUPTED
                        content_fault(faults, control, frames, i, broken, contents[other, B_FIRST_NO])
                        sender = side if other == k else 1 - side
                        finish_message(
                            channels, row, contents, other, sender, lanes, waiting, hashes, messages, control
                        )
                if opens:
                    clear(channels, row, nodes, free_nodes)
                    channels[row, N_EPOCH] += 1
                    channels[row, N_CONFIRM] = 0
                    channels[row, N_SEQ] = 0
                    channels[row, N_UNSURE] = KNOWN
                    channels[row, N_STRAYED] = 0
                if role == SELECT and channels[row, N_EPOCH] == 0 and conn[slot, C_GAPPED] == 0:
                    channels[row, N_UNSURE] = KNOWN  # the opening was before the capture; this is the first select
                if method == -1:  # not enough is left of it to say what it was
                    channels[row, N_STRAYED] |= STRAYED
                    if server == 0:
                        channels[row, N_UNSURE] = UNKNOWN
                no_ack = 0
                if role in (CONSUME, GET):
                    no_ack = is_set(no_acks, i) if frames[R_MISSING, i] == 0 else -1
                take_method(
                    frames, i, role, tags[i], no_ack, is_set(no_waits, i), channels, row, contents, lanes, nodes,
                    free_nodes, control, server, keep,
                )  # fmt: skip
            elif kind == HEADER:
                if contents[k, B_STATE] != 1 or contents[k, B_LOST] != 0 or frames[R_LENGTH, i] < 12:
                    wrong = UNEXPECTED
                    value = kind
                    is_over = contents[k, B_STATE] != 0
                else:
                    touch(frames, i, contents, k)
                    offset = frames[R_OFFSET, i]
                    contents[k, B_STATE] = 2
                    contents[k, B_HEADER_OFFSET] = offset
                    contents[k, B_HEADER_LENGTH] = frames[R_LENGTH, i]
                    contents[k, B_HEADER_MISSING] = frames[R_MISSING, i]
                    control[Q_HELD] += frames[R_LENGTH, i]
                    high = u32(data, offset + 4)
                    if high < 1 << 30:
                        contents[k, B_SIZE] = (high << 32) | u32(data, offset + 8)
                    else:
                        contents[k, B_SIZE] = HUGE
                        wrong = TOO_LARGE
                        value = HUGE
                    is_over = contents[k, B_SIZE] == 0
            elif kind == BODY:
                if contents[k, B_STATE] != 2 or contents[k, B_LOST] != 0:
                    if contents[k, B_LOST] != NOT_TAKEN:
                        wrong = UNEXPECTED
                        value = kind
                    is_over = contents[k, B_STATE] != 0 and contents[k, B_LOST] != 0
                else:
                    touch(frames, i, contents, k)
                    if frames[R_OFFSET, i] >= 0:
                        dropped = body_octets(
                            contents, lanes, waiting, kept, control, k, data, frames[R_OFFSET, i], frames[R_LENGTH, i],
                            keep,
                        )  # fmt: skip
                        if dropped > 0:
                            unfinished_fault(faults, control, channels, row, contents, k, side, LIMIT, dropped)
                    if contents[k, B_OVER] > 0:
                        wrong = BODY_TOO_LARGE
                        value = contents[k, B_OVER]
                    is_over = contents[k, B_GOT] >= contents[k, B_SIZE]
            epoch = channels[row, N_EPOCH]
        if wrong != NONE:
            content_fault(faults, control, frames, i, wrong, value)
        if is_over:
            finish_message(channels, row, contents, k, side, lanes, waiting, hashes, messages, control)
        frames[R_EPOCH, i] = epoch
        i += 1
    control[Q_FRAME] = i
    control[Q_SPAN] = s


@kernel
def end_channels(
    slots: Array, begin: int, conn: Array, channels: Array, contents: Array, lanes: Array, waiting: Array, table: Array,
    first: Array, free_channels: Array, nodes: Array, free_nodes: Array, messages: Array, hashes: Array, faults: Array,
    control: Array,
) -> int:  # fmt: skip
    """Forget the channels of connections that are over; contents under way become partial messages and faults.

    Returns the index of the first slot not done for lack of room in `messages` or `faults`.
    """
    for i in range(begin, len(slots)):
        slot = slots[i]
        while first[slot] >= 0:
            if control[Q_MESSAGES] + 2 > messages.shape[1] or control[Q_FAULTS] + 2 > faults.shape[1]:
                return i
            row = first[slot]
            for k in range(2 * row, 2 * row + 2):
                if contents[k, B_STATE] != 0:
                    side = conn[slot, C_CLIENT] if k & 1 == 0 else 1 - conn[slot, C_CLIENT]
                    unfinished_fault(
                        faults, control, channels, row, contents, k, side, ABANDONED, contents[k, B_FIRST_NO]
                    )  # fmt: skip
                    finish_message(channels, row, contents, k, side, lanes, waiting, hashes, messages, control)
            clear(channels, row, nodes, free_nodes)
            mask = len(table) - 1
            place = mix(mix(7, slot), channels[row, N_CHANNEL]) & mask
            while table[place] != row + 1:
                place = (place + 1) & mask
            table[place] = -1
            control[Q_TOMBSTONES] += 1
            first[slot] = channels[row, N_NEXT]
            channels[row, N_USED] = 0
            give_row(free_channels, row)
    return len(slots)
