"""Maps of AMQP 1.0 to JSON, against what the standard says of each constructor."""

import json
import math
import random
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpscope.dissector.fields.problems import PROBLEM_CODES
from amqpscope.dissector.protocols.amqp100 import values
from tests.dissector.amqp100 import wire as w
from tests.thorough import examples

UUID = "01234567-89ab-cdef-0123-456789abcdef"
CASES: dict[str, tuple[bytes, Any]] = {
    "null": (w.NULL, None),
    "true": (b"\x41", True),
    "false": (b"\x42", False),
    "boolean": (b"\x56\x01", True),
    "boolean no": (b"\x56\x00", False),
    "ubyte": (b"\x50\xff", 255),
    "byte": (b"\x51\x80", -128),
    "ushort": (b"\x60\xff\xfe", 65534),
    "short": (b"\x61\xff\xfe", -2),
    "uint": (b"\x70\xff\xff\xff\xff", 2**32 - 1),
    "small uint": (b"\x52\x07", 7),
    "uint 0": (b"\x43", 0),
    "int": (b"\x71\x80\0\0\0", -(2**31)),
    "small int": (b"\x54\xff", -1),
    "ulong": (w.ulong(2**64 - 1), 2**64 - 1),
    "small ulong": (b"\x53\x09", 9),
    "ulong 0": (b"\x44", 0),
    "long": (b"\x81" + struct.pack(">q", -(2**63)), -(2**63)),
    "small long": (b"\x55\xfe", -2),
    "float": (b"\x72" + struct.pack(">f", 0.1), 0.1),
    "double": (b"\x82" + struct.pack(">d", math.pi), math.pi),
    "nan": (b"\x82" + struct.pack(">d", math.nan), {"$double": "NaN"}),
    "decimal32": (b"\x74\x01\x02\x03\x04", {"$decimal32": "01020304"}),
    "decimal64": (b"\x84" + bytes(8), {"$decimal64": "00" * 8}),
    "decimal128": (b"\x94" + bytes(16), {"$decimal128": "00" * 16}),
    "char": (b"\x73" + struct.pack(">I", 0x20AC), {"$char": 0x20AC}),
    "timestamp": (w.timestamp(-5), {"$timestamp_ms": -5}),
    "uuid": (w.uuid(UUID), {"$uuid": UUID}),
    "binary": (w.binary(b"\x00\xff"), {"$bytes": "00ff"}),
    "long binary": (w.binary(b"\x07" * 300), {"$bytes": "07" * 300}),
    "string": (w.string('größe "x"\n'), 'größe "x"\n'),
    "long string": (w.string("x" * 300), "x" * 300),
    "symbol": (w.symbol("x-opt"), "x-opt"),
    "empty list": (w.EMPTY, []),
    "list": (w.listed(b"\x43", w.NULL, w.listed(b"\x41")), [0, None, [True]]),
    "long list": (w.listed(*[b"\x43"] * 300), [0] * 300),
    "wide list": (w.listed(b"\x41", wide=True), [True]),
    "map": (w.mapped(w.string("k"), b"\x41", w.string("$l"), w.EMPTY), {"k": True, "$$l": []}),
    "empty map": (w.mapped(), {}),
    "array": (w.array(0x71, struct.pack(">i", 1), struct.pack(">i", -1)), [1, -1]),
    "array of strings": (w.array(0xA1, b"\x01a", b"\x00"), ["a", ""]),
    "array of lists": (w.array(0xC0, b"\x02\x01\x41", b"\x01\x00"), [[True], []]),
    "empty array": (w.array(0x71), []),
    "described": (w.described(w.symbol("d"), w.string("v")), {"$described": ["d", "v"]}),
    "described twice": (
        w.described(b"\x53\x01", w.described(b"\x53\x02", w.listed(b"\x41"))),
        {"$described": [1, {"$described": [2, [True]]}]},
    ),
}  # fmt: skip


def render(content: bytes, compiled: bool = False) -> tuple[str, list[str], list[int]]:
    """JSON, problems and trace of one map."""
    data = np.frombuffer(b"\x99" + content + b"\x98", np.uint8).copy()
    found = values.render(data, np.array([1]), np.array([len(content)]), compiled)
    assert found.sizes.tolist() == [len(found.data)]
    return (
        found.data.tobytes().decode(),
        [PROBLEM_CODES[code] for code in found.problems[:, 1].tolist()],
        found.trace[0].tolist(),
    )


