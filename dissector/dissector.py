"""The stages together: packets in, record batches of all tables out.

`feed` and `finish` are what everybody uses: the command line, the Spark source and the tests.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import spec
from dissector import detect
from dissector.amqp091 import layout as ly
from dissector.amqp091.protocol import Amqp091, Faults, Frames, Messages
from dissector.arrays import Ints
from dissector.capture import PacketBatch
from dissector.carry import Buffer, Ranges, gather, move
from dissector.connections import Connections
from dissector.packets import PacketDecoder, PacketReport
from dissector.reassembly import C_PROTOCOL, C_SYN, S_SLOT
from dissector.tables import Tables
from dissector.tcp import Reassembler
from spec.model import Protocol

Row = tuple[str, pa.RecordBatch]
"""A table's name and some rows of it."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may choose of dissection.

    Attributes:
        ports: protocol names by port, stronger than content.
        protocol: AMQP 0-9-1 with a user's document laid over it; our own data when None.
        bodies: `none`, `hash` or `full`.
        from_ns: earlier rows are left out, though they count for state and identity.
        to_ns: rows at this time or later are left out.
    """

    ports: dict[int, str] = field(default_factory=dict)
    protocol: Protocol | None = None
    bodies: str = "hash"
    from_ns: int | None = None
    to_ns: int | None = None


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
        self.detector = detect.Detector(self.protocol, self.options.ports, compiled)
        self.amqp091 = Amqp091(self.protocol, compiled, self.options.bodies == "full")
        self.connections = Connections(self.protocol, compiled)
        self.tables = Tables(self.protocol, self.captures, self.options.bodies != "none")
        self.carried = np.zeros(0, np.uint8)

    @property
    def _ranges(self) -> list[Ranges]:
        return self.tcp.ranges + self.amqp091.ranges

    def feed(self, batch: PacketBatch) -> Iterator[Row]:
        """Take a batch of packets of one capture; captures one after the other, each in its own order."""
        segments, report = self.packets.segments(batch, self.compiled)
        self.reports.append(report)
        buffer = self._resume(Buffer(batch.data, batch.used))
        for pieces, ended in self.tcp.feed(segments):
            yield from self._pieces(pieces, ended, buffer)
        for pieces, ended in self.tcp.expire():
            yield from self._pieces(pieces, ended, buffer)
        self.carried = gather(self._ranges, buffer.data, self.compiled)

    def finish(self) -> Iterator[Row]:
        """End all connections."""
        buffer = self._resume(Buffer(np.empty(1 << 16, np.uint8), 0))
        for pieces, ended in self.tcp.finish():
            yield from self._pieces(pieces, ended, buffer)
        self.carried = np.zeros(0, np.uint8)

    def _resume(self, buffer: Buffer) -> Buffer:
        used = buffer.top
        buffer.reserve(len(self.carried) + used + (1 << 16))
        move(self._ranges, buffer.append(self.carried))
        return buffer

    def _pieces(self, pieces: Ints, ended: Ints, buffer: Buffer) -> Iterator[Row]:
        conn = self.tcp.conn
        pieces = self.detector.sort(np.ascontiguousarray(pieces), buffer, conn)
        self._begin(conn)
        mine = conn[pieces[S_SLOT], C_PROTOCOL] == detect.AMQP_0_9_1
        if not mine.all():
            pieces = np.ascontiguousarray(pieces[:, mine])
        for out in self.amqp091.feed(pieces, pieces.shape[1], buffer, conn):
            yield from self._rows(out, buffer, conn)
        if len(ended):
            yield from self._end(ended, buffer, conn)

    def _begin(self, conn: Ints) -> None:
        decided = np.array(self.detector.decided, np.int64)
        self.detector.decided.clear()
        slots = decided[conn[decided, C_PROTOCOL] == detect.AMQP_0_9_1]
        if len(slots):
            self.amqp091.begin(slots, np.where(conn[slots, C_SYN] != 0, ly.HEAD, ly.SEARCH), len(conn))

    def _end(self, ended: Ints, buffer: Buffer, conn: Ints) -> Iterator[Row]:
        slots = ended[conn[ended, C_PROTOCOL] == detect.AMQP_0_9_1]
        for out in self.amqp091.end(slots, conn, buffer):
            yield from self._rows(out, buffer, conn)
        for slot, probe in self.detector.forget(ended).items():
            self.connections.story(slot).skipped += probe.skipped
        for slot in slots.tolist():
            skipped = self.amqp091.skipped(slot)
            if skipped:
                self.connections.story(slot).skipped += skipped
        yield from self._cut("connections", self.connections.rows(ended, conn, self.tcp.half, self.captures))
        self.tcp.free(ended)

    def _rows(self, out: Frames | Messages | Faults, buffer: Buffer, conn: Ints) -> Iterator[Row]:
        if isinstance(out, Frames):
            self.connections.take(out, buffer.data, conn)
            rows = self.tables.frames(out, conn)
            yield from self._cut("amqp091_frames", rows)
            yield from self._cut("anomalies", self.tables.problems(rows, out.fields))
        elif isinstance(out, Messages):
            slots, counts = np.unique(out.rows[ly.G_SLOT], return_counts=True)
            for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
                self.connections.story(slot).messages += count
            rows = self.tables.messages(out, conn)
            yield from self._cut("messages", rows)
            yield from self._cut("anomalies", self.tables.problems(rows, out.properties))
        else:
            skips = out.rows[:, out.rows[ly.Y_CODE] == ly.SKIPPED]
            for slot, octets in zip(skips[ly.Y_SLOT].tolist(), skips[ly.Y_VALUE].tolist(), strict=True):
                self.connections.story(slot).skipped += octets
            yield from self._cut("anomalies", self.tables.faults(out, conn))

    def _cut(self, table: str, rows: pa.RecordBatch | None) -> Iterator[Row]:
        """Leave out what lies outside of the time range asked for."""
        if rows is None or not rows.num_rows:
            return
        start, end = self.options.from_ns, self.options.to_ns
        first, last = ("first_ts_ns", "last_ts_ns") if table == "connections" else ("ts_ns", "ts_ns")
        if start is not None:
            rows = rows.filter(pc.greater_equal(rows.column(last), start))
        if end is not None:
            rows = rows.filter(pc.less(rows.column(first), end))
        if rows.num_rows:
            yield table, rows
