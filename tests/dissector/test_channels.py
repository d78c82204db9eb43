"""Channels are found by connection and number as in a dictionary, whatever came and went before."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amqpscope.dissector.kernels.kernel import call
from amqpscope.dissector.protocols import channels
from amqpscope.dissector.protocols.channels import ChannelPool
from amqpscope.dissector.protocols.state import Channel

SLOTS = 3
STEPS = st.lists(st.tuples(st.sampled_from(["find", "drop", "move"]), st.integers(0, SLOTS - 1), st.integers(0, 40)))


def found(pool: ChannelPool, slot: int, number: int) -> int:
    row: int = call(channels.channel_at, pool.compiled, pool.rows, pool.table, slot, number)
    return row


def matrices(pool: ChannelPool) -> tuple[Any, ...]:
    return pool.rows, pool.free, pool.table, pool.first


def take(pool: ChannelPool, rows: dict[tuple[int, int], int], steps: list[tuple[str, int, int]]) -> None:
    for what, slot, number in steps:
        mine = [key for key in rows if key[0] == slot]
        if what == "find" and (slot, number) not in rows:
            if pool.left == 0:
                pool.grow(2 * len(pool))
            rows[slot, number] = call(channels.add_channel, pool.compiled, *matrices(pool), slot, number)
        elif what == "drop" and mine:  # the one that came last is the first of its connection
            call(channels.drop_channel, pool.compiled, *matrices(pool), rows.pop(mine[-1]))
        elif what == "move":
            _, lengths, taken = pool.take_out(np.array([slot]))
            assert lengths.tolist() == [len(mine)]
            assert all(found(pool, *key) < 0 for key in mine)
            places = pool.put_back(np.array([slot]), lengths, taken)
            rows |= dict(zip(reversed(mine), places.tolist(), strict=True))
        for key in [(s, n) for s in range(SLOTS) for n in range(41)]:
            assert found(pool, *key) == rows.get(key, -1)
        assert pool.taken == len(rows) == np.count_nonzero(pool.table)
        assert all(tuple(pool.rows[row, [Channel.SLOT, Channel.CHANNEL]]) == key for key, row in rows.items())


@given(steps=STEPS)
@example(steps=[("find", 0, n) for n in range(20)] + [("drop", 0, 0)] * 20)
def test_channels_are_found_as_in_a_dictionary(steps: list[tuple[str, int, int]]) -> None:
    pool = ChannelPool(Channel.WIDTH, 4, compiled=False)
    pool.begin(SLOTS)
    take(pool, {}, steps)


@pytest.mark.compiled
def test_the_same_compiled() -> None:
    pool = ChannelPool(Channel.WIDTH, 4, compiled=True)
    pool.begin(SLOTS)
    numbers = np.random.default_rng(1).integers(0, 41, 400).tolist()
    take(pool, {}, [("drop" if n % 3 == 0 else "find", k % SLOTS, n) for k, n in enumerate(numbers)])
