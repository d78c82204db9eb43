"""AMQP 0-9-1: what is remembered of channels and of contents under way, and the groups in which kernels take it.

A channel has two rows in `contents`, 2 * row + (0: what the client sends on it, 1: what the server sends).
"""

from typing import NamedTuple

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.dissector.protocols import state
from amqpscope.dissector.protocols.state import Place

DESYNCHRONISED = -2
"""An offset of a span which says that its length is one of these, for all that is under way in this direction."""
FOUND, LOST, NOT_TAKEN = range(3)
"""Only bytes of bodies were lost, reported next; frames may be lost; the receiver ignores the next frame."""
BEGUN, OUT_OF_STEP = 4, 8
"""Bits 0 and 1 of Channel.OUT_OF_STEP: unless the last gap of the client's, of the server's, held only bodies. Then:
no request was seen, so answers to those before the capture may come; requests or answers may be lost, or out of
order."""
KNOWN, DOUBTFUL, UNKNOWN = range(3)
"""All was seen since channel.open; it was, if the last gap of the client's held nothing but bodies; it was not."""

FAULTS = (
    *state.FAULTS,
    "frame-end-wrong",  # value: the byte found
    "method-unknown",  # value: class << 16 | method
    "header-unknown",  # value: the first four bytes
    "content-interrupted",
    "content-unexpected",
    "content-abandoned",
    "body-too-large",  # value: bytes beyond
    "channel-wrong",
)
(
    END_WRONG, METHOD_UNKNOWN, HEADER_UNKNOWN, INTERRUPTED, UNEXPECTED, ABANDONED, BODY_TOO_LARGE, CHANNEL_WRONG,
) = range(len(state.FAULTS), len(FAULTS))  # fmt: skip


class Frame(state.Frame):
    """Frames, one column each; the TYPE of a protocol header is its first byte."""

    CHANNEL = column("channel")
    METHOD = column("index of the method; -1: none, -2: unknown")
    EPOCH = column("channel_epoch")


class Span(state.Span):
    """Bytes of body frames; where OFFSET is DESYNCHRONISED, LENGTH is FOUND, LOST or NOT_TAKEN."""


class Channel(state.Channel):
    """Channels that are, or were, in use."""

    EPOCH = column("channel_epoch")
    CONFIRM = column("1: in confirm mode")
    SEQ = column("number of the last publish")
    UNSURE = column("KNOWN, DOUBTFUL or UNKNOWN: whether that number is known", empty=UNKNOWN)
    OUT_OF_STEP = column("0: requests pair with their answers by order; else bits: see BEGUN", empty=BEGUN)
    CONSUMERS = column("list of (hash of the tag, no_ack)", empty=-1)
    CONSUMES = column("consumes that wait for their -ok: (hash of the tag or 0, no_ack)", empty=-1)
    CONSUMES_END = column("the last of these", empty=-1)
    GETS = column("gets that wait: (0, no_ack); no_ack is -1 where it was not seen", empty=-1)
    GETS_END = column("the last of these", empty=-1)


class Content(state.Body):
    """Contents under way."""

    KIND = column("role of the method; 0: nothing is under way")
    STATE = column("1: the header is next, 2: the body")
    METHOD = column("index of the method")
    METHOD_OFFSET = column("where its frame's payload lies")
    METHOD_LENGTH = column("bytes of that")
    METHOD_MISSING = column("bytes of it in gaps")
    HEADER_OFFSET = column("where the header's payload lies; -1: not there yet")
    HEADER_LENGTH = column("bytes of that")
    HEADER_MISSING = column("bytes of it in gaps")
    SIZE = column("bytes of the body, as announced")
    GOT = column("bytes of it so far")
    MISSING = column("bytes of these in gaps")
    SEQ = column("number of a publish; -1: none, -2: not known, if the channel is in confirm mode")
    NO_ACK = column("1: it sends no acknowledgements; -1: not known")
    FIRST_NUMBER = column("frame_no of its first frame")
    FIRST_PACKET = column("packet with that frame's first byte")
    FIRST_TS = column("its time")
    FIRST_CAPTURE = column("its capture")
    NUMBER = column("frame_no of its last frame so far")
    PACKET = column("packet that completed that")
    TS = column("its time")
    CAPTURE = column("its capture")
    OVER = column("bytes beyond the announced body")
    LOST = column("LOST: what follows on the channel need not be of it; NOT_TAKEN; else FOUND")


