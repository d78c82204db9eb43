"""Records of publishes and chunks, as written from the protocol's description."""

import gzip
import json
import random
import struct
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.kernels import limits
from tests.dissector.amqp100 import wire as amqp
from tests.dissector.builders import Packet, pcap
from tests.dissector.moves import Relay
from tests.dissector.runs import BOTH, rows, tables
from tests.dissector.stream import wire as w
from tests.dissector.stream.runs import Row, Wire, dissect, talk
from tests.thorough import examples

BODY = amqp.section(amqp.DATA, amqp.binary(b"body"))
PROPERTIES = amqp.section(amqp.PROPERTIES, amqp.listed(amqp.string("m")))
INNER = [b"a", b"", b"some longer message " * 50, b"\xff\x00"]
PLAIN = w.messages(INNER)


def packed(data: bytes, codec: str, magic: str) -> bytes:
    """Bytes in the container that begins so."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    found: bytes = sink.getvalue().to_pybytes()
    assert found.startswith(bytes.fromhex(magic))
    return found


def lz4(data: bytes) -> bytes:
    return packed(data, "lz4", "04224d18")


def zstd(data: bytes) -> bytes:
    return packed(data, "zstd", "28b52ffd")


def snappy(data: bytes) -> bytes:
    """Snappy's framing format; the checksums are not looked at. The last block is not compressed, one is padding."""
    found = b"\xff\x06\x00\x00sNaPpY"
    for at in range(0, len(data), 65_536):
        block = data[at : at + 65_536]
        last = at + 65_536 >= len(data)
        body = bytes(4) + (block if last else pa.Codec("snappy").compress(block, asbytes=True))
        found += bytes([1 if last else 0]) + len(body).to_bytes(3, "little") + body
    return found + b"\xfe\x02\x00\x00\x00\x00"


def snappy_small(data: bytes) -> bytes:
    """The same with compressed blocks alone."""
    body: bytes = bytes(4) + pa.Codec("snappy").compress(data, asbytes=True)
    head: bytes = b"\xff\x06\x00\x00sNaPpY\x00" + len(body).to_bytes(3, "little")
    return head + body


PACKED: dict[int, Callable[[bytes], bytes]] = {1: gzip.compress, 2: snappy, 3: lz4, 4: zstd}
CODINGS = {0: PLAIN, 1: gzip.compress(PLAIN), 2: snappy_small(PLAIN), 3: lz4(PLAIN), 4: zstd(PLAIN)}
DECLARE = (True, w.request(1, 9, b"\x03" + w.string("ref") + w.string("s")))
SUBSCRIBE = [
    (True, w.request(7, 10, b"\x05" + w.string("s") + w.offset_spec(1) + struct.pack(">H", 10))),
    (False, w.response(7, 10, 1)),
]


def hashed(body: bytes) -> int:
    return int.from_bytes(xxhash.xxh64_digest(body, 42), "big", signed=True)


def read(*made_connection: tuple[bool, bytes], most: int = 1400, **how: Any) -> dict[str, list[Row]]:
    return dissect(talk([*w.hello(), *made_connection], most), **how)


