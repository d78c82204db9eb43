"""Captures that are odd, though little or nothing is lost: what is said of their connections stays true."""

import random

import pytest

from tests.captures.damage.odd import compared
from tests.captures.damage.recordings import Recording
from tests.captures.damage.ways import ODD, Capture, numbered, without_begin
from tests.dissector.builders import Packet
from tests.dissector.runs import FOLDER, Row, dissect_packets, rows
from tests.dissector.wire import ACK, CLIENT, FIN, SERVER, Tape, handshake, opening

RECORDED = ("orders_pika", "orders_aio_pika", "orders_amqplib", "stream_rstream", "failed_handshakes", "refused_opens",
            "thrown_out", "tls_failures", "qpid_python_peers")  # fmt: skip
"""By several clients; of those that failed, the verdict must stay as well."""


def connection(packets: list[Packet], *, compiled: bool = False) -> Row:
    """The row of the only connection."""
    (row,) = rows(dissect_packets(packets, compiled=compiled)["connections"])
    return row


@pytest.mark.parametrize("way", ODD)
@pytest.mark.parametrize("name", RECORDED)
def test_times_are_not_order(name: str, way: str) -> None:
    recording = Recording.of(FOLDER / f"{name}.pcap")
    for seed in range(2):
        kinds = {kind for kind, _, _ in compared(recording, way, seed)}
        assert kinds == {"same"}


@pytest.mark.parametrize("skew_ms", [-40, -7, 7, 40])
def test_what_an_end_acknowledges_came_before_it(skew_ms: int) -> None:
    tape = Tape().play([*handshake(), *opening(1)])
    tape.segment(CLIENT, flags=FIN | ACK)
    tape.next[CLIENT] += 1
    tape.segment(SERVER, flags=FIN | ACK)
    capture = Capture(numbered(tape.packets), 1)
    skewed = [
        Packet(packet.ts_ns + skew_ms * 1_000_000 * (segment is not None and segment.flow[2] == 5672), packet.data)
        for packet, segment in zip(capture.packets, capture.segments, strict=True)
    ]
    row = connection(sorted(skewed, key=lambda packet: packet.ts_ns))
    assert (row["handshake_outcome"], row["ending"], row["closed_by"]) == ("ok", "client-gone", "client-fin")


@pytest.mark.parametrize("lost", [1, 2, 3])
@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_what_was_acknowledged_and_nobody_saw_is_a_gap(side: int, lost: int) -> None:
    tape = Tape().play([*handshake(), *opening(1), *opening(2)]).end()
    capture = Capture(numbered(tape.packets), 1)
    port = 40000 if side == CLIENT else 5672
    mine = [i for i, segment in enumerate(capture.segments) if segment and segment.flow[1] == port]
    missing = sum(capture.data(i) for i in mine[: lost + 1])
    row = connection([packet for i, packet in enumerate(capture.packets) if i not in mine[: lost + 1]])
    assert (row["lost_bytes"], row["handshake_outcome"]) == (missing, "ok")


def test_bytes_under_way_when_the_capture_began_are_not_missing() -> None:
    tape = Tape().play([*handshake(), *opening(1), *opening(2)])
    for begin in range(4, len(tape.packets)):
        row = connection(tape.packets[begin:])
        assert row["lost_bytes"] == 0, begin


@pytest.mark.parametrize("name", ["many_confirms", "failed_calls", "qpid_tx", "stream_rstream"])
def test_where_the_servers_beginning_is_lost_there_is_a_gap(name: str) -> None:
    recording = Recording.of(FOLDER / f"{name}.pcap")
    for seed in range(3):
        damaged = without_begin(recording.capture, random.Random(seed))
        lost = {row["connection_id"]: row["lost_bytes"] for row in rows(recording.dissect(damaged)["connections"])}
        whole = {row["connection_id"]: row["bytes"] for row in rows(recording.tables["connections"])}
        found = {row["connection_id"]: row["bytes"] for row in rows(recording.dissect(damaged)["connections"])}
        assert {name: whole[name] - size for name, size in found.items() if name in whole} == {
            name: size for name, size in lost.items() if name in whole
        }
