"""Both directions of a connection in one order: no answer before what it answers, whatever the capture missed."""

import random

import pytest

from tests.dissector.builders import Packet
from tests.dissector.runs import Row, dissect_packets, rows
from tests.dissector.wire import ACK, CLIENT, FIN, SERVER, STEP, Tape, handshake, opening, publish, raw

pytestmark = pytest.mark.compiled
BEGIN = handshake() + opening(1)
SECOND = 1_000_000_000
BEAT = raw(8, 0, b"")


def frames(packets: list[Packet], ends: bool = True) -> list[Row]:
    """Of both ways to run the kernels, which agree."""
    one, two = (rows(dissect_packets(packets, compiled=how, ends=ends)["amqp091_frames"]) for how in (False, True))
    assert one == two
    return one


def exchange(count: int = 12, each_ns: int = STEP) -> tuple[list[Packet], int]:
    """Publishes of the client, each answered by a heartbeat of the server; and how many packets were before these."""
    tape = Tape().play(BEGIN)
    before = len(tape.packets)
    for n in range(count):
        tape.play([(CLIENT, b"".join(publish(b"message %d" % n))), (SERVER, BEAT)])
    first = tape.packets[before].ts_ns
    timed = [Packet(first + n * each_ns, packet.data) for n, packet in enumerate(tape.packets[before:])]
    return [*tape.packets[:before], *timed], before


def order(found: list[Row]) -> list[tuple[int, bool, str]]:
    return [(row["ts_ns"], row["from_client"], row["frame_type"]) for row in found]


