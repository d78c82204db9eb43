"""TCP connections: batches of segments to ordered pieces of bytes and gaps.

Holds the state that the kernels work on, and makes room for it.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.kernel import call
from amqpscope.dissector.kernels.pool import APART, Pool, grown
from amqpscope.dissector.kernels.retained import Buffer, Ranges
from amqpscope.dissector.packets.segments import SegmentBatch
from amqpscope.dissector.tcp.endings import end_all, evict, relieve
from amqpscope.dissector.tcp.identities import remember_all
from amqpscope.dissector.tcp.layout import (
    C_FIRST_CAPTURE,
    C_FIRST_PACKET,
    C_FIRST_TS,
    C_USED,
    C_WIDTH,
    CLOSED,
    CROWDED,
    FEWER,
    H_WIDTH,
    IDENTITIES,
    K_ENDED,
    K_FAULTS,
    K_GIVEN_UP,
    K_KNOWN,
    K_LIVE,
    K_NEWEST,
    K_OLDEST,
    K_PIECES,
    K_TOMBSTONES,
    K_WANT,
    K_WIDTH,
    K_WINDOWS,
    OPEN,
    P_LENGTH,
    P_OFFSET,
    P_USED,
    P_WIDTH,
    PARTS,
    RECENT,
    S_HEIGHT,
    SLOT,
    T_HEIGHT,
    V_HEIGHT,
)
from amqpscope.dissector.tcp.segments import reassemble
from amqpscope.dissector.tcp.slots import free, rebuild


class Output(NamedTuple):
    """What came out of some segments; all int64.

    Attributes:
        pieces: (S_HEIGHT, n).
        faults: (T_HEIGHT, n).
        windows: (V_HEIGHT, n).
        ended: slots of connections that are over once all this is read.
    """

    pieces: Ints
    faults: Ints
    windows: Ints
    ended: Ints


class Reassembler:
    """All open connections and their streams.

    What `feed` yields is to be read before the next is asked for. The receiver hands the slots of ended connections
    back with `free` when it has done with them.
    """

    def __init__(self, compiled: bool, max_connections: int = limits.CONNECTIONS) -> None:
        self.compiled = compiled
        self.max_connections = max_connections
        self.slots = Pool(C_WIDTH, min(64, max_connections))
        self.half = np.zeros((2 * len(self.slots), H_WIDTH), np.int64)
        self.table = np.zeros(256, np.int64)
        self.younger, self.older = np.zeros(256, np.int64), np.zeros(1, np.int64)
        self.recent = np.zeros(RECENT, np.int64)
        self.control = np.zeros(K_WIDTH, np.int64)
        self.control[[K_OLDEST + OPEN, K_OLDEST + CLOSED, K_NEWEST + OPEN, K_NEWEST + CLOSED]] = -1
        self.parts = Pool(P_WIDTH, limits.WAITING_PARTS if compiled else 4096)
        self.pieces = np.empty((S_HEIGHT, 4 * len(self.parts) + APART), np.int64)
        self.faults = np.empty((T_HEIGHT, 1024), np.int64)
        self.windows = np.empty((V_HEIGHT, 1024), np.int64)
        self.ended = np.empty(4096, np.int64)
        self.points = np.zeros(1, np.int64)
        """For each capture the first of those from the same capture point."""
        self.given_up: list[tuple[int, int, int, str]] = []
        """Where connections were ended to make room: capture, packet and time of the segment that wanted it, and what
        to say of it."""

    @property
    def conn(self) -> Ints:
        """The connections' rows, by slot."""
        return self.slots.rows

    def feed(self, segments: SegmentBatch, buffer: Buffer) -> Iterator[Output]:
        """Take one batch of segments (each file's in its order), whose bytes lie in `buffer`."""
        at, n = 0, len(segments.ts_ns)
        if n and segments.capture.max() >= len(self.points):
            self.points = grown(self.points, int(segments.capture.max()) + 1)
        while at < n:
            at = call(
                reassemble, self.compiled, segments.ts_ns, segments.packet, segments.src_hi, segments.src_lo,
                segments.dst_hi, segments.dst_lo, segments.sport, segments.dport, segments.seq, segments.ack,
                segments.flags, segments.window, segments.mark, segments.offset, segments.caplen, segments.length,
                segments.wscale, segments.capture, at, self.max_connections, self.points, buffer.data, self.conn,
                self.half, self.table, self.parts.rows, self.slots.free, self.parts.free, self.younger, self.older,
                self.recent, self.pieces, self.faults, self.windows, self.ended, self.control,
            )  # fmt: skip
            yield from self._drain()
            if at < n:
                yield from self._make_room(int(segments.capture[at]), int(segments.packet[at]), int(segments.ts_ns[at]))
        if self.control[K_TOMBSTONES] > len(self.table) // 4:
            self._rebuild(len(self.table))

    def finish(self) -> Iterator[Output]:
        """End all connections, in the order in which they began."""
        slots = np.flatnonzero(self.conn[:, C_USED])
        first = self.conn[slots][:, [C_FIRST_PACKET, C_FIRST_CAPTURE, C_FIRST_TS]]
        yield from self.end(slots[np.lexsort(first.T)])

    def end(self, slots: Ints) -> Iterator[Output]:
        """End these connections."""
        at = 0
        while at < len(slots):
            at = call(end_all, self.compiled, slots, at, *self._state)
            yield from self._drain()
            if at < len(slots):
                yield from self._make_room(0, 0, 0)

    @property
    def _state(self) -> tuple[Any, ...]:
        """What connections are ended with."""
        return (
            self.conn, self.half, self.table, self.parts.rows, self.parts.free, self.younger, self.older, self.pieces,
            self.windows, self.ended, self.control,
        )  # fmt: skip

    def _drain(self) -> Iterator[Output]:
        """Yield what came out."""
        c = self.control
        pieces, faults, windows, ended = (int(c[k]) for k in (K_PIECES, K_FAULTS, K_WINDOWS, K_ENDED))
        c[[K_PIECES, K_FAULTS, K_WINDOWS, K_ENDED]] = 0
        if pieces or faults or windows or ended:
            yield Output(
                self.pieces[:, :pieces], self.faults[:, :faults].copy(), self.windows[:, :windows].copy(),
                self.ended[:ended].copy(),
            )  # fmt: skip

    def _make_room(self, *where: int) -> Iterator[Output]:
        """Give the kernels what they stopped for; what came out was read."""
        want = self.control[K_WANT]
        if want == SLOT:
            if self.slots.left == 0:
                self._grow(min(2 * len(self.slots), self.max_connections))
        elif want == FEWER:
            yield from self._give_up(*where)
        elif want == PARTS:
            self.parts.grow(min(2 * len(self.parts), limits.WAITING_PARTS))
            self.pieces = np.empty((S_HEIGHT, 4 * len(self.parts) + APART), np.int64)
        elif want == IDENTITIES:
            self._remember()
        elif want == CROWDED:
            call(relieve, self.compiled, self.half, self.parts.rows, self.control, self.parts.free, self.pieces)

    def _grow(self, capacity: int) -> None:
        self.slots.grow(capacity)
        self.half = grown(self.half, 2 * capacity)
        self._rebuild(4 * capacity)

    def _rebuild(self, size: int) -> None:
        self.table = np.zeros(size, np.int64)
        self.control[K_TOMBSTONES] = 0
        call(rebuild, self.compiled, self.conn, self.table)

    def _remember(self) -> None:
        """Have room for more identities; beyond a limit, the older half of them is forgotten."""
        names, size = self.younger, 2 * len(self.younger)
        if len(names) >= 2 * limits.IDENTITIES:
            self.older, names, size = names, names[:0], 256
        self.younger = np.zeros(size, np.int64)
        self.control[K_KNOWN] = 0
        call(remember_all, self.compiled, names, self.younger, self.older, self.control)

    def _give_up(self, capture: int, packet: int, ts: int) -> Iterator[Output]:
        """End an eighth of the connections."""
        count = max(int(self.control[K_LIVE]) // 8, 1)
        self.control[K_GIVEN_UP] = 0
        while count:
            count = call(evict, self.compiled, count, *self._state)
            yield from self._drain()
            if count and self.control[K_WANT] == IDENTITIES:
                self._remember()
        if self.control[K_GIVEN_UP]:
            count = int(self.control[K_GIVEN_UP])
            told = f"more than {self.max_connections} connections were open: {count} that were idle longest ended here"
            self.given_up.append((capture, packet, ts, told))

    def free(self, slots: Ints) -> None:
        """Take back the slots of ended connections."""
        call(free, self.compiled, slots, self.conn, self.slots.free)

    @property
    def ranges(self) -> list[Ranges]:
        """Bytes that wait, and must outlive their batch."""
        return [Ranges(self.parts.rows, P_USED, P_OFFSET, P_LENGTH, self.parts.taken)]
