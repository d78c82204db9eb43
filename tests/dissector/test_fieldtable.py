"""Field tables to JSON, against hand-written bytes, a plain reference and pamqp."""

import decimal
import json
import math
import struct
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pamqp.encode
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amqpscope.dissector.fields.problems import PROBLEM_CODES
from amqpscope.dissector.fields.rendering import float_text
from amqpscope.dissector.fields.tables import DEPTH, render
from tests.dissector.letters import LETTERS, key, long
from tests.dissector.runs import BOTH
from tests.thorough import examples


def run(tables: list[bytes], compiled: bool = False) -> tuple[list[str], list[tuple[int, str, int]]]:
    """JSON of each table and the problems, with places counted within their table."""
    data = np.frombuffer(b"?" + b"".join(tables) + b"?", np.uint8).copy()
    size = np.array([len(t) for t in tables], np.int64)
    at = np.cumsum(size) - size + 1
    result = render(data, at, size, compiled)
    ends = np.cumsum(result.sizes).tolist()
    content = result.data.tobytes()
    texts = [content[end - s : end].decode() for end, s in zip(ends, result.sizes.tolist(), strict=True)]
    assert (ends[-1] if ends else 0) == len(content)
    return texts, [(t, PROBLEM_CODES[c], p - int(at[t])) for t, c, p in result.problems.tolist()]


def one(table: bytes, compiled: bool = False) -> tuple[str, list[tuple[str, int]]]:
    texts, problems = run([table], compiled)
    return texts[0], [(code, place) for _, code, place in problems]


@BOTH
@pytest.mark.parametrize(("data", "text"), LETTERS)
def test_letters(data: bytes, text: str, compiled: bool) -> None:
    assert one(key("n") + data, compiled) == ('{"n":' + text + "}", [])
    assert one(key("n") + b"A" + long(data + data), compiled) == ('{"n":[' + text + "," + text + "]}", [])
    json.loads(text)


KEYS = [
    (b"", '""'), (b"a b", '"a b"'), (b"$", '"$$"'), (b"$bytes", '"$$bytes"'), (b"a$", '"a$"'), (b'"\n', '"\\"\\n"'),
    ("é".encode(), '"é"'), (b"k" * 255, '"' + "k" * 255 + '"'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), KEYS)
def test_keys(name: bytes, text: str) -> None:
    assert one(key(name) + b"V") == ("{" + text + ":null}", [])


def test_key_that_is_no_text_is_reported_once() -> None:
    table = key("a") + b"V" + key(b"\xff\xc3") + b"B\x01" + key(b"\xfe") + b"V"
    assert one(table) == ('{"a":null,"\\\\xff\\\\xc3":1,"\\\\xfe":null}', [("text-not-utf8", 4)])


def test_equal_keys_stay() -> None:
    assert one(key("a") + b"B\x01" + key("a") + b"B\x02")[0] == '{"a":1,"a":2}'


MALFORMED = [
    (b"\x05ab", "{}", ("table-malformed", 0)),
    (b"\x02ab", "{}", ("table-malformed", 0)),
    (key("a") + b"V" + b"\xff", '{"a":null}', ("table-malformed", 3)),
    (key("a") + b"V" + key("b") + b"I\x00\x00", '{"a":null}', ("table-malformed", 3)),
    (key("a") + b"S\x7f\xff\xff\xffabc", "{}", ("table-malformed", 0)),
    (key("a") + b"S\xff\xff\xff\xffabc", "{}", ("table-malformed", 0)),
    (key("a") + b"x\x80\x00\x00\x00", "{}", ("table-malformed", 0)),
    (key("a") + b"S\x00\x00\x00", "{}", ("table-malformed", 0)),
    (key("a") + b"Q\x01" + key("b") + b"V", "{}", ("table-type-unknown", 0)),
    (key("a") + b"A" + long(b"V\x00") + key("b") + b"V", '{"a":[null]}', ("table-type-unknown", 8)),
    # the inner value passes the end of its table though not of the outermost
    (key("a") + b"F" + long(key("i") + b"B\x01" + key("j") + b"I\x00") + key("b") + b"V", '{"a":{"i":1}}',
     ("table-malformed", 11)),
]  # fmt: skip


@BOTH
@pytest.mark.parametrize(("table", "text", "problem"), MALFORMED)
def test_malformed_keeps_what_came_before(table: bytes, text: str, problem: Any, compiled: bool) -> None:
    assert one(table, compiled) == (text, [problem])
    assert run([table, key("z") + b"V"], compiled)[0] == [text, '{"z":null}']


