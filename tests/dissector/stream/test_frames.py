"""Frames of streams: every command and quirk, as written from the protocol's description."""

import struct
import zlib
from typing import Any

import pytest

from tests.dissector.stream import wire as w
from tests.dissector.stream.runs import START, STEP, Row, Wire, dissect, reported, talk

CHUNK = w.chunk(
    [w.simple(b"m5"), w.simple(b"m6"), w.simple(b"m7")], chunk_id=3, timestamp=1794949850634, trailer=bytes(14)
)
CRC = 0x2B2DB69D
CHUNK_COLUMNS = {
    "chunk_version": 80, "chunk_type": 0, "chunk_entries": 3, "chunk_records": 3, "chunk_timestamp": 1794949850634,
    "chunk_epoch": 1, "chunk_id": 3, "chunk_crc": CRC, "chunk_data_length": 18, "chunk_trailer_length": 14,
}  # fmt: skip
OLD_CHUNK = w.chunk([w.simple(b"m5")], chunk_id=3, timestamp=1, old=True)


def answer(
    key: int, name: str, body: bytes = b"", code: int = 1, bit: bool = True, **columns: Any
) -> tuple[bytes, bool, Row]:
    expected = {"command": name, "is_response": True, "correlation_id": 7, "response_code": code} | columns
    return w.response(key, 7, code, body, bit), False, expected


def ask(key: int, name: str, body: bytes = b"", **columns: Any) -> tuple[bytes, bool, Row]:
    return w.request(key, 7, body), True, {"command": name, "is_response": False, "correlation_id": 7} | columns


def tell(data: bytes, from_client: bool, name: str, **columns: Any) -> tuple[bytes, bool, Row]:
    return data, from_client, {"command": name, "is_response": False} | columns


def standard(key: int, name: str) -> tuple[bytes, bool, Row]:
    return answer(key, name, code=17)


