"""AMQP 0-10 assemblies: frames of a track to controls, commands, and commands with header and body.

Frames of other channels, and of the channel's other track, may come between. The frame that completes an assembly says
what it was; one that is never completed is a fault, and of content a message that is partial.
"""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.integers import be16
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.protocols.amqp010.boundary import method_at
from amqpscope.dissector.protocols.amqp010.channels import certainty, channel_row, lose_tracks
from amqpscope.dissector.protocols.amqp010.content import (
    add_payload,
    add_span,
    assembly_fault,
    begin_track,
    end_track,
    join_payloads,
    put_message,
    touch,
    unfinished_fault,
)
from amqpscope.dissector.protocols.amqp010.layout import (
    BEGINS,
    BODY,
    CARRIES_CONTENT,
    COMMAND,
    CONTROL,
    FIRST_FRAME,
    FIRST_SEGMENT,
    HEAD_BYTES,
    HEADER,
    IDS_BYTES,
    LAST_FRAME,
    LAST_SEGMENT,
    PROTOCOL_HEADER,
    WHOLE,
)
from amqpscope.dissector.protocols.amqp010.state import (
    ABANDONED,
    CONTROL_UNKNOWN,
    DESYNCHRONISED,
    INTERRUPTED,
    METHOD_UNKNOWN,
    PASSED,
    SURE,
    UNEXPECTED,
    Assembly,
    Batch,
    Channel,
    Channels,
    Frame,
    Sender,
    Span,
    Track,
)
from amqpscope.dissector.protocols.bodies import UNFINISHED, cut_by
from amqpscope.dissector.protocols.channels import channel_at, drop_channel
from amqpscope.dissector.protocols.state import LIMIT
from amqpscope.dissector.tcp.state import Facts


@kernel
def assemble(batch: Batch, of: Channels) -> None:
    """Take frames and spans from the cursor on until they end or the room for results does."""
    spans, assembly = batch.spans, of.assembly
    i = assembly[Assembly.FRAME]
    s = assembly[Assembly.SPAN]
    row = -1
    while i < assembly[Assembly.FRAMES] or s < assembly[Assembly.SPANS]:
        is_span = s < assembly[Assembly.SPANS] and (i >= assembly[Assembly.FRAMES] or spans[Span.BEFORE, s] <= i)
        if is_full(batch, of, -1 if is_span else i):
            break
        if is_span:
            take_span(batch, of, s)
            s += 1
        else:
            row = take_frame(batch, of, i, row)
            i += 1
    assembly[Assembly.FRAME] = i
    assembly[Assembly.SPAN] = s


@kernel
def is_full(batch: Batch, of: Channels, i: int) -> bool:
    """Return whether there may be too little room for what frame i brings, or for a span (-1)."""
    assembly = of.assembly
    arena = 0
    if i >= 0 and batch.frames[Frame.TYPE, i] != BODY and batch.frames[Frame.FLAGS, i] & WHOLE != WHOLE:
        if of.free_payloads[0] == 0 and of.payloads.shape[0] < limits.FRAGMENTS:
            return True
        arena = assembly[Assembly.LONGEST] + batch.frames[Frame.LENGTH, i]
    return bool(
        assembly[Assembly.MESSAGES] + 2 > of.messages.shape[1]
        or assembly[Assembly.FAULTS] + 4 > of.faults.shape[1]
        or assembly[Assembly.KEPT] + 1 > of.kept.shape[1]
        or (of.free[0] == 0 and of.channels.shape[0] < limits.CHANNELS)
        or assembly[Assembly.ARENA] + arena > len(batch.data)
    )


@kernel
def take_span(batch: Batch, of: Channels, s: int) -> None:
    """Take bytes of a body whose frame is not complete yet."""
    spans, tracks = batch.spans, of.tracks
    slot, side = spans[Span.SLOT, s], spans[Span.SIDE, s]
    client = batch.facts[slot, Facts.CLIENT]
    server = 0 if side == client else 1
    if spans[Span.OFFSET, s] == DESYNCHRONISED:
        senders, how = batch.own.senders, spans[Span.LENGTH, s]
        senders[2 * slot + side, Sender.GAPPED] = certainty(senders[2 * slot + side, Sender.GAPPED], how)
        lose_tracks(of, slot, server, how)
        return
    row = channel_at(of.channels, of.table, slot, spans[Span.CHANNEL, s])
    if row < 0:
        return
    k = 4 * row + 2 * server + 1
    if spans[Span.FLAGS, s] == PASSED:
        if goes_on(tracks, k, 0, BODY) or goes_on(tracks, k, FIRST_FRAME, BODY):
            tracks[k, Track.SEGMENT] = BODY
            tracks[k, Track.OPEN] = 1
            add_span(of, k, batch.data, -1, spans[Span.LENGTH, s], side)
        return
    if tracks[k, Track.WITHIN] == 0:
        if not goes_on(tracks, k, spans[Span.FLAGS, s], BODY):
            return
        tracks[k, Track.WITHIN] = 1
        tracks[k, Track.SEGMENT] = BODY
        tracks[k, Track.OPEN] = 1
    add_span(of, k, batch.data, spans[Span.OFFSET, s], spans[Span.LENGTH, s], side)


