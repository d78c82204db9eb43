"""Bytes missing just before the end of a direction: what was sent, or acknowledged, shows them."""

import random

import pytest

from tests.captures.damage.recall import unreported
from tests.captures.damage.ways import Capture, numbered, without_ends
from tests.dissector.builders import Packet
from tests.dissector.runs import dissect_packets, recorded, rows
from tests.dissector.wire import ACK, CLIENT, FIN, RST, SERVER, Tape, deliver, handshake, opening, publish, raw

BEGIN = handshake() + opening(1)
SECOND = 1_000_000_000
LAST = {CLIENT: b"".join(publish(b"last")), SERVER: b"".join(deliver(7))}
BEAT = raw(8, 0, b"")


def lost(packets: list[Packet], place: int) -> tuple[int, list[str]]:
    """Bytes that count as lost without the packet at this place, and the anomalies."""
    tables = dissect_packets([*packets[:place], *packets[place + 1 :]], check=True)
    (row,) = rows(tables["connections"])
    return row["lost_bytes"], [anomaly["code"] for anomaly in rows(tables["anomalies"])]


def ended(side: int) -> tuple[Tape, int]:
    """A connection up to the last message of a side, and the place of that."""
    tape = Tape().play([*BEGIN, (side, LAST[side])])
    return tape, len(tape.packets) - 1


@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_the_fin_shows_that_bytes_are_missing(side: int) -> None:
    tape, place = ended(side)
    tape.segment(side, flags=FIN | ACK)
    assert lost(tape.packets, place) == (len(LAST[side]), ["tcp-gap"])


@pytest.mark.parametrize("flags", [ACK, FIN | ACK])
@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_an_acknowledgement_shows_that_bytes_are_missing(side: int, flags: int) -> None:
    tape, place = ended(side)
    tape.segment(1 - side, flags=flags)
    assert lost(tape.packets, place) == (len(LAST[side]), ["tcp-gap"])


@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_a_segment_without_bytes_shows_that_bytes_are_missing(side: int) -> None:
    tape, place = ended(side)
    tape.segment(side)
    tape.segment(1 - side, flags=RST, ack=0)
    assert lost(tape.packets, place) == (len(LAST[side]), ["tcp-gap"])


@pytest.mark.parametrize("flags", [RST, RST | ACK])
@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_a_reset_shows_that_bytes_are_missing(side: int, flags: int) -> None:
    tape, place = ended(side)
    tape.segment(side, flags=flags)
    assert lost(tape.packets, place) == (len(LAST[side]), ["tcp-gap"])
    tape, place = ended(side)
    tape.segment(1 - side, flags=RST | ACK)
    assert lost(tape.packets, place) == (len(LAST[side]), ["tcp-gap"])


@pytest.mark.parametrize("ahead", [1 << 21, 1 << 30])
def test_a_forged_reset_shows_nothing(ahead: int) -> None:
    tape = Tape().play(BEGIN)
    tape.segment(CLIENT, seq=tape.next[CLIENT] + ahead, ack=tape.next[SERVER] + ahead, flags=RST | ACK)
    assert lost(tape.packets, len(tape.packets)) == (0, [])


def test_gaps_inside_of_frames_are_reported_once() -> None:
    tape = Tape().play(BEGIN)
    place = len(tape.packets)
    for _ in range(2):
        tape.send(CLIENT, b"".join(publish(bytes(900))), range(300, 900, 300))
    assert lost([*tape.packets[: place + 4], *tape.packets[place + 5 :]], place + 1) == (600, ["frame-gap"])


def test_a_whole_connection_lacks_nothing() -> None:
    for flags in (FIN, RST):
        tape = Tape().play(BEGIN).end(flags)
        assert lost(tape.packets, len(tape.packets)) == (0, [])


@pytest.mark.parametrize("unseen", [1, 2, 3])
def test_a_fin_that_was_not_captured_is_no_byte(unseen: int) -> None:
    tape = Tape().play(BEGIN)
    before = len(tape.packets)
    tape.end()
    assert lost(tape.packets, before + unseen - 1)[0] == 0


def test_a_keep_alive_neither_brings_nor_lacks_a_byte() -> None:
    tape, place = ended(CLIENT)
    tape.segment(SERVER)
    tape.start_ns += 5 * SECOND
    tape.segment(CLIENT, b"\0", seq=tape.next[CLIENT] - 1, flags=ACK)
    tape.segment(SERVER)
    assert lost(tape.packets, len(tape.packets)) == (0, [])
    assert lost(tape.packets, place) == (len(LAST[CLIENT]), ["tcp-gap"])


def test_acknowledgements_of_what_was_never_sent_hide_nothing() -> None:
    tape = Tape().play(BEGIN)
    tape.segment(SERVER, ack=tape.next[CLIENT] + 5000)
    for _ in range(6):
        tape.start_ns += SECOND
        tape.play([(CLIENT, BEAT), (SERVER, BEAT)])
    (row,) = rows(dissect_packets(tape.packets)["connections"])
    assert row["frames"] == 9 + 12


def test_what_is_missing_at_the_end_comes_before_what_acknowledges_it() -> None:
    """Each gap is reported, for each may hide an answer to what was sent until then."""
    tape = Tape().play([*BEGIN, *[(SERVER, LAST[SERVER]), (CLIENT, BEAT)] * 2]).end()
    lost = {packet for packet in tape.packets if packet.data.endswith(LAST[SERVER])}
    tables = dissect_packets([packet for packet in tape.packets if packet not in lost])
    beats = [row["frame_no"] for row in rows(tables["amqp091_frames"]) if row["frame_type"] == "heartbeat"]
    assert [(row["code"], row["frame_no"]) for row in rows(tables["anomalies"])] == [("tcp-gap", n) for n in beats]


@pytest.mark.parametrize("name", ["tls_pika.pcap", "stream_chunks.pcap", "qpid_props.pcap", "amqp10_handshakes.pcap"])
def test_missing_ends_of_recordings_are_counted(name: str) -> None:
    """A FIN that is missing as well may count as one byte."""
    packets, link = recorded(name)
    capture = Capture(numbered(packets), link)
    for seed in range(3):
        damaged = without_ends(capture, random.Random(seed))
        gone = {packet.interface for packet in capture.packets} - {packet.interface for packet in damaged}
        missing = sum(capture.data(i - 1) for i in gone)
        fins = sum(segment is not None and segment.flags & FIN for segment in (capture.segments[i - 1] for i in gone))
        tables = dissect_packets(damaged, link)
        counted = sum(row["lost_bytes"] for row in rows(tables["connections"]))
        assert missing <= counted <= missing + fins
        assert unreported(tables) == set()
