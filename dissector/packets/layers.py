"""Read rare link layers, tunnels, extension headers and fragments with dpkt, one packet at a time.

dpkt returns nested layers, but not their positions in the packet; `_PacketBytes` remembers these.
"""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import dpkt

from amqpscope.dissector.packets.fragments import LONGEST, Fragment
from amqpscope.dissector.packets.headers import (
    CUT,
    FRAGMENT,
    IP_GRE,
    IP_IPV4,
    IP_IPV6,
    IP_TCP,
    IP_UDP,
    MALFORMED,
    OTHER,
    PORTS,
    UNKNOWN_LINK,
    tunnel_header,
)  # fmt: skip


class Located(NamedTuple):
    """Where TCP is in a packet.

    Attributes:
        source: position of the sender's IP address; the receiver's follows it.
        version: version of IP, 4 or 6.
        tcp: position of the TCP header.
        size: size of TCP header and payload, by the IP header.
    """

    source: int
    version: int
    tcp: int
    size: int


class _PacketBytes(bytes):
    """Bytes of a packet that know their position in it, also after slicing."""

    start = 0

    @classmethod
    def at(cls, start: int, data: bytes) -> "_PacketBytes":
        found = cls(data)
        found.start = start
        return found

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        return _PacketBytes.at(self.start + key.indices(len(self))[0], part) if isinstance(key, slice) else part


def locate(packet: bytes, link: int, length: int) -> Located | Fragment | int:
    """Find TCP in a packet of any link type, or the IP fragment that the packet is.

    Args:
        packet: its captured bytes.
        link: link type.
        length: size of the packet on the wire.

    Returns:
        Where TCP is; or a fragment of an IP packet that may carry TCP; or what becomes of a packet without either.
    """
    broken = CUT if len(packet) < length else MALFORMED
    try:
        layer = _read(_PacketBytes(packet), link)
        return UNKNOWN_LINK if layer is None else _innermost(layer, packet, length, broken)
    except Exception:  # dpkt raises whatever hostile bytes lead to: IndexError, struct.error, RecursionError, ...
        return broken


_CARRIERS = (
    dpkt.ah.AH,
    dpkt.ethernet.Ethernet,
    dpkt.gre.GRE,
    dpkt.ieee80211.IEEE80211,
    dpkt.ip.IP,
    dpkt.ip6.IP6,
    dpkt.llc.LLC,
    dpkt.ppp.PPP,
    dpkt.pppoe.PPPoE,
    dpkt.radiotap.Radiotap,
    dpkt.udp.UDP,
)
"""Layers that carry packets. Other layers may quote a packet, as ICMP does, which was not sent then."""


_CARRYING = frozenset((IP_TCP, IP_IPV4, IP_IPV6, IP_GRE, IP_UDP))
"""Protocols of IP that are TCP or may carry TCP."""

_ERSPAN_2, _ERSPAN_3 = 0x88BE, 0x22EB
"""Protocols of GRE: mirrored Ethernet frames (draft-foschiano-erspan)."""


def _innermost(layer: Any, packet: bytes, length: int, broken: int) -> Located | Fragment | int:
    """Walk through dpkt's layers to the first TCP."""
    while isinstance(layer, _CARRIERS):
        inner = layer.data
        if isinstance(layer, dpkt.ip.IP | dpkt.ip6.IP6):
            if _is_fragment(layer):
                return _fragment(layer, packet, length) if layer.p in _CARRYING else OTHER
            if isinstance(inner, dpkt.tcp.TCP):
                return _located(layer, inner, length)
        elif isinstance(layer, dpkt.udp.UDP):
            header = tunnel_header(inner, 0, len(inner), layer.dport)
            if header <= 0:
                return OTHER if header == 0 else broken
            inner = dpkt.ethernet.Ethernet(inner[header:])
        elif isinstance(layer, dpkt.gre.GRE) and layer.p in (_ERSPAN_2, _ERSPAN_3):
            inner = dpkt.ethernet.Ethernet(inner[_erspan(layer, inner) :])
        elif isinstance(layer, dpkt.ieee80211.IEEE80211):
            if layer.type != dpkt.ieee80211.DATA_TYPE or layer.wep:
                return OTHER
            inner = dpkt.llc.LLC(inner)
        if isinstance(inner, bytes):
            cut = broken == CUT and not isinstance(layer, dpkt.ip.IP | dpkt.ip6.IP6)
            return broken if cut or _is_readable(layer) else OTHER
        layer = inner
    return OTHER


def _located(ip: Any, segment: Any, length: int) -> Located:
    tcp = segment.opts.start - 20
    if isinstance(ip, dpkt.ip.IP):
        begin = tcp - ip.hl * 4
        end = begin + ip.len if ip.len else length
        return Located(begin + 12, 4, tcp, end - tcp)
    payload = tcp - sum(extension.length for extension in ip.all_extension_headers)
    end = payload + ip.plen if ip.plen else length
    return Located(payload - 32, 6, tcp, end - tcp)


def _is_fragment(ip: Any) -> bool:
    if isinstance(ip, dpkt.ip.IP):
        return bool(ip.mf or ip.offset)
    return any(isinstance(e, dpkt.ip6.IP6FragmentHeader) and (e.frag_off or e.m_flag) for e in ip.all_extension_headers)


