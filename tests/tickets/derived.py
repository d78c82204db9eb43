"""Captures made of others: what a capturing program, or a network that loses packets, would have made of the same.

A ticket names another one (`of`) and what is done to it (`by`): a name of CHANGES, and numbers. Where packets wait, all
that is later waits with them, for clients and brokers only act on what came.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

HEADER, RECORD = 24, 16
"""Bytes of the header of a pcap, and of the header of a packet."""
PORTS = (5672, 5671, 5552)
"""Ports of brokers."""
SYN, ACK = 2, 16
MS = 1_000_000


class Packet(NamedTuple):
    """A packet of TCP.

    Attributes:
        ns: its time.
        data: its bytes, from the link layer on.
        size: its length on the wire.
        ip: where its IP header begins; -1 where it is no TCP over IPv4.
        tcp: where its TCP header begins.
        load: where its payload begins.
        end: where it ends.
        from_client: whether its destination is a broker's port.
    """

    ns: int
    data: bytes
    size: int
    ip: int
    tcp: int
    load: int
    end: int
    from_client: bool

    @property
    def flow(self) -> bytes:
        """Both addresses and ports, the client's first."""
        ends = (self.data[self.ip + 12 : self.ip + 16] + self.data[self.tcp : self.tcp + 2],
                self.data[self.ip + 16 : self.ip + 20] + self.data[self.tcp + 2 : self.tcp + 4])  # fmt: skip
        return b"".join(ends if self.from_client else ends[::-1])

    @property
    def payload(self) -> bytes:
        """What it carries."""
        return self.data[self.load : self.end] if self.tcp > 0 else b""

    @property
    def flags(self) -> int:
        """The flags of TCP."""
        return self.data[self.tcp + 13]

    def later(self, ns: int) -> Packet:
        """Return it some time later."""
        return self._replace(ns=self.ns + ns)

    def with_field(self, at: int, form: str, value: int) -> Packet:
        """Return it with another number in its TCP header."""
        data = bytearray(self.data)
        struct.pack_into(form, data, self.tcp + at, value)
        return self._replace(data=bytes(data))

    def part(self, begin: int, end: int) -> Packet:
        """Return a segment that carries a part of its payload."""
        (seq,) = struct.unpack_from(">I", self.data, self.tcp + 4)
        head = bytearray(self.data[: self.load])
        struct.pack_into(">I", head, self.tcp + 4, (seq + begin) & 0xFFFFFFFF)
        data = bytes(head) + self.payload[begin:end]
        struct.pack_into(">H", made := bytearray(data), self.ip + 2, len(data) - self.ip)
        return self._replace(data=bytes(made), size=len(made), end=len(made))


Packets = list[Packet]


def read(data: bytes) -> tuple[bytes, Packets]:
    """Return the header of a pcap of microseconds, and its packets."""
    (link,) = struct.unpack_from("<I", data, 20)
    found, at = [], HEADER
    while at < len(data):
        seconds, micros, length, size = struct.unpack_from("<IIII", data, at)
        found.append(_packet(seconds * 10**9 + micros * 1000, data[at + RECORD : at + RECORD + length], size, link))
        at += RECORD + length
    return data[:HEADER], found


def _packet(ns: int, data: bytes, size: int, link: int) -> Packet:
    ip = {1: 14, 101: 0, 113: 16}.get(link, 0)
    if len(data) < ip + 20 or data[ip] >> 4 != 4 or data[ip + 9] != 6:
        return Packet(ns, data, size, -1, -1, -1, -1, False)
    tcp = ip + 4 * (data[ip] & 15)
    (port,) = struct.unpack_from(">H", data, tcp + 2)
    end = ip + struct.unpack_from(">H", data, ip + 2)[0]
    return Packet(ns, data, size, ip, tcp, tcp + 4 * (data[tcp + 12] >> 4), end, port in PORTS)


