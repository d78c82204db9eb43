"""Arrays made without pandas are those that pyarrow makes."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from amqpscope.dissector.fields.arrow import array, numbers, of_rows, picked, valid
from tests.dissector.runs import FOLDER

MASK = np.array([True, False, True])


@pytest.mark.parametrize(
    ("values", "kind", "mask"),
    [
        (np.array([1, -2, 3]), None, None),
        (np.array([1, -2, 3]), pa.int32(), MASK),
        (np.array([1, -2, 3], np.int32), None, MASK),
        (np.arange(9)[::3], None, None),
        (np.array([True, False, True]), None, None),
        (np.array([True, True, False]), None, MASK),
        ([1, None, 3], pa.int64(), None),
        ([1, 2, 3], pa.int32(), MASK),
        ([None, True, False], pa.bool_(), None),
        (["a", None, "ä€"], pa.string(), None),
        ([b"a", None, b""], pa.binary(), None),
        ([], pa.int64(), None),
        ([], pa.string(), None),
        (["x", "y", None], pa.string(), MASK),
    ],
)  # fmt: skip
def test_arrays_are_those_of_pyarrow(values: object, kind: pa.DataType, mask: np.ndarray | None) -> None:
    if mask is not None and isinstance(values, list):
        expected = pa.array([None if hidden else v for v, hidden in zip(values, mask, strict=True)], kind)
    else:
        expected = pa.array(values, kind, mask=mask)
    made = array(values, kind, mask)
    made.validate(full=True)
    assert made.type == expected.type
    assert made.equals(expected)
    assert made.null_count == expected.null_count


def test_rows_make_columns() -> None:
    kinds = {"a": pa.int64(), "b": pa.string(), "c": pa.bool_()}
    rows = [{"a": 1, "b": "x"}, {"c": True}]
    assert of_rows([*rows, {"d": 1}], kinds) == {
        "a": pa.array([1, None, None], pa.int64()),
        "b": pa.array(["x", None, None], pa.string()),
        "c": pa.array([None, True, None], pa.bool_()),
    }
    assert of_rows([{"a": 1}], kinds) == {"a": pa.array([1], pa.int64())}


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None, "ä€", "", "e"]),
        pa.array(["a", "b", "c", "d", "e"]),
        pa.array([None] * 5, pa.string()),
        pa.array([""] * 5),
        pa.array([1, None, -3, 2**62, 5]),
        pa.array([1, 2, 3, 4, 5], pa.int32()),
        pa.array([True, None, False, False, True]),
        pa.array([True, True, False, False, True]),
    ],
)
def test_picked_items_are_those_taken(column: pa.Array) -> None:
    for part in (column, column[1:], column[2:4], pa.concat_arrays([column] * 9)[7:40]):
        for index in ([], [0], [1, 0, 1], list(range(len(part)))):
            at = np.array(index, np.int64)
            assert picked(part, at) == part.take(pa.array(at)).to_pylist()


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()])
def test_numbers_with_0_for_null(kind: pa.DataType) -> None:
    column = array([7, None, -3, None], kind)
    assert numbers(column).tolist() == [7, 0, -3, 0]
    assert numbers(column.slice(1, 2)).tolist() == [0, -3]
    assert numbers(pa.nulls(2, kind)).tolist() == [0, 0]
    assert valid(column.slice(1, 3)).tolist() == [False, True, False]
    assert valid(array([1, 2], kind)).tolist() == [True, True]


def test_dissection_imports_no_pandas() -> None:
    """A process of its own, for tests import it."""
    captures = [
        str(FOLDER / f"{name}.pcap") for name in ("wrong_ports", "zero_window", "stream_chunks", "stream_super")
    ]
    program = f"""
import sys
from amqpscope.dissector.reading import Reading
from amqpscope.dissector.capture.sources import find

for path in {captures}:
    assert sum(batch.num_rows for _, batch in Reading(find([path]), compiled=False))
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
