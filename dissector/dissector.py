"""The stages together: packets in, record batches of all tables out.

`feed` and `finish` are what everybody uses: the command line, the Spark source and the tests.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import spec
from dissector import detect
from dissector.amqp091 import layout as ly
from dissector.amqp091.protocol import Amqp091, Faults, Frames, Messages
from dissector.arrays import Ints
from dissector.capture import PacketBatch, Problem
from dissector.carry import Buffer, Ranges, gather, move
from dissector.connections import Closed, Connections
from dissector.packets import PacketDecoder, PacketReport
from dissector.stream import layout as sl
from dissector.stream.protocol import Stream, StreamFaults, StreamFrames, StreamMessages
from dissector.tables import Ends, Tables
from dissector.tcp.layout import (
    C_FIRST_PACKET,
    C_FIRST_TS,
    C_ID,
    C_PROTOCOL,
    C_SYN,
    K_CLOCK,
    S_SLOT,
)
from dissector.tcp.reassembler import Reassembler
from dissector.tcp.slots import identity
from spec.model import Protocol

Row = tuple[str, pa.RecordBatch]
"""A table's name and some rows of it."""
Work = Callable[[], list[Row]]
"""Rows still to be made. It touches no state but its own."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may choose of dissection.

    Attributes:
        ports: protocol names by port, stronger than content.
        protocol: AMQP 0-9-1 with a user's document laid over it; our own data when None.
        bodies: `none`, `hash` or `full`.
        from_ns: earlier rows are left out, though they count for state and identity.
        to_ns: rows at this time or later are left out.
        handshakes: nothing but rows of `connections` is wanted, so what tells nothing of these is not decoded.
    """

    ports: dict[int, str] = field(default_factory=dict)
    protocol: Protocol | None = None
    bodies: str = "hash"
    from_ns: int | None = None
    to_ns: int | None = None
    handshakes: bool = False