def _fragment(ip: Any, packet: bytes, length: int) -> Fragment | int:
    """Return the fragment that an IP packet is."""
    if isinstance(ip, dpkt.ip.IP):
        start = ip.opts.start - 20
        begin, end, version = start + ip.hl * 4, start + ip.len, 4
        offset, more, ident, ttl = ip.offset * 8, bool(ip.mf), ip.id, ip.ttl
    else:
        payload = _start(ip.data)
        if payload is None:
            return FRAGMENT
        headers, version = ip.all_extension_headers, 6
        at = next(i for i, header in enumerate(headers) if isinstance(header, dpkt.ip6.IP6FragmentHeader))
        begin = payload - sum(header.length for header in headers[at + 1 :])
        end = begin - sum(header.length for header in headers[: at + 1]) + ip.plen
        offset, more, ident, ttl = headers[at].frag_off * 8, bool(headers[at].m_flag), headers[at].id, ip.hlim
    size = end - begin
    if size <= 0 or end > length or (more and size % 8) or offset + size > LONGEST - 20:
        return MALFORMED
    protocol = ip.p if isinstance(ip, dpkt.ip.IP) else headers[at].nxt
    data = bytes(packet[begin:end])
    # The first fragment of UDP shows whether it is a tunnel.
    useful = protocol != IP_UDP or offset > 0 or int.from_bytes(data[2:4]) in PORTS
    return Fragment(version, ip.src + ip.dst, protocol, ident, offset, offset + size, more, data, useful, ttl)


def _start(layer: Any) -> int | None:
    """Return where a layer begins in the packet, if that is known."""
    if isinstance(layer, _PacketBytes):
        return layer.start
    if isinstance(layer, dpkt.tcp.TCP | dpkt.ip.IP):
        return int(layer.opts.start) - 20
    return int(layer.data.start) - 8 if isinstance(layer, dpkt.udp.UDP) else None


def _erspan(gre: Any, data: bytes) -> int:
    """Return the length of the header before a mirrored frame."""
    if gre.p == _ERSPAN_3:
        return 20 if data[11] & 1 else 12
    return 8 if gre.flags & dpkt.gre.GRE_SP else 0


def _is_readable(layer: Any) -> bool:
    """Return whether dpkt decodes the payload of a layer: if it left the payload as bytes, that is malformed."""
    kind = getattr(layer, "_next_type", None) or getattr(layer, "p", None) or getattr(layer, "type", None)
    return kind in getattr(layer, "_protosw", dpkt.ethernet.Ethernet._typesw)


def _ethernet(header: int, at: int) -> Callable[[_PacketBytes], Any]:
    """Return a reader of link layers with an Ethernet type at `at` in a header of this size; VLAN tags may follow."""

    def read(packet: _PacketBytes) -> Any:
        kind, position = packet[at : at + 2], header
        while kind in (b"\x81\x00", b"\x88\xa8", b"\x91\x00"):
            kind, position = packet[position + 2 : position + 4], position + 4
        # dpkt reads MPLS after an Ethernet header only, not after VLAN tags.
        return dpkt.ethernet.Ethernet(
            _PacketBytes.at(packet.start + position - 14, bytes(12) + kind + packet[position:])
        )

    return read


def _network(header: int) -> Callable[[_PacketBytes], Any]:
    """Return a reader of IP of either version after a header of this size."""

    def read(packet: _PacketBytes) -> Any:
        data = packet[header:]
        return (dpkt.ip6.IP6 if data[0] >> 4 == 6 else dpkt.ip.IP)(data)

    return read


def _mpls(packet: _PacketBytes) -> Any:
    return dpkt.ethernet.Ethernet(_PacketBytes.at(packet.start - 14, bytes(12) + b"\x88\x47" + packet))


def _nflog(packet: _PacketBytes) -> Any:
    """Read a Linux netfilter log: values of a length, a type and bytes, padded to four; the packet has type 9."""
    at = 4
    while True:
        size, kind = struct.unpack_from("<HH", packet, at)
        if kind == 9:
            return _network(0)(packet[at + 4 : at + size])
        at += max(size + -size % 4, 4)


def _pflog(packet: _PacketBytes) -> Any:
    """Read an OpenBSD packet filter log: the first byte is the length of the header, without its padding."""
    return _network(packet[0] + -packet[0] % 4)(packet)


def _wrapped(length_at: str, link_at: str) -> Callable[[_PacketBytes], Any]:
    """Return a reader of headers that hold their own length and the link type after them, given as `struct` formats."""

    def read(packet: _PacketBytes) -> Any:
        (length,), (link,) = struct.unpack_from(length_at, packet), struct.unpack_from(link_at, packet)
        return _read(packet[length:], link) if length >= 8 else None

    return read


def _read(packet: _PacketBytes, link: int) -> Any:
    """Return dpkt's outermost layer; None when the link type is unknown."""
    reader = _READERS.get(link)
    return reader(packet) if reader else None


_READERS: dict[int, Callable[[_PacketBytes], Any]] = {
    0: _network(4),
    1: _ethernet(14, 12),
    9: dpkt.ppp.PPP,
    12: _network(0),
    14: _network(0),
    50: dpkt.ppp.PPP,
    51: dpkt.pppoe.PPPoE,
    101: _network(0),
    104: _ethernet(4, 2),
    105: dpkt.ieee80211.IEEE80211,
    108: _network(4),
    113: _ethernet(16, 14),
    117: _pflog,
    127: dpkt.radiotap.Radiotap,
    192: _wrapped("<2xH", "<4xI"),
    219: _mpls,
    228: _network(0),
    229: _network(0),
    239: _nflog,
    258: _wrapped("<I", "<8xI"),
    276: _ethernet(20, 0),
}
"""Readers by LINKTYPE of capture files (https://www.tcpdump.org/linktypes.html), whose numbers differ from dpkt's."""