def bodies(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [(row["publish_seq"], row["offset"], row["body_size"], row["body_hash"]) for row in rows]


def codes(found: dict[str, list[Row]]) -> list[tuple[str, int | None]]:
    return [(row["code"], row["frame_no"]) for row in found["anomalies"]]


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_sub_batches(coding: int, old: bool, compiled: bool) -> None:
    entry = w.sub_batch(CODINGS[coding], len(INNER), coding, len(PLAIN), old)
    published = w.publish(3, [(1, w.simple(b"one")), (2, entry), (3, w.simple(b""))])
    chunk = w.chunk([w.simple(b"one"), entry, w.simple(b"")], 2 + len(INNER), 100, old=old)
    found = read(DECLARE, (True, published), *SUBSCRIBE, (False, w.deliver(5, chunk)), compiled=compiled)
    assert not found["anomalies"]
    everything = [b"one", *INNER, b""]
    rows = found["messages"]
    n = len(everything)
    numbers = [1, *[2] * len(INNER), 3]
    assert bodies(rows[:n]) == [(k, None, len(b), hashed(b)) for k, b in zip(numbers, everything, strict=True)]
    assert bodies(rows[n:]) == [(None, 100 + k, len(b), hashed(b)) for k, b in enumerate(everything)]
    assert [row["entry"] for row in rows] == [0, *[1] * len(INNER), 1 + len(INNER)] * 2
    assert {(row["stream"], row["publisher_reference"], row["publisher_epoch"]) for row in rows[:n]} == {
        ("s", "ref", 1)
    }
    assert {
        (row["kind"], row["stream"], row["subscription_id"], row["chunk_id"], row["chunk_ts_ns"]) for row in rows[n:]
    } == {("deliver", "s", 5, 100, 1_700_000_000_000_000_000)}
    assert found["connections"][0]["messages"] == 2 * n


def test_bodies_when_asked_for() -> None:
    entry = w.sub_batch(CODINGS[4], len(INNER), 4, len(PLAIN))
    found = read((True, w.publish(3, [(1, w.simple(b"one")), (2, entry)])), bodies="full")
    assert [row["body"] for row in found["messages"]] == [b"one", *INNER]
    found = read((True, w.publish(3, [(1, w.simple(b"one"))])), bodies="none")
    assert [(row["body"], row["body_hash"], row["body_size"]) for row in found["messages"]] == [(None, None, 3)]


@pytest.mark.parametrize("left_out", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        ["f", "", "größe"], [None, None, None], ["f", None, "g"], [None, "f"], [None, None, "f", None],
        [None, "", None, "x"] * 20, ["f", None],
    ],
)  # fmt: skip
def test_filter_values(left_out: bool, values: list[str | None], compiled: bool) -> None:
    """Some clients write nothing at all where there is no value."""
    entries = [(k, value, b"message %d" % k) for k, value in enumerate(values)]
    found = read((True, w.publish_2(3, entries, left_out)), compiled=compiled)
    assert not found["anomalies"]
    assert [row["filter_value"] for row in found["messages"]] == values
    assert bodies(found["messages"]) == [(k, None, len(b), hashed(b)) for k, _, b in entries]


def test_entries_that_fit_in_no_way() -> None:
    entries = [(k, "f" if k % 2 else None, b"message") for k in range(6)]
    frame = w.publish_2(3, entries, True)
    found = read((True, frame[:3] + bytes([frame[3] - 1]) + frame[4:-1]))
    assert [row["code"] for row in found["anomalies"]] == ["records-malformed"]
    found = read((True, w.frame(2, struct.pack(">BI", 3, 5), 2)))
    assert [row["code"] for row in found["anomalies"]] == ["record-count-wrong"]


def test_damaged_data() -> None:
    chunk = w.chunk([w.simple(b"m5"), w.simple(b"m6")], crc=1)
    found = read((False, w.deliver(5, chunk)))
    assert codes(found) == [("chunk-crc-wrong", 10)]
    assert [row["detail"] for row in found["anomalies"]] == [
        f"the CRC of the data is 0x{zlib.crc32(w.simple(b'm5') + w.simple(b'm6')):08x}"
    ]
    assert len(found["messages"]) == 2


def test_counts_that_do_not_hold() -> None:
    assert codes(read((False, w.deliver(5, w.chunk([w.simple(b"m")], records=2))))) == [("record-count-wrong", 10)]
    assert codes(read((True, w.publish(3, [(1, w.simple(b"m"))], count=2)))) == [("record-count-wrong", 10)]
    assert codes(read((True, w.publish(3, [(1, w.simple(b"m"))], count=0)))) == [("records-malformed", 10)]
    found = read((True, w.publish(3, [(1, w.sub_batch(PLAIN, 9))])))
    assert codes(found) == [("record-count-wrong", 10)]
    assert len(found["messages"]) == len(INNER)


def test_entries_that_break_off() -> None:
    whole = w.publish(3, [(1, w.simple(b"one")), (2, w.simple(b"two"))])
    cut = struct.pack(">I", len(whole) - 6) + whole[4:-2]
    found = read((True, cut), (True, w.HEARTBEAT))
    assert codes(found) == [("records-malformed", 10)]
    assert bodies(found["messages"]) == [(1, None, 3, hashed(b"one"))]
    assert found["stream_frames"][-1]["command"] == "heartbeat"


