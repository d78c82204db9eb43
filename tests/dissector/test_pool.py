"""Rows of growing matrices: never held twice, never lost."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from amqpscope.dissector.kernels.pool import Pool, chain, chained, free_rows, give_row, give_rows, take_row


@given(steps=st.lists(st.integers(-1, 30), max_size=200))
def test_a_row_is_held_once(steps: list[int]) -> None:
    """Below zero a row is taken, else one of those held is given back; the pool grows when it must."""
    pool, held = Pool(2, 1), []
    for step in steps:
        if step < 0:
            if not pool.left:
                assert len(held) == len(pool)
                pool.grow(2 * len(pool) + 1)
            row = take_row(pool.free)
            assert row not in held
            assert not pool.rows[row].any()
            held.append(row)
            pool.rows[row] = row
        elif held:
            row = held.pop(step % len(held))
            pool.rows[row] = 0
            give_row(pool.free, row)
        assert pool.left + len(held) == len(pool) == len(pool.free) - 1
        assert all((pool.rows[row] == row).all() for row in held)


@given(capacity=st.integers(1, 9), more=st.integers(0, 9), data=st.data())
def test_rows_are_given_back_outside_of_kernels(capacity: int, more: int, data: st.DataObject) -> None:
    free = free_rows(capacity)
    taken = [take_row(free) for _ in range(data.draw(st.integers(0, capacity)))]
    free = free_rows(capacity + more, free)
    back = data.draw(st.lists(st.sampled_from(taken), unique=True)) if taken else []
    give_rows(free, np.array(back, np.int64))
    assert sorted(free[1 : 1 + free[0]].tolist()) == sorted(set(range(capacity + more)) - set(taken) | set(back))


@given(lengths=st.lists(st.integers(0, 4), max_size=6), data=st.data())
def test_lists_are_the_same_in_other_rows(lengths: list[int], data: st.DataObject) -> None:
    places = st.permutations(range(30))
    one, other = (np.array(data.draw(places)[: sum(lengths)], np.int64) for _ in range(2))
    matrix = np.full((30, 2), -7)
    firsts = chain(matrix, one, np.array(lengths, np.int64), 1)
    rows, found = chained(matrix, firsts, 1)
    assert (rows.tolist(), found.tolist()) == (one.tolist(), lengths)
    copy = np.full((30, 2), -7)
    copy[other] = matrix[rows]
    moved = chained(copy, chain(copy, other, found, 1), 1)
    assert (moved[0].tolist(), moved[1].tolist()) == (other.tolist(), lengths)
