"""RabbitMQ streams of all connections: pieces in, columns of frames and messages out.

Holds the state that the kernels of `frames` work on, makes room for it, and has the fields decoded as `spec` says.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from amqpscope import spec
from amqpscope.dissector.fields.decoding import Decoded, decode
from amqpscope.dissector.fields.plan import Plan
from amqpscope.dissector.fields.secrets import hide, with_secrets
from amqpscope.dissector.kernels.accounting import MemoryAccounting
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.kernel import call
from amqpscope.dissector.kernels.pool import APART
from amqpscope.dissector.kernels.retained import Buffer, Ranges
from amqpscope.dissector.protocols.framing import Framing
from amqpscope.dissector.protocols.stream import frames
from amqpscope.dissector.protocols.stream import layout as sl
from amqpscope.dissector.protocols.stream.messages import Records, StreamMessages
from amqpscope.dissector.protocols.stream.names import Names

PROTOCOL = "rabbitmq-stream"


class StreamFrames(NamedTuple):
    """Some frames: `rows` is (sl.R_HEIGHT, n), `fields` those of the commands."""

    rows: Ints
    fields: Decoded


class StreamFaults(NamedTuple):
    """Some faults: (framing.Y_HEIGHT, n), their codes indexes into sl.FAULTS."""

    rows: Ints


Out = StreamFrames | StreamFaults | StreamMessages


class Stream:
    """The walk and the records of all connections that speak the stream protocol."""

    def __init__(self, compiled: bool, keep_bodies: bool, accounting: MemoryAccounting) -> None:
        self.compiled = compiled
        protocol = spec.load(PROTOCOL)
        self.plan = Plan.of_methods(protocol)
        self.has_secret = with_secrets(protocol)
        self.layouts = sl.layout_table(protocol, self.plan)
        self.variants = sl.variant_table(protocol)
        self.senders = sl.sender_table(protocol)
        names = [m.full_name for m in protocol.methods]
        self.names = Names(names, accounting)
        self.select: Callable[[Ints], Ints] | None = None
        """Where it is set, only the fields of frames that it chooses are decoded, and no records."""
        self.records = Records(protocol, self.plan, self.names, compiled, keep_bodies)
        room = (131_072 if compiled else 2_048) + APART
        self.framing = Framing(compiled, room)
        self.frames = np.empty((sl.R_HEIGHT, room), np.int64)
        self.parts = np.empty((sl.P_HEIGHT, 256), np.int64)
        self.own = np.zeros(0, np.int64), self.layouts, self.senders, self.parts

    @property
    def ranges(self) -> list[Ranges]:
        """Bytes of unfinished frames, which must outlive their batch."""
        return self.framing.ranges

    def begin(self, slots: Ints, states: Ints, capacity: int) -> None:
        """Take over connections; `states` are HEAD where a stream is seen from its start, else SEARCH."""
        self.framing.begin(slots, states, capacity)

    def feed(self, pieces: Ints, count: int, buffer: Buffer, conn: Ints) -> Iterator[Out]:
        """Walk the first `count` pieces. Frames come out before the messages that they hold."""
        for _ in self.framing.rounds(pieces, count, buffer, frames.walk_pieces, conn, self.frames, self.own):
            n, parts = self.framing.found
            if self.framing.new_faults.shape[1]:
                yield StreamFaults(self.framing.new_faults.copy())
            if n or parts:
                yield from self._take(n, parts, buffer)

    def _take(self, n: int, parts: int, buffer: Buffer) -> Iterator[Out]:
        if self.select is not None:
            if n:
                yield self._decoded(n, buffer)
            return
        self.records.long_frames(self.frames[:, :n], self.parts[:, :parts], buffer)
        if not n:
            return
        frames = self._decoded(n, buffer)
        tracking, torn = self.records.tracking(frames.rows, frames.fields, buffer)
        if tracking is not None:
            frames.fields.columns["tracking"] = tracking
        yield frames
        if torn.shape[1]:
            yield StreamFaults(torn)
        messages, faults = self.records.take(frames.rows, frames.fields, buffer)
        if faults.shape[1]:
            yield StreamFaults(faults)
        if messages is not None:
            yield messages

    def _decoded(self, n: int, buffer: Buffer) -> StreamFrames:
        plan = self.plan
        call(
            frames.choose_layouts, self.compiled, buffer.data, self.frames, n, self.variants, plan.starts, plan.ops,
            plan.lists[0], plan.lists[1],
        )  # fmt: skip
        rows = self.frames[:, :n]
        rows = rows.copy() if self.select is None else rows[:, self.select(rows)]
        fields = decode(
            plan, buffer.data, rows[sl.R_OFFSET], rows[sl.R_LENGTH], rows[sl.R_LAYOUT],
            rows[sl.R_CUT].astype(np.uint8), self.compiled,
        )  # fmt: skip
        hide(fields, self.has_secret[rows[sl.R_LAYOUT]], ("mechanism",))
        return StreamFrames(rows, fields)

    def end(self, slots: Ints, conn: Ints, buffer: Buffer) -> Iterator[Out]:
        """Forget connections that are over."""
        last = self.framing.last_pieces(slots)
        yield from self.feed(last, last.shape[1], buffer, conn)
        self.names.forget(slots)
        self.records.forget(slots)
        for cuts in self.framing.end(slots, sl.HEAD_OCTETS, 0):
            yield StreamFaults(cuts)

    def skipped(self, slots: Ints) -> Ints:
        """Bytes passed over in the searches at hand, both directions together."""
        return self.framing.skipped(slots)