@pytest.mark.parametrize("each_ns", [STEP, SECOND // 7, 2 * SECOND])
@pytest.mark.parametrize("seed", range(6))
def test_frames_around_missing_packets_keep_their_order(each_ns: int, seed: int) -> None:
    packets, before = exchange(each_ns=each_ns)
    whole = order(frames(packets))
    lost = set(random.Random(seed).sample(range(before, len(packets)), 4))
    found = order(frames([packet for n, packet in enumerate(packets) if n not in lost]))
    kept = [row for row in whole if row[0] not in {packets[n].ts_ns for n in lost}]
    assert found == kept


@pytest.mark.parametrize("late", range(1, 4))
def test_an_answer_that_was_captured_before_what_it_answers_comes_after_it(late: int) -> None:
    packets, before = exchange()
    whole = order(frames(packets))
    at = before + 8
    stamps = [packet.ts_ns for packet in packets]
    moved = [*packets[:at], *packets[at + 1 : at + 1 + late], packets[at], *packets[at + 1 + late :]]
    found = frames([Packet(ts, packet.data) for ts, packet in zip(stamps, moved, strict=True)])
    assert [row[1:] for row in order(found)] == [row[1:] for row in whole]
    assert [row["routing_key"] for row in found if row["method"]]


def test_bytes_that_were_not_acknowledged_hold_nothing_up() -> None:
    """What is missing on the way has no answer yet."""
    tape = Tape().play(BEGIN)
    before = len(tape.packets)
    tape.send(CLIENT, b"".join(publish(b"sent again")))
    tape.send(CLIENT, b"".join(publish(b"waits")))
    lost = tape.packets.pop(before)
    acked = int.from_bytes(lost.data[38:42])
    for _ in range(3):
        tape.segment(SERVER, BEAT, ack=acked)
        tape.next[SERVER] += len(BEAT)
    found = frames(tape.packets, ends=False)
    assert [row["frame_type"] for row in found[-3:]] == ["heartbeat"] * 3
    again = Packet(tape.packets[-1].ts_ns + STEP, lost.data)
    found = frames([*tape.packets, again])
    assert [row["frame_type"] for row in found[-9:]] == ["heartbeat"] * 3 + ["method", "header", "body"] * 2
    assert {row["ts_ns"] for row in found[-6:]} == {again.ts_ns}


def test_a_direction_that_is_not_captured_holds_the_other_up_for_a_second() -> None:
    """And where more comes than may wait, not as long; nothing of it is lost."""
    tape = Tape().play(BEGIN)
    before = len(tape.packets)
    for _ in range(20):
        tape.play([(CLIENT, BEAT), (SERVER, BEAT)])
    packets = [packet for packet in tape.packets if packet.data[34:36] != b"\x9c\x40" or packet is tape.packets[0]]
    spread = [Packet(packets[0].ts_ns + n * SECOND // 5, packet.data) for n, packet in enumerate(packets)]
    whole = frames(spread)
    assert not any(row["from_client"] for row in whole)
    so_far = [len(frames(spread[: n + 1], ends=False)) for n in range(len(spread))]
    assert so_far[-1] >= len(whole) - 1
    assert all(behind >= n - 9 for n, behind in enumerate(so_far))
    assert before < len(tape.packets)


def test_more_than_may_wait_is_handed_on() -> None:
    tape = Tape().play(BEGIN)
    tape.send(CLIENT, BEAT)
    lost = tape.packets.pop()
    beats = BEAT * 9000
    tape.send(SERVER, beats, range(8, len(beats), 8))
    quick = [Packet(lost.ts_ns + n, packet.data) for n, packet in enumerate(tape.packets)]
    assert len(frames(quick, ends=False)) > 8000
    found = frames(quick)
    assert sum(row["frame_type"] == "heartbeat" for row in found) == 9000


def test_what_is_sent_after_a_fin_waits_for_nothing() -> None:
    tape = Tape().play(BEGIN)
    tape.segment(CLIENT, flags=FIN | ACK)
    tape.next[CLIENT] += 1
    tape.play([(SERVER, BEAT)] * 3)
    assert [row["frame_type"] for row in frames(tape.packets, ends=False)[-3:]] == ["heartbeat"] * 3


def test_sides_that_acknowledge_what_was_never_sent_lose_nothing() -> None:
    """Each says that it has seen bytes of the other's future: one of them cannot be right."""
    tape = Tape().play(BEGIN)
    count = len(frames(tape.packets))
    for n in range(40):
        side = n % 2
        tape.segment(side, BEAT, flags=ACK, ack=tape.next[1 - side] + 3000)
        tape.next[side] += len(BEAT)
    spread = [Packet(packet.ts_ns + n * SECOND // 10, packet.data) for n, packet in enumerate(tape.packets)]
    for packets in (tape.packets, spread):
        found = frames(packets)
        assert [row["frame_type"] for row in found[count:]] == ["heartbeat"] * 40
        assert [row["ts_ns"] for row in found[count:] if row["from_client"]] == sorted(
            packet.ts_ns for packet in packets[-40::2]
        )


@pytest.mark.parametrize("each_ns", [STEP, SECOND // 2, 3 * SECOND])
def test_bytes_sent_again_with_a_newer_acknowledgement_hold_nothing_up(each_ns: int) -> None:
    """The capture missed them the first time; what they acknowledge when sent again was an answer to them."""
    tape = Tape().play(BEGIN)
    data = b"".join(publish(b"first"))
    before, first = len(tape.packets), tape.next[CLIENT]
    tape.play([(CLIENT, data), (SERVER, BEAT)])
    tape.segment(CLIENT, data, seq=first)
    tape.play([(CLIENT, b"".join(publish(b"more"))), (SERVER, BEAT)] * 10)
    start = tape.packets[before].ts_ns
    packets = [Packet(start + n * each_ns, packet.data) for n, packet in enumerate(tape.packets[before + 1 :])]
    found = frames([*tape.packets[:before], *packets], ends=False)
    names = [row["method"] or row["frame_type"] for row in found if row["ts_ns"] >= start]
    assert names == ["basic.publish", "header", "body", "heartbeat"] * 11


@pytest.mark.parametrize("waits", [STEP, 2 * SECOND])
@pytest.mark.parametrize("shown_by", [ACK, FIN | ACK])
def test_lost_bytes_that_only_a_sequence_number_follows_come_before_what_acknowledges_them(
    shown_by: int, waits: int
) -> None:
    """The last bytes of a direction: their side itself says that it has sent them."""
    tape = Tape().play([*BEGIN, (SERVER, b"".join(publish(b"last")))])
    tape.packets.pop()
    tape.play([(CLIENT, BEAT)])
    answer = tape.packets[-1].ts_ns
    tape.segment(SERVER, flags=shown_by)
    tape.packets[-1] = Packet(answer + 1, tape.packets[-1].data)
    tape.play([(CLIENT, BEAT)])
    tape.packets[-1] = Packet(answer + waits, tape.packets[-1].data)
    for compiled in (False, True):
        tables = dissect_packets(tape.packets, compiled=compiled)
        gap = next(row for row in rows(tables["anomalies"]) if row["code"] == "tcp-gap")
        answers = next(row for row in rows(tables["amqp091_frames"]) if row["ts_ns"] == answer)
        assert gap["frame_no"] == answers["frame_no"]


def test_a_fin_that_was_missed_holds_nothing_up() -> None:
    tape = Tape().play(BEGIN)
    tape.next[CLIENT] += 1
    tape.play([(SERVER, BEAT)] * 3)
    assert [row["frame_type"] for row in frames(tape.packets, ends=False)[-3:]] == ["heartbeat"] * 3
