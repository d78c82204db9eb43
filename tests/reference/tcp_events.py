"""Events of TCP in the plainest way: every segment of a connection is kept, and looked through for each new one.

Only connections whose three first packets are there; positions count from the first byte, without wrapping.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dpkt

from tests.reference.packets import ends_of, ip_of, read_packets

COPY_NS = 100_000_000
DELAY_NS = range(30_000_000, 600_000_001)
RELEASE_NS = 1_000_000
Event = dict[str, Any]


@dataclass
class Segment:
    begin: int
    end: int
    number: int
    ts_ns: int
    again: bool = False


REMEMBERED = 4
"""Segments that are remembered although they were acknowledged."""


@dataclass
class Side:
    """What one end has sent."""

    base: int
    flags: dict[int, Segment] = field(default_factory=dict)  # the first SYN, FIN
    sent: list[Segment] = field(default_factory=list)  # with bytes that nobody had seen
    arrived: list[Segment] = field(default_factory=list)  # all with bytes, as they came
    packets: list[tuple[Any, int]] = field(default_factory=list)  # what tells copies, and when
    acked: int = 0  # by the other end
    beyond: tuple[int, int] | None = None  # position without bytes ahead of all bytes, and when
    least_ns: int | None = None
    released: tuple[Segment, int] | None = None  # a late acknowledgement of all that was sent, and how late
    ttl: int | None = None
    numbers: list[tuple[int, int, int]] = field(default_factory=list)  # of packets, when, what the other end had sent
    near_ns: int | None = None  # from the capture to this end and back
    trip_ns: int | None = None  # the shortest time that bytes of this end took to be acknowledged
    bare_ns: int | None = None  # the same by segments without bytes

    @property
    def top(self) -> int:
        return max((one.end for one in self.sent), default=0)

    def position(self, number: int) -> int:
        return (number - self.base + 2**31) % 2**32 - 2**31 if self.top < 2**30 else 0


def trips(path: Path) -> list[tuple[int | None, ...]]:
    """For each connection in the order of their SYNs: `trip_ns` and `bare_ns` of the server, of the client."""
    ends: list[dict[str, Side]] = []
    events(path, ends)
    return [tuple(ns for side in reversed(each.values()) for ns in (side.trip_ns, side.bare_ns)) for each in ends]


def events(path: Path, ends: list[dict[str, Side]] | None = None) -> list[Event]:
    """The events of a capture's connections, in packet order, without windows; `ends` gets the sides of each."""
    found: list[Event] = []
    open_: dict[frozenset[str], dict[str, Side]] = {}
    rtts: dict[frozenset[str], int] = {}
    for packet in read_packets(path):
        ip = ip_of(packet)
        if ip is None:
            continue
        source, destination = ends_of(ip)
        tcp, pair = ip.data, frozenset(ends_of(ip))
        opens = tcp.flags & (dpkt.tcp.TH_SYN | dpkt.tcp.TH_ACK) == dpkt.tcp.TH_SYN
        if opens and (pair not in open_ or open_[pair][source].base != (tcp.seq + 1) % 2**32):
            open_[pair] = {source: Side((tcp.seq + 1) % 2**32), destination: Side(-1)}
            rtts.pop(pair, None)
            if ends is not None:
                ends.append(open_[pair])
        if pair in open_:
            sides = open_[pair]
            if tcp.flags & dpkt.tcp.TH_SYN and not opens and sides[source].base < 0:
                sides[source].base = (tcp.seq + 1) % 2**32
            if sides[source].base >= 0 or tcp.flags & dpkt.tcp.TH_RST:
                client = next(iter(sides))
                begun = sides[client].flags.get(dpkt.tcp.TH_SYN)
                is_ack = tcp.flags & (dpkt.tcp.TH_ACK | dpkt.tcp.TH_SYN | dpkt.tcp.TH_RST) == dpkt.tcp.TH_ACK
                if source == client and is_ack and begun and pair not in rtts:
                    rtts[pair] = packet.ts_ns - begun.ts_ns
                    if dpkt.tcp.TH_SYN in sides[destination].flags:
                        took = packet.ts_ns - sides[destination].flags[dpkt.tcp.TH_SYN].ts_ns
                        sides[destination].least_ns = took
                        sides[client].least_ns = rtts[pair] - took
                        sides[client].near_ns, sides[destination].near_ns = took, rtts[pair] - took
                taken = take(sides[source], sides[destination], ip, packet, rtts.get(pair, 0))
                found += [event | {"from_client": source == client} for event in taken]
    return found


