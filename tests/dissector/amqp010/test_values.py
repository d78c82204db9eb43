"""Values of AMQP 0-10 as JSON text: by hand, against an encoder from the specification, and cut or changed anywhere."""

import json
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpscope.dissector.fields.dialect import of_protocol
from amqpscope.dissector.fields.problems import PROBLEM_CODES
from amqpscope.dissector.fields.tables import render
from amqpscope.dissector.fields.value_walk import DEPTH
from tests.dissector.amqp010.wire import PROTOCOL, TYPES, code, value
from tests.thorough import examples

MODES = [False, pytest.param(True, marks=pytest.mark.compiled)]
DIALECT = of_protocol(PROTOCOL)
ID = UUID("01234567-89ab-cdef-0123-456789abcdef")


def run(kind: str, content: bytes, compiled: bool = False) -> tuple[str, list[tuple[str, int]]]:
    """JSON of the value whose bytes after its length these are, and the problems with their places in it."""
    data = np.frombuffer(b"?" + content + b"?", np.uint8).copy()
    at, size = np.array([1], np.int64), np.array([len(content)], np.int64)
    made = render(data, at, size, compiled, DIALECT, np.array([DIALECT.forms[kind]], np.int64))
    assert made.sizes.tolist() == [len(made.data)]
    return made.data.tobytes().decode(), [(PROBLEM_CODES[c], p - 1) for _, c, p in made.problems.tolist()]


def inside(kind: str, given: Any) -> bytes:
    """A value without its length."""
    return value(kind, given)[TYPES[kind].variable_width or 0 :]


ALONE = [
    ("bin8", b"\xab", {"$bytes": "ab"}), ("int8", -128, -128), ("uint8", 255, 255), ("char", "€", {"$char": 8364}),
    ("boolean", 7, True), ("boolean", 0, False), ("bin16", b"ab", {"$bytes": "6162"}), ("int16", -2, -2),
    ("uint16", 65535, 65535), ("bin32", b"abcd", {"$bytes": "61626364"}), ("int32", -(2**31), -(2**31)),
    ("uint32", 2**32 - 1, 2**32 - 1), ("float", 0.5, 0.5), ("float", float("inf"), {"$double": "Infinity"}),
    ("char-utf32", "\U0001f600", {"$char": 0x1F600}), ("bin64", bytes(8), {"$bytes": "00" * 8}),
    ("int64", -(2**63), -(2**63)), ("uint64", 2**64 - 1, 2**64 - 1), ("double", -1e300, -1e300),
    ("datetime", 1690000000, {"$timestamp": 1690000000}), ("bin128", bytes(16), {"$bytes": "00" * 16}),
    ("uuid", ID, {"$uuid": str(ID)}), ("bin256", bytes(32), {"$bytes": "00" * 32}),
    ("bin512", bytes(64), {"$bytes": "00" * 64}), ("bin1024", bytes(128), {"$bytes": "00" * 128}),
    ("vbin8", b"", {"$bytes": ""}), ("vbin16", b"\0\xff", {"$bytes": "00ff"}), ("vbin32", b"x", {"$bytes": "78"}),
    ("str8", 'ö"\n', 'ö"\n'), ("str16", "\U0001f600", "\U0001f600"), ("str8-latin", "a€ÿ\x01\\", "a€ÿ\x01\\"),
    ("str16-latin", "Ž", "Ž"), ("str8-utf16", "aé€\U0001f600\t", "aé€\U0001f600\t"), ("str16-utf16", "", ""),
    ("map", [("k", "uint8", 1), ("", "void", None), ("$x", "bit", True)], {"k": 1, "": None, "$$x": True}),
    ("map", [], {}), ("map", None, None), ("list", None, None), ("array", None, None), ("struct32", None, None),
    ("list", [("list", [("uint8", 1)]), ("map", [("a", "list", [])])], [[1], {"a": []}]),
    ("array", ("str16", ["PLAIN", "ANONYMOUS"]), ["PLAIN", "ANONYMOUS"]), ("array", ("void", []), []),
    ("array", ("void", [None] * 300), {"$count": 300}), ("array", ("bit", [True]), {"$count": 1}),
    ("array", ("map", [[("a", "uint8", 1)], []]), [{"a": 1}, {}]),
    ("array", ("array", [("uint8", [1, 2]), ("int16", [-1])]), [[1, 2], [-1]]),
    ("struct32", ("dtx.xid", {"format": 1, "global_id": b"g"}),
     {"$dtx.xid": {"format": 1, "global_id": {"$bytes": "67"}}}),
    ("struct32", ("message.message-properties", {"reply_to": {"exchange": "e"}, "message_id": ID}),
     {"$message.message-properties": {"message_id": {"$uuid": str(ID)}, "reply_to": {"exchange": "e"}}}),
    ("struct32", ("exchange.exchange-query-result", {"type": "topic", "durable": True}),
     {"$exchange.exchange-query-result": {"type": "topic", "durable": True, "not_found": False}}),
    ("struct32", ("message.acquired", {"transfers": [(0, 3), (7, 7)]}),
     {"$message.acquired": {"transfers": [[0, 3], [7, 7]]}}),
    ("dec32", Decimal("-12.34"), {"$decimal": "-12.34"}),
    ("dec64", Decimal("0.000000000000000001"), {"$decimal": "1E-18"}),
    ("dec64", Decimal(-(2**63)), {"$decimal": str(-(2**63))}), ("void", None, None), ("bit", True, True),
    ("bin40", b"12345", {"$bytes": "3132333435"}), ("bin72", bytes(9), {"$bytes": "00" * 9}),
]  # fmt: skip
"""Type, value, and what JSON has of it inside of a list."""


