"""Read the link layer, IP and TCP headers of a batch of packets: kernels.

Sources: RFC 791, RFC 7348, RFC 8200, RFC 8926, RFC 9293; https://www.tcpdump.org/linktypes.html.
"""

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.integers import be16, be32, be64
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.packets.segments import SYN, SegmentBatch

# What becomes of a packet: a segment; intact, but not TCP; left to `layers`; truncated before the end of its headers;
# headers that contradict each other; a fragment that cannot be reassembled; an unknown link layer; one fragment of
# several; another packet in a tunnel (this one does not stay).
TCP, OTHER, RARE, CUT, MALFORMED, FRAGMENT, UNKNOWN_LINK, PART, TUNNEL = range(9)

# In kernels, a number shifted right is unsigned once compiled, hence // and %.

# Link types of savefiles.
LINK_NULL, LINK_ETHERNET, LINK_LOOP, LINK_SLL, LINK_IPV4, LINK_IPV6, LINK_SLL2 = 0, 1, 108, 113, 228, 229, 276
LINK_RAW, LINK_RAW_BSD, LINK_RAW_OPENBSD = 101, 12, 14

# Ethernet types; a number below 1536 is the length of an LLC packet.
ETHER_IPV4, ETHER_IPV6, ETHER_LOWEST = 0x0800, 0x86DD, 1536
ETHER_VLAN, ETHER_VLAN_OUTER, ETHER_VLAN_OLD = 0x8100, 0x88A8, 0x9100
ETHER_MPLS, ETHER_MPLS_MULTICAST, ETHER_PPPOE, ETHER_BRIDGING = 0x8847, 0x8848, 0x8864, 0x6558

# IP protocols: TCP; tunnels; extension headers of IPv6.
IP_TCP, IP_IPV4, IP_IPV6, IP_GRE, IP_UDP = 6, 4, 41, 47, 17
IP_HOP_BY_HOP, IP_ROUTING, IP_FRAGMENT, IP_AUTHENTICATION, IP_DESTINATION = 0, 43, 44, 51, 60

# Ports of UDP: VXLAN (RFC 7348, and what Linux had before that), Geneve (RFC 8926).
PORT_VXLAN, PORT_VXLAN_OLD, PORT_GENEVE = PORTS = 4789, 8472, 6081

IPV4_MAPPED = 0xFFFF << 32
"""Lower half of ::ffff:0.0.0.0."""


@kernel
def read_tcp(
    data: Array, source: int, version: int, p: int, end: int, size: int, out: SegmentBatch, m: int, i: int
) -> int:  # fmt: skip
    """Read a TCP header as segment m of `out`; return what becomes of the packet.

    Args:
        data: bytes.
        source: position of the sender's address; the receiver's follows it.
        version: version of IP.
        p: position of the TCP header.
        end: end of the captured bytes, trailers included.
        size: size of header and payload, by the IP header.
        out: room for segments; the kernel leaves out time, packet and capture.
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
    flags = data[p + 13] * 1  # from a byte to an integer, compiled
    payload = min(p + header, end)
    wscale, mss = -1, -1
    if flags & SYN:
        q = p + 20
        while q + 1 < payload and data[q] != 0:
            if data[q] == 1:
                q += 1
                continue
            length = data[q + 1] * 1
            if length < 2 or q + length > payload:
                break
            if data[q] == 3 and length == 3:
                wscale = data[q + 2] * 1
            elif data[q] == 2 and length == 4:
                mss = be16(data, q + 2)
            q += length
    out.row[m] = i
    if version == 4:
        out.src_hi[m] = 0
        out.src_lo[m] = IPV4_MAPPED + be32(data, source)
        out.dst_hi[m] = 0
        out.dst_lo[m] = IPV4_MAPPED + be32(data, source + 4)
    else:
        out.src_hi[m] = be64(data, source)
        out.src_lo[m] = be64(data, source + 8)
        out.dst_hi[m] = be64(data, source + 16)
        out.dst_lo[m] = be64(data, source + 24)
    out.sport[m] = be16(data, p)
    out.dport[m] = be16(data, p + 2)
    out.seq[m] = be32(data, p + 4)
    out.ack[m] = be32(data, p + 8)
    out.flags[m] = flags
    out.window[m] = be16(data, p + 14)
    out.offset[m] = payload
    out.caplen[m] = max(0, min(p + size, end) - payload)
    out.length[m] = size - header
    out.wscale[m] = wscale
    out.mss[m] = mss
    mark = be16(data, source - 8) if version == 4 else 0  # RFC 6864: zero has no meaning
    out.mark[m] = mark if mark > 0 else 0x10000 + be16(data, p + 16)
    out.ttl[m] = data[source - 4 if version == 4 else source - 1]
    return TCP


@kernel
def missing(p: int, wire_end: int) -> int:
    """Return what becomes of a packet whose bytes before p were not all captured, by its size on the wire."""
    return CUT if p <= wire_end else MALFORMED


@kernel
def read_link(data: Array, p: int, end: int, wire_end: int, link: int) -> tuple[int, int, int]:
    """Read a link layer header and VLAN tags.

    Args:
        data: bytes.
        p: position of the packet.
        end: end of its captured bytes.
        wire_end: where it would end if it were captured whole.
        link: link type.

    Returns:
        TCP to go on, else what becomes of the packet; version of IP, 0 if unknown; position of the IP header.
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
    """Return the size of the tunnel header before an Ethernet frame in a UDP payload at p; 0: none, -1: truncated."""
    if port not in (PORT_VXLAN, PORT_VXLAN_OLD, PORT_GENEVE):
        return 0
    if p + 8 > end:
        return -1
    if port == PORT_GENEVE:
        return 8 + data[p] % 64 * 4 if data[p] < 64 and be16(data, p + 2) == ETHER_BRIDGING else 0
    return 8 if data[p] & 8 else 0


@kernel
def read_ip(data: Array, version: int, p: int, end: int, wire_end: int) -> tuple[int, int, int, int, int]:
    """Read an IP header at p; the other arguments are those of read_link.

    Returns:
        TCP to go on, else what becomes of the packet; version; position of the sender's address, position of the TCP
        header; size of TCP header and payload. TUNNEL: position and size are those of an Ethernet frame.
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
        fragment = be16(data, p + 6) & 0x3FFF != 0  # more fragments follow, or it is not the first
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
    data: Array, offset: Array, caplen: Array, length: Array, link: Array, out: SegmentBatch, outcome: Array
) -> int:
    """Read the headers of all packets (columns as in PacketBatch) as segments.

    Returns:
        The number of segments. `outcome` holds what becomes of each packet.
    """
    m = 0
    for i in range(len(offset)):
        p, end, kind = offset[i], offset[i] + caplen[i], link[i]
        wire_end = p + max(length[i], caplen[i])
        status = TUNNEL
        while status == TUNNEL:  # which begins after the headers of the outer one
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
