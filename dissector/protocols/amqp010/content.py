"""AMQP 0-10: what is kept of an assembly under way: segments that go on, the body as it passes, and what it becomes."""

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import hash_begin, hash_end, hash_feed
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.pool import append_row, give_row, take_row
from amqpscope.dissector.kernels.words import copy_bytes
from amqpscope.dissector.protocols.amqp010.state import (
    Assembly,
    Channel,
    Channels,
    Frame,
    Message,
    Payload,
    Track,
)
from amqpscope.dissector.protocols.bodies import UNFINISHED, begin_body, keep_bytes
from amqpscope.dissector.protocols.emitting import put_fault
from amqpscope.dissector.protocols.state import LIMIT, Place, Usage


@kernel
def assembly_fault(of: Channels, frames: Array, i: int, code: int, value: int) -> None:
    """Note a fault at this frame. One that finds no room is dropped: the caller leaves enough of it."""
    n = of.assembly[Assembly.FAULTS]
    if n >= of.faults.shape[1]:
        return
    for k in range(Place.WIDTH):
        of.faults[k, n] = frames[k, i]
    put_fault(of.faults, n, code, value, frames[Frame.CHANNEL, i], frames[Frame.POS, i])
    of.assembly[Assembly.FAULTS] = n + 1


@kernel
def unfinished_fault(of: Channels, k: int, side: int, code: int, value: int) -> None:
    """Note a fault of an assembly that is under way, at the last frame it had."""
    n = of.assembly[Assembly.FAULTS]
    if n >= of.faults.shape[1]:
        return
    put_track(of.faults, n, of, k, side)
    put_fault(of.faults, n, code, value, of.channels[k // 4, Channel.CHANNEL], -1)
    of.assembly[Assembly.FAULTS] = n + 1


@kernel
def put_track(rows: Array, n: int, of: Channels, k: int, side: int) -> None:
    """Write where an assembly is that `side` sends: at its last frame so far."""
    tracks = of.tracks
    rows[Place.SLOT, n] = of.channels[k // 4, Channel.SLOT]
    rows[Place.SIDE, n] = side
    rows[Place.NUMBER, n] = tracks[k, Track.NUMBER]
    rows[Place.CAPTURE, n] = tracks[k, Track.CAPTURE]
    rows[Place.PACKET, n] = tracks[k, Track.PACKET]
    rows[Place.TS, n] = tracks[k, Track.TS]
    rows[Place.FIRST_CAPTURE, n] = tracks[k, Track.FIRST_CAPTURE]
    rows[Place.FIRST_PACKET, n] = tracks[k, Track.FIRST_PACKET]
    rows[Place.FIRST_TS, n] = tracks[k, Track.FIRST_TS]


@kernel
def begin_track(of: Channels, frames: Array, i: int, k: int, kind: int) -> None:
    """Begin an assembly with this frame."""
    tracks = of.tracks
    for column in range(Track.WIDTH):
        tracks[k, column] = 0
    tracks[k, Track.USED] = 1
    tracks[k, Track.SEGMENT] = kind
    tracks[k, Track.KIND] = kind
    tracks[k, Track.OPEN] = 1
    tracks[k, Track.METHOD] = -1
    tracks[k, Track.CHAIN] = -1
    tracks[k, Track.HEADER_AT] = -1
    tracks[k, Track.FIRST_NUMBER] = frames[Frame.NUMBER, i]
    tracks[k, Track.FIRST_PACKET] = frames[Frame.FIRST_PACKET, i]
    tracks[k, Track.FIRST_TS] = frames[Frame.FIRST_TS, i]
    tracks[k, Track.FIRST_CAPTURE] = frames[Frame.FIRST_CAPTURE, i]
    begin_body(tracks, k, of.assembly)
    hash_begin(of.lanes, k // 2)


@kernel
def touch(of: Channels, frames: Array, i: int, k: int) -> None:
    """Note the last frame of an assembly so far."""
    tracks = of.tracks
    tracks[k, Track.NUMBER] = frames[Frame.NUMBER, i]
    tracks[k, Track.PACKET] = frames[Frame.PACKET, i]
    tracks[k, Track.TS] = frames[Frame.TS, i]
    tracks[k, Track.CAPTURE] = frames[Frame.CAPTURE, i]


@kernel
def add_payload(of: Channels, k: int, offset: int, length: int) -> int:
    """Keep bytes of a segment that goes on; 0 when a limit forbids it."""
    tracks, payloads, usage, assembly = of.tracks, of.payloads, of.usage, of.assembly
    slot = of.channels[k // 4, Channel.SLOT]
    if (
        of.free_payloads[0] == 0
        or tracks[k, Track.CHAINED] + length > limits.PAYLOAD
        or usage[slot, Usage.PAYLOADS] >= limits.FRAGMENTS_PER_CONNECTION
        or usage[slot, Usage.HELD] + length > limits.CONTENTS_PER_CONNECTION
        or assembly[Assembly.HELD] + length > limits.CONTENTS
    ):
        return 0
    payload = take_row(of.free_payloads)
    payloads[payload, Payload.OFFSET] = offset
    payloads[payload, Payload.LENGTH] = length
    payloads[payload, Payload.USED] = 1
    append_row(payloads, payload, Payload.NEXT, tracks, k, Track.CHAIN, Track.CHAIN_END)
    tracks[k, Track.CHAINED] += length
    usage[slot, Usage.PAYLOADS] += 1
    usage[slot, Usage.HELD] += length
    assembly[Assembly.HELD] += length
    assembly[Assembly.LONGEST] = max(assembly[Assembly.LONGEST], tracks[k, Track.CHAINED])
    return 1


@kernel
def join_payloads(of: Channels, k: int, data: Array) -> int:
    """Copy the payloads of a segment to the arena, where the caller has left room; returns where they begin."""
    offset: int = of.assembly[Assembly.ARENA]
    at = offset
    payload = of.tracks[k, Track.CHAIN]
    while payload >= 0:
        length = of.payloads[payload, Payload.LENGTH]
        start = of.payloads[payload, Payload.OFFSET]
        # the first and the last byte lie in the data, so all do; the arena is after all payloads
        data[at] = data[start]
        data[at + length - 1] = data[start + length - 1]
        copy_bytes(data, start, data, at, length)
        at += length
        payload = of.payloads[payload, Payload.NEXT]
    of.assembly[Assembly.ARENA] = at
    drop_payloads(of, k)
    return offset


@kernel
def drop_payloads(of: Channels, k: int) -> None:
    """Give back the payloads of a segment."""
    slot = of.channels[k // 4, Channel.SLOT]
    payload = of.tracks[k, Track.CHAIN]
    while payload >= 0:
        of.payloads[payload, Payload.USED] = 0
        of.usage[slot, Usage.PAYLOADS] -= 1
        give_row(of.free_payloads, payload)
        payload = of.payloads[payload, Payload.NEXT]
    of.usage[slot, Usage.HELD] -= of.tracks[k, Track.CHAINED]
    of.assembly[Assembly.HELD] -= of.tracks[k, Track.CHAINED]
    of.tracks[k, Track.CHAIN] = -1
    of.tracks[k, Track.CHAINED] = 0


@kernel
def add_body(of: Channels, k: int, data: Array, offset: int, length: int) -> int:
    """Count, hash and perhaps keep bytes of a body. Returns the number dropped where too many are kept."""
    tracks = of.tracks
    tracks[k, Track.SIZE] += length
    if offset < 0:
        tracks[k, Track.MISSING] += length
        return 0
    hash_feed(of.lanes, of.waiting, k // 2, data, offset, length)
    slot = of.channels[k // 4, Channel.SLOT]
    return keep_bytes(tracks, k, of.kept, of.assembly, of.usage, slot, offset, length)


@kernel
def add_span(of: Channels, k: int, data: Array, offset: int, length: int, side: int) -> None:
    """Take bytes of a body; where that is too much to be kept, it is a fault of the frame before."""
    dropped = add_body(of, k, data, offset, length)
    if dropped > 0:
        unfinished_fault(of, k, side, LIMIT, dropped)


@kernel
def put_message(of: Channels, k: int, side: int, i: int, how: int) -> None:
    """Write the row of a message that is complete at frame i (0), or dropped there, as UNFINISHED or CUT_BY_*."""
    tracks, messages, assembly = of.tracks, of.messages, of.assembly
    n = assembly[Assembly.MESSAGES]
    put_track(messages, n, of, k, side)
    is_whole = how == 0
    missing = tracks[k, Track.CUT] + tracks[k, Track.HEADER_CUT] + tracks[k, Track.MISSING]
    messages[Message.CHANNEL, n] = of.channels[k // 4, Channel.CHANNEL]
    messages[Message.FIRST_NUMBER, n] = tracks[k, Track.FIRST_NUMBER]
    messages[Message.METHOD, n] = tracks[k, Track.METHOD]
    messages[Message.AT, n] = tracks[k, Track.AT]
    messages[Message.BYTES, n] = tracks[k, Track.BYTES]
    messages[Message.CUT, n] = 1 if tracks[k, Track.CUT] > 0 else 0
    messages[Message.HEADER_AT, n] = tracks[k, Track.HEADER_AT]
    messages[Message.HEADER_BYTES, n] = tracks[k, Track.HEADER_BYTES]
    messages[Message.HEADER_CUT, n] = 1 if tracks[k, Track.HEADER_CUT] > 0 else 0
    messages[Message.SIZE, n] = tracks[k, Track.SIZE] if is_whole else -1
    messages[Message.MISSING, n] = missing
    if is_whole:
        messages[Message.PARTIAL, n] = int(missing > 0)
    else:
        lost = missing + tracks[k, Track.CHAIN_MISSING] + tracks[k, Track.LOST]
        is_sure = lost == 0
        messages[Message.PARTIAL, n] = how if is_sure else UNFINISHED
    messages[Message.HASH, n] = 1 if is_whole and tracks[k, Track.MISSING] == 0 else 0
    of.hashes[n] = hash_end(of.lanes, of.waiting, k // 2)
    messages[Message.BODY, n] = tracks[k, Track.BODY]
    messages[Message.ROW, n] = k // 4
    messages[Message.EPOCH, n] = tracks[k, Track.EPOCH]
    messages[Message.FRAME, n] = i
    assembly[Assembly.MESSAGES] = n + 1


@kernel
def end_track(of: Channels, k: int) -> None:
    """Forget an assembly."""
    if of.tracks[k, Track.CHAIN] >= 0:
        drop_payloads(of, k)
    of.assembly[Assembly.KEEPING] -= of.tracks[k, Track.KEPT]
    of.usage[of.channels[k // 4, Channel.SLOT], Usage.KEEPING] -= of.tracks[k, Track.KEPT]
    of.tracks[k, Track.USED] = 0