class Dissector:
    """All connections of a sequence of captures. Rows depend on the packets alone, not on how they are batched."""

    def __init__(self, options: Options | None = None, compiled: bool = True) -> None:
        self.options = options or Options()
        self.compiled = compiled
        self.protocol = self.options.protocol or spec.load("amqp-0-9-1")
        self.captures: list[str] = []
        """Names of the captures; a batch's `capture` is an index into it."""
        self.packets = PacketDecoder()
        self.reports: list[PacketReport] = []
        """What became of the packets of each batch since the caller last emptied the list."""
        self.tcp = Reassembler(compiled)
        self.stream = Stream(compiled, self.options.bodies == "full")
        self.detector = detect.Detector(
            self.protocol, self.options.ports, compiled, self.stream.layouts, self.stream.senders
        )
        self.amqp091 = Amqp091(self.protocol, compiled, self.options.bodies == "full")
        self.connections = Connections(self.protocol, compiled, self.options.ports)
        if self.options.handshakes:
            self.amqp091.select = self.connections.telling
        self.over = False
        self.tables = Tables(self.protocol, self.captures, self.options.bodies != "none")
        self.carried = np.zeros(0, np.uint8)

    @property
    def _ranges(self) -> list[Ranges]:
        return self.tcp.ranges + self.amqp091.ranges + self.stream.ranges

    def feed(self, batch: PacketBatch) -> Iterator[Row]:
        """Take a batch of packets of one capture; captures one after the other, each in its own order."""
        for work in self.work(batch):
            yield from work()

    def finish(self) -> Iterator[Row]:
        """End all connections."""
        for work in self.last_work():
            yield from work()

    def work(self, batch: PacketBatch) -> Iterator[Work]:
        """As `feed`, with the rows still to be made: each piece of work may be done later, by any thread."""
        segments, report = self.packets.segments(batch, self.compiled)
        self.reports.append(report)
        buffer = self._resume(Buffer(batch.data, batch.used))
        for pieces, ended in self.tcp.feed(segments):
            yield from self._pieces(pieces, ended, buffer)
        for packet, count in self.tcp.given_up:
            told = (
                f"more than {self.tcp.max_connections} connections were open: {count} that were idle longest ended here"
            )
            report.problems.append(Problem("limit-reached", packet, None, told))
        self.tcp.given_up.clear()
        for pieces, ended in self.tcp.expire():
            yield from self._pieces(pieces, ended, buffer)
        self.carried = gather(self._ranges, buffer.data, self.compiled)

    def last_work(self) -> Iterator[Work]:
        """As `finish`, with the rows still to be made."""
        buffer = self._resume(Buffer(np.empty(1 << 16, np.uint8), 0))
        self.over = True
        for pieces, ended in self.tcp.finish():
            yield from self._pieces(pieces, ended, buffer)
        self.carried = np.zeros(0, np.uint8)

    def _resume(self, buffer: Buffer) -> Buffer:
        buffer.reserve(len(self.carried) + (1 << 16))
        move(self._ranges, buffer.append(self.carried), self.compiled)
        return buffer

    def _pieces(self, pieces: Ints, ended: Ints, buffer: Buffer) -> Iterator[Work]:
        conn = self.tcp.conn
        self.connections.begin(pieces, buffer.data)
        pieces = self.detector.sort(np.ascontiguousarray(pieces), buffer, conn)
        self._begin(conn)
        protocol = conn[:, C_PROTOCOL].copy()[pieces[S_SLOT]]
        mine = protocol == detect.AMQP_0_9_1
        streams = np.ascontiguousarray(pieces[:, protocol == detect.STREAM])
        if not mine.all():
            pieces = np.ascontiguousarray(pieces[:, mine])
        for out in self.amqp091.feed(pieces, pieces.shape[1], buffer, conn):
            yield self._work(out, buffer, conn)
        for made in self.stream.feed(streams, streams.shape[1], buffer, conn):
            yield self._stream_work(made, conn)
        if len(ended):
            yield from self._end(ended, buffer, conn)

    def _begin(self, conn: Ints) -> None:
        if not self.detector.decided:
            return
        slots, skipped = np.array(list(self.detector.decided.items()), np.int64).T
        self.detector.decided.clear()
        # Where octets were passed over, the first piece may begin anywhere, though the SYN was seen.
        states = np.where((conn[slots, C_SYN] != 0) & (skipped == 0), ly.HEAD, ly.SEARCH)
        protocols = conn[slots, C_PROTOCOL]
        for number, protocol in ((detect.AMQP_0_9_1, self.amqp091), (detect.STREAM, self.stream)):
            mine = protocols == number
            if mine.any():
                protocol.begin(slots[mine], states[mine], len(conn))
        for slot, octets in zip(slots[skipped > 0].tolist(), skipped[skipped > 0].tolist(), strict=True):
            self.connections.story(slot).skipped += octets

    def _end(self, ended: Ints, buffer: Buffer, conn: Ints) -> Iterator[Work]:
        for slot in ended[conn[ended, C_ID] == 0].tolist():  # neither SYN nor data: known by its first packet alone
            conn[slot, C_ID] = identity(conn.data, slot, int(conn[slot, C_FIRST_PACKET]), int(conn[slot, C_FIRST_TS]))
        slots = ended[conn[ended, C_PROTOCOL] == detect.AMQP_0_9_1]
        for out in self.amqp091.end(slots, conn, buffer):
            yield self._work(out, buffer, conn)
        streams = ended[conn[ended, C_PROTOCOL] == detect.STREAM]
        for made in self.stream.end(streams, conn):
            yield self._stream_work(made, conn)
        for slot in streams.tolist():
            skipped = self.stream.skipped(slot)
            if skipped:
                self.connections.story(slot).skipped += skipped
        for slot, probe in self.detector.forget(ended).items():
            self.connections.story(slot).skipped += probe.skipped
        for slot in slots.tolist():
            skipped = self.amqp091.skipped(slot)
            if skipped:
                self.connections.story(slot).skipped += skipped
        clock = int(self.tcp.control[K_CLOCK]) if self.over else None
        yield partial(self._connections, self.connections.close(ended, conn, self.tcp.half), clock)
        self.tcp.free(ended)

    def _work(self, out: Frames | Messages | Faults, buffer: Buffer, conn: Ints) -> Work:
        """Note what state must know of these rows now; what is left is to make them."""
        rows = out.rows
        if isinstance(out, Frames):
            self.connections.take(out, buffer.data)
            if self.options.handshakes:
                return list
            return partial(self._frames, out, Ends.of(conn, rows[ly.R_SLOT], rows[ly.R_SIDE]))
        if isinstance(out, Messages):
            self._count(rows[ly.G_SLOT])
            return partial(self._messages, out, Ends.of(conn, rows[ly.G_SLOT], rows[ly.G_SIDE]))
        skips = rows[:, rows[ly.Y_CODE] == ly.SKIPPED]
        for slot, octets in zip(skips[ly.Y_SLOT].tolist(), skips[ly.Y_VALUE].tolist(), strict=True):
            self.connections.story(slot).skipped += octets
        return partial(self._faults, out, Ends.of(conn, rows[ly.Y_SLOT], rows[ly.Y_SIDE]))

    def _stream_work(self, out: StreamFrames | StreamFaults | StreamMessages, conn: Ints) -> Work:
        """As `_work`, for streams."""
        rows = out.rows
        if isinstance(out, StreamFrames):
            return partial(self._stream_frames, out, Ends.of(conn, rows[sl.R_SLOT], rows[sl.R_SIDE]))
        if isinstance(out, StreamMessages):
            self._count(rows[sl.R_SLOT])
            return partial(self._stream_messages, out, Ends.of(conn, rows[sl.R_SLOT], rows[sl.R_SIDE]))
        skips = rows[:, rows[ly.Y_CODE] == ly.SKIPPED]
        for slot, octets in zip(skips[ly.Y_SLOT].tolist(), skips[ly.Y_VALUE].tolist(), strict=True):
            self.connections.story(slot).skipped += octets
        return partial(self._faults, out, Ends.of(conn, rows[ly.Y_SLOT], rows[ly.Y_SIDE]))

    def _count(self, slots: Ints) -> None:
        for slot, count in zip(*(a.tolist() for a in np.unique(slots, return_counts=True)), strict=True):
            self.connections.story(slot).messages += count

    def _connections(self, closed: Closed, clock: int | None) -> list[Row]:
        return self.cut("connections", self.connections.rows(closed, self.captures, clock))

    def _frames(self, frames: Frames, ends: Ends) -> list[Row]:
        rows = self.tables.frames(frames, ends)
        return self.cut("amqp091_frames", rows) + self.cut("anomalies", self.tables.problems(rows, frames.fields))

    def _messages(self, messages: Messages, ends: Ends) -> list[Row]:
        arguments, properties = self.amqp091.decode(messages)
        rows = self.tables.messages(messages, arguments, properties, ends)
        return self.cut("messages", rows) + self.cut("anomalies", self.tables.problems(rows, properties))

    def _stream_frames(self, frames: StreamFrames, ends: Ends) -> list[Row]:
        rows = self.tables.stream_frames(frames, ends)
        return self.cut("stream_frames", rows) + self.cut("anomalies", self.tables.problems(rows, frames.fields))

    def _stream_messages(self, messages: StreamMessages, ends: Ends) -> list[Row]:
        return self.cut("messages", self.tables.stream_messages(messages, ends))

    def _faults(self, faults: Faults | StreamFaults, ends: Ends) -> list[Row]:
        return self.cut("anomalies", self.tables.faults(faults, ends))

    def cut(self, table: str, rows: pa.RecordBatch | None) -> list[Row]:
        """Leave out what lies outside of the time range asked for."""
        if rows is None or (self.options.handshakes and table != "connections"):
            return []
        start, end = self.options.from_ns, self.options.to_ns
        first, last = ("first_ts_ns", "last_ts_ns") if table == "connections" else ("ts_ns", "ts_ns")
        # What has no time, such as an anomaly of a whole file, is always in.
        if start is not None:
            rows = rows.filter(pc.fill_null(pc.greater_equal(rows.column(last), start), True))
        if end is not None:
            rows = rows.filter(pc.fill_null(pc.less(rows.column(first), end), True))
        return [(table, rows)] if rows.num_rows else []
