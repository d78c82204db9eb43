"""The state of TCP and its results: the matrices, and the two groups in which kernels take them.

A connection has a slot, which is its row in `facts` and `conn`; its two directions have the rows `2 * slot + side` in
`direction`, where side 0 is the endpoint with the lower (address, port). Early bytes are buffered segments, in a queue
for each direction; what other capture points have seen, and the connection's own may have missed, is in another. This
stage emits stream chunks: bytes of one direction in stream order, each once, from the first copy seen; a gap is a chunk
without bytes.

Addresses are 128 bits in two signed halves; times are ns since the epoch.
"""

from typing import NamedTuple

import numpy as np

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.state import Matrix, Records, column

OPEN, CLOSED = range(2)
"""The lists of connections."""
ZERO, FULL = 1, 2
"""Why a window stops the other side."""
FAULTS = (
    "overlap-mismatch",  # value: bytes that differ
    "connection-reused-port",  # value: packets of the connection whose end was not seen
    "connection-twice",  # value: packets
    "tcp-gap",  # value: bytes missing
    "frame-gap",  # the same
    "capture-points",  # value: capture points
    "clocks-differ",  # value: ms
    "tcp-events-left-out",  # value: events
)
MISMATCH, REUSED, TWICE, GAP, FRAME_GAP, POINTS, CLOCKS, LEFT_OUT = range(len(FAULTS))
EVENTS = ("retransmission", "delayed-ack", "held-write", "reset", "full-link")
AGAIN, DELAYED_ACK, HELD_WRITE, RESET, FULL_LINK = range(len(EVENTS))
CAPTURE_ENDED = 4
"""In Facts.ENDED."""
SILENCE_NS = 5_000_000_000
"""A time without new bytes that is noted."""
BOTH = 3
"""In Conn.HEARD: both sides."""
READ, SLOT, FEWER, SEGMENTS, IDENTITIES, CROWDED, SENT = range(7)
"""Why the walk stopped: the results must be read; it needs a row for a connection; too many connections are open; it
needs rows for buffered segments; it needs room for identities; too much is buffered; it needs rows for what was
sent."""
STARTED_HERE, STARTED_ELSEWHERE, STARTED_BY_OTHER, UNSEEN = range(1, 5)
"""How the beginning of a direction is known: from its own segments; from those at another capture point alone; from
what the other side acknowledges, which waits for it; the same, but waits no longer."""
BY_LOWER_PORT, BY_PORT, BY_CONTENT, BY_SYN = range(1, 5)
"""What shows who is the client, from the weakest to the strongest; `ROLES_BY` has their names in tables."""
ROLES_BY = ("", "lower-port", "port", "content", "syn")
RECENT = 64
"""Packets of each direction whose copies are known: a capture of several interfaces may have many in between."""
REPEATS = 4
"""Most retransmissions whose places are kept for each direction."""

At = tuple[int, int, int]
"""A packet: its number, its time and its capture."""


class Facts(Matrix):
    """Facts of connections that all stages know, by slot."""

    USED = column("1: the slot holds a connection; 2: it has ended and its last chunks are being read")
    A_HI = column("address of side 0, upper half")
    A_LO = column("lower half")
    A_PORT = column("its port")
    B_HI = column("address of side 1, upper half")
    B_LO = column("lower half")
    B_PORT = column("its port")
    SYN = column("bit 0: SYN seen, bit 1: SYN-ACK seen")
    OPENER = column("side that opened it, by SYNs; -1: no SYN seen", empty=-1)
    ID = column("connection_id; 0: not decided yet")
    CLIENT = column("side of the client, once detection has begun; -1: before", empty=-1, by="protocols")
    ROLES_BY = column("what shows that: BY_...; 0: nothing yet", by="protocols")
    PROTOCOL = column("number of the protocol in the registry; 0: not decided yet", by="protocols.detection")
    FRAMES = column("frames so far: the next frame_no", by="protocols")
    UNDER_WAY_A = column("bytes before the first of side 0 that were acknowledged as the capture began, and nobody saw")
    UNDER_WAY_B = column("the same of side 1")
    ENDED = column("at its end: bits 0, 1: side 0, 1 sends no more, by a FIN or reset; bit 2: the capture is over")


