"""Tables of streams as the dissector and a plain decoder make them: all rows, all columns that streams have."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from amqpscope import dissector
from tests.benchmarks import streams
from tests.dissector.builders import Packet, pcap
from tests.dissector.recordings import STREAMS
from tests.reference import stream as plain
from tests.reference.stream_commands import KINDS, NUMBERS
from tests.reference.stream_records import MAPS

JSON = {*MAPS, "tracking", *(name for name, kind in KINDS.items() if kind not in NUMBERS)}
Row = dict[str, Any]


def reported(rows: list[Row]) -> list[Row]:
    """Rows without nulls, lists and maps as such, in an order of their own."""
    found = []
    for row in rows:
        kept = {k: v for k, v in row.items() if v is not None and k != "ts"}
        found.append(kept | {k: _structure(kept[k]) for k in JSON & kept.keys()})
    return sorted(found, key=lambda row: json.dumps(row, sort_keys=True))


def _structure(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) and value[:1] in ("{", "[") else value


def compare(capture: Path) -> dict[str, int]:
    expected: dict[str, list[Row]] = defaultdict(list)
    for name, row in plain.tables(capture):
        expected[name].append(row)
    readers = dissector.read(capture)
    found = {name: readers[name].read_all().to_pylist() for name in expected}
    # connections are numbered there, and have a hash for a name here
    began = {row["first_packet"]: row["connection_id"] for row in expected["connections"]}
    numbers = {row["connection_id"]: began[row["first_packet"]] for row in found["connections"]}
    for name, rows in found.items():
        kept = plain.SCHEMAS[name].names if name == "connections" else readers[name].schema.names
        made = [{k: row[k] for k in kept} | {"connection_id": numbers[row["connection_id"]]} for row in rows]
        assert reported(made) == reported(expected[name]), name
    return {name: len(rows) for name, rows in expected.items()}


@pytest.mark.parametrize("capture", STREAMS, ids=lambda path: path.stem)
def test_recorded(capture: Path) -> None:
    assert compare(capture)["stream_frames"]


def test_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MESSAGES", 500)
    block = streams.block()
    packets = [
        Packet(1_700_000_000_000_000_000 + int(t) * 1000, block.data[a + 16 : b].tobytes())
        for a, b, t in zip(block.at[:-1], block.at[1:], block.time_us, strict=True)
    ]
    # every instance has an address of its own in a large capture; here a port is enough
    for k, (packet, instance) in enumerate(zip(packets, block.instance.tolist(), strict=True)):
        data = bytearray(packet.data)
        at = 34 if data[34:36] != b"\x15\xb0" else 36
        data[at : at + 2] = (30_000 + instance).to_bytes(2, "big")
        packets[k] = Packet(packet.ts_ns, bytes(data))
    capture = tmp_path / "streams.pcap"
    capture.write_bytes(pcap(packets))
    assert compare(capture)["messages"] == 500 * len(streams.KINDS) * 2
