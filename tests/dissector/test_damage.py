"""Damaged captures: what does no harm changes no row; of what is lost, what is still there is found, and no more."""

import random
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pyarrow as pa
import pytest
from pamqp import commands

from tests.captures.damage.bodies import full_of_frames
from tests.captures.damage.recall import FRAMES, Score, Sent, compare
from tests.captures.damage.ways import HARMFUL, HARMLESS, Capture, late, lossy, numbered, snapped
from tests.dissector import runs
from tests.dissector.builders import Packet
from tests.dissector.comparing import COUNTED, TIMED
from tests.dissector.recordings import covered
from tests.dissector.runs import Row, recorded, rows
from tests.dissector.stream import wire as stream
from tests.dissector.stream.runs import Wire
from tests.dissector.wire import (
    ACK,
    CLIENT,
    PSH,
    SERVER,
    Tape,
    content,
    deliver,
    handshake,
    method,
    opening,
    publish,
    raw,
    session,
)  # fmt: skip

QPID = [
    "qpid_multi_session.pcap", "qpid_props.pcap", "qpid_python_peers.pcap", "qpid_session_controls.pcap",
    "qpid_topology.pcap",
]  # fmt: skip
"""Of AMQP 0-10, of which `tests.dissector.amqp010` says what is in them."""
RECORDED = [
    "interleaved_channels.pcap", "many_confirms.pcap", "orders_pika.pcap", "ipv6.pcap", "any_sll2.pcap",
    "channel_reopened.pcap", "stream_chunks.pcap", "stream_rstream.pcap", "stream_js.pcap",
]  # fmt: skip
BEGIN = handshake() + opening(1)
pytestmark = pytest.mark.compiled
dissect_packets = partial(runs.dissect_packets, compiled=True)


@cache
def capture_of(name: str) -> tuple[Capture, dict[str, pa.Table]]:
    packets, link = recorded(name) if name in QPID else covered(name)
    capture = Capture(numbered(packets), link)
    return capture, dissect_packets(capture.packets, link)


@cache
def sent_in(name: str) -> Sent:
    return Sent.of(*capture_of(name))


def score(sent: Sent, damaged: list[Packet]) -> Score:
    """What is found of a damaged capture: nothing but what was sent, and all that can be reached."""
    total = compare(sent, damaged, dissect_packets(damaged, sent.capture.link, check=True))
    assert (total.made_up + total.wrong, total.unreported) == ([], 0)
    assert [str(missed) for missed in total.missed if missed.reachable] == []
    return total


@pytest.mark.parametrize("way", HARMLESS)
@pytest.mark.parametrize("name", RECORDED + QPID)
def test_disorder_and_repetition_change_no_row(name: str, way: str) -> None:
    capture, whole = capture_of(name)
    found = dissect_packets(HARMLESS[way](capture, random.Random(way + name)), capture.link)
    for table in (*FRAMES, "messages"):
        assert rows(found[table], *TIMED) == rows(whole[table], *TIMED), table
    mine, theirs = (rows(t["connections"], *COUNTED, "duplicated_bytes") for t in (found, whole))
    assert mine == theirs


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", HARMFUL)
@pytest.mark.parametrize("name", RECORDED + QPID)
def test_what_is_still_whole_is_found(name: str, way: str) -> None:
    sent, total = sent_in(name), Score()
    for seed in range(2):
        total.add(score(sent, HARMFUL[way](sent.capture, random.Random(f"{seed} {name}"))))
    # what little a segment shows after the end of a frame is not believed
    least = 0.9 if way.startswith("snapped") else 0.99
    assert total.reached + total.found >= least * (total.reachable + total.behind) > 0


@pytest.mark.parametrize("snap", [96, 128])
@pytest.mark.parametrize("name", [name for name in RECORDED if not name.startswith("stream_")])
def test_no_peer_is_blamed_for_what_the_capture_cut(name: str, snap: int) -> None:
    capture, whole = capture_of(name)
    rnd = random.Random(f"{snap} {name}")
    blamed = {row["code"] for row in rows(whole["anomalies"])}
    for packets in (snapped(capture, rnd, snap), lossy(capture, rnd, 0.1), late(capture, rnd, rnd.random())):
        found = {row["code"] for row in rows(dissect_packets(packets, capture.link)["anomalies"])}
        assert (found - blamed) & {"content-interrupted", "content-unexpected", "body-too-large"} == set()