@pytest.mark.parametrize("coding", [1, 2, 3, 4, 5, 7])
def test_unreadable_sub_batches(coding: int) -> None:
    found = read((True, w.publish(3, [(1, w.sub_batch(b"rubbish, not packed", 3, coding, 100)), (2, w.simple(b"x"))])))
    assert [row["code"] for row in found["anomalies"]] == ["sub-batch-unreadable"]
    assert bodies(found["messages"]) == [(1, None, None, None), (2, None, 1, hashed(b"x"))]


@pytest.mark.compiled
@pytest.mark.parametrize("coding", PACKED)
def test_bombs_are_not_opened(coding: int) -> None:
    bomb = PACKED[coding](bytes(30_000_000))
    for announced, code in ((1000, "sub-batch-unreadable"), (2**31, "limit-reached")):
        found = read((True, w.publish(3, [(1, w.sub_batch(bomb, 3, coding, announced))])), most=60_000, compiled=True)
        # snappy hardly packs it: its frame is longer than was agreed
        assert [row["code"] for row in found["anomalies"] if row["code"] != "frame-too-large"] == [code]
        assert len(found["messages"]) == 1


def test_messages_with_sections() -> None:
    """Sections have their own tests; here they are inside of a sub-batch, and one of them is broken."""
    inner = [BODY + b"x", PROPERTIES + BODY, BODY + b"y"]
    entry = w.sub_batch(w.messages(inner), 3)
    found = read((False, w.deliver(5, w.chunk([w.simple(PROPERTIES + BODY), entry], 4))))
    assert [(row["body_kind"], row["message_id"], row["body_size"]) for row in found["messages"]] == [
        ("data", "m", 4), ("raw", None, 10), ("data", "m", 4), ("raw", None, 10),
    ]  # fmt: skip
    assert [(row["code"], row["detail"]) for row in found["anomalies"]] == [("message-malformed", "2 records")]


def test_publishing_ids_beyond_63_bits() -> None:
    found = read((True, w.publish(3, [(2**64 - 1, w.simple(b"m")), (5, w.simple(b"n"))])))
    assert codes(found) == [("integer-too-large", 10)]
    assert [row["publish_seq"] for row in found["messages"]] == [None, 5]


def item(kind: int | None, name: bytes, *numbers: int) -> bytes:
    """Tracking data; without a kind as in early 2021."""
    head = b"" if kind is None else bytes([kind])
    return head + bytes([len(name)]) + name + struct.pack(f">{len(numbers)}Q", *numbers)


@pytest.mark.parametrize("compiled", [False, True])
def test_tracking_chunks_hold_no_messages(compiled: bool) -> None:
    delta = item(1, b"cons1", 4) + item(0, b'r"\xff', 2**64 - 1) + item(2, b"t", 2**64 - 5)
    snapshot = item(0, b"ref", 9, 7) + item(1, b"", 1)
    found = read(
        *SUBSCRIBE,
        (False, w.deliver(5, w.chunk([w.simple(delta)], kind=1))),
        (False, w.deliver(5, w.chunk([w.simple(snapshot)], kind=2))),
        (False, w.deliver(5, w.chunk([w.simple(b"")], kind=2))),
        compiled=compiled,
    )
    assert not found["messages"]
    assert not found["anomalies"]
    reported = [json.loads(row["tracking"]) for row in found["stream_frames"] if row["command"] == "deliver"]
    assert reported == [
        [
            {"kind": "offset", "name": "cons1", "value": 4},
            {"kind": "sequence", "name": 'r"\\xff', "value": 2**64 - 1},
            {"kind": "timestamp", "name": "t", "value": -5},
        ],
        [
            {"kind": "sequence", "name": "ref", "chunk_id": 9, "value": 7},
            {"kind": "offset", "name": "", "value": 1},
        ],
        [],
    ]


def test_torn_tracking_data() -> None:
    good = item(1, b"cons1", 4)
    for body in (w.simple(good + b"\x01\x05cons"), w.simple(good + b"\x09\x00"), w.simple(good)[1:]):
        found = read(*SUBSCRIBE, (False, w.deliver(5, w.chunk([body], kind=1))))
        assert codes(found) == [("records-malformed", 10 + len(SUBSCRIBE))]
        reported = found["stream_frames"][-1]["tracking"]
        assert json.loads(reported) in ([{"kind": "offset", "name": "cons1", "value": 4}], [])


