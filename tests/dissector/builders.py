"""Packets and capture files, byte by byte, as their specifications have them. Independent of the code under test."""

import struct
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address

MAC = bytes.fromhex("020000000001020000000002")


@dataclass(frozen=True)
class Packet:
    """A packet of a capture: time, captured bytes, bytes on the wire (as many if not given), interface."""

    ts_ns: int
    data: bytes
    length: int = -1
    interface: int = 0

    @property
    def wire(self) -> int:
        return len(self.data) if self.length < 0 else self.length


# Packets


@lru_cache
def address(text: str) -> bytes:
    """The bytes of an address."""
    return ip_address(text).packed


def tcp(
    payload: bytes = b"", sport: int = 40000, dport: int = 5672, seq: int = 1, ack: int = 0, flags: int = 0x18,
    window: int = 65535, options: bytes = b"",
) -> bytes:  # fmt: skip
    options += bytes(-len(options) % 4)
    words = 5 + len(options) // 4
    return struct.pack(">HHIIBBHHH", sport, dport, seq, ack, words << 4, flags, window, 0, 0) + options + payload


def ipv4(
    payload: bytes, src: str = "10.0.0.1", dst: str = "10.0.0.2", protocol: int = 6, options: bytes = b"",
    fragment: int = 0, total: int | None = None, ident: int = 1,
) -> bytes:  # fmt: skip
    options += bytes(-len(options) % 4)
    words = 5 + len(options) // 4
    total = words * 4 + len(payload) if total is None else total
    addresses = address(src) + address(dst)
    head = struct.pack(">BBHHHBBH", 0x40 | words, 0, total & 0xFFFF, ident, fragment, 64, protocol, 0)
    return head + addresses + options + payload


def ipv6(
    payload: bytes, src: str = "fd00::1", dst: str = "fe80::ffff:2", protocol: int = 6, size: int | None = None
) -> bytes:
    size = len(payload) if size is None else size
    head = struct.pack(">IHBB", 0x60000000, size & 0xFFFF, protocol, 64)
    return head + address(src) + address(dst) + payload


def fragments(ip: bytes, places: list[int], ident: int = 1) -> list[bytes]:
    """The fragments of an IPv4 packet without options, or of an IPv6 one, cut at these multiples of eight bytes."""
    four = ip[0] >> 4 == 4
    head, payload, protocol = (ip[:20], ip[20:], ip[9]) if four else (ip[:40], ip[40:], ip[6])
    ends = [8 * place for place in sorted(set(places)) if 0 < 8 * place < len(payload)] + [len(payload)]
    made = []
    for begin, end in zip([0, *ends], ends, strict=False):
        more = end < len(payload)
        if four:
            fields = struct.pack(
                ">BBHHHBBH", 0x45, 0, 20 + end - begin, ident, more << 13 | begin // 8, 64, protocol, 0
            )
            made.append(fields + head[12:] + payload[begin:end])
        else:
            header = struct.pack(">BBHI", protocol, 0, begin | more, ident)
            fields = struct.pack(">IHBB", 0x60000000, 8 + end - begin, 44, 64)
            made.append(fields + head[8:] + header + payload[begin:end])
    return made


def udp(payload: bytes, dport: int, sport: int = 50000) -> bytes:
    return struct.pack(">HHHH", sport, dport, 8 + len(payload), 0) + payload


def vxlan(frame: bytes, ident: int = 42) -> bytes:
    return struct.pack(">II", 0x08000000, ident << 8) + frame