METADATA = (
    struct.pack(">IIH", 7, 1, 0) + w.string("localhost") + struct.pack(">I", 35552) + struct.pack(">I", 2)
    + w.string("s3") + struct.pack(">HHIHH", 1, 0, 2, 0, 0xFFFF) + w.string("nosuch")
    + struct.pack(">HHI", 2, 0xFFFF, 0)
)  # fmt: skip
VERSIONS = struct.pack(">I6H", 2, 2, 1, 2, 8, 1, 1)
VERSION_ROWS = [{"key": 2, "min_version": 1, "max_version": 2}, {"key": 8, "min_version": 1, "max_version": 1}]
BROKERS = [{"reference": 0, "host": "localhost", "port": 35552}]
STREAMS = [
    {"stream": "s3", "code": 1, "leader": 0, "replicas": [0, 65535]},
    {"stream": "nosuch", "code": 2, "leader": 65535, "replicas": []},
]
FRAMES = {
    "declare-publisher": ask(
        1, "declare-publisher", b"\x09" + w.string("ref") + w.string("s"), publisher_id=9, publisher_reference="ref",
        stream="s",
    ),
    "declare-publisher-anonymous": ask(
        1, "declare-publisher", b"\x09" + w.string("") + w.string("größe"), publisher_id=9, publisher_reference="",
        stream="größe",
    ),
    "declare-publisher-response": standard(1, "declare-publisher"),
    "publish": tell(w.publish(3, [(5, w.simple(b"a"))]), True, "publish", publisher_id=3, entry_count=1),
    "publish-none": tell(w.publish(3, []), True, "publish", publisher_id=3, entry_count=0),
    "publish-2": tell(w.publish_2(3, [(5, "f", b"a"), (6, None, b"")]), True, "publish", publisher_id=3, entry_count=2),
    "confirm": tell(w.confirm(1, [5, 6, 7]), False, "publish-confirm", publisher_id=1, publishing_ids=[5, 6, 7]),
    "confirm-none": tell(w.confirm(1, []), False, "publish-confirm", publisher_id=1, publishing_ids=[]),
    "publish-error": tell(
        w.publish_error(9, [(1, 18), (2, 17)]), False, "publish-error", publisher_id=9,
        publishing_errors=[{"publishing_id": 1, "code": 18}, {"publishing_id": 2, "code": 17}],
    ),
    "query-publisher": ask(
        5, "query-publisher-sequence", w.string("ref") + w.string("s"), publisher_reference="ref", stream="s"
    ),
    "query-publisher-response": answer(5, "query-publisher-sequence", struct.pack(">Q", 2**40), sequence=2**40),
    "delete-publisher": ask(6, "delete-publisher", b"\x09", publisher_id=9),
    "delete-publisher-response": standard(6, "delete-publisher"),
    "subscribe": ask(
        7, "subscribe", b"\x00" + w.string("s") + w.offset_spec(1) + struct.pack(">H", 10), subscription_id=0,
        stream="s", offset_type=1, credit=10,
    ),
    "subscribe-offset": ask(
        7, "subscribe", b"\x01" + w.string("s") + w.offset_spec(4, 77) + struct.pack(">H", 10) + w.table({}),
        subscription_id=1, stream="s", offset_type=4, offset=77, credit=10, properties={},
    ),
    "subscribe-time": ask(
        7, "subscribe", b"\x01" + w.string("s") + w.offset_spec(5, -5) + struct.pack(">H", 10)
        + w.table({"name": "n", "single-active-consumer": "true"}),
        subscription_id=1, stream="s", offset_type=5, offset_timestamp=-5, credit=10,
        properties={"name": "n", "single-active-consumer": "true"},
    ),
    "subscribe-response": standard(7, "subscribe"),
    "deliver": tell(w.deliver(5, CHUNK), False, "deliver", subscription_id=5, chunk_bloom_size=0, **CHUNK_COLUMNS),
    "deliver-2": tell(
        w.deliver(5, CHUNK, 2), False, "deliver", subscription_id=5, committed_chunk_id=2, chunk_bloom_size=0,
        **CHUNK_COLUMNS,
    ),
    "deliver-2021": tell(
        w.deliver(5, OLD_CHUNK), False, "deliver", subscription_id=5, chunk_version=80, chunk_type=0, chunk_entries=1,
        chunk_records=1, chunk_timestamp=1, chunk_epoch=1, chunk_id=3, chunk_data_length=6, chunk_trailer_length=0,
        chunk_crc=zlib.crc32(w.simple(b"m5")),
    ),
    "credit": tell(w.frame(9, struct.pack(">Bh", 9, -1)), True, "credit", subscription_id=9, credit=-1),
    "credit-response": (
        w.frame(0x8009, struct.pack(">HB", 4, 0x63)), False,
        {"command": "credit", "is_response": True, "response_code": 4, "subscription_id": 99},
    ),
    "store-offset": tell(
        w.frame(10, w.string("cons1") + w.string("s") + struct.pack(">Q", 4)), True, "store-offset", reference="cons1",
        stream="s", offset=4,
    ),
    "store-offset-2021": tell(
        w.frame(10, struct.pack(">I", 3) + w.string("cons1") + w.string("s") + struct.pack(">Q", 4)), True,
        "store-offset", correlation_id=3, reference="cons1", stream="s", offset=4,
    ),
    "query-offset": ask(11, "query-offset", w.string("cons1") + w.string("s"), reference="cons1", stream="s"),
    "query-offset-response": answer(11, "query-offset", struct.pack(">Q", 0), 19, offset=0),
    "unsubscribe": ask(12, "unsubscribe", b"\x05", subscription_id=5),
    "unsubscribe-response": standard(12, "unsubscribe"),
    "create": ask(
        13, "create", w.string("s") + w.table({"max-age": "1h"}), stream="s", arguments={"max-age": "1h"}
    ),
    "create-response": standard(13, "create"),
    "delete": ask(14, "delete", w.string("s"), stream="s"),
    "delete-response": standard(14, "delete"),
    "metadata": ask(15, "metadata", w.strings(["s3", "nosuch"]), streams=["s3", "nosuch"]),
    "metadata-response": (
        w.frame(0x800F, METADATA), False,
        {"command": "metadata", "is_response": True, "correlation_id": 7, "brokers": BROKERS, "streams": STREAMS},
    ),
    "metadata-update": tell(
        w.frame(16, struct.pack(">H", 6) + w.string("s3")), False, "metadata-update", response_code=6, stream="s3"
    ),
    "peer-properties": ask(17, "peer-properties", w.table({"product": "x"}), peer_properties={"product": "x"}),
    "peer-properties-response": answer(17, "peer-properties", w.table({"a": "b"}), peer_properties={"a": "b"}),
    "sasl-handshake": ask(18, "sasl-handshake"),
    "sasl-handshake-response": answer(18, "sasl-handshake", w.strings(["PLAIN"]), mechanisms=["PLAIN"]),
    "sasl-authenticate": ask(
        19, "sasl-authenticate", w.string("PLAIN") + w.binary(b"\0u\0hush"), mechanism="PLAIN", sasl_data="<redacted>"
    ),
    "sasl-authenticate-none": ask(19, "sasl-authenticate", w.string("EXTERNAL") + w.binary(None), mechanism="EXTERNAL"),
    "sasl-authenticate-response": answer(19, "sasl-authenticate", code=8),
    "sasl-challenge": answer(19, "sasl-authenticate", w.string(b"hush"), 10, challenge="<redacted>"),
    "sasl-challenge-documented": answer(19, "sasl-authenticate", w.binary(b"hush"), 10, challenge="<redacted>"),
    "tune": tell(w.frame(20, struct.pack(">II", 1 << 20, 60)), False, "tune", frame_max=1 << 20, heartbeat=60),
    "tune-answer": (
        w.frame(0x8014, struct.pack(">II", 0, 60)), True,
        {"command": "tune", "is_response": True, "frame_max": 0, "heartbeat": 60},
    ),
    "tune-answer-without-bit": (
        w.frame(20, struct.pack(">II", 0, 60)), True,
        {"command": "tune", "is_response": True, "frame_max": 0, "heartbeat": 60},
    ),
    "open": ask(21, "open", w.string("/"), virtual_host="/"),
    "open-response": answer(21, "open", w.table({"port": "1"}), connection_properties={"port": "1"}),
    "open-failed": answer(21, "open", code=12),
    "close": ask(22, "close", struct.pack(">H", 1) + w.string("OK"), closing_code=1, closing_reason="OK"),
    "close-by-server": (
        w.request(22, 1, struct.pack(">H", 13) + w.string("unknown frame")), False,
        {"command": "close", "is_response": False, "correlation_id": 1, "closing_code": 13,
         "closing_reason": "unknown frame"},
    ),
    "close-response": answer(22, "close"),
    "close-response-by-client": (
        w.response(22, 1, 1), True, {"command": "close", "is_response": True, "correlation_id": 1, "response_code": 1}
    ),
    "heartbeat": tell(w.HEARTBEAT, True, "heartbeat"),
    "heartbeat-by-server": tell(w.HEARTBEAT, False, "heartbeat"),
    "route": ask(24, "route", w.string("key") + w.string("inv"), routing_key="key", super_stream="inv"),
    "route-response": answer(24, "route", w.strings(["inv-1"]), streams=["inv-1"]),
    "route-response-without-bit": answer(24, "route", w.strings([]), 2, bit=False, streams=[]),
    "route-response-2021": answer(24, "route", w.string("inv-1"), bit=False, stream="inv-1"),
    "route-response-2021-none": answer(24, "route", b"\xff\xff", bit=False),
    "partitions": ask(25, "partitions", w.string("inv"), super_stream="inv"),
    "partitions-response": answer(25, "partitions", w.strings(["i-0", "i-1"]), bit=False, streams=["i-0", "i-1"]),
    "consumer-update": (
        w.request(26, 7, b"\x05\x01"), False,
        {"command": "consumer-update", "is_response": False, "correlation_id": 7, "subscription_id": 5, "active": True},
    ),
    "consumer-update-none": (
        w.response(26, 7, 1, w.offset_spec(0)), True,
        {"command": "consumer-update", "is_response": True, "correlation_id": 7, "response_code": 1, "offset_type": 0},
    ),
    "consumer-update-offset": (
        w.response(26, 7, 1, w.offset_spec(4, 9)), True,
        {"command": "consumer-update", "is_response": True, "correlation_id": 7, "response_code": 1, "offset_type": 4,
         "offset": 9},
    ),
    "consumer-update-surplus": (
        w.response(26, 7, 1, w.offset_spec(1) + bytes(8)), True,
        {"command": "consumer-update", "is_response": True, "correlation_id": 7, "response_code": 1, "offset_type": 1},
    ),
    "exchange-versions": ask(27, "exchange-command-versions", VERSIONS, commands=VERSION_ROWS),
    "exchange-versions-response": answer(27, "exchange-command-versions", VERSIONS, commands=VERSION_ROWS),
    "stream-stats": ask(28, "stream-stats", w.string("s"), stream="s"),
    "stream-stats-response": answer(
        28, "stream-stats", struct.pack(">I", 1) + w.string("first_chunk_id") + struct.pack(">q", -1),
        statistics={"first_chunk_id": -1},
    ),
    "create-super-stream": ask(
        29, "create-super-stream", w.string("inv") + w.strings(["a", "b"]) + w.strings(["0", "1"]) + w.table({}),
        super_stream="inv", partitions=["a", "b"], binding_keys=["0", "1"], arguments={},
    ),
    "create-super-stream-response": standard(29, "create-super-stream"),
    "delete-super-stream": ask(30, "delete-super-stream", w.string("inv"), super_stream="inv"),
    "delete-super-stream-response": standard(30, "delete-super-stream"),
    "resolve-offset": ask(
        31, "resolve-offset-spec", w.string("s") + w.offset_spec(5, 12), stream="s", offset_type=5, offset_timestamp=12
    ),
    "resolve-offset-properties": ask(
        31, "resolve-offset-spec", w.string("s") + w.offset_spec(2) + w.table({"chunk_selector": "all"}), stream="s",
        offset_type=2, properties={"chunk_selector": "all"},
    ),
    "resolve-offset-response": answer(31, "resolve-offset-spec", struct.pack(">HQ", 4, 0), 19, offset_type=4, offset=0),
}  # fmt: skip


