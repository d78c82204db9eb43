"""Rare link layers, tunnels and extension headers, one packet at a time, through dpkt.

dpkt tells what is inside of what, but not where it lies in the packet; `_Octets` remembers that.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import dpkt

from dissector.packets import CUT, FRAGMENT, MALFORMED, OTHER, UNKNOWN_LINK


class Located(NamedTuple):
    """Where TCP is in a packet.

    Attributes:
        source: position of the sender's IP address; the receiver's follows it.
        version: of IP, 4 or 6.
        tcp: position of the TCP header.
        size: octets of TCP header and payload, by the IP header.
    """

    source: int
    version: int
    tcp: int
    size: int


class _Octets(bytes):
    """Octets of a packet that know where they begin in it, also when they are cut in pieces."""

    start = 0

    @classmethod
    def at(cls, start: int, octets: bytes) -> "_Octets":
        piece = cls(octets)
        piece.start = start
        return piece

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        return _Octets.at(self.start + key.indices(len(self))[0], part) if isinstance(key, slice) else part


def locate(packet: bytes, link: int, length: int) -> Located | int:
    """Find TCP in a packet of any link type.

    Args:
        packet: its captured octets.
        link: link type.
        length: octets that it had on the wire.

    Returns:
        Where TCP is; or what becomes of a packet that has none.
    """
    reader = _READERS.get(link)
    if reader is None:
        return UNKNOWN_LINK
    broken = CUT if len(packet) < length else MALFORMED
    try:
        return _innermost(reader(_Octets(packet)), length, broken)
    except Exception:  # dpkt lets out whatever hostile octets lead to: IndexError, struct.error, RecursionError, ...
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
)
"""What carries packets. Other layers may quote one (ICMP does), which was not sent then."""


def _innermost(layer: Any, length: int, broken: int) -> Located | int:
    """Walk through dpkt's layers to the first TCP."""
    while isinstance(layer, _CARRIERS):
        inner = layer.data
        if isinstance(layer, dpkt.ip.IP | dpkt.ip6.IP6):
            if _is_fragment(layer):
                return FRAGMENT if layer.p == dpkt.ip.IP_PROTO_TCP else OTHER
            if isinstance(inner, dpkt.tcp.TCP):
                return _located(layer, inner, length)
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


def _is_readable(layer: Any) -> bool:
    """Whether dpkt knows what is inside a layer, so that it must be broken when dpkt left it as octets."""
    kind = getattr(layer, "_next_type", None) or getattr(layer, "p", None) or getattr(layer, "type", None)
    return kind in getattr(layer, "_protosw", dpkt.ethernet.Ethernet._typesw)


def _ethernet(header: int, at: int) -> Callable[[_Octets], Any]:
    """A reader of link layers with an Ethernet type at `at` in a header of so many octets; VLAN tags may follow."""

    def read(packet: _Octets) -> Any:
        kind, position = packet[at : at + 2], header
        while kind in (b"\x81\x00", b"\x88\xa8", b"\x91\x00"):
            kind, position = packet[position + 2 : position + 4], position + 4
        # dpkt reads MPLS behind an Ethernet header only, and not behind VLAN tags.
        return dpkt.ethernet.Ethernet(_Octets.at(position - 14, bytes(12) + kind + packet[position:]))

    return read


def _network(header: int) -> Callable[[_Octets], Any]:
    """A reader of IP of either version behind so many octets."""

    def read(packet: _Octets) -> Any:
        octets = packet[header:]
        return (dpkt.ip6.IP6 if octets[0] >> 4 == 6 else dpkt.ip.IP)(octets)

    return read


_READERS: dict[int, Callable[[_Octets], Any]] = {
    0: _network(4),
    1: _ethernet(14, 12),
    9: dpkt.ppp.PPP,
    12: _network(0),
    14: _network(0),
    50: dpkt.ppp.PPP,
    51: dpkt.pppoe.PPPoE,
    101: _network(0),
    105: dpkt.ieee80211.IEEE80211,
    108: _network(4),
    113: _ethernet(16, 14),
    127: dpkt.radiotap.Radiotap,
    228: _network(0),
    229: _network(0),
    276: _ethernet(20, 0),
}
"""By link type of savefiles (https://www.tcpdump.org/linktypes.html), which are not dpkt's numbers everywhere."""
