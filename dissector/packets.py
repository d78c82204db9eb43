"""Packets to TCP segments: link layer, IP and TCP headers of a batch of packets, read by one kernel.

The kernel knows what nearly all captures hold: Ethernet with VLAN tags, Linux cooked captures, loopback and raw IP;
IPv4, and IPv6 without extension headers. What is rarer it only marks, and `layers` looks at these packets one by one.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from dissector import kernel as kernels
from dissector.capture import MAX_PROBLEMS, PacketBatch, Problem
from dissector.kernel import kernel
from dissector.layers import locate

# What became of a packet. TCP has a row; the others are counted.
TCP, OTHER, RARE, CUT, MALFORMED, FRAGMENT, UNKNOWN_LINK = 0, 1, 2, 3, 4, 5, 6

_CODES = {CUT: "packet-truncated", MALFORMED: "packet-malformed", FRAGMENT: "ip-fragment", UNKNOWN_LINK: "link-type-unknown"}
_DETAILS = {
    CUT: "cut by the snap length before its TCP header is complete",
    MALFORMED: "header lengths contradict each other",
    FRAGMENT: "part of a fragmented IP packet",
    UNKNOWN_LINK: "link type {link} is not known",
}

# Columns that the kernel writes, in this order.
_COLUMNS = (
    "row", "src_hi", "src_lo", "dst_hi", "dst_lo", "sport", "dport", "seq", "ack", "flags", "window", "offset",
    "caplen", "length", "wscale", "mss",
)  # fmt: skip


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
        capture: index of the capture.
    """

    row: np.ndarray
    ts_ns: np.ndarray
    packet: np.ndarray
    src_hi: np.ndarray
    src_lo: np.ndarray
    dst_hi: np.ndarray
    dst_lo: np.ndarray
    sport: np.ndarray
    dport: np.ndarray
    seq: np.ndarray
    ack: np.ndarray
    flags: np.ndarray
    window: np.ndarray
    offset: np.ndarray
    caplen: np.ndarray
    length: np.ndarray
    wscale: np.ndarray
    mss: np.ndarray
    capture: int


@dataclass(slots=True)
class PacketReport:
    """What became of the packets of a batch that are no rows.

    Attributes:
        packets: all packets.
        tcp: those that are segments.
        other: intact, but not TCP.
        counts: by code of the problem, all of them.
        problems: one for each packet with a problem, up to a limit for each code over the decoder's life.
    """

    packets: int = 0
    tcp: int = 0
    other: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


@kernel
def be16(data, p):  # type: ignore[no-untyped-def]
    """Unsigned 16-bit integer at p."""
    return data[p] * 256 + data[p + 1]


@kernel
def be32(data, p):  # type: ignore[no-untyped-def]
    """Unsigned 32-bit integer at p."""
    return ((data[p] * 256 + data[p + 1]) * 256 + data[p + 2]) * 256 + data[p + 3]


@kernel
def be64(data, p):  # type: ignore[no-untyped-def]
    """Signed 64-bit integer at p."""
    high = be32(data, p)
    if high >= 2147483648:
        high -= 4294967296
    return high * 4294967296 + be32(data, p + 4)


