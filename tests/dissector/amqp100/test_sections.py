"""Sections of AMQP 1.0 messages to columns."""

import random
from typing import Any

import numpy as np
import pytest
import xxhash

from amqpscope.dissector.fields.problems import PROBLEM_CODES
from amqpscope.dissector.protocols.amqp100 import sections
from amqpscope.dissector.protocols.amqp100.section_walk import BROKEN, DATA, NOTHING, RAW, SEQUENCE, VALUE
from amqpscope.spec import amqp100
from tests.dissector.amqp100 import wire as w

UUID = "01234567-89ab-cdef-0123-456789abcdef"
PROPERTIES = w.section(
    w.PROPERTIES,
    w.listed(
        w.string("m-1"), w.binary(b"guest"), w.string("/q"), w.string("sub"), w.string("back"), w.ulong(77),
        w.symbol("text/plain"), w.symbol("gzip"), w.timestamp(1_700_000_000_999), w.timestamp(1_600_000_000_999),
        w.string("g"), b"\x52\x05", w.string("rg"),
    ),
)  # fmt: skip
HEADER = w.section(w.HEADER, w.listed(b"\x41", b"\x50\x05", b"\x70\x00\x00\x03\xe8", b"\x42", b"\x52\x02"))
TRACE = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
APPLICATION = w.section(w.APPLICATION, w.mapped(w.string("n"), b"\x54\x05", w.string("traceparent"), w.string(TRACE)))
ANNOTATIONS = w.section(w.ANNOTATIONS, w.mapped(w.symbol("x-exchange"), w.string("e")))
DELIVERY = w.section(w.DELIVERY_ANNOTATIONS, w.mapped(w.symbol("d"), b"\x41"))
FOOTER = w.section(w.FOOTER, w.mapped(w.symbol("f"), b"\x43"))
BODY = w.section(w.DATA, w.binary(b"hello"))
SECTIONS = {
    "message_id": "m-1", "user_id": "guest", "to_address": "/q", "subject": "sub", "reply_to": "back",
    "correlation_id": "77", "content_type": "text/plain", "content_encoding": "gzip",
    "expiry_ts_ms": 1_700_000_000_999, "timestamp": 1_600_000_000, "group_id": "g", "group_sequence": 5,
    "reply_to_group_id": "rg", "delivery_mode": 2, "priority": 5, "expiration": "1000", "first_acquirer": False,
    "delivery_count": 2, "headers": f'{{"n":5,"traceparent":"{TRACE}"}}', "annotations": '{"x-exchange":"e"}',
    "delivery_annotations": '{"d":true}', "footer": '{"f":0}', "trace_id": TRACE[3:35], "span_id": TRACE[36:52],
    "trace_flags": 1, "body_kind": "data",
}  # fmt: skip


class Read:
    """What became of records."""

    def __init__(self, *records: bytes, missing: list[int] | None = None, compiled: bool = False) -> None:
        data = b"".join(records)
        self.data = np.frombuffer(data or b"\0", np.uint8).copy()
        length = np.array([len(record) for record in records], np.int64)
        at = np.cumsum(length) - length
        found = sections.read(self.data, at, length, np.array(missing or [0] * len(records), np.int64), compiled)
        self.kinds, places, self.sizes, counts = found.body.tolist()
        self.hashes = sections.hashes(self.data, at, length, found, compiled).tolist()
        spans = zip(at.tolist(), length.tolist(), places, self.sizes, counts, strict=True)
        self.bodies = [sections.body(self.data, *span) for span in spans]
        self.problems = [(row, PROBLEM_CODES[code]) for row, code, _ in found.problems.tolist()]
        self.rows: list[dict[str, Any]] = [
            {name: column[k].as_py() for name, column in found.columns.items() if column[k].is_valid}
            for k in range(len(records))
        ]
        assert set(found.columns) == set(sections.COLUMNS)


def hashed(body: bytes) -> int:
    return xxhash.xxh64_intdigest(body, 42)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_all_sections_in_any_order(compiled: bool, seed: int) -> None:
    parts = [HEADER, DELIVERY, ANNOTATIONS, PROPERTIES, APPLICATION, BODY, FOOTER]
    random.Random(seed).shuffle(parts)
    read = Read(b"plain", b"".join(parts), b"", BODY, compiled=compiled)
    assert read.rows == [{"body_kind": "raw"}, SECTIONS, {"body_kind": "raw"}, {"body_kind": "data"}]
    assert read.bodies == [b"plain", b"hello", b"", b"hello"]
    assert read.hashes == [hashed(body) for body in read.bodies]
    assert not read.problems


def test_every_column_of_the_specification_is_read() -> None:
    columns = {f.column for s in amqp100.load().sections for f in s.fields} | {
        s.column for s in amqp100.load().sections if s.column
    }
    assert columns <= set(SECTIONS)


@pytest.mark.parametrize("form", ["small", "ulong", "symbol"])
@pytest.mark.parametrize("wide", [False, True])
def test_descriptors_and_widths(form: str, wide: bool) -> None:
    record = w.section(w.PROPERTIES, w.listed(w.string("m", wide), wide=wide), form)
    read = Read(record + w.section(w.DATA, w.binary(b"hello", wide), form))
    assert (read.rows, read.bodies) == ([{"message_id": "m", "body_kind": "data"}], [b"hello"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (w.string("größe"), "größe"), (w.ulong(2**64 - 1), str(2**64 - 1)), (b"\x44", "0"), (b"\x53\x09", "9"),
        (w.uuid(UUID), UUID), (w.binary(b"raw\xff"), "raw\\xff"), (w.NULL, None), (w.listed(b"\x41"), None),
    ],
)  # fmt: skip
def test_message_ids_of_all_types(value: bytes, text: str | None) -> None:
    properties = w.section(w.PROPERTIES, w.listed(value, w.NULL, w.NULL, w.NULL, w.NULL, w.string("c")))
    read = Read(properties + BODY)
    assert read.rows[0].get("message_id") == text
    assert read.rows[0]["correlation_id"] == "c"