@kernel
def goes_on(tracks: Array, k: int, flags: int, kind: int) -> bool:
    """Return whether a frame that does not begin an assembly continues the one under way."""
    if tracks[k, Track.USED] == 0 or tracks[k, Track.LOST] != 0:
        return False
    segment = tracks[k, Track.SEGMENT]
    is_first = segment in (CONTROL, COMMAND)
    if flags & FIRST_FRAME == 0:
        return bool(
            tracks[k, Track.OPEN] == 1 and kind == segment and (flags & FIRST_SEGMENT != 0) == is_first
        )  # fmt: skip
    return bool(
        tracks[k, Track.OPEN] == 0
        and flags & FIRST_SEGMENT == 0
        and tracks[k, Track.KIND] == COMMAND
        and kind in (HEADER, BODY)
        and kind > segment
    )


@kernel
def take_frame(batch: Batch, of: Channels, i: int, row: int) -> int:
    """Take a frame.

    Args:
        batch: has it.
        of: channels and assemblies.
        i: which frame.
        row: of the channel of the frame before it, for frames of one channel mostly follow each other; -1: none.

    Returns:
        The row of its channel; where it has none, that which was given.
    """
    frames, channels, tracks = batch.frames, of.channels, of.tracks
    slot, number = frames[Frame.SLOT, i], frames[Frame.CHANNEL, i]
    client = batch.facts[slot, Facts.CLIENT]
    frames[Frame.ROW, i] = -1
    frames[Frame.GAPPED, i] = 0
    frames[Frame.OPERATION, i] = -1
    frames[Frame.METHOD, i] = -1
    frames[Frame.AT, i] = 0
    frames[Frame.BYTES, i] = 0
    frames[Frame.CUT, i] = 0
    if frames[Frame.TYPE, i] == PROTOCOL_HEADER:
        return row
    if row < 0 or channels[row, Channel.SLOT] != slot or channels[row, Channel.CHANNEL] != number:
        row = channel_row(of, batch.own.senders, client, slot, number)
        if row < 0:
            assembly_fault(of, frames, i, LIMIT, 0)
            return row
    server = 0 if frames[Frame.SIDE, i] == client else 1
    frames[Frame.ROW, i] = row
    frames[Frame.GAPPED, i] = channels[row, Channel.CLIENT_GAPPED + server]
    channels[row, Channel.CLIENT_GAPPED + server] = 0
    k = 4 * row + 2 * server + frames[Frame.TRACK, i]
    flags, kind = frames[Frame.FLAGS, i], frames[Frame.TYPE, i]
    begins = flags & BEGINS == BEGINS and kind in (CONTROL, COMMAND)
    if begins:
        if tracks[k, Track.USED] != 0:
            give_up(batch, of, i, k)
        begin_track(of, frames, i, k, kind)
    elif tracks[k, Track.WITHIN] == 0 and not goes_on(tracks, k, flags, kind):
        misplaced(batch, of, i, k, kind)
        return row
    take_segment(batch, of, i, k)
    if flags & LAST_FRAME != 0:
        tracks[k, Track.OPEN] = 0
        if flags & LAST_SEGMENT != 0:
            finish(batch, of, i, k)
    return row


@kernel
def misplaced(batch: Batch, of: Channels, i: int, k: int, kind: int) -> None:
    """Report a frame that continues nothing known; what continues it is unknown as well."""
    if of.tracks[k, Track.USED] != 0:
        give_up(batch, of, i, k)
    elif of.tracks[k, Track.LOST] == 0:
        assembly_fault(of, batch.frames, i, UNEXPECTED, kind)
    of.tracks[k, Track.LOST] = SURE


@kernel
def give_up(batch: Batch, of: Channels, i: int, k: int) -> None:
    """Drop an incomplete assembly, to which frame i does not belong."""
    frames, tracks = batch.frames, of.tracks
    code = INTERRUPTED if tracks[k, Track.LOST] == 0 else ABANDONED
    assembly_fault(of, frames, i, code, tracks[k, Track.FIRST_NUMBER])
    drop_track(of, k, frames[Frame.SIDE, i], i, batch.own.traits, UNFINISHED)
    frames[Frame.GAPPED, i] = 1  # nor is it known whether its receiver counted it


