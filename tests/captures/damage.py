"""What may happen to a capture: packets out of order, again, overlapping, lost, cut; and what is found in it then.

    python -m tests.captures.damage [--seeds N] [capture...]

damages all recordings in all ways and says, for each way, how many of the frames that are still whole were found, how
many rows are of no frame that was sent, and how many publishes tshark sees in the same files.

A packet's `interface` is its number in the undamaged capture; what was made up has that of the packet it repeats.
"""

from __future__ import annotations

import argparse
import random
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.dissector.builders import Packet, pcap
from tests.dissector.runs import dissect_packets, recorded, rows

FOLDER = Path(__file__).parent
SYN, FIN_SYN_RST = 2, 7
NEAR = 8
"""How many places a packet is moved at most."""


class Segment(NamedTuple):
    """Where things are in a packet."""

    flow: tuple[bytes, int, int]
    """Both addresses, source and target port."""
    tcp: int
    payload: int
    flags: int
    ip: int


def dissect_octets(octets: bytes, link: int) -> Segment | None:
    """The TCP segment in a packet of Ethernet, cooked capture or nothing around IP; None when there is none."""
    ip = {1: 14, 101: 0, 113: 16, 276: 20}[link]
    if len(octets) < ip + 40:
        return None
    if octets[ip] >> 4 == 4:
        if octets[ip + 9] != 6:
            return None
        addresses, tcp = octets[ip + 12 : ip + 20], ip + (octets[ip] & 15) * 4
    elif octets[ip] >> 4 == 6 and octets[ip + 6] == 6:
        addresses, tcp = octets[ip + 8 : ip + 40], ip + 40
    else:
        return None
    ports = struct.unpack_from(">HH", octets, tcp)
    return Segment((addresses, *ports), tcp, tcp + (octets[tcp + 12] >> 4) * 4, octets[tcp + 13], ip)


def other_way(flow: tuple[bytes, int, int]) -> tuple[bytes, int, int]:
    half = len(flow[0]) // 2
    return flow[0][half:] + flow[0][:half], flow[2], flow[1]


@dataclass
class Capture:
    """Packets in their order, and what each is."""

    packets: list[Packet]
    link: int

    def __post_init__(self) -> None:
        self.segments = [dissect_octets(p.octets, self.link) for p in self.packets]

    def data(self, i: int) -> int:
        """Octets of payload in a packet, trailers of short frames left out."""
        segment, octets = self.segments[i], self.packets[i].octets
        if segment is None:
            return 0
        if octets[segment.ip] >> 4 == 4:
            end = segment.ip + int.from_bytes(octets[segment.ip + 2 : segment.ip + 4], "big")
        else:
            end = segment.ip + 40 + int.from_bytes(octets[segment.ip + 4 : segment.ip + 6], "big")
        return max(end - segment.payload, 0)


def numbered(packets: list[Packet]) -> list[Packet]:
    """The packets with their numbers, from 1."""
    return [replace(p, interface=i) for i, p in enumerate(packets, 1)]


