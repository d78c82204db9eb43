"""Captures whose messages hold what a search must not take for frames: frames, streams of them, whole captures."""

from __future__ import annotations

import random
import struct
from pathlib import Path

from pamqp import commands

from tests.captures.damage.ways import numbered
from tests.dissector.builders import Packet
from tests.dissector.stream import wire as stream
from tests.dissector.stream.runs import Wire
from tests.dissector.wire import CLIENT, SERVER, Tape, deliver, handshake, method, opening, publish, session

FOLDER = Path(__file__).parents[1]


def full_of_frames(rnd: random.Random, largest: int, segment: int, count: int = 60) -> list[Packet]:
    """AMQP: messages of all sizes, published and delivered; many of their bodies are frames, streams or captures."""
    inside = [
        b"".join(publish(b"inner" * 3)) * 30 + b"".join(deliver(7, b"x" * 200)) * 20,
        b"".join(data for _, data in session()),
        *((FOLDER / name).read_bytes() for name in ("orders_pika.pcap", "many_confirms.pcap")),
    ]
    tape = Tape().play(handshake() + opening(1))
    for n in range(1, count + 1):
        body = rnd.choice([b"x" * rnd.randint(0, 3000), rnd.choice(inside) * rnd.randint(1, 5)])
        for side, data in (
            (CLIENT, b"".join(publish(body, largest=largest, message_id=str(n)))),
            (SERVER, method(commands.Basic.Ack(delivery_tag=n))),
            (SERVER, b"".join(deliver(n, body, largest=largest))),
            (CLIENT, method(commands.Basic.Ack(delivery_tag=n))),
        ):
            tape.send(side, data, range(segment, len(data), segment))
    return numbered(tape.end().packets)


def full_of_chunks(rnd: random.Random, segment: int, count: int = 60) -> list[Packet]:
    """Streams: records of all sizes, published and delivered; many of them are frames or captures of streams."""
    few = stream.deliver(5, stream.chunk([stream.simple(b"inner" * 9)] * 4)) * 20
    inside = [
        few, stream.publish(3, [(n, stream.simple(b"inner")) for n in range(30)]) * 10, stream.HEARTBEAT * 300,
        *((FOLDER / name).read_bytes() for name in ("stream_chunks.pcap", "stream_super.pcap")),
    ]  # fmt: skip
    wire = Wire()
    for side, data in stream.hello():
        wire.send(side, data)
    for n in range(1, count + 1):
        records = [
            stream.simple(rnd.choice([b"x" * rnd.randint(0, 3000), rnd.choice(inside)]))
            for _ in range(rnd.randint(1, 5))
        ]
        published = stream.publish(3, [(10 * n + k, record) for k, record in enumerate(records)])
        for side, data in (
            (True, published),
            (False, stream.confirm(3, [10 * n + k for k in range(len(records))])),
            (False, stream.deliver(5, stream.chunk(records, chunk_id=10 * n))),
            (True, stream.frame(9, struct.pack(">BH", 5, 1))),
        ):
            wire.send(side, data, segment)
    wire.close()
    return numbered(wire.packets)


def made(seed: int) -> dict[str, list[Packet]]:
    """Captures of both kinds, by name."""
    found: dict[str, list[Packet]] = {}
    for segment in (1448, 16_000):
        for largest in (4088, 131_064):
            rnd = random.Random(f"{seed} {segment} {largest}")
            found[f"bodies-{seed}-{segment}-{largest}"] = full_of_frames(rnd, largest, segment)
        found[f"records-{seed}-{segment}"] = full_of_chunks(random.Random(f"{seed} {segment}"), segment)
    return found