def made_connection() -> list[tuple[bool, bytes]]:
    return w.hello() + [(side, data) for data, side, _ in FRAMES.values()]


def expected() -> list[Row]:
    return [row for _, _, row in FRAMES.values()]


def key_of(row: Row) -> tuple[bool, int]:
    return row["from_client"], row["frame_no"]


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame(name: str) -> None:
    data, side, columns = FRAMES[name]
    found = dissect(talk([*w.hello(), (side, data)]))
    row = found["stream_frames"][-1]
    assert reported(row) == columns
    assert row["size"] == len(data)
    assert row["from_client"] is side
    assert row["version"] == struct.unpack_from(">H", data, 6)[0]
    assert not found["anomalies"]


@pytest.mark.parametrize("most", [1, 7, 64, 1400])
@pytest.mark.parametrize("compiled", [False, True])
def test_all_frames_however_they_are_cut(most: int, compiled: bool) -> None:
    for batch_bytes in (2_000, 1 << 20):
        found = dissect(talk(made_connection(), most, together=True), compiled, batch_bytes)
        frames = sorted(found["stream_frames"], key=lambda row: row["frame_no"])
        assert [reported(row) for row in frames[10:]] == expected()
        assert [row["frame_no"] for row in frames] == list(range(len(frames)))
        assert not found["anomalies"]
        assert found["connections"][0]["protocol"] == "rabbitmq-stream"