@pytest.mark.parametrize("kind", [0, None])
def test_a_trailer_may_come_too(kind: int | None) -> None:
    trailer = item(kind, b"ref1", 7)
    for sent in (False, True):
        found = read((False, w.deliver(5, w.chunk([w.simple(b"m")], trailer=trailer, trailer_sent=sent))))
        assert len(found["messages"]) == 1
        assert not found["anomalies"]
        reported = found["stream_frames"][-1]["tracking"]
        assert reported == ('[{"kind":"sequence","name":"ref1","value":7}]' if sent else None)
    found = read((False, w.deliver(5, w.chunk([w.simple(b"m")], trailer=trailer) + b"???")))
    assert codes(found) == [("records-malformed", 10)]


def test_names_of_consumers() -> None:
    def subscribe(number: int, properties: dict[str, str]) -> bytes:
        body = bytes([number]) + w.string("s") + w.offset_spec(1) + struct.pack(">H", 9) + w.table(properties)
        return w.request(7, number, body)

    found = read(
        (True, subscribe(1, {"name": "app"})), (True, subscribe(2, {})), (True, subscribe(3, {"identifier": "x"})),
        *((False, w.deliver(k, w.chunk([w.simple(b"m")]))) for k in (1, 2, 3, 4)),
    )  # fmt: skip
    assert [(row["consumer"], row["stream"]) for row in found["messages"]] == [
        ("app", "s"), (None, "s"), (None, "s"), (None, None),
    ]  # fmt: skip


def test_ids_declared_anew() -> None:
    def declare(number: int, reference: str, stream: str) -> tuple[bool, bytes]:
        return True, w.request(1, number, b"\x03" + w.string(reference) + w.string(stream))

    one = (True, w.publish(3, [(1, w.simple(b"m"))]))
    found = read(
        one, declare(20, "r1", "s1"), one, (False, w.response(1, 20, 1)), one,
        declare(21, "r2", "s2"), one, (False, w.response(1, 21, 17)), one,
        (True, w.request(6, 22, b"\x03")), one, declare(23, "", "s3"), one,
        (False, w.frame(16, struct.pack(">H", 6) + w.string("s3"))), one,
    )  # fmt: skip
    assert [(row["stream"], row["publisher_reference"], row["publisher_epoch"]) for row in found["messages"]] == [
        (None, None, None), ("s1", "r1", 1), ("s1", "r1", 1), (None, None, None), ("s1", "r1", 1), (None, None, None),
        ("s3", None, 2), (None, None, None),
    ]  # fmt: skip
    # the end of the first one was not seen: only the answer tells whether the second holds
    found = read(declare(20, "r1", "s1"), one, declare(21, "r2", "s2"), one, (False, w.response(1, 21, 1)), one)
    assert [row["publisher_reference"] for row in found["messages"]] == ["r1", None, "r2"]


def test_a_subscription_keeps_its_stream_until_the_next_is_granted() -> None:
    def subscribe(number: int, stream: str) -> tuple[bool, bytes]:
        return True, w.request(7, number, b"\x05" + w.string(stream) + w.offset_spec(1) + struct.pack(">H", 1))

    one = (False, w.deliver(5, w.chunk([w.simple(b"m")])))
    found = read(
        subscribe(20, "s1"), (False, w.response(7, 20, 1)), one, (True, w.request(12, 21, b"\x05")), one,
        subscribe(22, "s2"), one, (False, w.response(7, 22, 1)), one,
        subscribe(23, "s3"), (False, w.response(7, 23, 3)), one,
    )  # fmt: skip
    assert [row["stream"] for row in found["messages"]] == ["s1", "s1", "s1", "s2", "s2"]


def test_a_gap_in_a_message() -> None:
    frame = w.publish(3, [(1, w.simple(b"one")), (2, w.simple(bytes(100))), (3, w.simple(b"three"))])
    wire = Wire()
    for side, data in w.hello():
        wire.send(side, data)
    wire.send(True, frame[:60])
    wire.lose(True, 20)
    wire.send(True, frame[80:] + w.HEARTBEAT)
    wire.close()
    found = dissect(wire.packets)
    assert bodies(found["messages"]) == [(1, None, 3, hashed(b"one")), (2, None, 100, None)]
    assert [row["is_partial"] for row in found["messages"]] == [False, True]
    assert [row["command"] for row in found["stream_frames"][10:]] == ["publish", "heartbeat"]
    assert [row["code"] for row in found["anomalies"]] == ["frame-gap"]