def test_every_type_is_there() -> None:
    assert {kind for kind, _, _ in ALONE} == {t.name for t in PROTOCOL.types if t.code is not None}


@pytest.mark.parametrize("compiled", MODES)
@pytest.mark.parametrize(("kind", "given", "expected"), ALONE)
def test_by_hand(kind: str, given: Any, expected: Any, compiled: bool) -> None:
    text, problems = run("list", inside("list", [(kind, given), ("uint8", 1)]), compiled)
    assert (json.loads(text), problems) == ([expected, 1], [])


def test_ranges_and_uuids_as_fields() -> None:
    assert run("sequence-set", inside("sequence-set", [(0, 2**32 - 1)])) == ("[[0,4294967295]]", [])
    assert run("sequence-set", b"") == ("[]", [])
    assert run("sequence-set", bytes(12)) == ("[[0,0]]", [("table-malformed", 0)])
    assert run("byte-ranges", inside("byte-ranges", [(1, 2**64 - 1), (0, 0)])) == (f"[[1,{2**64 - 1}],[0,0]]", [])
    assert run("uuid", ID.bytes) == (str(ID), [])


def test_types_that_nobody_knows_are_measured() -> None:
    """The upper half of a code says how long they are; B and E say nothing."""
    items = [b"\x03!", b"\x29abcd", b"\x8f\x02ab", b"\xc1abcde", b"\xff"]
    text, problems = run("list", (len(items)).to_bytes(4, "big") + b"".join(items))
    assert [item["$bytes"] for item in json.loads(text)] == ["21", "61626364", "6162", "6162636465", ""]
    assert problems == []
    assert run("list", b"\0\0\0\x02\x02\x05\xb0") == ("[5]", [("table-type-unknown", 6)])


def test_structs_that_nobody_knows() -> None:
    items = inside("list", [("uint8", 1)])[4:] + code("struct32") + b"\0\0\0\3\x63\1\7"
    assert run("list", b"\0\0\0\2" + items) == ('[1,{"$struct":"630107"}]', [("table-type-unknown", 6)])


MALFORMED = [
    ("map", b"\0\0\0", "{}", "table-malformed"),  # no room for a count
    ("map", b"\xff\xff\xff\xff", "{}", "table-malformed"),  # more entries tha bytes
    ("list", b"\0\0\0\2\x02\5", "[5]", "table-malformed"),
    ("array", b"\x02\0\0\0\3\1\2", "[1,2]", "table-malformed"),
    ("array", b"\xb0\0\0\0\1a", "[]", "table-type-unknown"),
    ("struct32", b"\6", "{}", "table-malformed"),
    ("struct32", b"\6\4\7", "{}", "table-malformed"),  # no room for flags
    ("struct32", b"\6\4\7\0\0\0\0\1\5ab", '{"$dtx.xid":{"format":1}}', "table-malformed"),
    ("message.reply-to", b"\3", "{}", "table-malformed"),
    ("list", b"\0\0\0\1\xa8\0\0\0\2ab", "[]", "table-malformed"),  # a map with no room for its count
]


