"""Values and objects of a closed list of classes as bytes."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.dissector.kernels.coding import PLAIN, Coding
from amqpscope.dissector.kernels.state import StateError


class Spot(NamedTuple):
    """A place in a capture."""

    capture: int
    name: str


@dataclass(slots=True)
class Car:
    """With places."""

    wheels: int
    seen: list[Spot] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frozen:
    """It cannot be changed."""

    parts: tuple[Any, ...]


CODING = Coding(Car, Spot, Frozen)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.binary().map(bytearray),
    lambda of: st.lists(of) | st.lists(of).map(tuple) | st.dictionaries(st.text() | st.integers(), of),
    max_leaves=20,
)


@given(VALUES)
def test_values_come_back(value: object) -> None:
    found = PLAIN.read(PLAIN.written(value))
    assert found == value
    assert type(found) is type(value)


def test_objects_come_back_with_captures_translated() -> None:
    car = Car(4, [Spot(1, "a"), Spot(0, "\ud800")])
    assert CODING.read(CODING.written([car, Frozen((car, b""))])) == [car, Frozen((car, b""))]
    found = CODING.read(CODING.written(car), captures=np.array([7, 9]))
    assert found == Car(4, [Spot(9, "a"), Spot(7, "\ud800")])


@pytest.mark.parametrize("dtype", ["i8", "u8", "u1", "?"])
def test_arrays_come_back(dtype: str) -> None:
    array = np.arange(12).astype(dtype).reshape(3, 4)
    found = PLAIN.read(PLAIN.written(array[:, ::2]))
    assert found.dtype == array.dtype and found.flags.writeable
    assert found.tolist() == array[:, ::2].tolist()
    column = pa.array([{"a": "x"}, None, {"a": None}])[1:]
    assert PLAIN.read(PLAIN.written(column)).equals(column)


@pytest.mark.parametrize("value", [object(), 1.5, {1}, np.int64(1), Spot(0, "")])
def test_other_classes_are_not_written(value: object) -> None:
    with pytest.raises(TypeError, match="not declared"):
        PLAIN.written([value])


def test_arrays_of_objects_are_not_read() -> None:
    data = PLAIN.written(np.zeros(1, np.int64)).replace(b"<i8", b"|O8")
    with pytest.raises(StateError):
        PLAIN.read(data)


@given(st.data())
def test_other_bytes_are_refused(data: st.DataObject) -> None:
    whole = CODING.written([Car(4, [Spot(1, "a")]), np.arange(3), pa.array([1]), {"a": (1, b"x")}])
    at = data.draw(st.integers(0, len(whole) - 1))
    content = whole[:at] + data.draw(st.binary(max_size=12)) + whole[at + data.draw(st.integers(0, 9)) :]
    try:
        CODING.read(content)
    except StateError as error:
        assert "\n" not in str(error)


def test_classes_with_other_fields_are_refused() -> None:
    other = type("Spot", (), {"__slots__": ("capture",)})
    with pytest.raises(StateError):
        Coding(Car, other, Frozen).read(CODING.written(Spot(0, "")))
