"""What the walks over frames remember, whatever the protocol: the matrices, and the group in which kernels take them.

A direction has the row `2 * slot + side`. A payload that lies in one chunk is used where it is; fragments of another
wait until it is whole. Chunks of both parsers are held back while one of them is searched for a boundary.
"""

from typing import NamedTuple

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.state import Matrix, Records, column
from amqpscope.dissector.tcp.state import Chunk

SEARCH, HEAD, PAYLOAD, END = range(4)
"""What a direction is in: the search for a boundary, a frame's head, its payload, or the bytes after that."""
HEAD_ROOM = 16
"""Bytes that a head has at most."""

FAULTS = (
    "tcp-gap",  # value: bytes lost
    "bytes-skipped",  # value: bytes
    "frame-type-unknown",  # value: what is in its place
    "frame-too-large",  # value: announced size
    "frame-cut",  # value: bytes still missing
    "limit-reached",  # value: bytes
    "amqp-header-unexpected",  # value: the first four bytes
    "tls-unexpected",  # the same
    "http-unexpected",  # the same
    "frame-length-wrong",  # value: announced size
    "bytes-under-way",  # value: bytes
)
GAP, SKIPPED, TYPE_UNKNOWN, TOO_LARGE, CUT, LIMIT, AMQP_HEADER, TLS, HTTP, LENGTH_WRONG, UNDER_WAY = range(len(FAULTS))


class Parser(Matrix):
    """Directions of connections."""

    STATE = column("SEARCH, HEAD, PAYLOAD or END")
    HEADS = column("bytes of the head so far")
    WANTED = column("bytes that the head has")
    TYPE = column("type of the current frame, as its protocol has it; -1: none that exists")
    CHANNEL = column("its channel; -1: there are none", empty=-1)
    SIZE = column("bytes of its payload")
    GOT = column("bytes of the payload that have passed")
    MISSING = column("bytes of these that lie in gaps")
    POS = column("position of the frame in the stream")
    FIRST_PACKET = column("packet with its first byte; in a search with the last one skipped")
    FIRST_TS = column("its time")
    FIRST_CAPTURE = column("its capture")
    CHAIN = column("first fragment of the payload; -1: none", empty=-1)
    CHAIN_END = column("last fragment", empty=-1)
    CHAINED = column("bytes in fragments")
    FRAGMENTS = column("number of fragments")
    SKIPPED = column("bytes skipped in the current search")
    UNTIL = column("position up to which bytes are skipped; -1: not known", empty=-1)
    FOUND = column("1: a frame begins there")
    LOST = column("position at which the frame whose head was lost must have begun; -1: not known", empty=-1)
    LARGEST = column("bytes of the largest frame so far")
    MOST = column("bytes of the largest frame that the peers agreed upon; 0: not known, or no limit")
    SUSPECT_SIZE = column("1 and the bytes of payload in a doubted head; 0: none; -1: it is refuted, not reported yet")
    NATURAL = column("1 and the bytes of payload in it by its fields; 0: not known; -1: none is doubted", empty=-1)
    LENGTH_ACCEPTED = column("1: the length of the current frame counts, whatever its fields say")
    DAMAGED = column("1: the current search began after a head, not a body's, that cannot be right; no gap followed it")
    TRIED = column("bytes that the last trial of the current search had")
    TRIED_SLOW = column("1: that was after nothing had come for a while")
    TRIED_MARKED = column("1: that was after a segment that was not full")
    LOOKED = column("bytes of this direction when its frames were last searched for who is the client")
    UNCONFIRMED = column("segments that must begin with a frame before one is accepted after another")
    BYTES = column("bytes of this direction among what its connection holds back")
    GAPS = column("gaps among that")
    LAST = column("bytes of the last chunk among that")
    QUEUE = column("side 0: first chunk of the connection that is held back; -1: none", empty=-1)
    QUEUE_END = column("side 0: last of these", empty=-1)
    QUEUED = column("side 0: number of these")
    TAKEN = column("side 0: bytes of the first of these that are processed")
    OVER = column("side 0: 1 when nothing will follow them")
    REST = column("bytes still to come of a content that goes on in further frames, where the protocol announces that")


class Fragment(Chunk):
    """Bytes of payloads that go on in a later chunk, each with what its chunk says of them."""

    NEXT = column("the next one of the payload; -1: none", empty=-1)
    USED = column("1 while the row holds one")


class PendingChunk(Chunk):
    """Chunks that are held back."""

    NEXT = column("the next one of the connection; -1: none", empty=-1)
    USED = column("1 while the row holds one")


class Place(Records):
    """Where a row belongs, one column each: so tables put the leading columns before all rows alike."""

    SLOT = column("slot of the connection")
    SIDE = column("side that sent it")
    NUMBER = column("frame_no; -1: none")
    CAPTURE = column("capture of the packet that completed it")
    PACKET = column("that packet")
    TS = column("its time")
    FIRST_CAPTURE = column("capture of the packet with its first byte")
    FIRST_PACKET = column("that packet")
    FIRST_TS = column("its time")


class AnyFrame(Place):
    """What frames of all protocols have."""

    HELD = column("1: its last byte was held back; what came meanwhile may be about it")


class Frame(AnyFrame):
    """Frames, one column each; protocols add columns of their own."""

    TYPE = column("type of the frame, as its protocol has it")
    SIZE = column("bytes on the wire")
    OFFSET = column("where the payload's bytes lie that are there before its first gap")
    LENGTH = column("number of bytes")
    MISSING = column("bytes in gaps")
    POS = column("position in the stream")