def written(head: bytes, packets: Packets) -> bytes:
    """Return a pcap of packets."""
    parts = [head]
    for each in packets:
        parts.append(struct.pack("<IIII", each.ns // 10**9, each.ns % 10**9 // 1000, len(each.data), each.size))
        parts.append(each.data)
    return b"".join(parts)


def one_way(packets: Packets, side: int) -> Packets:
    """Only the packets of one side (1: the client) were captured."""
    return [each for each in packets if each.from_client == bool(side)]


def dropped(packets: Packets, every: int, side: int) -> Packets:
    """The capturing program dropped each so many-th packet with data of a side, from the fourth part on."""
    loaded = [n for n, each in enumerate(packets) if each.payload and each.from_client == bool(side)]
    lost = {*loaded[len(loaded) // 4 :: every]}
    return [each for n, each in enumerate(packets) if n not in lost]


def acks_dropped(packets: Packets) -> Packets:
    """It dropped packets that carry nothing: no bytes are missing."""
    bare = [n for n, each in enumerate(packets) if each.tcp > 0 and not each.payload and each.flags == ACK]
    lost = {*bare[4::3]}
    return [each for n, each in enumerate(packets) if n not in lost]


def begun(packets: Packets, percent: int) -> Packets:
    """The capture began after some percent of the packets."""
    return packets[len(packets) * percent // 100 :]


def ended(packets: Packets, percent: int) -> Packets:
    """It ended after some percent of them."""
    return packets[: len(packets) * percent // 100]


def snapped(packets: Packets, length: int) -> Packets:
    """Only the first bytes of each packet were kept."""
    return [each._replace(data=each.data[:length]) for each in packets]


def twice(packets: Packets, micros: int) -> Packets:
    """A second point, nearer to the broker, is in the same file: it has each packet as well, with other times."""
    near = [each.later(micros * 1000 * (1 if each.from_client else -1)) for each in packets]
    ttl = [each._replace(data=_hop(each)) if each.ip >= 0 else each for each in near]
    return sorted([*packets, *ttl], key=lambda each: each.ns)


def _hop(each: Packet) -> bytes:
    data = bytearray(each.data)
    data[each.ip + 8] = max(1, data[each.ip + 8] - 1)
    return bytes(data)


def reordered(packets: Packets, every: int) -> Packets:
    """Packets overtook each other: each so many-th with data comes after the next one of its side."""
    loaded = [n for n, each in enumerate(packets) if each.payload]
    made = list(packets)
    for n in loaded[5::every]:
        if n + 1 < len(made) and made[n + 1].payload and made[n + 1].from_client == made[n].from_client:
            one, other = made[n], made[n + 1]
            made[n], made[n + 1] = other._replace(ns=one.ns), one._replace(ns=other.ns)
    return made


def lost(packets: Packets, every: int, ms: int, side: int) -> Packets:
    """The network lost each so many-th packet with data of a side behind the capture point; it was sent again."""
    return _delayed(packets, every, side, lambda each: [(0, each), (ms, each)])


def repeated(packets: Packets, every: int, side: int) -> Packets:
    """The same was sent twice without need, a little later: nothing waited for it."""
    made: Packets = []
    loaded = 0
    for each in packets:
        made.append(each)
        if each.payload and each.from_client == bool(side):
            loaded += 1
            if not loaded % every:
                made.append(each.later(MS // 10))
    return sorted(made, key=lambda each: each.ns)


def window_closed(packets: Packets, every: int, ms: int, side: int) -> Packets:
    """A side reads nothing for a while, several times: its acknowledgement closes its window, and another opens it."""

    def close(each: Packet) -> list[tuple[int, Packet]]:
        return [(0, each.with_field(14, ">H", 0)), (ms, each)]

    return _delayed(packets, every, side, close, lambda each: not each.payload)


def held(packets: Packets, every: int, side: int) -> Packets:
    """A side writes in two parts, and its system keeps the second until the first is acknowledged, after 40 ms."""
    bare = {each.from_client: each for each in packets if each.tcp > 0 and each.flags == ACK and not each.payload}

    def write(each: Packet) -> list[tuple[int, Packet]]:
        first, second = each.part(0, 12), each.part(12, len(each.payload))
        (seq,) = struct.unpack_from(">I", second.data, second.tcp + 4)
        (ack,) = struct.unpack_from(">I", each.data, each.tcp + 8)
        other = bare[not each.from_client].with_field(8, ">I", seq).with_field(4, ">I", ack)
        ports = struct.unpack_from(">HH", each.data, each.tcp)
        other = other.with_field(0, ">H", ports[1]).with_field(2, ">H", ports[0])
        return [(0, first), (40, other._replace(ns=each.ns)), (0, second.later(MS // 10))]

    return _delayed(packets, every, side, write, lambda each: len(each.payload) > 20)


def nothing_more(packets: Packets, percent: int, side: int) -> Packets:
    """From some packet of a side on nothing gets through; it is sent again and again."""
    last = next(n for n in range(len(packets) * percent // 100, len(packets))
                if packets[n].payload and packets[n].from_client == bool(side))  # fmt: skip
    return packets[: last + 1] + [packets[last].later(ms * MS) for ms in (200, 620, 1460, 3140, 6500)]


def _delayed(
    packets: Packets,
    every: int,
    side: int,
    change: Callable[[Packet], Sequence[tuple[int, Packet]]],
    takes: Callable[[Packet], bool] = lambda each: bool(each.payload),
) -> Packets:
    """Change each so many-th packet of a side into several, with waits in ms; all that is later waits as well."""
    made: Packets = []
    seen, wait = 0, 0
    for each in packets:
        if each.tcp > 0 and each.from_client == bool(side) and not each.flags & 7 and takes(each):
            seen += 1
            if seen > 5 and not seen % every:
                for ms, part in change(each):
                    wait += ms * MS
                    made.append(part.later(wait))
                continue
        made.append(each.later(wait))
    return made


CHANGES: dict[str, Callable[..., Packets]] = {
    each.__name__: each
    for each in (one_way, dropped, acks_dropped, begun, ended, snapped, twice, reordered, lost, repeated, window_closed,
                 held, nothing_more)
}  # fmt: skip


def made(data: bytes, by: Sequence[str | int]) -> bytes:
    """Return what a change, with its numbers, makes of a capture."""
    name, *numbers = by
    head, packets = read(data)
    if name == "snapped":
        head = head[:16] + struct.pack("<I", int(numbers[0])) + head[20:]
    return written(head, CHANGES[str(name)](packets, *numbers))


def places(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the packets of a pcap begin and end, with their headers."""
    at = HEADER
    while at < len(data):
        end = at + RECORD + struct.unpack_from("<I", data, at + 8)[0]
        yield at, end
        at = end