def geneve(frame: bytes, options: bytes = b"") -> bytes:
    return struct.pack(">BBHI", len(options) // 4, 0, 0x6558, 42 << 8) + options + frame


def ethernet(payload: bytes, kind: int = 0x0800, tags: tuple[int, ...] = (), pad: bool = True) -> bytes:
    """`tags` are the Ethernet types of VLAN tags, the outermost first."""
    kinds = [*tags, kind]
    frame = MAC + struct.pack(">H", kinds[0])
    for following in kinds[1:]:
        frame += struct.pack(">HH", 7, following)
    frame += payload
    return frame + b"\xee" * (60 - len(frame)) if pad else frame


def sll(payload: bytes, kind: int = 0x0800) -> bytes:
    return struct.pack(">HHH8sH", 0, 1, 6, MAC[:6], kind) + payload


def sll2(payload: bytes, kind: int = 0x0800) -> bytes:
    return struct.pack(">HHIHBB8s", kind, 0, 3, 1, 0, 6, MAC[:6]) + payload


def loopback(payload: bytes, family: int = 2, order: str = "<") -> bytes:
    return struct.pack(order + "I", family) + payload


# Classic captures


def pcap_record(packet: Packet, order: str = "<", ns: bool = False, prefix: int = 16) -> bytes:
    seconds, fraction = divmod(packet.ts_ns, 10**9)
    fraction //= 1 if ns else 1000
    head = struct.pack(order + "IIII", seconds, fraction, len(packet.data), packet.wire)
    return head + bytes(prefix - 16) + packet.data


def pcap(
    packets: list[Packet], order: str = "<", ns: bool = False, link: int = 1, snap_length: int = 65535,
    modified: bool = False,
) -> bytes:  # fmt: skip
    magic = 0xA1B2CD34 if modified else 0xA1B23C4D if ns else 0xA1B2C3D4
    head = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snap_length, link)
    return head + b"".join(pcap_record(packet, order, ns, 24 if modified else 16) for packet in packets)


# Next-generation captures


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += bytes(-len(body) % 4)
    total = struct.pack(order + "I", 12 + len(body))
    return struct.pack(order + "I", kind) + total + body + total


def option(code: int, value: bytes, order: str = "<") -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def section(order: str = "<", length: int = -1) -> bytes:
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, length), order)


def interface(
    link: int = 1, order: str = "<", resolution: int | None = None, offset_s: int | None = None, snap_length: int = 0,
    name: str = "",
) -> bytes:  # fmt: skip
    body = struct.pack(order + "HHI", link, 0, snap_length)
    body += option(2, name.encode(), order) if name else b""
    body += option(9, bytes([resolution]), order) if resolution is not None else b""
    body += option(14, struct.pack(order + "q", offset_s), order) if offset_s is not None else b""
    return block(1, body + option(0, b"", order), order)


def enhanced(packet: Packet, ticks: int, order: str = "<", options: bytes = b"") -> bytes:
    lengths = len(packet.data), packet.wire
    body = struct.pack(order + "IIIII", packet.interface, ticks >> 32, ticks & 0xFFFFFFFF, *lengths)
    return block(6, body + packet.data + bytes(-len(packet.data) % 4) + options, order)


def obsolete(packet: Packet, ticks: int, order: str = "<", drops: int = 0xFFFF) -> bytes:
    lengths = len(packet.data), packet.wire
    body = struct.pack(order + "HHIIII", packet.interface, drops, ticks >> 32, ticks & 0xFFFFFFFF, *lengths)
    return block(2, body + packet.data, order)


def simple(packet: Packet, order: str = "<") -> bytes:
    return block(3, struct.pack(order + "I", packet.wire) + packet.data, order)


def statistics(number: int, if_drop: int | None, os_drop: int | None = None, order: str = "<") -> bytes:
    body = struct.pack(order + "III", number, 0, 0)
    body += option(5, struct.pack(order + "Q", if_drop), order) if if_drop is not None else b""
    body += option(7, struct.pack(order + "Q", os_drop), order) if os_drop is not None else b""
    return block(5, body, order)


def secrets(text: bytes, order: str = "<") -> bytes:
    return block(10, struct.pack(order + "II", 0x544C534B, len(text)) + text, order)


def names(order: str = "<") -> bytes:
    return block(4, struct.pack(order + "HH", 1, 8) + b"\x0a\0\0\x01a\0\0\0" + struct.pack(order + "HH", 0, 0), order)


def pcapng(packets: list[Packet], order: str = "<", link: int = 1) -> bytes:
    """One section, one interface with microseconds."""
    head = section(order) + interface(link, order)
    return head + b"".join(enhanced(packet, packet.ts_ns // 1000, order) for packet in packets)