@pytest.mark.parametrize("size", [3_000, 40_000])
def test_a_capture_begun_in_a_chunk(size: int) -> None:
    """No segment holds a whole delivery, and none begins with one."""
    rnd = random.Random(size)
    data = b"".join(w.deliver(5, w.chunk([w.simple(rnd.randbytes(size // 3))] * 3, chunk_id=3 * n)) for n in range(5))
    wire = Wire()
    for side, hello in w.hello():
        wire.send(side, hello)
    opening = len(wire.packets) + 1
    for at in range(0, len(data), 1448):
        wire.send(False, data[at : at + 1448])
    wire.close()
    found = dissect(wire.packets[opening:])
    assert [row["chunk_id"] for row in found["stream_frames"]] == [3, 6, 9, 12]
    assert [row["offset"] for row in found["messages"]] == list(range(3, 15))


def long_frames(seed: int = 1) -> tuple[list[tuple[bool, bytes]], list[bytes]]:
    """A long publish and a long delivery with entries of all sizes, and what is in them."""
    chance = random.Random(seed)
    items = [chance.randbytes(chance.choice([0, 1, 30, 3000, 20_000])) for _ in range(60)]
    inner = w.messages(items[:5])
    packed = w.sub_batch(gzip.compress(inner), 5, 1, len(inner))
    entries = [*[w.simple(item) for item in items], packed]
    chunk = w.chunk(entries, len(items) + 5, 7)
    publish = w.publish(3, list(enumerate(entries)))
    return [DECLARE, (True, publish), *SUBSCRIBE, (False, w.deliver(5, chunk)), (False, w.HEARTBEAT)], items + items[:5]


@pytest.mark.parametrize("part", [64, 1_000, 10_000, 1 << 20])
def test_long_frames_in_parts(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqpscope.dissector.protocols.stream.frames.PART", part)
    made_connection, items = long_frames()
    whole = None
    for most, batch_bytes in ((1400, 50_000), (60_000, 1 << 20)):
        found = read(*made_connection, most=most, batch_bytes=batch_bytes)
        assert not found["anomalies"]
        rows = found["messages"]
        assert [row["body_hash"] for row in rows] == [hashed(item) for item in items] * 2
        assert [row["offset"] for row in rows[len(items) :]] == list(range(7, 7 + len(items)))
        reported = [
            {k: v for k, v in row.items() if k in ("kind", "publish_seq", "entry", "stream", "body_size", "frame_no")}
            for row in rows
        ]
        assert whole in (None, reported)
        whole = reported


def test_messages_that_are_too_long_to_be_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqpscope.dissector.protocols.stream.frames.PART", 2_000)
    monkeypatch.setattr(limits, "PAYLOAD", 10_000)
    items = [b"x", bytes(range(256)) * 100, b"y", bytes(30_000)]
    chunk = w.chunk([w.simple(item) for item in items])
    found = read(
        (True, w.publish(3, [(k, w.simple(item)) for k, item in enumerate(items)])), (False, w.deliver(5, chunk))
    )
    assert not found["anomalies"]
    assert [row["body_hash"] for row in found["messages"]] == [hashed(item) for item in items] * 2
    assert [row["publish_seq"] for row in found["messages"]] == [0, 1, 2, 3, *[None] * 4]
    assert [row["entry"] for row in found["messages"]] == [0, 1, 2, 3] * 2


def test_long_messages_with_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that is hashed as it comes, the sections at its beginning are read, and the body is hashed alone."""
    monkeypatch.setattr(limits, "PAYLOAD", 1 << 12)
    monkeypatch.setattr("amqpscope.dissector.protocols.stream.frames.PART", 1 << 10)
    data = random.Random(4).randbytes(20_000)
    whole = PROPERTIES + amqp.section(amqp.DATA, amqp.binary(data))
    behind = whole + amqp.section(amqp.FOOTER, amqp.mapped())
    found = read((True, w.publish(3, [(1, w.simple(whole)), (2, w.simple(behind)), (3, w.simple(data))])))
    rows = [(row["message_id"], row["body_kind"], row["body_size"], row["body_hash"]) for row in found["messages"]]
    assert rows == [
        ("m", "data", 20_000, hashed(data)), ("m", "data", 20_000, None), (None, "raw", 20_000, hashed(data)),
    ]  # fmt: skip
    assert [row["record_size"] for row in found["messages"]] == [len(whole), len(behind), len(data)]


def test_damage_in_long_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqpscope.dissector.protocols.stream.frames.PART", 1_000)
    entries = [w.simple(bytes(500))] * 20
    assert codes(read((False, w.deliver(5, w.chunk(entries, crc=5))))) == [("chunk-crc-wrong", 10)]
    assert codes(read((False, w.deliver(5, w.chunk(entries, records=5))))) == [("record-count-wrong", 10)]
    broken = [*entries, struct.pack(">I", 2**31 - 1), *entries]
    found = read((False, w.deliver(5, w.chunk(broken))), (False, w.HEARTBEAT))
    assert codes(found) == [("records-malformed", 10)]
    assert len(found["messages"]) == 20
    assert found["stream_frames"][-1]["command"] == "heartbeat"


@pytest.mark.parametrize("limit", ["LONG_FRAME", "LONG_FRAMES"])
def test_what_is_held_for_long_frames_is_bounded(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqpscope.dissector.protocols.stream.frames.PART", 1_000)
    monkeypatch.setattr(limits, limit, 60_000)
    found = read(
        (True, w.publish(3, [(k, w.simple(b"")) for k in range(3_000)])), (True, w.publish(3, [(1, w.simple(b"x"))]))
    )
    assert codes(found) == [("limit-reached", 10)]
    assert [row["publish_seq"] for row in found["messages"]] == [1]
    assert found["stream_frames"][10]["entry_count"] == 3_000


CONVERSATION = [
    *w.hello(), DECLARE, (True, w.publish(3, [(1, w.simple(b"one")), (2, w.sub_batch(CODINGS[1], 4, 1, len(PLAIN)))])),
    (False, w.confirm(3, [1, 2])), *SUBSCRIBE, (True, w.publish_2(3, [(3, "f", b"x"), (4, None, b"y" * 300)])),
    (False, w.deliver(5, w.chunk([w.simple(b"m" * 700), w.sub_batch(PLAIN, 4)], 5, 8))), (False, w.HEARTBEAT),
    (False, w.deliver(5, w.chunk([w.simple(b"last")], 1, 13))),
]  # fmt: skip


def reported(found: dict[str, list[Row]]) -> list[list[str]]:
    """Rows without packets and times, which segmentation changes."""
    names = {"packet", "ts_ns", "ts", "first_packet", "first_ts_ns", "last_ts_ns", "last_packet", "packets", "missing"}
    tables = ("stream_frames", "messages", "anomalies")
    reported = [[str({k: v for k, v in row.items() if k not in names}) for row in found[table]] for table in tables]
    return [*reported[:2], sorted(reported[2])]  # anomalies come by what found them


@BOTH
@given(
    cuts=st.lists(st.integers(1, 60), min_size=1, max_size=8), batch_bytes=st.sampled_from([500, 3_000, 1 << 20]),
    part=st.sampled_from([64, 200, 1 << 20]),
)  # fmt: skip
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_segmentation_does_not_change_rows(cuts: list[int], batch_bytes: int, part: int, compiled: bool) -> None:
    wire = Wire()
    for k, (side, data) in enumerate(CONVERSATION):
        wire.send(side, data, cuts[k % len(cuts)] * 10)
    wire.close()
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:  # compiled kernels have it built in
            patch.setattr("amqpscope.dissector.protocols.stream.frames.PART", part)
        assert reported(dissect(wire.packets, compiled, batch_bytes)) == WHOLE


@pytest.mark.compiled
@given(
    places=st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), min_size=1, max_size=5),
    compiled=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_damage_does_no_harm(places: list[tuple[int, int]], compiled: bool) -> None:
    """Any bytes changed: no crash, and both ways to run kernels see the same."""
    data = [(side, bytearray(data)) for side, data in CONVERSATION]
    for place, value in places:
        at = place
        for _, part in data[10:]:
            if at < len(part):
                part[at] = value
                break
            at -= len(part)
    packets: list[Packet] = talk([(side, bytes(part)) for side, part in data], 300)
    found = dissect(packets, compiled)
    assert reported(found) == reported(dissect(packets, not compiled, 700))


WHOLE = reported(dissect(talk(CONVERSATION)))


def test_many_members_are_not_opened() -> None:
    """Each member of a gzip file costs a copy of what is after it."""
    entry = w.sub_batch(gzip.compress(b"", mtime=0) * 1000 + gzip.compress(PLAIN, mtime=0), len(INNER), 1, len(PLAIN))
    found = read((True, w.publish(3, [(1, entry)])))
    assert [row["code"] for row in found["anomalies"]] == ["sub-batch-unreadable"]


def test_bytes_of_sub_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNPACKED_PER_STREAM", 3 * len(PLAIN) // 2)
    entry = w.sub_batch(gzip.compress(PLAIN, mtime=0), len(INNER), 1, len(PLAIN))
    found = read((True, w.publish(3, [(k, entry) for k in range(2)])))
    assert [row["code"] for row in found["anomalies"]] == ["limit-reached"]
    assert [row["body_size"] for row in found["messages"]] == [len(body) for body in INNER] + [None]


def test_records_of_sub_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes may unpack to 65,535 records each."""
    monkeypatch.setattr(limits, "UNPACKED_PER_STREAM", 10 * limits.RECORD)
    plain = w.messages([b""] * 8)
    entry = w.sub_batch(gzip.compress(plain, mtime=0), 8, 1, len(plain))
    found = read((True, w.publish(3, [(k, entry) for k in range(3)])))
    assert [row["code"] for row in found["anomalies"]] == ["limit-reached", "limit-reached"]
    assert [row["body_size"] for row in found["messages"]] == [0] * 8 + [None] * 2
    # no more are read than are announced
    lying = w.sub_batch(gzip.compress(plain, mtime=0), 3, 1, len(plain))
    found = read((True, w.publish(3, [(1, lying)])))
    assert [row["code"] for row in found["anomalies"]] == ["record-count-wrong"]
    assert len(found["messages"]) == 3


PORTS = (5551, 5552)


@cache
def alone(port: int, frames: tuple[tuple[bool, bytes], ...]) -> dict[str, list[Row]]:
    """The rows of a connection that is captured alone, in long segments."""
    wire = Wire(port=port)
    for side, data in frames:
        wire.send(side, data, 1 << 15)
    return dissect(wire.packets)


@given(most=st.integers(40, 1_400), batch_bytes=st.sampled_from([500, 3_000, 1 << 20]))
@settings(max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_opened_depends_on_the_stream_alone(most: int, batch_bytes: int, tmp_path: Path) -> None:
    """Not on segments, batches, other connections, or the dissectors that the state passes through."""
    entry = w.sub_batch(CODINGS[1], 4, 1, len(PLAIN))
    counts = (5, 1, 60, 2, 70, 1, 9, 1, 1, 30)
    frames = (*w.hello(), DECLARE, *((True, w.publish(3, [(k, entry) for k in range(n)])) for n in counts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "STRETCH", 1_500)
        patch.setattr(limits, "UNPACKED_PER_STREAM", 5 * (len(PLAIN) + 4 * limits.RECORD))
        for module in ("frames", "messages"):
            patch.setattr(f"amqpscope.dissector.protocols.stream.{module}.PART", 2_000)
        both = [Wire(port=port) for port in PORTS]
        for side, data in frames:
            for wire in both:
                wire.send(side, data, most)
        path = tmp_path / "memory.pcap"
        path.write_bytes(
            pcap([packet for pair in zip(*(wire.packets for wire in both), strict=True) for packet in pair])
        )
        reading = Relay(find([str(path)]), Options(), compiled=False, batch_bytes=batch_bytes)
        found = {name: rows(table) for name, table in tables(reading).items()}
        for port in PORTS:
            expected = alone(port, frames)
            (connection,) = expected["connections"]
            mine = {
                name: [row for row in of if row.get("connection_id") == connection["connection_id"]]
                for name, of in found.items()
            }
            assert reported(mine) == reported(expected)
            assert {row["code"] for row in expected["anomalies"]} == {"limit-reached"}
            opened = [row["body_size"] is not None for row in expected["messages"]]
            assert any(opened) and not all(opened)
