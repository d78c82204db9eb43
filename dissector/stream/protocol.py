"""RabbitMQ streams of all connections: pieces in, columns of frames and messages out.

Holds the state that the kernels of `frames` work on, makes room for it, and has the fields decoded as `spec` says.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

import spec
from dissector import limits
from dissector.amqp091 import layout as ly
from dissector.amqp091.frames import drop_chain
from dissector.arrays import Ints
from dissector.carry import Buffer, Ranges
from dissector.fields import Decoded, Plan, decode
from dissector.kernel import call
from dissector.pool import Pool, grown
from dissector.stream import frames
from dissector.stream import layout as sl
from dissector.stream.messages import Records
from dissector.stream.names import Names
from dissector.tcp.layout import S_LENGTH

PROTOCOL = "rabbitmq-stream"


class StreamFrames(NamedTuple):
    """Some frames: `rows` is (sl.R_HEIGHT, n), `fields` those of the commands."""

    rows: Ints
    fields: Decoded


class StreamFaults(NamedTuple):
    """Some faults: (ly.Y_HEIGHT, n), their codes indexes into sl.FAULTS."""

    rows: Ints


class StreamMessages(NamedTuple):
    """Some messages: `rows` is (sl.R_HEIGHT, n), the frame of each; `columns` what messages have beside the leading."""

    rows: Ints
    columns: dict[str, pa.Array]


Out = StreamFrames | StreamFaults | StreamMessages


class Stream:
    """The walk and the records of all connections that speak the stream protocol."""

    def __init__(self, compiled: bool, keep_bodies: bool = False) -> None:
        self.compiled = compiled
        protocol = spec.load(PROTOCOL)
        self.plan = Plan.of_methods(protocol)
        self.layouts = sl.layout_table(protocol, self.plan)
        self.variants = sl.variant_table(protocol)
        self.senders = sl.sender_table(protocol)
        names = [m.full_name for m in protocol.methods]
        self.names = Names(names)
        self.records = Records(protocol, self.plan, self.names, compiled, keep_bodies)
        room = 131_072 if compiled else 2_048
        self.control = np.zeros(ly.M_WIDTH, np.int64)
        self.walk = np.zeros((0, sl.W_WIDTH), np.int64)
        self.frames = np.empty((sl.R_HEIGHT, room), np.int64)
        self.faults = np.empty((ly.Y_HEIGHT, room), np.int64)
        self.parts = np.empty((sl.P_HEIGHT, 256), np.int64)
        self.part_control = np.zeros(1, np.int64)
        self.fragments = Pool(ly.F_WIDTH, room)

    @property
    def ranges(self) -> list[Ranges]:
        """Octets of unfinished frames, which must outlive their batch."""
        return [Ranges(self.fragments.rows, ly.F_USED, ly.F_OFFSET, ly.F_LENGTH)]

    def begin(self, slots: Ints, states: Ints, capacity: int) -> None:
        """Take over connections; `states` are ly.HEAD where a stream is seen from its start, else ly.SEARCH."""
        if len(self.walk) < 2 * capacity:
            self.walk = grown(self.walk, 2 * capacity)
        for side in range(2):
            rows = 2 * slots + side
            self.walk[rows] = 0
            self.walk[rows, ly.W_STATE] = states
            self.walk[rows, ly.W_CHAIN] = -1
            self.walk[rows, ly.W_CHAIN_END] = -1
            self.walk[rows, ly.W_LAST] = -1

    def feed(self, pieces: Ints, count: int, buffer: Buffer, conn: Ints) -> Iterator[Out]:
        """Walk the first `count` pieces. Frames come out before the messages that they hold."""
        m = self.control
        m[ly.M_PIECE] = m[ly.M_AT] = 0
        m[ly.M_COUNT] = count
        while m[ly.M_PIECE] < count:
            m[ly.M_FRAMES] = m[ly.M_FAULTS] = self.part_control[0] = 0
            m[ly.M_ARENA] = buffer.top
            call(
                frames.walk_pieces, self.compiled, pieces, buffer.data, conn, self.walk, self.frames, self.faults,
                self.parts, self.fragments.rows, self.fragments.free, m, self.part_control, self.layouts, self.senders,
            )  # fmt: skip
            buffer.top = int(m[ly.M_ARENA])
            if m[ly.M_FAULTS]:
                yield StreamFaults(self.faults[:, : m[ly.M_FAULTS]].copy())
            if m[ly.M_FRAMES] or self.part_control[0]:
                yield from self._take(int(m[ly.M_FRAMES]), buffer)
            if self.fragments.left == 0 and len(self.fragments) < limits.FRAGMENTS:
                self.fragments.grow(2 * len(self.fragments))
            if m[ly.M_PIECE] < count:
                buffer.reserve(int(pieces[S_LENGTH, int(m[ly.M_PIECE])]) + limits.PAYLOAD + 64)

    def _take(self, n: int, buffer: Buffer) -> Iterator[Out]:
        self.records.long_frames(self.frames[:, :n], self.parts[:, : self.part_control[0]], buffer)
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
            yield StreamMessages(*messages)

    def _decoded(self, n: int, buffer: Buffer) -> StreamFrames:
        plan = self.plan
        call(
            frames.choose, self.compiled, buffer.data, self.frames, n, self.variants, plan.starts, plan.ops,
            plan.lists[0], plan.lists[1],
        )  # fmt: skip
        rows = self.frames[:, :n].copy()
        fields = decode(
            plan, buffer.data, rows[sl.R_OFFSET], rows[sl.R_LENGTH], rows[sl.R_LAYOUT],
            rows[sl.R_CUT].astype(np.uint8), self.compiled,
        )  # fmt: skip
        return StreamFrames(rows, fields)

    def end(self, slots: Ints, conn: Ints, buffer: Buffer) -> Iterator[StreamFaults]:
        """Forget connections that are over."""
        self.names.forget(slots)
        self.records.forget(slots)
        rows = (2 * slots[:, None] + np.arange(2)).ravel()
        walk = self.walk[rows]
        head = walk[:, ly.W_STATE] == ly.HEAD
        inside = (walk[:, ly.W_STATE] == ly.PAYLOAD) | (head & (walk[:, ly.W_HEADS] > 0))
        if inside.any():
            yield StreamFaults(self._cuts(rows[inside], walk[inside]))
        for row in rows[walk[:, ly.W_CHAIN] >= 0].tolist():
            call(drop_chain, self.compiled, self.walk, row, self.fragments.rows, self.fragments.free, self.control)

    def _cuts(self, rows: Ints, walk: Ints) -> Ints:
        faults = np.zeros((ly.Y_HEIGHT, len(rows)), np.int64)
        head = walk[:, ly.W_STATE] == ly.HEAD
        faults[ly.Y_CODE] = ly.CUT
        faults[ly.Y_SLOT], faults[ly.Y_SIDE] = rows // 2, rows % 2
        faults[ly.Y_NO] = faults[ly.Y_CHANNEL] = -1
        faults[ly.Y_POS] = walk[:, ly.W_POS]
        missing = np.where(head, sl.HEAD_OCTETS - walk[:, ly.W_HEADS], walk[:, ly.W_SIZE] - walk[:, ly.W_GOT])
        faults[ly.Y_VALUE] = missing
        for first, last, of in (
            (ly.Y_FIRST_PACKET, ly.Y_PACKET, ly.W_FIRST_PACKET), (ly.Y_FIRST_TS, ly.Y_TS, ly.W_FIRST_TS),
            (ly.Y_FIRST_CAPTURE, ly.Y_CAPTURE, ly.W_FIRST_CAPTURE),
        ):  # fmt: skip
            faults[first] = faults[last] = walk[:, of]
        return faults

    def skipped(self, slots: Ints) -> Ints:
        """Octets passed over in the searches at hand, both directions together."""
        walk = self.walk.reshape(-1, 2, self.walk.shape[1])[slots]
        skipped: Ints = np.where(walk[:, :, ly.W_STATE] == ly.SEARCH, walk[:, :, ly.W_SKIPPED], 0).sum(1)
        return skipped
