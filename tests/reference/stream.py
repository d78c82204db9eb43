"""RabbitMQ streams decoded in the plainest way: one object a frame, one dict a row, loops over bytes.

Written from the description of the protocol. It reads whole captures of Ethernet, IPv4 and TCP without gaps, in which
segments come in order; `tables` gives the rows of `stream_frames`, `messages` and `connections`, with all columns of
these that the bytes of streams tell; `write` puts them into Parquet. Connections are numbered from 0.
Independent of the code under test: it is what the dissector is compared with, in what it says and in how long it takes.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dpkt
import pyarrow as pa
import pyarrow.parquet as pq

from tests.reference.stream_commands import KINDS, NUMBERS, command
from tests.reference.stream_records import MAPS, delivered, published, tracking

LEADING = {
    "connection_id": pa.int64(), "frame_no": pa.int64(), "capture": pa.string(), "packet": pa.int64(),
    "ts_ns": pa.int64(), "ts": pa.timestamp("us", "UTC"), "first_capture": pa.string(), "first_packet": pa.int64(),
    "first_ts_ns": pa.int64(), "from_client": pa.bool_(), "is_partial": pa.bool_(), "missing": pa.int64(),
}  # fmt: skip
MESSAGES = (
    "protocol", "kind", "stream", "publisher_reference", "consumer", "filter_value", "body_kind", "expiration",
    "message_id", "user_id", "to_address", "subject", "reply_to", "correlation_id", "content_type", "content_encoding",
    "group_id", "reply_to_group_id", "trace_id", "span_id", *sorted(MAPS),
)  # fmt: skip
MESSAGE_NUMBERS = (
    "first_frame_no", "publisher_id", "publisher_epoch", "publish_seq", "subscription_id", "chunk_id", "chunk_ts_ns",
    "entry", "offset", "record_size", "body_size", "body_hash", "delivery_mode", "priority", "delivery_count",
    "expiry_ts_ms", "timestamp", "group_sequence", "trace_flags",
)  # fmt: skip
CONNECTIONS = ("protocol", "client_ip", "server_ip", "first_capture")
CONNECTION_NUMBERS = (
    "connection_id", "client_port", "server_port", "first_packet", "last_packet", "first_ts_ns", "last_ts_ns",
    "packets", "bytes", "frames", "messages",
)  # fmt: skip


def _schema(texts: tuple[str, ...], numbers: tuple[str, ...], more: dict[str, pa.DataType]) -> pa.Schema:
    return pa.schema(more | dict.fromkeys(texts, pa.string()) | dict.fromkeys(numbers, pa.int64()))


SCHEMAS = {
    "stream_frames": _schema(
        ("command", "tracking", *(name for name, kind in KINDS.items() if kind not in NUMBERS)),
        ("version", "size", *(name for name, kind in KINDS.items() if kind in NUMBERS and kind != "flag")),
        LEADING | {"is_response": pa.bool_(), "active": pa.bool_()},
    ),
    "messages": _schema(MESSAGES, MESSAGE_NUMBERS, LEADING | {"first_acquirer": pa.bool_()}),
    "connections": _schema(CONNECTIONS, CONNECTION_NUMBERS, {}),
}
Row = dict[str, Any]
Meaning = tuple[Any, ...]


@dataclass
class Direction:
    """What waits until its frame is complete, and the packet and time of its first byte."""

    pending: bytearray = field(default_factory=bytearray)
    first: tuple[int, int] = 0, 0
    end: int = 0
    """Sequence number behind the last byte; 0: there was none."""


@dataclass
class Connection:
    """Both directions of a TCP connection, and what its ids mean."""

    row: Row
    directions: dict[bool, Direction] = field(default_factory=lambda: {True: Direction(), False: Direction()})
    publishers: dict[int, Meaning] = field(default_factory=dict)
    """Stream, reference and how often the id was declared."""
    subscriptions: dict[int, Meaning] = field(default_factory=dict)
    """Stream and name of the consumer."""
    asked: dict[int, tuple[dict[int, Meaning], int, Meaning, Meaning | None]] = field(default_factory=dict)
    """By correlation id: where an id gets or had its meaning, the id, what it means, and what it meant before."""


@dataclass(frozen=True)
class Frame:
    """A frame, where it began and where it became complete."""

    connection: Connection
    from_client: bool
    key: int
    version: int
    body: bytes
    first: tuple[int, int]
    last: tuple[int, int]


def tables(path: Path | str) -> Iterator[tuple[str, Row]]:
    """All rows with their tables, in the order in which they become complete."""
    capture = Path(path).name
    connections: list[Connection] = []
    for frame in frames(path, connections):
        row = _leading(capture, frame)
        fields = command(frame.key, frame.version, frame.from_client, frame.body)
        _learn(frame.connection, fields)
        if fields["command"] == "deliver" and len(frame.body) > 48:
            items = tracking(frame.version, frame.body, fields)
            if items or fields["chunk_type"]:
                fields["tracking"] = items
        yield "stream_frames", {**row, **fields, "size": len(frame.body) + 8}
        common = {**row, "protocol": "rabbitmq-stream", "first_frame_no": row["frame_no"]}
        for record in _records(frame, fields, common):
            frame.connection.row["messages"] += 1
            yield "messages", record
    for connection in connections:
        yield "connections", {**connection.row, "first_capture": capture}


def frames(path: Path | str, found: list[Connection]) -> Iterator[Frame]:
    """All frames, in the order in which they became complete; connections go to `found`."""
    connections: dict[tuple[bytes, int, bytes, int], Connection] = {}
    for number, ts_ns, data in packets(path):
        ip = dpkt.ethernet.Ethernet(data).data
        if not isinstance(ip, dpkt.ip.IP) or not isinstance(ip.data, dpkt.tcp.TCP):
            continue
        tcp = ip.data
        key, back = (ip.src, tcp.sport, ip.dst, tcp.dport), (ip.dst, tcp.dport, ip.src, tcp.sport)
        if tcp.flags & dpkt.tcp.TH_SYN and not tcp.flags & dpkt.tcp.TH_ACK:
            connections[key] = _connection(len(found), ip, tcp, number, ts_ns)
            found.append(connections[key])
        connection = connections.get(key) or connections.get(back)
        if connection is not None:
            row = connection.row
            row["packets"] += 1
            row["last_packet"], row["last_ts_ns"] = number, ts_ns
            direction = connection.directions[key in connections]
            again = max(0, direction.end - tcp.seq) if direction.end else 0  # bytes that are sent once more
            if len(tcp.data) > again:
                row["bytes"] += len(tcp.data) - again
                direction.end = tcp.seq + len(tcp.data)
                yield from _frames(connection, key in connections, tcp.data[again:], number, ts_ns)


def packets(path: Path | str) -> Iterator[tuple[int, int, bytes]]:
    """Number, time and bytes of the packets of a little-endian pcap file."""
    with Path(path).open("rb") as file:
        magic = file.read(24)[:4]
        unit = {b"\xd4\xc3\xb2\xa1": 1000, b"\x4d\x3c\xb2\xa1": 1}[magic]
        number = 0
        while len(head := file.read(16)) == 16:
            seconds, fraction, size, _ = struct.unpack("<IIII", head)
            number += 1
            yield number, seconds * 1_000_000_000 + fraction * unit, file.read(size)


def _connection(number: int, ip: dpkt.ip.IP, tcp: dpkt.tcp.TCP, packet: int, ts_ns: int) -> Connection:
    client, server = dpkt.utils.inet_to_str(ip.src), dpkt.utils.inet_to_str(ip.dst)
    return Connection(
        {
            "connection_id": number, "protocol": "unknown", "client_ip": client, "client_port": tcp.sport,
            "server_ip": server, "server_port": tcp.dport, "first_packet": packet, "first_ts_ns": ts_ns, "packets": 0,
            "bytes": 0, "frames": 0, "messages": 0,
        }
    )  # fmt: skip


def _frames(connection: Connection, from_client: bool, data: bytes, packet: int, ts_ns: int) -> Iterator[Frame]:
    direction = connection.directions[from_client]
    pending = direction.pending
    if not pending:
        direction.first = packet, ts_ns
    pending += data
    at = 0
    while len(pending) - at >= 8:
        size, key, version = struct.unpack_from(">IHH", pending, at)
        if len(pending) - at < 4 + size:
            break
        body = bytes(pending[at + 8 : at + 4 + size])
        at += 4 + size
        yield Frame(connection, from_client, key, version, body, direction.first, (packet, ts_ns))
        direction.first = packet, ts_ns
    del pending[:at]


def _leading(capture: str, frame: Frame) -> Row:
    """What rows of all tables begin with."""
    connection = frame.connection.row
    number = connection["frames"]
    connection["frames"] += 1
    connection["protocol"] = "rabbitmq-stream"
    packet, ts_ns = frame.last
    return {
        "connection_id": connection["connection_id"], "frame_no": number, "capture": capture, "packet": packet,
        "ts_ns": ts_ns, "ts": ts_ns // 1000, "first_capture": capture, "first_packet": frame.first[0],
        "first_ts_ns": frame.first[1], "from_client": frame.from_client, "is_partial": False, "missing": 0,
    }  # fmt: skip


def _learn(connection: Connection, fields: Row) -> None:
    """What a frame says of ids."""
    name = fields["command"]
    publishers, subscriptions = connection.publishers, connection.subscriptions
    if name in ("declare-publisher", "subscribe") and fields["is_response"]:
        asked = connection.asked.pop(fields["correlation_id"], None)
        if asked is not None:
            held, number, meaning, before = asked
            held[number] = meaning if fields["response_code"] == 1 else before or ()
    elif name == "declare-publisher":
        number = fields["publisher_id"]
        before = publishers.get(number)
        times = before[2] if before else 0
        meaning = fields["stream"], fields["publisher_reference"] or None, times + 1
        connection.asked[fields["correlation_id"]] = publishers, number, meaning, before
        publishers[number] = meaning
    elif name == "subscribe":
        number = fields["subscription_id"]
        meaning = fields["stream"], fields.get("properties", {}).get("name")
        connection.asked[fields["correlation_id"]] = subscriptions, number, meaning, subscriptions.get(number)
        subscriptions.setdefault(number, meaning)
    elif name == "delete-publisher" and not fields["is_response"]:
        number = fields["publisher_id"]
        publishers[number] = None, None, *publishers.get(number, ())[2:]
    elif name == "metadata-update":
        for number, held in publishers.items():
            if held and held[0] == fields["stream"]:
                publishers[number] = None, None, held[2]


def _records(frame: Frame, fields: Row, common: Row) -> Iterator[Row]:
    """The records in a frame."""
    if fields["command"] == "publish":
        number = fields["publisher_id"]
        stream, reference, epoch = frame.connection.publishers.get(number) or (None, None, None)
        common |= {
            "kind": "publish", "publisher_id": number, "stream": stream, "publisher_reference": reference,
            "publisher_epoch": epoch if stream else None,
        }  # fmt: skip
        for record in published(frame.version, frame.body):
            yield {**common, **record}
    elif fields["command"] == "deliver" and fields["chunk_type"] == 0:
        number = fields["subscription_id"]
        stream, consumer = frame.connection.subscriptions.get(number) or (None, None)
        common |= {"kind": "deliver", "subscription_id": number, "stream": stream, "consumer": consumer}
        for record in delivered(frame.version, frame.body, fields):
            yield {**common, **record}


def write(path: Path | str, folder: Path | str, rows: int = 65_536) -> dict[str, int]:
    """Write all tables to Parquet files in a folder; returns how many rows each has."""
    counts = dict.fromkeys(SCHEMAS, 0)
    waiting: dict[str, list[Row]] = {name: [] for name in SCHEMAS}
    Path(folder).mkdir(exist_ok=True)
    writers = {
        name: pq.ParquetWriter(Path(folder) / f"{name}.parquet", schema, compression="zstd")
        for name, schema in SCHEMAS.items()
    }

    def put(name: str) -> None:
        counts[name] += len(waiting[name])
        writers[name].write_table(pa.Table.from_pylist(waiting[name], SCHEMAS[name]))
        waiting[name].clear()

    structures = {"messages": MAPS, "stream_frames": {k for k, kind in KINDS.items() if kind not in NUMBERS}}
    for name, row in tables(path):
        for column in structures.get(name, set()) & row.keys():
            if isinstance(row[column], dict | list):
                row[column] = json.dumps(row[column])
        waiting[name].append(row)
        if len(waiting[name]) == rows:
            put(name)
    for name, writer in writers.items():
        put(name)
        writer.close()
    return counts


def main() -> None:
    """Decode a capture, to a folder of tables where one is named; say how many rows, and how long it took."""
    begin = time.process_time()
    if len(sys.argv) > 2:
        counts = write(*sys.argv[1:3])
    else:
        counts = dict.fromkeys(SCHEMAS, 0)
        for name, _ in tables(sys.argv[1]):
            counts[name] += 1
    print(json.dumps(counts | {"cpu_s": time.process_time() - begin}))


if __name__ == "__main__":
    main()
