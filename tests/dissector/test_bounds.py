"""What is carried over all connections together has a bound: what is beyond it is given up, and told."""

import struct

import pytest
from pamqp import commands

from dissector import limits
from dissector.amqp091.layout import Q_HELD, Q_KEEPING
from dissector.dissector import Options
from dissector.reading import Reading
from dissector.sources import find
from tests.dissector.runs import FOLDER, dissect_packets, rows
from tests.dissector.test_hostile import said
from tests.dissector.wire import method, publish, raw


def open_contents(count: int, size: int) -> list[bytes]:
    """Publishes on so many channels, with a header of so many octets each, and bodies that come when all are there."""
    table = b"\1xS" + struct.pack(">I", size) + b"y" * size
    head = struct.pack(">HHQH", 60, 0, 1, 0x2000) + struct.pack(">I", len(table)) + table
    begun = [
        method(commands.Basic.Publish(exchange="e", routing_key="k"), n) + raw(2, n, head) for n in range(1, count)
    ]
    return begun + [raw(3, n, b"x") for n in range(1, count)]


def test_contents_left_open_on_many_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONTENTS", 40_000)
    small = publish(b"small", 500)
    tables = dissect_packets(said(b"".join(small[:2]), *open_contents(100, 1000), small[2]), check=True)
    messages = {row["channel"]: row for row in rows(tables["messages"])}
    assert len(messages) == 100
    partial = [row for row in messages.values() if row["is_partial"]]
    assert 50 < len(partial) < 99
    assert all(row["headers"] is None and row["exchange"] is None and row["body_hash"] for row in partial)
    assert messages[500]["exchange"] == "e", "the largest go first"
    told = [row for row in rows(tables["anomalies"]) if row["code"] == "limit-reached"]
    assert sum(int(row["detail"].split()[0]) for row in told) == sum(row["missing"] for row in partial)
    assert len(told) < 5
    assert len(rows(tables["amqp091_frames"])) == len(rows(dissect_packets(said())["amqp091_frames"])) + 3 * 100


def test_bodies_kept_of_many_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODIES", 8_000)
    monkeypatch.setattr(limits, "BODY", 4_000)
    parts = [publish(bytes([n]) * 2_000, n, largest=1_000) for n in range(1, 10)]
    turns = [b"".join(part[step] for part in parts) for step in range(4)]
    long = b"".join(publish(b"l" * 5_000, 20, largest=1_000))
    tables = dissect_packets(said(*turns, long, b"".join(publish(b"z" * 4_000, 21))), options=Options(bodies="full"))
    messages = {row["channel"]: row for row in rows(tables["messages"])}
    assert not any(row["is_partial"] for row in messages.values())
    assert all(row["body_hash"] for row in messages.values())
    kept = {n for n, row in messages.items() if row["body"] is not None}
    assert {n: messages[n]["body"] for n in kept} == {n: bytes([n]) * 2_000 for n in kept - {21}} | {21: b"z" * 4_000}
    assert kept == {2, 3, 4, 5, 6, 7, 8, 21}
    told = [row["channel"] for row in rows(tables["anomalies"]) if row["code"] == "limit-reached"]
    assert sorted(told) == sorted(messages.keys() - kept)


@pytest.mark.parametrize("name", ["violations.pcap", "interleaved_channels.pcap", "lossy_link.pcap"])
def test_what_is_counted_is_given_back(name: str) -> None:
    reading = Reading(find([str(FOLDER / name)]), Options(bodies="full"), compiled=False)
    assert list(reading)
    control = reading.dissector.amqp091.control
    assert control[Q_HELD] == control[Q_KEEPING] == 0
