"""Declarations of state: what kernels make of them, and what is done with matrices."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from amqpscope.dissector.kernels import kernel as kernels
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.dissector.kernels.state import Matrix, Records, StateError, column


class Lane(Matrix):
    """Lanes."""

    CARS = column("cars on it")
    FIRST = column("the car in front; -1: none", empty=-1)


class Fast(Lane, version=2):
    """Lanes with a limit."""

    LIMIT = column("speed at most", empty=130)


class Road(NamedTuple):
    """A road."""

    lanes: Array
    marks: Array


class Street(NamedTuple):
    """A road with its fields in another order."""

    marks: Array
    lanes: Array


@kernel
def first(road: Road, lane: int) -> int:
    """Of both arrays of a group, by the names of columns."""
    return road.lanes[lane, Fast.FIRST] + 1000 * road.lanes[lane, Fast.LIMIT] + road.marks[lane]


ROAD = Road(Fast.make(3), np.arange(3))


def test_columns_are_numbers_in_order() -> None:
    assert (Lane.CARS, Lane.FIRST, Lane.WIDTH) == (0, 1, 2)
    assert (Fast.CARS, Fast.FIRST, Fast.LIMIT, Fast.WIDTH) == (0, 1, 2, 3)
    assert Fast.columns["LIMIT"].meaning == "speed at most"


def test_new_rows_and_emptied_ones_are_empty() -> None:
    matrix = Fast.make(2)
    matrix[:] = 7
    matrix = Fast.grown(matrix, 4)
    assert matrix.tolist() == [[7, 7, 7], [7, 7, 7], [0, -1, 130], [0, -1, 130]]
    Fast.clear(matrix, np.array([1, 3]))
    assert matrix.tolist() == [[7, 7, 7], [0, -1, 130], [0, -1, 130], [0, -1, 130]]
    assert type("Car", (Records,), {"DOORS": column("")}).room(5).shape == (1, 5)


def test_rows_become_bytes_and_rows_again() -> None:
    matrix = np.array([[1, -(1 << 63), (1 << 63) - 1], [0, -1, 2]])
    for rows in (matrix, matrix[:0], matrix[::2], np.asfortranarray(matrix)):
        read = Fast.read(Fast.written(rows))
        assert (read == rows).all()
        assert read.shape == rows.shape
        assert read.flags.writeable


def declared(names: str, version: int = 1) -> type[Matrix]:
    return type("Lane", (Matrix,), {name: column("") for name in names.split()}, version=version)


@pytest.mark.parametrize(
    "other", [declared("FIRST CARS"), declared("CARS FIRST MORE"), declared("CARS FIRST", 2), Fast]
)
def test_rows_of_another_declaration_are_refused(other: type[Matrix]) -> None:
    data = declared("CARS FIRST").written(np.zeros((6, 2), np.int64))
    with pytest.raises(StateError):
        other.read(data)


@pytest.mark.parametrize("data", [b"", b"abc", Lane.written(Lane.make(1))[:-1]])
def test_broken_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(StateError):
        Lane.read(data)


def reading(declaration: type[Matrix], name: str) -> Callable[..., Any]:
    """A kernel that reads a column of a declaration."""
    scope: dict[str, Any] = {"Lane": declaration}
    exec(f"def pick(lanes, i):\n    return lanes[i, Lane.{name}]", scope)
    return kernel(scope["pick"])


def test_code_of_other_columns_is_not_taken_from_the_cache() -> None:
    digest = kernels._digest(reading(declared("CARS FIRST"), "FIRST"))
    assert digest == kernels._digest(reading(declared("CARS FIRST"), "FIRST"))
    others = [
        reading(declared("FIRST CARS"), "FIRST"), reading(declared("CARS FIRST MORE"), "FIRST"),
        reading(declared("CARS FIRST", 2), "FIRST"), reading(declared("CARS FIRST"), "CARS"),
    ]  # fmt: skip
    assert digest not in map(kernels._digest, others)


def test_groups_of_other_fields_have_code_of_their_own() -> None:
    assert kernels._kind(Road(ROAD.marks, ROAD.marks)) != kernels._kind(Street(ROAD.marks, ROAD.marks))


PROGRAM = """
import json, sys
from amqpscope.dissector.kernels.kernel import call
from tests.dissector.test_state import ROAD, first

print(json.dumps([call(first, True, ROAD, 2), "numba" in sys.modules]))
"""


@pytest.mark.compiled
def test_groups_and_columns_run_compiled_and_from_files(tmp_path: Path) -> None:
    assert call(first, False, ROAD, 2) == call(first, True, ROAD, 2) == 130_001
    found = []
    for _ in range(2):
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, capture_output=True)
        found.append(json.loads(done.stdout))
    assert found == [[130_001, True], [130_001, False]]
