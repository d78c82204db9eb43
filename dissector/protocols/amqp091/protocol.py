"""AMQP 0-9-1 of all connections: pieces in, columns of frames and messages out.

Holds the state that the kernels of `frames` and `content` work on, makes room for it, and has the fields decoded
as `spec` says.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from amqpscope.dissector.fields.decoding import Decoded, decode
from amqpscope.dissector.fields.plan import Plan
from amqpscope.dissector.fields.secrets import hide, with_secrets
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Ints, Octets
from amqpscope.dissector.kernels.kernel import call
from amqpscope.dissector.kernels.pool import APART, Pool, grown
from amqpscope.dissector.kernels.retained import Buffer, Ranges
from amqpscope.dissector.protocols.amqp091 import assembly, channels, content, frames
from amqpscope.dissector.protocols.amqp091 import layout as ly
from amqpscope.dissector.protocols.framing import Y_HEIGHT, Framing
from amqpscope.spec.model import Protocol

IDS_OCTETS = 4
"""Class and method id, in front of the arguments."""
HEADER_OCTETS = 12
"""Class, weight and body size, in front of the property flags."""
MESSAGE_ARGUMENTS = (
    "exchange", "routing_key", "consumer_tag", "delivery_tag", "redelivered", "mandatory", "reply_code", "reply_text",
)  # fmt: skip
"""Arguments of the method that a message row repeats."""


class Frames(NamedTuple):
    """Some frames: `rows` is (ly.R_HEIGHT, n), `fields` the methods' arguments."""

    rows: Ints
    fields: Decoded


class Messages(NamedTuple):
    """Some messages: `rows` is (ly.G_HEIGHT, n), `hashes` (n,) uint64. Their fields still lie in `data`."""

    rows: Ints
    hashes: NDArray[np.uint64]
    data: Octets
    bodies: list[bytes | None] | None


class Faults(NamedTuple):
    """Some faults: (framing.Y_HEIGHT, n)."""

    rows: Ints


