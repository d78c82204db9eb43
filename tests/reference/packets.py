"""From the bytes of a capture to two streams of bytes per TCP connection, in the plainest way.

dpkt decodes the layers below TCP; the containers are read here, because dpkt's readers round times to floats.
Everything is held in memory, one list entry per byte: this is for small captures only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dpkt

PCAP_MAGICS = {0xA1B2C3D4: 1_000, 0xA1B23C4D: 1}  # nanoseconds per unit of the fraction of a second
LINK_LAYERS = {
    0: dpkt.loopback.Loopback, 1: dpkt.ethernet.Ethernet, 108: dpkt.loopback.Loopback, 113: dpkt.sll.SLL,
    276: dpkt.sll2.SLL2,
}  # fmt: skip
RAW_IP = {12, 14, 101, 228, 229}
LARGEST_STREAM = 1 << 27  # bytes; a sequence number farther off than that is nonsense, or too much for us
WELL_KNOWN_PORTS = (5672, 5671)


@dataclass
class Packet:
    """One record of a capture: `number` counts from 1 in the file `capture`, `ts_ns` since the epoch."""

    number: int
    ts_ns: int
    link_type: int
    data: bytes
    capture: str = ""


def read_packets(path: Path | str) -> list[Packet]:
    """All packets of a pcap or pcapng file, or of a folder of files of one rotated capture, by their first packets.

    A record cut off at the end of a file is left out.

    Raises:
        ValueError: if a file is neither.
    """
    path = Path(path)
    if path.is_dir():
        parts = [part for part in map(read_packets, path.iterdir()) if part]
        return [packet for part in sorted(parts, key=lambda part: part[0].ts_ns) for packet in part]
    packets = _read_file(path)
    for packet in packets:
        packet.capture = path.name
    return packets


def _read_file(path: Path) -> list[Packet]:
    data = path.read_bytes()
    for order in "<>":
        magic = struct.unpack_from(order + "I", data.ljust(4, b"\0"))[0]
        if magic in PCAP_MAGICS:
            return list(_read_pcap(data, order, PCAP_MAGICS[magic]))
    if data[:4] == b"\x0a\x0d\x0d\x0a":
        return list(_read_pcapng(data))
    raise ValueError(f"{path}: not a capture")


def _read_pcap(data: bytes, order: str, fraction_ns: int) -> Iterator[Packet]:
    link_type = struct.unpack_from(order + "I", data, 20)[0] & 0xFFFF
    at = 24
    number = 1
    while at + 16 <= len(data):
        seconds, fraction, captured, _original = struct.unpack_from(order + "IIII", data, at)
        if at + 16 + captured > len(data):
            return
        yield Packet(number, seconds * 10**9 + fraction * fraction_ns, link_type, data[at + 16 : at + 16 + captured])
        at += 16 + captured
        number += 1


def _read_pcapng(data: bytes) -> Iterator[Packet]:
    order = "<"
    interfaces: list[tuple[int, int, int]] = []  # link type, units per second, offset in seconds
    at = 0
    number = 1
    while at + 12 <= len(data):
        if data[at : at + 4] == b"\x0a\x0d\x0d\x0a":
            order = "<" if data[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            interfaces = []
        kind, length = struct.unpack_from(order + "II", data, at)
        if length < 12 or at + length > len(data):
            return
        block = data[at + 8 : at + length - 4]
        if kind == 1:  # interface description
            interfaces.append(_read_interface(block, order))
        elif kind == 6:  # enhanced packet
            interface, high, low, captured, _original = struct.unpack_from(order + "IIIII", block)
            link_type, units, offset_s = interfaces[interface]
            ts_ns = offset_s * 10**9 + ((high << 32) | low) * 10**9 // units
            yield Packet(number, ts_ns, link_type, block[20 : 20 + captured])
            number += 1
        elif kind == 3:  # simple packet: without a time
            yield Packet(number, 0, interfaces[0][0], block[4:])
            number += 1
        at += length


def _read_interface(block: bytes, order: str) -> tuple[int, int, int]:
    units, offset_s = 10**6, 0
    at = 8
    while at + 4 <= len(block):
        code, length = struct.unpack_from(order + "HH", block, at)
        option = block[at + 4 : at + 4 + length]
        if code == 0:
            break
        if code == 9:  # resolution: a power of ten, or of two
            units = 2 ** (option[0] & 0x7F) if option[0] & 0x80 else 10 ** option[0]
        if code == 14:
            offset_s = struct.unpack(order + "q", option)[0]
        at += 4 + (length + 3) // 4 * 4
    return struct.unpack_from(order + "H", block)[0], units, offset_s


@dataclass
class Stream:
    """The bytes one side sent.

    `arrived[i]` is the place (from 1, in the whole capture) of the packet that brought byte i first, 0 when none did.
    """

    base: int | None = None  # sequence number of position 0
    latest: int = 0  # position of the segment seen last: what sequence numbers are unwrapped with
    segments: list[tuple[int, bytes, int]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    arrived: list[int] = field(default_factory=list)

    def position(self, sequence: int) -> int:
        """The sequence number without wrapping, counted from the base."""
        assert self.base is not None
        distance = (sequence - self.base - self.latest) % 2**32
        return self.latest + (distance - 2**32 if distance >= 2**31 else distance)

    def add(self, sequence: int, payload: bytes, place: int, synced: bool) -> None:
        """Keep a segment; `synced` says that the base comes from a SYN, and nothing can be before it."""
        if self.base is None:
            self.base = sequence
        at = self.position(sequence)
        self.latest = max(self.latest, at)
        if synced and at < 0:  # a keep-alive before the first byte
            payload, at = payload[-at:], 0
        self.segments.append((at, payload, place))

    def join(self) -> None:
        """Put the segments in their places; the first copy of a byte wins."""
        lowest = min((at for at, _, _ in self.segments), default=0)
        length = max((at + len(payload) for at, payload, _ in self.segments), default=0) - lowest
        if length > LARGEST_STREAM:
            raise ValueError(f"a stream of {length} bytes is too much for the reference")
        self.data = bytearray(length)
        self.arrived = [0] * length
        for at, payload, place in self.segments:
            for i, byte in enumerate(payload, at - lowest):
                if not self.arrived[i]:
                    self.arrived[i] = place
                    self.data[i] = byte


@dataclass
class Connection:
    """A TCP connection: `nth` counts those of the same pair of addresses and ports from 0."""

    client: str
    server: str
    nth: int
    synced: bool
    initial_sequence: int | None = None
    streams: dict[bool, Stream] = field(default_factory=lambda: {True: Stream(), False: Stream()})  # by from_client
    packets: dict[int, Packet] = field(default_factory=dict)  # by place
    syn_ts_ns: int | None = None
    rtt_ns: int | None = None  # from the SYN to the client's next ACK
    fin_ts_ns: int | None = None  # first FIN or RST
    ended: set[bool] = field(default_factory=set)  # sides that send no more: after a FIN of theirs, or any RST
    first_ts_ns: int = 0
    last_ts_ns: int = 0

    def turn_round(self) -> None:
        """The server was taken for the client."""
        self.client, self.server = self.server, self.client
        self.streams = {True: self.streams[False], False: self.streams[True]}
        self.ended = {not side for side in self.ended}


def ip_of(packet: Packet) -> Any | None:
    """dpkt's IP packet with a TCP segment, or None."""
    try:
        if packet.link_type in RAW_IP:
            ip = (dpkt.ip6.IP6 if packet.data[0] >> 4 == 6 else dpkt.ip.IP)(packet.data)
        else:
            ip = LINK_LAYERS[packet.link_type](packet.data).data
        return ip if isinstance(ip.data, dpkt.tcp.TCP) else None
    except (dpkt.UnpackError, IndexError, AttributeError):
        return None


