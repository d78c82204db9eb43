"""Large captures of streams: publishers and consumers written byte by byte, repeated with other addresses and times.

A repetition is a few connections at the same time, half of them publishers, half consumers, in segments of 1448 bytes.
Of ten publishers (and of ten consumers alike) five send AMQP 1.0 messages of nothing but a data section, as the Java
client does by default; two send properties and application properties too; two send plain bytes; one sends sub-batches
of ten messages, packed with gzip. Publishes hold 100 messages, chunks 500; a body has 60 to 140 bytes, no two alike.
A connection lives for 10,000 messages.
"""

import gzip
import random
import struct
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from tests.benchmarks import captures
from tests.benchmarks.captures import Block
from tests.dissector import builders
from tests.dissector.stream import wire as w

SEED = 5552
KINDS = ("data",) * 5 + ("properties",) * 2 + ("raw",) * 2 + ("packed",)
MESSAGES = 10_000
PER_PUBLISH, PER_CHUNK, PER_BATCH = 100, 500, 10
SEGMENT = 1448
PORT = 5552
SERVER = "192.168.0.1"


def block() -> Block:
    """One repetition."""
    rng = random.Random(SEED)
    talks = [_publisher(kind, rng) for kind in KINDS] + [_consumer(kind, rng) for kind in KINDS]
    packets: list[tuple[int, int, bytes]] = []
    for instance, talk in enumerate(talks):
        at = rng.randrange(20_000)
        for packet in _packets(talk):
            packets.append((at, instance, packet))
            at += rng.randrange(20, 400)
    packets.sort(key=lambda packet: packet[0])
    records = [struct.pack("<IIII", 0, 0, len(raw), len(raw)) + raw for _, _, raw in packets]
    at = np.cumsum([0, *(len(record) for record in records)])
    to_server = np.array([raw[36:38] == struct.pack(">H", PORT) for _, _, raw in packets])
    source = at[:-1] + captures.RECORD + captures.IP_SOURCE
    client_at = np.where(to_server, source, source + captures.IP_TARGET - captures.IP_SOURCE)
    time_us = np.array([t for t, _, _ in packets], np.int64)
    return Block(
        np.frombuffer(b"".join(records), np.uint8).copy(), at, time_us - time_us[0],
        np.array([i for _, i, _ in packets]), client_at, len(talks),
    )  # fmt: skip


def made(size: int) -> AbstractContextManager[Path]:
    """A capture of `size` bytes; afterwards it is removed, unless the user named the folder."""
    return captures.made(size, "streams", block)


def _message(kind: str, number: int, rng: random.Random) -> bytes:
    body = b'{"order":%d,"text":"%s"}' % (number, rng.randbytes(rng.randrange(20, 60)).hex().encode())
    if kind == "raw":
        return body
    data = b"\x00\x53\x75\xa0" + bytes([len(body)]) + body
    if kind != "properties":
        return data
    name = b"m-%d" % number
    fields = b"\xa1" + bytes([len(name)]) + name + b"\x40" * 5 + b"\xa3\x10application/json"
    properties = b"\x00\x53\x73\xc0" + bytes([len(fields) + 1, 7]) + fields
    pairs = b"\xa1\x06region\xa1\x04west\xa1\x03try\x54" + bytes([number % 100])
    return properties + b"\x00\x53\x74\xc1" + bytes([len(pairs) + 1, 4]) + pairs + data


def _entries(kind: str, count: int, rng: random.Random) -> list[bytes]:
    if kind != "packed":
        return [w.simple(_message(kind, rng.randrange(1 << 40), rng)) for _ in range(count)]
    found = []
    for _ in range(count // PER_BATCH):
        plain = w.messages(_message("data", rng.randrange(1 << 40), rng) for _ in range(PER_BATCH))
        found.append(w.sub_batch(gzip.compress(plain, 6, mtime=0), PER_BATCH, 1, len(plain)))
    return found


def _publisher(kind: str, rng: random.Random) -> list[tuple[bool, bytes]]:
    talk = w.hello("publisher")
    talk += [
        (True, w.request(1, 5, b"\x00" + w.string(f"shop-{kind}") + w.string(f"orders-{kind}"))),
        (False, w.response(1, 5, 1)),
    ]
    number = 0
    for _ in range(MESSAGES // PER_PUBLISH):
        entries = _entries(kind, PER_PUBLISH, rng)
        numbers = list(range(number + 1, number + 1 + len(entries)))
        number += len(entries)
        talk += [(True, w.publish(0, list(zip(numbers, entries, strict=True)))), (False, w.confirm(0, numbers))]
    return [*talk, (True, w.request(22, 6, struct.pack(">H", 1) + w.string("OK"))), (False, w.response(22, 6, 1))]


def _consumer(kind: str, rng: random.Random) -> list[tuple[bool, bytes]]:
    talk = w.hello("consumer")
    talk += [
        (True, w.request(7, 5, b"\x01" + w.string(f"orders-{kind}") + w.offset_spec(1) + struct.pack(">H", 10))),
        (False, w.response(7, 5, 1)),
    ]
    offset = 0
    for _ in range(MESSAGES // PER_CHUNK):
        chunk = w.chunk(_entries(kind, PER_CHUNK, rng), PER_CHUNK, offset, 1_700_000_000_000 + offset)
        offset += PER_CHUNK
        talk += [(False, w.deliver(1, chunk)), (True, w.frame(9, struct.pack(">BH", 1, 1)))]
        talk.append((True, w.frame(10, w.string("reader") + w.string(f"orders-{kind}") + struct.pack(">Q", offset))))
    return [*talk, (True, w.request(22, 6, struct.pack(">H", 1) + w.string("OK"))), (False, w.response(22, 6, 1))]


def _packets(talk: list[tuple[bool, bytes]]) -> list[bytes]:
    """The TCP connection: what a side says in a row goes into full segments."""
    following = {True: 1000, False: 5000}
    found: list[bytes] = []

    def packet(from_client: bool, payload: bytes, flags: int) -> None:
        ports = (40_000, PORT) if from_client else (PORT, 40_000)
        hosts = ("10.0.0.1", SERVER) if from_client else (SERVER, "10.0.0.1")
        ack = following[not from_client] if flags != 2 else 0
        segment = builders.tcp(payload, *ports, seq=following[from_client], ack=ack, flags=flags)
        found.append(builders.ethernet(builders.ipv4(segment, *hosts), pad=False))
        following[from_client] += len(payload) + (1 if flags & 3 else 0)

    packet(True, b"", 2)
    packet(False, b"", 18)
    for from_client, raw in talk:
        for at in range(0, len(raw), SEGMENT):
            packet(from_client, raw[at : at + SEGMENT], 0x18)
    packet(True, b"", 17)
    packet(False, b"", 17)
    return found
