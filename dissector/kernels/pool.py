"""Rows of matrices that kernels take and give back, and more of them when they run out."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import kernel

APART = 8
"""Items that a long row has more than a power of two. Rows a power of two apart fall on the same few lines of every
cache, and a kernel that fills the columns of twenty rows side by side would drive out what it wrote last."""


@kernel
def take_row(free: Array) -> int:
    """A free row. There must be one: `free[0]` counts them."""
    count = free[0]
    free[0] = count - 1
    row: int = free[count]
    return row


@kernel
def give_row(free: Array, row: int) -> None:
    """Give a row back; it is the next to be taken."""
    count = free[0] + 1
    free[0] = count
    free[count] = row


class Pool:
    """A matrix of int64 whose rows are taken and given back.

    Attributes:
        rows: (capacity, width), zero when they are first taken.
        free: (1 + capacity,): how many rows are free, then which, the next to be taken last.
    """

    def __init__(self, width: int, capacity: int) -> None:
        self.rows: Ints = np.zeros((0, width), np.int64)
        self.free: Ints = np.zeros(1, np.int64)
        self.grow(capacity)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def left(self) -> int:
        """How many rows are free."""
        return int(self.free[0])

    @property
    def taken(self) -> int:
        """How many rows are not free."""
        return len(self) - self.left

    def grow(self, capacity: int) -> None:
        """Have so many rows; new ones are taken when no old one is free, in ascending order."""
        old, left = len(self), self.left
        new = np.arange(old, capacity, dtype=np.int64)[::-1]
        count = np.array([len(new) + left], np.int64)
        self.free = np.concatenate([count, new, self.free[1 : 1 + left], np.zeros(old - left, np.int64)])
        self.rows = grown(self.rows, capacity)


def grown(matrix: NDArray[Any], size: int, fill: int = 0) -> NDArray[Any]:
    """An array as long as `size`, the new items or rows filled."""
    more = np.full((size - len(matrix), *matrix.shape[1:]), fill, matrix.dtype)
    return np.concatenate([matrix, more])
