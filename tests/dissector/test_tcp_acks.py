"""Which packet acknowledged which frames first: made connections, recordings by a plain reading, and by tshark."""

import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from amqpscope import spec
from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.kernels import limits
from tests.dissector.builders import Packet, pcap
from tests.dissector.moves import Relay
from tests.dissector.recordings import ours
from tests.dissector.runs import CAPTURES, FOLDER, SETS, dissect, dissect_packets, rows, tables
from tests.dissector.wire import CLIENT, SERVER, Tape, deliver, handshake, method, opening, publish, session
from tests.oracles import needs
from tests.reference import tcp_acks as reference
from tests.reference.tcp_acks import Segment
from tests.thorough import examples

FRAMES = {"amqp091_frames": "method", "amqp010_frames": "method", "stream_frames": "command"}
COPIED = {"seen_twice", "two_interfaces", "wrong_ports"}
"""Recordings of several capture points; the last has a proxy's header, which is no frame."""
PLAIN = [each for each in CAPTURES if each not in SETS and each.stem not in COPIED and "tls" not in each.stem]


@cache
def asking() -> frozenset[str]:
    names = {m.name for m in spec.load("rabbitmq-stream").methods if m.responses} | {"publish"}
    for protocol in ("amqp-0-9-1", "amqp-0-10"):
        names |= {m.full_name for m in spec.load(protocol).methods if m.responses}
    return frozenset(names)


def asks(table: str, row: Mapping[str, Any]) -> bool:
    """Whether a frame asks for an answer, or carries contents."""
    if table == "amqp091_frames" and row["frame_type"] in ("header", "body"):
        return True
    if table == "amqp010_frames" and row["segment_type"] in ("command", "header", "body"):
        return True
    return row[FRAMES[table]] in asking() and not row.get("is_response")


def wrong(made: Mapping[str, Any], sent: Mapping[int, Sequence[Segment]]) -> list[Any]:
    """Where rows differ from the reference, of connections of which all was captured."""
    found: list[Any] = []
    lossy = {row["connection_id"] for row in rows(made["anomalies"])}
    whole = [row for row in rows(made["connections"]) if row["syn_seen"] and row["tls_version"] is None]
    by_connection: dict[int, list[Any]] = {}
    for row in rows(made["tcp_acks"]):
        by_connection.setdefault(row["connection_id"], []).append(row)
    frames: dict[int, list[tuple[str, Any]]] = {}
    for table in FRAMES:
        for row in rows(made[table]):
            frames.setdefault(row["connection_id"], []).append((table, row))
    compared = 0
    for connection in whole:
        identity = connection["connection_id"]
        if identity in lossy or identity not in frames or connection["first_packet"] not in sent:
            continue
        mine = [row for _, row in frames[identity]]
        expected = reference.acknowledged(mine, sent[connection["first_packet"]])
        ask = [row["frame_no"] for table, row in frames[identity] if asks(table, row)]
        found += reference.differences(mine, by_connection.get(identity, ()), expected, ask)
        compared += 1
    assert compared or lossy or not by_connection.keys() & {row["connection_id"] for row in whole}
    return found


@pytest.mark.parametrize("capture", PLAIN, ids=lambda path: path.name)
def test_recordings_against_a_plain_reading(capture: Path) -> None:
    assert wrong(ours(capture), reference.segments(capture)) == []