def nested(levels: int, letter: bytes) -> bytes:
    """A table with this many containers within each other below it."""
    value = b"V"
    for _ in range(levels):
        value = letter + long(value if letter == b"A" else key("k") + value)
    return key("k") + value


@BOTH
@pytest.mark.parametrize("letter", [b"A", b"F"])
def test_depth(letter: bytes, compiled: bool) -> None:
    opening, closing = ("[", "]") if letter == b"A" else ('{"k":', "}")
    text, problems = one(nested(DEPTH - 1, letter), compiled)
    assert (text, problems) == ('{"k":' + opening * (DEPTH - 1) + "null" + closing * (DEPTH - 1) + "}", [])
    text, problems = one(nested(1000, letter) + key("after") + b"V", compiled)
    inside = opening * (DEPTH - 1) + "null" + closing * (DEPTH - 1)
    assert text == '{"k":' + inside + ',"after":null}'
    assert [code for code, _ in problems] == ["table-too-deep"]


# A plain reference: the same mapping, written the slow way.


class Broken(Exception):
    pass


def take(data: bytes, at: int, n: int) -> tuple[bytes, int]:
    if at + n > len(data):
        raise Broken
    return data[at : at + n], at + n


def reference(data: bytes, named: bool = True, depth: int = 1) -> tuple[str, bool]:
    """JSON of a table or array, and whether it was whole."""
    parts, at, whole = [], 0, True
    while at < len(data) and whole:
        try:
            prefix = ""
            if named:
                name, at = take(data, at + 1, data[at])
                shown = name.decode(errors="backslashreplace")
                prefix = json.dumps("$" + shown if shown.startswith("$") else shown, ensure_ascii=False) + ":"
            text, whole, at = reference_value(data, at, depth)
        except Broken:
            whole = False
        else:
            parts.append(prefix + text)
    return ("{%s}" if named else "[%s]") % ",".join(parts), whole


