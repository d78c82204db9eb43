"""Ways to damage captures that leave a pattern: what a filter, a card, a script or a second interface does to them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.captures.damage.ways import FIN_SYN_RST, Capture, built, toward_server
from tests.dissector.builders import Packet

SECOND_NS = 1_000_000_000


def kept(capture: Capture, is_lost: Callable[[int], bool]) -> list[Packet]:
    return [packet for i, packet in enumerate(capture.packets) if not is_lost(i)]


def every_second(capture: Capture, rnd: random.Random) -> list[Packet]:
    """Lose every second packet with data of one direction, as one of two bonded links does."""
    to_server, side = toward_server(capture), rnd.random() < 0.5
    mine = [i for i in range(len(capture.packets)) if capture.data(i) and to_server[i] == side]
    lost = set(mine[rnd.randint(0, 1) :: 2])
    return kept(capture, lambda i: i in lost)


def stuttering(capture: Capture, rnd: random.Random) -> list[Packet]:
    """Lose the first part of each stretch of time, of which a capture has ten: the disk is slow again and again."""
    first = capture.packets[0].ts_ns
    stretch = max((capture.packets[-1].ts_ns - first) // 10, 1)
    share = rnd.uniform(0.05, 0.4)
    return kept(capture, lambda i: (capture.packets[i].ts_ns - first) % stretch < share * stretch and i > 0)


def resumed(capture: Capture, rnd: random.Random) -> list[Packet]:
    """End within the handshakes, and go on some packets later."""
    begin = rnd.randint(3, min(16, len(capture.packets)))
    end = begin + rnd.randint(1, max(len(capture.packets) // 4, 1))
    return kept(capture, lambda i: begin <= i < end)


def two_snap_lengths(capture: Capture, rnd: random.Random) -> list[Packet]:
    """Two interfaces, one for each direction, of which one cuts packets."""
    to_server, side, snap = toward_server(capture), rnd.random() < 0.5, rnd.randint(70, 300)
    return [
        replace(p, data=p.data[:snap], length=p.wire) if to == side else p
        for p, to in zip(capture.packets, to_server, strict=True)
    ]


def cut_anywhere(capture: Capture, rnd: random.Random) -> list[Packet]:
    """Cut some packets, each to another length, behind its TCP header."""
    packets = list(capture.packets)
    for i, segment in enumerate(capture.segments):
        if segment and capture.data(i) and rnd.random() < 0.1:
            size = rnd.randint(segment.payload, len(packets[i].data))
            packets[i] = replace(packets[i], data=packets[i].data[:size], length=packets[i].wire)
    return packets


def copied_late(capture: Capture, rnd: random.Random) -> list[Packet]:
    """Repeat some packets a second later, as a mirror port that is congested does."""
    copies = [replace(p, ts_ns=p.ts_ns + SECOND_NS) for p in capture.packets if rnd.random() < 0.2]
    return sorted([*capture.packets, *copies], key=lambda packet: packet.ts_ns)


def without_acks(capture: Capture, _: random.Random) -> list[Packet]:
    """Keep only packets with data, and the ones that begin and end connections: a filter on lengths."""
    segments = capture.segments
    return kept(capture, lambda i: bool((s := segments[i]) and not capture.data(i) and not s.flags & FIN_SYN_RST))


def only_data(capture: Capture, _: random.Random) -> list[Packet]:
    """Keep only packets with data: neither SYN, nor FIN, nor RST."""
    return kept(capture, lambda i: capture.segments[i] is not None and not capture.data(i))


def mute_side(capture: Capture, rnd: random.Random) -> list[Packet]:
    """Keep of one direction only what has no data: acknowledgements without what they travel with."""
    to_server, side = toward_server(capture), rnd.random() < 0.5
    return kept(capture, lambda i: bool(capture.data(i)) and to_server[i] == side)


def without_options(capture: Capture, _: random.Random) -> list[Packet]:
    """Take the options of TCP out of all packets but SYNs, as devices in between do."""
    packets = list(capture.packets)
    for i, segment in enumerate(capture.segments):
        size = capture.data(i)
        if segment is None or segment.flags & FIN_SYN_RST == 2 or size > len(packets[i].data) - segment.payload:
            continue
        data = packets[i].data
        payload = data[segment.payload :][:size]
        head = bytearray(data[: segment.tcp + 20])
        head[segment.tcp + 12] = 0x50
        seq = int.from_bytes(head[segment.tcp + 4 : segment.tcp + 8], "big")
        short = segment._replace(payload=segment.tcp + 20)
        packets[i] = replace(packets[i], data=built(bytes(head), short, seq, payload), length=-1)
    return packets


def tagged_copies(capture: Capture, rnd: random.Random) -> list[Packet]:
    """Each packet of a mirror port twice, once with a VLAN tag, a moment later; some copies are missing."""
    packets = []
    for packet in capture.packets:
        packets.append(packet)
        if capture.link == 1 and rnd.random() < 0.9:
            tagged = packet.data[:12] + b"\x81\x00\x00\x07" + packet.data[12:]
            packets.append(replace(packet, data=tagged, length=packet.wire + 4))
    return packets


THINNED: dict[str, Callable[[Capture, random.Random], list[Packet]]] = {
    "every second": every_second, "stuttering": stuttering, "resumed": resumed, "two snap lengths": two_snap_lengths,
    "cut anywhere": cut_anywhere, "copied late": copied_late, "without acks": without_acks, "only data": only_data,
    "mute side": mute_side, "without options": without_options, "tagged copies": tagged_copies,
}  # fmt: skip
