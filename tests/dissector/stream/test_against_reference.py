"""Records as the dissector and a plain decoder read them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dissector
from tests.benchmarks import streams
from tests.dissector.builders import Packet, pcap
from tests.reference import stream as plain

CAPTURES = Path(__file__).parents[2] / "captures"
JSON = ("headers", "annotations")


def told(rows: list[dict[str, Any]], names: set[str]) -> list[dict[str, Any]]:
    found = []
    for row in rows:
        kept = {k: v for k, v in row.items() if k in names and v is not None}
        found.append(kept | {k: json.loads(kept[k]) for k in JSON if isinstance(kept.get(k), str)})
    return sorted(found, key=lambda row: json.dumps(row, sort_keys=True))


def compare(capture: Path) -> int:
    expected = list(plain.records(capture))
    names = {name for row in expected for name in row}
    messages = dissector.read(capture)["messages"].read_all()
    assert isinstance(messages, pa.Table)
    assert told(messages.to_pylist(), names) == told(expected, names)
    return len(expected)


@pytest.mark.parametrize("name", ["stream_js", "stream_rstream", "stream_chunks"])
def test_recorded(name: str) -> None:
    assert compare(CAPTURES / f"{name}.pcap")


def test_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MESSAGES", 500)
    block = streams.block()
    packets = [
        Packet(1_700_000_000_000_000_000 + int(t) * 1000, block.octets[a + 16 : b].tobytes())
        for a, b, t in zip(block.at[:-1], block.at[1:], block.time_us, strict=True)
    ]
    # every instance has an address of its own in a large capture; here a port is enough
    for k, (packet, instance) in enumerate(zip(packets, block.instance.tolist(), strict=True)):
        octets = bytearray(packet.octets)
        at = 34 if octets[34:36] != b"\x15\xb0" else 36
        octets[at : at + 2] = (30_000 + instance).to_bytes(2, "big")
        packets[k] = Packet(packet.ts_ns, bytes(octets))
    capture = tmp_path / "streams.pcap"
    capture.write_bytes(pcap(packets))
    assert compare(capture) == 500 * len(streams.KINDS) * 2