class Span(Records):
    """Bytes of body frames that lie in several chunks, or gaps in them, one column each."""

    BEFORE = column("frames that were complete before")
    SLOT = column("slot of the connection")
    SIDE = column("side that sent it")
    CHANNEL = column("channel")
    OFFSET = column("where the bytes lie; -1: a gap; below that, as its protocol has it")
    LENGTH = column("number of bytes")


class Channel(Matrix):
    """Channels that are, or were, in use; protocols add columns of their own."""

    USED = column("1 while the row holds one")
    SLOT = column("slot of the connection")
    CHANNEL = column("channel number")
    NEXT = column("next channel of the connection; -1: none", empty=-1)


class BodyRemainder(Matrix):
    """Directions: the content that is announced there, whose rest is Parser.REST."""

    CHANNEL = column("its channel")
    BODY = column("bytes of its last body frame")
    PASSED = column("bytes of it that are known to be among those skipped in a search")


class Body(Matrix):
    """What contents under way have of their bodies; protocols add columns of their own."""

    BODY = column("number under which the body is kept; -1: it is not")
    KEPT = column("bytes of it that are kept")


class Assembly(Matrix):
    """Where the assembly of contents is, and what it counts: one row; protocols add columns of their own."""

    FRAME = column("next frame")
    FRAMES = column("frames")
    SPAN = column("next span")
    SPANS = column("spans")
    MESSAGES = column("messages brought")
    FAULTS = column("faults brought")
    KEPT = column("payloads of bodies brought")
    KEEP = column("1: bodies are kept")
    BODIES = column("bodies so far: the next number")
    KEEPING = column("bytes of bodies under way that are kept")
    HELD = column("bytes of methods and headers of contents under way that are kept")


class Usage(Matrix):
    """Connections: what their contents under way take."""

    HELD = column("bytes of methods and headers that are kept")
    PAYLOADS = column("number of these that lie in several frames, where a protocol has such")
    KEEPING = column("bytes of bodies that are kept")
    REQUESTS = column("consumers, and requests without an answer")


class Kept(Records):
    """Bytes of bodies to keep, in order, one column each."""

    BODY = column("number of the body")
    OFFSET = column("where the bytes lie")
    LENGTH = column("number of bytes; -1: none of this body after all")


class Fault(Place):
    """What becomes rows of `anomalies`, one column each."""

    CODE = column("index into the FAULTS of the protocol")
    CHANNEL = column("channel; -1: none")
    POS = column("position in the stream; -1: none")
    VALUE = column("what FAULTS says")


class Cursor(Matrix):
    """Where the walk is, and how much it has brought: one row."""

    CHUNK = column("current chunk")
    AT = column("bytes of it that are processed")
    REPLAY = column("connection whose held-back chunks are walked; -1: none", empty=-1)
    FRAMES = column("frames emitted")
    ASIDE = column("other rows emitted, as the protocol defines")
    FAULTS = column("faults")
    ARENA = column("where the arena after the batch's bytes is free")
    CHAINED = column("bytes in all fragments")
    HELD = column("bytes in all chunks that are held back")
    CROWDED = column("1: they were too many, or too many chunks, for a search to go on")
    COUNT = column("chunks")


class Trial(Matrix):
    """What the search for a boundary has found out from the place that is tried: one row."""

    CHANNEL = column("a protocol's own: channel used last; -1: none")
    EXPECT = column("a protocol's own: what must follow on it")
    REST = column("a protocol's own: how much of it")
    SENDER = column("1: the client sends it, 2: the server, 3: not known")
    MOST = column("bytes of the largest frame that may be there; 0: not known")
    COUNT = column("whole frames")
    END = column("where the last of them ends")
    LARGEST = column("bytes of the largest of them")
    EDGES = column("beginnings and ends of segments from the place on")
    FITTING = column("those where a frame begins or ends")
    CUT = column("frames with others inside")
    OPEN = column("first place that was not refuted; -1: none")
    SEGMENT = column("the first of its frames with which a segment begins; -1: none")
    BEFORE = column("whole frames before that")
    SHORT = column("segments of fewer bytes are not full")
    ENOUGH = column("whole frames after which bytes that are none reject nothing; 0: they do, however many there were")
    MARKED = column("beginnings of segments after such a one with which a frame begins")


class ParserState(NamedTuple):
    """All that the walk over frames remembers and brings.

    Attributes:
        data: the buffer.
        facts: (slots, Facts).
        parsers: (2 * slots, Parser).
        heads: HEAD_ROOM bytes for each direction: the head so far.
        fragments: (fragments, Fragment).
        free: rows of these, as in `Pool`.
        held: (chunks, PendingChunk).
        free_held: rows of these, as in `Pool`.
        edges: where segments begin in what is searched.
        marks: where frames began that were tried.
        trial: (Trial,).
        cursor: (Cursor,).
        chunk: (Chunk, 1): the current held-back chunk.
        frames: room for frames, one column each; its rows begin as Place.
        aside: room for what a protocol brings besides.
        faults: (Fault, room).
    """

    data: Array
    facts: Array
    parsers: Array
    heads: Array
    fragments: Array
    free: Array
    held: Array
    free_held: Array
    edges: Array
    marks: Array
    trial: Array
    cursor: Array
    chunk: Array
    frames: Array
    aside: Array
    faults: Array
