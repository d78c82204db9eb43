"""Rare link layers and encapsulations, one packet at a time, through dpkt.

dpkt tells what is inside of what, not where; `_Octets` remembers that.
"""

import dpkt

# As in `packets`, which imports this module.
_OTHER, _CUT, _MALFORMED, _FRAGMENT, _UNKNOWN_LINK = 1, 3, 4, 5, 6

_LINKS = {
    1: dpkt.ethernet.Ethernet,
    9: dpkt.ppp.PPP,
    50: dpkt.ppp.PPP,
    51: dpkt.pppoe.PPPoE,
    105: dpkt.ieee80211.IEEE80211,
    113: dpkt.sll.SLL,
    127: dpkt.radiotap.Radiotap,
    276: dpkt.sll2.SLL2,
}
"""How dpkt calls the link types of savefiles."""


class _Octets(bytes):
    """Octets of a packet that know where they begin in it, also when dpkt cuts them in pieces."""

    start = 0

    def __getitem__(self, key):  # type: ignore[no-untyped-def, override]
        part = super().__getitem__(key)
        if not isinstance(key, slice):
            return part
        piece = _Octets(part)
        piece.start = self.start + key.indices(len(self))[0]
        return piece


def locate(packet: bytes, link: int) -> tuple[int, int, int, int] | int:
    """Find TCP in a packet of any link type.

    Returns:
        Position of the sender's address, IP version, position of the TCP header, octets of TCP by the IP header; or
        what became of the packet, as in `packets`.
    """
    layer = _LINKS.get(link)
    if layer is None:
        return _UNKNOWN_LINK
    try:
        return _innermost(layer(_Octets(packet)))
    except Exception:  # dpkt lets out whatever hostile octets lead to: IndexError, struct.error, RecursionError, ...
        return _MALFORMED


def _innermost(layer: object) -> tuple[int, int, int, int] | int:
    found: tuple[int, int, int, int] | int = _OTHER
    while layer is not None and not isinstance(layer, bytes):
        inner = getattr(layer, "data", None)
        if isinstance(layer, dpkt.ip.IP):
            if layer.mf or layer.offset:
                return _FRAGMENT
            if isinstance(inner, dpkt.tcp.TCP):
                tcp = inner.data.start - inner.off * 4
                header = layer.hl * 4
                return tcp - header + 12, 4, tcp, layer.len - header
        elif isinstance(layer, dpkt.ip6.IP6):
            if isinstance(inner, dpkt.tcp.TCP):
                tcp = inner.data.start - inner.off * 4
                extensions = sum(header.length for header in layer.all_extension_headers)
                return tcp - extensions - 32, 6, tcp, layer.plen - extensions
            if any(isinstance(header, dpkt.ip6.IP6FragmentHeader) for header in layer.all_extension_headers):
                return _FRAGMENT
        layer = inner
    return found