@pytest.mark.parametrize("name", RECORDED[:3])
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_a_capture_that_is_cut_has_the_rows_before(name: str, share: float) -> None:
    capture, whole = capture_of(name)
    cut = capture.packets[: round(len(capture.packets) * share)]
    found = dissect_packets(cut, capture.link)
    for table in FRAMES:
        there = [row for row in rows(whole[table]) if row["packet"] <= len(cut)]
        assert rows(found[table]) == there


# Bodies that hold frames, and whole captures


@pytest.mark.parametrize("way", ["lossy", "snapped", "late", "one way"])
@pytest.mark.parametrize(("largest", "segment"), [(131064, 1448), (4088, 1448), (131064, 16000)])
def test_frames_in_bodies_are_none(way: str, largest: int, segment: int) -> None:
    rnd = random.Random(f"{way} {largest} {segment}")
    capture = Capture(full_of_frames(rnd, largest, segment), 1)
    total = score(Sent.of(capture, dissect_packets(capture.packets)), HARMFUL[way](capture, rnd))
    assert total.reached + total.found >= 0.99 * (total.reachable + total.behind) > 0


def test_frames_in_a_body_that_began_after_the_gap_are_none() -> None:
    """It had not ended when they reached farther than any body that began in the gap."""
    inner = b"".join(publish(b"inner"))
    tape = Tape().play(session())
    begin = len(tape.packets)
    tape.play([(CLIENT, b"".join(publish(b"lost"))), (CLIENT, b"".join(publish(bytes(37_000), largest=1 << 17)))])
    data = b"".join(publish(bytes(95_000) + inner * 500, largest=1 << 17))
    tape.send(CLIENT, data, range(4000, len(data), 4000))
    tape.play([(CLIENT, b"".join(publish(b"behind")))])
    capture = Capture(numbered(tape.packets), 1)
    packets = [p for p in capture.packets if p.interface != begin + 1]
    assert score(Sent.of(capture, dissect_packets(capture.packets)), packets).missed == []


def test_records_that_hold_frames_do_not_tell_who_is_the_client() -> None:
    """The capture begins in a publish, whose last record holds deliveries."""
    inner = stream.deliver(5, stream.chunk([stream.simple(b"inner")] * 4)) * 9
    wire = Wire(begun=False)
    wire.send(True, stream.publish(3, [(1, stream.simple(bytes(3000) + inner))])[500:])
    for n in range(9):
        wire.send(True, stream.publish(3, [(n, stream.simple(b"x"))]))
        wire.send(False, stream.confirm(3, [n]))
    wire.close()
    sides = {(row["command"], row["from_client"]) for row in rows(dissect_packets(wire.packets)["stream_frames"])}
    assert ("publish", True) in sides and ("publish-confirm", False) in sides
    assert not any(command == "deliver" for command, _ in sides)


@pytest.mark.parametrize("segment", [1448, 16_000])
def test_frames_at_the_end_of_a_record_are_none(segment: int) -> None:
    """The capture begins in a publish that ends with publishes; without a mark they end as it does."""
    inner = stream.publish(3, [(7, stream.simple(b"inner"))]) * 9
    wire = Wire(begun=False)
    wire.send(True, stream.publish(3, [(1, stream.simple(bytes(3000) + inner))])[1500:], segment)
    for n in range(9):
        wire.send(True, stream.publish(3, [(n, stream.simple(b"x"))]))
        wire.send(False, stream.confirm(3, [n]))
    wire.close()
    found = rows(dissect_packets(wire.packets)["messages"])
    assert [row["publish_seq"] for row in found] == list(range(9))


@pytest.mark.parametrize("shown", range(40, 64))
def test_frames_that_end_where_the_snap_length_cuts_are_none(shown: int) -> None:
    """It is by chance: they are inside of a body whose head was cut off."""
    inner = b"".join(publish(b"inner"))
    tape = Tape().play(BEGIN)
    tape.play([(CLIENT, b"".join(publish(b"x" * shown)))])
    data = b"".join(publish(b"first" * 400)) + b"".join(publish(inner * 900, largest=1 << 17))
    tape.send(CLIENT, data, range(1448, len(data), 1448))
    capture = Capture(numbered(tape.end().packets), 1)
    snapped = [replace(p, data=p.data[: 54 + shown], length=p.wire) for p in capture.packets]
    assert score(Sent.of(capture, dissect_packets(capture.packets)), snapped).invented == 0


