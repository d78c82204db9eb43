"""Acknowledgements of frames in the plainest way: every packet after a frame is looked at, one by one.

Streams begin with a SYN and lack nothing; frames follow each other without anything between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import dpkt

from tests.reference.packets import ends_of, ip_of, read_packets

Row = Mapping[str, Any]


class Segment(NamedTuple):
    """A packet of a connection; `acked`: bytes of the other side that it acknowledges."""

    number: int
    from_client: bool
    acked: int


def segments(path: Path) -> dict[int, list[Segment]]:
    """The segments of each connection of a file, by the number of its SYN."""
    found: dict[int, list[Segment]] = {}
    current: dict[frozenset[str], tuple[int, str, dict[str, int]]] = {}
    for packet in read_packets(path):
        ip = ip_of(packet)
        if ip is None:
            continue
        (source, destination), tcp = ends_of(ip), ip.data
        pair, flags = frozenset((source, destination)), tcp.flags
        if flags & (dpkt.tcp.TH_SYN | dpkt.tcp.TH_ACK) == dpkt.tcp.TH_SYN:
            if pair not in current or current[pair][2].get(source) != tcp.seq:
                current[pair] = packet.number, source, {}
        if pair not in current:
            continue
        first, client, begins = current[pair]
        if flags & dpkt.tcp.TH_SYN:
            begins[source] = tcp.seq
        if flags & dpkt.tcp.TH_ACK and not flags & dpkt.tcp.TH_RST and destination in begins:
            acked = (tcp.ack - begins[destination] - 1) % 2**32
            found.setdefault(first, []).append(Segment(packet.number, source == client, acked))
    return found


def acknowledged(frames: Iterable[Row], sent: Sequence[Segment]) -> dict[int, int]:
    """The packet that acknowledged each frame first, by `frame_no`; none where that came before it could be read.

    Args:
        frames: rows of one connection, all of them, in order.
        sent: its segments, in order.
    """
    ends: dict[bool, int] = defaultdict(int)
    found = {}
    for row in frames:
        side = row["from_client"]
        ends[side] += row["size"]
        first = next((s for s in sent if s.from_client != side and ends[side] <= s.acked < 1 << 31), None)
        if first is not None and first.number > row["packet"]:
            found[row["frame_no"]] = first.number
    return found


def differences(frames: Sequence[Row], acks: Iterable[Row], expected: Mapping[int, int], asks: Iterable[int]) -> Any:
    """What rows of `tcp_acks` of a connection say otherwise.

    Args:
        frames: see `acknowledged`.
        acks: rows of `tcp_acks`.
        expected: what `acknowledged` returns.
        asks: numbers of the frames that must be in them.
    """
    found: dict[int, int] = {}
    wrong = []
    for ack in acks:
        span = range(ack["first_frame_no"], ack["last_frame_no"] + 1)
        mine = [row for row in frames if row["frame_no"] in span and row["from_client"] != ack["from_client"]]
        if not mine or mine[0]["frame_no"] != span[0] or mine[-1]["frame_no"] != span[-1]:
            wrong.append(ack)
        for row in mine:
            if row["frame_no"] in found:
                wrong.append(row)
            found[row["frame_no"]] = ack["packet"]
    wrong += [(number, packet) for number, packet in found.items() if expected.get(number) != packet]
    return wrong + [(number, None) for number in asks if number in expected and number not in found]
