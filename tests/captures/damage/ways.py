"""What may happen to a capture: packets out of order, again, overlapping, lost, cut.

A packet's `interface` is its number in the undamaged capture; what was made up has that of the packet it repeats.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.dissector.builders import Packet

SYN, FIN_SYN_RST = 2, 7
QUEUES_NS = 10_000_000
"""How far packets lie apart at most that queues of a network card deliver in another order."""
NEAR, NEAR_NS = 8, 500_000_000
"""How many places a packet is moved at most, and how far in time: what comes a second late is taken for lost."""


class Segment(NamedTuple):
    """Where things are in a packet."""

    flow: tuple[bytes, int, int]
    """Both addresses, source and target port."""
    tcp: int
    payload: int
    flags: int
    ip: int


def dissect_bytes(data: bytes, link: int) -> Segment | None:
    """The TCP segment in a packet of Ethernet, cooked capture or nothing around IP; None when there is none."""
    ip = {1: 14, 101: 0, 113: 16, 276: 20}[link]
    if len(data) < ip + 40:
        return None
    if data[ip] >> 4 == 4:
        if data[ip + 9] != 6:
            return None
        addresses, tcp = data[ip + 12 : ip + 20], ip + (data[ip] & 15) * 4
    elif data[ip] >> 4 == 6 and data[ip + 6] == 6:
        addresses, tcp = data[ip + 8 : ip + 40], ip + 40
    else:
        return None
    ports = struct.unpack_from(">HH", data, tcp)
    return Segment((addresses, *ports), tcp, tcp + (data[tcp + 12] >> 4) * 4, data[tcp + 13], ip)


def other_way(flow: tuple[bytes, int, int]) -> tuple[bytes, int, int]:
    half = len(flow[0]) // 2
    return flow[0][half:] + flow[0][:half], flow[2], flow[1]


@dataclass
class Capture:
    """Packets in their order, and what each is."""

    packets: list[Packet]
    link: int
    heads: list[list[tuple[int, int]]] = field(default_factory=list)
    """Of each frame (`recall.Sent`) the bytes that say what it is and how long: packets, and places in them."""

    def __post_init__(self) -> None:
        self.segments = [dissect_bytes(p.data, self.link) for p in self.packets]

    def data(self, i: int) -> int:
        """Bytes of payload in a packet, trailers of short frames left out."""
        segment, data = self.segments[i], self.packets[i].data
        if segment is None:
            return 0
        if data[segment.ip] >> 4 == 4:
            end = segment.ip + int.from_bytes(data[segment.ip + 2 : segment.ip + 4], "big")
        else:
            end = segment.ip + 40 + int.from_bytes(data[segment.ip + 4 : segment.ip + 6], "big")
        return max(end - segment.payload, 0)


def numbered(packets: list[Packet]) -> list[Packet]:
    """The packets with their numbers, from 1."""
    return [replace(p, interface=i) for i, p in enumerate(packets, 1)]


def in_time(packets: list[Packet]) -> list[Packet]:
    """The packets, none earlier than one before it."""
    latest = 0
    made = []
    for packet in packets:
        latest = max(latest, packet.ts_ns)
        made.append(replace(packet, ts_ns=latest))
    return made


def reordered(capture: Capture, rnd: random.Random, share: float = 0.25) -> list[Packet]:
    """Move packets, though none beyond what the other side sent, nor beyond the beginning or end of its connection."""
    order = list(range(len(capture.packets)))
    for i in rnd.sample(order, round(len(order) * share)):
        at = order.index(i)
        for _ in range(rnd.randint(1, NEAR)):
            if at + 1 == len(order) or not may_swap(capture, i, order[at + 1]):
                break
            if capture.packets[order[at + 1]].ts_ns - capture.packets[i].ts_ns > NEAR_NS:
                break
            order[at], order[at + 1] = order[at + 1], order[at]
            at += 1
    return in_time([capture.packets[i] for i in order])


def may_swap(capture: Capture, i: int, j: int) -> bool:
    one, two = capture.segments[i], capture.segments[j]
    if one is None or two is None or two.flow not in (one.flow, other_way(one.flow)):
        return True
    if (one.flags | two.flags) & FIN_SYN_RST:
        return False
    return one.flow == two.flow or capture.data(i) == 0 or capture.data(j) == 0


def exchanged(capture: Capture, rnd: random.Random, share: float = 0.1) -> list[Packet]:
    """Exchange neighbours anywhere, also SYNs, the last packets, and packets of both directions."""
    packets = list(capture.packets)
    for i in sorted(rnd.sample(range(len(packets) - 1), round((len(packets) - 1) * share))):
        if packets[i + 1].ts_ns - packets[i].ts_ns <= QUEUES_NS and not ends_another(capture, i):
            packets[i], packets[i + 1] = packets[i + 1], packets[i]
    return in_time(packets)


def ends_another(capture: Capture, i: int) -> bool:
    """Whether packet i is of a connection whose ports the next packet opens again."""
    return is_syn(capture, i, i + 1) and any(is_syn(capture, i, j) for j in range(i + 1))


def repeated(capture: Capture, rnd: random.Random, share: float = 0.2) -> list[Packet]:
    """Repeat packets a little later, though not when their ports are already used again."""
    out = [(float(i), p) for i, p in enumerate(capture.packets)]
    for i in rnd.sample(range(len(out)), round(len(out) * share)):
        last = i + rnd.randint(0, NEAR)
        behind = range(i + 1, min(last + 1, len(capture.packets)))
        last = next((j - 1 for j in behind if is_syn(capture, i, j)), last)
        out.append((last + 0.5, capture.packets[i]))
    return in_time([p for _, p in sorted(out, key=lambda item: item[0])])


def is_syn(capture: Capture, i: int, j: int) -> bool:
    """Whether packet j opens a connection between the ports of packet i."""
    one, two = capture.segments[i], capture.segments[j]
    return bool(one and two and two.flags & FIN_SYN_RST == SYN and two.flow in (one.flow, other_way(one.flow)))


def overlapping(capture: Capture, rnd: random.Random, share: float = 0.2) -> list[Packet]:
    """Send ranges again that begin in one segment and end in the next."""
    out: list[Packet] = []
    last: dict[tuple[bytes, int, int], int] = {}
    for i, packet in enumerate(capture.packets):
        segment = capture.segments[i]
        out.append(packet)
        size = capture.data(i)
        if segment is None or size == 0 or size > len(packet.data) - segment.payload:
            continue
        before = last.get(segment.flow)
        last[segment.flow] = i
        if before is None or rnd.random() >= share:
            continue
        theirs = capture.segments[before]
        assert theirs is not None
        previous = capture.packets[before].data[theirs.payload :][: capture.data(before)]
        ours = packet.data[segment.payload :][:size]
        seq = int.from_bytes(capture.packets[before].data[theirs.tcp + 4 : theirs.tcp + 8], "big")
        if (seq + len(previous)) % 2**32 != int.from_bytes(packet.data[segment.tcp + 4 : segment.tcp + 8], "big"):
            continue
        back, on = rnd.randint(1, len(previous)), rnd.randint(1, len(ours))
        out.append(replace(packet, data=built(packet.data, segment, seq + len(previous) - back,
                                                previous[-back:] + ours[:on]), length=-1))  # fmt: skip
    return in_time(out)


def built(data: bytes, segment: Segment, seq: int, payload: bytes) -> bytes:
    """The packet with another payload (checksums are nobody's business here)."""
    head = bytearray(data[: segment.payload])
    head[segment.tcp + 4 : segment.tcp + 8] = (seq % 2**32).to_bytes(4, "big")
    size = len(head) + len(payload) - segment.ip
    if head[segment.ip] >> 4 == 4:
        head[segment.ip + 2 : segment.ip + 4] = min(size, 65535).to_bytes(2, "big")
        payload = payload[: 65535 - (len(head) - segment.ip)]
    else:
        head[segment.ip + 4 : segment.ip + 6] = min(size - 40, 65535).to_bytes(2, "big")
        payload = payload[: 65535 - (len(head) - segment.ip - 40)]
    return bytes(head) + payload


def lossy(capture: Capture, rnd: random.Random, share: float = 0.01) -> list[Packet]:
    """Lose packets with data, one at least, with all their copies: nothing tells a first copy from a second one."""
    data = [i for i in range(len(capture.packets)) if capture.data(i)]
    lost = rnd.sample(data, max(round(len(capture.packets) * share), 1)) if data else []
    places = {place_of(capture, i) for i in lost}
    return [p for i, p in enumerate(capture.packets) if not capture.data(i) or place_of(capture, i) not in places]


def place_of(capture: Capture, i: int) -> tuple[tuple[bytes, int, int], bytes]:
    """The direction and the sequence number of packet i."""
    segment = capture.segments[i]
    assert segment is not None
    return segment.flow, capture.packets[i].data[segment.tcp + 4 : segment.tcp + 8]


def without_ends(capture: Capture, rnd: random.Random) -> list[Packet]:
    """Lose the last packets with data of some directions, up to three of each, and now and then the FIN."""
    last: dict[tuple[bytes, int, int], list[int]] = {}
    for i, segment in enumerate(capture.segments):
        if segment and (capture.data(i) or segment.flags & FIN_SYN_RST):
            last.setdefault(segment.flow, []).append(i)
    lost: set[int] = set()
    for places in last.values():
        data = [i for i in places if capture.data(i)]
        if data and rnd.random() < 0.5:
            lost |= set(data[-rnd.randint(1, 3) :])
            if rnd.random() < 0.3:
                lost |= {i for i in places if i > data[-1]}
    return [p for i, p in enumerate(capture.packets) if i not in lost]


def without_begin(capture: Capture, rnd: random.Random) -> list[Packet]:
    """Lose the beginning of the server's direction, SYN-ACK included, of most connections."""
    places: dict[tuple[bytes, int, int], list[int]] = {}
    for i, (segment, to_server) in enumerate(zip(capture.segments, toward_server(capture), strict=True)):
        if segment and not to_server:
            places.setdefault(segment.flow, []).append(i)
    lost: set[int] = set()
    for found in places.values():
        if rnd.random() < 0.7:
            lost |= set(found[: rnd.randint(1, max(len(found) // 2, 1))])
    return [p for i, p in enumerate(capture.packets) if i not in lost]


def bursts(capture: Capture, rnd: random.Random, share: float = 0.3) -> list[Packet]:
    """Lose runs of packets, as where the capturing program is late again and again: dense loss."""
    lost: set[int] = set()
    while len(lost) < share * len(capture.packets):
        first = rnd.randrange(len(capture.packets))
        lost |= set(range(first, min(first + rnd.randint(2, 12), len(capture.packets))))
    return [p for i, p in enumerate(capture.packets) if i not in lost]


def middle_missing(capture: Capture, rnd: random.Random) -> list[Packet]:
    """Lose a file in the middle of a rotation."""
    first, end = sorted(rnd.sample(range(len(capture.packets) + 1), 2))
    return capture.packets[:first] + capture.packets[end:]


def from_close(capture: Capture, rnd: random.Random) -> list[Packet]:
    """Begin, for most connections, a few packets before their end."""
    places: dict[frozenset[tuple[bytes, int, int]], list[int]] = {}
    for i, segment in enumerate(capture.segments):
        if segment:
            places.setdefault(frozenset((segment.flow, other_way(segment.flow))), []).append(i)
    lost: set[int] = set()
    for found in places.values():
        if rnd.random() < 0.8:
            lost |= set(found[: -rnd.randint(1, 8)])
    return [p for i, p in enumerate(capture.packets) if i not in lost]


def snapped(capture: Capture, rnd: random.Random, snap: int = 128) -> list[Packet]:
    """A snap length."""
    return [replace(p, data=p.data[:snap], length=p.wire) for p in capture.packets]


def late(capture: Capture, rnd: random.Random, share: float = 0.4) -> list[Packet]:
    """Begin in the middle."""
    return capture.packets[round(len(capture.packets) * share) :]


def one_way(capture: Capture, rnd: random.Random) -> list[Packet]:
    """One direction only: packets to the lower port, as brokers have it, or from it."""
    to_server = rnd.random() < 0.5
    return [
        p for p, s in zip(capture.packets, capture.segments, strict=True)
        if s is None or (s.flow[2] < s.flow[1]) == to_server
    ]  # fmt: skip


def snapped_anywhere(capture: Capture, rnd: random.Random) -> list[Packet]:
    return snapped(capture, rnd, rnd.randint(60, 600))


def late_anywhere(capture: Capture, rnd: random.Random) -> list[Packet]:
    return late(capture, rnd, rnd.random())


def flipped(capture: Capture, rnd: random.Random, share: float = 0.01) -> list[Packet]:
    """Flip a bit of the type or the length in heads of frames, in one at least."""
    packets = list(capture.packets)
    for head in rnd.sample(capture.heads, min(max(round(len(capture.heads) * share), 1), len(capture.heads))):
        i, at = rnd.choice(head)
        data = bytearray(packets[i].data)
        data[at] ^= 1 << rnd.randrange(8)
        packets[i] = replace(packets[i], data=bytes(data))
    return packets


def coarse(capture: Capture, tick_ns: int) -> list[Packet]:
    """The time of a clock that goes on by ticks."""
    return [replace(p, ts_ns=p.ts_ns // tick_ns * tick_ns) for p in capture.packets]


def stepped(capture: Capture, rnd: random.Random) -> list[Packet]:
    """The clock is set back within the capture, by up to two seconds."""
    place, step = rnd.randrange(len(capture.packets)), rnd.randint(1_000_000, 2_000_000_000)
    return [replace(p, ts_ns=p.ts_ns - step * (i >= place)) for i, p in enumerate(capture.packets)]


def two_cards(capture: Capture, rnd: random.Random) -> list[Packet]:
    """A card for each direction, whose clocks differ by a millisecond; the file is in order of their times."""
    skew, to_server = rnd.choice((-1_000_000, 1_000_000)), toward_server(capture)
    skewed = [replace(p, ts_ns=p.ts_ns + skew * to) for p, to in zip(capture.packets, to_server, strict=True)]
    return sorted(skewed, key=lambda packet: packet.ts_ns)


POINT_NS = 200_000
"""Time that a packet needs from one point to the other."""
SLOWER = 100
"""How many times slower all is, so that there is time for it."""


def slower(capture: Capture) -> list[Packet]:
    """The same, but slower: what the point of the client has of `two_points_in_one`."""
    first = capture.packets[0].ts_ns
    return [replace(p, ts_ns=first + (p.ts_ns - first) * SLOWER) for p in capture.packets]


def two_points_in_one(capture: Capture, rnd: random.Random) -> list[Packet]:
    """One file with two capture points: packets reach the second one later, or come from it earlier."""
    near = slower(capture)
    far = [
        replace(p, ts_ns=p.ts_ns + (POINT_NS if to else -POINT_NS))
        for p, to in zip(near, toward_server(capture), strict=True)
    ]
    return sorted([*near, *far], key=lambda packet: packet.ts_ns)


def forged_reset(capture: Capture, rnd: random.Random) -> list[Packet]:
    """Somebody sends a reset far outside the window, in the middle of each of some connections."""
    packets = []
    for i, (packet, segment) in enumerate(zip(capture.packets, capture.segments, strict=True)):
        packets.append(packet)
        if segment and capture.data(i) and rnd.random() < 0.05 and goes_on(capture, i):
            seq = int.from_bytes(packet.data[segment.tcp + 4 : segment.tcp + 8], "big")
            forged = bytearray(built(packet.data, segment, seq + 90_000_000 + rnd.randint(0, 1_000_000_000), b""))
            forged[segment.tcp + 13] = 4
            packets.append(replace(packet, data=bytes(forged), length=-1))
    return packets


def goes_on(capture: Capture, i: int) -> bool:
    """Whether the sender of packet i sends more data in this connection."""
    for j in range(i + 1, len(capture.packets)):
        if is_syn(capture, i, j):
            return False
        one, two = capture.segments[i], capture.segments[j]
        if one and two and one.flow == two.flow and capture.data(j):
            return True
    return False


def toward_server(capture: Capture) -> list[bool]:
    """Whether each packet goes to the lower port, as brokers have it."""
    return [segment is not None and segment.flow[2] < segment.flow[1] for segment in capture.segments]


Damage = Callable[[Capture, random.Random], list[Packet]]
HARMLESS: dict[str, Damage] = {
    "reordered": reordered, "exchanged": exchanged, "repeated": repeated, "overlapping": overlapping,
}  # fmt: skip
HARMFUL: dict[str, Damage] = {
    "lossy": lossy, "without ends": without_ends, "snapped": snapped, "late": late, "one way": one_way,
    "snapped anywhere": snapped_anywhere, "late anywhere": late_anywhere, "without begin": without_begin,
    "bursts": bursts, "middle missing": middle_missing, "from close": from_close,
}  # fmt: skip
FLIPPED: dict[str, Damage] = {"flipped": flipped}
"""Harmful as well, where it is known which bytes are heads."""
ODD: dict[str, Damage] = {
    "clock of 1 ms": lambda capture, _: coarse(capture, 1_000_000),
    "clock of 15.6 ms": lambda capture, _: coarse(capture, 15_625_000),
    "clock of 1 s": lambda capture, _: coarse(capture, 1_000_000_000),
    "stepped back": stepped, "two cards": two_cards, "forged reset": forged_reset,
}  # fmt: skip
"""Nothing is lost, but times say less than in other captures, or contradict each other."""
ALWAYS_THE_SAME = {"snapped", "late", "clock of 1 ms", "clock of 15.6 ms", "clock of 1 s"}
"""Ways in which chance has no part."""