def reference_value(data: bytes, at: int, depth: int) -> tuple[str, bool, int]:
    letter, at = take(data, at, 1)
    numbers = {"b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">q"}
    if letter == b"V":
        return "null", True, at
    if letter == b"t":
        byte, at = take(data, at, 1)
        return ("false" if byte == b"\0" else "true"), True, at
    if letter.decode("latin-1") in numbers:
        form = numbers[letter.decode()]
        number, at = take(data, at, struct.calcsize(form))
        return str(struct.unpack(form, number)[0]), True, at
    if letter in b"fd":
        form = {b"f": ">f", b"d": ">d"}[letter]
        number, at = take(data, at, struct.calcsize(form))
        return float_text(number).decode(), True, at
    if letter == b"D":
        number, at = take(data, at, 5)
        scaled = decimal.Decimal(struct.unpack(">i", number[1:])[0]).scaleb(-number[0])
        return json.dumps({"$decimal": str(scaled)}, separators=(",", ":")), True, at
    if letter == b"T":
        number, at = take(data, at, 8)
        return '{"$timestamp":' + str(struct.unpack(">Q", number)[0]) + "}", True, at
    if letter not in b"SxAF":
        raise Broken
    size, at = take(data, at, 4)
    inner, at = take(data, at, struct.unpack(">I", size)[0])
    if letter == b"S":
        try:
            return json.dumps(inner.decode(), ensure_ascii=False), True, at
        except UnicodeDecodeError:
            return '{"$string":"' + inner.hex() + '"}', True, at
    if letter == b"x":
        return '{"$bytes":"' + inner.hex() + '"}', True, at
    if depth == DEPTH:
        return "null", True, at
    return *reference(inner, letter == b"F", depth + 1), at


names = st.one_of(st.text(max_size=5).map(str.encode), st.binary(max_size=5), st.sampled_from([b"$x", b"Traceparent"]))
fixed = st.sampled_from([(b"t", 1), (b"b", 1), (b"B", 1), (b"s", 2), (b"u", 2), (b"I", 4), (b"i", 4), (b"l", 8),
                         (b"L", 8), (b"f", 4), (b"d", 8), (b"D", 5), (b"T", 8), (b"V", 0)])  # fmt: skip
scalars = st.one_of(
    fixed.flatmap(lambda f: st.binary(min_size=f[1], max_size=f[1]).map(f[0].__add__)),
    st.tuples(st.sampled_from(b"Sx"), st.one_of(st.binary(max_size=9), st.text(max_size=9).map(str.encode))).map(
        lambda v: bytes([v[0]]) + long(v[1])
    ),
)


def tables_of(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(st.tuples(names.map(lambda n: key(n[:255])), values).map(b"".join), max_size=5).map(b"".join)


values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5).map(b"".join).map(lambda v: b"A" + long(v)),
        tables_of(inner).map(lambda v: b"F" + long(v)),
    ),
    max_leaves=12,
)
tables = tables_of(values)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A table with some bytes changed, dropped or put in."""
    table = bytearray(draw(tables))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(table)))
        table[at : at + draw(st.integers(0, 2))] = draw(
            st.sampled_from([b"", b"\0", b"\xff", b"F", b"\x7f\xff\xff\xff"])
        )
    return bytes(table)


@BOTH
@settings(max_examples=examples(150))
@given(batch=st.lists(st.one_of(tables, damaged(), st.binary(max_size=40)), max_size=4))
@example(batch=[b"", b"\0", b"\0V", b"\1$D\xff\xff\xff\xff\xff"])
def test_any_bytes_as_the_reference_has_them(batch: list[bytes], compiled: bool) -> None:
    texts, problems = run(batch, compiled)
    for i, table in enumerate(batch):
        text, whole = reference(table)
        assert texts[i] == text
        json.loads(text)
        ending = [code for t, code, _ in problems if t == i and code in ("table-malformed", "table-type-unknown")]
        assert len(ending) == (0 if whole else 1)


@settings(max_examples=examples(100))
@given(batch=st.lists(st.one_of(tables, damaged(), st.binary(max_size=40)), max_size=4))
@pytest.mark.compiled
def test_both_modes_agree(batch: list[bytes]) -> None:
    assert run(batch, False) == run(batch, True)


@given(number=st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=8, max_size=8)))
def test_floats_come_back(number: bytes) -> None:
    form = ">f" if len(number) == 4 else ">d"
    expected = struct.unpack(form, number)[0]
    text = float_text(number).decode()
    if math.isfinite(expected):
        assert struct.pack(form, json.loads(text)) == number
        assert "." in text or "e" in text
    else:
        assert math.isnan(expected) or json.loads(text) == {"$double": "Infinity" if expected > 0 else "-Infinity"}


def test_floats_are_put_where_they_belong() -> None:
    with_floats = key("a") + b"d" + struct.pack(">d", 1.5) + key("b") + b"A" + long(b"f" + struct.pack(">f", 2.5) * 1)
    texts, _ = run([with_floats, key("c") + b"V", b"", with_floats])
    assert texts == ['{"a":1.5,"b":[2.5]}', '{"c":null}', "{}", '{"a":1.5,"b":[2.5]}']


# Values that pamqp writes: what we read is what went in.

plain = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=8),
    st.binary(max_size=8).map(bytearray), st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.decimals(min_value=0, max_value=10**6, places=3),
    st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(2100, 1, 1)).map(
        lambda d: d.replace(microsecond=0, tzinfo=UTC)
    ),
)  # fmt: skip
python_values = st.recursive(
    plain,
    lambda v: st.one_of(st.lists(v, max_size=4), st.dictionaries(st.text(max_size=6), v, max_size=4)),
    max_leaves=8,
)


def as_json(value: Any) -> Any:
    match value:
        case decimal.Decimal():
            return {"$decimal": str(value)}
        case datetime():
            return {"$timestamp": int(value.timestamp())}
        case float():  # pamqp writes 32 bits
            return float(str(np.float32(value)))
        case bytearray():
            return {"$bytes": value.hex()}
        case list():
            return [as_json(v) for v in value]
        case dict():
            return {("$" + k if k.startswith("$") else k): as_json(v) for k, v in value.items()}
    return value


@given(table=st.dictionaries(st.text(max_size=6), python_values, max_size=5))
def test_tables_of_pamqp(table: dict[str, Any]) -> None:
    text, problems = one(pamqp.encode.field_table(table)[4:])
    assert problems == []
    assert json.loads(text) == as_json(table)


def test_trace_is_found_in_the_outermost_table_only() -> None:
    context = b"S" + long(b"00-")
    batch = [
        key("inner") + b"F" + long(key("traceparent") + context),
        key("tRaceParent") + context + key("traceparent") + b"V",
        key("traceparent") + b"I\0\0\0\1",
        b"",
    ]
    data = np.frombuffer(b"".join(batch), np.uint8).copy()
    size = np.array([len(t) for t in batch], np.int64)
    at = np.cumsum(size) - size
    assert render(data, at, size, False).trace.tolist() == [
        [-1, 0], [int(at[1]) + 17, 3], [int(at[2]) + 13, 0], [-1, 0]
    ]  # fmt: skip
