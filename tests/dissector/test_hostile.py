"""Captures that mean harm: no exception, no row that Arrow refuses, no code that is not listed, bounded memory."""

import io
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from amqpscope import spec
from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.dissector import Dissector, Options
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.tcp.reassembler import Reassembler
from tests.dissector.builders import Packet, ethernet, ipv4, pcap, tcp
from tests.dissector.runs import dissect, dissect_packets, recorded, rows
from tests.dissector.wire import CLIENT, SYN, T0, Tape, content, handshake, method, opening, publish, raw, sent
from tests.thorough import examples

CODES = set(spec.anomalies())
EDGES = [0, 1, 7, 2**16, 2**30, 2**30 + 1, 2**31 - 9, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 9, 2**32 - 8, 2**32 - 1]
MUTATED = [
    "any_sll2.pcap", "field_types.pcap", "interleaved_channels.pcap", "port_reused.pcap", "violations.pcap",
    "qpid_python_peers.pcap",
]  # fmt: skip


def survive(packets: list[Packet], link: int = 1, **how: bool) -> dict[str, pa.Table]:
    """Dissect, hold every batch to Arrow's rules and every anomaly to the list."""
    tables = dissect_packets(packets, link, check=True, **how)  # type: ignore[arg-type]
    assert set(tables["anomalies"]["code"].to_pylist()) <= CODES
    numbers = [
        (row["connection_id"], row["frame_no"])
        for name in ("amqp091_frames", "amqp010_frames")
        for row in rows(tables[name].select(["connection_id", "frame_no"]))
    ]
    assert len(numbers) == len(set(numbers))
    return tables


def same(packets: list[Packet], link: int = 1) -> dict[str, pa.Table]:
    """Both ways to run kernels give the same rows."""
    interpreted = survive(packets, link)
    compiled = survive(packets, link, compiled=True)
    for name, table in interpreted.items():
        assert table.equals(compiled[name]), name
    return interpreted


def codes(tables: dict[str, pa.Table]) -> set[str]:
    return {row["code"] for row in rows(tables["anomalies"])}


# bytes that are no frames


@settings(max_examples=examples(20))
@given(data=st.lists(st.binary(max_size=300), max_size=8), syn=st.booleans(), forced=st.booleans())
def test_random_bytes_on_the_port_of_amqp(data: list[bytes], syn: bool, forced: bool) -> None:
    tape = Tape(syn=syn).play([(i % 2, chunk) for i, chunk in enumerate(data)])
    ports = {5672: "amqp-0-9-1"} if forced else {}
    dissect_packets(tape.packets, options=Options(ports), check=True)


@pytest.mark.compiled
@pytest.mark.parametrize("seed", range(6))
def test_random_bytes_after_a_handshake(seed: int) -> None:
    rnd = random.Random(seed)
    same(sent(*(rnd.randbytes(rnd.randint(1, 2000)) for _ in range(30))))


@pytest.mark.compiled
@pytest.mark.parametrize("size", EDGES)
@pytest.mark.parametrize("kind", [1, 2, 3, 8])
def test_lengths_at_every_edge(kind: int, size: int) -> None:
    head = struct.pack(">BHI", kind, 1, size)
    tables = same(sent(head + b"\0\x3c\0\x28" + b"\xce" * 60, b"".join(publish(b"behind"))))
    if size > limits.FRAME:
        assert "frame-too-large" in codes(tables)
    if 2**16 < size <= limits.FRAME:
        assert codes(tables) & {"frame-cut", "frame-too-large"}