def by_tshark(capture: Path) -> dict[int, list[Segment]]:
    """The segments of connections, by the number of their first packet."""
    names = ("frame.number", "tcp.stream", "tcp.srcport", "tcp.dstport", "tcp.ack", "tcp.flags.ack", "tcp.flags.reset")
    command = ["tshark", "-n", "-r", str(capture), "-Y", "tcp", "-T", "fields"]
    command += [word for name in names for word in ("-e", name)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    firsts: dict[str, tuple[int, str]] = {}
    found: dict[int, list[Segment]] = {}
    for line in output.splitlines():
        number, stream, source, _, acked, has_ack, is_reset = line.split("\t")
        first, client = firsts.setdefault(stream, (int(number), source))
        if has_ack in ("1", "True") and is_reset in ("0", "False"):
            found.setdefault(first, []).append(Segment(int(number), source == client, int(acked) - 1))
    return found


@pytest.mark.sampled(7)
@needs("tshark")
@pytest.mark.parametrize("capture", PLAIN, ids=lambda path: path.name)
def test_recordings_against_tshark(capture: Path) -> None:
    assert wrong(ours(capture), by_tshark(capture)) == []


# ---- made connections


def acks(tape: Tape) -> list[tuple[bool, int, int, int]]:
    """Rows in the order of packets, in which batches they may come."""
    one, *others = (_acks(tape, size) for size in (1 << 20, 1, 300, 2000))
    assert all(each == one for each in others)
    return one


def _acks(tape: Tape, batch_bytes: int) -> list[tuple[bool, int, int, int]]:
    made = rows(dissect_packets(tape.packets, batch_bytes=batch_bytes, check=True)["tcp_acks"])
    made.sort(key=lambda row: row["packet"])
    return [(row["from_client"], row["first_frame_no"], row["last_frame_no"], row["packet"]) for row in made]


def in_order(made: Mapping[str, Any]) -> list[Any]:
    return rows(made["tcp_acks"], "capture")


def begun() -> tuple[Tape, int]:
    """A connection with a channel, and the number of its next frame."""
    tape = Tape().play([*handshake(), *opening(1)])
    return tape, dissect_packets(tape.packets)["amqp091_frames"].num_rows


def test_an_acknowledgement_alone_comes_before_the_answer() -> None:
    tape, n = begun()
    before = acks(tape)
    tape.send(CLIENT, b"".join(publish()))
    tape.segment(SERVER)
    tape.send(SERVER, method(commands.Basic.Ack(delivery_tag=1)))
    assert acks(tape)[len(before) :] == [(False, n + 1, n + 2, len(tape.packets) - 1)]


def test_an_answer_acknowledges_what_nothing_did_before() -> None:
    tape, n = begun()
    before = acks(tape)
    tape.send(CLIENT, b"".join(publish()))
    tape.send(SERVER, method(commands.Basic.Ack(delivery_tag=1)))
    assert acks(tape)[len(before) :] == [(False, n + 1, n + 2, len(tape.packets))]


def test_a_part_of_a_segment_is_acknowledged() -> None:
    """A capture at the sender has segments that its card cuts later."""
    tape, n = begun()
    before = acks(tape)
    one, two = (b"".join(publish(body)) for body in (b"1" * 100, b"2" * 100))
    tape.send(CLIENT, one + two)
    tape.segment(SERVER, ack=tape.next[CLIENT] - len(two) - 1)
    tape.segment(SERVER, ack=tape.next[CLIENT] - len(two))
    tape.segment(SERVER, ack=tape.next[CLIENT] - 1)
    tape.segment(SERVER)
    last = len(tape.packets)
    assert acks(tape)[len(before) :] == [
        (False, n + 1, n + 1, last - 3), (False, n + 2, n + 2, last - 2), (False, n + 4, n + 4, last - 1),
        (False, n + 5, n + 5, last),
    ]  # fmt: skip


def test_what_was_acknowledged_before_it_was_captured_has_no_time() -> None:
    """Nobody knows whether the first acknowledgement is that of the first copy; a later one is not the first."""
    tape, n = begun()
    before = acks(tape)
    data = b"".join(publish())
    tape.segment(SERVER, ack=tape.next[CLIENT] + len(data))
    tape.send(CLIENT, data)
    tape.segment(SERVER)
    tape.send(CLIENT, data)
    tape.segment(SERVER)
    assert acks(tape)[len(before) :] == [(False, n + 4, n + 5, len(tape.packets))]


def test_a_gap_has_no_time_and_what_follows_has() -> None:
    tape, _ = begun()
    before = acks(tape)
    data = b"".join(publish())
    tape.send(CLIENT, data)
    tape.packets.pop()
    tape.segment(SERVER)
    for _ in range(6):
        last = tape.packets[-1]
        tape.packets[-1] = Packet(last.ts_ns + 2 * 10**9, last.data)
        tape.start_ns += 2 * 10**9
        tape.send(CLIENT, data)
        tape.segment(SERVER)
    made = dissect_packets(tape.packets)
    packets = {row["frame_no"]: row["packet"] for row in rows(made["amqp091_frames"])}
    later = acks(tape)[len(before) :]
    assert later and all(packets[last] < packet for _, _, last, packet in later)
    assert later[-1][3] == len(tape.packets)


def test_without_the_other_side_there_is_nothing() -> None:
    tape = Tape().play(session())
    only = [packet for packet in tape.packets if packet.data[34:36] != (5672).to_bytes(2, "big")]
    made = dissect_packets(only)
    assert made["amqp091_frames"].num_rows and not made["tcp_acks"].num_rows


def test_what_was_sent_before_the_other_side_was_seen_has_no_time() -> None:
    tape = Tape(syn=False).play([*handshake(), *opening(1)])
    made = acks(tape)
    assert made and made[0][3] > 2


def crowded() -> tuple[Tape, int, int]:
    """Twenty publishes that one segment acknowledges; the number of the last frame before, and of rows."""
    tape, n = begun()
    before = len(acks(tape))
    for _ in range(20):
        tape.send(CLIENT, b"".join(publish(b"x" * 100)))
    tape.segment(SERVER)
    return tape, n, before


def test_a_frame_waits_for_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNACKED_BYTES", 1000)
    tape, n, before = crowded()
    (row,) = acks(tape)[before:]
    assert row[2:] == (n + 59, len(tape.packets)) and n + 30 < row[1] < n + 59


def test_frames_of_the_process_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(limits, "UNACKED", 10)
    tape, _, before = crowded()
    (tmp_path / "a.pcap").write_bytes(pcap(tape.packets, ns=True))
    made = dissect(tmp_path / "a.pcap", batch_bytes=300)
    assert made["tcp_acks"].num_rows <= before + 1
    assert "limit-reached" in {row["code"] for row in rows(made["anomalies"])}


WRITES = st.tuples(
    st.sampled_from([CLIENT, SERVER]), st.integers(1, 3), st.integers(0, 60), st.lists(st.integers(1, 200), max_size=3),
    st.integers(0, 90),
)  # fmt: skip


def any_traffic(writes: Sequence[tuple[int, int, int, Sequence[int], int]], swaps: Sequence[int]) -> Tape:
    """Publishes of both sides, cut anywhere, that acknowledge all, or less; neighbours in another order."""
    tape = Tape().play([*handshake(), *opening(1)])
    acked = tape.next[::-1]
    for side, count, size, cuts, behind in writes:
        acked[side] = max(acked[side], tape.next[1 - side] - behind)
        of = publish(b"x" * size) if side == CLIENT else deliver(1, b"x" * size)
        data = b"".join(of) * count if size else b""
        edges = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
        for first, last in pairwise(edges):
            tape.segment(side, data[first:last], seq=tape.next[side] + first, ack=acked[side])
        tape.next[side] += len(data)
    for swap in swaps:
        at = 14 + swap % max(len(tape.packets) - 15, 1)
        if at + 1 < len(tape.packets):
            one, two = tape.packets[at : at + 2]
            tape.packets[at : at + 2] = [Packet(one.ts_ns, two.data), Packet(two.ts_ns, one.data)]
    return tape


@settings(max_examples=examples(150))
@given(
    writes=st.lists(WRITES, max_size=25), swaps=st.lists(st.integers(0, 60), max_size=4),
    batch_bytes=st.integers(60, 2000),
)  # fmt: skip
def test_any_traffic_in_any_batches(
    writes: list[Any], swaps: list[int], batch_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tape = any_traffic(writes, swaps)
    path = tmp_path_factory.getbasetemp() / "acks.pcap"
    path.write_bytes(pcap(tape.packets, ns=True))
    made = dissect_packets(tape.packets)
    assert wrong(made, reference.segments(path)) == []
    whole = in_order(made)
    assert in_order(dissect_packets(tape.packets, batch_bytes=batch_bytes)) == whole
    moved = tables(Relay(find([str(path)]), Options(), compiled=False, batch_bytes=batch_bytes))
    assert in_order(moved) == whole


@pytest.mark.parametrize("name", ["lossy_link", "begun_before", "snapped", "stream_patience", "qpid_plain"])
def test_damaged_recordings_in_any_batches(name: str) -> None:
    path = FOLDER / f"{name}.pcap"
    whole = in_order(dissect(path))
    for size in (1, 700, 5000):
        assert in_order(dissect(path, batch_bytes=size)) == whole, size
    moved = tables(Relay(find([str(path)]), Options(), compiled=False, batch_bytes=700))
    assert in_order(moved) == whole
