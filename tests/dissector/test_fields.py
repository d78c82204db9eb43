"""Typed fields of records as columns, against pamqp, by hand and under fuzz."""

import json
import struct
from datetime import UTC, datetime
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pamqp.commands
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpscope import spec
from amqpscope.dissector.fields.decoding import PROBLEM_CODES, REDACTED, Decoded, decode
from amqpscope.dissector.fields.plan import Plan
from amqpscope.spec.model import Class, Field
from tests.dissector.runs import BOTH
from tests.thorough import examples

Record = tuple[int, bytes, int]
"""Program, bytes, and whether it is cut."""


@cache
def methods() -> Plan:
    return Plan.of_methods(spec.load("amqp-0-9-1"))


@cache
def properties() -> Plan:
    (basic,) = [c for c in spec.load("amqp-0-9-1").classes if c.name == "basic"]
    return Plan.of_properties(basic)


@cache
def program(name: str) -> int:
    return [m.full_name for m in spec.load("amqp-0-9-1").methods].index(name)


def run(plan: Plan, records: list[Record], compiled: bool = False) -> Decoded:
    """Decode the records, which lie in the data after one another in reverse, with a byte between them."""
    data = b"".join(b"\x05" + raw for _, raw, _ in reversed(records)) + b"\x05"
    length = np.array([len(raw) for _, raw, _ in records], np.int64)
    offset = len(data) - 1 - np.cumsum(length + 1) + 1
    decoded = decode(
        plan,
        np.frombuffer(data, np.uint8).copy(),
        offset,
        length,
        np.array([p for p, _, _ in records], np.int64),
        np.array([c for _, _, c in records], np.uint8),
        compiled,
    )
    assert list(decoded.columns) == list(plan.columns)
    for name, column in decoded.columns.items():
        column.validate(full=True)
        assert len(column) == len(records)
        assert str(column.type) == plan.columns[name]
    assert decoded.problem_row.tolist() == sorted(decoded.problem_row.tolist())
    return decoded


def rows(decoded: Decoded) -> list[dict[str, Any]]:
    """The columns that each record has."""
    table = pa.table(decoded.columns).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in table]


def problems(decoded: Decoded) -> list[tuple[int, str]]:
    return [
        (row, PROBLEM_CODES[code])
        for row, code in zip(decoded.problem_row.tolist(), decoded.problem_code.tolist(), strict=True)
    ]


def short(text: str | bytes) -> bytes:
    text = text.encode() if isinstance(text, str) else text
    return bytes([len(text)]) + text


