"""Decode packets to TCP segments.

The kernels of `headers` read what nearly all captures hold: Ethernet with VLAN tags, Linux cooked captures, loopback
and raw IP; IPv4, and IPv6 without extension headers; VXLAN and Geneve, in which clouds mirror whole networks. They only
mark packets with rarer layers: `layers` reads these one by one, and `fragments` reassembles IP packets.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from amqpscope.dissector.capture.model import MAX_PROBLEMS, PacketBatch, Problem
from amqpscope.dissector.kernels import kernel as kernels
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.coding import PLAIN
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.packets.fragments import Fragment, Fragments
from amqpscope.dissector.packets.headers import (
    CUT,
    FRAGMENT,
    LINK_RAW,
    MALFORMED,
    OTHER,
    PART,
    RARE,
    TCP,
    UNKNOWN_LINK,
    read_packets,
    read_tcp,
)
from amqpscope.dissector.packets.segments import FIN, SYN, PacketReport, SegmentBatch

_PROBLEMS = {
    CUT: ("packet-truncated", "truncated before the end of its headers"),
    MALFORMED: ("packet-undecodable", "the lengths in its headers contradict each other"),
    FRAGMENT: ("ip-fragment", "a fragment of an IP packet that cannot be reassembled"),
    UNKNOWN_LINK: ("link-type-unknown", "unknown link type {link}"),
}


def _split(segment: SegmentBatch, payload: int, start: int, runs: list[tuple[int, int]]) -> list[SegmentBatch]:
    """Return one segment for each run of captured bytes of a segment; each is followed by a gap.

    Args:
        segment: the segment, read from the first run alone.
        payload: position of its payload in the IP packet.
        start: position of the captured bytes of this packet in the data.
        runs: position in the packet and length of each run.
    """
    end, at = payload + int(segment.length[0]), start
    found: list[SegmentBatch] = []
    for number, (place, size) in enumerate(runs):
        begin, stop = max(place, payload), min(place + size, end)
        if number == 0 or begin < stop:
            part = SegmentBatch.joined([segment])
            if number:
                # The part before ends where this one begins; only the first has the SYN, only the last the FIN.
                found[-1].length[:] -= end - begin
                found[-1].flags[:] &= ~FIN
                opens = int(segment.flags[0]) & SYN != 0
                part.seq[:] = (segment.seq + begin - payload + opens) % (1 << 32)
                part.flags[:] &= ~SYN
                part.offset[:], part.caplen[:], part.length[:] = at + begin - place, stop - begin, end - begin
            found.append(part)
        at += size
    return found


class PacketDecoder:
    """Find the TCP segments of packets. One decoder serves all captures: fragments may lie in several of them."""

    def __init__(self) -> None:
        self._listed: Counter[tuple[int, str]] = Counter()  # by capture and code
        self._fragments: dict[int, Fragments] = {}  # by capture point, least recently used first
        self._missing = 0

    def segments(self, batch: PacketBatch, compiled: bool, point: int = 0) -> tuple[SegmentBatch, PacketReport]:
        """Return the TCP segments of a batch of packets, and a report on the other packets.

        IP packets reassembled from fragments of this capture point are appended to the bytes of the batch.
        """
        size = len(batch.offset)
        segments = SegmentBatch.room(size)
        outcome = np.empty(size, np.int64)
        columns = batch.data, batch.offset, batch.caplen, batch.length, batch.link
        segments = segments.cut(slice(kernels.call(read_packets, compiled, *columns, segments, outcome)))
        rare = np.flatnonzero(outcome == RARE)
        report = PacketReport(size)
        if len(rare):
            segments = self._with_rare(batch, segments, outcome, rare, report, point)
        segments.ts_ns[:], segments.packet[:] = batch.ts_ns[segments.row], batch.packet[segments.row]
        segments.capture[:] = batch.capture
        self._complete(report, batch, outcome, segments)
        return segments, report

    def take_out(self) -> bytes:
        """Take out the fragments of all capture points, and how much was listed."""
        fragments = [(point, known.take_out()) for point, known in self._fragments.items()]
        taken = PLAIN.written([fragments, dict(self._listed), self._missing])
        self._listed.clear()
        self._fragments.clear()
        self._missing = 0
        return taken

    def put_back(self, data: bytes, captures: Ints) -> None:
        """Put back what `take_out` took; `captures` are the indexes of captures, by those that were."""
        fragments, listed, missing = PLAIN.read(data)
        for point, known in fragments:
            self._fragments_of(int(captures[point])).put_back(known)
        self._listed.update({(int(captures[capture]), code): count for (capture, code), count in listed.items()})
        self._missing += missing

    def finish(self) -> int:
        """Return, at the end of the captures, the number of incomplete IP packets."""
        return self._missing + sum(fragments.finish() for fragments in self._fragments.values())

    def _fragments_of(self, point: int) -> Fragments:
        """Return the fragments of a capture point; evict those of the least recently used point to make room."""
        found = self._fragments[point] = self._fragments.pop(point) if point in self._fragments else Fragments()
        while len(self._fragments) > 1 and (
            len(self._fragments) > limits.CAPTURES
            or sum(known.cost for known in self._fragments.values()) > limits.FRAGMENT_BYTES_ALL
        ):
            self._missing += self._fragments.pop(next(iter(self._fragments))).finish()
        return found

    def _with_rare(
        self, batch: PacketBatch, segments: SegmentBatch, outcome: Ints, rare: Ints, report: PacketReport, point: int
    ) -> SegmentBatch:
        """Read the marked packets one by one, and insert their segments in packet order; report on fragments."""
        from amqpscope.dissector.packets.layers import locate  # noqa: PLC0415 - dpkt takes longer to load than most captures to read

        buffer = Buffer(batch.data, batch.used)
        more: list[SegmentBatch] = []
        for i in rare.tolist():
            start, size = int(batch.offset[i]), int(batch.caplen[i])
            link, length, runs = int(batch.link[i]), int(batch.length[i]), [(0, size)]
            number = int(batch.packet[i])
            found = locate(bytes(buffer.data[start : start + size]), link, length)
            report.fragments += isinstance(found, Fragment)
            while isinstance(found, Fragment):
                fragments = self._fragments_of(point)
                whole = fragments.add(found, int(batch.ts_ns[i]), number)
                report.problems += [Problem(code, number, None, detail) for code, detail in fragments.problems]
                fragments.problems.clear()
                if whole is None:
                    found = PART
                    break
                start, runs = buffer.append(np.frombuffer(whole.data, np.uint8)), whole.runs
                found = locate(whole.data[: runs[0][1]], LINK_RAW, whole.size)
            if isinstance(found, int):
                outcome[i] = found
                continue
            segment = SegmentBatch.room(1)
            source, tcp, end = start + found.source, start + found.tcp, start + runs[0][1]
            outcome[i] = kernels.call(
                read_tcp, False, buffer.data, source, found.version, tcp, end, found.size, segment, 0, i
            )
            if outcome[i] == TCP:
                payload = found.tcp + found.size - int(segment.length[0])
                more += [segment] if len(runs) == 1 else _split(segment, payload, start, runs)
        batch.data, batch.used = buffer.data, buffer.top
        merged = SegmentBatch.joined([segments, *more])
        return merged.cut(np.argsort(merged.row, kind="stable"))

    def _complete(self, report: PacketReport, batch: PacketBatch, outcome: Ints, segments: SegmentBatch) -> None:
        """Complete a report on the packets of a batch, of which only fragments were reported."""
        report.tcp, report.other, report.parts = (int(np.count_nonzero(outcome == kind)) for kind in (TCP, OTHER, PART))
        wrong, report.problems = report.problems, []
        for problem in wrong:
            report.counts[problem.code] = report.counts.get(problem.code, 0) + 1
            if self._listed[batch.capture, problem.code] < MAX_PROBLEMS:
                report.problems.append(problem)
                self._listed[batch.capture, problem.code] += 1
        for code, rows, detail in self._problems(outcome, segments):
            report.counts[code] = report.counts.get(code, 0) + len(rows)
            for i in rows[: MAX_PROBLEMS - self._listed[batch.capture, code]].tolist():
                text = detail.format(link=batch.link[i], caplen=batch.caplen[i], length=batch.length[i])
                report.problems.append(Problem(code, int(batch.packet[i]), None, text))
                self._listed[batch.capture, code] += 1
        report.problems.sort(key=lambda problem: problem.packet)

    def _problems(self, outcome: Ints, segments: SegmentBatch) -> Iterator[tuple[str, Ints, str]]:
        """Yield the code, the packets' indexes and the text of each kind of problem."""
        if np.count_nonzero(outcome) > 0:
            for status, (code, detail) in _PROBLEMS.items():
                rows = np.flatnonzero(outcome == status)
                if len(rows):
                    yield code, rows, detail
        short = segments.row[segments.caplen < segments.length]
        if len(short):
            short = short[np.diff(short, prepend=-1) != 0]  # a packet may have several segments
            yield "packet-truncated", short, "{caplen} of {length} bytes were captured"
