"""Controls, commands and headers of AMQP 0-10 to columns: from an encoder, by hand, cut and changed anywhere."""

import json
from functools import cache
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpscope.dissector.fields.decoding import PROBLEM_CODES, REDACTED, Decoded, decode
from amqpscope.dissector.fields.headers import Headers
from amqpscope.dissector.fields.plan import Plan
from tests.dissector.amqp010.given import JSON, OPERATIONS, SEGMENTS, Row, expected, kind, parsed
from tests.dissector.amqp010.wire import PROTOCOL, arguments, header, number
from tests.thorough import examples

MODES = [False, pytest.param(True, marks=pytest.mark.compiled)]
ID = UUID("01234567-89ab-cdef-0123-456789abcdef")
INDEX = {m.full_name: i for i, m in enumerate(PROTOCOL.methods)}


@cache
def plan() -> Plan:
    return Plan.of_methods(PROTOCOL)


@cache
def headers() -> Headers:
    return Headers(PROTOCOL)


def placed(records: list[bytes]) -> tuple[Any, Any, Any]:
    """Data with the records in reverse order and a byte between them, their offsets and lengths."""
    data = b"".join(b"\x05" + content for content in reversed(records)) + b"\x05"
    length = np.array([len(content) for content in records], np.int64)
    return np.frombuffer(data, np.uint8).copy(), len(data) - np.cumsum(length + 1), length


def reported(decoded: Decoded) -> tuple[list[Row], list[tuple[int, str]]]:
    """The columns that each record has, and the problems."""
    for column in decoded.columns.values():
        column.validate(full=True)
    rows = [{k: v for k, v in row.items() if v is not None} for row in pa.table(decoded.columns).to_pylist()]
    problems = zip(decoded.problem_row.tolist(), decoded.problem_code.tolist(), strict=True)
    return rows, [(row, PROBLEM_CODES[what]) for row, what in problems]


def run(
    *records: tuple[str, bytes], cut: bool = False, compiled: bool = False
) -> tuple[list[Row], list[tuple[int, str]]]:
    """Decode operations, by name and what stands after class and code."""
    data, offset, length = placed([content for _, content in records])
    programs = np.array([INDEX[name] for name, _ in records], np.int64)
    return reported(decode(plan(), data, offset, length, programs, np.full(len(records), cut, np.uint8), compiled))


def read(*segments: bytes, cut: bool = False, compiled: bool = False) -> tuple[list[Row], list[tuple[int, str]]]:
    """Decode header segments."""
    data, offset, length = placed(list(segments))
    decoded = headers().decode(data, offset, length, np.full(len(segments), cut, np.uint8), compiled)
    assert list(decoded.columns) == list(headers().columns)
    return reported(decoded)


# --------------------------------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize("compiled", MODES)
def test_by_hand(compiled: bool) -> None:
    """Bytes as Qpid's clients and broker write them."""
    rows, problems = run(
        ("connection.heartbeat", bytes.fromhex("0000")),
        ("message.flow", bytes.fromhex("0100 0700 0264 31 01 ffffffff")),
        ("session.completed", bytes.fromhex("0300 0008 00000000 00000005")),
        ("message.accept", bytes.fromhex("0101 0100 0010 00000001 00000001 00000003 ffffffff")),
        ("session.attach", bytes.fromhex("0100 0003 00ff41")),
        ("execution.result", bytes.fromhex("0100 0300 00000002 0000000b 0701 0300 06 646972656374")),
        ("dtx.start", bytes.fromhex("0100 0300 0000000d 0604 0700 00000001 03 676964 00")),
        ("connection.start", bytes.fromhex("0600 0000000b 95 00000001 0004 414e4f4e 00000005 f0 00000000")),
        ("session.flush", bytes.fromhex("0400")),
        compiled=compiled,
    )  # fmt: skip
    assert rows == [
        {},
        {"sync": False, "destination": "d1", "unit": 1, "value_uint32": 2**32 - 1},
        {"commands": "[[0,5]]", "timely_reply": True},
        {"sync": True, "transfers": f"[[1,1],[3,{2**32 - 1}]]"},
        {"name": "\x00\\xffA", "force": False},
        {"sync": False, "command_id_sequence_no": 2, "value":
         '{"$exchange.exchange-query-result":{"type":"direct","durable":true,"not_found":false}}'},
        {"sync": False, "xid": '{"format":1,"global_id":{"$bytes":"676964"},"branch_id":{"$bytes":""}}', "join": True,
         "resume": False},
        {"mechanisms": '["ANON"]', "locales": "[]"},
        {"expected": False, "confirmed": False, "completed": True},
    ]  # fmt: skip
    assert problems == []


