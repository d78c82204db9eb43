"""Heads of frames of AMQP 0-10 that cannot be right: what they cost, and what they are."""

import random
from collections import Counter
from functools import lru_cache

import pytest

from tests.dissector.amqp010 import wire as w
from tests.dissector.builders import Packet
from tests.dissector.runs import BOTH, dissect_packets, rows
from tests.dissector.wire import CLIENT, SERVER, Tape, Turn

BEGIN = w.opening() + w.attaching()
ACCEPT = w.operation("message.accept", transfers=[(7, 7)])
SIZE, CHANNEL = range(16, 32), range(48, 64)
"""Bits of a head that say its size, and its channel: any of these may be meant."""


SEGMENTS = (100, 1448, 20_000)
"""Bytes of segments: less than a frame, some frames, many frames."""


def published(chance: random.Random, states_size: bool) -> list[bytes]:
    """The frames of a message."""
    body = bytes(chance.randrange(900))
    size = {"content_length": len(body)} if states_size else {}
    return w.operation("message.transfer", 1, w.header(("message.message-properties", size)), body, destination="x")


def played(side: int, frames: list[bytes], segment: int, begin: list[Turn] = BEGIN) -> list[Packet]:
    """The packets of a connection on which these frames are sent."""
    data = b"".join(frames)
    tape = Tape().play(begin)
    tape.send(side, data, range(segment, len(data), segment))
    return tape.end().packets


def sizes(packets: list[Packet]) -> list[tuple[str, int]]:
    frames = dissect_packets(packets, compiled=True)["amqp010_frames"]
    found = rows(frames.select(["connection_id", "frame_no", "segment_type", "size"]))
    return [(row["segment_type"], row["size"]) for row in found]


@lru_cache(maxsize=2 * len(SEGMENTS))  # of acceptances it is the same for many bits
def undamaged(side: int, frames: tuple[bytes, ...], segment: int) -> list[tuple[str, int]]:
    return sizes(played(side, [*frames], segment))


@pytest.mark.sampled(4)
@pytest.mark.compiled
@pytest.mark.parametrize("bit", [bit for bit in range(96) if bit not in CHANNEL])
def test_behind_a_flipped_bit_two_frames_are_lost_at_most(bit: int) -> None:
    """Of acceptances, and of messages that state their size."""
    segment = SEGMENTS[bit % len(SEGMENTS)]
    chance = random.Random(f"{bit} {segment}")
    messages = [frame for _ in range(60) for frame in published(chance, states_size=True)]
    for side, frames in ((CLIENT, ACCEPT * 300), (SERVER, messages)):
        at = chance.randrange(len(frames) - 60)
        damaged = bytearray(frames[at])
        damaged[bit // 8] ^= 0x80 >> bit % 8
        missing = [*undamaged(side, tuple(frames), segment)]
        found = sizes(played(side, [*frames[:at], bytes(damaged), *frames[at + 1 :]], segment))
        others = 0
        for frame in found:
            if frame in missing:
                missing.remove(frame)
            else:
                others += 1
        assert len(missing) <= 2
        assert others <= 1  # the damaged one


@pytest.mark.compiled
@pytest.mark.parametrize("bit", SIZE)
def test_one_wrong_bit_in_a_size_that_nothing_else_states_costs_two_frames_at_most(bit: int) -> None:
    """Qpid's client in Python does not announce the size of bodies."""
    chance = random.Random(bit)
    messages = [published(chance, states_size=False) for _ in range(60)]
    damaged = [*messages]
    *frames, last = damaged[20]
    flipped = bytearray(last)
    flipped[bit // 8] ^= 0x80 >> bit % 8
    damaged[20] = [*frames, bytes(flipped)]
    missing, found = (
        Counter(sizes(Tape().play([*BEGIN, *((CLIENT, b"".join(each)) for each in sent)]).end().packets))
        for sent in (messages, damaged)
    )
    assert (missing - found).total() <= 2
    assert (found - missing).total() <= 1


@BOTH
@pytest.mark.parametrize("claimed", [28 * 19 + 20, 28 * 19 + 12])
def test_a_length_is_refuted_by_the_beginning_of_what_follows(claimed: int, compiled: bool) -> None:
    """Each frame has a segment of its own, so that no whole head follows where the damaged frame seems to end."""
    (frame,) = ACCEPT
    damaged = frame[:2] + claimed.to_bytes(2, "big") + frame[4:]
    packets = played(CLIENT, [frame, damaged, *ACCEPT * 60], len(frame))
    found = rows(dissect_packets(packets, compiled=compiled)["amqp010_frames"])
    assert [row["method"] for row in found].count("message.accept") >= 60


@BOTH
@pytest.mark.parametrize("agreed", [4_096, w.LARGEST, None])
def test_a_frame_above_what_was_agreed_is_named_and_read(agreed: int | None, compiled: bool) -> None:
    given = {"channel_max": 9} if agreed is None else {"channel_max": 9, "max_frame_size": agreed, "heartbeat": 60}
    tune = b"".join(w.operation("connection.tune-ok", 0, **given))
    begin = [(side, tune if n == 5 else each) for n, (side, each) in enumerate(BEGIN)]
    again = w.operation("connection.tune-ok", 0, max_frame_size=w.LARGEST if agreed == 4_096 else 4_096)
    frames = [*again, *w.transfer(bytes(8_000)), *w.transfer(b"after")]
    for segment in (1448, 60_000):
        found = dissect_packets(played(CLIENT, frames, segment, begin), compiled=compiled)
        codes = ["frame-too-large"] if agreed == 4_096 else []
        assert [row["code"] for row in rows(found["anomalies"])] == codes
        assert [row["body_size"] for row in rows(found["messages"])] == [8_000, 5]


@pytest.mark.compiled
@pytest.mark.parametrize("states_size", [True, False])
def test_frames_in_a_body_are_none_where_its_head_is_damaged(states_size: bool) -> None:
    """But for its size, if nothing else states that."""
    inner = b"".join(w.transfer(b"inner")) * 60
    stated = w.header(("message.message-properties", {"content_length": len(inner)} if states_size else {}))
    *frames, last = w.operation("message.transfer", 1, stated, inner)
    for bit in range(96):
        if bit not in CHANNEL and (states_size or bit not in SIZE):
            damaged = bytearray(last)
            damaged[bit // 8] ^= 0x80 >> bit % 8
            found = dissect_packets(played(CLIENT, [*frames, bytes(damaged), *ACCEPT * 9], 1448), compiled=True)
            assert [row["body_size"] for row in rows(found["messages"]) if row["body_size"] == len(b"inner")] == []


FOREIGN = {
    "tls-unexpected": b"\x15\x03\x03\0\x02\x02\x46",
    "http-unexpected": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


@pytest.mark.parametrize("code", FOREIGN)
def test_other_protocols_in_the_middle_are_named(code: str) -> None:
    for begin in (BEGIN, BEGIN[:2]):
        packets = Tape().play([*begin, (SERVER, FOREIGN[code])]).end().packets
        assert [row["code"] for row in rows(dissect_packets(packets)["anomalies"])] == [code, "bytes-skipped"]