class Message(Place):
    """Messages, one column each."""

    KIND = column("role of the method")
    CHANNEL = column("channel")
    EPOCH = column("channel_epoch")
    FIRST_NUMBER = column("frame_no of the first frame")
    METHOD = column("index of the method")
    METHOD_OFFSET = column("where its frame's payload lies")
    METHOD_LENGTH = column("bytes of that")
    HEADER_OFFSET = column("where the header's payload lies; -1: not there")
    HEADER_LENGTH = column("bytes of that")
    HEADER_CUT = column("1: bytes of it are missing")
    SIZE = column("bytes of the body, as announced; -1: not known")
    MISSING = column("bytes of all that were not seen")
    HASH = column("1: there is a hash of the body")
    SEQ = column("as in Content")
    NO_ACK = column("as in Content")
    PARTIAL = column("1: bytes are missing; UNFINISHED, CUT_BY_*")
    BODY = column("number under which the body is kept; -1: it is not")


class Node(Matrix):
    """Members of the lists of channels."""

    NEXT = column("the next one; -1: none", empty=-1)
    KEY = column("hash of a consumer tag; 0: none")
    VALUE = column("no_ack")


class Assembly(state.Assembly):
    """Where the assembly is, and what it counts: one row."""

    FULL = column("1: no more channels may be made")
    CROWDED = column("slot of a connection with too many HELD bytes; -1: none", empty=-1)


class Usage(state.Usage):
    """Connections: what their contents under way take, and what was lost."""

    GAPPED = column("1: frames of the client may have been lost")


class Own(NamedTuple):
    """What the kernels of the framing have besides.

    Attributes:
        methods: see `layout.method_table`.
        traits: see `layout.trait_table`.
        announced: (2 * slots, BodyRemainder).
        starts, ops: programs of `lengths.programs`: of methods by index, then of the properties of contents.
        contents: class of each of these contents.
    """

    methods: Array
    traits: Array
    announced: Array
    starts: Array
    ops: Array
    contents: Array


class Batch(NamedTuple):
    """Frames and spans of which contents are put together.

    Attributes:
        data: the buffer.
        facts: (slots, tcp.state.Facts).
        frames: (Frame, frames); EPOCH is filled.
        spans: (Span, spans).
        roles: role of each method, by its index.
        tags: (frames,) hash of the consumer tag; 0: none, or empty.
        no_acks: bitmap of that argument.
        no_waits: the same.
    """

    data: Array
    facts: Array
    frames: Array
    spans: Array
    roles: Array
    tags: Array
    no_acks: Array
    no_waits: Array


class Channels(NamedTuple):
    """Channels, contents under way, and room for what comes of them.

    Attributes:
        channels: (channels, Channel).
        free: rows of these, as in `Pool`.
        contents: (2 * channels, Content).
        lanes: (2 * channels, 8) uint64: hashes of bodies so far.
        waiting: 32 bytes for each content: what was not hashed yet.
        table: finds them: see `protocols.channels`.
        first: first channel of each connection; -1: none.
        nodes: (nodes, Node).
        free_nodes: rows of these.
        messages: (Message, room).
        hashes: (room,) uint64.
        faults: (state.Fault, room).
        kept: (Kept, room).
        usage: (slots, Usage).
        assembly: (Assembly,).
    """

    channels: Array
    free: Array
    contents: Array
    lanes: Array
    waiting: Array
    table: Array
    first: Array
    nodes: Array
    free_nodes: Array
    messages: Array
    hashes: Array
    faults: Array
    kept: Array
    usage: Array
    assembly: Array
