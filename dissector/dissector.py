"""The stages as one object: it takes packets and returns record batches of all tables.

The command line, Spark and the tests all use `feed` and `finish`.
"""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import pyarrow as pa

from amqpscope import spec
from amqpscope.dissector import transfer
from amqpscope.dissector.capture.model import PacketBatch, Problem
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.accounting import MemoryAccounting, most_retained
from amqpscope.dissector.kernels.arrays import Ints, among
from amqpscope.dissector.kernels.retained import Buffer, Ranges, Retained, gather, move
from amqpscope.dissector.packets.decoder import PacketDecoder
from amqpscope.dissector.packets.merging import Decoded
from amqpscope.dissector.packets.segments import PacketReport, SegmentBatch
from amqpscope.dissector.protocols import registry
from amqpscope.dissector.protocols.acknowledged import Acked, Acknowledged
from amqpscope.dissector.protocols.detection import Detector
from amqpscope.dissector.protocols.registry import Context, Stages
from amqpscope.dissector.protocols.rows import Faults, Made
from amqpscope.dissector.protocols.state import GAP, HEAD, SEARCH, SKIPPED, Fault, Place
from amqpscope.dissector.tables.connections import Closed, Connections
from amqpscope.dissector.tables.rows import Ends, Row, Tables, Wanted, Work
from amqpscope.dissector.tcp.gaps import Gaps
from amqpscope.dissector.tcp.reassembler import Reassembler
from amqpscope.dissector.tcp.state import Chunk, Conn, Event, Facts, Queue, Results, Segment, Window
from amqpscope.dissector.tcp.state import Fault as TcpFault
from amqpscope.dissector.tls.stage import Tls
from amqpscope.spec.model import Protocol as Specification

STEPS = 64
"""Number of checks of the limit on retained bytes, per limit's worth of bytes read."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a dissection.

    Attributes:
        ports: protocol names by port, which override detection by content.
        protocol: AMQP 0-9-1 or 0-10 extended by a user's document; None: our own data. That of 0-9-1 also stands for
            the older versions.
        bodies: `none`, `hash` or `full`.
        from_ns: leave out rows before this time; their packets still count for state and identity.
        to_ns: leave out rows at or after this time.
        handshakes: make rows of `connections` only, and decode only what they need.
        keylog: path of a TLS key log (NSS format), which may still be growing.
    """

    ports: dict[int, str] = field(default_factory=dict)
    protocol: Specification | None = None
    bodies: str = "hash"
    from_ns: int | None = None
    to_ns: int | None = None
    handshakes: bool = False
    keylog: str | None = None