@kernel
def read_tcp(data, source, version, p, end, size, out, m, i):  # type: ignore[no-untyped-def]
    """Write row m of `out` for packet i. Returns what became of it.

    Args:
        data: octets.
        source: position of the sender's address; the receiver's follows it.
        version: 4 or 6.
        p: position of the TCP header.
        end: end of the captured octets, link layer trailers included.
        size: octets of header and payload by the IP header.
        out: columns.
        m: row.
        i: index of the packet.
    """
    if size < 20:
        return 4
    if p + 20 > end:
        return 3
    header = (data[p + 12] >> 4) * 4
    if header < 20 or header > size:
        return 4
    flags = data[p + 13] * 1
    payload = min(p + header, end)
    wscale, mss = -1, -1
    if flags & 2:
        q, options = p + 20, payload
        while q < options and data[q] != 0:
            if data[q] == 1:
                q += 1
                continue
            if q + 1 >= options:
                break
            octets = data[q + 1] * 1
            if octets < 2 or q + octets > options:
                break
            if data[q] == 3 and octets == 3:
                wscale = data[q + 2] * 1
            elif data[q] == 2 and octets == 4:
                mss = be16(data, q + 2)
            q += octets
    out[0, m] = i
    if version == 4:
        out[1, m] = 0
        out[2, m] = 281470681743360 + be32(data, source)
        out[3, m] = 0
        out[4, m] = 281470681743360 + be32(data, source + 4)
    else:
        out[1, m] = be64(data, source)
        out[2, m] = be64(data, source + 8)
        out[3, m] = be64(data, source + 16)
        out[4, m] = be64(data, source + 24)
    out[5, m] = be16(data, p)
    out[6, m] = be16(data, p + 2)
    out[7, m] = be32(data, p + 4)
    out[8, m] = be32(data, p + 8)
    out[9, m] = flags
    out[10, m] = be16(data, p + 14)
    out[11, m] = payload
    out[12, m] = min(p + size, end) - payload
    out[13, m] = size - header
    out[14, m] = wscale
    out[15, m] = mss
    return 0


@kernel
def read_ip(data, version, p, end, wire_end, out, m, i):  # type: ignore[no-untyped-def]
    """Read the IP header at p (of either version when `version` is 0) and what it carries; as `read_tcp`.

    `wire_end` is where the packet would end, had it been captured whole.
    """
    if p >= wire_end:
        return 4
    if p >= end:
        return 3
    first = data[p] >> 4
    if version != 0 and first != version:
        return 4
    if first == 4:
        if p + 20 > end:
            return 3 if p + 20 <= wire_end else 4
        header = (data[p] & 15) * 4
        total = be16(data, p + 2)
        if total == 0:  # left to the network card
            total = wire_end - p
        if header < 20 or header > total:
            return 4
        protocol = data[p + 9] * 1
        if be16(data, p + 6) & 16383:
            return 5 if protocol == 6 else 1
        if protocol == 6:
            return read_tcp(data, p + 12, 4, p + header, end, total - header, out, m, i)
        return 2 if protocol == 4 or protocol == 41 or protocol == 47 else 1
    if first == 6:
        if p + 40 > end:
            return 3 if p + 40 <= wire_end else 4
        total = be16(data, p + 4)
        protocol = data[p + 6] * 1
        if protocol == 6:
            if total == 0:
                total = wire_end - p - 40
            return read_tcp(data, p + 8, 6, p + 40, end, total, out, m, i)
        # Extension headers and tunnels.
        if protocol == 0 or protocol == 43 or protocol == 44 or protocol == 51 or protocol == 60:
            return 2
        return 2 if protocol == 4 or protocol == 41 or protocol == 47 else 1
    return 4


@kernel
def read_packets(data, offset, caplen, length, link, out, rest):  # type: ignore[no-untyped-def]
    """Read all packets.

    Args:
        data: octets.
        offset: position of each packet.
        caplen: octets captured of each.
        length: octets of each on the wire.
        link: link type of each.
        out: columns; row m for the m-th segment.
        rest: for every packet what became of it.

    Returns:
        The number of segments.
    """
    m = 0
    for i in range(offset.shape[0]):
        p, kind = offset[i], link[i]
        end = p + caplen[i]
        wire_end = p + max(length[i], caplen[i])
        ethertype, version, status = 0, 0, 0
        if kind == 1:
            p += 14
            if p > end:
                status = 3
            else:
                ethertype = be16(data, p - 2)
        elif kind == 113:
            p += 16
            if p > end:
                status = 3
            else:
                ethertype = be16(data, p - 2)
        elif kind == 276:
            p += 20
            if p > end:
                status = 3
            else:
                ethertype = be16(data, p - 20)
        elif kind == 0 or kind == 108:
            p += 4
            if p > end:
                status = 3
            else:
                family = be32(data, p - 4)
                if family > 65535 and family % 65536 == 0 and kind == 0:  # in the order of the host that captured
                    family = data[p - 4] + data[p - 3] * 256
                if family == 2:
                    version = 4
                elif family == 10 or family == 23 or family == 24 or family == 28 or family == 30:
                    version = 6
                else:
                    status = 1
        elif kind == 228:
            version = 4
        elif kind == 229:
            version = 6
        elif kind != 101 and kind != 12 and kind != 14:
            status = 2
        if ethertype != 0:
            while status == 0 and (ethertype == 33024 or ethertype == 34984 or ethertype == 37120):
                p += 4
                if p > end:
                    status = 3
                else:
                    ethertype = be16(data, p - 2)
            if status != 0:
                pass
            elif ethertype == 2048:
                version = 4
            elif ethertype == 34525:
                version = 6
            elif ethertype < 1536 or ethertype == 34887 or ethertype == 34888 or ethertype == 34916:
                status = 2  # LLC, MPLS, PPPoE
            else:
                status = 1
        if status == 0:
            status = read_ip(data, version, p, end, wire_end, out, m, i)
        if status == 0:
            m += 1
        rest[i] = status
    return m


