"""Connections as packets, and what the dissector makes of them."""

import io
import json
from typing import Any

import pyarrow as pa

from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.dissector import Dissector, Options
from amqpscope.dissector.tables.rows import schemas
from tests.dissector.builders import Packet, ethernet, ipv4, pcap, tcp
from tests.dissector.runs import Row, plain_rows

CLIENT, SERVER = ("10.0.0.1", 40000), ("10.0.0.2", 5552)
START, STEP = 1_700_000_000_000_000_000, 1_000_000
LEADING = {
    "connection_id", "frame_no", "capture", "packet", "ts_ns", "ts", "first_capture", "first_packet", "first_ts_ns",
    "from_client", "size", "is_partial", "missing", "version",
}  # fmt: skip


class Wire:
    """A TCP connection that is captured."""

    def __init__(self, begun: bool = True, port: int = SERVER[1]) -> None:
        self.packets: list[Packet] = []
        self.next = {True: 1000, False: 5000}
        self.port = port
        if begun:
            self._packet(True, flags=2)
            self._packet(False, flags=18)
            self.next = {True: 1001, False: 5001}

    def _packet(self, from_client: bool, payload: bytes = b"", flags: int = 0x18) -> None:
        ports = (CLIENT[1], self.port) if from_client else (self.port, CLIENT[1])
        hosts = (CLIENT[0], SERVER[0]) if from_client else (SERVER[0], CLIENT[0])
        ack = self.next[not from_client] if flags != 2 else 0
        segment = tcp(payload, *ports, seq=self.next[from_client], ack=ack, flags=flags)
        self.packets.append(Packet(START + STEP * len(self.packets), ethernet(ipv4(segment, *hosts))))

    def send(self, from_client: bool, data: bytes, most: int = 1400) -> None:
        """Bytes in segments of at most so many."""
        for at in range(0, len(data), most):
            part = data[at : at + most]
            self._packet(from_client, part)
            self.next[from_client] += len(part)

    def lose(self, from_client: bool, size: int) -> None:
        """Bytes that were sent and not captured."""
        self.next[from_client] += size

    def close(self) -> None:
        """Both sides end."""
        self._packet(True, flags=17)
        self._packet(False, flags=17)


def talk(made_connection: list[tuple[bool, bytes]], most: int = 1400, together: bool = False) -> list[Packet]:
    """Packets of a connection; `together`: what a side sends in a row goes into segments without regard to frames."""
    wire = Wire()
    if together:
        joined: list[tuple[bool, bytes]] = []
        for side, data in made_connection:
            if joined and joined[-1][0] == side:
                joined[-1] = side, joined[-1][1] + data
            else:
                joined.append((side, data))
        made_connection = joined
    for side, data in made_connection:
        wire.send(side, data, most)
    wire.close()
    return wire.packets


def dissect(
    packets: list[Packet], compiled: bool = False, batch_bytes: int = 1 << 20, **how: Any
) -> dict[str, list[Row]]:
    """All rows of all tables, frames and messages in their order."""
    dissector = Dissector(Options(**how), compiled)
    dissector.captures.append("memory.pcap")
    found: dict[str, list[pa.RecordBatch]] = {name: [] for name in schemas()}
    data = io.BytesIO(pcap(packets, ns=True))
    for batch in CaptureFile(data, "memory.pcap", 0, batch_bytes=batch_bytes, compiled=compiled):
        for name, rows in dissector.feed(batch):
            found[name].append(rows)
    for name, rows in dissector.finish():
        found[name].append(rows)
    tables = {name: pa.Table.from_batches(found[name], schema) for name, schema in schemas().items()}
    for table in tables.values():
        table.validate(full=True)
    return {name: plain_rows(table) for name, table in tables.items()}


def reported(row: Row) -> Row:
    """What a row says beside its leading columns, lists and maps as values."""
    return {k: _value(v) for k, v in row.items() if v is not None and k not in LEADING}


def _value(value: object) -> object:
    return json.loads(value) if isinstance(value, str) and value[:1] in ("{", "[") else value