def test_secrets_are_in_no_table() -> None:
    assert not any(word in str(dissect(talk(made_connection()))) for word in ("t0p-s3cret", "hush"))


def test_where_frames_are() -> None:
    wire = Wire()
    for side, data in w.hello():
        wire.send(side, data)
    long = w.publish(3, [(5, w.simple(bytes(3000)))])
    wire.send(True, w.HEARTBEAT + long[:5])
    wire.send(True, long[5:] + w.HEARTBEAT, 1000)
    rows = dissect(wire.packets)["stream_frames"]
    assert [(row["first_packet"], row["packet"]) for row in rows[10:]] == [(13, 13), (13, 17), (17, 17)]
    assert [row["ts_ns"] - START for row in rows[11:]] == [16 * STEP, 16 * STEP]


def test_bytes_after_the_fields() -> None:
    found = dissect(talk([*w.hello(), (True, w.request(6, 1, b"\x01\x02")), (True, w.HEARTBEAT)]))
    assert [(row["code"], row["detail"]) for row in found["anomalies"]] == [("bytes-left-over", "in delete-publisher")]
    assert len(found["stream_frames"]) == 12


def test_fields_beyond_the_frame() -> None:
    found = dissect(talk([*w.hello(), (False, w.frame(3, struct.pack(">BIQ", 1, 3, 9))), (False, w.HEARTBEAT)]))
    assert [(row["code"], row["frame_no"]) for row in found["anomalies"]] == [("field-overrun", 10)]
    assert reported(found["stream_frames"][10])["publishing_ids"] == [9]
    assert len(found["stream_frames"]) == 12


@pytest.mark.parametrize(("key", "version"), [(0x63, 1), (2, 3), (1, 2), (0x8017, 1), (0, 1), (0x7FFF, 0xFFFF)])
def test_unknown_commands_keep_the_framing(key: int, version: int) -> None:
    found = dissect(talk([*w.hello(), (True, w.frame(key, b"what is this?", version)), (True, w.HEARTBEAT)], 9))
    assert [row["command"] for row in found["stream_frames"][10:]] == [None, "heartbeat"]
    detail = f"key 0x{key:04x}, version {version}"
    assert [(row["code"], row["frame_no"], row["detail"]) for row in found["anomalies"]] == [
        ("command-unknown", 10, detail)
    ]


def test_numbers_beyond_63_bits() -> None:
    found = dissect(talk([*w.hello(), (False, w.confirm(1, [2**64 - 1, 2**63]))]))
    assert reported(found["stream_frames"][-1])["publishing_ids"] == [2**64 - 1, 2**63]
    assert [row["code"] for row in found["anomalies"]] == ["integer-too-large"]