def ends_of(ip: Any) -> tuple[str, str]:
    """Source and destination of an IP packet with a TCP segment."""
    source, destination = (dpkt.utils.inet_to_str(address) for address in (ip.src, ip.dst))
    return f"{source}:{ip.data.sport}", f"{destination}:{ip.data.dport}"


def _tcp_of(packet: Packet) -> tuple[str, str, Any] | None:
    """Source, destination and dpkt's TCP segment of a packet, or None."""
    ip = ip_of(packet)
    return None if ip is None else (*ends_of(ip), ip.data)


def _is_client(source: str, destination: str, port_hint: int | None) -> bool:
    """A guess for a connection whose beginning was not seen."""
    ours, theirs = (int(end.rpartition(":")[2]) for end in (source, destination))
    for port in (port_hint, *WELL_KNOWN_PORTS):
        if (ours == port) != (theirs == port):
            return theirs == port
    return theirs < ours


def read_connections(path: Path | str, port_hint: int | None = None) -> list[Connection]:
    """The TCP connections of a capture, in the order of their first packets, with their streams put together."""
    connections: list[Connection] = []
    current: dict[frozenset[str], Connection] = {}
    counts: dict[frozenset[str], int] = {}
    for place, packet in enumerate(read_packets(path), 1):
        found = _tcp_of(packet)
        if found is None:
            continue
        source, destination, tcp = found
        syn, ack = bool(tcp.flags & dpkt.tcp.TH_SYN), bool(tcp.flags & dpkt.tcp.TH_ACK)
        pair = frozenset((source, destination))
        connection = current.get(pair)
        begins = syn and not ack and (connection is None or connection.initial_sequence != tcp.seq)
        if connection is None or begins:
            client_first = (not ack) if syn else _is_client(source, destination, port_hint)
            client, server = (source, destination) if client_first else (destination, source)
            connection = Connection(client, server, counts.get(pair, 0), synced=syn)
            counts[pair] = connection.nth + 1
            current[pair] = connection
            connections.append(connection)
            connection.first_ts_ns = packet.ts_ns
            if begins:
                connection.initial_sequence = tcp.seq
                connection.syn_ts_ns = packet.ts_ns
        from_client = source == connection.client
        stream = connection.streams[from_client]
        connection.packets[place] = packet
        connection.last_ts_ns = packet.ts_ns
        if from_client and ack and not syn and connection.rtt_ns is None and connection.syn_ts_ns is not None:
            connection.rtt_ns = packet.ts_ns - connection.syn_ts_ns
        if tcp.flags & (dpkt.tcp.TH_FIN | dpkt.tcp.TH_RST) and connection.fin_ts_ns is None:
            connection.fin_ts_ns = packet.ts_ns
        if tcp.flags & (dpkt.tcp.TH_FIN | dpkt.tcp.TH_RST):
            connection.ended |= {True, False} if tcp.flags & dpkt.tcp.TH_RST else {from_client}
        if syn:
            stream.base = (tcp.seq + 1) % 2**32
        if tcp.data and not tcp.flags & dpkt.tcp.TH_RST:  # what a reset carries is an explanation, not data
            sequence = (tcp.seq + syn) % 2**32
            stream.add(sequence, bytes(tcp.data), place, connection.synced)
    for connection in connections:
        for stream in connection.streams.values():
            stream.join()
    return connections
