"""TCP as captures have it: connections begun and ended in all ways, gaps, copies that differ."""

import sys
from dataclasses import replace
from itertools import permutations
from types import FrameType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.protocols.pending_chunks import gather
from amqpscope.dissector.tcp import endings
from amqpscope.dissector.tcp.reassembler import Reassembler
from tests.dissector.builders import Packet, ethernet, ipv4, tcp
from tests.dissector.comparing import COUNTED, TIMED
from tests.dissector.runs import Row, dissect_packets, rows
from tests.dissector.wire import (
    ACK,
    CLIENT,
    FIN,
    HEADER,
    RST,
    SERVER,
    STEP,
    SYN,
    T0,
    Tape,
    deliver,
    handshake,
    opening,
    publish,
    raw,
)
from tests.thorough import examples

BEGIN = handshake() + opening(1)
SECOND = 1_000_000_000


def published(body: bytes = b"x", **how: Any) -> bytes:
    return b"".join(publish(body, **how))


def frames(packets: list[Packet], **how: Any) -> list[Row]:
    return rows(dissect_packets(packets, check=True, **how)["amqp091_frames"])


def codes(packets: list[Packet]) -> list[str]:
    return sorted(row["code"] for row in rows(dissect_packets(packets)["anomalies"]))


def connections(packets: list[Packet]) -> list[Row]:
    return rows(dissect_packets(packets)["connections"])


def later(tape: Tape, ns: int = STEP) -> int:
    return tape.packets[-1].ts_ns + ns


# connections


def test_a_port_used_again_is_a_new_connection() -> None:
    first = Tape().play(BEGIN)
    second = Tape(isn=(77, 88), start_ns=later(first)).play([*BEGIN, (CLIENT, published())]).end()
    found = connections(first.packets + second.packets)
    assert sorted((row["frames"], row["messages"], row["closed_by"]) for row in found) == [
        (9, 0, None), (12, 1, "client-fin"),
    ]  # fmt: skip
    assert len({row["connection_id"] for row in found}) == 2


@pytest.mark.parametrize("closed", [True, False])
def test_copies_of_the_connection_before_that_come_late_begin_none(closed: bool) -> None:
    first = Tape().play([*BEGIN, (CLIENT, published())]).end()
    second = Tape(isn=(10_000_000, 20_000_000), start_ns=later(first)).play([*BEGIN, (CLIENT, published())])
    if closed:
        second.end()
    copies = [replace(packet, ts_ns=packet.ts_ns + SECOND) for packet in first.packets]
    found = connections([*first.packets, *second.packets, *copies])
    assert [(row["frames"], row["messages"], row["lost_bytes"]) for row in found] == [(12, 1, 0)] * 2


@pytest.mark.parametrize("is_copy", [True, False])
def test_a_copy_that_comes_late_is_not_the_end_of_its_connection(is_copy: bool) -> None:
    """What is sent again has another identification."""
    tape = Tape().play(BEGIN)
    last = tape.packets[-1]
    ident = last.data[18:20] if is_copy else b"\xff\xff"
    late = replace(last, ts_ns=last.ts_ns + SECOND, data=last.data[:18] + ident + last.data[20:])
    (row,) = connections([*tape.packets, late])
    assert (row["last_ts_ns"], row["last_packet"]) == (
        (last.ts_ns, len(tape.packets)) if is_copy else (late.ts_ns, len(tape.packets) + 1)
    )


def test_a_port_used_again_is_a_new_connection_also_without_its_syn() -> None:
    first = Tape().play(BEGIN).end(RST)
    second = Tape(isn=(77, 88), start_ns=later(first)).play([*BEGIN, (CLIENT, published())]).end()
    found = connections([*first.packets, *second.packets[1:]])
    assert sorted((row["frames"], row["closed_by"], row["lost_bytes"]) for row in found) == [
        (9, "client-rst", 0), (12, "client-fin", 0),
    ]  # fmt: skip


def test_a_port_used_again_long_after_without_a_syn_is_a_new_connection() -> None:
    first = Tape().play(BEGIN).end(RST)
    second = Tape(isn=(77, 88), syn=False, start_ns=later(first, 121 * SECOND)).play([(CLIENT, published())])
    assert [row["frames"] for row in connections(first.packets + second.packets)] in ([9, 3], [3, 9])


