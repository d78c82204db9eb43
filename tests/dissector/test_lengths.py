"""Lengths from the wire: bounded by what the peers agreed upon, and believed above that only with proof."""

import random
import struct

import pytest
from pamqp import commands

from tests.dissector.builders import Packet
from tests.dissector.runs import BOTH, dissect_packets, rows
from tests.dissector.stream import wire as sw
from tests.dissector.stream.runs import Wire
from tests.dissector.wire import CLIENT, SERVER, Tape, handshake, method, opening, publish, raw

ACK = method(commands.Basic.Ack(delivery_tag=7))
BEGIN = [*handshake(), *opening(1)]


def frames_of(stream: bytes) -> list[tuple[int, int]]:
    """Where frames begin and end."""
    found, at = [], 0
    while at < len(stream):
        size = int.from_bytes(stream[at + 3 : at + 7], "big") + 8
        found.append((at, at + size))
        at += size
    return found


def flipped(stream: bytes, at: int, bit: int) -> bytes:
    """The bytes with one bit of the length in the head at `at` flipped."""
    damaged = bytearray(stream)
    damaged[at + 3 + bit // 8] ^= 0x80 >> bit % 8
    return bytes(damaged)


def played(side: int, stream: bytes, segment: int = 1448) -> list[Packet]:
    """The packets of a connection on which this is sent."""
    tape = Tape().play(BEGIN)
    tape.send(side, stream, range(segment, len(stream), segment))
    return tape.end().packets


def sizes(packets: list[Packet], side: int, *, compiled: bool = True) -> list[tuple[str, int]]:
    frames = dissect_packets(packets, compiled=compiled)["amqp091_frames"]
    found = rows(frames.select(["connection_id", "frame_no", "from_client", "method", "frame_type", "size"]))
    mine = [
        (row["method"] or row["frame_type"], row["size"]) for row in found if row["from_client"] is (side == CLIENT)
    ]
    return mine[len([turn for turn in BEGIN if turn[0] == side]) + (side == CLIENT) :]


@pytest.mark.compiled
@pytest.mark.parametrize("bit", range(32))
def test_two_frames_are_lost_at_most_where_little_follows(bit: int) -> None:
    """The connection ends before the payload that the damaged head claims."""
    open_ok = method(commands.Channel.OpenOk(), 7)
    for side, frames in ((SERVER, [ACK] * 4), (SERVER, [open_ok, ACK] * 2)):
        stream = b"".join(frames)
        for at, _ in frames_of(stream)[:2]:
            found = sizes(played(side, flipped(stream, at, bit), 21), side)
            assert len(frames) - 2 <= len(found) <= len(frames)


@pytest.mark.compiled
@pytest.mark.parametrize("bit", range(32))
def test_behind_a_flipped_length_two_frames_are_lost_at_most(bit: int) -> None:
    """Of acknowledgements, and of contents."""
    segment = (100, 1448, 20_000)[bit % 3]
    rnd = random.Random(f"{bit} {segment}")
    acks = ACK * 900
    contents = b"".join(b"".join(publish(bytes(rnd.randrange(900)))) for _ in range(60))
    for side, stream in ((SERVER, acks), (CLIENT, contents)):
        whole = sizes(played(side, stream, segment), side)
        at, _ = rnd.choice(frames_of(stream)[:-60])
        found = sizes(played(side, flipped(stream, at, bit), segment), side)
        assert len(whole) - 2 <= len(found) <= len(whole)
        missing = list(whole)
        for frame in found:  # nothing is invented
            missing.remove(frame)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("segment", [7, 13, 1448])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("place", range(6))
def test_a_length_that_ends_where_another_frame_does_costs_its_frame_alone(
    place: int, count: int, segment: int
) -> None:
    """Nothing but the frames inside shows it. A body's length is contradicted by that of its content."""
    flow = method(commands.Channel.Flow(active=True))
    frames = [flow] * 3 + publish(b"one", app_id="a" * 30) + publish(b"two", headers={"a": 1}) * 3
    wrong = int.from_bytes(frames[place][3:7], "big") + sum(map(len, frames[place + 1 : place + 1 + count]))
    damaged = [*frames]
    damaged[place] = frames[place][:3] + wrong.to_bytes(4, "big") + frames[place][7:]
    whole = sizes(played(CLIENT, b"".join(frames)), CLIENT, compiled=False)
    packets = played(CLIENT, b"".join(damaged), segment)
    assert sizes(packets, CLIENT, compiled=False) == whole[:place] + whole[place + 1 :]
    codes = [row["code"] for row in rows(dissect_packets(packets)["anomalies"])]
    assert codes[:2] == ["frame-length-wrong", "bytes-skipped"]


@pytest.mark.parametrize("short", range(1, 12))
def test_a_length_that_ends_in_the_last_frame_costs_its_frame_alone(short: int) -> None:
    """Each is a segment, and its fields tell where the damaged one ends."""
    wrong = len(ACK) - 8 + len(ACK) - short
    damaged = ACK[:3] + wrong.to_bytes(4, "big") + ACK[7:]
    packets = Tape().play([*BEGIN, (CLIENT, damaged), (CLIENT, ACK)]).end().packets
    assert sizes(packets, CLIENT, compiled=False) == [("basic.ack", len(ACK))]


@BOTH
def test_a_method_without_bytes_is_no_end_of_others(compiled: bool) -> None:
    packets = Tape().play([*BEGIN, (CLIENT, raw(1, 1, b"")[:7]), (CLIENT, b"\xce" + ACK)]).end().packets
    assert sizes(packets, CLIENT, compiled=compiled) == [("method", 8), ("basic.ack", len(ACK))]


def test_frames_at_the_end_of_a_property_are_none() -> None:
    """Its last byte is missing, but the end of the header stands there."""
    inner = b"\xce" + raw(8, 0, b"")[:-1]
    header = raw(2, 1, struct.pack(">HHQHB", 60, 0, 1, 1 << 3, len(inner)) + inner)
    head, _, body = publish(b"x")
    found = dissect_packets(played(CLIENT, head + header + body))
    assert [row["frame_type"] for row in rows(found["amqp091_frames"])[-3:]] == ["method", "header", "body"]
    assert [row["code"] for row in rows(found["anomalies"])] == ["text-not-utf8"]


def test_a_type_that_is_the_first_byte_of_a_protocol_header_costs_its_frame_alone() -> None:
    packets = played(CLIENT, b"".join([*publish(b"one"), b"A" + publish()[0][1:], *publish(b"three")[1:]]))
    found = sizes(packets, CLIENT, compiled=False)
    assert [name for name, _ in found] == ["basic.publish", "header", "body", "header", "body"]


def test_a_frame_above_what_was_agreed_is_named_and_read() -> None:
    """8,008 bytes where 131,072 are agreed are nothing; with 4,096 they are too large, and still there."""
    tune = commands.Connection.TuneOk(channel_max=2047, frame_max=4096, heartbeat=60)
    small = [*handshake()[:4], (CLIENT, method(tune, 0) + method(commands.Connection.Open(), 0)), *BEGIN[5:]]
    for begin, codes in ((BEGIN, []), (small, ["frame-too-large"])):
        for parts in (1, 1448):
            tape = Tape().play(begin)
            stream = b"".join(publish(bytes(8000), largest=8000)) + b"".join(publish(b"behind"))
            tape.send(CLIENT, stream, range(parts, len(stream), parts) if parts > 1 else ())
            found = dissect_packets(tape.end().packets)
            assert [row["code"] for row in rows(found["anomalies"])] == codes
            assert [row["body_size"] for row in rows(found["messages"])] == [8000, 6]


def test_a_long_login_is_read_without_tune() -> None:
    token = "x" * 200_000
    login = commands.Connection.StartOk({}, "PLAIN", token, "en_US")
    begin = handshake()
    data = method(login, 0)
    tape = Tape().play(begin[:2])
    tape.send(CLIENT, data, range(1448, len(data), 1448))
    tape.play([*begin[3:], *opening(1)])
    found = dissect_packets(tape.end().packets)
    assert "connection.start-ok" in [row["method"] for row in rows(found["amqp091_frames"])]
    assert rows(found["anomalies"]) == []
    (row,) = rows(found["connections"])
    assert (row["handshake_outcome"], row["skipped_bytes"]) == ("ok", 0)


@BOTH
def test_what_was_skipped_is_counted(compiled: bool) -> None:
    packets = played(SERVER, ACK * 20 + flipped(ACK, 0, 8) + ACK * 20)
    found = dissect_packets(packets, compiled=compiled)
    assert [row["code"] for row in rows(found["anomalies"])] == ["frame-too-large", "bytes-skipped"]
    (row,) = rows(found["connections"])
    assert row["skipped_bytes"] == len(ACK)


@pytest.mark.compiled
def test_a_search_begins_no_frame_that_is_larger_than_agreed_upon() -> None:
    """The third damaged head seems to begin a body that goes beyond what there is, with all frames after it inside."""
    stream = b"".join(publish(b"x" * 60) * 20)
    starts = [at for at, _ in frames_of(stream)]
    damaged = stream
    for frame, bit in ((2, 12), (3, 7), (8, 13)):  # of bodies and a method
        damaged = flipped(damaged, starts[frame], bit)
    assert len(sizes(played(CLIENT, damaged, len(stream) // 20), CLIENT)) >= len(starts) - 9


STREAMS = {
    "publish": [sw.publish(1, [(n, sw.simple(b"x" * (n % 90)))]) for n in range(100)],
    "deliver": [sw.deliver(1, sw.chunk([sw.simple(b"y" * (n % 90))])) for n in range(100)],
    "publish-confirm": [sw.confirm(1, list(range(n % 9))) for n in range(100)],
    "metadata": [sw.request(15, n, sw.strings(["s" * (n % 40)] * (n % 4))) for n in range(100)],
    "heartbeat": [sw.HEARTBEAT] * 100,
}
"""Frames of streams whose lengths are damaged, by command."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("bit", range(32))
@pytest.mark.parametrize("turn", range(2))
def test_streams_lose_two_frames_at_most(bit: int, turn: int) -> None:
    """Nothing marks their ends. Segments are of one frame, or cut frames anywhere."""
    rnd = random.Random(f"{bit} {turn}")
    of, frames = rnd.choice([*STREAMS.items()])
    damaged = bytearray(frames[20])
    damaged[bit // 8] ^= 0x80 >> bit % 8
    parts = [*frames[:20], bytes(damaged), *frames[21:]]
    if segment := rnd.choice((0, 29, 1448)):
        data = b"".join(parts)
        parts = [data[at : at + segment] for at in range(0, len(data), segment)]
    wire = Wire()
    for from_client, sent in sw.hello():
        wire.send(from_client, sent)
    for part in parts:
        wire.send(of in ("publish", "metadata"), part)
    wire.close()
    found = dissect_packets(wire.packets)
    assert len(frames) - 2 <= sum(row["command"] == of for row in rows(found["stream_frames"])) <= len(frames)


@pytest.mark.parametrize("bit", range(32))
def test_a_stream_is_one_though_its_first_length_is_damaged(bit: int) -> None:
    hello = sw.hello()
    damaged = bytearray(hello[0][1])
    damaged[bit // 8] ^= 0x80 >> bit % 8
    wire = Wire()
    for from_client, data in [(True, bytes(damaged)), *hello[1:]]:
        wire.send(from_client, data)
    wire.close()
    found = dissect_packets(wire.packets)
    assert len(rows(found["stream_frames"])) >= len(hello) - 1


FOREIGN = {
    "amqp-header-unexpected": b"AMQP\0\0\x09\x01",
    "tls-unexpected": b"\x15\x03\x03\0\x02\x02\x46" + b"\x15\x03\x03\0\x02\x01\0",
    "http-unexpected": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


@pytest.mark.parametrize("code", FOREIGN)
def test_other_protocols_in_the_middle_are_named(code: str) -> None:
    wire = Wire()
    for from_client, data in sw.hello():
        wire.send(from_client, data)
    wire.send(False, FOREIGN[code])
    wire.close()
    captures = [wire.packets]
    if not code.startswith("amqp"):
        captures.append(Tape().play([*BEGIN, (SERVER, FOREIGN[code])]).end().packets)
    for packets in captures:
        found = dissect_packets(packets)
        (anomaly, skipped) = rows(found["anomalies"])
        assert (anomaly["code"], skipped["code"]) == (code, "bytes-skipped")
        assert found["connections"]["skipped_bytes"].to_pylist() == [len(FOREIGN[code])]
        assert skipped["detail"] == f"{len(FOREIGN[code])} bytes skipped"
