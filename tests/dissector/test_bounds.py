"""What is retained of all connections together is bounded: what exceeds that is dropped, and reported."""

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.protocols import registry
from amqpscope.dissector.protocols.amqp091.state import Assembly, Usage
from amqpscope.dissector.protocols.state import Cursor
from amqpscope.dissector.reading import Reading
from amqpscope.dissector.tables.rows import schemas
from tests.dissector.builders import interface, pcap, secrets, section
from tests.dissector.runs import FOLDER, dissect, dissect_packets, rows
from tests.dissector.stream import wire as sw
from tests.dissector.wire import CLIENT, SERVER, T0, Tape, Turn, handshake, method, opening, publish, raw, sent


def open_contents(count: int, size: int) -> list[bytes]:
    """Publishes on so many channels, with a header of so many bytes each, and bodies that come when all are there."""
    table = b"\1xS" + struct.pack(">I", size) + b"y" * size
    head = struct.pack(">HHQH", 60, 0, 1, 0x2000) + struct.pack(">I", len(table)) + table
    begun = [
        method(commands.Basic.Publish(exchange="e", routing_key="k"), n) + raw(2, n, head) for n in range(1, count)
    ]
    return begun + [raw(3, n, b"x") for n in range(1, count)]


def test_contents_left_open_on_many_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONTENTS", 40_000)
    small = publish(b"small", 500)
    packets = sent(b"".join(small[:2]), *open_contents(100, 1000), small[2])
    tables = dissect_packets(packets, check=True)
    for name, table in dissect_packets(packets, batch_bytes=5_000).items():
        assert rows(table) == rows(tables[name]), name
    messages = {row["channel"]: row for row in rows(tables["messages"])}
    assert len(messages) == 100
    partial = [row for row in messages.values() if row["is_partial"]]
    assert 50 < len(partial) < 99
    assert all(row["headers"] is None and row["exchange"] is None and row["body_hash"] for row in partial)
    assert messages[500]["exchange"] == "e", "the largest go first"
    reported = [row for row in rows(tables["anomalies"]) if row["code"] == "limit-reached"]
    assert sum(int(row["detail"].split()[0]) for row in reported) == sum(row["missing"] for row in partial)
    assert len(reported) < 5
    assert len(rows(tables["amqp091_frames"])) == len(rows(dissect_packets(sent())["amqp091_frames"])) + 3 * 100


def test_bodies_kept_of_many_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODIES", 8_000)
    monkeypatch.setattr(limits, "BODY", 4_000)
    parts = [publish(bytes([n]) * 2_000, n, largest=1_000) for n in range(1, 10)]
    turns = [b"".join(part[step] for part in parts) for step in range(4)]
    long = b"".join(publish(b"l" * 5_000, 20, largest=1_000))
    tables = dissect_packets(sent(*turns, long, b"".join(publish(b"z" * 4_000, 21))), options=Options(bodies="full"))
    messages = {row["channel"]: row for row in rows(tables["messages"])}
    assert not any(row["is_partial"] for row in messages.values())
    assert all(row["body_hash"] for row in messages.values())
    kept = {n for n, row in messages.items() if row["body"] is not None}
    assert {n: messages[n]["body"] for n in kept} == {n: bytes([n]) * 2_000 for n in kept - {21}} | {21: b"z" * 4_000}
    assert kept == {2, 3, 4, 5, 6, 7, 8, 21}
    reported = [row["channel"] for row in rows(tables["anomalies"]) if row["code"] == "limit-reached"]
    assert sorted(reported) == sorted(messages.keys() - kept)


def stage(reading: Reading) -> Any:
    """The stage of AMQP 0-9-1."""
    return reading.dissector.stages[registry.number_of("amqp-0-9-1")]


@pytest.mark.parametrize("name", ["violations.pcap", "interleaved_channels.pcap", "lossy_link.pcap"])
def test_what_is_counted_is_given_back(name: str) -> None:
    reading = Reading(find([str(FOLDER / name)]), Options(bodies="full"), compiled=False)
    assert list(reading)
    assembly, usage = stage(reading).assembly, stage(reading).usage
    assert assembly[Assembly.HELD] == assembly[Assembly.KEEPING] == 0
    assert not usage[:, [Usage.HELD, Usage.PAYLOADS, Usage.KEEPING, Usage.REQUESTS]].any()


def amqp(size: int) -> list[Turn]:
    begun = handshake()
    properties = {"product": "x" * size}
    start_ok = commands.Connection.StartOk(
        client_properties=properties, mechanism="PLAIN", response="\0g\0s", locale=""
    )
    return [*begun[:2], (CLIENT, method(start_ok, 0)), *begun[3:]]


def stream(size: int) -> list[Turn]:
    name = sw.string("s" * size)
    asked = sw.request(7, 1, b"\1" + name + sw.offset_spec(1) + struct.pack(">H", 1) + sw.table({}))
    return [(CLIENT if from_client else SERVER, data) for from_client, data in [*sw.hello(), (True, asked)]]


REMEMBERED = {
    "what comes before the protocol is known": (5672, [(CLIENT, b"A"), *[(SERVER, b"x")] * 40]),
    "what a client says of itself": (5672, amqp(9_000)),
    "names of streams": (5552, stream(9_000)),
    "a record of TLS that is not whole": (5671, [(CLIENT, b"\x16\3\1" + struct.pack(">H", 16_000) + bytes(9_000))]),
    "a message of TLS that is not whole": (
        5671,
        [(CLIENT, (b"\x16\3\1" + struct.pack(">H", 4_500) + b"\1\0\xff\xff" + bytes(4_496)) * 2)],
    ),
    "a frame of AMQP 1.0 that is not whole": (
        5672,
        [*((side, b"AMQP\0\1\0\0") for side in (CLIENT, SERVER)),
         (CLIENT, struct.pack(">IHH", 16_000, 0x200, 0) + bytes(9_000))],
    ),
}  # fmt: skip


