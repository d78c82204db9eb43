"""AMQP 0-10 of all connections: chunks in, columns of frames and messages out.

Holds the state that the kernels of `frames`, `assembly` and `sessions` work on, makes room for it, and has the fields
decoded as `spec` says.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
from amqpscope.dissector.protocols.amqp010 import assembly, frames
from amqpscope.dissector.protocols.amqp010 import layout as ly
from amqpscope.dissector.protocols.amqp010.boundary import recogniser
from amqpscope.dissector.protocols.amqp010.handshake import Amqp010Handshakes
from amqpscope.dissector.protocols.amqp010.rows import Messages, RowMaker
from amqpscope.dissector.protocols.amqp010.sessions import Sessions
from amqpscope.dissector.protocols.amqp010.state import (
    FAULTS,
    SEALED,
    Assembly,
    Batch,
    Channel,
    Channels,
    Frame,
    Message,
    Own,
    Payload,
    Sender,
    Span,
    Track,
)
from amqpscope.dissector.protocols.channels import ChannelPool
from amqpscope.dissector.protocols.registry import Context, ProtocolPlugin
from amqpscope.dissector.protocols.rows import Faults, Made
from amqpscope.dissector.protocols.stage import FramedStage
from amqpscope.dissector.protocols.state import SEARCH, BodyRemainder, Fault, Kept, Usage
from amqpscope.dissector.tcp.state import Facts, both

WAITING = 32
"""Bytes of a body that wait to be hashed, at most."""


class Finished(NamedTuple):
    """Messages as the assembly brings them: (Message, n), (n,) uint64, and n."""

    rows: Ints
    hashes: NDArray[np.uint64]
    bodies: list[bytes | None] | None


class Amqp010(FramedStage):
    """The walk, the assemblies and the sessions of all connections that speak AMQP 0-10."""

    def __init__(self, context: Context) -> None:
        room = (65_536 if context.compiled else 2_048) + APART
        super().__init__(
            context, frames.walk_chunks, Frame.room(room), Span.room(room), FAULTS, (ly.HEAD_BYTES, 0)
        )  # fmt: skip
        protocol = context.specification(ly.NAME)
        self.plan = Plan.of_methods(protocol)
        self.has_secret = with_secrets(protocol)
        self.methods, self.traits = ly.method_table(protocol), ly.trait_table(protocol)
        self.sessions = Sessions(ly.role_table(protocol), context.accounting, context.compiled)
        self.handshakes = Amqp010Handshakes(protocol, context)
        self.only_handshakes = context.handshakes
        self.rows = RowMaker(protocol, context)
        self.senders = Sender.make(0)
        self.announced = BodyRemainder.make(0)
        self.usage = Usage.make(0)
        self.bodies: dict[int, list[bytes]] = {}
        self.assembly = Assembly.make(1)[0]
        self.assembly[Assembly.KEEP] = context.bodies == "full"
        self.messages = Message.room(room)
        self.hashes = np.empty(room, np.uint64)
        self.assembly_faults = Fault.room(room)
        self.kept = Kept.room(room)
        self.channels = ChannelPool(Channel.WIDTH, 0, context.compiled)
        self.tracks = Track.make(0)
        self.lanes = np.zeros((0, 8), np.uint64)
        self.waiting = np.zeros(0, np.uint8)
        self.payloads = Pool(Payload.WIDTH, 256)
        self._grow_channels(64)

    # ---------------------------------------------------------------------------------------------- state

    @property
    def ranges(self) -> list[Ranges]:
        """Bytes of unfinished frames and assemblies, which must outlive their batch."""
        return [*super().ranges, *_ranges(self.tracks, self.payloads.rows, self.payloads.taken)]

    @property
    def own(self) -> Own:
        """What the kernels of the framing have besides."""
        plan = self.plan
        return Own(
            self.methods, self.traits, self.senders, self.announced, plan.starts, plan.ops, plan.lists.parts,
            plan.lists.shapes,
        )  # fmt: skip

    def begin(self, slots: Ints, states: Ints, capacity: int) -> None:
        """Take over connections; `states` are HEAD where a stream is seen from its start, else SEARCH."""
        self.channels.begin(capacity)
        if len(self.senders) < 2 * capacity:
            self.senders = Sender.grown(self.senders, 2 * capacity)
            self.announced = BodyRemainder.grown(self.announced, 2 * capacity)
            self.usage = Usage.grown(self.usage, capacity)
        Usage.clear(self.usage, slots)
        BodyRemainder.clear(self.announced, both(slots))
        for side in range(2):
            Sender.clear(self.senders, 2 * slots + side)
            self.senders[2 * slots + side, Sender.GAPPED] = states == SEARCH
        super().begin(slots, states, capacity)

    def take_out(self, slots: Ints, data: Bytes) -> bytes:
        """Take the state of connections out; `data` has the bytes that are retained of them."""
        rows = both(slots)
        own = Sender.written(self.senders[rows]), BodyRemainder.written(self.announced[rows])
        return PLAIN.written([super().take_out(slots, data), *own, self._take_channels(slots, data)])

    def put_back(self, data: bytes, target: Target) -> None:
        """Put back what `take_out` took."""
        framing, senders, announced, channels = PLAIN.read(data)
        super().put_back(framing, target)
        self._put_channels(channels, target)
        self.senders[both(target.slots)] = Sender.read(senders)
        self.announced[both(target.slots)] = BodyRemainder.read(announced)

    def _take_channels(self, slots: Ints, data: Bytes) -> bytes:
        """Take the channels of connections out, with their sessions and what is under way on them."""
        rows, lengths, channels = self.channels.take_out(slots)
        places, bodies = both(both(rows)), both(rows)
        tracks = self.tracks[places]
        used = tracks[:, Track.USED] != 0
        payloads, payload_lengths = chained(
            self.payloads.rows, np.where(used, tracks[:, Track.CHAIN], -1), Payload.NEXT
        )
        parts = self.payloads.rows[payloads]
        retained = gather(_ranges(tracks, parts, len(parts)), data, self.compiled).data
        sessions, channels[:, Channel.SESSION] = self.sessions.take_out(slots, channels[:, Channel.SESSION])
        state = [
            Channel.written(channels), lengths, Track.written(tracks), Payload.written(parts), payload_lengths,
            retained, self.lanes[bodies], self.waiting.reshape(-1, WAITING)[bodies], sessions,
            transfer.take_usage(Usage, self.usage, self.assembly, slots),
            [self.bodies.pop(body, None) for body in tracks[used, Track.BODY].tolist()],
        ]  # fmt: skip
        self.payloads.rows[payloads, Payload.USED] = 0
        give_rows(self.payloads.free, payloads)
        Track.clear(self.tracks, places)
        return PLAIN.written(state)

    def _put_channels(self, data: bytes, target: Target) -> None:
        """Put channels back."""
        state = PLAIN.read(data)
        channels, lengths, tracks, parts, payload_lengths, retained, lanes, waiting, sessions, usage, bodies = state
        channels, tracks, parts = Channel.read(channels), Track.read(tracks, target.captures), Payload.read(parts)
        put_bytes(_ranges(tracks, parts, len(parts)), retained, target.buffer, self.compiled)
        self.payloads.reserve(len(parts))
        ends = put_chains(self.payloads.rows, self.payloads.free, parts, payload_lengths, Payload.NEXT)
        _, tracks[:, Track.CHAIN], tracks[:, Track.CHAIN_END] = ends
        while self.channels.left < len(channels):
            self._grow_channels(2 * len(self.channels))
        rows = self.sessions.put_back(sessions, target.slots)
        channels[:, Channel.SESSION] = rows[channels[:, Channel.SESSION]]
        rows = self.channels.put_back(target.slots, lengths, channels)
        used = np.flatnonzero(tracks[:, Track.USED])
        for row, kept in zip(used.tolist(), bodies, strict=True):
            if tracks[row, Track.BODY] >= 0:
                tracks[row, Track.BODY] = body = int(self.assembly[Assembly.BODIES])
                self.assembly[Assembly.BODIES] += 1
                if kept is not None:
                    self.bodies[body] = kept
        self.tracks[both(both(rows))], self.lanes[both(rows)] = tracks, lanes
        self.waiting.reshape(-1, WAITING)[both(rows)] = waiting
        transfer.put_usage(Usage, self.usage, self.assembly, target.slots, usage)

    def _grow_channels(self, capacity: int) -> None:
        self.channels.grow(capacity)
        self.tracks = Track.grown(self.tracks, 4 * capacity)
        self.lanes = grown(self.lanes, 2 * capacity)
        self.waiting = grown(self.waiting, 64 * capacity)

    def _channels(self) -> Channels:
        channels, payloads = self.channels, self.payloads
        return Channels(
            channels.rows, channels.free, channels.table, channels.first, self.tracks, payloads.rows, payloads.free,
            self.lanes, self.waiting, self.messages, self.hashes, self.assembly_faults, self.kept, self.usage,
            self.assembly,
        )  # fmt: skip

    # --------------------------------------------------------------------------------------------- stages

    def take(self, n: int, spans: int, buffer: Buffer, facts: Ints) -> Iterator[Made | Faults]:
        """Put assemblies together, and make rows of these frames and of the messages that they complete."""
        faults, messages = self._assemble(n, spans, buffer, facts)
        rows = self.frames[:, :n]
        if self.only_handshakes:
            rows = rows[:, self.handshakes.relevant(rows)]
            self.handshakes.take(rows, self._fields(rows, buffer), buffer.data)
            return
        yield from faults
        if n:
            fields = self._fields(rows, buffer)
            self.handshakes.take(rows, fields, buffer.data)
            self.sessions.take(rows, fields, self.channels.rows, self.tracks, facts)
            rows = rows.copy()
            yield self.rows.frames(rows, fields, self.sessions.column(rows[Frame.SESSION]))
        for found in messages:
            yield self._message_rows(found, rows, buffer, facts)

    def _assemble(self, n: int, spans: int, buffer: Buffer, facts: Ints) -> tuple[list[Faults], list[Finished]]:
        """Put frames together; returns what is wrong with them, and the messages that come of them."""
        q = self.assembly
        q[Assembly.FRAME] = q[Assembly.SPAN] = 0
        q[Assembly.FRAMES], q[Assembly.SPANS] = n, spans
        q[Assembly.LONGEST] = self.tracks[:, Track.CHAINED].max()
        faults: list[Faults] = []
        messages: list[Finished] = []
        while q[Assembly.FRAME] < n or q[Assembly.SPAN] < spans:
            q[Assembly.MESSAGES] = q[Assembly.FAULTS] = q[Assembly.KEPT] = 0
            q[Assembly.ARENA] = buffer.top
            batch = Batch(buffer.data, facts, self.frames, self.aside, self.own)
            call(assembly.assemble, self.compiled, batch, self._channels())
            buffer.top = int(q[Assembly.ARENA])
            faults += self._new_faults()
            messages += self._new_messages(buffer)
            if q[Assembly.FRAME] < n or q[Assembly.SPAN] < spans:
                self._make_room(buffer)
        return faults, messages

    def _make_room(self, buffer: Buffer) -> None:
        if self.channels.left == 0 and len(self.channels) < limits.CHANNELS:
            self._grow_channels(2 * len(self.channels))
        if self.payloads.left == 0 and len(self.payloads) < limits.FRAGMENTS:
            self.payloads.grow(2 * len(self.payloads))
        buffer.reserve(int(self.assembly[Assembly.LONGEST]) + 2 * ly.LARGEST)

    def _new_faults(self) -> list[Faults]:
        n = int(self.assembly[Assembly.FAULTS])
        return [self.faults(self.assembly_faults[:, :n].copy())] if n else []

    def _new_messages(self, buffer: Buffer) -> list[Finished]:
        q = self.assembly
        bodies.take(self.bodies, self.kept[:, : q[Assembly.KEPT]], buffer.data)
        n = int(q[Assembly.MESSAGES])
        if not n:
            return []
        rows = self.messages[:, :n].copy()
        kept = bodies.pop(self.bodies, rows[Message.BODY], rows[Message.HASH]) if q[Assembly.KEEP] else None
        return [Finished(rows, self.hashes[:n].copy(), kept)]

    def _message_rows(self, found: Finished, frames: Ints, buffer: Buffer, facts: Ints) -> Made:
        """Return messages with the session of their frames, these or earlier ones; null if it is no longer attached."""
        rows = found.rows
        frame, channel = rows[Message.FRAME], self.channels.rows[rows[Message.ROW]]
        session, now = (
            np.where(frame >= 0, self.frames[of_frame, frame], channel[:, of_channel])
            for of_frame, of_channel in ((Frame.SESSION, Channel.SESSION), (Frame.EPOCH, Channel.EPOCH))
        )
        whole = rows[Message.PARTIAL] < bodies.UNFINISHED
        epoch = np.where(whole, now, rows[Message.EPOCH])
        last = last_frames(rows[:, ~whole], frames)
        epoch[~whole] = np.where(last >= 0, self.frames[Frame.EPOCH, last], epoch[~whole])
        session = np.where(epoch == now, session, -1)
        command = np.where(whole, self.frames[Frame.COMMAND, frame], -1)
        from_client = rows[Message.SIDE] == facts[:, Facts.CLIENT].copy()[rows[Message.SLOT]]
        return self.rows.messages(
            Messages(
                rows, found.hashes, buffer.data, found.bodies, self.sessions.column(session), epoch, command,
                from_client,
            )
        )  # fmt: skip

    def _fields(self, rows: Ints, buffer: Buffer) -> Decoded:
        """Return the arguments of the operations that frames complete."""
        fields = decode(
            self.plan, buffer.data, rows[Frame.AT] + ly.IDS_BYTES, rows[Frame.BYTES] - ly.IDS_BYTES,
            rows[Frame.METHOD], rows[Frame.CUT].astype(np.uint8), self.compiled,
        )  # fmt: skip
        hide(fields, self.has_secret[rows[Frame.METHOD]], ("mechanism", "locale"))
        return fields

    def faults(self, rows: Ints) -> Faults:
        """Return faults with the names of this protocol; encryption is noted with the connection."""
        for slot in rows[Fault.SLOT, rows[Fault.CODE] == SEALED].tolist():
            self.handshakes.seal(slot)
        return super().faults(rows)

    def end(self, slots: Ints, facts: Ints, buffer: Buffer) -> Iterator[Made | Faults]:
        """Forget connections that are over. What was under way comes out as partial messages and faults."""
        yield from super().end(slots, facts, buffer)
        q = self.assembly
        at = 0
        while at < len(slots):
            q[Assembly.MESSAGES] = q[Assembly.FAULTS] = q[Assembly.KEPT] = 0
            at = call(assembly.end_channels, self.compiled, self._channels(), facts, self.traits, slots, at)
            yield from self._new_faults()
            for found in self._new_messages(buffer):
                yield self._message_rows(found, self.frames[:, :0], buffer, facts)
        self.sessions.forget(slots)


def last_frames(messages: Ints, frames: Ints) -> Ints:
    """Return where among these frames the last one of each message is; -1: it is none of them."""
    if not messages.shape[1] or not frames.shape[1]:
        return np.full(messages.shape[1], -1, np.int64)
    keys, wanted = (each[Frame.SLOT] << 40 | each[Frame.NUMBER] for each in (frames, messages))
    order = np.argsort(keys, kind="stable")
    place: Ints = order[np.minimum(np.searchsorted(keys[order], wanted), len(order) - 1)]
    return np.where(keys[place] == wanted, place, -1)


def _ranges(tracks: Ints, payloads: Ints, most: int) -> list[Ranges]:
    """Return the ranges of bytes of assemblies under way, of at most `most` payloads."""
    return [
        Ranges(tracks, Track.USED, Track.AT, Track.BYTES, len(tracks)),
        Ranges(tracks, Track.USED, Track.HEADER_AT, Track.HEADER_BYTES, len(tracks)),
        Ranges(payloads, Payload.USED, Payload.OFFSET, Payload.LENGTH, most),
    ]


PROTOCOLS = (
    ProtocolPlugin(
        ly.NAME,
        headers=(b"AMQP\1\1\0\x0a",),
        answers=True,
        client_waits=True,
        ports=(5672,),
        tls_ports=(5671,),
        recogniser=recogniser,
        stage=Amqp010,
        statistics="amqpscope.pipelines.amqp010.statistics:STATISTICS",
    ),
    ProtocolPlugin(f"{ly.NAME}-preview", headers=(b"AMQP\1\1\x63\0",)),
)
