"""AMQP 0-10: what is remembered of channels, sessions and assemblies, and the groups in which kernels take it.

A channel has four rows in `tracks`, 4 * row + 2 * (1 for what the server sends) + track; of bodies, which are on the
second track alone, it has two in `lanes`.
"""

from typing import NamedTuple

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.dissector.protocols import state
from amqpscope.dissector.protocols.state import AnyFrame, Place

DESYNCHRONISED = -2
"""An offset of a span which says that its length is one of these, for all that is under way in this direction."""
FOUND, LOST = range(2)
"""Nothing was lost but bytes of a body, reported next; frames may be lost."""
SURE, DOUBTFUL = 1, 2
"""Frames may be lost; they may, if the last gap held more than bytes of a body."""
NAMELESS = 2
"""In Session.USED."""
PASSED = -1
"""In Span.FLAGS: these bytes are of body frames whose heads were not seen."""

FAULTS = (
    *state.FAULTS,
    "header-unknown",  # value: the first four bytes
    "frame-version-unknown",  # value: the version
    "frame-flags-unknown",  # value: the flags
    "frame-head-wrong",  # value: flags << 16 | type
    "frame-too-short",  # value: announced size
    "frame-track-wrong",  # value: the track, with the reserved bits before it
    "frame-reserved-set",  # value: the reserved bytes
    "sasl-encrypted",  # value: bytes of the first sealed block
    "method-unknown",  # value: class << 16 | code
    "control-unknown",  # the same
    "content-interrupted",  # value: frame_no of the first frame
    "content-unexpected",  # value: type of the segment
    "content-abandoned",  # value: frame_no of the first frame
)
(
    HEADER_UNKNOWN, VERSION_UNKNOWN, FLAGS_UNKNOWN, HEAD_WRONG, TOO_SHORT, TRACK_WRONG, RESERVED_SET, SEALED,
    METHOD_UNKNOWN, CONTROL_UNKNOWN, INTERRUPTED, UNEXPECTED, ABANDONED,
) = range(len(state.FAULTS), len(FAULTS))  # fmt: skip


class Sender(Matrix):
    """Directions of connections."""

    GAPPED = column("SURE, DOUBTFUL: frames of it may be lost")
    OPENED = column("1: the last frame was connection.open or its answer, after which a SASL layer may begin")
    BARE = column("1: the login mechanism of the connection has no such layer")
    BODY = column("1: the last frame was a body's, of which nothing but its head says where it ends")


class Frame(AnyFrame):
    """Frames, one column each."""

    TYPE = column("type of the segment, or PROTOCOL_HEADER")
    FLAGS = column("flags")
    TRACK = column("track")
    CHANNEL = column("channel")
    SIZE = column("bytes on the wire")
    OFFSET = column("where the payload's bytes lie that are there before its first gap")
    LENGTH = column("number of bytes")
    MISSING = column("bytes in gaps")
    POS = column("position in the stream")
    ROW = column("row of its channel; -1: none")
    GAPPED = column("1: frames of its direction may be lost between this and the one before on its channel")
    OPERATION = column("CONTROL or COMMAND where the frame completes one; -1: it does not")
    METHOD = column("index of that; -1: none, -2: unknown")
    AT = column("where its bytes lie")
    BYTES = column("number of bytes")
    CUT = column("1: bytes of it are missing")
    SESSION = column("session of the channel; -1: none, or not known")
    EPOCH = column("channel_epoch")
    COMMAND = column("command_id; -1: none, or not known")


class Span(state.Span):
    """Bytes of body frames; where OFFSET is DESYNCHRONISED, LENGTH is FOUND or LOST."""

    FLAGS = column("flags of the frame, or PASSED")


class Channel(state.Channel):
    """Channels that are, or were, in use."""

    CLIENT_GAPPED = column("SURE, DOUBTFUL: frames of the client's may be lost since its last frame here")
    SERVER_GAPPED = column("the same of the server's")
    EPOCH = column("how often a session was attached")
    SESSION = column("session that is attached; -1: none, or not known", empty=-1)
    LEAVING = column("1: a session.detach of it was sent")


class Session(Matrix):
    """Sessions of connections, by name."""

    USED = column("1 while the row holds one; NAMELESS: one that was attached before the capture")
    SLOT = column("slot of the connection")
    ATTACHED = column("channels that are attached to it")
    CLIENT_NEXT = column("id of the client's next command; -1: not known", empty=-1)
    SERVER_NEXT = column("id of the server's", empty=-1)
    CLIENT_SENT = column("commands of the client since its ids are not known; these columns are those of `proofs`")
    SERVER_SENT = column("the same of the server")
    CLIENT_AHEAD = column(
        "the largest id that the server has answered since, less those sent by then; -1: none", empty=-1
    )
    SERVER_AHEAD = column("the same of the server's that the client answered", empty=-1)
    CLIENT_REACHED = column("commands of the client that were sent when it was reached")
    SERVER_REACHED = column("the same of the server")
    CLIENT_TS = column("time of the last answer, if it reached it and no command came since; else 0")
    SERVER_TS = column("the same of answers of the client")
    CLIENT_PROOF = column("AGREED, QUIET")
    SERVER_PROOF = column("the same of the server")