class Amqp091:
    """The walk and the contents of all connections that speak AMQP 0-9-1."""

    def __init__(self, protocol: Protocol, compiled: bool, keep_bodies: bool) -> None:
        self.compiled = compiled
        self.keep = int(keep_bodies)
        self.names = [m.full_name for m in protocol.methods]
        self.roles = ly.role_table(self.names)
        basic = next(k for k in protocol.classes if k.name == "basic")
        self.all_arguments = Plan.of_methods(protocol)
        self.some_arguments = Plan.of_methods(protocol, only=MESSAGE_ARGUMENTS)
        self.properties = Plan.of_properties(basic)
        self.bodies: dict[int, list[bytes]] = {}
        # Two rows of padding: -1 and -2 are no methods.
        self.has_secret = with_secrets(protocol)
        self.select: Callable[[Ints], Ints] | None = None
        """Where it is set, only the frames that it chooses are decoded, and no messages are put together."""

        room = (65_536 if compiled else 2_048) + APART
        self.framing = Framing(compiled, room)
        self.frames = np.empty((ly.R_HEIGHT, room), np.int64)
        self.spans = np.empty((ly.X_HEIGHT, room), np.int64)
        self.own = self.spans, ly.method_table([(m.class_id, m.id) for m in protocol.methods]), ly.trait_table(protocol)

        self.control = np.zeros(ly.Q_WIDTH, np.int64)
        self.first = np.zeros(0, np.int64)
        self.messages = np.empty((ly.G_HEIGHT, room), np.int64)
        self.hashes = np.empty(room, np.uint64)
        self.content_faults = np.empty((Y_HEIGHT, room), np.int64)
        self.kept = np.empty((ly.E_HEIGHT, room), np.int64)
        self.channels = Pool(ly.N_WIDTH, 0)
        self.contents = np.zeros((0, ly.B_WIDTH), np.int64)
        self.lanes = np.zeros((0, 8), np.uint64)
        self.waiting = np.zeros(0, np.uint8)
        self._grow_channels(64)
        self.nodes = Pool(ly.Z_WIDTH, min(2 * room, limits.PENDING))

    # ---------------------------------------------------------------------------------------------- state

    @property
    def ranges(self) -> list[Ranges]:
        """Bytes of unfinished frames and contents, which must outlive their batch."""
        most = len(self.contents)
        return [
            *self.framing.ranges,
            Ranges(self.contents, ly.B_STATE, ly.B_METHOD_OFFSET, ly.B_METHOD_LENGTH, most),
            Ranges(self.contents, ly.B_STATE, ly.B_HEADER_OFFSET, ly.B_HEADER_LENGTH, most),
        ]

    def begin(self, slots: Ints, states: Ints, capacity: int) -> None:
        """Take over connections; `states` are HEAD where a stream is seen from its start, else SEARCH."""
        if len(self.first) < capacity:
            self.first = grown(self.first, capacity, -1)
        self.framing.begin(slots, states, capacity)

    def _grow_channels(self, capacity: int) -> None:
        self.channels.grow(capacity)
        self.contents = grown(self.contents, 2 * capacity)
        self.lanes = grown(self.lanes, 2 * capacity)
        self.waiting = grown(self.waiting, 64 * capacity)
        self._rebuild(4 * capacity)

    def _rebuild(self, size: int) -> None:
        self.table = np.zeros(size, np.int64)
        self.control[ly.Q_TOMBSTONES] = 0
        call(channels.place_channels, self.compiled, self.channels.rows, self.table)

    # ---------------------------------------------------------------------------------------------- stages

    def feed(self, pieces: Ints, count: int, buffer: Buffer, conn: Ints) -> Iterator[Frames | Messages | Faults]:
        """Walk the first `count` pieces. Frames come out before the messages that they complete."""
        for _ in self.framing.rounds(pieces, count, buffer, frames.walk_pieces, conn, self.frames, self.own):
            yield from self._take(buffer, conn)

    def _take(self, buffer: Buffer, conn: Ints) -> Iterator[Frames | Messages | Faults]:
        n, spans = self.framing.found
        if self.framing.new_faults.shape[1]:
            yield Faults(self.framing.new_faults.copy())
        if not n and not spans:
            return
        rows = self.frames[:, :n]
        if self.select is not None:
            rows = rows[:, self.select(rows)]
            if rows.shape[1]:
                yield Frames(rows, self._fields(rows, buffer.data))
            return
        fields = self._fields(rows, buffer.data)
        tags = self._tags(fields.columns["consumer_tag"])
        no_ack, no_wait = (_flags(fields.columns[name]) for name in ("no_ack", "no_wait"))
        q = self.control
        q[ly.Q_FRAME] = q[ly.Q_SPAN] = 0
        if self.nodes.left < n and len(self.nodes) < limits.PENDING:
            self.nodes.grow(min(2 * len(self.nodes), limits.PENDING))
        messages: list[Messages | Faults] = []
        while q[ly.Q_FRAME] < n or q[ly.Q_SPAN] < spans:
            q[ly.Q_MESSAGES] = q[ly.Q_FAULTS] = q[ly.Q_KEPT] = 0
            call(
                assembly.assemble, self.compiled, self.frames, n, self.spans, spans, buffer.data, conn,
                self.roles, tags, no_ack, no_wait, self.channels.rows, self.contents, self.lanes, self.waiting,
                self.table, self.first, self.channels.free, self.nodes.rows, self.nodes.free, self.messages,
                self.hashes, self.content_faults, self.kept, q, self.keep,
            )  # fmt: skip
            if q[ly.Q_HELD] > limits.CONTENTS:
                call(content.evict_contents, self.compiled, self.contents, self.frames, self.content_faults, q)
            messages += self._finished(buffer.data)
            if self.channels.left == 0:
                if len(self.channels) < limits.CHANNELS:
                    self._grow_channels(2 * len(self.channels))
                else:
                    q[ly.Q_FULL] = 1
        if n:
            yield Frames(rows.copy(), fields)
        yield from messages
        if q[ly.Q_TOMBSTONES] > len(self.table) // 4:
            self._rebuild(len(self.table))

    def _finished(self, data: Octets) -> Iterator[Messages | Faults]:
        q = self.control
        if self.keep:
            for body, offset, length in self.kept[:, : q[ly.Q_KEPT]].T.tolist():
                if length < 0:
                    self.bodies.pop(body, None)
                else:
                    self.bodies.setdefault(body, []).append(data[offset : offset + length].tobytes())
        n = int(q[ly.Q_MESSAGES])
        if q[ly.Q_FAULTS]:
            yield Faults(self.content_faults[:, : q[ly.Q_FAULTS]].copy())
        if n:
            rows = self.messages[:, :n].copy()
            bodies = None
            if self.keep:
                bodies = []
                for body, whole in zip(rows[ly.G_BODY].tolist(), rows[ly.G_HASH].tolist(), strict=True):
                    octets = b"".join(self.bodies.pop(body, []))
                    bodies.append(octets if whole and body >= 0 else None)
            yield Messages(rows, self.hashes[:n].copy(), data, bodies)

    def decode(self, messages: Messages) -> tuple[Decoded, Decoded]:
        """The arguments that message rows repeat, and the properties. Touches no state: any thread may do it."""
        rows, data = messages.rows, messages.data
        arguments = self._arguments(
            self.some_arguments, data, rows, ly.G_METHOD_OFFSET, ly.G_METHOD_LENGTH, rows[ly.G_PARTIAL] > 0, ly.G_METHOD
        )
        offset, length = rows[ly.G_HEADER_OFFSET], rows[ly.G_HEADER_LENGTH]
        there = (offset >= 0) & (length >= HEADER_OCTETS)
        properties = decode(
            self.properties, data, offset + HEADER_OCTETS, length - HEADER_OCTETS, there.astype(np.int64) - 1,
            (rows[ly.G_HEADER_CUT] > 0).astype(np.uint8), self.compiled,
        )  # fmt: skip
        return arguments, properties

    def _arguments(
        self, plan: Plan, data: Octets, rows: Ints, offset: int, length: int, cut: Ints, method: int = ly.R_METHOD
    ) -> Decoded:
        return decode(
            plan, data, rows[offset] + IDS_OCTETS, rows[length] - IDS_OCTETS, rows[method], cut.astype(np.uint8),
            self.compiled,
        )  # fmt: skip

    def _fields(self, rows: Ints, data: Octets) -> Decoded:
        """The arguments of frames."""
        cut = rows[ly.R_MISSING] > 0
        fields = self._arguments(self.all_arguments, data, rows, ly.R_OFFSET, ly.R_LENGTH, cut)
        hide(fields, self.has_secret[rows[ly.R_METHOD]], ("mechanism", "locale"))
        return fields

    def _tags(self, column: pa.Array) -> Ints:
        out = np.zeros(len(column), np.int64)
        if column.null_count < len(column):
            _, offsets, octets = column.buffers()
            places = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
            text = np.frombuffer(octets, np.uint8) if octets is not None else np.zeros(0, np.uint8)
            call(channels.tag_hashes, self.compiled, places, text, out)
        return out

    def end(self, slots: Ints, conn: Ints, buffer: Buffer) -> Iterator[Frames | Messages | Faults]:
        """Forget connections that are over. What was under way comes out as partial messages and faults."""
        last = self.framing.last_pieces(slots)
        yield from self.feed(last, last.shape[1], buffer, conn)
        for cuts in self.framing.end(slots, ly.HEAD_OCTETS, 1):
            yield Faults(cuts)
        at = 0
        q = self.control
        while at < len(slots):
            q[ly.Q_MESSAGES] = q[ly.Q_FAULTS] = q[ly.Q_KEPT] = 0
            at = call(
                assembly.end_channels, self.compiled, slots, at, conn, self.channels.rows, self.contents, self.lanes,
                self.waiting, self.table, self.first, self.channels.free, self.nodes.rows, self.nodes.free,
                self.messages, self.hashes, self.content_faults, q,
            )  # fmt: skip
            yield from self._finished(buffer.data)
        q[ly.Q_FULL] = 0

    def skipped(self, slots: Ints) -> Ints:
        """Bytes passed over in the searches at hand, both directions together."""
        return self.framing.skipped(slots)


def _flags(column: pa.Array) -> Octets:
    """A decoded bool column as a bitmap: 0 also for null."""
    if column.null_count == len(column):
        return np.zeros(-(-len(column) // 8), np.uint8)
    return np.frombuffer(column.buffers()[1], np.uint8)