def many(folder: Path, port: int, turns: list[Turn], wait: bool = False, syn: bool = True) -> Reading:
    """Forty connections that say this, after the beginning and before the rest of another one.

    With `wait` the last that is sent comes before something that is missing; without `syn` all but that other one were
    under way.
    """
    other = Tape(port=30_000).play([*handshake(), *opening(1)])
    packets = other.packets.copy()
    for number in range(40):
        tape = Tape(port=40_000 + number, server_port=port, syn=syn).play(turns[:-1])
        tape.next[CLIENT] += 7 * wait
        packets += tape.play(turns[-1:]).packets
    rest = Tape(port=30_000, syn=False)
    rest.next = list(other.next)
    packets += rest.play(opening(2)).packets
    path = folder / "many.pcap"
    path.write_bytes(pcap([replace(packet, ts_ns=T0 + n) for n, packet in enumerate(packets)], ns=True))
    return Reading(find([str(path)]), compiled=False, batch_bytes=20_000)


def read(reading: Reading, held: Callable[[Reading], int]) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """All rows, and the most that was held. The other connection is not disturbed by any limit."""
    most, found = 0, {name: [] for name in schemas()}
    for work in reading.work():
        most = max(most, held(reading))
        for table, batch in work():
            batch.validate(full=True)
            found[table] += batch.to_pylist()
    assert held(reading) == 0
    ports = {row["client_port"] for row in found["connections"]}  # what follows on one given up is another one
    assert ports == {30_000, *range(40_000, 40_040)}
    (whole,) = (row["connection_id"] for row in found["connections"] if row["client_port"] == 30_000)
    mine = [row["method"] for row in found["amqp091_frames"] if row["connection_id"] == whole and row["channel"]]
    assert mine == ["channel.open", "channel.open-ok"] * 2
    return found, most


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", REMEMBERED)
def test_what_is_remembered_of_many_connections(what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Connections with the most of it are given up; others go on."""
    monkeypatch.setattr(limits, "REMEMBERED", 100_000)
    found, most = read(many(tmp_path, *REMEMBERED[what]), lambda reading: reading.dissector.accounting.total)
    assert 80_000 < most < 140_000
    reported = [row["detail"] for row in found["anomalies"] if row["code"] == "limit-reached"]
    assert len(reported) >= 2 and all("bytes of open connections were retained" in text for text in reported)
    for size in (1_000, 1 << 20):
        again = dissect(tmp_path / "many.pcap", batch_bytes=size)
        assert {name: sorted(map(str, again[name].to_pylist())) for name in found} == {
            name: sorted(map(str, rows)) for name, rows in found.items()
        }


def test_bytes_that_wait_for_earlier_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where most wait, what is missing counts as lost."""
    monkeypatch.setattr(limits, "WAITING_BYTES", 50_000)
    turns = [*handshake(), (CLIENT, b"".join(publish(bytes(9_000), 1, largest=9_000)) * 1)]
    found, most = read(many(tmp_path, 5672, turns, wait=True), lambda reading: reading.dissector.tcp.waiting)
    assert 40_000 < most < 60_000
    assert sum(row["code"] == "tcp-gap" for row in found["anomalies"]) == 40
    assert {row["lost_bytes"] for row in found["connections"]} == {0, 7}
    assert any("waited for earlier ones" in row["detail"] for row in found["anomalies"])


def test_frames_that_are_not_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(limits, "WAITING_BYTES", 50_000)
    turns = [*handshake(), (CLIENT, raw(1, 1, bytes(20_000))[:9_000])]
    found, most = read(many(tmp_path, 5672, turns), lambda reading: stage(reading).framing.cursor[Cursor.CHAINED])
    assert 40_000 < most <= 50_000
    limited = [row for row in found["anomalies"] if row["code"] == "limit-reached"]
    assert sum(row["connection_id"] is not None for row in limited) == 35 and len(limited) <= 36


def test_bytes_held_until_the_protocol_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(limits, "REMEMBERED", 100_000)
    turns = [(CLIENT, b"\1" * 1_500)] * 6
    found, most = read(many(tmp_path, 5672, turns, syn=False), lambda reading: reading.dissector.accounting.total)
    assert 80_000 < most < 140_000
    assert sum(row["skipped_bytes"] for row in found["connections"]) == 40 * 9_000
    assert any(row["code"] == "limit-reached" for row in found["anomalies"])


def test_files_that_were_read_leave_little(tmp_path: Path) -> None:
    data = section() + secrets(b"CLIENT_RANDOM 00 00\n") + interface(1, resolution=0xFF) * 50
    for number in range(3):
        (tmp_path / f"{number}.pcapng").write_bytes(data)
    reading = Reading(find([str(tmp_path)]), compiled=False)
    reported = [row for table, batch in reading for row in batch.to_pylist() if table == "anomalies"]
    assert len(reported) >= 150
    assert [len(seen.info.problems) for seen in reading.seen] == [1, 1, 1]
    assert not any(seen.info.secrets or seen.info.interfaces for seen in reading.seen)


def test_long_texts_are_repeated_in_part() -> None:
    tape = Tape()
    for side, data in amqp(100_000):
        tape.send(side, data, range(0, 110_000, 10_000))
    tables = dissect_packets(tape.packets)
    (row,) = rows(tables["connections"])
    assert row["client_properties"] is None and row["user"] == "g"
    (text,) = (row["client_properties"] for row in rows(tables["amqp091_frames"]) if row["client_properties"])
    assert len(text) > 100_000