@kernel
def drop_track(of: Channels, k: int, side: int, i: int, traits: Array, how: int) -> None:
    """Make what there is of an assembly a message, UNFINISHED or CUT_BY_*, if it has content, and forget it."""
    method = of.tracks[k, Track.METHOD]
    if method >= 0 and traits[method] & CARRIES_CONTENT != 0:
        put_message(of, k, side, i, how)
    end_track(of, k)


@kernel
def take_segment(batch: Batch, of: Channels, i: int, k: int) -> None:
    """Take the payload of a frame of the assembly under way."""
    frames, tracks = batch.frames, of.tracks
    flags, kind = frames[Frame.FLAGS, i], frames[Frame.TYPE, i]
    offset, length = frames[Frame.OFFSET, i], frames[Frame.LENGTH, i]
    tracks[k, Track.SEGMENT] = kind
    tracks[k, Track.OPEN] = 1
    touch(of, frames, i, k)
    if kind == BODY:
        if tracks[k, Track.WITHIN] == 0 and length > 0:
            add_span(of, k, batch.data, offset, length, frames[Frame.SIDE, i])
        tracks[k, Track.WITHIN] = 0
        return
    lost = frames[Frame.SIZE, i] - HEAD_BYTES - length
    if flags & WHOLE != WHOLE:
        if flags & FIRST_FRAME != 0:
            tracks[k, Track.CHAIN_MISSING] = 0
        if length > 0 and tracks[k, Track.CHAIN_MISSING] == 0 and add_payload(of, k, offset, length) == 0:
            assembly_fault(of, frames, i, LIMIT, tracks[k, Track.CHAINED] + length)
            lost += length
        elif tracks[k, Track.CHAIN_MISSING] > 0:
            lost += length
        tracks[k, Track.CHAIN_MISSING] += lost
        if flags & LAST_FRAME == 0:
            return
        lost = tracks[k, Track.CHAIN_MISSING]
        length = tracks[k, Track.CHAINED]
        offset = join_payloads(of, k, batch.data)
    if kind == HEADER:
        tracks[k, Track.HEADER_AT] = offset
        tracks[k, Track.HEADER_BYTES] = length
        tracks[k, Track.HEADER_CUT] = lost
    else:
        tracks[k, Track.AT] = offset
        tracks[k, Track.BYTES] = length
        tracks[k, Track.CUT] = lost
        tracks[k, Track.METHOD] = -1 if lost > 0 else -2
        if length >= IDS_BYTES:
            method = method_at(batch.data, offset, kind, batch.own.methods)
            tracks[k, Track.METHOD] = method if method >= 0 else -2


@kernel
def finish(batch: Batch, of: Channels, i: int, k: int) -> None:
    """Complete an assembly with frame i, whose row describes it."""
    frames, tracks = batch.frames, of.tracks
    method = tracks[k, Track.METHOD]
    frames[Frame.OPERATION, i] = tracks[k, Track.KIND]
    frames[Frame.METHOD, i] = method
    frames[Frame.AT, i] = tracks[k, Track.AT]
    frames[Frame.BYTES, i] = tracks[k, Track.BYTES]
    frames[Frame.CUT, i] = 1 if tracks[k, Track.CUT] > 0 else 0
    if method == -2:
        ids = be16(batch.data, tracks[k, Track.AT]) if tracks[k, Track.BYTES] >= IDS_BYTES else 0
        code = CONTROL_UNKNOWN if tracks[k, Track.KIND] == CONTROL else METHOD_UNKNOWN
        assembly_fault(of, frames, i, code, (ids >> 8) << 16 | ids & 0xFF)
    elif method >= 0 and batch.own.traits[method] & CARRIES_CONTENT != 0:
        put_message(of, k, frames[Frame.SIDE, i], i, 0)
    end_track(of, k)


@kernel
def end_channels(of: Channels, facts: Array, traits: Array, slots: Array, begin: int) -> int:
    """Forget the channels of connections that are over; assemblies under way become partial messages and faults.

    Returns the index of the first slot not done for lack of room in `messages` or `faults`.
    """
    assembly, tracks = of.assembly, of.tracks
    for n in range(begin, len(slots)):
        slot = slots[n]
        while of.first[slot] >= 0:
            if (
                assembly[Assembly.MESSAGES] + 4 > of.messages.shape[1]
                or assembly[Assembly.FAULTS] + 4 > of.faults.shape[1]
            ):
                return n
            row = of.first[slot]
            client = facts[slot, Facts.CLIENT]
            for k in range(4 * row, 4 * row + 4):
                if tracks[k, Track.USED] != 0:
                    side = client if k & 2 == 0 else 1 - client
                    unfinished_fault(of, k, side, ABANDONED, tracks[k, Track.FIRST_NUMBER])
                    drop_track(of, k, side, -1, traits, cut_by(facts, slot, side))
            drop_channel(of.channels, of.free, of.table, of.first, row)
    return len(slots)
