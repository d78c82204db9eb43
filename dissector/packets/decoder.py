"""Packets to TCP segments: link layer, IP and TCP headers of a batch of packets, read by kernels.

The kernels know what nearly all captures hold: Ethernet with VLAN tags, Linux cooked captures, loopback and raw IP;
IPv4, and IPv6 without extension headers; VXLAN and Geneve, in which clouds mirror whole networks. What is rarer they
only mark: `layers` looks at these packets one by one, and `fragments` puts IP packets together.
Sources: RFC 791, RFC 7348, RFC 8200, RFC 8926, RFC 9293; https://www.tcpdump.org/linktypes.html.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import numpy as np

from amqpscope.dissector.capture.file import MAX_PROBLEMS, PacketBatch, Problem
from amqpscope.dissector.kernels import kernel as kernels
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.packets.fragments import Fragment, Fragments

# What becomes of a packet: a segment; intact, but not TCP; to be looked at by `layers`; cut before its headers were
# complete; headers that contradict each other; a part of an IP packet that cannot be put in its place; a link layer
# that nobody knows; one fragment of several; another packet in a tunnel (this one does not stay).
TCP, OTHER, RARE, CUT, MALFORMED, FRAGMENT, UNKNOWN_LINK, PART, TUNNEL = range(9)

# In kernels, a number shifted right is unsigned once compiled, hence // and %.

# Link types of savefiles.
LINK_NULL, LINK_ETHERNET, LINK_LOOP, LINK_SLL, LINK_IPV4, LINK_IPV6, LINK_SLL2 = 0, 1, 108, 113, 228, 229, 276
LINK_RAW, LINK_RAW_BSD, LINK_RAW_OPENBSD = 101, 12, 14

# Ethernet types; below 1536 it is the length of an LLC packet.
ETHER_IPV4, ETHER_IPV6, ETHER_LOWEST = 0x0800, 0x86DD, 1536
ETHER_VLAN, ETHER_VLAN_OUTER, ETHER_VLAN_OLD = 0x8100, 0x88A8, 0x9100
ETHER_MPLS, ETHER_MPLS_MULTICAST, ETHER_PPPOE, ETHER_BRIDGING = 0x8847, 0x8848, 0x8864, 0x6558

# IP protocols: TCP; tunnels; extension headers of IPv6.
IP_TCP, IP_IPV4, IP_IPV6, IP_GRE, IP_UDP = 6, 4, 41, 47, 17
IP_HOP_BY_HOP, IP_ROUTING, IP_FRAGMENT, IP_AUTHENTICATION, IP_DESTINATION = 0, 43, 44, 51, 60

# Ports of UDP: VXLAN (RFC 7348, and what Linux had before that), Geneve (RFC 8926).
PORT_VXLAN, PORT_VXLAN_OLD, PORT_GENEVE = PORTS = 4789, 8472, 6081

FIN, SYN = 1, 2

IPV4_MAPPED = 0xFFFF << 32
"""Lower half of ::ffff:0.0.0.0."""

# Rows of the matrix that the kernel fills, one column a segment; named as in SegmentBatch.
(
    ROW, SRC_HI, SRC_LO, DST_HI, DST_LO, SPORT, DPORT, SEQ, ACK, FLAGS, WINDOW, OFFSET, CAPLEN, LENGTH, WSCALE, MSS,
    MARK, HEIGHT,
) = range(18)  # fmt: skip
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


@dataclass(slots=True)
class SegmentBatch:
    """TCP segments of a batch of packets, in packet order; all columns int64.

    Attributes:
        row: index of the packet in its `PacketBatch`.
        ts_ns: nanoseconds since the epoch.
        packet: number in the file, from 1.
        src_hi: upper half of the sender's 128-bit address (IPv4 as ::ffff:a.b.c.d), as a signed number.
        src_lo: lower half.
        dst_hi: upper half of the receiver's address.
        dst_lo: lower half.
        sport: sender's port.
        dport: receiver's port.
        seq: sequence number, 0 to 2**32 - 1.
        ack: acknowledgement number.
        flags: CWR ECE URG ACK PSH RST SYN FIN, from the highest bit.
        window: as sent, not scaled.
        offset: position of the payload in the batch's data.
        caplen: octets of the payload that were captured.
        length: octets of the payload by the IP header; more than `caplen` where the snap length cut it.
        wscale: window scale option of a SYN, -1 without.
        mss: maximum segment size option of a SYN, -1 without.
        mark: what tells a packet sent again from a copy by the capture: the identification of IPv4; where that is zero,
            and in IPv6, 65536 and the checksum.
        capture: index of the capture.
    """

    row: Ints
    ts_ns: Ints
    packet: Ints
    src_hi: Ints
    src_lo: Ints
    dst_hi: Ints
    dst_lo: Ints
    sport: Ints
    dport: Ints
    seq: Ints
    ack: Ints
    flags: Ints
    window: Ints
    offset: Ints
    caplen: Ints
    length: Ints
    wscale: Ints
    mss: Ints
    mark: Ints
    capture: Ints

    def cut(self, rows: slice) -> "SegmentBatch":
        """Some of these."""
        return SegmentBatch(*(getattr(self, column.name)[rows] for column in fields(self)))


@dataclass(slots=True)
class PacketReport:
    """What became of the packets of a batch that are no rows.

    Attributes:
        packets: all packets.
        tcp: those that are segments.
        other: intact, but not TCP.
        parts: fragments of IP packets, but for those that completed one.
        counts: by code of the problem, all of them.
        problems: one for each packet with a problem, up to a limit for each code over the decoder's life.
    """

    packets: int = 0
    tcp: int = 0
    other: int = 0
    parts: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


@kernel
def be16(data: Array, p: int) -> int:
    """Unsigned 16-bit integer at p."""
    value: int = data[p] * 256 + data[p + 1]
    return value


@kernel
def be32(data: Array, p: int) -> int:
    """Unsigned 32-bit integer at p."""
    value: int = ((data[p] * 256 + data[p + 1]) * 256 + data[p + 2]) * 256 + data[p + 3]
    return value


@kernel
def be64(data: Array, p: int) -> int:
    """Signed 64-bit integer at p."""
    high = be32(data, p)
    if high >= 0x80000000:
        high -= 0x100000000
    return high * 0x100000000 + be32(data, p + 4)


@kernel
def read_tcp(data: Array, source: int, version: int, p: int, end: int, size: int, out: Array, m: int, i: int) -> int:
    """Read a TCP header into column m of `out`; tell what becomes of the packet.

    Args:
        data: octets.
        source: position of the sender's address; the receiver's follows it.
        version: of IP.
        p: position of the TCP header.
        end: end of the captured octets, trailers included.
        size: octets of header and payload by the IP header.
        out: the segments.
        m: number of the segment.
        i: index of the packet.
    """
    if size < 20:
        return MALFORMED
    if p + 20 > end:
        return CUT
    header = data[p + 12] // 16 * 4
    if header < 20 or header > size:
        return MALFORMED
    flags = data[p + 13] * 1  # from an octet to an integer, compiled
    payload = min(p + header, end)
    wscale, mss = -1, -1
    if flags & SYN:
        q = p + 20
        while q + 1 < payload and data[q] != 0:
            if data[q] == 1:
                q += 1
                continue
            octets = data[q + 1] * 1
            if octets < 2 or q + octets > payload:
                break
            if data[q] == 3 and octets == 3:
                wscale = data[q + 2] * 1
            elif data[q] == 2 and octets == 4:
                mss = be16(data, q + 2)
            q += octets
    out[ROW, m] = i
    if version == 4:
        out[SRC_HI, m] = 0
        out[SRC_LO, m] = IPV4_MAPPED + be32(data, source)
        out[DST_HI, m] = 0
        out[DST_LO, m] = IPV4_MAPPED + be32(data, source + 4)
    else:
        out[SRC_HI, m] = be64(data, source)
        out[SRC_LO, m] = be64(data, source + 8)
        out[DST_HI, m] = be64(data, source + 16)
        out[DST_LO, m] = be64(data, source + 24)
    out[SPORT, m] = be16(data, p)
    out[DPORT, m] = be16(data, p + 2)
    out[SEQ, m] = be32(data, p + 4)
    out[ACK, m] = be32(data, p + 8)
    out[FLAGS, m] = flags
    out[WINDOW, m] = be16(data, p + 14)
    out[OFFSET, m] = payload
    out[CAPLEN, m] = max(0, min(p + size, end) - payload)
    out[LENGTH, m] = size - header
    out[WSCALE, m] = wscale
    out[MSS, m] = mss
    mark = be16(data, source - 8) if version == 4 else 0  # RFC 6864: zero says nothing
    out[MARK, m] = mark if mark > 0 else 0x10000 + be16(data, p + 16)
    return TCP


@kernel
def missing(p: int, wire_end: int) -> int:
    """What becomes of a packet whose octets before p were not all captured, when it has so many on the wire."""
    return CUT if p <= wire_end else MALFORMED


@kernel
def read_link(data: Array, p: int, end: int, wire_end: int, link: int) -> tuple[int, int, int]:
    """Read a link layer header and VLAN tags.

    Args:
        data: octets.
        p: position of the packet.
        end: end of its captured octets.
        wire_end: where it would end, had it been captured whole.
        link: link type.

    Returns:
        TCP to go on, else what becomes of the packet; version of IP, 0 for either; position of the IP header.
    """
    if link in (LINK_RAW, LINK_RAW_BSD, LINK_RAW_OPENBSD):
        return TCP, 0, p
    if link in (LINK_IPV4, LINK_IPV6):
        return TCP, 4 if link == LINK_IPV4 else 6, p
    if link in (LINK_NULL, LINK_LOOP):
        if p + 4 > end:
            return missing(p + 4, wire_end), 0, 0
        family = be32(data, p)
        if link == LINK_NULL and family & 0xFFFF == 0:  # in the byte order of the machine that captured
            family = data[p] + data[p + 1] * 256
        if family == 2:
            return TCP, 4, p + 4
        return TCP if family in (10, 23, 24, 28, 30) else OTHER, 6, p + 4  # systems differ

    at, header = 12, 14
    if link == LINK_SLL:
        at, header = 14, 16
    elif link == LINK_SLL2:
        at, header = 0, 20
    elif link != LINK_ETHERNET:
        return RARE, 0, 0
    if p + header > end:
        return missing(p + header, wire_end), 0, 0
    kind = be16(data, p + at)
    p += header
    while kind in (ETHER_VLAN, ETHER_VLAN_OUTER, ETHER_VLAN_OLD):
        if p + 4 > end:
            return missing(p + 4, wire_end), 0, 0
        kind = be16(data, p + 2)
        p += 4
    if kind in (ETHER_IPV4, ETHER_IPV6):
        return TCP, 4 if kind == ETHER_IPV4 else 6, p
    if kind < ETHER_LOWEST or kind in (ETHER_MPLS, ETHER_MPLS_MULTICAST, ETHER_PPPOE, ETHER_BRIDGING):
        return RARE, 0, 0
    return OTHER, 0, 0


@kernel
def tunnel_header(data: Array, p: int, end: int, port: int) -> int:
    """Octets of the header in front of an Ethernet frame in a UDP payload at p; 0 where there is none, -1 if cut."""
    if port not in (PORT_VXLAN, PORT_VXLAN_OLD, PORT_GENEVE):
        return 0
    if p + 8 > end:
        return -1
    if port == PORT_GENEVE:
        return 8 + data[p] % 64 * 4 if data[p] < 64 and be16(data, p + 2) == ETHER_BRIDGING else 0
    return 8 if data[p] & 8 else 0


@kernel
def read_ip(data: Array, version: int, p: int, end: int, wire_end: int) -> tuple[int, int, int, int, int]:
    """Read an IP header at p; further arguments as in read_link.

    Returns:
        TCP to go on, else what becomes of the packet; version; position of the sender's address, position of the TCP
        header; octets of TCP header and payload. TUNNEL: position and octets are those of an Ethernet frame.
    """
    if p >= end:
        return missing(p + 1, wire_end), 0, 0, 0, 0
    if version == 0:
        version = data[p] // 16
    if version != data[p] // 16 or version not in (4, 6):
        return MALFORMED, 0, 0, 0, 0
    least = 20 if version == 4 else 40
    if p + least > end:
        return missing(p + least, wire_end), 0, 0, 0, 0
    if version == 4:
        protocol, source = data[p + 9] * 1, p + 12
        header, size = data[p] % 16 * 4, be16(data, p + 2)
        fragment = be16(data, p + 6) & 0x3FFF != 0  # more of them, or not the first
        if size == 0:  # left to the network card to fill in
            size = wire_end - p
        if header < least or header > size:
            return MALFORMED, 0, 0, 0, 0
        size -= header
    else:
        protocol, source = data[p + 6] * 1, p + 8
        header, size, fragment = least, be16(data, p + 4), False
        if size == 0:  # larger than 64 KiB
            size = wire_end - p - least
    if fragment:
        return RARE if protocol in (IP_TCP, IP_UDP, IP_IPV4, IP_IPV6, IP_GRE) else OTHER, 0, 0, 0, 0
    p += header
    if protocol == IP_TCP:
        return TCP, version, source, p, size
    if protocol == IP_UDP:
        if p + 8 > end:
            return missing(p + 8, wire_end), 0, 0, 0, 0
        header = tunnel_header(data, p + 8, end, be16(data, p + 2))
        if header < 0:
            return missing(p + 16, wire_end), 0, 0, 0, 0
        if header > 0:
            return TUNNEL if size >= 8 + header else MALFORMED, version, source, p + 8 + header, size - 8 - header
    if version == 6 and protocol in (IP_HOP_BY_HOP, IP_ROUTING, IP_FRAGMENT, IP_AUTHENTICATION, IP_DESTINATION):
        return RARE, 0, 0, 0, 0
    if protocol in (IP_IPV4, IP_IPV6, IP_GRE):
        return RARE, 0, 0, 0, 0
    return OTHER, 0, 0, 0, 0


@kernel
def read_packets(
    data: Array, offset: Array, caplen: Array, length: Array, link: Array, out: Array, outcome: Array
) -> int:
    """Read the headers of all packets (columns as in PacketBatch) into the columns of `out`.

    Returns:
        The number of segments. `outcome` tells for every packet what becomes of it.
    """
    m = 0
    for i in range(len(offset)):
        p, end, kind = offset[i], offset[i] + caplen[i], link[i]
        wire_end = p + max(length[i], caplen[i])
        status = TUNNEL
        while status == TUNNEL:  # which begins behind the one around it
            status, version, p = read_link(data, p, end, wire_end, kind)
            if status == TCP:
                status, version, source, p, size = read_ip(data, version, p, end, wire_end)
                if status == TCP:
                    status = read_tcp(data, source, version, p, end, size, out, m, i)
                    if status == TCP:
                        m += 1
                elif status == TUNNEL:
                    wire_end, kind = p + size, LINK_ETHERNET
                    end = min(end, wire_end)
        outcome[i] = status
    return m


def _pieces(segment: Ints, payload: int, start: int, runs: list[tuple[int, int]]) -> list[Ints]:
    """A segment that was captured in several runs of octets, as one segment for each; each has a hole behind it.

    Args:
        segment: a column of the matrix, as of the first run alone.
        payload: its place in its IP packet.
        start: position of the octets that were captured of this packet.
        runs: place in the packet and number of octets of each run.
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

        Packets that are put together, of fragments from this capture point, are appended to the octets of the batch.
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