def test_a_syn_sent_again_is_no_new_connection() -> None:
    tape = Tape(syn=False)
    tape.segment(CLIENT, seq=1000, flags=SYN, ack=0)
    packets = tape.packets + Tape().play(BEGIN).packets
    (row,) = connections([Packet(T0 + i * STEP, packet.data) for i, packet in enumerate(packets)])
    assert (row["frames"], row["packets"], row["rtt_ns"]) == (9, 11, 3 * STEP)  # captured twice
    packets = [packets[0], *(Packet(p.ts_ns + SECOND, p.data) for p in packets[1:])]
    (row,) = connections(packets)
    assert (row["frames"], row["packets"], row["rtt_ns"]) == (9, 12, None)


@pytest.mark.parametrize("order", [*permutations(range(4))], ids=str)
def test_the_first_packets_may_be_captured_in_any_order(order: tuple[int, ...]) -> None:
    """Queues of a network card deliver each in its own time."""
    tape = Tape().play([*BEGIN, (CLIENT, published())]).end()
    swapped = [Packet(tape.packets[i].ts_ns, tape.packets[j].data) for i, j in enumerate(order)] + tape.packets[4:]
    tables, whole = dissect_packets(swapped, check=True), dissect_packets(tape.packets)
    assert rows(tables["amqp091_frames"], *TIMED) == rows(whole["amqp091_frames"], *TIMED)
    assert rows(tables["connections"], *COUNTED) == rows(whole["connections"], *COUNTED)
    assert rows(tables["connections"])[0]["packets"] == len(tape.packets)
    assert not tables["anomalies"]


@pytest.mark.parametrize("place", range(4))
def test_neighbours_at_the_beginning_of_a_capture_may_be_exchanged(place: int) -> None:
    tape = Tape(syn=False)
    tape.play([(SERVER, b"".join(deliver(n))) for n in range(1, 7)])
    swapped = exchanged(tape.packets, place)
    names = ("method", "delivery_tag", "is_partial")
    assert [[row[n] for n in names] for row in frames(swapped)] == [
        [row[n] for n in names] for row in frames(tape.packets)
    ]


def exchanged(packets: list[Packet], place: int) -> list[Packet]:
    """The packets, two neighbours of which have changed places, but not times."""
    order = [*range(place), place + 1, place, *range(place + 2, len(packets))]
    return [Packet(packets[i].ts_ns, packets[j].data) for i, j in enumerate(order)]


def test_the_round_trip_is_from_the_syn_to_the_clients_acknowledgement() -> None:
    assert connections(Tape().play(BEGIN).packets)[0]["rtt_ns"] == 2 * STEP


def test_bytes_in_a_syn_are_the_first_ones() -> None:
    tape = Tape(syn=False)
    tape.segment(CLIENT, HEADER, seq=1000, flags=SYN, ack=0)
    tape.segment(SERVER, seq=2000, flags=SYN | ACK)
    tape.next[CLIENT] += 8
    assert [row["method"] or row["frame_type"] for row in frames(tape.play(BEGIN[1:]).packets)][:2] == [
        "protocol-header", "connection.start",
    ]  # fmt: skip


def test_the_text_of_a_reset_is_no_data() -> None:
    tape = Tape().play(BEGIN)
    tape.segment(SERVER, published(), flags=RST | ACK)
    (row,) = connections(tape.packets)
    assert (row["frames"], row["closed_by"], row["bytes"]) == (9, "server-rst", sum(len(o) for _, o in BEGIN))
    assert row["closed_ts_ns"] == tape.packets[-1].ts_ns


@pytest.mark.parametrize("unseen", [1, 2, 3])
def test_without_the_packets_of_the_beginning(unseen: int) -> None:
    """The frames are the same, the protocol header included; only the identity is another."""
    packets = Tape().play([*BEGIN, (CLIENT, published())]).packets
    names = ("frame_no", "from_client", "method", "frame_type", "size")
    assert [[row[n] for n in names] for row in frames(packets[unseen:])] == [
        [row[n] for n in names] for row in frames(packets)
    ]
    assert not codes(packets[unseen:])


@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_one_direction_is_enough(side: int) -> None:
    packets = Tape().play([*BEGIN, (CLIENT, published()), (SERVER, b"".join(deliver(1)))]).packets
    from_client = [packet.data[34:36] == (40000).to_bytes(2, "big") for packet in packets]
    one = [p for p, mine in zip(packets, from_client, strict=True) if mine == (side == CLIENT)]
    found = frames(one)
    assert {row["from_client"] for row in found} == {side == CLIENT}
    assert len(found) == sum(row["from_client"] == (side == CLIENT) for row in frames(packets))


