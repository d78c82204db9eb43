"""What runs instead of a kernel where that is interpreted does the same."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.dissector.kernels.declared import source
from amqpscope.dissector.kernels.words import copy_bytes, put_word, word

BYTES = st.binary(min_size=64, max_size=64).map(bytearray)


@given(data=BYTES, target=BYTES, p=st.integers(0, 56), j=st.integers(0, 56), count=st.integers(0, 8))
def test_the_same_is_read_and_written(data: bytearray, target: bytearray, p: int, j: int, count: int) -> None:
    value = word(memoryview(data), p)
    assert value == source(word)(memoryview(data), p) == int.from_bytes(data[p : p + 8], "little")
    other = target.copy()
    put_word(memoryview(target), j, value)
    source(put_word)(memoryview(other), j, value)
    assert target == other
    copy_bytes(memoryview(data), p, memoryview(target), j, count)
    source(copy_bytes)(memoryview(data), p, memoryview(other), j, count)
    assert target == other


@pytest.mark.parametrize("p", [9, 16])
def test_what_lies_outside_is_an_error(p: int) -> None:
    data = memoryview(bytearray(16))
    with pytest.raises(struct.error):
        word(data, p)
    with pytest.raises(struct.error):
        put_word(data, p, 1)
    with pytest.raises(ValueError, match="different structures"):
        copy_bytes(data, 0, data, p, 8)