@pytest.mark.parametrize(
    ("parts", "kind", "body"),
    [
        ([BODY, w.section(w.DATA, w.binary(b" you"))], DATA, b"hello you"),
        ([BODY, FOOTER, BODY], DATA, b"hellohello"),
        ([w.section(w.DATA, w.binary(b""))], DATA, b""),
        ([w.section(w.VALUE, w.string("v"))], VALUE, w.string("v")),
        ([w.section(w.SEQUENCE, w.listed(b"\x41"))] * 2, SEQUENCE, w.listed(b"\x41") * 2),
        ([PROPERTIES], NOTHING, b""),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_bodies(parts: list[bytes], kind: int, body: bytes, compiled: bool) -> None:
    read = Read(b"".join(parts), compiled=compiled)
    assert (read.kinds, read.sizes, read.bodies) == ([kind], [len(body)], [body])
    assert read.hashes == [hashed(body)]


@pytest.mark.parametrize(
    "record", [b"\x00", b"\x00\x53", b"\x00\x53\x75", b"\x00\x53\x6f\x40", b"\x00\x53\x79\x40", b"\x01\x53\x75\xa0\x00"]
)
def test_what_only_resembles_a_message_is_plain(record: bytes) -> None:
    read = Read(record)
    assert (read.kinds, read.bodies, read.problems) == ([RAW], [record], [])


@pytest.mark.parametrize("cut", [k for k in range(4, len(PROPERTIES + BODY), 7) if k != len(PROPERTIES)])
def test_sections_that_do_not_end_where_the_record_does(cut: int) -> None:
    record = (PROPERTIES + BODY)[:cut]
    read = Read(BODY, record, BODY)
    assert read.kinds == [DATA, BROKEN, DATA]
    assert read.rows[1] == {"body_kind": "raw"}
    assert read.hashes[1] == hashed(record)
    # what is there of a record with a gap is read
    holed = Read(record, missing=[len(PROPERTIES + BODY) - cut])
    assert holed.rows[0].get("message_id") == ("m-1" if cut >= len(PROPERTIES) else None)


def test_a_body_with_a_gap_has_its_size() -> None:
    read = Read((PROPERTIES + BODY)[:-3], missing=[3])
    assert (read.kinds, read.sizes) == ([DATA], [5])
    assert Read(PROPERTIES, missing=[9]).sizes == [-1]
    assert Read(b"plain", missing=[3]).sizes == [8]
    for cut in range(3):  # too little is there to say whether it is a message
        assert Read(BODY[:cut], missing=[50]).sizes == [-1]


def test_of_two_sections_of_a_kind_the_first_counts() -> None:
    read = Read(PROPERTIES + w.section(w.PROPERTIES, w.listed(w.string("other"))) + BODY)
    assert read.rows[0]["message_id"] == "m-1"


def test_problems_are_reported_with_their_record() -> None:
    broken = w.section(w.ANNOTATIONS, w.mapped(w.symbol("a"), b"\x57"))
    trace = w.section(w.APPLICATION, w.mapped(w.string("traceparent"), w.string("00-nonsense")))
    read = Read(BODY, broken + BODY, trace + BODY)
    assert read.problems == [(1, "table-type-unknown"), (2, "traceparent-malformed")]


@pytest.mark.compiled
def test_damage_compiled_as_interpreted() -> None:
    rng = random.Random(2)
    whole = HEADER + DELIVERY + ANNOTATIONS + PROPERTIES + APPLICATION + BODY + FOOTER
    records = [b"\0" + rng.choice((b"\x53\x73", b"\xa3\x05amqp:", b"\x80")) + rng.randbytes(9) for _ in range(50)]
    for _ in range(300):
        record = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            record[rng.randrange(len(record))] = rng.choice((0, 1, 0x40, 0x45, 0x7F, 0xFF, rng.randrange(256)))
        records.append(bytes(record))
    missing = [rng.choice((0, 0, 5)) for _ in records]
    one, other = Read(*records, missing=missing), Read(*records, missing=missing, compiled=True)
    assert vars(one).keys() == vars(other).keys()
    assert (one.rows, one.kinds, one.sizes, one.hashes, one.problems) == (
        other.rows, other.kinds, other.sizes, other.hashes, other.problems
    )  # fmt: skip


def test_against_a_client_library() -> None:
    """Messages that the codec of rstream writes."""
    amqp = pytest.importorskip("rstream").AMQPMessage
    from rstream import Properties  # noqa: PLC0415

    message = amqp(
        body=b"hello", application_properties={"n": 5, "big": 2**40, "s": "größe", "f": 1.5, "b": True},
        properties=Properties(message_id="m", correlation_id="c", content_type="text/plain", group_sequence=7),
        message_annotations={b"x-a": "v"},
    )  # fmt: skip
    (row,) = Read(bytes(message)).rows
    assert row.pop("headers") == '{"n":5,"big":1099511627776,"s":"größe","f":1.5,"b":true}'
    assert {name: row[name] for name in ("message_id", "correlation_id", "content_type", "group_sequence")} == {
        "message_id": "m", "correlation_id": "c", "content_type": "text/plain", "group_sequence": 7
    }  # fmt: skip