def test_a_keep_alive_is_no_data_and_no_retransmission() -> None:
    tape = Tape().play(BEGIN)
    for _ in range(3):
        tape.segment(CLIENT, b"\0", seq=tape.next[CLIENT] - 1)
    tape.play([(CLIENT, published())])
    (row,) = connections(tape.packets)
    assert (row["frames"], row["retransmitted_bytes"]) == (12, 0)


@pytest.mark.parametrize("again", [3, 5, 9])
def test_a_port_used_again_and_again_at_the_limit_of_connections(again: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends the one before the one before it, so none need be evicted, wherever the walk stops for room."""
    packets = [
        Packet(T0 + number * 1000, ethernet(ipv4(tcp(sport=port, seq=(number * 10**8) % 2**32, flags=SYN))))
        for number, port in enumerate([*range(41000, 41006), *[40000] * again])
    ]

    def noted(limit: int) -> list[Any]:
        monkeypatch.setattr(Reassembler.__init__, "__defaults__", (limit,))
        tables = dissect_packets(packets)
        assert sorted(row["first_packet"] for row in rows(tables["connections"])) == [*range(1, len(packets) + 1)]
        return [(row["code"], row["packet"]) for row in rows(tables["anomalies"])]

    assert (
        sorted(noted(8)) == sorted(noted(64)) == [("connection-reused-port", at) for at in range(8, len(packets) + 1)]
    )


def test_a_port_used_again_before_its_end_is_noted() -> None:
    first = Tape().play(BEGIN)
    second = Tape(isn=(77, 88), start_ns=later(first)).play(BEGIN).end()
    third = Tape(isn=(99, 11), start_ns=later(second)).play(BEGIN)
    tables = dissect_packets(first.packets + second.packets + third.packets, check=True)
    (note,) = rows(tables["anomalies"])
    mine = next(row for row in rows(tables["connections"]) if row["connection_id"] == note["connection_id"])
    assert (note["code"], note["severity"], note["packet"]) == ("connection-reused-port", "note", 12)
    assert (mine["first_packet"], note["from_client"]) == (1, True)
    assert note["detail"] == "the old connection had 11 packets"


def test_the_same_connection_again_has_another_identity() -> None:
    """As where files repeat packets long after; frames are counted within a connection."""
    tape = Tape().play(BEGIN).end()
    between = Tape(port=40001, start_ns=later(tape, 60 * SECOND)).play([*BEGIN, *[(CLIENT, b"")] * 50])
    between.send(CLIENT, published() * 10, range(0, 1000, 2))
    packets = tape.packets + between.packets + tape.packets + between.packets + tape.packets
    tables = dissect_packets(packets)
    found = rows(tables["connections"])
    assert len(found) == len({row["connection_id"] for row in found}) == 4
    numbers = [(row["connection_id"], row["frame_no"]) for row in rows(tables["amqp091_frames"])]
    assert len(numbers) == len(set(numbers)) == sum(row["frames"] for row in found)
    assert {row["connection_id"] for row in connections(tape.packets)} < {row["connection_id"] for row in found}


# segments of any connections in any order, with times that step back, and next to no room

ANY = st.tuples(
    st.integers(0, 3),  # client's port
    st.integers(0, 1),  # side
    st.sampled_from([SYN, SYN | ACK, ACK, ACK, ACK, ACK, FIN | ACK, RST]),
    st.integers(0, 3),  # bytes since the initial sequence number, in frames
    st.integers(0, 3),  # frames
    st.sampled_from([0, 0, 0, 0, 0, 5, 40]),  # of the initial sequence number
    st.sampled_from([0, 0, 1, 1, 1, 20, 31, 700, -1, -20, -40]),  # seconds since the segment before
    st.sampled_from([0, 8, 65535]),  # window
)


@settings(max_examples=examples(60))
@given(segments=st.lists(ANY, min_size=1, max_size=60), batch_bytes=st.integers(64, 2000))
@example([(2, 0, ACK, 0, 0, 0, 0, 0), (2, 0, ACK, 0, 0, 0, 0, 8), (2, 0, SYN | ACK, 0, 0, 0, 0, 0)], 64)
def test_rows_depend_on_the_segments_alone(segments: list[tuple[int, ...]], batch_bytes: int) -> None:
    beat = raw(8, 0, b"")
    packets, now = [], T0
    for port, side, flags, at, count, isn, step, window in segments:
        now += step * SECOND
        tape = Tape(syn=False, isn=(isn, isn + 7), port=40000 + port, start_ns=now)
        seq = isn + 7 * side + (0 if flags & SYN else 1) + at * len(beat)
        tape.segment(side, beat * (0 if flags & SYN else count), seq=seq, flags=flags, window=window)
        packets += tape.packets
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reassembler.__init__, "__defaults__", (3,))
        patch.setattr(endings, "LINGER_SEGMENTS", 4)
        patch.setattr(limits, "WAITING_PARTS_PER_STREAM", 2)
        patch.setattr(limits, "WAITING_BYTES", 40)
        for data in (1 << 20, batch_bytes, 64):
            tables = dissect_packets(packets, batch_bytes=data, check=True)
            found.append({name: sorted(table.to_pylist(), key=str) for name, table in tables.items()})
    assert found[0] == found[1] == found[2]
    for table in ("amqp091_frames", "connections"):
        names = [(row["connection_id"], row.get("frame_no")) for row in found[0][table]]
        assert len(names) == len(set(names))


def test_what_is_met_again_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "IDENTITIES", 256)
    packets = []
    for number in range(1800):  # so far apart that they are no copies which come late
        tape = Tape(syn=False, start_ns=T0 + number * 3 * SECOND)
        tape.segment(CLIENT, seq=5 if number % 2 else number // 6 * 1000, flags=SYN)  # 5: the one between
        packets += tape.packets
    found = connections(packets)
    assert len(found) == len({row["connection_id"] for row in found}) == 1800


# bytes


def test_the_first_copy_of_an_byte_wins() -> None:
    tape = Tape().play(BEGIN)
    data = published(b"right")
    at = tape.next[CLIENT]
    tape.segment(CLIENT, data[:10], seq=at)
    tape.segment(CLIENT, data[20:], seq=at + 20)
    tape.segment(CLIENT, bytes(5) + data[10:20] + bytes(len(data) - 20), seq=at + 5)
    whole = dissect_packets(Tape().play([*BEGIN, (CLIENT, data)]).packets)
    (message,) = rows(dissect_packets(tape.packets)["messages"])
    assert message["body_hash"] == rows(whole["messages"])[0]["body_hash"]


def test_a_frame_is_timed_by_its_last_missing_byte() -> None:
    tape = Tape().play(BEGIN)
    data = raw(8, 0, b"")
    at = tape.next[CLIENT]
    tape.segment(CLIENT, data[4:], seq=at + 4)  # packet 12
    tape.segment(SERVER)
    tape.segment(CLIENT, data[:2], seq=at)
    tape.segment(CLIENT, data[2:4], seq=at + 2)  # packet 15
    assert [(row["first_packet"], row["packet"]) for row in frames(tape.packets)][-1] == (14, 15)


def test_one_byte_is_singular() -> None:
    tape = Tape().play(BEGIN)
    tape.next[CLIENT] += 1
    tape.send(CLIENT, published(b"behind") * 3)
    reported = [row["detail"] for row in rows(dissect_packets(tape.packets)["anomalies"])]
    assert "1 byte not captured" in reported


def test_a_first_copy_that_differs_is_reported() -> None:
    tape = Tape().play(BEGIN)
    data = published(b"right")
    at = tape.next[CLIENT]
    tape.segment(CLIENT, data[20:], seq=at + 20)
    tape.segment(CLIENT, data[10:20] + bytes(len(data) - 20), seq=at + 10)
    tape.segment(CLIENT, data[:10], seq=at)
    (reported,) = rows(dissect_packets(tape.packets, check=True)["anomalies"])
    assert (reported["code"], reported["packet"], reported["from_client"]) == ("overlap-mismatch", 13, True)
    different = sum(byte != 0 for byte in data[20:])
    assert reported["detail"] == f"{different} bytes unlike those that came first"
    assert reported["offset"] == at + 10 - 1001


@pytest.mark.parametrize("v6", [False, True])
def test_a_packet_captured_twice_is_not_sent_twice(v6: bool) -> None:
    tape = Tape(v6=v6).play([*BEGIN, (CLIENT, published(b"x" * 50))]).end()
    twice = [Packet(p.ts_ns + n * 1000, p.data) for p in tape.packets for n in range(2)]
    (one,), (two,) = connections(tape.packets), connections(twice)
    data = one["bytes"]
    behind = [Packet(p.ts_ns + 1000, p.data) for p in tape.packets]  # as where interfaces are written in turn
    assert connections(tape.packets + behind)[0]["duplicated_bytes"] == data
    counts = ("bytes", "packets", "retransmitted_bytes", "duplicated_bytes", "frames", "rtt_ns")
    assert [one[name] for name in counts] == [data, 15, 0, 0, 12, 2 * STEP]
    assert [two[name] for name in counts] == [data, 15, 0, data, 12, 2 * STEP]


def test_bytes_sent_again_are_not_captured_twice() -> None:
    tape = Tape().play(BEGIN)
    at, data = tape.next[CLIENT], published()
    tape.play([(CLIENT, data)])
    tape.segment(CLIENT, data, seq=at)
    tape.packets.append(Packet(later(tape, 1000), tape.packets[-1].data))  # and that captured twice
    (row,) = connections(tape.packets)
    assert (row["retransmitted_bytes"], row["duplicated_bytes"]) == (len(data), len(data))


# windows


def intervals(tape: Tape) -> list[Row]:
    return rows(dissect_packets(tape.packets, check=True)["tcp_windows"])


@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_a_window_of_zero_is_an_interval(side: int) -> None:
    tape = Tape().play(BEGIN)
    tape.segment(side, window=0)  # packet 12
    tape.segment(1 - side)
    tape.segment(side, window=0)
    tape.segment(side, window=1000)  # packet 15
    tape.segment(side, window=0)
    for found in (intervals(tape),):
        assert [(row["from_client"], row["kind"], row["start_packet"], row["end_packet"]) for row in found] == [
            (side == CLIENT, "zero", 12, 15), (side == CLIENT, "zero", 16, None),
        ]  # fmt: skip
        assert (found[0]["start_ts_ns"], found[0]["end_ts_ns"]) == (T0 + 11 * STEP, T0 + 14 * STEP)
        assert [row["packets"] for row in found] == [3, 0]
    (row,) = connections(tape.packets)
    mine, other = ("client", "server") if side == CLIENT else ("server", "client")
    assert (row[f"{mine}_zero_window_ns"], row[f"{other}_zero_window_ns"]) == (3 * STEP, 0)


@pytest.mark.parametrize("lost", ["nothing", "the window of zero", "the window that opened", "bytes and that window"])
@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_when_a_window_closed_and_opened_is_known_where_these_packets_are_there(side: int, lost: str) -> None:
    """The other side asks again and again whether it is open, and sends once it is."""
    tape = Tape().play(BEGIN)
    tape.send(1 - side, b"\1\0\1\0\0\0\0\xce")
    tape.segment(side, window=0)  # packet 13
    tape.segment(1 - side, seq=tape.next[1 - side] - 1)
    tape.segment(side, window=0)  # packet 15
    tape.segment(side, window=1000)  # packet 16
    tape.send(1 - side, b"\1\0\1\0\0\0\0\xce")
    tape.segment(side, window=2000)  # packet 18
    missing = {"nothing": [], "the window of zero": [13], "the window that opened": [16]}.get(lost, [12, 13])
    tape.packets = [packet for number, packet in enumerate(tape.packets, 1) if number not in missing]
    (row,) = intervals(tape)
    assert row["is_partial"] == (lost != "nothing")
    began, ended = (round((row[f"{end}_ts_ns"] - T0) / STEP) + 1 for end in ("start", "end"))
    assert (began, ended) == (15 if 13 in missing else 13, 18 if 16 in missing else 16)
    tables = dissect_packets(tape.packets)
    assert [each["late_ns"] is None for each in rows(tables["tcp_events"])] == [lost != "nothing"]


@pytest.mark.parametrize("scale", [None, 0, 4])
def test_a_full_window_is_an_interval(scale: int | None) -> None:
    tape = Tape(scale=scale).play(BEGIN)
    data = published(b"x" * 100)
    tape.segment(SERVER, window=len(data) >> (scale or 0))
    tape.send(CLIENT, data)  # packet 13
    if scale:  # rounded down
        assert len(data) % 16
    tape.segment(SERVER)  # packet 14 acknowledges all
    (row,) = intervals(tape)
    assert (row["from_client"], row["kind"], row["start_packet"], row["end_packet"]) == (False, "full", 13, 14)
    (one,) = connections(tape.packets)
    assert (one["server_full_window_ns"], one["client_full_window_ns"]) == (STEP, 0)


def test_without_the_syn_nobody_knows_when_a_window_is_full() -> None:
    tape = Tape(syn=False).play(BEGIN)
    tape.segment(SERVER, window=10)
    tape.play([(CLIENT, published(b"x" * 100))])
    assert not intervals(tape)
    (row,) = connections(tape.packets)
    assert (row["server_full_window_ns"], row["server_zero_window_ns"]) == (None, 0)


def test_a_reset_ends_what_windows_do() -> None:
    tape = Tape().play(BEGIN)
    tape.segment(SERVER, window=0)
    tape.end(RST)
    (row,) = intervals(tape)
    assert (row["start_packet"], row["end_packet"]) == (12, 13)


# gaps


def lossy(body: int = 3000, segment: int = 1000) -> Tape:
    tape = Tape().play(BEGIN)
    data = published(b"b" * body, largest=body)
    tape.send(CLIENT, data, range(segment, len(data), segment))
    return tape.play([(CLIENT, published(b"after"))])


def test_a_gap_in_a_body_costs_no_frame() -> None:
    tape = lossy()
    packets = tape.packets[:12] + tape.packets[13:]
    found = frames(packets)
    assert [(row["frame_type"], row["is_partial"], row["missing"]) for row in found[-6:]] == [
        ("method", False, 0), ("header", False, 0), ("body", True, 1000), ("method", False, 0), ("header", False, 0),
        ("body", False, 0),
    ]  # fmt: skip
    messages = rows(dissect_packets(packets)["messages"])
    assert [(row["body_size"], row["body_hash"] is None, row["is_partial"], row["missing"]) for row in messages] == [
        (3000, True, True, 1000), (5, False, False, 0),
    ]  # fmt: skip
    (row,) = connections(packets)
    assert (row["lost_bytes"], row["skipped_bytes"]) == (1000, 0)


def heard(tape: Tape, *times: int) -> list[Packet]:
    """Heartbeats of the server at these times, which acknowledge all that was sent."""
    return [Packet(at, tape.play([(SERVER, raw(8, 0, b""))]).packets[-1].data) for at in times]


def read_so_far(packets: list[Packet]) -> list[Row]:
    """Frames that come out before the end of the capture."""
    return rows(dissect_packets(packets, ends=False)["amqp091_frames"])


def test_an_acknowledged_gap_is_skipped_after_a_second() -> None:
    """What lies after it has the packets that brought it, and comes before what acknowledges it."""
    tape = lossy()
    whole = frames(tape.packets)
    captured = [*tape.packets[:12], *tape.packets[13:]]
    beats = heard(tape, *(later(tape, n * SECOND // 4) for n in range(1, 8)))
    found = frames([*captured, *beats])
    assert [row["frame_type"] for row in found[-11:]] == ["body", "method", "header", "body", *["heartbeat"] * 7]
    assert [row["ts_ns"] for row in found if row["from_client"]] == [r["ts_ns"] for r in whole if r["from_client"]]
    assert len(read_so_far([*captured, *beats[:5]])) < len(found) - 7
    assert read_so_far([*captured, *beats[:6]]) == found[:-1]


@pytest.mark.compiled
def test_gaps_are_skipped_one_by_one() -> None:
    """One that is acknowledged later, while others wait, has its own second."""
    tape = Tape().play(BEGIN)
    for n in range(8):
        tape.play([(CLIENT, published(b"message %d" % n))])
    lost = [len(tape.packets) - 7, len(tape.packets) - 2]
    start = tape.packets[0].ts_ns
    spread = [Packet(start + n * SECOND // 5, p.data) for n, p in enumerate(tape.packets)]
    first = len(tape.packets) - 8
    beats = [Packet(p.ts_ns + 1, heard(tape, 0)[0].data) for p in spread[first:]]
    mixed = [p for pair in zip(spread[first:], beats, strict=True) for p in pair]
    kept = [*spread[:first], *(p for p in mixed if p not in [spread[n] for n in lost])]
    one, two = (dissect_packets(kept, compiled=how) for how in (False, True))
    assert rows(one["amqp091_frames"]) == rows(two["amqp091_frames"])
    bodies = [row for row in rows(one["amqp091_frames"]) if row["frame_type"] == "body"]
    assert len(bodies) == 6
    assert [row["ts_ns"] for row in bodies] == [p.ts_ns for n, p in enumerate(spread) if n >= first and n not in lost]


def test_what_was_sent_after_an_answer_is_missing_after_it() -> None:
    """Two lost segments follow each other in their direction; what the other side answered lies between them."""
    packets = Tape().play(BEGIN).packets
    lost = {2 + method for method in (3, 5)}  # the client's start-ok, and its tune-ok behind the server's tune
    found = dissect_packets([p for n, p in enumerate(packets) if n not in lost])
    tune = next(row["frame_no"] for row in rows(found["amqp091_frames"]) if row["method"] == "connection.tune")
    gaps = [row["frame_no"] for row in rows(found["anomalies"]) if row["code"] == "tcp-gap"]
    assert gaps == [tune, tune + 1]


def test_a_lost_head_is_searched_for_and_counted() -> None:
    tape = Tape().play(BEGIN)
    tape.send(CLIENT, published(b"lost" * 100, largest=400), [50])
    tape.play([(CLIENT, published(b"after")), (CLIENT, published(b"more"))])
    packets = tape.packets[:11] + tape.packets[12:]  # without the method, the header and the body's head
    assert [row["method"] for row in frames(packets) if row["from_client"]][-6::3] == ["basic.publish"] * 2
    assert codes(packets) == ["bytes-skipped", "tcp-gap"]
    behind = next(row["frame_no"] for row in frames(packets) if row["packet"] > 11)
    assert [row["frame_no"] for row in rows(dissect_packets(packets)["anomalies"])] == [behind, behind]
    (row,) = connections(packets)
    assert row["lost_bytes"] == 50
    assert 0 < row["skipped_bytes"] <= 400


@pytest.mark.parametrize("kept", [60, 80, 120, 200, 400, 900])
def test_after_the_snap_length_every_visible_head_has_its_row(kept: int) -> None:
    tape = lossy(2000, 500)
    whole = dissect_packets(tape.packets)
    cut = [Packet(p.ts_ns, p.data[:kept], len(p.data)) for p in tape.packets]
    found = frames(cut)
    names = ("from_client", "first_packet", "frame_type", "size")
    seen = [tuple(row[n] for n in names) for row in rows(whole["amqp091_frames"])]
    assert all(tuple(row[n] for n in names) in seen for row in found)
    if kept >= 200:  # then no head is cut off
        assert len(found) == len(seen)
        assert all(row["is_partial"] == (row["missing"] > 0) for row in found)
        lost = sum(len(p.data) - kept for p in tape.packets if len(p.data) > kept)
        assert sum(row["missing"] for row in found) == lost


@pytest.mark.compiled
def test_without_acknowledgements_a_gap_costs_nothing_else() -> None:
    """One direction only, and a gap: nobody says that it was received."""
    tape = Tape().play(BEGIN)
    beats = raw(8, 0, b"") * 4500
    tape.send(CLIENT, beats, range(8, len(beats), 8))
    packets = [p for p in tape.packets if p.data[34:36] == (40000).to_bytes(2, "big")]
    packets = packets[:8] + packets[9:]
    interpreted, compiled = (dissect_packets(packets, compiled=how) for how in (False, True))
    assert rows(interpreted["amqp091_frames"]) == rows(compiled["amqp091_frames"])
    assert interpreted["connections"].to_pylist() == compiled["connections"].to_pylist()
    assert rows(compiled["amqp091_frames"])[-1]["packet"] == len(packets)
    assert all(row["packet"] == row["first_packet"] for row in rows(compiled["amqp091_frames"]))


@pytest.mark.compiled
def test_fragments_of_a_header_are_put_together_however_many() -> None:
    """A header frame in more chunks than any table has room for at first, whichever way kernels run."""
    tape = Tape().play(BEGIN)
    data = published(headers={"h": "z" * 2300})
    tape.send(CLIENT, data, range(len(data)))
    for compiled in (False, True):
        tables = dissect_packets(tape.packets, compiled=compiled)
        (row,) = rows(tables["messages"])
        assert row["headers"] == '{"h":"' + "z" * 2300 + '"}'
        assert not rows(tables["anomalies"])


def test_a_doubted_head_is_seldom_tried_however_slowly_its_bytes_come() -> None:
    """What follows it is not read again with each byte."""
    tape = Tape().play(BEGIN)
    data = published(headers={"h": "z" * 2000})
    tape.send(CLIENT, data, range(1700, len(data)))
    packets = [Packet(T0 + 20 * (packet.ts_ns - T0), packet.data) for packet in tape.packets]
    tried = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal tried
        tried += event == "call" and frame.f_code is gather.__code__

    sys.setprofile(count)
    try:
        tables = dissect_packets(packets)
    finally:
        sys.setprofile(None)
    assert len(rows(tables["messages"])) == 1
    assert 0 < tried < 50


def test_a_clock_that_steps_back_ends_no_connection() -> None:
    """Captures one after the other, the later one first: what follows a close still belongs to it."""
    later_one = Tape(start_ns=T0 + 3600 * SECOND).play(BEGIN).end()
    earlier = Tape(port=40001).play(BEGIN).end()
    assert [row["packets"] for row in connections(later_one.packets + earlier.packets)] == [14, 14]


def test_one_wrong_time_ends_no_connection() -> None:
    tape = Tape().play(BEGIN).end()
    other = Tape(port=40001, start_ns=T0 + 3600 * SECOND)
    assert sorted(row["packets"] for row in connections([*tape.packets[:13], *other.packets, tape.packets[13]])) == [
        3, 14,
    ]  # fmt: skip


def quiet(*steps: tuple[float, int, bytes], end: tuple[float, int, int] | None = None) -> tuple[int | None, int | None]:
    """What is known of the silences of a connection on which these bytes are sent, each after so many seconds."""
    tape = Tape().play(BEGIN)
    at = tape.packets[-1].ts_ns
    for seconds, side, data in steps:
        tape.send(side, data)
        at += int(seconds * SECOND)
        tape.packets[-1] = replace(tape.packets[-1], ts_ns=at)
    if end is not None:
        tape.segment(end[1], flags=end[2])
        tape.packets[-1] = replace(tape.packets[-1], ts_ns=at + int(end[0] * SECOND))
    (row,) = connections(tape.packets)
    return tuple(each and round(each / SECOND) for each in (row["quiet_ns"], row["outlived_ns"]))


BEAT = raw(8, 0, b"")


def test_the_silence_at_the_end_of_a_connection_is_known() -> None:
    assert quiet((1, CLIENT, BEAT), (1, SERVER, BEAT), end=(9, CLIENT, FIN | ACK)) == (9, None)
    assert quiet((1, CLIENT, BEAT), end=(9, SERVER, RST | ACK)) == (9, None)
    assert quiet((9, CLIENT, BEAT), (0.1, SERVER, BEAT), end=(0.1, CLIENT, RST)) == (None, 9)


def test_bytes_that_the_other_side_never_follows_end_no_silence() -> None:
    unanswered = (9, CLIENT, BEAT), (1, CLIENT, BEAT), (2, CLIENT, BEAT)
    assert quiet(*unanswered, end=(1, CLIENT, RST)) == (9, None)
    assert quiet((20, CLIENT, BEAT), (0.1, SERVER, BEAT), *unanswered, end=(1, CLIENT, RST)) == (9, 20)
    assert quiet(*unanswered, (0.1, SERVER, BEAT), end=(0.1, CLIENT, RST)) == (None, 9)


def test_without_an_end_a_connection_is_not_known_to_be_silent() -> None:
    assert quiet((1, CLIENT, BEAT), (1, SERVER, BEAT)) == (None, None)


def test_acknowledged_bytes_are_an_answer() -> None:
    tape = Tape().play(BEGIN)
    at = tape.packets[-1].ts_ns
    for _ in range(3):
        tape.send(CLIENT, BEAT)
        tape.segment(SERVER)
        at += 9 * SECOND
        tape.packets[-2:] = [replace(packet, ts_ns=at) for packet in tape.packets[-2:]]
    tape.segment(CLIENT, flags=RST)
    tape.packets[-1] = replace(tape.packets[-1], ts_ns=at + STEP)
    (row,) = connections(tape.packets)
    assert (row["quiet_ns"], round(row["outlived_ns"] / SECOND)) == (None, 9)