class Conn(Matrix):
    """Connections as TCP sees them, by slot."""

    ISN = column("the client's initial sequence number where Facts.SYN is set; else that of the first segment")
    FIRST_TS = column("time of the first segment")
    LAST_TS = column("the latest time of a segment")
    FIRST_PACKET = column("packet of the first segment")
    FIRST_CAPTURE = column("its capture")
    LAST_PACKET = column("packet of the last segment")
    LAST_CAPTURE = column("its capture")
    PACKETS = column("segments, without copies")
    BYTES = column("bytes in them")
    SYN_TS = column("time of the (only) SYN; 0: none, or retransmitted")
    CLOSED = column("bits 0, 1: FIN of side 0, 1; bit 2: RST")
    CLOSER = column("side that sent the first FIN or RST; -1: none", empty=-1)
    UP_TS = column("time of the first acknowledgement of UP_SIDE; 0: not seen")
    UP_PACKET = column("packet of that")
    UP_CAPTURE = column("capture of that")
    UP_SIDE = column("the client, once SYNs show it; until then the side of the first segment")
    UNSETTLED = column("1: its bytes wait for a SYN, which may have been captured late")
    LIST = column("OPEN or CLOSED")
    OLDER = column("neighbour in that list, which is in order of the last segment; -1: none", empty=-1)
    NEWER = column("the other neighbour", empty=-1)
    SEEN = column("number of the last segment, over all connections")
    CLOCK = column("latest time of a segment, unless times step back")
    BEFORE = column("connections of the same endpoints that came right before it")
    VANTAGE_CAPTURE = column("first capture of the capture point whose times count")
    POINT_CAPTURE = column("the same; another point while the first sees nothing")
    TWICE = column("1: another connection of the same endpoints began with the same sequence number")
    POINTS = column("capture points in its file, where each packet is there once for each; 0: one, or not known yet")
    CONTRADICTED = column("1: a fault says that the clocks of its directions differ")
    ASIDE = column("1: other capture points show another connection of these endpoints")
    FOLLOWS = column("1: it has replaced a connection of the same endpoints, of which segments may still come")
    REPLACED = column("1: another connection of the same endpoints has replaced it")
    QUIET_NS = column("the last time of SILENCE_NS or more without new bytes, before any FIN or RST")
    HEARD = column("bits 0, 1: side 0, 1 sent new bytes since then; BOTH also where one did and the other acknowledged")
    OUTLIVED_NS = column("the longest of these times after which both sides went on")
    EVENTS = column("rows of it in tcp_events, and those left out")
    SENDING = column("its pair of rows in Sending; -1: no bytes yet", empty=-1)


class Direction(Matrix):
    """The directions of connections."""

    STARTED = column("how the next sequence number is known: STARTED_...; 0: it is not")
    NEXT = column("sequence number (32 bits) of the next byte")
    POS = column("position of the next byte in the stream")
    TOP = column("position after the highest byte seen")
    ACKED = column("position up to which the other side has acknowledged")
    REPORTED = column("the same as results have it; -1: no acknowledgement was among them", empty=-1)
    ACK_TS = column("time of that where bytes before it are missing; else, of the last acknowledgement")
    ACK_POS = column("position up to which that acknowledged, where bytes before it are missing")
    ACK_SEEN = column("number of that segment")
    TRIP_NS = column("shortest time from bytes that were sent once to their acknowledgement; -1: none yet", empty=-1)
    BARE_TRIP_NS = column("the same of acknowledgements without bytes", empty=-1)
    ACK_PACKET = column("its packet")
    ACK_CAPTURE = column("its capture")
    LATE_SEEN = column("number of the last segment that acknowledged missing bytes")
    LATE_TS = column("its time")
    LATE_PACKET = column("its packet")
    LATE_CAPTURE = column("its capture")
    SHOWN = column("position up to which segments without bytes, and resets, show that this side has sent")
    FIN = column("position of its FIN, after all bytes; -1: not seen", empty=-1)
    LOST = column("bytes in gaps")
    AGAIN = column("bytes that were retransmitted")
    TWICE = column("bytes that were captured twice")
    WSCALE = column("window scale of the SYN; -1: SYN not seen, -2: SYN without that option", empty=-1)
    WINDOW = column("window that this side last announced, not scaled; -1: none", empty=-1)
    STALL = column("whether that window stops the other side: ZERO, FULL; 0: no")
    STALL_TS = column("since when")
    STALL_PACKET = column("since which packet")
    STALL_CAPTURE = column("of which capture")
    STALL_COUNT = column("packets of the connection until then")
    STALL_PARTIAL = column("1: a packet that closed this window of zero, or opened it, is missing")
    PROBED = column("1: the last that this side sent was no new bytes but a probe whether the other side has room")
    ZERO_NS = column("total time for which the window was zero, up to the last change")
    FULL_NS = column("total time for which it was full")
    PACKETS = column("packets that this side sent, without SYNs")
    SYNS = column("SYNs (or SYN-ACKs), without copies")
    SYN_LAST_TS = column("time of the last of these")
    SYN_COPIES = column("copies of these")
    POINT = column("1 + first capture of the capture point that it is taken from; 0: none yet")
    ELSEWHERE = column("1: another capture point has shown it, too")
    SYN_TS = column("time of the first of these")
    SYN_PACKET = column("packet of that; 0: none")
    SYN_CAPTURE = column("capture of that")
    END = column("the first FIN or RST: its flag; 0: none")
    END_TS = column("time of that")
    END_PACKET = column("packet of that")
    END_CAPTURE = column("capture of that")
    END_ACKED = column(
        "position of the other side up to which that acknowledges it, where its FIN counts; -1: none", empty=-1
    )
    RESET_POS = column("position of it if it is a RST")
    AFTER_PACKET = column("last packet with bytes that it acknowledges, of those captured after it; 0: none")
    AFTER_CAPTURE = column("capture of that")
    SENT_TS = column("time of the last new bytes before any FIN or RST; 0: none")
    LAST_TS = column("time of the last packet before any FIN or RST; 0: none")
    UNACKED_TS = column("since when, before any FIN or RST, bytes are not acknowledged and none more are; 0: all are")
    AGAIN_TS = column("time of the last bytes sent again before any FIN or RST; 0: none")
    RUN_SEEN = column("number of the latest segment that emitted ones had to wait for; -1: none", empty=-1)
    RUN_PACKET = column("packet of that")
    RUN_TS = column("time of that")
    RUN_CAPTURE = column("capture of that")
    REPEATS = column("rows of it in Repeat")
    RECENT = column("packets so far, at the connection's own capture point")


