"""TCP connections: batches of segments to ordered pieces of octets and holes.

Holds the state that the kernels work on, and makes room for it.
"""

from collections.abc import Iterator

import numpy as np

from dissector import limits
from dissector.arrays import Ints
from dissector.carry import Ranges
from dissector.kernel import call
from dissector.packets import SegmentBatch
from dissector.pool import Pool, grown
from dissector.tcp.layout import (
    C_CLOSED,
    C_FIRST_PACKET,
    C_FIRST_TS,
    C_LAST_TS,
    C_USED,
    C_WIDTH,
    H_WIDTH,
    K_CLOCK,
    K_ENDED,
    K_PIECES,
    K_TOMBSTONES,
    K_WIDTH,
    LINGER_NS,
    P_LENGTH,
    P_OFFSET,
    P_USED,
    P_WIDTH,
    S_HEIGHT,
)
from dissector.tcp.parts import flush
from dissector.tcp.segments import reassemble
from dissector.tcp.slots import forget, rebuild

ENDED_AT_ONCE = 4096
"""Connections that are ended in one go."""


class Reassembler:
    """All open connections and their streams.

    `feed` yields (pieces, ended): an int64 matrix of S_HEIGHT rows, and the slots of connections that are over
    once these pieces are read. The receiver hands the slots back with `free` when it has done with them.
    """

    def __init__(self, compiled: bool, max_connections: int = limits.CONNECTIONS) -> None:
        self.compiled = compiled
        self.max_connections = max_connections
        self.slots = Pool(C_WIDTH, 64)
        self.half = np.zeros((2 * len(self.slots), H_WIDTH), np.int64)
        self.table = np.zeros(4 * len(self.slots), np.int64)
        self.control = np.zeros(K_WIDTH, np.int64)
        self.parts = Pool(P_WIDTH, limits.WAITING_PARTS if compiled else 4096)
        self.pieces = np.empty((S_HEIGHT, 4 * len(self.parts)), np.int64)
        self.ended = np.empty(4096, np.int64)
        self.given_up: list[tuple[int, int]] = []
        """Where too many connections were open: the packet that wanted one more, and how many were ended for it."""

    @property
    def conn(self) -> Ints:
        """The connections' rows, by slot."""
        return self.slots.rows

    def _grow(self, capacity: int) -> None:
        self.slots.grow(capacity)
        self.half = grown(self.half, 2 * capacity)
        self._rebuild(4 * capacity, self.conn[:, C_USED])

    def _grow_parts(self, capacity: int) -> None:
        self.parts.grow(capacity)
        self.pieces = np.empty((S_HEIGHT, 4 * capacity), np.int64)

    def _rebuild(self, size: int, live: Ints) -> None:
        self.table = np.zeros(size, np.int64)
        self.control[K_TOMBSTONES] = 0
        call(rebuild, self.compiled, self.conn, self.table, live.copy())

    def feed(self, segments: SegmentBatch) -> Iterator[tuple[Ints, Ints]]:
        """Take one batch of segments (rows of one capture file, in its order)."""
        at = 0
        while at < len(segments.ts_ns):
            before = at
            at = call(
                reassemble, self.compiled, segments.ts_ns, segments.packet, segments.src_hi, segments.src_lo,
                segments.dst_hi, segments.dst_lo, segments.sport, segments.dport, segments.seq, segments.ack,
                segments.flags, segments.offset, segments.caplen, segments.length, segments.wscale,
                segments.capture, at, self.conn, self.half, self.table, self.parts.rows, self.slots.free,
                self.parts.free, self.ended, self.pieces, self.control,
            )  # fmt: skip
            yield from self._drain(self.ended[: self.control[K_ENDED]].copy())
            if at < len(segments.ts_ns) and self.slots.left == 0:
                yield from self._make_room(int(segments.packet[at]))
            elif at == before and len(self.parts) < limits.WAITING_PARTS:
                self._grow_parts(2 * len(self.parts))
        if self.control[K_TOMBSTONES] > len(self.table) // 4:
            live = np.zeros(len(self.conn), np.int64)
            live[self.table[self.table > 0] - 1] = 1
            self._rebuild(len(self.table), live)

    def expire(self) -> Iterator[tuple[Ints, Ints]]:
        """End the closed connections that no further packet can belong to."""
        used = self.conn[:, C_USED] == 1
        closed = self.conn[:, C_CLOSED]
        idle = self.conn[:, C_LAST_TS] + LINGER_NS < self.control[K_CLOCK]
        yield from self._drain(np.flatnonzero(used & idle & ((closed & 4 != 0) | (closed & 3 == 3))))

    def finish(self) -> Iterator[tuple[Ints, Ints]]:
        """End all connections, in the order in which they began."""
        slots = np.flatnonzero(self.conn[:, C_USED])
        order = np.lexsort((self.conn[slots, C_FIRST_PACKET], self.conn[slots, C_FIRST_TS]))
        yield from self._give_up(slots[order])

    def _give_up(self, slots: Ints) -> Iterator[tuple[Ints, Ints]]:
        """End connections, some at a time: their rows are made as objects, and take much more room than they."""
        for at in range(0, len(slots), ENDED_AT_ONCE):
            yield from self._drain(slots[at : at + ENDED_AT_ONCE])

    def _make_room(self, packet: int) -> Iterator[tuple[Ints, Ints]]:
        if len(self.conn) < self.max_connections:
            self._grow(min(2 * len(self.conn), self.max_connections))
            return
        yield from self.expire()
        if self.slots.left * 8 < len(self.conn):
            slots = np.flatnonzero(self.conn[:, C_USED])
            oldest = slots[np.argsort(self.conn[slots, C_LAST_TS], kind="stable")[: max(len(slots) // 8, 1)]]
            self.given_up.append((packet, len(oldest)))
            yield from self._give_up(oldest)

    def _drain(self, ended: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Yield the pieces at hand, those that still wait in ended connections included."""
        at = 0
        while True:
            at = call(
                flush, self.compiled, ended, self.conn, self.half, self.parts.rows, self.parts.free, self.pieces,
                self.control, at,
            )  # fmt: skip
            count = int(self.control[K_PIECES])
            self.control[K_PIECES] = 0
            if at >= len(ended):
                break
            yield self.pieces[:, :count], ended[:0]
        self.control[K_ENDED] = 0
        if count or len(ended):
            yield self.pieces[:, :count], ended

    def free(self, slots: Ints) -> None:
        """Take back the slots of ended connections."""
        call(forget, self.compiled, slots, self.conn, self.table, self.slots.free, self.control)

    @property
    def ranges(self) -> list[Ranges]:
        """Octets that wait, and must outlive their batch."""
        return [Ranges(self.parts.rows, P_USED, P_OFFSET, P_LENGTH)]