@pytest.mark.parametrize("compiled", MODES)
def test_a_header_by_hand(compiled: bool) -> None:
    delivery = bytes.fromhex("0000000b 0401 1003 02 026578 026b65")
    reply_to = bytes.fromhex("0017 0300") + b"\x0aamq.direct\x09reply.key"
    message = header(("message.message-properties", {"content_length": 3, "application_headers": [("n", "int64", 7)]}))
    with_reply = number(4 + len(reply_to), 4) + bytes.fromhex("0403 0800") + reply_to
    rows, problems = read(delivery + message, message + delivery, with_reply, b"", compiled=compiled)
    one = {
        "discard_unroutable": False, "immediate": False, "redelivered": False, "delivery_mode": 2, "exchange": "ex",
        "routing_key": "ke", "content_length": 3, "headers": '{"n":7}',
    }  # fmt: skip
    assert rows == [one, one, {"reply_to": '{"exchange":"amq.direct","routing_key":"reply.key"}'}, {}]
    assert problems == []


def test_secrets_are_hidden() -> None:
    data = arguments(PROTOCOL.method("connection.start-ok"), {"mechanism": "PLAIN", "response": b"\0guest\0hunter2"})
    rows, problems = run(("connection.start-ok", data))
    assert (rows, problems) == ([{"mechanism": "PLAIN", "response": REDACTED}], [])


def test_null_and_empty() -> None:
    """A map of size 0 is null; a set of size 0 is empty."""
    null, empty = bytes.fromhex("0100 00000000"), bytes.fromhex("0100 00000004 00000000")
    assert run(("connection.start-ok", null), ("connection.start-ok", empty)) == ([{}, {"client_properties": "{}"}], [])
    assert run(("session.gap", bytes.fromhex("0100 0000"))) == ([{"commands": "[]"}], [])


def test_trace_context_of_headers() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    rows, problems = read(
        header(("message.message-properties", {"application_headers": [("traceparent", "str16", trace)]}))
    )
    assert (rows[0]["trace_id"], rows[0]["span_id"], rows[0]["trace_flags"], problems) == (
        trace[3:35],
        trace[36:52],
        1,
        [],
    )


def test_one_column_for_several_structs() -> None:
    """A message's id is a UUID, a file's a text."""
    rows, problems = read(
        header(("file.file-properties", {"message_id": "m", "reply_to": "r"})),
        header(("message.message-properties", {"message_id": ID, "reply_to": {}, "correlation_id": b"\xff"})),
    )
    assert rows == [
        {"message_id": "m", "reply_to": "r"},
        {"message_id": str(ID), "reply_to": "{}", "correlation_id": "\\xff"},
    ]
    assert problems == []


# -------------------------------------------------------------------------------------------------- hostile input


