"""IP packets in every link layer and tunnel that is known."""

import struct
from collections.abc import Callable

from tests.dissector.builders import ethernet, geneve, ipv4, ipv6, loopback, sll, sll2, udp, vxlan


def pppoe(ip: bytes, kind: int) -> bytes:
    return struct.pack(">BBHHH", 0x11, 0, 1, len(ip) + 2, 0x21 if kind == 0x0800 else 0x57) + ip


def snap(ip: bytes, kind: int) -> bytes:
    return b"\xaa\xaa\x03\0\0\0" + struct.pack(">H", kind) + ip


def nflog(*values: tuple[int, bytes]) -> bytes:
    return b"".join(struct.pack("<HH", 4 + len(value), kind) + value + bytes(-len(value) % 4) for kind, value in values)


def twice(frame: bytes) -> bytes:
    return ethernet(ipv4(udp(vxlan(frame), 4789), protocol=17))


LINKS: dict[str, tuple[int, Callable[[bytes, int], bytes]]] = {
    "ethernet": (1, ethernet),
    "vlan": (1, lambda ip, kind: ethernet(ip, kind, (0x8100,))),
    "qinq": (1, lambda ip, kind: ethernet(ip, kind, (0x88A8, 0x8100))),
    "many tags": (1, lambda ip, kind: ethernet(ip, kind, (0x9100,) * 9)),
    "sll": (113, sll),
    "sll2": (276, sll2),
    "sll vlan": (113, lambda ip, kind: sll(struct.pack(">HH", 5, kind) + ip, 0x8100)),
    "null": (0, lambda ip, kind: loopback(ip, 2 if kind == 0x0800 else 30)),
    "null, other order": (0, lambda ip, kind: loopback(ip, 2 if kind == 0x0800 else 24, ">")),
    "loop": (108, lambda ip, kind: loopback(ip, 2 if kind == 0x0800 else 28, ">")),
    "raw": (101, lambda ip, _: ip),
    "raw bsd": (12, lambda ip, _: ip),
    "raw openbsd": (14, lambda ip, _: ip),
    "fcs": (1, lambda ip, kind: ethernet(ip, kind) + b"\xff\xff\xff\xff"),
    "vxlan": (1, lambda ip, kind: ethernet(ipv4(udp(vxlan(ethernet(ip, kind)), 4789), protocol=17))),
    "vxlan, old port": (113, lambda ip, kind: sll(ipv4(udp(vxlan(ethernet(ip, kind, (0x8100,))), 8472), protocol=17))),
    "vxlan on ipv6": (1, lambda ip, kind: ethernet(ipv6(udp(vxlan(ethernet(ip, kind)), 4789), protocol=17), 0x86DD)),
    "geneve": (101, lambda ip, kind: ipv4(udp(geneve(ethernet(ip, kind), bytes(12)), 6081), protocol=17)),
    "vxlan in vxlan": (1, lambda ip, kind: twice(twice(ethernet(ip, kind)))),
    # by dpkt
    "mpls": (1, lambda ip, _: ethernet(struct.pack(">II", 0x0001_0040, 0x0002_0140) + ip, 0x8847)),
    "vlan, mpls": (1, lambda ip, _: ethernet(struct.pack(">I", 0x0001_0140) + ip, 0x8847, (0x8100,))),
    "pppoe": (1, lambda ip, kind: ethernet(pppoe(ip, kind), 0x8864)),
    "vlan, pppoe": (1, lambda ip, kind: ethernet(pppoe(ip, kind), 0x8864, (0x88A8,))),
    "pppoe on sll": (113, lambda ip, kind: sll(pppoe(ip, kind), 0x8864)),
    "pppoe link": (51, pppoe),
    "ppp": (9, lambda ip, kind: b"\xff\x03" + struct.pack(">H", 0x21 if kind == 0x0800 else 0x57) + ip),
    "ppp in hdlc": (50, lambda ip, kind: b"\xff\x03" + struct.pack(">H", 0x21 if kind == 0x0800 else 0x57) + ip),
    "llc": (1, lambda ip, kind: ethernet(snap(ip, kind), 8 + len(ip))),
    "wlan": (105, lambda ip, kind: b"\x08\0\0\0" + bytes(20) + snap(ip, kind)),
    "wlan, qos": (105, lambda ip, kind: b"\x88\x02\0\0" + bytes(22) + snap(ip, kind)),
    "radiotap": (127, lambda ip, kind: b"\0\0\x08\0\0\0\0\0\x08\0\0\0" + bytes(20) + snap(ip, kind)),
    "gre": (101, lambda ip, kind: ipv4(struct.pack(">HH", 0, kind) + ip, protocol=47)),
    "gre, key": (1, lambda ip, kind: ethernet(ipv6(struct.pack(">HHI", 0x2000, kind, 7) + ip, protocol=47), 0x86DD)),
    "ip in ip": (1, lambda ip, kind: ethernet(ipv4(ip, protocol=4 if kind == 0x0800 else 41))),
    "ip in ip6": (1, lambda ip, kind: ethernet(ipv6(ip, protocol=4 if kind == 0x0800 else 41), 0x86DD)),
}


def gre(header: bytes) -> Callable[[bytes, int], bytes]:
    """Ethernet in GRE in IP."""
    return lambda ip, kind: ethernet(ipv4(header + ethernet(ip, kind), protocol=47))


LINKS |= {
    "c-hdlc": (104, lambda ip, kind: struct.pack(">BBH", 0x0F, 0, kind) + ip),
    "mpls link": (219, lambda ip, _: struct.pack(">II", 0x0001_0040, 0x0002_0140) + ip),
    "mpls, ethernet inside": (
        1, lambda ip, kind: ethernet(struct.pack(">II", 0x0001_0140, 0) + ethernet(ip, kind), 0x8847),
    ),
    "nflog": (239, lambda ip, kind: bytes([2 if kind == 0x0800 else 10, 0, 0, 0]) + nflog((1, b"\x08\0\1\0"), (9, ip))),
    "pflog": (117, lambda ip, kind: bytes([61, 2 if kind == 0x0800 else 24]) + bytes(62) + ip),
    "pktap": (258, lambda ip, kind: struct.pack("<III", 108, 1, 1) + bytes(96) + ethernet(ip, kind)),
    "ppi": (192, lambda ip, kind: struct.pack("<BBHI", 0, 0, 12, 105) + bytes(4) + LINKS["wlan"][1](ip, kind)),
    "gre, ethernet": (1, gre(struct.pack(">HH", 0, 0x6558))),
    "erspan 1": (1, gre(struct.pack(">HH", 0, 0x88BE))),
    "erspan 2": (1, gre(struct.pack(">HHIQ", 0x1000, 0x88BE, 1, 1 << 60))),
    "erspan 3": (1, gre(struct.pack(">HHIQI", 0x1000, 0x22EB, 1, 2 << 60, 0))),
    "erspan 3, with more": (1, gre(struct.pack(">HHIQIQ", 0x1000, 0x22EB, 1, 2 << 60, 1, 0))),
    "vxlan in gre": (1, lambda ip, kind: ethernet(ipv4(
        struct.pack(">HH", 0, 0x0800) + ipv4(udp(vxlan(ethernet(ip, kind)), 4789), protocol=17), protocol=47))),
    "gre in vxlan": (1, lambda ip, kind: twice(ethernet(ipv4(struct.pack(">HH", 0, kind) + ip, protocol=47)))),
}  # fmt: skip
