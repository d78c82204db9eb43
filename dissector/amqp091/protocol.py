"""AMQP 0-9-1 of all connections: pieces in, columns of frames and messages out.

Holds the state that the kernels of `frames` and `content` work on, makes room for it, and has the fields decoded
as `spec` says.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dissector import limits
from dissector.amqp091 import content as c
from dissector.amqp091 import frames as f
from dissector.arrays import Ints, Octets
from dissector.carry import Buffer, Ranges
from dissector.fields import Decoded, Plan, decode
from dissector.kernel import call
from spec.model import Protocol

IDS_OCTETS = 4
"""Class and method id, in front of the arguments."""
HEADER_OCTETS = 12
"""Class, weight and body size, in front of the property flags."""
MESSAGE_ARGUMENTS = (
    "exchange", "routing_key", "consumer_tag", "delivery_tag", "redelivered", "mandatory", "reply_code", "reply_text",
)  # fmt: skip
"""Arguments of the method that a message row repeats."""


class Frames(NamedTuple):
    """Some frames: `rows` is (f.R_HEIGHT, n), `fields` the methods' arguments."""

    rows: Ints
    fields: Decoded


class Messages(NamedTuple):
    """Some messages: `rows` is (c.G_HEIGHT, n), `hashes` (n,) uint64."""

    rows: Ints
    hashes: "np.ndarray[tuple[int], np.dtype[np.uint64]]"
    arguments: Decoded
    properties: Decoded
    bodies: list[bytes | None] | None


class Faults(NamedTuple):
    """Some faults: (f.Y_HEIGHT, n)."""

    rows: Ints