def long(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def test_by_hand() -> None:
    publish = b"\0\0" + short("ex") + short("a.b") + b"\2"
    deliver = short("ctag") + struct.pack(">QB", 7, 1) + short("ex") + short("")
    declare = b"\0\0" + short("q") + b"\x12" + long(short("x-max") + b"I\0\0\0\5")
    decoded = run(
        methods(),
        [
            (program("basic.publish"), publish, 0),
            (-1, b"anything", 0),
            (program("basic.deliver"), deliver, 0),
            (program("basic.ack"), struct.pack(">QB", 2**63 - 1, 1), 0),
            (program("queue.declare"), declare, 0),
            (program("connection.open-ok"), short("reserved"), 0),
            (program("connection.tune"), struct.pack(">HIH", 65535, 2**32 - 1, 60), 0),
        ],
    )
    assert rows(decoded) == [
        {"exchange": "ex", "routing_key": "a.b", "mandatory": False, "immediate": True},
        {},
        {"consumer_tag": "ctag", "delivery_tag": 7, "redelivered": True, "exchange": "ex", "routing_key": ""},
        {"delivery_tag": 2**63 - 1, "multiple": True},
        {"queue": "q", "passive": False, "durable": True, "exclusive": False, "auto_delete": False, "no_wait": True,
         "arguments": '{"x-max":5}'},
        {},
        {"channel_max": 65535, "frame_max": 2**32 - 1, "heartbeat": 60},
    ]  # fmt: skip
    assert problems(decoded) == []


def test_no_records() -> None:
    assert rows(run(methods(), [])) == []
    assert rows(run(methods(), [(-1, b"", 0)] * 3)) == [{}, {}, {}]


def test_secrets_leave_nothing_behind() -> None:
    start_ok = long(b"") + short("PLAIN") + long(b"\0guest\0hunter2\xff") + short("en_US")
    update = long(b"hunter2") + short("because")
    decoded = run(
        methods(), [(program("connection.start-ok"), start_ok, 0), (program("connection.update-secret"), update, 0)]
    )
    first, second = rows(decoded)
    assert first["response"] == second["new_secret"] == REDACTED
    assert first["locale"] == "en_US"
    assert problems(decoded) == []  # one about the bytes of a secret would tell of them
    for column in decoded.columns.values():
        assert not any(b"hunter2" in (buffer or b"") for buffer in map(bytes, filter(None, column.buffers())))


def test_large_integer_is_null_and_the_rest_stays() -> None:
    decoded = run(methods(), [(program("basic.ack"), b"\x80" + bytes(7) + b"\1", 0)])
    assert rows(decoded) == [{"multiple": True}]
    assert problems(decoded) == [(0, "integer-too-large")]


def test_text_that_is_no_utf8() -> None:
    good = b"\0\0" + short("é") + short("k") + b"\0"
    bad = b"\0\0" + short(b"e\xe9") + short("k") + b"\0"
    decoded = run(methods(), [(program("basic.publish"), good, 0), (program("basic.publish"), bad, 0)])
    assert [row["exchange"] for row in rows(decoded)] == ["é", "e\\xe9"]
    assert problems(decoded) == [(1, "text-not-utf8")]


@BOTH
@pytest.mark.parametrize("size", [2, 2**31 - 1, 2**31, 2**32 - 1])
def test_hostile_length(size: int, compiled: bool) -> None:
    secure = struct.pack(">I", size) + b"x"
    declare = b"\0\0" + short("q") + b"\1" + struct.pack(">I", size) + b"\0"
    decoded = run(
        methods(), [(program("connection.secure"), secure, 0), (program("queue.declare"), declare, 0)], compiled
    )
    assert "challenge" not in rows(decoded)[0]
    assert rows(decoded)[1]["queue"] == "q"
    assert problems(decoded) == [(0, "field-overrun"), (1, "field-overrun")]


def test_bytes_left_over() -> None:
    decoded = run(methods(), [(program("basic.recover"), b"\1\0", 0), (program("tx.select"), b"\0", 0)])
    assert rows(decoded) == [{"requeue": True}, {}]
    assert problems(decoded) == [(0, "bytes-left-over"), (1, "bytes-left-over")]


def test_cut_table_keeps_the_entries_before_the_gap() -> None:
    declare = b"\0\0" + short("q") + b"\1" + struct.pack(">I", 99) + short("a") + b"B\1" + short("b") + b"S\0"
    decoded = run(methods(), [(program("queue.declare"), declare, 1)])
    assert rows(decoded)[0]["arguments"] == '{"a":1}'
    assert problems(decoded) == []


def test_nothing_is_known_of_a_table_or_list_cut_in_front_of_its_first_entry() -> None:
    """One that is empty is known to be so."""
    declare = b"\0\0" + short("q") + b"\1" + struct.pack(">I", 99) + short("a") + b"S\0"
    empty = b"\0\0" + short("q") + b"\1" + struct.pack(">I", 0)
    decoded = run(methods(), [(program("queue.declare"), declare, 1), (program("queue.declare"), empty, 1)])
    assert [row.get("arguments") for row in rows(decoded)] == [None, "{}"]
    stream = spec.load("rabbitmq-stream")
    confirm = next(i for i, m in enumerate(stream.methods) if m.full_name == "publish-confirm")
    confirms = [(confirm, b"\1" + struct.pack(">IQ", count, 7)[:end], 1) for count, end in ((9, 4), (1, 12))]
    decoded = run(Plan.of_methods(stream), confirms)
    assert [row.get("publishing_ids") for row in rows(decoded)] == [None, "[7]"]


@given(cut=st.booleans(), at=st.integers(0, 40))
def test_fields_in_front_of_the_end_stay(cut: bool, at: int) -> None:
    whole = short("ctag") + struct.pack(">QB", 7, 1) + short("exchange") + short("routing.key")
    ends = {"consumer_tag": 5, "delivery_tag": 13, "redelivered": 14, "exchange": 23, "routing_key": 35}
    decoded = run(methods(), [(program("basic.deliver"), whole[:at], int(cut))])
    assert set(rows(decoded)[0]) == {name for name, end in ends.items() if end <= at}
    assert problems(decoded) == ([] if cut or at >= len(whole) else [(0, "field-overrun")])


def test_only_some_columns() -> None:
    plan = Plan.of_methods(spec.load("amqp-0-9-1"), only=("delivery_tag", "exchange"))
    deliver = short("ctag") + struct.pack(">QB", 7, 1) + short("ex") + short("")
    assert list(plan.columns) == ["exchange", "delivery_tag"]
    assert rows(run(plan, [(program("basic.deliver"), deliver, 0)])) == [{"delivery_tag": 7, "exchange": "ex"}]


def a_field(name: str, type_: str, column_type: Any, column: str | None = None) -> Field:
    return Field(name, name, type_, type_, column=column or name, column_type=column_type)


def test_continued_flags_and_bits() -> None:
    small = [a_field(f"p{k}", "octet", "int32") for k in range(16)]
    content = Class("file", 70, (), (*small, a_field("b0", "bit", "bool"), a_field("b1", "bit", "bool")))
    plan = Plan.of_properties(content)
    record = struct.pack(">HHH", 0x8003, 0x8000 | 0x2000 | 1, 0) + b"\x0a\x0b\x0c"
    decoded = run(plan, [(0, record, 0), (0, b"\0\1", 0), (0, b"\0", 0), (0, b"\0\0", 0)])
    assert rows(decoded)[0] == {"p0": 10, "p14": 11, "p15": 12, "b0": False, "b1": True}
    assert problems(decoded) == [(1, "field-overrun"), (2, "field-overrun")]


def test_signed_column_of_32_bits() -> None:
    plan = Plan.of_properties(Class("c", 1, (), (a_field("n", "long", "int32"),)))
    decoded = run(plan, [(0, b"\x80\0\x7f\xff\xff\xff", 0), (0, b"\x80\0\x80\0\0\0", 0)])
    assert rows(decoded) == [{"n": 2**31 - 1}, {}]
    assert problems(decoded) == [(1, "integer-too-large")]


@pytest.mark.parametrize(
    "fields",
    [
        (a_field("a", "long-struct", "string"),),
        (a_field("a", "octet", "int32"), a_field("b", "longlong", "int64", "a")),
        (a_field("a", "octet", "int32"), a_field("b", "octet", "int32", "a")),
        tuple(a_field(f"p{k}", "octet", "int32") for k in range(61)),
    ],
)
def test_impossible_plans(fields: tuple[Field, ...]) -> None:
    with pytest.raises(ValueError, match=r"column a|type|more than"):
        Plan.of_properties(Class("c", 1, (), fields))


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def with_headers(table: bytes) -> Record:
    return (0, b"\x20\0" + long(table), 0)


@BOTH
@pytest.mark.parametrize(("name", "letter"), [("traceparent", b"S"), ("TraceParent", b"x")])
def test_traceparent(name: str, letter: bytes, compiled: bool) -> None:
    decoded = run(properties(), [(0, b"\0\0", 0), with_headers(short(name) + letter + long(TRACE.encode()))], compiled)
    row = rows(decoded)[1]
    assert (row["trace_id"], row["span_id"], row["trace_flags"]) == (TRACE[3:35], TRACE[36:52], 1)
    assert rows(decoded)[0] == {}
    assert problems(decoded) == []


@BOTH
@pytest.mark.parametrize(
    "text",
    ["", TRACE[:-1], TRACE + "0", TRACE.upper(), "01" + TRACE[2:], "ff" + TRACE[2:], TRACE.replace("-", "_"),
     TRACE.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32), TRACE.replace("00f067aa0ba902b7", "0" * 16),
     TRACE.replace("a", "g"), TRACE.replace("a", ":"), TRACE[:-2] + "0x"],
)  # fmt: skip
def test_malformed_traceparent(text: str, compiled: bool) -> None:
    decoded = run(properties(), [with_headers(short("traceparent") + b"S" + long(text.encode()))], compiled)
    assert rows(decoded) == [{"headers": json.dumps({"traceparent": text}, separators=(",", ":"))}]
    assert problems(decoded) == [(0, "traceparent-malformed")]