@pytest.mark.compiled
@pytest.mark.parametrize("size", [2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
def test_body_sizes_at_every_edge(size: int) -> None:
    head = struct.pack(">HHQH", 60, 0, size, 0)
    data = method(commands.Basic.Publish(exchange="", routing_key="k")) + raw(2, 1, head) + raw(3, 1, b"x" * 50)
    tables = same(sent(data))
    (message,) = rows(tables["messages"])
    assert message["body_size"] == (size if size < 2**62 else None)
    assert ("frame-too-large" in codes(tables)) == (size >= 2**62)
    assert (message["is_partial"], message["body_hash"]) == (True, None)


@pytest.mark.compiled
@pytest.mark.parametrize("kind", [0, 4, 5, 7, 9, 0x40, 0x41, 0x42, 0x7F, 0x80, 0xCE, 0xFF])
def test_frame_types_that_do_not_exist(kind: int) -> None:
    tables = same(sent(raw(kind, 1, b"x" * 20), b"".join(publish(b"behind"))))
    assert codes(tables) & {"frame-type-unknown", "header-unknown"}
    assert rows(tables["messages"])[-1]["body_size"] == 6


@pytest.mark.compiled
def test_payloads_too_short_for_what_they_are() -> None:
    chunks = [raw(kind, channel, b"\0\x3c\0\x28"[:n]) for kind in (1, 2, 3) for channel in (0, 1) for n in range(5)]
    tables = same(sent(*chunks, b"".join(publish(b"behind"))))
    assert rows(tables["amqp091_frames"])[-1]["frame_type"] == "body"


@pytest.mark.compiled
def test_tables_nested_a_thousand_deep() -> None:
    table = b""
    for _ in range(1000):
        table = b"\1aF" + struct.pack(">I", len(table)) + table
    head = struct.pack(">HHQH", 60, 0, 1, 0x2000) + struct.pack(">I", len(table)) + table
    data = method(commands.Basic.Publish(exchange="", routing_key="k")) + raw(2, 1, head) + raw(3, 1, b"x")
    tables = same(sent(data))
    assert "table-too-deep" in codes(tables)
    assert rows(tables["messages"])[0]["body_hash"] is not None


@pytest.mark.compiled
def test_contents_of_thousands_of_channels_in_turn() -> None:
    channels = range(1, 3001)
    steps = [
        b"".join(publish(b"body", n)[0] for n in channels),
        b"".join(content(b"body", n)[0] for n in channels),
        b"".join(content(b"body", n)[1] for n in channels),
    ]
    tables = same(sent(*(step[at : at + 1400] for step in steps for at in range(0, len(step), 1400))))
    messages = rows(tables["messages"])
    assert len(messages) == 3000
    assert not any(row["is_partial"] for row in messages)


@pytest.mark.compiled
def test_nothing_but_segments_of_one_byte() -> None:
    tape = Tape().play([*handshake(), *opening(1)])
    data = b"".join(publish(bytes(200), largest=50)) * 40
    tape.send(CLIENT, data, range(len(data)))
    assert len(rows(same(tape.packets)["messages"])) == 40


# damaged recordings


@st.composite
def mutated(draw: st.DrawFn) -> tuple[list[Packet], int]:
    packets, link = recorded(draw(st.sampled_from(MUTATED)))
    data = [bytearray(packet.data) for packet in packets]
    lengths = [packet.wire for packet in packets]
    for _ in range(draw(st.integers(1, 12))):
        i = draw(st.integers(0, len(data) - 1))
        if data[i]:
            at = draw(st.integers(0, len(data[i]) - 1))
            what = draw(st.sampled_from(["byte", "word", "cut", "again", "swap"]))
            if what == "byte":
                data[i][at] = draw(st.integers(0, 255))
            elif what == "word":
                data[i][at : at + 4] = draw(st.sampled_from(EDGES)).to_bytes(4, "big")
            elif what == "cut":
                del data[i][at:]
            elif what == "again":
                data[i] += data[i][at:]
                lengths[i] = len(data[i])
            else:
                j = draw(st.integers(0, len(data) - 1))
                data[i], data[j], lengths[i], lengths[j] = data[j], data[i], lengths[j], lengths[i]
    times = [packet.ts_ns for packet in packets]
    return [Packet(t, bytes(o), max(n, len(o))) for t, o, n in zip(times, data, lengths, strict=True)], link


@pytest.mark.compiled
@settings(max_examples=examples(60))
@given(case=mutated())
def test_mutated_recordings(case: tuple[list[Packet], int]) -> None:
    same(*case)


# very many


def syns(count: int) -> Iterator[Packet]:
    template = ethernet(ipv4(tcp(flags=SYN)))
    for number in range(count):
        data = bytearray(template)
        data[26:30] = (0x0B000000 | number >> 4).to_bytes(4, "big")
        data[34:36] = (1024 + (number & 15)).to_bytes(2, "big")
        data[38:42] = (number * 7919 & 0xFFFFFFFF).to_bytes(4, "big")
        yield Packet(T0 + number * 1000, bytes(data))


@pytest.mark.compiled
@pytest.mark.parametrize("compiled", [False, True])
def test_half_open_connections_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiled: bool) -> None:
    """Each has its row; those given up are the ones idle longest."""
    monkeypatch.setattr(Reassembler.__init__, "__defaults__", (1024,))
    path = tmp_path / "syns.pcap"
    path.write_bytes(pcap(list(syns(3000)), ns=True))
    tables = dissect(path, compiled=compiled, batch_bytes=20_000, check=True)
    found = rows(tables["connections"])
    assert len(found) == len({row["connection_id"] for row in found}) == 3000
    reported = rows(tables["anomalies"])
    assert {row["code"] for row in reported} == {"limit-reached"}
    assert reported[0]["packet"] == 1025
    assert len(reported) == 1 + (3000 - 1025) // 128


@pytest.mark.compiled
def test_hundreds_of_thousands_of_half_open_connections() -> None:
    data = io.BytesIO(pcap(list(syns(150_000)), ns=True))
    dissector = Dissector(compiled=True)
    dissector.captures.append("memory.pcap")
    ended = 0
    for batch in CaptureFile(data, "memory.pcap", 0, batch_bytes=4 << 20, compiled=True):
        for name, made in dissector.feed(batch):
            ended += made.num_rows if name == "connections" else 0
            assert made.num_rows <= 1 << 15
    assert ended >= 150_000 - limits.CONNECTIONS
    assert len(dissector.tcp.flows.facts) == limits.CONNECTIONS
    assert sum(array.nbytes for array in dissector.tcp.flows) < 390 << 20