@pytest.mark.parametrize("compiled", MODES)
@pytest.mark.parametrize(("kind", "data", "text", "problem"), MALFORMED)
def test_malformed(kind: str, data: bytes, text: str, problem: str, compiled: bool) -> None:
    found, problems = run(kind, data, compiled)
    assert (found, [what for what, _ in problems]) == (text, [problem])


@pytest.mark.parametrize("compiled", MODES)
def test_depth_is_bounded(compiled: bool) -> None:
    nested: Any = []
    for _ in range(DEPTH + 5):
        nested = [("list", nested), ("uint8", 1)]
    text, problems = run("list", inside("list", nested), compiled)
    levels, deepest = 0, json.loads(text)
    while deepest[0] is not None:
        levels, deepest = levels + 1, deepest[0]
    assert (levels, [what for what, _ in problems]) == (DEPTH - 1, ["table-too-deep"])


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
SCALARS = st.one_of(
    st.tuples(st.just("int64"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("uint8"), st.integers(0, 255)),
    st.tuples(st.just("str16"), TEXT),
    st.tuples(st.just("str8-utf16"), TEXT),
    st.tuples(st.just("str8-latin"), st.binary(max_size=9).map(lambda b: b.decode("iso8859-15"))),
    st.tuples(st.just("vbin8"), st.binary(max_size=9)),
    st.tuples(st.just("void"), st.none()),
    st.tuples(st.just("double"), st.floats(allow_nan=False, allow_infinity=False)),
    st.tuples(
        st.just("dec64"),
        st.builds(
            lambda n, scale: Decimal((n < 0, Decimal(n).as_tuple().digits, -scale)),
            st.integers(-(2**63), 2**63 - 1),
            st.integers(0, 255),
        ),
    ),
    st.tuples(st.just("uuid"), st.uuids()),
)
NESTED = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.tuples(st.just("list"), st.lists(inner, max_size=4)),
        st.tuples(
            st.just("map"),
            st.lists(st.tuples(TEXT.filter(lambda t: len(t.encode()) < 256), inner), max_size=4).map(
                lambda pairs: [(k, t, v) for k, (t, v) in pairs]
            ),
        ),
    ),
    max_leaves=12,
)


def expected(kind: str, given: Any) -> Any:
    if kind == "list":
        return [expected(t, v) for t, v in given]
    if kind == "map":
        return {("$" + k if k.startswith("$") else k): expected(t, v) for k, t, v in given}
    names = {"vbin8": ("$bytes", bytes.hex), "uuid": ("$uuid", str), "dec64": ("$decimal", str)}
    if kind in names:
        name, text = names[kind]
        return {name: text(given)}
    return given


@given(st.lists(NESTED, max_size=5))
def test_round_trip(items: list[tuple[str, Any]]) -> None:
    text, problems = run("list", inside("list", items))
    assert (json.loads(text), problems) == (expected("list", items), [])


@settings(max_examples=examples(300))
@given(st.lists(NESTED, min_size=1, max_size=4), st.data())
def test_cut_or_changed_anywhere(items: list[tuple[str, Any]], data: st.DataObject) -> None:
    content = bytearray(inside("list", items))
    cut = data.draw(st.integers(0, len(content)))
    for place in data.draw(st.lists(st.integers(0, max(cut - 1, 0)), max_size=3)):
        if cut:
            content[place] = data.draw(st.integers(0, 255))
    json.loads(run("list", bytes(content[:cut]))[0])


@settings(max_examples=examples(300))
@given(
    st.sampled_from(sorted(set(DIALECT.forms) - {t.name for t in PROTOCOL.types if t.fixed_width is not None})),
    st.binary(max_size=60),
)
def test_any_bytes(kind: str, data: bytes) -> None:
    json.loads(run(kind, data)[0])