def test_a_gap_in_fields_that_may_be_left_out() -> None:
    """Packets are often captured up to a length: a frame that goes on after it has its row, whatever its fields."""
    wire = Wire()
    begin, (_, answer), *rest = w.hello()
    wire.send(*begin)
    wire.send(False, answer[:40])
    wire.lose(False, len(answer) - 40)
    for side, data in rest:
        wire.send(side, data)
    wire.close()
    found = dissect(wire.packets)
    row = found["stream_frames"][1]
    assert (row["command"], row["response_code"], row["missing"]) == ("peer-properties", 1, len(answer) - 40)
    assert len(found["stream_frames"]) == len(w.hello())
    assert [row["code"] for row in found["anomalies"]] == ["frame-gap"]


def test_a_gap_in_a_body() -> None:
    """What lies before the gap is decoded, and the walk goes on after the frame."""
    frame = w.request(1, 7, b"\x09" + w.string("reference") + w.string("stream"))
    wire = Wire()
    for side, data in w.hello():
        wire.send(side, data)
    wire.send(True, frame[:25])
    wire.lose(True, 3)
    wire.send(True, frame[28:] + w.HEARTBEAT)
    wire.close()
    found = dissect(wire.packets)
    row = found["stream_frames"][10]
    assert reported(row) == {
        "command": "declare-publisher", "is_response": False, "correlation_id": 7, "publisher_id": 9,
        "publisher_reference": "reference",
    }  # fmt: skip
    assert (row["is_partial"], row["missing"]) == (True, 3)
    assert found["stream_frames"][11]["command"] == "heartbeat"
    assert [row["code"] for row in found["anomalies"]] == ["frame-gap"]


def test_a_gap_over_a_head_is_searched_across() -> None:
    wire = Wire()
    for side, data in w.hello():
        wire.send(side, data)
    publish = w.publish(3, [(n, w.simple(b"x" * 20)) for n in range(5)])
    wire.lose(True, 100)
    wire.send(True, b"tail of a frame that nobody saw" + publish + w.HEARTBEAT)
    wire.send(True, publish)
    wire.close()
    found = dissect(wire.packets)
    assert [row["command"] for row in found["stream_frames"][10:]] == ["publish", "heartbeat", "publish"]
    assert sorted(row["code"] for row in found["anomalies"]) == ["bytes-skipped", "tcp-gap"]
    assert found["connections"][0]["skipped_bytes"] == 31


def test_a_frame_that_never_ends() -> None:
    found = dissect(talk([*w.hello(), (True, w.publish(3, [(1, w.simple(bytes(100)))])[:50])]))
    assert [(row["code"], row["detail"]) for row in found["anomalies"]] == [
        ("frame-cut", "the stream ends 75 bytes before the end of the frame")
    ]


@pytest.mark.parametrize("size", [0, 1, 3, 2**28 + 1, 2**31 + 4, 2**32 - 1])
def test_impossible_sizes(size: int) -> None:
    broken = struct.pack(">IHH", size, 2, 1) + bytes(100)
    found = dissect(talk([*w.hello(), (True, broken), (True, w.HEARTBEAT)]))
    assert [row["command"] for row in found["stream_frames"][10:]] == ["heartbeat"]
    assert {"frame-too-large", "frame-length-wrong"} & {row["code"] for row in found["anomalies"]}


@pytest.mark.compiled
def test_a_large_delivery_is_not_held() -> None:
    chunk = w.chunk([w.simple(bytes(1000))] * 20_000)
    found = dissect(talk([*w.hello(), (False, w.deliver(1, chunk)), (False, w.HEARTBEAT)], 60_000), True, 1 << 20)
    assert found["stream_frames"][10]["size"] == 20_080_000 + 57
    assert found["stream_frames"][10]["chunk_entries"] == 20_000
    assert [row["command"] for row in found["stream_frames"][10:]] == ["deliver", "heartbeat"]
    assert not found["anomalies"]


@pytest.mark.parametrize("port", [5552, 31000])
@pytest.mark.parametrize("first", [True, False])
def test_a_capture_that_begins_in_the_middle(port: int, first: bool) -> None:
    wire = Wire(begun=False, port=port)
    parts = [(True, w.publish(3, [(5, w.simple(b"a"))])), (False, w.confirm(3, [5]))]
    for side, data in parts if first else parts[::-1]:
        wire.send(side, data)
    wire.close()
    found = dissect(wire.packets)
    assert found["connections"][0]["protocol"] == "rabbitmq-stream"
    assert {row["command"]: row["from_client"] for row in found["stream_frames"]} == {
        "publish": True,
        "publish-confirm": False,
    }