class Dissector:
    """All connections of a sequence of captures. Rows depend on the packets alone, not on their batches."""

    def __init__(self, options: Options | None = None, compiled: bool = True) -> None:
        self.options = options or Options()
        self.compiled = compiled
        self.captures: list[str] = []
        """Names of the captures; a batch's `capture` is an index into it."""
        self.points: list[int] = []
        """For each capture, the first one of the same capture point; for captures beyond the list, capture 0."""
        self.packets = PacketDecoder()
        self.reports: list[PacketReport] = []
        """Reports on the packets of each batch since the caller last emptied the list."""
        self.tcp = Reassembler(compiled)
        self.accounting = MemoryAccounting()
        own, usual = self.options.protocol, spec.load()
        brokers = np.array(sorted(registry.ports() | self.options.ports.keys()), np.int64)
        known = own if own and own.name == usual.name else usual
        self.connections = Connections(known, compiled, self.options.ports, brokers)
        context = Context(
            compiled, self.options.bodies, self.options.handshakes, self.accounting, self.connections.record,
            self.connections.used, {own.name: own} if own else {},
        )  # fmt: skip
        self.reached = context.reached
        self._reported: set[str] = set()
        """Limits of the process that were reached, and those of them that were reported."""
        self.detector = Detector(context, self.options.ports, brokers)
        self.stages = Stages(context)
        self.tls = Tls(self.options.keylog, self.accounting, compiled)
        self.gaps = Gaps()
        self.acked = Acknowledged(compiled, self.reached)
        self.over = False
        self.end_ns = 0
        """The latest time seen, and in the end when the captures end."""
        self.read = 0
        """Most bytes that may have been retained of all that was read."""
        wanted = Wanted(self.options.from_ns, self.options.to_ns, "connections" if self.options.handshakes else None)
        self.tables = Tables(own, self.captures, wanted, compiled)
        self.retained = Retained.nothing(self._ranges)
        self.parts = transfer.Parts(
            self.packets,
            self.tcp,
            self.tls,
            self.detector,
            self.stages,
            self.connections,
            self.gaps,
            self.acked,
            self.accounting,
        )

    @property
    def _ranges(self) -> list[Ranges]:
        return sum((list(stage.ranges) for stage in self.stages.values()), self.tcp.ranges)

    def feed(self, batch: PacketBatch) -> Iterator[Row]:
        """Take a batch of packets of one capture, and yield rows. Captures come one after the other, in file order."""
        for work in self.work(batch):
            yield from work()

    def finish(self, end_ns: int | None = None) -> Iterator[Row]:
        """End all connections, and yield rows.

        Args:
            end_ns: end of the captures, up to which waits are measured. Dissectors that share the connections of the
                same captures need the same value. None: the latest time seen.
        """
        for work in self.last_work(end_ns):
            yield from work()

    def take_out(self, connections: Iterable[int] | None = None) -> bytes:
        """Take the state of open connections out, by their `connection_id`; None: all state there is.

        Call it between batches; it removes the state. With None, this includes state that belongs to no open
        connection: IP fragments, identities so far, secrets from captures. The bytes can be read with the same release
        and options only, and hold secrets if TLS is decrypted.
        """
        facts = self.tcp.flows.facts
        slots = np.flatnonzero(facts[:, Facts.USED])
        if connections is not None:
            slots = slots[np.isin(facts[slots, Facts.ID], np.fromiter(connections, np.int64))]
        buffer = self.resume(Buffer(np.zeros(0, np.uint8), 0))
        state = transfer.take_connections(self.parts, slots, buffer.data)
        state |= {"captures": self.captures, "points": self.points, "end_ns": self.end_ns, "rest": None}
        if connections is None:
            state["rest"], state["read"], self.read = transfer.take_rest(self.parts), self.read, 0
        self.retain(buffer)
        return transfer.sealed(self._head(), state)

    def put_back(self, state: bytes) -> None:
        """Put back what `take_out` returned, also from another dissector with the same options.

        Captures are identified by name; names that are not in `captures` are appended.

        Raises:
            StateError: the bytes are from another release or other options, or damaged.
        """
        found = transfer.opened(self._head(), state)
        captures = transfer.merge_captures(found["captures"], found["points"], self.captures, self.points)
        self.tcp.place(self.points or [0] * len(self.captures))
        buffer = self.resume(Buffer(np.zeros(0, np.uint8), 0))
        transfer.put_connections(self.parts, found, captures, buffer)
        if found["rest"] is not None:
            transfer.put_rest(self.parts, found["rest"], captures)
            self.read += found["read"]
        self.end_ns = max(self.end_ns, found["end_ns"])
        self.retain(buffer)

    def _head(self) -> bytes:
        """Return the head of a state: the release, and what its numbers refer to."""
        own = self.options.protocol
        methods = [method.full_name for method in own.methods] if own else []
        what = (registry.names(), methods, self.options.bodies, self.options.handshakes)
        return f"amqpscope {_release()} {zlib.crc32(repr(what).encode()):08x}\n".encode()

    def work(self, batch: PacketBatch) -> Iterator[Work]:
        """Do as `feed`, but yield functions that make the rows, later and in any thread."""
        yield from self.take(self.decode(batch))

    def decode(self, batch: PacketBatch) -> Decoded:
        """Return the segments of a batch of packets; add a report on the other packets to `reports`."""
        for secrets in batch.secrets:
            self.tls.add(secrets, batch.capture)
        point = self.points[batch.capture] if batch.capture < len(self.points) else 0
        segments, report = self.packets.segments(batch, self.compiled, point)
        self.reports.append(report)
        return Decoded(segments, batch.data, batch.used)

    def take(self, decoded: Decoded) -> Iterator[Work]:
        """Do as `work`, for segments, which may be of several captures."""
        buffer = self.resume(Buffer(decoded.data, decoded.used))
        self.end_ns = max(self.end_ns, int(decoded.segments.ts_ns.max(initial=0)))
        for segments, weigh in self._steps(decoded.segments):
            for out in self.tcp.feed(segments, buffer):
                yield from self._take(out, buffer)
            yield from self._speak(self._opened(self.tls.look(None, buffer), buffer), buffer)
            if weigh and self.accounting.total > limits.REMEMBERED:
                yield from self._lighten(segments, buffer)
            if self.reached:
                self._report_limits(segments)
        self.retain(buffer)

    def last_work(self, end_ns: int | None = None) -> Iterator[Work]:
        """Do as `finish`, but yield functions that make the rows."""
        buffer = self.resume(Buffer(np.empty(1 << 16, np.uint8), 0))
        self.over = True
        self.end_ns = self.end_ns if end_ns is None else end_ns
        for out in self.tcp.finish():
            yield from self._take(out, buffer)
        self.retained = Retained.nothing(self._ranges)

    def under_way(self, connections: pa.Array) -> pa.RecordBatch:
        """Return the rows that those of these connections that are open would have now, by `connection_id`."""
        facts = self.tcp.flows.facts
        wanted = np.isin(facts[:, Facts.ID], connections.to_numpy()) & (facts[:, Facts.ID] != 0)
        slots = np.flatnonzero(wanted & (facts[:, Facts.USED] == 1))
        return self.connections.under_way(slots, self.tcp.flows, self.captures)

    def _steps(self, segments: SegmentBatch) -> Iterator[tuple[SegmentBatch, bool]]:
        """Split segments at checks of the limit on retained bytes; yield each part and whether a check follows it.

        Checks follow fixed numbers of bytes that may be retained, independent of batches. There are none if the
        limit cannot be reached.
        """
        step = limits.REMEMBERED // STEPS
        read = self.read + np.cumsum(most_retained(segments.caplen))
        before, self.read = self.read, int(read[-1]) if len(read) else self.read
        waiting = self.tcp.waiting
        if self.accounting.total + waiting + self.read - before <= limits.REMEMBERED:
            yield segments, False
            return
        begin = 0
        for end in (np.flatnonzero(np.diff(read // step, prepend=before // step)) + 1).tolist():
            yield segments.cut(slice(begin, end)), True
            begin = end
        yield segments.cut(slice(begin, None)), False

    def held(self) -> Iterator[tuple[int, int, bool, int]]:
        """Yield connections with bytes that wait: slot, side, whether the beginning is missing, and since when (ns)."""
        flows, facts = self.tcp.flows, self.tcp.flows.facts
        for slot, side, since_ns in self.detector.holding(facts):
            yield slot, side, bool(facts[slot, Facts.SYN] == 0), since_ns
        for number, stage in sorted(self.stages.items()):
            mine = (facts[:, Facts.USED] == 1) & (facts[:, Facts.PROTOCOL] == number)
            yield from stage.holding(np.flatnonzero(mine))
        for row in np.flatnonzero(flows.queues[:, Queue.COUNT]).tolist():
            slot = row // 2
            if facts[slot, Facts.PROTOCOL] in self.stages or self.detector.may_serve(slot, facts):
                first = flows.segments[flows.queues[row, Queue.HEAD]]
                yield slot, row % 2, bool(flows.conn[slot, Conn.UNSETTLED]), int(first[Segment.TS])

    def _lighten(self, segments: SegmentBatch, buffer: Buffer) -> Iterator[Work]:
        """Evict the connections with the most retained bytes, and report it at the last of these segments."""
        slots = self.accounting.heaviest()
        text = (
            f"more than {limits.REMEMBERED} bytes of open connections were retained: {len(slots)} connections evicted"
        )
        yield from self.evict(slots, buffer, _last(segments), text)

    def evict(self, slots: Ints, buffer: Buffer, segment: tuple[int, int, int], text: str) -> Iterator[Work]:
        """End connections that are open; report it at a segment: its capture, packet and time."""
        for slot in slots.tolist():
            self.connections.record(slot).evicted = True
        for out in self.tcp.end(slots):
            yield from self._take(out, buffer)
        self.tcp.evicted.append((*segment, text))

    def _report_limits(self, segments: SegmentBatch) -> None:
        """Report limits of the process that were reached, each once, at the last of these segments."""
        for text in sorted(self.reached - self._reported):
            self.tcp.evicted.append((*_last(segments), text))
        self._reported |= self.reached
        self.reached.clear()

    def resume(self, buffer: Buffer) -> Buffer:
        """Append what was retained to a buffer."""
        buffer.reserve(len(self.retained.data) + (1 << 16))
        move(self._ranges, self.retained, buffer.append(self.retained.data), self.compiled)
        return buffer

    def retain(self, buffer: Buffer) -> None:
        """Keep what is still needed of a buffer."""
        self.retained = gather(self._ranges, buffer.data, self.compiled)

    def _take(self, out: Results, buffer: Buffer) -> Iterator[Work]:
        if out.chunks.shape[1]:
            yield from self._chunks(out.chunks, buffer)
        acked = self.acked.take(out.acks)
        if acked.shape[1]:
            yield partial(self.tables.tcp_acks, acked, self._ends(acked[Acked.SLOT], acked[Acked.SIDE]))
        facts = self.tcp.flows.facts
        if out.faults.shape[1]:
            ends = self._ends(out.faults[TcpFault.SLOT], out.faults[TcpFault.SIDE])
            yield partial(self.tables.tcp_faults, out.faults, ends)
        if out.windows.shape[1]:
            ends = self._ends(out.windows[Window.SLOT], out.windows[Window.SIDE])
            yield partial(self.tables.windows, out.windows, ends)
        if out.events.shape[1]:
            ends = self._ends(out.events[Event.SLOT], out.events[Event.SIDE])
            yield partial(self.tables.tcp_events, out.events, ends)
        if len(out.ended):
            yield from self._speak(self._opened(self.tls.look(out.ended, buffer), buffer), buffer)
            yield from self._speak(self.detector.settle(out.ended, buffer, facts), buffer)
            yield from self._end(out.ended, buffer, facts)

    def _chunks(self, chunks: Ints, buffer: Buffer) -> Iterator[Work]:
        self.gaps.take(chunks, len(self.tcp.flows.facts))
        self.connections.begin(chunks, buffer.data)
        self.acked.clear()
        chunks = self._sort(np.ascontiguousarray(chunks), buffer)
        self.acked.hold(self.detector.held)
        self.detector.held.clear()
        yield from self._speak(chunks, buffer)

    def _ends(self, slots: Ints, sides: Ints) -> Ends:
        return Ends.of(self.tcp.flows.facts, slots, sides, self.detector.brokers)

    def _sort(self, chunks: Ints, buffer: Buffer) -> Ints:
        """Return the chunks of connections with a known protocol; for TLS, chunks of the decrypted content."""
        facts = self.tcp.flows.facts
        sealed = self.tls.mine(chunks[Chunk.SLOT])
        rest = self.detector.sort(chunks if sealed is None else np.ascontiguousarray(chunks[:, ~sealed]), buffer, facts)
        for slot, skipped in self.detector.decided.items():
            if facts[slot, Facts.PROTOCOL] == registry.TLS:
                begun = bool(facts[slot, Facts.SYN] != 0 and skipped == 0)
                self.connections.record(slot).tls = self.tls.begin(slot, begun, len(facts))
        new = self.tls.mine(rest[Chunk.SLOT])
        if sealed is None and new is None:
            return rest
        records = [chunks[:, sealed]] if sealed is not None else []
        if new is not None:
            records.append(rest[:, new])
            rest = rest[:, ~new]
        opened = self._opened(self.tls.feed(np.concatenate(records, axis=1), buffer), buffer)
        return np.ascontiguousarray(np.concatenate([rest, opened], axis=1))

    def _opened(self, chunks: Ints, buffer: Buffer) -> Ints:
        """Return the chunks of content of TLS, which has a protocol of its own."""
        if not chunks.shape[1]:
            return chunks
        for slot in np.flatnonzero(np.bincount(chunks[Chunk.SLOT])).tolist():
            if slot not in self.detector.opened:
                self.detector.reopen(slot, self.tcp.flows.facts)
                self.connections.record(slot).open()
        self.connections.begin(chunks, buffer.data, inside=True)
        return self.detector.sort(chunks, buffer, self.tcp.flows.facts)

    def _speak(self, chunks: Ints, buffer: Buffer) -> Iterator[Work]:
        """Pass chunks to the protocols."""
        facts = self.tcp.flows.facts
        if self.tls.faults:
            faults, where = self.tls.faults.copy(), np.array([(f.slot, f.side) for f in self.tls.faults])
            self.tls.faults.clear()
            yield partial(self.tables.tls_faults, faults, self._ends(*where.T))
        self._begin(facts)
        spoken = facts[:, Facts.PROTOCOL].copy()[chunks[Chunk.SLOT]]
        for number, stage in sorted(self.stages.items()):
            mine = spoken == number
            if mine.any():
                own = chunks if mine.all() else np.ascontiguousarray(chunks[:, mine])
                for made in stage.feed(own, own.shape[1], buffer, facts):
                    yield self._work(made, facts)

    def _begin(self, facts: Ints) -> None:
        if not self.detector.decided:
            return
        slots, skipped = np.array(list(self.detector.decided.items()), np.int64).T
        self.detector.decided.clear()
        # After skipped bytes, the first chunk may begin anywhere, although the SYN was seen.
        states = np.where((facts[slots, Facts.SYN] != 0) & (skipped == 0), HEAD, SEARCH)
        spoken = facts[slots, Facts.PROTOCOL]
        for number in sorted(self.stages.decoded.keys() & set(spoken.tolist())):
            mine = spoken == number
            self.stages[number].begin(slots[mine], states[mine], len(facts))
        self._skip(slots, skipped)

    def _end(self, ended: Ints, buffer: Buffer, facts: Ints) -> Iterator[Work]:
        spoken = facts[ended, Facts.PROTOCOL]
        for number, stage in sorted(self.stages.items()):
            slots = ended[spoken == number]
            if len(slots):
                for made in stage.end(slots, facts, buffer):
                    yield self._work(made, facts)
                for slot in slots[stage.end_lost(slots)].tolist():
                    self.connections.record(slot).end_lost = True
        for slot, probe in self.detector.forget(ended, facts).items():
            self.connections.record(slot).skipped += probe.skipped
        gaps = self.gaps.unreported(ended, among(spoken, self.stages.with_rows))
        if gaps.shape[1]:
            yield partial(self.tables.tcp_faults, gaps, self._ends(gaps[TcpFault.SLOT], gaps[TcpFault.SIDE]))
        self.acked.end(ended)
        self.gaps.end(ended, ended[among(spoken, list(self.stages))])
        end_ns = self.end_ns if self.over else None
        yield partial(self._connections, self.connections.close(ended, self.tcp.flows), end_ns)
        self.tls.free(ended)
        self.accounting.forget(ended)
        self.tcp.free(ended)

    def _skip(self, slots: Ints, size: Ints) -> None:
        """Count skipped bytes."""
        for i in np.flatnonzero(size).tolist():
            self.connections.record(int(slots[i])).skipped += int(size[i])

    def _work(self, made: Made | Faults, facts: Ints) -> Work:
        """Update the state for these rows now; only making them is left for later."""
        rows = made.rows
        ends = self._ends(rows[Place.SLOT], rows[Place.SIDE])
        if isinstance(made, Faults):
            self.gaps.report(rows[Place.SLOT, rows[Fault.CODE] == GAP])
            skips = rows[:, rows[Fault.CODE] == SKIPPED]
            self._skip(skips[Place.SLOT], skips[Fault.VALUE])
            return partial(self.tables.faults, made, ends)
        self.acked.add(made, self.detector.opened)
        if made.table == "messages":
            self.connections.count_messages(rows[Place.SLOT], made.counts)
        return partial(self.tables.rows, made, ends)

    def reported(self) -> Iterator[Work]:
        """Yield functions that make rows about limits that were reached, and about secrets in captures."""
        for capture, packet, ts_ns, detail in self.tcp.evicted:
            problem = Problem("limit-reached", packet, None, detail)
            yield partial(self.tables.problems, self.captures[capture], [problem], [ts_ns])
        self.tcp.evicted.clear()
        for capture, problem in self.tls.problems:
            yield partial(self.tables.problems, self.captures[capture], [problem])
        self.tls.problems.clear()

    def _connections(self, closed: Closed, end_ns: int | None) -> list[Row]:
        return self.tables.connections(self.connections.rows(closed, self.captures, end_ns))


@cache
def _release() -> str:
    try:
        return version("amqpscope")
    except PackageNotFoundError:
        return "not installed"


def _last(segments: SegmentBatch) -> tuple[int, int, int]:
    """Return capture, packet and time of the last segment."""
    return int(segments.capture[-1]), int(segments.packet[-1]), int(segments.ts_ns[-1])
