"""RabbitMQ streams of all connections: chunks in, columns of frames and messages out.

Holds the state that the kernels of `frames` work on, makes room for it, and has the fields decoded as `spec` says.
"""

from collections.abc import Iterator

import numpy as np

from amqpscope.dissector.fields.decoding import Decoded, decode
from amqpscope.dissector.fields.plan import Plan
from amqpscope.dissector.fields.secrets import hide, with_secrets
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.kernels.coding import PLAIN, Target
from amqpscope.dissector.kernels.kernel import call
from amqpscope.dissector.kernels.pool import APART
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.protocols.registry import Context, ProtocolPlugin
from amqpscope.dissector.protocols.rows import Faults, Made
from amqpscope.dissector.protocols.stage import FramedStage
from amqpscope.dissector.protocols.stream import frames
from amqpscope.dissector.protocols.stream import layout as sl
from amqpscope.dissector.protocols.stream.boundary import StreamRecogniser
from amqpscope.dissector.protocols.stream.handshake import StreamHandshakes
from amqpscope.dissector.protocols.stream.messages import Records
from amqpscope.dissector.protocols.stream.names import Names
from amqpscope.dissector.protocols.stream.rows import RowMaker
from amqpscope.dissector.protocols.stream.state import FAULTS, Body, Frame, Own, Part
from amqpscope.dissector.tcp.state import both


class Stream(FramedStage):
    """The walk and the records of all connections that speak the stream protocol."""

    def __init__(self, context: Context) -> None:
        room = (131_072 if context.compiled else 2_048) + APART
        super().__init__(context, frames.walk_chunks, Frame.room(room), Part.room(256), FAULTS, (sl.HEAD_BYTES, 0))
        protocol = context.specification(sl.NAME)
        self.plan = Plan.of_methods(protocol)
        self.has_secret = with_secrets(protocol)
        self.layouts = sl.layout_table(protocol)
        self.variants = sl.variant_table(protocol)
        self.senders = sl.sender_table(protocol)
        self.bodies = Body.make(0)
        self.names = Names([m.full_name for m in protocol.methods], context.accounting)
        bodies = context.bodies == "full"
        self.records = Records(protocol, self.plan, self.names, self.compiled, bodies, context.reached)
        self.handshakes = StreamHandshakes(protocol, context)
        self.only_handshakes = context.handshakes
        self.rows = RowMaker(protocol, context)

    def begin(self, slots: Ints, states: Ints, capacity: int) -> None:
        """Take over connections; `states` are HEAD where a stream is seen from its start, else SEARCH."""
        if len(self.bodies) < 2 * capacity:
            self.bodies = Body.grown(self.bodies, 2 * capacity)
        super().begin(slots, states, capacity)

    def take_out(self, slots: Ints, data: Bytes) -> bytes:
        """Take the state of connections out; `data` has the bytes that are retained of them."""
        rows = both(slots)
        bodies = Body.written(self.bodies[rows])
        names, records = self.names.take_out(slots), self.records.take_out(slots)
        return PLAIN.written([super().take_out(slots, data), bodies, names, records])

    def put_back(self, data: bytes, target: Target) -> None:
        """Put back what `take_out` took."""
        framing, bodies, names, records = PLAIN.read(data)
        super().put_back(framing, target)
        self.bodies[both(target.slots)] = Body.read(bodies)
        self.names.put_back(names, target)
        self.records.put_back(records, target)

    @property
    def own(self) -> Own:
        """What the kernels of the framing have besides."""
        plan = self.plan
        return Own(
            self.layouts, self.senders, self.bodies, self.variants, plan.starts, plan.ops, plan.lists.parts,
            plan.lists.shapes,
        )  # fmt: skip

    def take(self, n: int, parts: int, buffer: Buffer, facts: Ints) -> Iterator[Made | Faults]:
        """Make rows of these frames and of the records in them, and read handshakes."""
        if self.only_handshakes:
            if n:
                self.handshakes.take(*self._decoded(n, buffer), buffer.data)
            return
        self.records.long_frames(self.frames[:, :n], self.aside[:, :parts], buffer)
        if not n:
            return
        rows, fields = self._decoded(n, buffer)
        tracking, torn = self.records.tracking(rows, fields, buffer)
        if tracking is not None:
            fields.columns["tracking"] = tracking
        self.handshakes.take(rows, fields, buffer.data)
        yield self.rows.frames(rows, fields)
        if torn.shape[1]:
            yield self.faults(torn)
        messages, faults = self.records.take(rows, fields, buffer)
        if faults.shape[1]:
            yield self.faults(faults)
        if messages is not None:
            yield self.rows.messages(messages)

    def _decoded(self, n: int, buffer: Buffer) -> tuple[Ints, Decoded]:
        """Return the rows of frames and their fields; of handshakes alone where nothing else is wanted."""
        plan = self.plan
        call(frames.choose_layouts, self.compiled, buffer.data, self.frames, n, self.own)
        rows = self.frames[:, :n]
        rows = rows[:, self.handshakes.relevant(rows)] if self.only_handshakes else rows.copy()
        fields = decode(
            plan, buffer.data, rows[Frame.OFFSET], rows[Frame.LENGTH], rows[Frame.LAYOUT],
            rows[Frame.CUT].astype(np.uint8), self.compiled,
        )  # fmt: skip
        hide(fields, self.has_secret[rows[Frame.LAYOUT]], ("mechanism",))
        return rows, fields

    def end(self, slots: Ints, facts: Ints, buffer: Buffer) -> Iterator[Made | Faults]:
        """Forget connections that are over, and yield what was under way."""
        yield from super().end(slots, facts, buffer)
        self.names.forget(slots)
        self.records.forget(slots)


def _begins(client: bytes) -> bool | None:
    """Return whether a client begins with peer-properties: a length (which may be damaged), key 0x0011, version 1."""
    if len(client) < 8:
        return None if b"\0\0".startswith(client[:2]) else False
    return client[4:8] == b"\x00\x11\x00\x01"


PROTOCOLS = (
    ProtocolPlugin(
        sl.NAME,
        begins=_begins,
        ports=(5552,),
        tls_ports=(5551,),
        recogniser=StreamRecogniser,
        stage=Stream,
        statistics="amqpscope.pipelines.stream.statistics:STATISTICS",
    ),
)