def take(mine: Side, theirs: Side, ip: Any, packet: Any, rtt_ns: int) -> list[Event]:
    tcp, now = ip.data, packet.ts_ns
    size = max(len(tcp.data), (ip.len - 4 * ip.hl if isinstance(ip, dpkt.ip.IP) else ip.plen) - 4 * tcp.off)
    at = mine.position(tcp.seq + (1 if tcp.flags & dpkt.tcp.TH_SYN else 0))
    segment = Segment(at, at + size, packet.number, now)
    acked = theirs.position(tcp.ack) if tcp.flags & dpkt.tcp.TH_ACK and theirs.base >= 0 else 0
    fin = theirs.flags.get(dpkt.tcp.TH_FIN)
    if acked == (fin.end if fin else theirs.top) + 1:
        acked -= 1
    mark = (ip.id or tcp.sum) if isinstance(ip, dpkt.ip.IP) else tcp.sum
    key = (tcp.seq, tcp.ack, tcp.flags, tcp.win, size, mark)
    is_new = acked > theirs.acked or (size > 0 and segment.end > mine.top)
    is_copy = not is_new and any(key == other and abs(now - ts) < COPY_NS for other, ts in mine.packets[-64:])
    mine.packets.append((key, now))
    found = [] if is_copy else list(of_flags(mine, tcp, segment, ip))
    if tcp.flags & (dpkt.tcp.TH_ACK | dpkt.tcp.TH_RST) == dpkt.tcp.TH_ACK and acked > theirs.acked:
        found += of_ack(theirs, tcp, segment, acked)
        theirs.acked = acked
        while len(theirs.sent) > REMEMBERED and theirs.sent[0].end <= acked:
            theirs.sent.pop(0)
    if not tcp.flags & dpkt.tcp.TH_RST and not is_copy and mine.sent:
        found += of_number(mine, theirs, ip, segment, rtt_ns)
    if size and not tcp.flags & dpkt.tcp.TH_RST and not is_copy:
        found += of_bytes(mine, theirs, segment, rtt_ns)
        if segment.end > mine.top:
            mine.ttl = ip.ttl if isinstance(ip, dpkt.ip.IP) else ip.hlim
            mine.sent.append(Segment(max(at, mine.top), segment.end, packet.number, now))
        mine.arrived.append(segment)
    if not size and not tcp.flags & dpkt.tcp.TH_RST and at > mine.top and mine.sent and mine.beyond is None:
        mine.beyond = at, now
    return found


def of_flags(mine: Side, tcp: Any, segment: Segment, ip: Any) -> list[Event]:
    if tcp.flags & dpkt.tcp.TH_RST:
        ttl = ip.ttl if isinstance(ip, dpkt.ip.IP) else ip.hlim
        return [{"kind": "reset", "packet": segment.number, "ttl": ttl, "usual_ttl": mine.ttl}]
    found = []
    for flag in (dpkt.tcp.TH_SYN, dpkt.tcp.TH_FIN):
        if tcp.flags & flag:
            first = mine.flags.get(flag)
            if first is None:
                mine.flags[flag] = segment
            elif segment.begin == segment.end and (flag != dpkt.tcp.TH_SYN or segment.ts_ns - first.ts_ns > COPY_NS):
                late_ns = segment.ts_ns - first.ts_ns
                event = {"kind": "retransmission", "packet": segment.number, "of_packet": first.number}
                found.append(event | {"bytes": 0, "late_ns": late_ns})
    return found


