"""Texts of records: gathered, with bytes that are no UTF-8 escaped."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.dissector.fields.text import Texts, gather
from tests.dissector.runs import BOTH

EDGES = [
    b"\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf",
    b"\xc0\x80", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80", b"\xff", b"\x80", b"a\xc3", b"a\xe2\x82", b"a\xf0\x9f\x98", b"\xe2\x28\xa1", b"\xe2\x82\x28",
]  # fmt: skip

raw = st.one_of(st.binary(max_size=12), st.text(max_size=8).map(str.encode), st.sampled_from(EDGES))


def run(entries: list[bytes], compiled: bool) -> Texts:
    """Gather the entries out of data in which a byte that would complete a sequence stands between them."""
    data = np.frombuffer(b"\x82".join([*entries, b""]), np.uint8).copy()
    size = np.array([len(e) for e in entries], np.int64)
    at = np.cumsum(size + 1) - size - 1
    return gather(data, at, size, compiled)


def valid(entry: bytes) -> bool:
    try:
        entry.decode()
    except UnicodeDecodeError:
        return False
    return True


@BOTH
@given(entries=st.lists(raw, max_size=6))
def test_as_python_decodes(entries: list[bytes], compiled: bool) -> None:
    texts = run(entries, compiled)
    expected = [e.decode(errors="backslashreplace").encode() for e in entries]
    assert texts.data.tobytes() == b"".join(expected)
    assert texts.sizes.tolist() == [len(e) for e in expected]
    assert texts.invalid.tolist() == [i for i, e in enumerate(entries) if not valid(e)]


@BOTH
@pytest.mark.parametrize("entry", EDGES)
def test_edges(entry: bytes, compiled: bool) -> None:
    assert run([b"", entry], compiled).data.tobytes() == entry.decode(errors="backslashreplace").encode()


def test_place_of_the_first_wrong_byte() -> None:
    texts = run([b"ok", "é".encode(), b"ab\xff\xfe"], False)
    assert texts.invalid.tolist() == [2]
    assert texts.invalid_at.tolist() == [3 + 3 + 2]