@pytest.mark.parametrize("aligned", [0, 1, 7])
def test_a_body_whose_segments_begin_with_frames(aligned: int) -> None:
    """Its head is lost; every segment begins with a frame that was never sent, or near one."""
    inner = b"".join(publish(b"inner"))
    data = b"".join(publish(inner * 300, largest=1 << 17))
    tape = Tape().play(session())
    begin = len(tape.packets)
    tape.send(CLIENT, data, range(data.index(inner) + aligned, len(data), len(inner) * 3))
    tape.play([(CLIENT, b"".join(publish(b"behind")))] * 3)
    capture = Capture(numbered(tape.packets), 1)
    damaged = [p for p in capture.packets if p.interface != begin + 1]
    total = score(Sent.of(capture, dissect_packets(capture.packets)), damaged)
    assert total.missed == []


# Where a lost head's frame ends


def amqp(packets: list[Packet]) -> tuple[list[Row], list[Row], list[Row]]:
    found = dissect_packets(packets, check=True)
    return rows(found["amqp091_frames"]), rows(found["messages"]), rows(found["anomalies"])


def test_frames_longer_than_segments_are_found() -> None:
    """The beginning of the capture is in the middle of a frame; no segment holds a whole one."""
    data = b"".join(b"".join(publish(b"b" * 20_000)) for _ in range(20))
    tape = Tape(syn=False).play(BEGIN)
    tape.packets.clear()
    tape.send(CLIENT, data[3_000:], range(900, len(data), 1000))
    frames, _, _ = amqp(tape.packets)
    assert len(frames) == 20 * 7 - 3
    assert not any(row["is_partial"] for row in frames)


@pytest.mark.parametrize(("segment", "shift"), [(1448, 0), (1448, 3), (65_483, 0), (65_483, 40_000)])
def test_a_capture_begun_in_a_body_of_many_long_frames(segment: int, shift: int) -> None:
    """No segment holds a whole frame, nor two heads, until far more than is held back of what nobody knows."""
    rnd = random.Random(segment)
    data = b"".join(publish(rnd.randbytes(1_500_000), largest=131_064))
    tape = Tape(syn=False)
    tape.send(CLIENT, data[200_000:], range(segment - shift, len(data), segment))
    tape.play([(CLIENT, b"".join(publish(b"behind")))])
    frames, (message,), _ = amqp(tape.packets)
    assert [row["size"] for row in frames[:9]] == [131_072] * 9
    assert [row["frame_type"] for row in frames[9:]] == ["body", "method", "header", "body"]
    assert not any(row["is_partial"] for row in frames)
    assert (message["kind"], message["is_partial"]) == ("publish", False)


@pytest.mark.parametrize("lost", [2, 3])
def test_the_end_of_a_body_frame_whose_head_is_lost_is_known(lost: int) -> None:
    """Nothing but its length tells: after it there is no more than one frame."""
    body = b"".join(publish(b"inner")) * 300
    head, header, *bodies = publish(body, largest=4088)
    tape = Tape().play(BEGIN)
    for data in (head + header, *bodies):
        tape.send(CLIENT, data, [20, 2000])
    beginning = 3 + len(BEGIN)
    packets = [p for i, p in enumerate(tape.packets) if i != beginning + 2 + 3 * (lost - 2)]
    frames, (message,), anomalies = amqp(packets)
    assert [row["frame_type"] for row in frames[len(BEGIN) + 1 :]] == ["method", "header"] + ["body"] * (
        len(bodies) - 1
    )
    assert (message["is_partial"], message["body_size"]) == (True, len(body))
    assert [row["code"] for row in anomalies] == ["tcp-gap", "bytes-skipped"]


def test_contents_are_not_joined_over_a_gap() -> None:
    """The second body would fit the first header."""
    one, two = publish(b"first", key="one"), publish(b"other", key="two")
    tape = Tape().play(BEGIN)
    tape.send(CLIENT, b"".join(one[:2]))
    tape.send(CLIENT, one[2] + two[0] + two[1])
    tape.send(CLIENT, two[2])
    tape.play([(CLIENT, b"".join(publish(b"behind", key="three")))])
    lost = len(BEGIN) + 4
    _, messages, _ = amqp([p for i, p in enumerate(tape.packets) if i != lost])
    reported = [(row["routing_key"], row["is_partial"], row["body_hash"] is None) for row in messages]
    assert reported == [("one", True, True), ("three", False, False)]


def test_a_body_with_a_wrong_end_completes_no_message() -> None:
    """A receiver takes it for an error and closes (§4.2.3)."""
    head = [method(commands.Basic.Publish(exchange="", routing_key="k")), content(b"body")[0]]
    tape = Tape().play([*BEGIN, (CLIENT, b"".join(head) + raw(3, 1, b"body", end=0)), (CLIENT, b"".join(publish()))])
    frames, messages, anomalies = amqp(tape.packets)
    assert [row["frame_type"] for row in frames[-4:]] == ["body", "method", "header", "body"]
    assert [(row["is_partial"], row["body_hash"] is None) for row in messages] == [(True, True), (False, False)]
    assert [row["code"] for row in anomalies] == ["frame-end-wrong"]


