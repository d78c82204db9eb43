"""A slow look into captures without gaps: just enough to check that a golden and its capture belong together.

It takes segments as dpkt gives them and puts each direction together in memory, so it is for small files only.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import dpkt
import xxhash
from pamqp import commands

KINDS = {"basic.publish": "publish", "basic.deliver": "deliver", "basic.get-ok": "get", "basic.return": "return"}
# bytes before the IP header and where its protocol number stands: Ethernet, SLL, SLL2
_LAYERS = ((14, 12), (16, 14), (20, 0))
_OTHERS = {0: "protocol headers", 2: "header frames", 3: "body frames", 8: "heartbeat frames"}
_VERSIONS = {b"\x08\x00": 4, b"\x86\xdd": 6}


@dataclass
class Stream:
    """One direction of one connection."""

    client_port: int
    server_port: int
    from_client: bool
    first: int | None = None
    segments: dict[int, bytes] = field(default_factory=dict)

    def content(self) -> bytes:
        """All of it, in order; what was sent again counts once."""
        whole = b""
        for at in sorted(self.segments):
            if at <= len(whole):
                whole = whole[:at] + self.segments[at] if at + len(self.segments[at]) > len(whole) else whole
        return whole


def _ip(data: bytes) -> dpkt.ip.IP | dpkt.ip6.IP6:
    if data[0] >> 4 == 4:  # raw IP; no address of a recorded Ethernet or protocol of a cooked header begins so
        return dpkt.ip.IP(data)
    for length, at in _LAYERS:
        version = _VERSIONS.get(data[at : at + 2])
        if version is not None and data[length] >> 4 == version:
            return dpkt.ip.IP(data[length:]) if version == 4 else dpkt.ip6.IP6(data[length:])
    raise ValueError("a link layer that is not among those recorded")


def packets(capture: Path) -> list[bytes]:
    """All packets of a capture, or of a folder of captures in the order of their names."""
    found: list[bytes] = []
    for path in sorted(capture.glob("*.pcap")) if capture.is_dir() else [capture]:
        with path.open("rb") as file:
            found += [data for _, data in dpkt.pcap.UniversalReader(file)]
    return found


def streams(capture: Path) -> list[Stream]:
    """Both directions of every connection of a capture, each connection's client first."""
    known: dict[tuple[bytes, bytes, int, int], Stream] = {}
    found: list[Stream] = []
    for data in packets(capture):
        packet = _ip(data)
        tcp = packet.data
        key = (packet.src, packet.dst, tcp.sport, tcp.dport)
        back = (packet.dst, packet.src, tcp.dport, tcp.sport)
        opening = bool(tcp.flags & dpkt.tcp.TH_SYN) and not tcp.flags & dpkt.tcp.TH_ACK
        again = opening and key in known and known[key].first == tcp.seq + 1
        if (opening and not again) or key not in known:
            client = (tcp.sport, tcp.dport) if opening or tcp.sport > tcp.dport else (tcp.dport, tcp.sport)
            known[key] = Stream(*client, from_client=tcp.sport == client[0])
            known[back] = Stream(*client, from_client=tcp.sport != client[0])
            found += [known[key], known[back]]
        stream = known[key]
        if stream.first is None:
            stream.first = tcp.seq + bool(tcp.flags & dpkt.tcp.TH_SYN)
        if tcp.data:
            at = (tcp.seq - stream.first) % 2**32
            stream.segments[at] = max(tcp.data, stream.segments.get(at, b""), key=len)
    return found


def frames(data: bytes) -> list[tuple[int, int, bytes]]:
    """Frame types, channels and payloads, up to the first thing that is no whole frame; a protocol header is type 0."""
    result = []
    at = 0
    while at + 8 <= len(data):
        if data[at : at + 4] == b"AMQP":
            result.append((0, 0, data[at : at + 8]))
            at += 8
            continue
        kind, channel, size = struct.unpack_from(">BHI", data, at)
        if kind not in (1, 2, 3, 8) or data[at + 7 + size : at + 8 + size] != b"\xce":
            break
        result.append((kind, channel, data[at + 7 : at + 7 + size]))
        at += 8 + size
    return result


def name(payload: bytes) -> str:
    """The name of a method frame's method."""
    (index,) = struct.unpack_from(">I", payload)
    command = commands.INDEX_MAPPING.get(index)
    if command is None:
        return "unknown"
    spelled: str = command.name  # type: ignore[attr-defined]
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", spelled).lower()


def counts(capture: Path) -> Counter[str]:
    """How often each method comes in a capture, with body and heartbeat frames, and connections by their SYN."""
    found: Counter[str] = Counter()
    for stream in streams(capture):
        found["connections"] += stream.from_client
        for kind, _, payload in frames(stream.content()):
            found[name(payload) if kind == 1 else _OTHERS[kind]] += 1
    return found


def messages(capture: Path) -> Counter[tuple[int, str, int, int, int]]:
    """Client ports, kinds, channels, sizes and hashes (xxHash64, seed 42, signed) of all whole contents."""
    found: Counter[tuple[int, str, int, int, int]] = Counter()
    for stream in streams(capture):
        begun: dict[int, tuple[str, int, bytes]] = {}
        for kind, channel, payload in frames(stream.content()):
            if kind == 1 and name(payload) in KINDS:
                begun[channel] = (KINDS[name(payload)], -1, b"")
            elif kind in (2, 3) and channel in begun:
                method, size, body = begun[channel]
                size, body = (struct.unpack_from(">Q", payload, 4)[0], b"") if kind == 2 else (size, body + payload)
                begun[channel] = (method, size, body)
                if len(body) == size:
                    (hashed,) = struct.unpack(">q", xxhash.xxh64_digest(body, seed=42))
                    found[stream.client_port, method, channel, size, hashed] += 1
                    del begun[channel]
    return found