def of_ack(theirs: Side, tcp: Any, segment: Segment, acked: int) -> list[Event]:
    """`theirs` is the side whose bytes are acknowledged."""
    last = next((one for one in reversed(theirs.sent) if one.end == acked), None)
    if last is None or last.again:
        return []
    took = segment.ts_ns - last.ts_ns
    least = took if theirs.least_ns is None else theirs.least_ns
    theirs.least_ns = min(least, took)
    theirs.trip_ns = took if theirs.trip_ns is None else min(took, theirs.trip_ns)
    is_alone = not tcp.data and not tcp.flags & (dpkt.tcp.TH_SYN | dpkt.tcp.TH_FIN | dpkt.tcp.TH_RST)
    if is_alone:
        theirs.bare_ns = took if theirs.bare_ns is None else min(took, theirs.bare_ns)
    if not is_alone or took - least not in DELAY_NS:
        return []
    if acked >= theirs.top:
        theirs.released = segment, took
    event = {"kind": "delayed-ack", "packet": segment.number, "of_packet": last.number}
    return [event | {"bytes": acked - theirs.acked, "late_ns": took}]


def of_number(mine: Side, theirs: Side, ip: Any, segment: Segment, rtt_ns: int) -> list[Event]:
    """Packets of one end are numbered one by one: is one missing before bytes that come after a pause?"""
    if not isinstance(ip, dpkt.ip.IP) or not ip.id:
        mine.numbers.clear()
        return []
    found: list[Event] = []
    before = mine.numbers
    mine.numbers = [*before[-9:], (ip.id, segment.ts_ns, theirs.top if theirs.acked >= theirs.top else -1)]
    if before:
        left_out = (ip.id - before[-1][0]) % 65536 - 1
        pause = segment.ts_ns - before[-1][1]
        is_late = pause >= max(100_000_000, 2 * rtt_ns) and segment.end > segment.begin == mine.top
        if left_out and len(before) >= 9 and left_out in range(1, 5) and ip.ttl <= 64 and is_late:
            if before[-1][2] == theirs.top:
                event = {"kind": "retransmission", "packet": segment.number, "of_packet": None}
                found.append(event | {"bytes": segment.end - segment.begin, "late_ns": min(pause, 200_000_000)})
        if left_out and not found:
            mine.numbers = mine.numbers[-1:]
    if segment.end - segment.begin > 1460:
        mine.numbers.clear()
    return found


def of_bytes(mine: Side, theirs: Side, segment: Segment, rtt_ns: int) -> list[Event]:
    found = []
    top, usual = mine.top, rtt_ns or 3_000_000
    event = {"kind": "retransmission", "packet": segment.number, "of_packet": None}
    if segment.begin < top - 1:
        event["bytes"] = min(segment.end, top) - segment.begin
        first = next((one for one in mine.sent if one.begin <= segment.begin < one.end), None)
        is_seen = any(one.begin <= segment.begin < one.end for one in mine.arrived)
        later = min((one for one in mine.arrived if one.begin > segment.begin), key=lambda one: one.begin, default=None)
        for one in mine.sent:
            one.again |= one.begin < segment.end and segment.begin < one.end
        if first is not None and is_seen:
            found.append(event | {"of_packet": first.number, "late_ns": segment.ts_ns - first.ts_ns})
        elif is_seen:
            found.append(event | {"late_ns": None})
        elif later is not None and segment.ts_ns - later.ts_ns >= usual:
            found.append(event | {"late_ns": segment.ts_ns - later.ts_ns})
        if found and segment.end <= mine.acked:
            found[-1]["late_ns"] = None
    elif mine.beyond is not None and segment.begin < mine.beyond[0] and segment.ts_ns - mine.beyond[1] >= usual:
        event["bytes"] = min(segment.end, mine.beyond[0]) - segment.begin
        found.append(event | {"late_ns": segment.ts_ns - mine.beyond[1]})
    if segment.end > top:
        theirs.released = None
        if mine.released is not None:
            ack, late_ns = mine.released
            if 0 <= segment.ts_ns - ack.ts_ns <= RELEASE_NS + (rtt_ns if mine.near_ns is None else mine.near_ns):
                held = {"kind": "held-write", "packet": segment.number, "of_packet": ack.number}
                found.append(held | {"bytes": segment.end - top, "late_ns": late_ns})
            mine.released = None
        if mine.beyond is not None and segment.end >= mine.beyond[0]:
            mine.beyond = None
    return found
