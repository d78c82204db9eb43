"""AMQP 0-9-1 of all connections: chunks in, columns of frames and messages out.

Holds the state that the kernels of `frames` and `content` work on, makes room for it, and has the fields decoded
as `spec` says.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from amqpscope.dissector.fields.decoding import Decoded, decode
from amqpscope.dissector.fields.plan import Plan
from amqpscope.dissector.fields.secrets import hide, with_secrets
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.kernels.coding import PLAIN, Target
from amqpscope.dissector.kernels.kernel import call
from amqpscope.dissector.kernels.pool import APART, Pool, chained, give_rows, grown, put_chains
from amqpscope.dissector.kernels.retained import Buffer, Ranges, gather, put_bytes
from amqpscope.dissector.protocols import bodies, transfer
from amqpscope.dissector.protocols.amqp091 import assembly, channels, content, frames
from amqpscope.dissector.protocols.amqp091 import layout as ly
from amqpscope.dissector.protocols.amqp091.boundary import recogniser
from amqpscope.dissector.protocols.amqp091.handshake import Amqp091Handshakes
from amqpscope.dissector.protocols.amqp091.lengths import programs
from amqpscope.dissector.protocols.amqp091.rows import Messages, RowMaker
from amqpscope.dissector.protocols.amqp091.state import (
    FAULTS,
    Assembly,
    Batch,
    Channel,
    Channels,
    Content,
    Frame,
    Message,
    Node,
    Own,
    Span,
    Usage,
)
from amqpscope.dissector.protocols.amqp091.versions import VersionRecogniser
from amqpscope.dissector.protocols.channels import ChannelPool
from amqpscope.dissector.protocols.registry import Context, ProtocolPlugin
from amqpscope.dissector.protocols.rows import Faults, Made
from amqpscope.dissector.protocols.stage import FramedStage
from amqpscope.dissector.protocols.state import BodyRemainder, Fault, Kept
from amqpscope.dissector.tcp.state import both

LISTS = [Channel.CONSUMERS, Channel.CONSUMES, Channel.GETS]
ENDED = [Channel.CONSUMES, Channel.GETS]
"""Lists whose last node stands in the next column."""
WAITING = 32
"""Bytes of a body that wait to be hashed, at most."""
PENDING = (
    f"more than {limits.PENDING} consumers and unanswered requests, or {limits.PENDING_PER_CONNECTION} of one "
    "connection: no_ack of further deliveries is unknown"
)


class Amqp091(FramedStage):
    """The walk and the contents of all connections that speak AMQP 0-9-1, or an older version in the same frames."""

    def __init__(self, context: Context, version: str = ly.NAME) -> None:
        room = 65_536 if context.compiled else 2_048
        super().__init__(
            context, frames.walk_chunks, Frame.room(room + APART), Span.room(room + APART), FAULTS,
            (ly.HEAD_BYTES, ly.FRAME_END_BYTES),
        )  # fmt: skip
        protocol = context.documents.get(ly.NAME) or context.specification(version)
        self.roles = ly.role_table(protocol)
        self.all_arguments = Plan.of_methods(protocol)
        self.bodies: dict[int, list[bytes]] = {}
        self.has_secret = with_secrets(protocol)
        self.handshakes = Amqp091Handshakes(protocol, context)
        self.only_handshakes = context.handshakes
        self.rows = RowMaker.of(protocol, context.specification(ly.NAME), version, context.compiled, context.bodies)

        self.methods = ly.method_table([(m.class_id, m.id) for m in protocol.methods])
        self.traits = ly.trait_table(protocol)
        self.starts, self.ops = programs(self.all_arguments, self.rows.properties)
        self.announced = BodyRemainder.make(0)
        self.usage = Usage.make(0)
        room += APART
        self.assembly = Assembly.make(1)[0]
        self.assembly[Assembly.KEEP] = context.bodies == "full"
        self.messages = Message.room(room)
        self.hashes = np.empty(room, np.uint64)
        self.content_faults = Fault.room(room)
        self.kept = Kept.room(room)
        self.channels = ChannelPool(Channel.WIDTH, 0, context.compiled)
        self.contents = Content.make(0)
        self.lanes = np.zeros((0, 8), np.uint64)
        self.waiting = np.zeros(0, np.uint8)
        self._grow_channels(64)
        self.nodes = Pool(Node.WIDTH, min(4_096, limits.PENDING))

    # ---------------------------------------------------------------------------------------------- state

    @property
    def ranges(self) -> list[Ranges]:
        """Bytes of unfinished frames and contents, which must outlive their batch."""
        most = len(self.contents)
        return [
            *super().ranges,
            Ranges(self.contents, Content.STATE, Content.METHOD_OFFSET, Content.METHOD_LENGTH, most),
            Ranges(self.contents, Content.STATE, Content.HEADER_OFFSET, Content.HEADER_LENGTH, most),
        ]

    def begin(self, slots: Ints, states: Ints, capacity: int) -> None:
        """Take over connections; `states` are HEAD where a stream is seen from its start, else SEARCH."""
        self.channels.begin(capacity)
        if len(self.announced) < 2 * capacity:
            self.announced = BodyRemainder.grown(self.announced, 2 * capacity)
            self.usage = Usage.grown(self.usage, capacity)
        Usage.clear(self.usage, slots)
        BodyRemainder.clear(self.announced, 2 * slots)
        BodyRemainder.clear(self.announced, 2 * slots + 1)
        super().begin(slots, states, capacity)

    def take_out(self, slots: Ints, data: Bytes) -> bytes:
        """Take the state of connections out; `data` has the bytes that are retained of them."""
        rows = both(slots)
        announced = BodyRemainder.written(self.announced[rows])
        BodyRemainder.clear(self.announced, rows)
        return PLAIN.written([super().take_out(slots, data), announced, self._take_channels(slots, data)])

    def put_back(self, data: bytes, target: Target) -> None:
        """Put back what `take_out` took."""
        framing, announced, channels = PLAIN.read(data)
        super().put_back(framing, target)
        self._put_channels(channels, target)
        self.announced[both(target.slots)] = BodyRemainder.read(announced)

    def _take_channels(self, slots: Ints, data: Bytes) -> bytes:
        """Take the channels of connections out; `data` has the bytes that are retained of them."""
        rows, lengths, channels = self.channels.take_out(slots)
        places = both(rows)
        contents = self.contents[places]
        content = gather(_content_ranges(contents), data, self.compiled).data
        nodes, node_lengths = chained(self.nodes.rows, channels[:, LISTS].ravel(), Node.NEXT)
        state = [
            Channel.written(channels), lengths, Content.written(contents), content, self.lanes[places],
            self.waiting.reshape(-1, WAITING)[places], Node.written(self.nodes.rows[nodes]), node_lengths,
            transfer.take_usage(Usage, self.usage, self.assembly, slots),
            [self.bodies.pop(body, None) for body in contents[_keeps(contents), Content.BODY].tolist()],
        ]  # fmt: skip
        give_rows(self.nodes.free, nodes)
        self.contents[places] = 0
        return PLAIN.written(state)

    def _put_channels(self, data: bytes, target: Target) -> None:
        """Put channels back."""
        state = PLAIN.read(data)
        channels, lengths, contents, retained, lanes, waiting, nodes, node_lengths, usage, bodies = state
        channels, nodes = Channel.read(channels), Node.read(nodes)
        contents = Content.read(contents, target.captures)
        put_bytes(_content_ranges(contents), retained, target.buffer, self.compiled)
        while self.channels.left < len(channels):
            self._grow_channels(2 * len(self.channels))
        self.nodes.reserve(len(nodes))
        _, firsts, lasts = put_chains(self.nodes.rows, self.nodes.free, nodes, node_lengths, Node.NEXT)
        channels[:, LISTS] = firsts.reshape(-1, len(LISTS))
        channels[:, np.array(ENDED) + 1] = lasts.reshape(-1, len(LISTS))[:, -len(ENDED) :]
        rows = self.channels.put_back(target.slots, lengths, channels)
        kept = np.flatnonzero(_keeps(contents))
        contents[kept, Content.BODY] = self.assembly[Assembly.BODIES] + np.arange(len(kept))
        self.assembly[Assembly.BODIES] += len(kept)
        self.bodies |= {
            body: parts
            for body, parts in zip(contents[kept, Content.BODY].tolist(), bodies, strict=True)
            if parts is not None
        }
        places = both(rows)
        self.contents[places], self.lanes[places] = contents, lanes
        self.waiting.reshape(-1, WAITING)[places] = waiting
        transfer.put_usage(Usage, self.usage, self.assembly, target.slots, usage)

    def _grow_channels(self, capacity: int) -> None:
        self.channels.grow(capacity)
        self.contents = Content.grown(self.contents, 2 * capacity)
        self.lanes = grown(self.lanes, 2 * capacity)
        self.waiting = grown(self.waiting, 64 * capacity)

    # ---------------------------------------------------------------------------------------------- stages

    @property
    def own(self) -> Own:
        """What the kernels of the framing have besides."""
        return Own(self.methods, self.traits, self.announced, self.starts, self.ops, self.rows.contents)

    def _channels(self) -> Channels:
        channels, nodes = self.channels, self.nodes
        return Channels(
            channels.rows, channels.free, self.contents, self.lanes, self.waiting, channels.table, channels.first,
            nodes.rows, nodes.free, self.messages, self.hashes, self.content_faults, self.kept, self.usage,
            self.assembly,
        )  # fmt: skip

    def take(self, n: int, spans: int, buffer: Buffer, facts: Ints) -> Iterator[Made | Faults]:
        """Make rows of these frames, put contents together, and read handshakes."""
        rows = self.frames[:, :n]
        if self.only_handshakes:
            rows = rows[:, self.handshakes.relevant(rows)]
            if rows.shape[1]:
                self.handshakes.take(rows, self._fields(rows, buffer.data), buffer.data)
            return
        fields = self._fields(rows, buffer.data)
        tags = self._tags(fields.columns["consumer_tag"])
        no_ack, no_wait = (_flags(fields.columns[name]) for name in ("no_ack", "no_wait"))
        q = self.assembly
        q[Assembly.FRAME] = q[Assembly.SPAN] = 0
        q[Assembly.FRAMES], q[Assembly.SPANS] = n, spans
        batch = Batch(buffer.data, facts, self.frames, self.aside, self.roles, tags, no_ack, no_wait)
        self.nodes.reserve(n, limits.PENDING)
        messages: list[Made | Faults] = []
        while q[Assembly.FRAME] < n or q[Assembly.SPAN] < spans:
            q[Assembly.MESSAGES] = q[Assembly.FAULTS] = q[Assembly.KEPT] = 0
            call(assembly.assemble, self.compiled, batch, self._channels())
            if q[Assembly.CROWDED] >= 0:
                held = self.usage[:, Usage.HELD]
                crowded = int(q[Assembly.CROWDED] if q[Assembly.HELD] <= limits.CONTENTS else held.argmax())
                call(content.evict_contents, self.compiled, self._channels(), facts, crowded)
            is_full = self.nodes.left == 0 and len(self.nodes) >= limits.PENDING
            if is_full or (self.usage[:, Usage.REQUESTS] >= limits.PENDING_PER_CONNECTION).any():
                self.context.reached.add(PENDING)
            messages += self._finished(buffer.data)
            if self.channels.left == 0:
                if len(self.channels) < limits.CHANNELS:
                    self._grow_channels(2 * len(self.channels))
                else:
                    q[Assembly.FULL] = 1
        if n:
            self.handshakes.take(rows, fields, buffer.data)
            yield self.rows.frames(rows.copy(), fields)
        yield from messages

    def _finished(self, data: Bytes) -> Iterator[Made | Faults]:
        q = self.assembly
        if q[Assembly.KEEP]:
            bodies.take(self.bodies, self.kept[:, : q[Assembly.KEPT]], data)
        n = int(q[Assembly.MESSAGES])
        if q[Assembly.FAULTS]:
            yield self.faults(self.content_faults[:, : q[Assembly.FAULTS]].copy())
        if n:
            rows = self.messages[:, :n].copy()
            kept = bodies.pop(self.bodies, rows[Message.BODY], rows[Message.HASH]) if q[Assembly.KEEP] else None
            yield self.rows.messages(Messages(rows, self.hashes[:n].copy(), data, kept))

    def _fields(self, rows: Ints, data: Bytes) -> Decoded:
        """Return the arguments of frames."""
        cut = (rows[Frame.MISSING] > 0).astype(np.uint8)
        offset, length = rows[Frame.OFFSET] + ly.IDS_BYTES, rows[Frame.LENGTH] - ly.IDS_BYTES
        fields = decode(self.all_arguments, data, offset, length, rows[Frame.METHOD], cut, self.compiled)
        hide(fields, self.has_secret[rows[Frame.METHOD]], ("mechanism", "locale"))
        return fields

    def _tags(self, column: pa.Array) -> Ints:
        out = np.zeros(len(column), np.int64)
        if column.null_count < len(column):
            _, offsets, data = column.buffers()
            places = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
            text = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
            call(channels.tag_hashes, self.compiled, places, text, out)
        return out

    def end(self, slots: Ints, facts: Ints, buffer: Buffer) -> Iterator[Made | Faults]:
        """Forget connections that are over. What was under way comes out as partial messages and faults."""
        yield from super().end(slots, facts, buffer)
        at = 0
        q = self.assembly
        while at < len(slots):
            q[Assembly.MESSAGES] = q[Assembly.FAULTS] = q[Assembly.KEPT] = 0
            at = call(assembly.end_channels, self.compiled, self._channels(), facts, slots, at)
            yield from self._finished(buffer.data)
        q[Assembly.FULL] = 0


def _content_ranges(contents: Ints) -> list[Ranges]:
    return [
        Ranges(contents, Content.STATE, Content.METHOD_OFFSET, Content.METHOD_LENGTH, len(contents)),
        Ranges(contents, Content.STATE, Content.HEADER_OFFSET, Content.HEADER_LENGTH, len(contents)),
    ]


def _keeps(contents: Ints) -> Ints:
    """Return whether the body of a content is kept."""
    keeps: Ints = (contents[:, Content.STATE] != 0) & (contents[:, Content.BODY] >= 0)
    return keeps


def _flags(column: pa.Array) -> Bytes:
    """Return a decoded bool column as a bitmap: 0 also for null."""
    if column.null_count == len(column):
        return np.zeros(-(-len(column) // 8), np.uint8)
    return np.frombuffer(column.buffers()[1], np.uint8)


def _begins(client: bytes) -> bool | None:
    """Return whether these bytes begin with a protocol header, of any version; None while too few are there."""
    return (len(client) >= 8 or None) if client.startswith(b"AMQP") else False


def _older(name: str, *headers: bytes, **more: Any) -> ProtocolPlugin:
    return ProtocolPlugin(name, headers=headers, stage=partial(Amqp091, version=name), **more)


PROTOCOLS = (
    ProtocolPlugin(
        ly.NAME,
        headers=(b"AMQP\0\0\x09\x01", b"AMQP\1\1\x09\x01"),
        begins=_begins,
        ports=(5672,),
        tls_ports=(5671,),
        recogniser=recogniser,
        stage=Amqp091,
        statistics="amqpscope.pipelines.amqp091.statistics:STATISTICS",
    ),
    _older(
        "amqp-0-9",
        b"AMQP\1\1\0\x09",
        version_of=ly.NAME,
        recogniser=partial(VersionRecogniser, version="amqp-0-9", others=("amqp-0-8", "amqp-0-10-draft")),
    ),
    _older("amqp-0-8", b"AMQP\1\1\x08\0", b"AMQP\1\1\0\x08", version_of=ly.NAME),
    _older(
        "amqp-0-10-draft",
        b"AMQP\1\1\0\x0a",
        frames_begin=ly.METHOD,
        recogniser=partial(VersionRecogniser, version="amqp-0-10-draft", others=("amqp-0-9", "amqp-0-8")),
    ),
)
"""All frame as 0-9-1 does; the draft of 2007 has the header of 0-10."""