class Repeat(Matrix):
    """Retransmitted packets with a SYN or with bytes: `REPEATS` rows for each direction."""

    TS = column("time")
    PACKET = column("packet")
    CAPTURE = column("capture")
    LENGTH = column("bytes; 0: a SYN")


class Queue(Matrix):
    """Buffered segments of directions."""

    HEAD = column("the first one; -1: none", empty=-1)
    TAIL = column("the last one; -1: none", empty=-1)
    COUNT = column("number of these")
    BYTES = column("bytes in these")
    ACKED = column("of other capture points: position up to which they show the direction as acknowledged")
    END = column("of other capture points: flag of the first FIN or RST; 0: none")
    END_SEEN = column("number of that segment")
    END_TS = column("its time")
    END_PACKET = column("its packet")
    END_CAPTURE = column("its capture")


class Segment(Matrix):
    """Buffered segments."""

    NEXT = column("the next one of its queue, in stream order; -1: none")
    POS = column("position in the stream")
    LENGTH = column("bytes")
    OFFSET = column("where they lie in the buffer; -1: a gap")
    PACKET = column("packet")
    TS = column("its time")
    CAPTURE = column("its capture")
    USED = column("1 while the row holds one")
    SEEN = column("number of the segment, over all connections")
    NEEDS = column("position up to which it acknowledges the other direction, whose bytes come before it")


class List(Matrix):
    """The lists OPEN and CLOSED of connections."""

    OLDEST = column("first slot; -1: none", empty=-1)
    NEWEST = column("last slot; -1: none", empty=-1)


class Control(Matrix):
    """The state of the walk over segments besides connections: one row."""

    CLOCK = column("latest time")
    SEGMENTS = column("segments taken so far")
    WAITING = column("bytes in all buffered segments")
    TOMBSTONES = column("places of the hash table that are free again")
    LIVE = column("connections that have not ended")
    KNOWN = column("identities in the younger table of these")
    EVICTED = column("open connections that were evicted")
    WANT = column("why the walk stopped")
    UNTIMED = column("1: there are no more rows for what was sent")
    SWEPT = column("half-minute of the clock in which silent connections were looked for last")


class Chunk(Records):
    """Stream chunks, of TCP or of the content of TLS."""

    SLOT = column("slot of the connection")
    SIDE = column("side that sent it")
    POS = column("position in the stream")
    OFFSET = column("where the bytes lie in the buffer; -1: a gap")
    LENGTH = column("bytes")
    PACKET = column("packet after which the bytes could be read in order")
    TS = column("its time")
    CAPTURE = column("its capture")
    FIRST_PACKET = column("packet that carried the bytes")
    FIRST_TS = column("its time")
    FIRST_CAPTURE = column("its capture")