def in_time(packets: list[Packet], times: list[int]) -> list[Packet]:
    """The packets at ascending times: those of a capture, each as often as it takes."""
    ordered = sorted(times)
    spread = [ordered[i * len(ordered) // len(packets)] for i in range(len(packets))]
    return [replace(p, ts_ns=t) for p, t in zip(packets, spread, strict=True)]


def reordered(capture: Capture, rnd: random.Random, share: float = 0.25) -> list[Packet]:
    """Move packets, though none beyond what the other side said, nor beyond the beginning or end of its connection."""
    order = list(range(len(capture.packets)))
    for i in rnd.sample(order, round(len(order) * share)):
        at = order.index(i)
        for _ in range(rnd.randint(1, NEAR)):
            if at + 1 == len(order) or not may_swap(capture, i, order[at + 1]):
                break
            order[at], order[at + 1] = order[at + 1], order[at]
            at += 1
    return in_time([capture.packets[i] for i in order], [p.ts_ns for p in capture.packets])


def may_swap(capture: Capture, i: int, j: int) -> bool:
    one, two = capture.segments[i], capture.segments[j]
    if one is None or two is None or two.flow not in (one.flow, other_way(one.flow)):
        return True
    if (one.flags | two.flags) & FIN_SYN_RST:
        return False
    return one.flow == two.flow or capture.data(i) == 0 or capture.data(j) == 0


def repeated(capture: Capture, rnd: random.Random, share: float = 0.2) -> list[Packet]:
    """Repeat packets a little later."""
    out = [(float(i), p) for i, p in enumerate(capture.packets)]
    chosen = rnd.sample(range(len(out)), round(len(out) * share))
    out += [(i + rnd.randint(0, NEAR) + 0.5, capture.packets[i]) for i in chosen]
    packets = [p for _, p in sorted(out, key=lambda item: item[0])]
    return in_time(packets, [p.ts_ns for p in capture.packets])


def overlapping(capture: Capture, rnd: random.Random, share: float = 0.2) -> list[Packet]:
    """Send ranges again that begin in one segment and end in the next."""
    out: list[Packet] = []
    last: dict[tuple[bytes, int, int], int] = {}
    for i, packet in enumerate(capture.packets):
        segment = capture.segments[i]
        out.append(packet)
        size = capture.data(i)
        if segment is None or size == 0 or size > len(packet.octets) - segment.payload:
            continue
        before = last.get(segment.flow)
        last[segment.flow] = i
        if before is None or rnd.random() >= share:
            continue
        theirs = capture.segments[before]
        assert theirs is not None
        previous = capture.packets[before].octets[theirs.payload :][: capture.data(before)]
        ours = packet.octets[segment.payload :][:size]
        seq = int.from_bytes(capture.packets[before].octets[theirs.tcp + 4 : theirs.tcp + 8], "big")
        if (seq + len(previous)) % 2**32 != int.from_bytes(packet.octets[segment.tcp + 4 : segment.tcp + 8], "big"):
            continue
        back, on = rnd.randint(1, len(previous)), rnd.randint(1, len(ours))
        out.append(replace(packet, octets=built(packet.octets, segment, seq + len(previous) - back,
                                                previous[-back:] + ours[:on]), length=-1))  # fmt: skip
    return in_time(out, [p.ts_ns for p in capture.packets])


def built(octets: bytes, segment: Segment, seq: int, payload: bytes) -> bytes:
    """The packet with another payload (checksums are nobody's business here)."""
    head = bytearray(octets[: segment.payload])
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
    """Lose packets with data, one at least."""
    data = [i for i in range(len(capture.packets)) if capture.data(i)]
    lost = set(rnd.sample(data, max(round(len(capture.packets) * share), 1))) if data else set()
    return [p for i, p in enumerate(capture.packets) if i not in lost]


def snapped(capture: Capture, rnd: random.Random, snap: int = 128) -> list[Packet]:
    """A snap length."""
    return [replace(p, octets=p.octets[:snap], length=p.wire) for p in capture.packets]


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


Damage = Callable[[Capture, random.Random], list[Packet]]
HARMLESS: dict[str, Damage] = {"reordered": reordered, "repeated": repeated, "overlapping": overlapping}
HARMFUL: dict[str, Damage] = {"lossy": lossy, "snapped": snapped, "late": late, "one way": one_way}

# What was found

LEFT_OUT = {
    "connection_id", "frame_no", "capture", "packet", "ts_ns", "ts", "first_capture", "first_packet", "first_ts_ns",
    "channel_epoch", "is_partial", "missing",
}  # fmt: skip
Row = dict[str, Any]


def places(rows: list[Row], packets: list[Packet]) -> list[tuple[int, int, Row]]:
    """Rows with the numbers of their first and last packet in the undamaged capture, and what they say."""
    return [
        (packets[r["first_packet"] - 1].interface, packets[r["packet"] - 1].interface,
         {name: value for name, value in r.items() if name not in LEFT_OUT and value is not None}) for r in rows
    ]  # fmt: skip


@dataclass
class Score:
    """What was found of a damaged capture.

    Attributes:
        sent: frames of the undamaged one.
        visible: those of which no octet is missing.
        found: rows for these; cut: rows of frames with a hole; invented: rows of nothing.
    """

    sent: int = 0
    visible: int = 0
    found: int = 0
    cut: int = 0
    invented: int = 0
    publishes: int = 0
    by_tshark: int = 0

    def add(self, other: Score) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def compare(
    capture: Capture, whole: list[Row], damaged: list[Packet], found: list[Row], missed: list[Row] | None = None
) -> Score:
    """Hold the rows of a damaged capture against those of the undamaged one; `missed` takes frames not found."""
    there = visible_octets(capture, damaged)
    score = Score(sent=len(whole))
    sent: dict[tuple[Any, ...], list[Row]] = {}
    visible: Counter[tuple[Any, ...]] = Counter()
    for first, last, row in places(whole, capture.packets):
        key = first, row["from_client"], kind(row), row["size"]
        sent.setdefault(key, []).append(row)
        # a frame is taken for whole when all packets of its direction from its first to its last are
        segment = capture.segments[first - 1]
        mine = [i for i in range(first - 1, last) if (s := capture.segments[i]) and segment and s.flow == segment.flow]
        if all(there[i] for i in mine):
            visible[key] += 1
    matched: Counter[tuple[Any, ...]] = Counter()
    for (first, _, row), raw in zip(places(found, damaged), found, strict=True):
        key = first, row["from_client"], kind(row), row["size"]
        if raw["is_partial"] and row.get("method") is None and row.get("frame_type") == "method":
            candidates = [r for k, rs in sent.items() if (k[0], k[1], k[3]) == (first, key[1], key[3]) for r in rs]
        else:
            candidates = sent.get(key, [])
        same = [r for r in candidates if all(r.get(n) == v or raw["is_partial"] for n, v in row.items())]
        if not same:
            score.invented += 1
        elif raw["is_partial"]:
            score.cut += 1
        else:
            matched[key] += 1
    score.visible = sum(visible.values())
    score.found = sum(min(count, matched[key]) for key, count in visible.items())
    score.invented += sum(max(count - len(sent[key]), 0) for key, count in matched.items())
    if missed is not None:
        for key, count in visible.items():
            missed += [{"key": key, **sent[key][0]}] * max(count - matched[key], 0)
    score.publishes = sum(row.get("method") == "basic.publish" for row in found)
    return score


def kind(row: Row) -> str:
    return str(row.get("method") or row.get("command") or row.get("frame_type"))


def visible_octets(capture: Capture, damaged: list[Packet]) -> list[bool]:
    """Of each packet of the undamaged capture whether all of its octets are still there."""
    whole = {p.interface for p in damaged if len(p.octets) >= len(capture.packets[p.interface - 1].octets)}
    return [p.interface in whole or not capture.data(i) for i, p in enumerate(capture.packets)]


def publishes_by_tshark(packets: list[Packet], link: int) -> int:
    """How many publishes tshark sees."""
    with tempfile.NamedTemporaryFile(suffix=".pcap") as file:
        file.write(pcap(packets, link=link))
        file.flush()
        fields = ["-e", "amqp.method.class", "-e", "amqp.method.method"]
        order = ["-o", "tcp.reassemble_out_of_order:TRUE"]
        command = ["tshark", "-r", file.name, *order, "-Y", "amqp", "-T", "fields", *fields]
        out = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    pairs = [zip(*(part.split(",") for part in line.split("\t")), strict=False) for line in out.splitlines()]
    return sum(pair == ("60", "40") for line in pairs for pair in line)


# Figures

OTHER_WAYS = {"snapped", "lossy_link"}
"""Recordings that have holes, or disorder of their own: which packet brought an octet first changes there."""


def recordings() -> list[Path]:
    """The recordings that can be damaged: of one file, whole, of Ethernet or cooked captures."""
    return [path for path in sorted(FOLDER.glob("*.pcap")) if path.stem not in OTHER_WAYS]


def measure(name: str, capture: Capture, way: str, seed: int, with_tshark: bool) -> Score:
    """Damage a capture and score what is found."""
    damaged = (HARMLESS | HARMFUL)[way](capture, random.Random(f"{seed} {name}"))
    before, after = dissect_packets(capture.packets, capture.link), dissect_packets(damaged, capture.link)
    score = Score()
    for table in ("amqp091_frames", "stream_frames"):
        score.add(compare(capture, rows(before[table]), damaged, rows(after[table])))
    if with_tshark:
        score.by_tshark = publishes_by_tshark(damaged, capture.link)
    return score


def main(arguments: list[str]) -> int:
    """Print a table of what was found; 1 when a row was of nothing that was sent."""
    parser = argparse.ArgumentParser(prog="python -m tests.captures.damage", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="how often each recording is damaged (default 3)")
    parser.add_argument("--no-tshark", action="store_true")
    parser.add_argument("captures", nargs="*", type=Path, help="default: the recordings")
    given = parser.parse_args(arguments)
    print("| damage | frames | whole | found | | cut | invented | publishes | by tshark |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    invented = 0
    for way in HARMLESS | HARMFUL:
        total = Score()
        for path in given.captures or recordings():
            packets, link = recorded(path.name)
            capture = Capture(numbered(packets), link)
            for seed in range(given.seeds):
                total.add(measure(path.name, capture, way, seed, not given.no_tshark))
        share = f"{total.found / max(total.visible, 1):.2%}"
        invented += total.invented
        print(
            f"| {way} | {total.sent} | {total.visible} | {total.found} | {share} | {total.cut} | {total.invented} "
            f"| {total.publishes} | {total.by_tshark} |",
            flush=True,
        )
    return int(invented > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
