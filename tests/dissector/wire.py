"""Connections of AMQP 0-9-1 and the packets that could have carried them. pamqp writes the frames."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pamqp import commands, header
from pamqp import frame as pamqp_frame

from tests.dissector.builders import Packet, ethernet, ipv4, ipv6, tcp

T0 = 1_700_000_000_000_000_000
STEP = 1_000_000
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
CLIENT, SERVER = 0, 1
HEADER = b"AMQP\0\0\x09\x01"

Turn = tuple[int, bytes]
"""Who speaks, and what: it is all sent before the other answers."""


def raw(kind: int, channel: int, payload: bytes, end: int = 0xCE) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])


def method(command: Any, channel: int = 1) -> bytes:
    data: bytes = pamqp_frame.marshal(command, channel)
    return data


def content(body: bytes, channel: int = 1, largest: int = 4096, **properties: Any) -> list[bytes]:
    """Header and body frames."""
    head = header.ContentHeader(body_size=len(body), properties=commands.Basic.Properties(**properties))
    frames = [pamqp_frame.marshal(head, channel)]
    return frames + [raw(3, channel, body[at : at + largest]) for at in range(0, len(body), largest)]


def publish(
    body: bytes = b"x", channel: int = 1, key: str = "k", largest: int = 4096, **properties: Any
) -> list[bytes]:
    command = commands.Basic.Publish(exchange="e", routing_key=key)
    return [method(command, channel), *content(body, channel, largest, **properties)]


def deliver(tag: int, body: bytes = b"x", channel: int = 1, consumer: str = "c", largest: int = 4096) -> list[bytes]:
    command = commands.Basic.Deliver(consumer_tag=consumer, delivery_tag=tag, exchange="e", routing_key="k")
    return [method(command, channel), *content(body, channel, largest, message_id=f"m{tag}")]


def interleaved(*contents: list[bytes]) -> bytes:
    """Frames of several channels in turn."""
    longest = max(map(len, contents))
    return b"".join(frames[i] for i in range(longest) for frames in contents if i < len(frames))


def handshake(name: str | None = None, vhost: str = "/") -> list[Turn]:
    """What both say until a connection is up.

    Args:
        name: of the client (connection_name).
        vhost: its virtual host.
    """
    start = commands.Connection.Start(server_properties={"product": "broker"}, mechanisms="PLAIN", locales="en_US")
    start_ok = commands.Connection.StartOk(
        client_properties={"capabilities": {"basic.nack": True}} | ({"connection_name": name} if name else {}),
        mechanism="PLAIN", response="\0guest\0s3cret-guest", locale="en_US",
    )  # fmt: skip
    tune = {"channel_max": 2047, "frame_max": 131072, "heartbeat": 60}
    return [
        (CLIENT, HEADER),
        (SERVER, method(start, 0)),
        (CLIENT, method(start_ok, 0)),
        (SERVER, method(commands.Connection.Tune(**tune), 0)),
        (
            CLIENT,
            method(commands.Connection.TuneOk(**tune), 0) + method(commands.Connection.Open(virtual_host=vhost), 0),
        ),
        (SERVER, method(commands.Connection.OpenOk(), 0)),
    ]


def opening(channel: int) -> list[Turn]:
    return [(CLIENT, method(commands.Channel.Open(), channel)), (SERVER, method(commands.Channel.OpenOk(), channel))]


def session() -> list[Turn]:
    """A bit of everything: two channels, bodies that look like frames, empty bodies, confirms, deliveries, gets."""
    inner = b"".join(publish(b"inner", 1)) + HEADER + b"".join(deliver(9, b"\xce" * 20))
    turns = handshake() + opening(1) + opening(2)
    turns += [
        (CLIENT, method(commands.Confirm.Select()) + b"".join(publish(inner, priority=3, headers={"n": 1}))),
        (SERVER, method(commands.Confirm.SelectOk())),
        (CLIENT, interleaved(publish(b"one" * 50, 1, largest=40), publish(inner, 2, largest=33), publish(b"", 1)[:0])),
        (SERVER, method(commands.Basic.Ack(delivery_tag=2, multiple=True)) + raw(8, 0, b"")),
        (CLIENT, raw(8, 0, b"") + b"".join(publish(b"")) + b"".join(publish(inner * 3, largest=100))),
        (CLIENT, method(commands.Basic.Consume(queue="q", consumer_tag="c", no_ack=True), 2)),
        (SERVER, method(commands.Basic.ConsumeOk(consumer_tag="c"), 2) + b"".join(deliver(1, inner, 2, largest=50))),
        (CLIENT, method(commands.Basic.Get(queue="q"), 2) + method(commands.Basic.Get(queue="q", no_ack=True), 2)),
        (SERVER, method(commands.Basic.GetEmpty(), 2)),
        (
            SERVER,
            method(commands.Basic.GetOk(delivery_tag=2, exchange="e", routing_key="k", message_count=0), 2)
            + b"".join(content(b"\xce" * 300, 2, 64)),
        ),
        (CLIENT, method(commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0), 1)),
        (SERVER, method(commands.Channel.CloseOk(), 1)),
    ]
    return turns + opening(1) + [(CLIENT, b"".join(publish(b"again")))]


@dataclass
class Tape:
    """Packets of one connection, one each millisecond.

    Attributes:
        isn: initial sequence numbers of client and server.
        syn: whether the three packets of the beginning are there.
        scale: window scale of both sides, if they have that option.
    """

    isn: tuple[int, int] = (1000, 2000)
    syn: bool = True
    scale: int | None = None
    port: int = 40000
    server_port: int = 5672
    v6: bool = False
    start_ns: int = T0
    packets: list[Packet] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.next = [(number + 1) % 2**32 for number in self.isn]
        if self.syn:
            options = b"" if self.scale is None else bytes([3, 3, self.scale])
            self.segment(CLIENT, seq=self.isn[0], flags=SYN, ack=0, options=options)
            self.segment(SERVER, seq=self.isn[1], flags=SYN | ACK, options=options)
            self.segment(CLIENT)

    def segment(
        self, side: int, payload: bytes = b"", seq: int | None = None, flags: int = ACK, ack: int | None = None,
        kept: int | None = None, window: int = 65535, options: bytes = b"",
    ) -> None:  # fmt: skip
        """Add a packet as it is, of which the capture kept so many bytes."""
        ports = (self.port, self.server_port) if side == CLIENT else (self.server_port, self.port)
        seq = self.next[side] if seq is None else seq
        ack = self.next[1 - side] if ack is None else ack
        data = tcp(payload, *ports, seq % 2**32, ack, flags, window, options)
        ends = ("fd00::1", "fd00::2") if self.v6 else ("10.0.0.1", "10.0.0.2")
        ends = ends if side == CLIENT else ends[::-1]
        ident = len(self.packets) % 65535 + 1
        data = ethernet(ipv6(data, *ends), 0x86DD) if self.v6 else ethernet(ipv4(data, *ends, ident=ident))
        wire = len(data)
        self.packets.append(Packet(self.start_ns + len(self.packets) * STEP, data[:kept], wire))

    def send(self, side: int, data: bytes, cuts: Iterable[int] = ()) -> None:
        """Send bytes, in order, cut at these places."""
        for chunk in cut(data, cuts):
            self.segment(side, chunk, flags=ACK | PSH)
            self.next[side] = (self.next[side] + len(chunk)) % 2**32

    def play(self, turns: Sequence[Turn]) -> "Tape":
        for side, data in turns:
            self.send(side, data)
        return self

    def end(self, flags: int = FIN | ACK) -> "Tape":
        self.segment(CLIENT, flags=flags)
        if flags & FIN:
            self.next[0] += 1
            self.segment(SERVER, flags=flags)
            self.next[1] += 1
            self.segment(CLIENT)
        return self


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """The chunks between these places."""
    edges = [0, *sorted({place for place in places if 0 < place < len(data)}), len(data)]
    return [data[a:b] for a, b in pairwise(edges) if b > a]


def sent(*data: bytes) -> list[Packet]:
    """The packets of a client that sends this when its channel is open."""
    return Tape().play([*handshake(), *opening(1), *((CLIENT, chunk) for chunk in data)]).packets