def test_trace_without_its_table() -> None:
    (basic,) = [c for c in spec.load("amqp-0-9-1").classes if c.name == "basic"]
    plan = Plan.of_properties(basic, only={"trace_id"})
    assert rows(run(plan, [with_headers(short("traceparent") + b"S" + long(TRACE.encode()))])) == [
        {"trace_id": TRACE[3:35]}
    ]
    assert "trace_id" not in Plan.of_properties(basic, trace=False).columns


# Records that pamqp writes.

texts = st.text(st.characters(codec="utf-8"), max_size=10)
simple_tables = st.dictionaries(
    st.text(st.characters(codec="utf-8", exclude_characters="$"), max_size=6),
    st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(st.characters(codec="utf-8"), max_size=8)),
    max_size=4,
)
by_type: dict[str, st.SearchStrategy[Any]] = {
    "bit": st.booleans(), "octet": st.integers(0, 255), "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1), "longlong": st.integers(0, 2**63 - 1), "shortstr": texts, "longstr": texts,
    "table": simple_tables,
    "timestamp": st.integers(86400, 2**32 - 1).map(lambda s: datetime.fromtimestamp(s, UTC)),
}  # fmt: skip


@st.composite
def records_of_pamqp(draw: st.DrawFn) -> tuple[Record, dict[str, Any]]:
    frame_type: Any
    index, frame_type = draw(st.sampled_from(sorted(pamqp.commands.INDEX_MAPPING.items())))
    model = spec.load("amqp-0-9-1").by_id(index >> 16, index & 0xFFFF)
    frame = frame_type.__new__(frame_type)
    expected = {}
    for name, argument in zip(frame_type.attributes(), model.fields, strict=True):
        value = draw(by_type[argument.type])
        setattr(frame, name, value)
        if argument.column is not None:
            expected[argument.column] = REDACTED if argument.secret else value
    with mock.patch.object(frame_type, "validate", lambda _: None):  # any value fits on the wire
        return (program(model.full_name), frame.marshal(), 0), expected