class PacketDecoder:
    """Finds the TCP segments of packets. One for all batches of a capture."""

    def __init__(self) -> None:
        self._listed: Counter[str] = Counter()

    def segments(self, batch: PacketBatch, compiled: bool) -> tuple[SegmentBatch, PacketReport]:
        """The TCP segments of a batch of packets, and what became of the others."""
        size = len(batch.offset)
        out = np.empty((len(_COLUMNS), size), np.int64)
        rest = np.empty(size, np.int64)
        arguments = batch.data, batch.offset, batch.caplen, batch.length, batch.link, out, rest
        rows = kernels.call(read_packets, compiled, *arguments)
        out = out[:, :rows]
        if rows < size and (rare := np.flatnonzero(rest == RARE)).size:
            out = self._with_rare(batch, out, rest, rare)
        return self._batch(batch, out), self._report(batch, rest)

    def _with_rare(self, batch: PacketBatch, out: np.ndarray, rest: np.ndarray, rare: np.ndarray) -> np.ndarray:
        """Look at the marked packets one by one; their rows are put where they belong."""
        more = np.empty((len(_COLUMNS), len(rare)), np.int64)
        rows, octets, columns = 0, memoryview(batch.data), memoryview(more)
        for i in rare.tolist():
            start, caplen, link = int(batch.offset[i]), int(batch.caplen[i]), int(batch.link[i])
            found = locate(bytes(octets[start : start + caplen]), link)
            status = found if isinstance(found, int) else TCP
            if not isinstance(found, int):
                source, version, tcp, size = found
                status = read_tcp(octets, start + source, version, start + tcp, start + caplen, size, columns, rows, i)
                rows += status == TCP
            rest[i] = status
        merged = np.concatenate([out, more[:, :rows]], axis=1)
        return np.ascontiguousarray(merged[:, np.argsort(merged[0], kind="stable")])

    def _batch(self, batch: PacketBatch, out: np.ndarray) -> SegmentBatch:
        columns = {name: np.ascontiguousarray(column) for name, column in zip(_COLUMNS, out, strict=True)}
        row = columns["row"]
        return SegmentBatch(ts_ns=batch.ts_ns[row], packet=batch.packet[row], capture=batch.capture, **columns)

    def _report(self, batch: PacketBatch, rest: np.ndarray) -> PacketReport:
        totals = np.bincount(rest, minlength=UNKNOWN_LINK + 1).tolist()
        report = PacketReport(len(rest), totals[TCP], totals[OTHER])
        for status, code in _CODES.items():
            if totals[status]:
                report.counts[code] = totals[status]
                room = MAX_PROBLEMS - self._listed[code]
                for i in np.flatnonzero(rest == status)[:room].tolist():
                    detail = _DETAILS[status].format(link=int(batch.link[i]))
                    report.problems.append(Problem(code, int(batch.packet[i]), None, detail))
                    self._listed[code] += 1
        return report