@pytest.mark.parametrize("name", CASES)
def test_a_value_of_each_constructor(name: str) -> None:
    data, expected = CASES[name]
    text, problems, _ = render(w.mapped(w.symbol("v"), data, w.string("after"), b"\x54\x01"))
    assert (json.loads(text), problems) == ({"v": expected, "after": 1}, [])


def test_all_constructors_are_covered() -> None:
    assert {code for code, kind in enumerate(values.CONSTRUCTORS.kinds.tolist()) if kind} <= {
        *(data[0] for data, _ in CASES.values()), 0xB3, 0xD1, 0xF0
    }  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True])
def test_all_values_at_once(compiled: bool) -> None:
    data = w.mapped(*(part for name, (value, _) in CASES.items() for part in (w.string(name), value)), wide=True)
    text, problems, _ = render(data, compiled)
    assert (json.loads(text), problems) == ({name: value for name, (_, value) in CASES.items()}, [])


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"\x53\x07", "7"), (w.uuid(UUID), UUID), (b"\x41", "true"), (w.timestamp(9), "9"), (w.binary(b"\xfe"), "fe"),
        (w.string(b"\xff"), "\\xff"),
    ],
)  # fmt: skip
def test_keys_that_are_no_text(key: bytes, text: str) -> None:
    assert json.loads(render(w.mapped(key, b"\x43"))[0]) == {text: 0}


@pytest.mark.parametrize(
    ("value", "json_text", "problem"),
    [
        (b"\x57", '{"a":true,"v":null}', "table-type-unknown"),
        (b"\x01", '{"a":true,"v":null}', "table-type-unknown"),
        (b"\xa1\x09xx", '{"a":true,"v":null}', "table-malformed"),
        (b"\xb1\xff\xff\xff\xff", '{"a":true,"v":null}', "table-malformed"),
        (b"\xc0\x00\x00", '{"a":true,"v":null}', "table-malformed"),
        (b"\xc0\x02\x05\x41", '{"a":true,"v":[true]}', "table-malformed"),
        (b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x41", '{"a":true,"v":[]}', "table-type-unknown"),
        (b"\x00", '{"a":true,"v":{"$described":[]}}', "table-malformed"),
        (w.string(b"a\xff"), '{"a":true,"v":{"$string":"61ff"}}', "text-not-utf8"),
    ],
)
def test_what_breaks_off_is_closed(value: bytes, json_text: str, problem: str) -> None:
    data = w.mapped(w.string("a"), b"\x41", w.string("v"), value)
    text, problems, _ = render(data)
    assert (text, problems) == (json_text, [problem])


def test_depth_is_bounded() -> None:
    value = b"\x41"
    for _ in range(100):
        value = w.listed(value)
    text, problems, _ = render(w.mapped(w.string("v"), value, w.string("w"), b"\x43"))
    assert problems == ["table-too-deep"]
    assert json.loads(text)["w"] == 0


@pytest.mark.parametrize("case", ["traceparent", "TraceParent"])
def test_where_the_trace_is(case: str) -> None:
    data = w.mapped(w.string("a"), w.string("traceparent"), w.string(case), w.string("00-ff"))
    _, _, (at, size) = render(data)
    assert (data[at - 1 : at - 1 + size], size) == (b"00-ff", 5)
    assert render(w.mapped(w.string(case), b"\x43"))[2][1] == 0
    assert render(w.mapped(w.string("a"), b"\x43"))[2] == [-1, 0]


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=60), st.integers(0, 255))
def test_no_bytes_do_harm(data: bytes, count: int) -> None:
    text, problems, _ = render(bytes([0xC1, len(data) + 1, count]) + data)
    json.loads(text)
    assert len(problems) <= values.PROBLEMS


@pytest.mark.compiled
def test_compiled_as_interpreted() -> None:
    rng = random.Random(1)
    constructors = [c for c in range(256) if values.CONSTRUCTORS.widths[c] >= 0] + [0]
    for _ in range(2000):
        data = bytes(
            rng.choice(constructors) if rng.random() < 0.5 else rng.choice((0, 1, 2, 3, 65, 255)) for _ in range(40)
        )
        data = bytes([0xC1, len(data) + 1, rng.randrange(256)]) + data
        assert render(data) == render(data, compiled=True)
