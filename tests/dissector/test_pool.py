"""Rows of growing matrices: never held twice, never lost."""

from hypothesis import given
from hypothesis import strategies as st

from amqpscope.dissector.kernels.pool import Pool, give_row, take_row


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