class Track(state.Body):
    """Assemblies under way."""

    USED = column("1 while one is")
    LOST = column("SURE, DOUBTFUL: frames may be lost; what does not begin an assembly is of one that is not known")
    SEGMENT = column("type of the last segment")
    OPEN = column("1: that goes on")
    WITHIN = column("1: bytes of the next frame were taken already")
    CHAIN = column("first payload of the segment that goes on; -1: none", empty=-1)
    CHAIN_END = column("last payload", empty=-1)
    CHAINED = column("bytes in these")
    CHAIN_MISSING = column("bytes of that segment that are missing")
    KIND = column("CONTROL or COMMAND")
    METHOD = column("index of that; -1: not known yet, -2: unknown")
    AT = column("where its bytes lie")
    BYTES = column("number of bytes")
    CUT = column("number of these that are missing")
    HEADER_AT = column("where the bytes of the header lie; -1: there is none", empty=-1)
    HEADER_BYTES = column("number of bytes")
    HEADER_CUT = column("number of these that are missing")
    SIZE = column("bytes of the body so far")
    MISSING = column("bytes of these in gaps")
    FIRST_NUMBER = column("frame_no of its first frame")
    FIRST_PACKET = column("packet with that frame's first byte")
    FIRST_TS = column("its time")
    FIRST_CAPTURE = column("its capture")
    NUMBER = column("frame_no of its last frame so far")
    PACKET = column("packet that completed that")
    TS = column("its time")
    CAPTURE = column("its capture")
    EPOCH = column("channel_epoch of its last frame, once that has one")


class Payload(Matrix):
    """Bytes of segments that go on in a later frame."""

    NEXT = column("the next one of the segment; -1: none", empty=-1)
    OFFSET = column("where they lie")
    LENGTH = column("bytes")
    USED = column("1 while the row holds one")


class Message(Place):
    """Messages, one column each."""

    CHANNEL = column("channel")
    FIRST_NUMBER = column("frame_no of the first frame")
    METHOD = column("index of the command")
    AT = column("where its bytes lie")
    BYTES = column("number of bytes")
    CUT = column("1: bytes of it are missing")
    HEADER_AT = column("where the bytes of the header lie; -1: there is none")
    HEADER_BYTES = column("number of bytes")
    HEADER_CUT = column("1: bytes of it are missing")
    SIZE = column("bytes of the body")
    MISSING = column("bytes of all that were not seen")
    HASH = column("1: there is a hash of the body")
    PARTIAL = column("1: bytes are missing; UNFINISHED, CUT_BY_*")
    BODY = column("number under which the body is kept; -1: it is not")
    ROW = column("row of the channel")
    EPOCH = column("channel_epoch of the last frame of one that is not finished, if that is of an earlier batch")
    FRAME = column("frame of the batch at which it was complete, or dropped; -1: after all")


class Assembly(state.Assembly):
    """Where the assembly is, and what it counts: one row."""

    LONGEST = column("bytes of the longest segment that goes on; never less")
    ARENA = column("where the arena after the batch's bytes is free")


class Own(NamedTuple):
    """What the kernels of the framing have besides.

    Attributes:
        methods: see `layout.method_table`.
        traits: see `layout.trait_table`.
        senders: (2 * slots, Sender).
        announced: (2 * slots, BodyRemainder).
        starts, ops, members, shapes: the programs of a `Plan`, with its lists.
    """

    methods: Array
    traits: Array
    senders: Array
    announced: Array
    starts: Array
    ops: Array
    members: Array
    shapes: Array


class Batch(NamedTuple):
    """Frames and spans that are put together.

    Attributes:
        data: the buffer.
        facts: (slots, tcp.state.Facts).
        frames: (Frame, frames); from ROW to CUT filled.
        spans: (Span, spans).
        own: what the framing has.
    """

    data: Array
    facts: Array
    frames: Array
    spans: Array
    own: Own


class Channels(NamedTuple):
    """Channels, assemblies under way, and room for what comes of them.

    Attributes:
        channels: (channels, Channel).
        free: rows of these, as in `Pool`.
        table: finds them: see `protocols.channels`.
        first: first channel of each connection; -1: none.
        tracks: (4 * channels, Track).
        payloads: (payloads, Payload).
        free_payloads: rows of these.
        lanes: (2 * channels, 8) uint64: hashes of bodies so far.
        waiting: 32 bytes for each: what was not hashed yet.
        messages: (Message, room).
        hashes: (room,) uint64.
        faults: (state.Fault, room).
        kept: (Kept, room).
        usage: (slots, Usage).
        assembly: (Assembly,).
    """

    channels: Array
    free: Array
    table: Array
    first: Array
    tracks: Array
    payloads: Array
    free_payloads: Array
    lanes: Array
    waiting: Array
    messages: Array
    hashes: Array
    faults: Array
    kept: Array
    usage: Array
    assembly: Array