def check(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for row, values in zip(found, expected, strict=True):
        assert row.keys() == values.keys()
        for name, value in values.items():
            match value:
                case dict():
                    assert json.loads(row[name]) == value
                case datetime():
                    assert row[name] == int(value.timestamp())
                case _:
                    assert row[name] == value


@given(batch=st.lists(records_of_pamqp(), max_size=8))
def test_methods_of_pamqp(batch: list[tuple[Record, dict[str, Any]]]) -> None:
    decoded = run(methods(), [record for record, _ in batch])
    check(rows(decoded), [expected for _, expected in batch])
    assert problems(decoded) == []


@given(data=st.data())
def test_properties_of_pamqp(data: st.DataObject) -> None:
    pamqp_type = pamqp.commands.Basic.Properties
    records, expected = [], []
    for _ in range(data.draw(st.integers(0, 4))):
        values = {}
        for name in pamqp_type.attributes():
            if name != "cluster_id" and data.draw(st.booleans()):
                values[name] = data.draw(by_type[pamqp_type.amqp_type(name)])
        values = {
            name: value for name, value in values.items() if value not in (None, "", {})
        }  # pamqp leaves these out
        props = pamqp_type.__new__(pamqp_type)
        for name in pamqp_type.attributes():
            setattr(props, name, values.get(name))
        records.append((0, props.marshal(), 0))
        expected.append({("type" if k == "message_type" else k): v for k, v in values.items()})
    decoded = run(properties(), records)
    check(rows(decoded), expected)
    assert problems(decoded) == []


# Any bytes.


def same(one: Decoded, other: Decoded) -> None:
    assert pa.table(one.columns).equals(pa.table(other.columns))
    for name in ("problem_row", "problem_code", "problem_at"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()


@st.composite
def any_record(draw: st.DrawFn, programs: int) -> Record:
    raw = draw(st.one_of(st.binary(max_size=60), st.lists(st.sampled_from(
        [b"\0", b"\1", b"\x7f", b"\x80", b"\xff", b"\0\0\0\4", b"\1aS", b"F\0\0\0\7", "é".encode(), b"\x20\0\0\0\0\x09"]
    ), max_size=20).map(b"".join)))  # fmt: skip
    return draw(st.integers(-1, programs - 1)), raw, draw(st.integers(0, 1))


@pytest.mark.compiled
@settings(max_examples=examples(200))
@given(data=st.data())
def test_any_bytes_in_both_modes(data: st.DataObject) -> None:
    plan = data.draw(st.sampled_from([methods(), properties()]))
    batch = data.draw(st.lists(any_record(len(plan.starts) - 1), max_size=6))
    interpreted = run(plan, batch)
    same(interpreted, run(plan, batch, True))
    for name in ("headers", "arguments", "client_properties", "server_properties"):
        for text in interpreted.columns.get(name, pa.nulls(0)).drop_null().to_pylist():
            json.loads(text)


@given(data=st.data())
def test_a_record_alone_is_as_among_others(data: st.DataObject) -> None:
    plan = data.draw(st.sampled_from([methods(), properties()]))
    batch = data.draw(st.lists(any_record(len(plan.starts) - 1), max_size=5))
    decoded = run(plan, batch)
    for i, record in enumerate(batch):
        alone = run(plan, [record])
        assert rows(alone) == rows(decoded)[i : i + 1]
        assert [c for _, c in problems(alone)] == [c for r, c in problems(decoded) if r == i]