def test_a_quiet_connection_begun_in_the_middle_is_not_kept_waiting() -> None:
    """A frame a second: rows come before the connection ends, in the order of both directions."""
    tape = Tape(syn=False)
    for n in range(1, 6):
        tape.start_ns += 10**9
        tape.segment(SERVER, b"".join(deliver(n)), flags=ACK | PSH)
        tape.next[SERVER] += len(b"".join(deliver(n)))
        tape.play([(CLIENT, method(commands.Basic.Ack(delivery_tag=n)))])
    frames, _, _ = amqp(tape.packets)
    reported = [(row["from_client"], row["method"]) for row in frames if row["method"]]
    assert reported == [(False, "basic.deliver"), (True, "basic.ack")] * 5


# Numbers of publishes

SELECT = method(commands.Confirm.Select())
CLOSE = method(commands.Channel.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
REOPENING = [(CLIENT, CLOSE), (SERVER, method(commands.Channel.CloseOk())), *opening(1)]


def sent(name: str, channel: int = 1, body: bytes = b"x") -> bytes:
    return b"".join(publish(body, channel, message_id=name))


def publish_numbers(packets: list[Packet]) -> dict[str, int | None]:
    """The number of each publish, by message id."""
    _, messages, _ = amqp(packets)
    assert all(row["publish_seq_unsure"] is None for row in messages if row["kind"] != "publish")
    return {row["message_id"]: row["publish_seq"] for row in messages if row["kind"] == "publish"}


def unsure(packets: list[Packet]) -> set[str]:
    """The publishes of which the number is not sure."""
    _, messages, _ = amqp(packets)
    return {row["message_id"] for row in messages if row["publish_seq_unsure"]}


def without(tape: Tape, *places: int) -> list[Packet]:
    """What a tape recorded after the beginning, but for these packets of it."""
    lost = {3 + len(BEGIN) + place for place in places}
    return [p for i, p in enumerate(tape.packets) if i not in lost]


@pytest.mark.parametrize(
    ("confirms", "number"), [(None, 1), (commands.Basic.Ack(delivery_tag=9), None), (commands.Confirm.SelectOk(), None)]
)
def test_a_select_after_confirms_is_not_the_first(confirms: Any, number: int | None) -> None:
    """The capture begins in the middle of a channel, which is in confirm mode or not."""
    answer = [] if confirms is None else [(SERVER, method(confirms))]
    tape = Tape(syn=False).play([(CLIENT, sent("one")), *answer, (CLIENT, SELECT), (CLIENT, sent("two"))])
    assert publish_numbers(tape.packets) == {"one": None, "two": number}
    assert unsure(tape.packets) == {"one", "two"}


def test_publishes_after_a_gap_that_may_hold_others_have_no_number() -> None:
    """Until the channel is opened again: a confirm.select alone may be the second, which does not begin again."""
    tape = Tape().play([*BEGIN, *opening(2)])
    tape.play([(CLIENT, SELECT + sent("one") + method(commands.Confirm.Select(), 2)), (CLIENT, sent("other", 2))])
    tape.play([(CLIENT, sent("lost")), (CLIENT, sent("two") + sent("another", 2)), (CLIENT, SELECT + sent("three"))])
    tape.play([*REOPENING, (CLIENT, SELECT + sent("four") + sent("five"))])
    assert publish_numbers(without(tape, 4)) == {
        "one": 1, "other": 1, "two": None, "another": None, "three": None, "four": 1, "five": 2,
    }  # fmt: skip
    assert unsure(without(tape, 4)) == {"two", "another", "three"}
    whole = publish_numbers(tape.packets)
    assert (whole["two"], whole["three"]) == (3, 4)
    assert unsure(tape.packets) == set()


@pytest.mark.parametrize("lost", [1, 2])
def test_gaps_that_can_hold_no_publish_leave_numbers_known(lost: int) -> None:
    """One in a body whose head is visible, and one that takes a body's frame whole, which its header foretells."""
    data = sent("two", body=b"y" * 3000)
    tape = Tape().play([*BEGIN, (CLIENT, SELECT + sent("one"))])
    at = data.index(b"y" * 3000)
    tape.send(CLIENT, data, [at, at + 1000] if lost == 2 else [at - 7, len(data) - 1])
    if lost == 1:
        tape.packets.pop(3 + len(BEGIN) + 3)  # the end of the frame goes with it
    tape.play([(CLIENT, sent("three"))] * 40)
    assert publish_numbers(without(tape, lost + (lost == 1)))["three"] == 42


def test_gaps_in_what_the_broker_sends_leave_numbers_known() -> None:
    tape = Tape().play([*BEGIN, (CLIENT, SELECT + sent("one")), (SERVER, method(commands.Confirm.SelectOk()))])
    tape.play([(SERVER, method(commands.Basic.Ack(delivery_tag=1))), (CLIENT, sent("two"))])
    assert publish_numbers(without(tape, 1)) == {"one": 1, "two": 2}


def test_a_method_of_which_nothing_is_left_may_have_been_a_publish() -> None:
    """Of one channel: its head says which."""
    tape = Tape().play([*BEGIN, *opening(2), (CLIENT, method(commands.Confirm.Select(), 2) + SELECT)])
    data = sent("cut")
    tape.send(CLIENT, data, [8, 14])
    tape.play([(CLIENT, sent("behind") + sent("aside", 2))])
    found = publish_numbers(without(tape, 4))
    assert (found["behind"], found["aside"]) == (None, 1)


def test_a_channel_that_was_opened_before_the_capture_counts_from_its_first_select() -> None:
    tape = Tape(syn=False).play([(CLIENT, sent("zero") + SELECT + sent("one") + SELECT + sent("two"))])
    assert publish_numbers(tape.packets) == {"zero": None, "one": 1, "two": 2}
    assert unsure(tape.packets) == {"zero", "one", "two"}, "that may have been the second select"
    plain = Tape().play([*BEGIN, (CLIENT, sent("plain") + SELECT + sent("one"))])
    assert unsure(plain.packets) == set()


@pytest.mark.parametrize("lost", ["nothing", "a get", "an answer", "the end of a get"])
def test_gets_after_a_gap_pair_with_no_answer(lost: str) -> None:
    """Which get an answer belongs to is shown by their order alone."""
    tape = Tape().play(BEGIN)
    for flag in (True, False, True):
        tape.play([(CLIENT, method(commands.Basic.Get(queue="q", no_ack=flag)))])
    for n in (1, 2, 3):
        answer = commands.Basic.GetOk(delivery_tag=n, exchange="", routing_key="q", message_count=0)
        tape.play([(SERVER, method(answer) + b"".join(content(b"x")))])
    packets = without(tape, *{"a get": {0}, "an answer": {3}}.get(lost, set()))
    if lost == "the end of a get":
        first = packets[3 + len(BEGIN)]
        packets[3 + len(BEGIN)] = replace(first, data=first.data[:-2], length=len(first.data))
    _, messages, _ = amqp(packets)
    assert {row["delivery_tag"]: row["no_ack"] for row in messages} == {
        "nothing": {1: True, 2: False, 3: True},
        "a get": {1: None, 2: None, 3: None},
        "an answer": {2: None, 3: None},
        "the end of a get": {1: None, 2: False, 3: True},
    }[lost]


def test_ids_of_methods_have_sixteen_bits() -> None:
    """A document of the user's may have any."""
    from amqpscope.dissector.protocols.amqp091.layout import method_index, method_table  # noqa: PLC0415

    table = method_table([(10, 10), (60, 40), (60, 500), (400, 7), (65535, 65535)])
    found = [method_index(table, *ids) for ids in ((10, 10), (60, 40), (60, 500), (400, 7), (65535, 65535), (400, 8))]
    assert found == [0, 1, 2, 3, 4, -1]


def test_a_message_is_unfinished_when_its_last_frames_were_not_seen() -> None:
    _, whole = capture_of("broken_contents.pcap")
    reported = [(row["is_partial"], row["unfinished"]) for row in rows(whole["messages"])]
    assert all(partial == unfinished for partial, unfinished in reported)
    assert {partial for partial, _ in reported} == {True, False}
    _, cut = capture_of("snapped.pcap")  # bytes of bodies are missing, their frames are not
    assert (True, False) in [(row["is_partial"], row["unfinished"]) for row in rows(cut["messages"])]


def test_a_message_is_unfinished_when_its_last_frame_lies_in_a_gap() -> None:
    """What follows shows how long the frame was, and not when it came."""
    tape = Tape().play([*handshake(), *opening(1)])
    for part in (*publish(b"first"), *publish(b"second"), *publish(b"third")):
        tape.send(CLIENT, part)
    found = rows(dissect_packets([*tape.packets[:-4], *tape.packets[-3:]])["messages"])
    assert [(row["body_size"], row["unfinished"]) for row in found] == [(5, False), (6, True), (5, False)]
