"""Packets to TCP segments: what becomes of each packet of a batch.

The kernels of `headers` know what nearly all captures hold: Ethernet with VLAN tags, Linux cooked captures, loopback
and raw IP; IPv4, and IPv6 without extension headers; VXLAN and Geneve, in which clouds mirror whole networks. What is
rarer they only mark: `layers` looks at these packets one by one, and `fragments` puts IP packets together.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from amqpscope.dissector.capture.model import MAX_PROBLEMS, PacketBatch, Problem
from amqpscope.dissector.kernels import kernel as kernels
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.packets.fragments import Fragment, Fragments
from amqpscope.dissector.packets.headers import (
    CAPLEN,
    CUT,
    FIN,
    FLAGS,
    FRAGMENT,
    HEIGHT,
    LENGTH,
    LINK_RAW,
    MALFORMED,
    OFFSET,
    OTHER,
    PART,
    RARE,
    ROW,
    SEQ,
    SYN,
    TCP,
    UNKNOWN_LINK,
    read_packets,
    read_tcp,
)
from amqpscope.dissector.packets.segments import PacketReport, SegmentBatch

_NAMES = (
    "row", "src_hi", "src_lo", "dst_hi", "dst_lo", "sport", "dport", "seq", "ack", "flags", "window", "offset",
    "caplen", "length", "wscale", "mss", "mark",
)  # fmt: skip

_PROBLEMS = {
    CUT: ("packet-truncated", "cut off before the end of its headers"),
    MALFORMED: ("packet-undecodable", "lengths of its headers contradict each other"),
    FRAGMENT: ("ip-fragment", "part of a fragmented IP packet"),
    UNKNOWN_LINK: ("link-type-unknown", "link type {link} is not known"),
}


def _pieces(segment: Ints, payload: int, start: int, runs: list[tuple[int, int]]) -> list[Ints]:
    """A segment that was captured in several runs of bytes, as one segment for each; each has a gap behind it.

    Args:
        segment: a column of the matrix, as of the first run alone.
        payload: its place in its IP packet.
        start: position of the bytes that were captured of this packet.
        runs: place in the packet and number of bytes of each run.
    """
    end, at = payload + int(segment[LENGTH, 0]), start
    found: list[Ints] = []
    for number, (place, octets) in enumerate(runs):
        begin, stop = max(place, payload), min(place + octets, end)
        if number == 0 or begin < stop:
            piece = segment.copy()
            if number:
                # What came before ends where this begins; only the first has the SYN, only the last the FIN.
                found[-1][LENGTH] -= end - begin
                found[-1][FLAGS] &= ~FIN
                opens = int(segment[FLAGS, 0]) & SYN != 0
                piece[SEQ] = (segment[SEQ] + begin - payload + opens) % (1 << 32)
                piece[FLAGS] &= ~SYN
                piece[OFFSET], piece[CAPLEN], piece[LENGTH] = at + begin - place, stop - begin, end - begin
            found.append(piece)
        at += octets
    return found


class PacketDecoder:
    """Finds the TCP segments of packets. One for all captures: fragments may lie in several of a capture point."""

    def __init__(self) -> None:
        self._listed: Counter[str] = Counter()
        self._fragments: dict[int, Fragments] = {}  # by capture point, the one that was in use last behind the others
        self._missing = 0

    def segments(self, batch: PacketBatch, compiled: bool, point: int = 0) -> tuple[SegmentBatch, PacketReport]:
        """The TCP segments of a batch of packets, and what became of the others.

        Packets that are put together, of fragments from this capture point, are appended to the bytes of the batch.
        """
        size = len(batch.offset)
        out = np.empty((HEIGHT, size), np.int64)
        outcome = np.empty(size, np.int64)
        columns = batch.data, batch.offset, batch.caplen, batch.length, batch.link
        out = out[:, : kernels.call(read_packets, compiled, *columns, out, outcome)]
        rare = np.flatnonzero(outcome == RARE)
        wrong: list[Problem] = []
        if len(rare):
            out = self._with_rare(batch, out, outcome, rare, wrong, point)
        row = out[ROW]
        segments = SegmentBatch(
            ts_ns=batch.ts_ns[row],
            packet=batch.packet[row],
            capture=np.full(len(row), batch.capture, np.int64),
            **{name: np.ascontiguousarray(column) for name, column in zip(_NAMES, out, strict=True)},
        )
        return segments, self._report(batch, outcome, segments, wrong)

    def finish(self) -> list[Problem]:
        """There are no more packets: what is wrong with those that were begun."""
        count = self._missing + sum(fragments.finish() for fragments in self._fragments.values())
        return (
            [Problem("ip-fragment", 0, None, f"IP packets that were not complete at the end: {count}")] if count else []
        )

    def _fragments_of(self, point: int) -> Fragments:
        """Those of a capture point; of too many, those of the point out of use for longest are forgotten."""
        found = self._fragments[point] = self._fragments.pop(point) if point in self._fragments else Fragments()
        while len(self._fragments) > 1 and (
            len(self._fragments) > limits.CAPTURES
            or sum(known.cost for known in self._fragments.values()) > limits.FRAGMENT_OCTETS_ALL
        ):
            self._missing += self._fragments.pop(next(iter(self._fragments))).finish()
        return found

    def _with_rare(
        self, batch: PacketBatch, out: Ints, outcome: Ints, rare: Ints, wrong: list[Problem], point: int
    ) -> Ints:
        """Look at the marked packets one by one; their segments are put where they belong."""
        from amqpscope.dissector.packets.layers import locate  # noqa: PLC0415 - dpkt takes longer to load than most captures to read

        buffer = Buffer(batch.data, batch.used)
        more: list[Ints] = []
        for i in rare.tolist():
            start, size = int(batch.offset[i]), int(batch.caplen[i])
            link, length, runs = int(batch.link[i]), int(batch.length[i]), [(0, size)]
            number = int(batch.packet[i])
            found = locate(bytes(buffer.data[start : start + size]), link, length)
            while isinstance(found, Fragment):
                fragments = self._fragments_of(point)
                whole = fragments.add(found, int(batch.ts_ns[i]), number)
                wrong += [Problem(code, number, None, detail) for code, detail in fragments.problems]
                fragments.problems.clear()
                if whole is None:
                    found = PART
                    break
                start, runs = buffer.append(np.frombuffer(whole.octets, np.uint8)), whole.runs
                found = locate(whole.octets[: runs[0][1]], LINK_RAW, whole.size)
            if isinstance(found, int):
                outcome[i] = found
                continue
            segment = np.empty((HEIGHT, 1), np.int64)
            source, tcp = start + found.source, start + found.tcp
            outcome[i] = read_tcp(
                buffer.data.data, source, found.version, tcp, start + runs[0][1], found.size, segment.data, 0, i
            )
            if outcome[i] == TCP:
                payload = found.tcp + found.size - int(segment[LENGTH, 0])
                more += [segment] if len(runs) == 1 else _pieces(segment, payload, start, runs)
        batch.data, batch.used = buffer.data, buffer.top
        merged = np.concatenate([out, *more], axis=1)
        return merged[:, np.argsort(merged[ROW], kind="stable")]

    def _report(self, batch: PacketBatch, outcome: Ints, segments: SegmentBatch, wrong: list[Problem]) -> PacketReport:
        tcp, other, parts = (int(np.count_nonzero(outcome == kind)) for kind in (TCP, OTHER, PART))
        report = PacketReport(len(outcome), tcp, other, parts)
        for problem in wrong:
            report.counts[problem.code] = report.counts.get(problem.code, 0) + 1
            if self._listed[problem.code] < MAX_PROBLEMS:
                report.problems.append(problem)
                self._listed[problem.code] += 1
        for code, rows, detail in self._problems(outcome, segments):
            report.counts[code] = report.counts.get(code, 0) + len(rows)
            for i in rows[: MAX_PROBLEMS - self._listed[code]].tolist():
                told = detail.format(link=batch.link[i], caplen=batch.caplen[i], length=batch.length[i])
                report.problems.append(Problem(code, int(batch.packet[i]), None, told))
                self._listed[code] += 1
        report.problems.sort(key=lambda problem: problem.packet)
        return report

    def _problems(self, outcome: Ints, segments: SegmentBatch) -> Iterator[tuple[str, Ints, str]]:
        """Code, indexes of the packets and text of each kind of problem."""
        if np.count_nonzero(outcome) > 0:
            for status, (code, detail) in _PROBLEMS.items():
                rows = np.flatnonzero(outcome == status)
                if len(rows):
                    yield code, rows, detail
        short = segments.row[segments.caplen < segments.length]
        short = short[np.diff(short, prepend=-1) != 0]  # a packet may have several segments
        if len(short):
            yield "packet-truncated", short, "{caplen} of {length} octets were captured"