@pytest.mark.parametrize("compiled", MODES)
@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("connection.heartbeat", b"", "field-overrun"),
        ("connection.heartbeat", b"\0", "field-overrun"),
        ("execution.sync", b"\1", "field-overrun"),
        ("execution.sync", b"\xff\0\0\0", "field-overrun"),
        ("connection.heartbeat", b"\1\0", "flags-unknown"),
        ("connection.tune", b"\0\x80", "flags-unknown"),
        ("execution.sync", b"\1\2\0\0", "flags-unknown"),
        ("connection.heartbeat", b"\0\0!", "bytes-left-over"),
        ("message.stop", b"\1\0\1\0\5ab", "field-overrun"),
        ("session.gap", b"\1\0\0\4\0\0\0\1", "table-malformed"),
        ("session.gap", b"\1\0\xff\xff", "field-overrun"),
        ("execution.result", b"\1\0\2\0\xff\xff\xff\xff", "field-overrun"),
        ("session.request-timeout", b"\1\0\0\0\0", "field-overrun"),
        ("message.stop", b"\1\0\1\0\1\xff", "text-not-utf8"),
        ("session.command-point", b"\3\0\0\0\0\1" + b"\xff" * 8, "integer-too-large"),
    ],
)
def test_malformed(name: str, data: bytes, problem: str, compiled: bool) -> None:
    assert run((name, data), compiled=compiled)[1] == [(0, problem)]


@pytest.mark.parametrize("compiled", MODES)
@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\0\0", "field-overrun"),
        (b"\0\0\0\1\4", "field-overrun"),
        (b"\0\0\0\5\4\1\0\0", "field-overrun"),
        (b"\xff\xff\xff\xff\4\1\0\0", "field-overrun"),
        (b"\0\0\0\4\x63\1\0\0", "table-type-unknown"),
        (b"\0\0\0\2\4\1", "field-overrun"),
    ],
)
def test_malformed_headers(data: bytes, problem: str, compiled: bool) -> None:
    """What comes before stays."""
    before = header(("message.message-properties", {"app_id": b"a"}))
    rows, problems = read(before + data, before, compiled=compiled)
    assert (rows, problems) == ([{"app_id": "a"}] * 2, [(0, problem)])


def test_the_first_of_two_structs_counts() -> None:
    twice = header(("message.fragment-properties", {"first": True}), ("message.fragment-properties", {"last": True}))
    assert read(twice) == ([{"first": True, "last": False}], [(0, "bytes-left-over")])


# ------------------------------------------------------------------------------------------------------ round trip


@given(st.lists(OPERATIONS, min_size=1, max_size=12))
def test_operations_round_trip(operations: list[Any]) -> None:
    rows, problems = run(*((m.full_name, arguments(m, values, sync)) for m, values, sync in operations))
    assert problems == []
    for (method, values, sync), row in zip(operations, rows, strict=True):
        head = {"sync": sync} if method.kind == "command" else {}
        assert parsed(method.fields, row) == head | expected(method.fields, values), method.full_name


@given(st.lists(SEGMENTS, min_size=1, max_size=6))
def test_headers_round_trip(segments: list[Any]) -> None:
    rows, problems = read(*(header(*((s.name, values) for s, values in structs)) for structs in segments))
    assert problems == []
    for structs, row in zip(segments, rows, strict=True):
        fields = tuple(f for s, _ in structs for f in s.fields)
        wanted = {c: v for s, values in structs for c, v in expected(s.fields, values).items()}
        assert parsed(fields, row) == wanted


@settings(max_examples=examples(300))
@given(OPERATIONS, st.data())
def test_a_cut_keeps_what_is_in_front_of_it(operation: Any, data: st.DataObject) -> None:
    """And what is after it is no problem; without a gap it is one."""
    method, values, sync = operation
    content = arguments(method, values, sync)
    at = data.draw(st.integers(0, len(content)))
    rows, problems = run((method.full_name, content[:at]), cut=True)
    assert problems == []
    whole = {"sync": sync} | expected(method.fields, values)
    simple = {f.column for f in method.fields if kind(f) not in JSON} | {"sync"}
    assert all(whole[name] == held for name, held in rows[0].items() if name in simple)
    for name in rows[0].keys() - simple:
        json.loads(rows[0][name])
    assert at == len(content) or run((method.full_name, content[:at]))[1]


@settings(max_examples=examples(300))
@given(st.sampled_from(PROTOCOL.methods), st.binary(max_size=60), st.booleans())
def test_any_bytes(method: Any, data: bytes, cut: bool) -> None:
    run((method.full_name, data), cut=cut)
    read(data, header(("message.delivery-properties", {})) + data, cut=cut)