class Amqp091:
    """The walk and the contents of all connections that speak AMQP 0-9-1."""

    def __init__(self, protocol: Protocol, compiled: bool, keep_bodies: bool) -> None:
        self.compiled = compiled
        self.keep = int(keep_bodies)
        self.names = [m.full_name for m in protocol.methods]
        self.methods = f.method_table([(m.class_id, m.id) for m in protocol.methods])
        self.roles = c.role_table(self.names)
        basic = next(k for k in protocol.classes if k.name == "basic")
        self.all_arguments = Plan.of_methods(protocol)
        self.some_arguments = Plan.of_methods(protocol, only=MESSAGE_ARGUMENTS)
        self.properties = Plan.of_properties(basic)
        self.bodies: dict[int, list[bytes]] = {}

        room = 131_072 if compiled else 2_048
        self.pieces_control = np.zeros(f.M_WIDTH, np.int64)
        self.walk = np.zeros((0, f.W_WIDTH), np.int64)
        self.frames = np.empty((f.R_HEIGHT, room), np.int64)
        self.spans = np.empty((f.X_HEIGHT, room), np.int64)
        self.faults = np.empty((f.Y_HEIGHT, room), np.int64)
        self.fragments = np.zeros((room, f.F_WIDTH), np.int64)
        self.free_fragments = np.arange(room, dtype=np.int64)[::-1].copy()
        self.pieces_control[f.M_FREE] = room

        self.control = np.zeros(c.Q_WIDTH, np.int64)
        self.first = np.zeros(0, np.int64)
        self.messages = np.empty((c.G_HEIGHT, room), np.int64)
        self.hashes = np.empty(room, np.uint64)
        self.content_faults = np.empty((f.Y_HEIGHT, room), np.int64)
        self.kept = np.empty((c.E_HEIGHT, room), np.int64)
        self.channels = np.zeros((0, c.N_WIDTH), np.int64)
        self.contents = np.zeros((0, c.B_WIDTH), np.int64)
        self.lanes = np.zeros((0, 8), np.uint64)
        self.waiting = np.zeros(0, np.uint8)
        self.free_channels = np.zeros(0, np.int64)
        self.nodes = np.zeros((0, c.Z_WIDTH), np.int64)
        self.free_nodes = np.zeros(0, np.int64)
        self._grow_channels(64)
        self._grow_nodes(2 * room)

    # ---------------------------------------------------------------------------------------------- state

    @property
    def ranges(self) -> list[Ranges]:
        """Octets of unfinished frames and contents, which must outlive their batch."""
        return [
            Ranges(self.fragments, f.F_USED, f.F_OFFSET, f.F_LENGTH),
            Ranges(self.contents, c.B_STATE, c.B_METHOD_OFFSET, c.B_METHOD_LENGTH),
            Ranges(self.contents, c.B_STATE, c.B_HEADER_OFFSET, c.B_HEADER_LENGTH),
        ]

    def begin(self, slots: Ints, states: Ints, capacity: int) -> None:
        """Take over connections; `states` are f.HEAD where a stream is seen from its start, else f.SEARCH."""
        if len(self.first) < capacity:
            more = capacity - len(self.first)
            self.first = np.concatenate([self.first, np.full(more, -1, np.int64)])
            self.walk = np.concatenate([self.walk, np.zeros((2 * more, f.W_WIDTH), np.int64)])
        for side in range(2):
            rows = 2 * slots + side
            self.walk[rows] = 0
            self.walk[rows, f.W_STATE] = states
            self.walk[rows, f.W_CHAIN] = -1
            self.walk[rows, f.W_CHAIN_END] = -1
            self.walk[rows, f.W_LAST] = -1

    def _grow_channels(self, capacity: int) -> None:
        old = len(self.channels)
        more = capacity - old
        self.channels = np.concatenate([self.channels, np.zeros((more, c.N_WIDTH), np.int64)])
        self.contents = np.concatenate([self.contents, np.zeros((2 * more, c.B_WIDTH), np.int64)])
        self.lanes = np.concatenate([self.lanes, np.zeros((2 * more, 8), np.uint64)])
        self.waiting = np.concatenate([self.waiting, np.zeros(64 * more, np.uint8)])
        free = self.free_channels[: self.control[c.Q_FREE_CHANNELS]]
        new = np.arange(old, capacity, dtype=np.int64)[::-1]
        self.free_channels = np.concatenate([new, free, np.zeros(old - len(free), np.int64)])
        self.control[c.Q_FREE_CHANNELS] += more
        self._rebuild(4 * capacity)

    def _rebuild(self, size: int) -> None:
        self.table = np.zeros(size, np.int64)
        self.control[c.Q_TOMBSTONES] = 0
        call(c.place_channels, self.compiled, self.channels, self.table)

    def _grow_nodes(self, capacity: int) -> None:
        old = len(self.nodes)
        self.nodes = np.concatenate([self.nodes, np.zeros((capacity - old, c.Z_WIDTH), np.int64)])
        free = self.free_nodes[: self.control[c.Q_FREE_NODES]]
        new = np.arange(old, capacity, dtype=np.int64)[::-1]
        self.free_nodes = np.concatenate([new, free, np.zeros(old - len(free), np.int64)])
        self.control[c.Q_FREE_NODES] += capacity - old

    # ---------------------------------------------------------------------------------------------- stages

    def feed(self, pieces: Ints, count: int, buffer: Buffer, conn: Ints) -> Iterator[Frames | Messages | Faults]:
        """Walk the first `count` pieces. Frames come out before the messages that they complete."""
        m = self.pieces_control
        m[f.M_PIECE] = m[f.M_AT] = 0
        m[f.M_COUNT] = count
        while m[f.M_PIECE] < count:
            m[f.M_FRAMES] = m[f.M_SPANS] = m[f.M_FAULTS] = 0
            m[f.M_ARENA] = buffer.top
            call(
                f.walk_pieces, self.compiled, pieces, buffer.data, conn, self.walk, self.frames, self.spans,
                self.faults, self.fragments, self.free_fragments, m, self.methods,
            )  # fmt: skip
            buffer.top = int(m[f.M_ARENA])
            yield from self._take(buffer, conn)
            if m[f.M_PIECE] < count:
                buffer.reserve(int(pieces[f.S_LENGTH, m[f.M_PIECE]]) + limits.PAYLOAD + 64)

    def _take(self, buffer: Buffer, conn: Ints) -> Iterator[Frames | Messages | Faults]:
        m = self.pieces_control
        n = int(m[f.M_FRAMES])
        if m[f.M_FAULTS]:
            yield Faults(self.faults[:, : m[f.M_FAULTS]].copy())
        if not n and not m[f.M_SPANS]:
            return
        rows = self.frames[:, :n]
        fields = self._arguments(self.all_arguments, buffer.data, rows, f.R_OFFSET, f.R_LENGTH, rows[f.R_MISSING] > 0)
        tags = self._tags(fields.columns["consumer_tag"])
        no_ack, no_wait = (_flags(fields.columns[name]) for name in ("no_ack", "no_wait"))
        q = self.control
        q[c.Q_FRAME] = q[c.Q_SPAN] = 0
        if q[c.Q_FREE_NODES] < n and len(self.nodes) < limits.PENDING:
            self._grow_nodes(2 * len(self.nodes))
        messages: list[Messages | Faults] = []
        while q[c.Q_FRAME] < n or q[c.Q_SPAN] < m[f.M_SPANS]:
            q[c.Q_MESSAGES] = q[c.Q_FAULTS] = q[c.Q_KEPT] = 0
            call(
                c.assemble, self.compiled, self.frames, n, self.spans, int(m[f.M_SPANS]), buffer.data, conn, self.roles,
                tags, no_ack, no_wait, self.channels, self.contents, self.lanes, self.waiting, self.table, self.first,
                self.free_channels, self.nodes, self.free_nodes, self.messages, self.hashes, self.content_faults,
                self.kept, q, self.keep,
            )  # fmt: skip
            messages += self._finished(buffer.data)
            if q[c.Q_FREE_CHANNELS] == 0:
                if len(self.channels) < limits.CHANNELS:
                    self._grow_channels(2 * len(self.channels))
                else:
                    q[c.Q_FULL] = 1
        if n:
            yield Frames(rows.copy(), fields)
        yield from messages
        if q[c.Q_TOMBSTONES] > len(self.table) // 4:
            self._rebuild(len(self.table))

    def _finished(self, data: Octets) -> Iterator[Messages | Faults]:
        q = self.control
        if self.keep:
            for body, offset, length in self.kept[:, : q[c.Q_KEPT]].T.tolist():
                parts = self.bodies.setdefault(body, [])
                parts.append(data[offset : offset + min(length, limits.BODY)].tobytes())
        n = int(q[c.Q_MESSAGES])
        if q[c.Q_FAULTS]:
            yield Faults(self.content_faults[:, : q[c.Q_FAULTS]].copy())
        if n:
            rows = self.messages[:, :n].copy()
            yield self._decoded(rows, self.hashes[:n].copy(), data)

    def _decoded(
        self, rows: Ints, hashes: "np.ndarray[tuple[int], np.dtype[np.uint64]]", data: Octets
    ) -> Messages:
        partial = rows[c.G_PARTIAL] > 0
        arguments = self._arguments(
            self.some_arguments, data, rows, c.G_METHOD_OFFSET, c.G_METHOD_LENGTH, partial, c.G_METHOD
        )
        offset, length = rows[c.G_HEADER_OFFSET], rows[c.G_HEADER_LENGTH]
        there = (offset >= 0) & (length >= HEADER_OCTETS)
        properties = decode(
            self.properties, data, np.where(there, offset + HEADER_OCTETS, 0), np.where(there, length - HEADER_OCTETS, 0),
            np.where(there, 0, -1), (rows[c.G_HEADER_CUT] > 0).astype(np.uint8), self.compiled,
        )  # fmt: skip
        bodies = None
        if self.keep:
            bodies = []
            for body, whole in zip(rows[c.G_BODY].tolist(), rows[c.G_HASH].tolist(), strict=True):
                parts = self.bodies.pop(body, [])
                bodies.append(b"".join(parts)[: limits.BODY] if whole else None)
        return Messages(rows, hashes, arguments, properties, bodies)

    def _arguments(
        self, plan: Plan, data: Octets, rows: Ints, offset: int, length: int, cut: Ints, method: int = f.R_METHOD
    ) -> Decoded:
        known = rows[method] >= 0
        return decode(
            plan, data, np.where(known, rows[offset] + IDS_OCTETS, 0), np.where(known, rows[length] - IDS_OCTETS, 0),
            np.where(known, rows[method], -1), cut.astype(np.uint8), self.compiled,
        )  # fmt: skip

    def _tags(self, column: pa.Array) -> Ints:
        out = np.zeros(len(column), np.int64)
        if column.null_count < len(column):
            _, offsets, octets = column.buffers()
            places = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
            text = np.frombuffer(octets, np.uint8).copy() if octets is not None else np.zeros(0, np.uint8)
            call(c.tag_hashes, self.compiled, places, text, out)
        return out

    def end(self, slots: Ints, conn: Ints, buffer: Buffer) -> Iterator[Messages | Faults]:
        """Forget connections that are over. What was under way comes out as partial messages and faults."""
        rows = (2 * slots[:, None] + np.arange(2)).ravel()
        state = self.walk[rows, f.W_STATE]
        inside = (state == f.PAYLOAD) | (state == f.END) | ((state == f.HEAD) & (self.walk[rows, f.W_HEADS] > 0))
        if inside.any():
            yield Faults(self._cuts(rows[inside], conn))
        for row in rows[self.walk[rows, f.W_CHAIN] >= 0].tolist():
            call(
                f.drop_chain, self.compiled, self.walk, row, self.fragments, self.free_fragments, self.pieces_control
            )
        at = 0
        q = self.control
        while at < len(slots):
            q[c.Q_MESSAGES] = q[c.Q_FAULTS] = q[c.Q_KEPT] = 0
            at = call(
                c.end_channels, self.compiled, slots, at, conn, self.channels, self.contents, self.lanes, self.waiting,
                self.table, self.first, self.free_channels, self.nodes, self.free_nodes, self.messages, self.hashes, q,
            )  # fmt: skip
            yield from self._finished(buffer.data)
        q[c.Q_FULL] = 0

    def _cuts(self, rows: Ints, conn: Ints) -> Ints:
        walk = self.walk[rows]
        slots = rows // 2
        faults = np.zeros((f.Y_HEIGHT, len(rows)), np.int64)
        faults[f.Y_CODE] = f.CUT
        faults[f.Y_SLOT] = slots
        faults[f.Y_SIDE] = rows % 2
        faults[f.Y_NO] = -1
        faults[f.Y_CHANNEL] = np.where(walk[:, f.W_STATE] == f.HEAD, -1, walk[:, f.W_CHANNEL])
        faults[f.Y_POS] = walk[:, f.W_POS]
        head = walk[:, f.W_STATE] == f.HEAD
        faults[f.Y_VALUE] = np.where(head, 0, walk[:, f.W_SIZE] - walk[:, f.W_GOT] + 1)
        for to, of in (
            (f.Y_PACKET, f.W_FIRST_PACKET), (f.Y_TS, f.W_FIRST_TS), (f.Y_CAPTURE, f.W_FIRST_CAPTURE),
            (f.Y_FIRST_PACKET, f.W_FIRST_PACKET), (f.Y_FIRST_TS, f.W_FIRST_TS),
            (f.Y_FIRST_CAPTURE, f.W_FIRST_CAPTURE),
        ):  # fmt: skip
            faults[to] = walk[:, of]
        return faults

    def skipped(self, slot: int) -> int:
        """Octets passed over in the search at hand of both directions."""
        rows = self.walk[2 * slot : 2 * slot + 2]
        return int(rows[rows[:, f.W_STATE] == f.SEARCH, f.W_SKIPPED].sum())


def _flags(column: pa.Array) -> Ints:
    """A bool column as int64: 0 also for null."""
    if column.null_count == len(column):
        return np.zeros(len(column), np.int64)
    return column.fill_null(False).to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


Sink = Callable[[Frames | Messages | Faults], None]
