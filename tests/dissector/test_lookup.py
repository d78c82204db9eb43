"""Rows are found by two columns as in a dictionary, in few steps, whatever came and went before."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amqpscope.dissector.kernels import lookup
from amqpscope.dissector.kernels.kernel import call

ROWS = 64
BY = 1, 2
"""Columns that rows are found by."""
Keys = list[tuple[int, int]]


def follow(keys: Keys, compiled: bool) -> None:
    """Enter the row of each key if it is not there, else take it out; then empty the table, filled by another one."""
    rows, known, free = np.zeros((ROWS, 3), np.int64), dict[tuple[int, int], int](), list(range(ROWS))
    table = lookup.table_of(rows, BY, np.zeros(0, np.int64))
    for key in keys:
        if key in known:
            free.append(row := known.pop(key))
            call(lookup.leave, compiled, table, rows, *BY, row)
        elif free:
            known[key] = row = free.pop()
            rows[row, BY] = key
            call(lookup.enter, compiled, table, rows, *BY, row)
        assert np.count_nonzero(table) == len(known)
        for a, b in {*keys}:
            assert call(lookup.row_of, compiled, table, rows, 1, a, 2, b) == known.get((a, b), -1)
    larger = lookup.table_of(rows, BY, table, 8 * ROWS, compiled)
    assert all(call(lookup.row_of, compiled, larger, rows, 1, *key[:1], 2, key[1]) == row for key, row in known.items())
    call(lookup.empty, compiled, larger, rows, *BY, ROWS)
    assert not larger.any()


@given(
    keys=st.lists(st.tuples(st.integers(-1, 2), st.integers(-9, 1 << 40)) | st.tuples(st.just(0), st.integers(0, 9)))
)
@example(keys=[(0, n) for n in range(ROWS)] * 2)
def test_rows_are_found_as_in_a_dictionary(keys: Keys) -> None:
    follow(keys, compiled=False)


@pytest.mark.compiled
def test_the_same_compiled() -> None:
    numbers = np.random.default_rng(7).integers(0, 12, (400, 2))
    follow([(a, b - 1) for a, b in numbers.tolist()], compiled=True)


@pytest.mark.parametrize(
    "made", [lambda n: (n % 64, n // 64), lambda n: (n, 77), lambda n: (0, n), lambda n: (1 << 40, -n)]
)
def test_rows_are_found_in_few_steps(made) -> None:
    rows = np.array([(0, *made(number)) for number in range(4096)], np.int64)
    table = lookup.table_of(rows, BY, np.arange(len(rows)) + 1)
    places = np.flatnonzero(table)
    homes = [lookup.home(*rows[table[place] - 1, 1:].tolist(), len(table) - 1) for place in places.tolist()]
    steps = (places - homes) % len(table)
    assert len(places) == len(rows)
    assert steps.mean() < 2
    assert steps.max() < 64