class Window(Records):
    """Intervals in which the window of a side stopped the other."""

    SLOT = column("slot of the connection")
    SIDE = column("side whose window it is")
    KIND = column("ZERO or FULL")
    PACKET = column("packet with which it began")
    TS = column("its time")
    CAPTURE = column("its capture")
    END_PACKET = column("packet with which it ended; 0: it did not")
    END_TS = column("its time")
    END_CAPTURE = column("its capture")
    PACKETS = column("packets of the connection in between")
    COUNTED = column("1: it is one of the events of the connection that have a row")
    PARTIAL = column("1: a packet that closed the window, or opened it, is missing")


class Event(Records):
    """Events of TCP that delay the other side, or end the connection."""

    SLOT = column("slot of the connection")
    SIDE = column("side that sent the packet")
    KIND = column("index into EVENTS")
    PACKET = column("packet")
    TS = column("its time")
    CAPTURE = column("its capture")
    OF_PACKET = column("the packet that it is about; 0: none, or not known")
    OF_TS = column("time of that")
    OF_CAPTURE = column("capture of that")
    BYTES = column("bytes that it is about")
    LATE_NS = column("how late it is; -1: not known")
    TTL = column("time to live; -1: not of interest")
    USUAL_TTL = column("that of the side's last segment with bytes; -1: none")
    TRIP_NS = column("of a full link, the shortest round trip meanwhile; -1: another event")
    USUAL_TRIP_NS = column("the shortest of all; -1: another event")


class Ack(Records):
    """Acknowledgements: the first of each side, and all that acknowledge more bytes than those before."""

    SLOT = column("slot of the connection")
    SIDE = column("side that sent what is acknowledged")
    POS = column("position up to which it is")
    READ = column("position up to which it had been emitted then")
    PACKET = column("packet")
    TS = column("its time")
    CAPTURE = column("its capture")


class Fault(Records):
    """Faults of connections."""

    SLOT = column("slot of the connection")
    SIDE = column("side that sent it")
    CODE = column("index into FAULTS")
    POS = column("position in the stream; -1: none")
    VALUE = column("value of the fault, see FAULTS")
    PACKET = column("packet")
    TS = column("its time")
    CAPTURE = column("its capture")


class Count(Matrix):
    """Number of results of each kind: one row."""

    CHUNKS = column("stream chunks")
    FAULTS = column("faults")
    WINDOWS = column("intervals")
    EVENTS = column("events")
    ACKS = column("acknowledgements")
    ENDED = column("ended connections")


class Flows(NamedTuple):
    """The state of TCP.

    Attributes:
        facts: (slots, Facts).
        conn: (slots, Conn).
        direction: (2 * slots, Direction).
        queues: (2 * slots, Queue): segments seen at the connection's own capture point.
        elsewhere: (2 * slots, Queue): segments seen at others.
        repeats: (REPEATS * 2 * slots, Repeat).
        free: slots, as in `Pool`.
        table: hash table of slots by endpoints: slot + 1; 0: free, -1: free again.
        lists: (2, List).
        segments: (segments, Segment), buffered.
        free_segments: rows of these, as in `Pool`.
        sending: (2 * connections, Sending).
        free_sending: pairs of these, as in `Pool`.
        sent: (segments, Sent).
        free_sent: rows of these, as in `Pool`.
        younger: identities, in a hash table; 0: free.
        older: the same, the half that is dropped first.
        recent: (2 * slots, RECENT): keys of packets whose copies may come.
        points: for each capture, the first one of the same capture point.
        control: (Control,).
    """

    facts: Array
    conn: Array
    direction: Array
    queues: Array
    elsewhere: Array
    repeats: Array
    free: Array
    table: Array
    lists: Array
    segments: Array
    free_segments: Array
    sending: Array
    free_sending: Array
    sent: Array
    free_sent: Array
    younger: Array
    older: Array
    recent: Array
    points: Array
    control: Array


class Results(NamedTuple):
    """The results of TCP.

    Attributes:
        chunks: (Chunk, n).
        faults: (Fault, n).
        windows: (Window, n).
        events: (Event, n).
        acks: (Ack, n).
        ended: slots of connections that end once all this is read.
        counts: (Count,): number of each.
    """

    chunks: Array
    faults: Array
    windows: Array
    events: Array
    acks: Array
    ended: Array
    counts: Array


def both(slots: Ints) -> Ints:
    """Return the rows of both directions of connections: those of the first, then of the second."""
    rows: Ints = (2 * slots[:, None] + np.arange(2)).ravel()
    return rows
