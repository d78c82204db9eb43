"""Reassemble TCP: from batches of segments to ordered chunks and gaps.

The reassembler holds the state of the kernels and grows it.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.kernel import call
from amqpscope.dissector.kernels.pool import APART, free_rows, give_rows, grown
from amqpscope.dissector.kernels.retained import Buffer, Ranges
from amqpscope.dissector.packets.segments import SegmentBatch
from amqpscope.dissector.tcp.endings import end_all, evict, relieve
from amqpscope.dissector.tcp.identities import remember_all
from amqpscope.dissector.tcp.segments import reassemble
from amqpscope.dissector.tcp.sending import Sending, Sent
from amqpscope.dissector.tcp.slots import rebuild
from amqpscope.dissector.tcp.state import (
    CAPTURE_ENDED,
    CLOSED,
    CROWDED,
    FEWER,
    IDENTITIES,
    OPEN,
    RECENT,
    REPEATS,
    SEGMENTS,
    SENT,
    SLOT,
    Ack,
    Chunk,
    Conn,
    Control,
    Count,
    Direction,
    Event,
    Facts,
    Fault,
    Flows,
    List,
    Queue,
    Repeat,
    Results,
    Segment,
    Window,
    both,
)

STEP = 4096
"""Most identities that are remembered."""


class Reassembler:
    """All open connections and their streams.

    The caller reads what `feed` yields before it asks for the next item, and returns the slots of ended connections
    with `free` when it no longer needs them.
    """

    def __init__(self, compiled: bool, max_connections: int = limits.CONNECTIONS) -> None:
        self.compiled = compiled
        self.max_connections = max_connections
        slots = min(64, max_connections)
        segments = 4_096
        chunks = 4 * (limits.WAITING_PARTS if compiled else segments) + APART
        self.flows = Flows(
            facts=Facts.make(slots),
            conn=Conn.make(slots),
            direction=Direction.make(2 * slots),
            queues=Queue.make(2 * slots),
            elsewhere=Queue.make(2 * slots),
            repeats=Repeat.make(REPEATS * 2 * slots),
            free=free_rows(slots),
            table=np.zeros(256, np.int64),
            lists=List.make(2),
            segments=Segment.make(segments),
            free_segments=free_rows(segments),
            sending=Sending.make(256),
            free_sending=free_rows(128),
            sent=Sent.make(1 << 12),
            free_sent=free_rows(1 << 12),
            younger=np.zeros(256, np.int64),
            older=np.zeros(1, np.int64),
            recent=np.zeros((2 * slots, RECENT), np.int64),
            points=np.zeros(1, np.int64),
            control=Control.make(1)[0],
        )
        self.out = Results(
            chunks=Chunk.room(chunks),
            faults=Fault.room(1024),
            windows=Window.room(1024),
            events=Event.room(1 << 14),
            acks=Ack.room(1 << 15),
            ended=np.empty(4096, np.int64),
            counts=Count.make(1)[0],
        )
        self.evicted: list[tuple[int, int, int, str]] = []
        """Limits of the process that were reached: capture, packet and time of the current segment, and a message."""

    @property
    def waiting(self) -> int:
        """Number of bytes in all buffered segments."""
        return int(self.flows.control[Control.WAITING])

    def place(self, points: Sequence[int]) -> None:
        """Set, for each capture, the first of the same capture point; captures beyond the list share capture 0's."""
        self.flows = self.flows._replace(points=np.array(points, np.int64))

    def feed(self, batch: SegmentBatch, buffer: Buffer) -> Iterator[Results]:
        """Take one batch of segments (each file's in its order), whose bytes lie in `buffer`; yield results."""
        at, n, points = 0, len(batch.ts_ns), self.flows.points
        if n and batch.capture.max() >= len(points):
            self.flows = self.flows._replace(points=grown(points, int(batch.capture.max()) + 1))
        while at < n:
            at = call(reassemble, self.compiled, batch, at, self.max_connections, buffer.data, self.flows, self.out)
            yield from self._drain()
            if at < n:
                yield from self._make_room((int(batch.capture[at]), int(batch.packet[at]), int(batch.ts_ns[at])))
        if self.flows.control[Control.TOMBSTONES] > len(self.flows.table) // 4:
            self._rebuild(len(self.flows.table))

    def finish(self) -> Iterator[Results]:
        """End all connections, in the order in which they began."""
        slots = np.flatnonzero(self.flows.facts[:, Facts.USED])
        self.flows.facts[slots, Facts.ENDED] |= CAPTURE_ENDED
        first = self.flows.conn[slots][:, [Conn.FIRST_PACKET, Conn.FIRST_CAPTURE, Conn.FIRST_TS]]
        yield from self.end(slots[np.lexsort(first.T)])

    def end(self, slots: Ints) -> Iterator[Results]:
        """End these connections."""
        at = 0
        while at < len(slots):
            at = call(end_all, self.compiled, self.flows, self.out, slots, at)
            yield from self._drain()
            if at < len(slots):
                yield from self._make_room((0, 0, int(self.flows.control[Control.CLOCK])))

    def _drain(self) -> Iterator[Results]:
        """Yield the results."""
        out = self.out
        chunks, faults, windows, events, acks, ended = out.counts.tolist()
        if chunks or faults or windows or events or acks or ended:
            counts = out.counts.copy()
            out.counts[:] = 0
            yield Results(
                out.chunks[:, :chunks], out.faults[:, :faults].copy(), out.windows[:, :windows].copy(),
                out.events[:, :events].copy(), out.acks[:, :acks].copy(), out.ended[:ended].copy(), counts,
            )  # fmt: skip

    def _make_room(self, where: tuple[int, int, int]) -> Iterator[Results]:
        """Make the room for which the kernels stopped; the results have been read."""
        want = self.flows.control[Control.WANT]
        if want == SLOT:
            if self.flows.free[0] == 0:
                self._grow(min(2 * len(self.flows.facts), self.max_connections))
        elif want == FEWER:
            yield from self._evict(*where)
        elif want == SEGMENTS:
            self._grow_segments(min(2 * len(self.flows.segments), limits.WAITING_PARTS))
        elif want == SENT:
            self._grow_sent(*where)
        elif want == IDENTITIES:
            if len(self.flows.younger) >= 2 * limits.IDENTITIES:
                text = f"more than {limits.IDENTITIES} connections: identities of the earliest may occur again"
                self.evicted.append((*where, text))
            self._remember()
        elif want == CROWDED:
            count = len(self.flows.segments) - self.flows.free_segments[0]
            text = f"{self.waiting} bytes in {count} segments waited for earlier ones: gaps before most of them stay"
            self.evicted.append((*where, text))
            call(relieve, self.compiled, self.flows, self.out)

    def _grow(self, capacity: int) -> None:
        flows = self.flows
        self.flows = flows._replace(
            facts=Facts.grown(flows.facts, capacity),
            conn=Conn.grown(flows.conn, capacity),
            direction=Direction.grown(flows.direction, 2 * capacity),
            queues=Queue.grown(flows.queues, 2 * capacity),
            elsewhere=Queue.grown(flows.elsewhere, 2 * capacity),
            repeats=Repeat.grown(flows.repeats, REPEATS * 2 * capacity),
            free=free_rows(capacity, flows.free),
            recent=grown(flows.recent, 2 * capacity),
        )
        self._rebuild(1 << (4 * capacity - 1).bit_length())  # it is searched by a mask

    def _grow_segments(self, capacity: int) -> None:
        flows = self.flows
        self.flows = flows._replace(
            segments=Segment.grown(flows.segments, capacity), free_segments=free_rows(capacity, flows.free_segments)
        )
        self.out = self.out._replace(chunks=Chunk.room(max(4 * capacity + APART, self.out.chunks.shape[1])))

    def _grow_sent(self, capture: int, packet: int, ts: int) -> None:
        """Make room for what more directions send, and more of it up to a limit."""
        flows = self.flows
        if flows.free_sending[0] == 0:
            self._reserve_sending(1)
        elif len(flows.sent) < limits.SENT:
            self._reserve_sent(1)
        else:
            flows.control[Control.UNTIMED] = 1
            text = (
                f"{limits.SENT} segments were unacknowledged: some rows of tcp_events lack the segment they are about"
            )
            self.evicted.append((capture, packet, ts, text))

    def _reserve_sending(self, count: int) -> None:
        flows, size = self.flows, len(self.flows.sending) // 2
        if flows.free_sending[0] < count:
            size = max(4 * size, size + count)
            self.flows = flows._replace(
                sending=Sending.grown(flows.sending, 2 * size), free_sending=free_rows(size, flows.free_sending)
            )

    def _reserve_sent(self, count: int) -> None:
        flows, size = self.flows, len(self.flows.sent)
        if flows.free_sent[0] < count:
            size = max(4 * size, size + count)
            self.flows = flows._replace(sent=Sent.grown(flows.sent, size), free_sent=free_rows(size, flows.free_sent))

    def _rebuild(self, size: int) -> None:
        self.flows = self.flows._replace(table=np.zeros(size, np.int64))
        self.flows.control[Control.TOMBSTONES] = 0
        call(rebuild, self.compiled, self.flows)

    def _remember(self) -> None:
        """Make room for more identities; above a limit, the older half is dropped."""
        names, older, size = self.flows.younger, self.flows.older, 2 * len(self.flows.younger)
        if len(names) >= 2 * limits.IDENTITIES:
            older, names, size = names, names[:0], 256
        self.flows = self.flows._replace(younger=np.zeros(size, np.int64), older=older)
        self.flows.control[Control.KNOWN] = 0
        call(remember_all, self.compiled, names, self.flows)

    def _evict(self, capture: int, packet: int, ts: int) -> Iterator[Results]:
        """Evict an eighth of the connections."""
        control = self.flows.control
        count = max(int(control[Control.LIVE]) // 8, 1)
        control[Control.EVICTED] = 0
        while count:
            count = call(evict, self.compiled, self.flows, self.out, count)
            yield from self._drain()
            if count and control[Control.WANT] == IDENTITIES:
                self._remember()
        if control[Control.EVICTED]:
            count = int(control[Control.EVICTED])
            text = f"more than {self.max_connections} connections were open: the {count} idle longest were evicted"
            self.evicted.append((capture, packet, ts, text))

    def free(self, slots: Ints) -> None:
        """Take back the slots of ended connections, and empty their rows."""
        flows = self.flows
        Facts.clear(flows.facts, slots)
        Conn.clear(flows.conn, slots)
        Direction.clear(flows.direction, both(slots))
        Queue.clear(flows.queues, both(slots))
        Queue.clear(flows.elsewhere, both(slots))
        give_rows(flows.free, slots)

    def reserve(self, slots: int, segments: int, sending: int = 0, sent: int = 0) -> None:
        """Make room for this many slots, and rows for buffered segments, directions with bytes, and what they sent."""
        flows = self.flows
        if flows.free[0] < slots:
            self._grow(max(2 * len(flows.facts), len(flows.facts) - int(flows.free[0]) + slots))
        if flows.free_segments[0] < segments:
            self._grow_segments(len(flows.segments) + segments)
        self._reserve_sending(sending)
        self._reserve_sent(sent)

    def link(self) -> None:
        """Rebuild the lists, in order of last segments, and the hash table, after connections came or went."""
        flows = self.flows
        for which in (OPEN, CLOSED):
            slots = np.flatnonzero((flows.facts[:, Facts.USED] == 1) & (flows.conn[:, Conn.LIST] == which))
            slots = slots[np.argsort(flows.conn[slots, Conn.SEEN], kind="stable")]
            order = np.concatenate([[-1], slots, [-1]])
            flows.conn[slots, Conn.OLDER], flows.conn[slots, Conn.NEWER] = order[:-2], order[2:]
            flows.lists[which] = order[[1, -2]]
        self._rebuild(len(flows.table))

    def identities(self) -> Ints:
        """Return all identities that are remembered, older ones first."""
        names = np.concatenate([self.flows.older, self.flows.younger])
        found: Ints = names[names != 0]
        return found

    def remember(self, names: Ints) -> None:
        """Remember identities from other dissectors."""
        for begin in range(0, len(names), STEP):
            step = names[begin : begin + STEP]
            while 2 * (self.flows.control[Control.KNOWN] + len(step)) >= len(self.flows.younger):
                self._remember()
            call(remember_all, self.compiled, step, self.flows)

    @property
    def ranges(self) -> list[Ranges]:
        """The buffered bytes, which must outlive their batch."""
        segments, taken = self.flows.segments, len(self.flows.segments) - int(self.flows.free_segments[0])
        return [Ranges(segments, Segment.USED, Segment.OFFSET, Segment.LENGTH, taken)]
