"""Large captures for measuring: the recorded ones, repeated with other addresses and times.

A block holds several repetitions that run at the same time, each of them a few of the recorded captures with a client
address of their own. Blocks follow each other; every block has new addresses, so all its connections are new.

What the frames hold is as recorded: 7.6 frames and 2.0 messages per 1000 bytes of capture, most of the messages with
a table of headers; 8 connections per million bytes. What is repeated thousands of times is easy for a Parquet
writer's dictionaries, for ours and the floor's alike.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RECORDED = Path(__file__).parents[1] / "captures"
PARTS = {
    "demo": 2, "orders_aio_pika": 2, "orders_amqplib": 2, "many_confirms": 6, "interleaved_channels": 4,
    "pika_confirms": 1, "pika_consume": 1, "prefetch": 1,
}  # fmt: skip
"""How often each capture is in one repetition. All are Ethernet and IPv4, with a broker on port 5672."""
SMALL = {"many_confirms": 24}
"""The same for `small`: 33 frames and 11 messages per 1000 bytes, of publishes of a few bytes and their confirms."""
SESSIONS = {
    "qpid_multi_session": 6, "qpid_messaging": 2, "qpid_flow_credit": 2, "qpid_props": 1, "qpid_topology": 1,
    "qpid_tx": 1,
}  # fmt: skip
"""The same for `sessions`: AMQP 0-10, mostly messages of a few bytes."""
LANES = 6
"""Repetitions at the same time."""
SEED = 5672
BEGIN_US = 1_750_000_000_000_000
"""Time of the first packet, in microseconds since the epoch."""
HEADER, RECORD = 24, 16
IP_SOURCE, IP_TARGET, TCP_SOURCE = 26, 30, 34
"""Where addresses and ports are in an Ethernet packet with a plain IPv4 header."""
SERVER = bytes([192, 168, 0, 1])


@dataclass(slots=True)
class Block:
    """A block as bytes, and where to patch it.

    Attributes:
        bytes: records of a pcap file (little-endian, microseconds), in the order of time.
        at: where each record begins, and the end of the last.
        time_us: time of each, from the block's beginning.
        instance: each packet's copy of a recorded capture, from 0; gets a client address of its own.
        client_at: where the client's address stands in each.
        instances: copies in a block.
    """

    data: NDArray[np.uint8]
    at: NDArray[np.int64]
    time_us: NDArray[np.int64]
    instance: NDArray[np.int64]
    client_at: NDArray[np.int64]
    instances: int


def folder() -> Path:
    """Where large captures are kept: AMQPSCOPE_BENCH_DIR, or a folder among the temporary ones."""
    return Path(os.environ.get("AMQPSCOPE_BENCH_DIR") or Path(tempfile.gettempdir()) / "amqpscope-bench")


@contextmanager
def made(size: int, name: str = "", repeated: Callable[[], Block] | None = None) -> Iterator[Path]:
    """A capture of `size` bytes; afterwards it is removed, unless the user named the folder."""
    path = make(size, name, repeated)
    try:
        yield path
    finally:
        if "AMQPSCOPE_BENCH_DIR" not in os.environ:
            path.unlink()


def make(size: int, name: str = "", repeated: Callable[[], Block] | None = None) -> Path:
    """A capture of `size` bytes (less than a packet fewer) of a block repeated, made unless it is there."""
    path = folder() / f"{name}{size // 1_000_000}mb.pcap"
    if path.exists() and size - (1 << 16) < path.stat().st_size <= size:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".writing")
    with temporary.open("wb") as file:
        file.write(header())
        for data, _ in turns(size - HEADER, repeated):
            file.write(data.data)
    temporary.replace(path)
    return path


def header() -> bytes:
    """What a capture begins with."""
    return (RECORDED / "demo.pcap").read_bytes()[:HEADER]


def turns(
    size: int, repeated: Callable[[], Block] | None = None
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """`size` bytes of records (less than a packet fewer), a block at a time, and where each begins, with the end."""
    block = (repeated or _block)()
    period = int(block.time_us[-1]) + 1_000_000
    left, number = size, 0
    count = len(block.time_us)
    while count == len(block.time_us):
        _patch(block, number, BEGIN_US + number * period)
        count = int(np.searchsorted(block.at, left, "right")) - 1
        yield block.data[: block.at[count]], block.at[: count + 1]
        left -= int(block.at[count])
        number += 1


def small() -> Block:
    """A block of small messages."""
    return _block(SMALL)


def sessions() -> Block:
    """A block of AMQP 0-10."""
    return _block(SESSIONS)


def _block(parts: dict[str, int] = PARTS) -> Block:
    random = np.random.default_rng(SEED)
    recorded = {name: _records((RECORDED / f"{name}.pcap").read_bytes()) for name in parts}
    longest = max(times[-1] - times[0] for _, times in recorded.values())
    packets: list[tuple[int, int, bytes]] = []
    instances = 0
    for _ in range(LANES):
        for name, copies in parts.items():
            records, times = recorded[name]
            for _ in range(copies):
                # The longest runs in all lanes at once; the short ones begin anywhere in it.
                begin = int(random.integers(longest // 4 if name == "demo" else longest))
                packets += [(t - times[0] + begin, instances, record) for t, record in zip(times, records, strict=True)]
                instances += 1
    packets.sort(key=lambda packet: packet[0])  # stable: packets of one time stay in their order
    data = np.frombuffer(b"".join(record for _, _, record in packets), np.uint8).copy()
    at = np.cumsum([0, *(len(record) for _, _, record in packets)])
    packet = at[:-1] + RECORD
    to_server = _u16(data, packet + TCP_SOURCE + 2) == 5672
    client_at = np.where(to_server, packet + IP_SOURCE, packet + IP_TARGET)
    server_at = np.where(to_server, packet + IP_TARGET, packet + IP_SOURCE)
    data[server_at[:, None] + np.arange(4)] = np.frombuffer(SERVER, np.uint8)
    time_us = np.array([t for t, _, _ in packets], np.int64)
    return Block(data, at, time_us - time_us[0], np.array([i for _, i, _ in packets]), client_at, instances)


def _records(capture: bytes) -> tuple[list[bytes], list[int]]:
    """The records of a recorded capture, and their times in microseconds."""
    if capture[:4] != b"\xd4\xc3\xb2\xa1" or capture[20:24] != b"\1\0\0\0":
        raise ValueError("not a little-endian Ethernet capture in microseconds")
    records, times, at = [], [], HEADER
    while at < len(capture):
        seconds, micros, size, _ = np.frombuffer(capture, "<u4", 4, at).tolist()
        record = capture[at : at + RECORD + size]
        if record[RECORD + 12 : RECORD + 15] == b"\x08\x00\x45":
            records.append(record)
            times.append(seconds * 1_000_000 + micros)
        at += RECORD + size
    return records, times


def _patch(block: Block, number: int, begin_us: int) -> None:
    """Give a block the addresses and times of its turn."""
    address = (10 << 24) + number * block.instances + block.instance
    data = address.astype(">u4").view(np.uint8).reshape(-1, 4)
    block.data[block.client_at[:, None] + np.arange(4)] = data
    times = np.stack(np.divmod(begin_us + block.time_us, 1_000_000), axis=1).astype("<u4")
    block.data[block.at[:-1, None] + np.arange(8)] = times.view(np.uint8).reshape(-1, 8)


def _u16(data: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.int64]:
    return data[at].astype(np.int64) << 8 | data[at + 1]
