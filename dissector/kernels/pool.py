"""Pools of matrix rows that kernels take and give back, and that grow when they run out."""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import kernel

APART = 8
"""Items added to the length of long rows. Rows a power of two apart share the same few cache lines, and a kernel that
fills twenty rows side by side would evict what it wrote last."""


@kernel
def take_row(free: Array) -> int:
    """Take a free row. There must be one: `free[0]` counts them."""
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


@kernel
def append_row(rows: Array, row: int, link: int, lists: Array, which: int, first: int, last: int) -> None:
    """Append a row to a linked list.

    Args:
        rows: matrix with the rows of the list.
        row: the row.
        link: column that holds the next row; -1: there is none.
        lists: matrix with the lists.
        which: row of it.
        first: column of it that holds the first row of the list; -1: it is empty.
        last: column of it that holds the last row.
    """
    rows[row, link] = -1
    if lists[which, first] < 0:
        lists[which, first] = row
    else:
        rows[lists[which, last], link] = row
    lists[which, last] = row


def give_rows(free: Ints, rows: Ints) -> None:
    """Give rows back, outside of kernels."""
    count = int(free[0])
    free[1 + count : 1 + count + len(rows)] = rows
    free[0] = count + len(rows)


def free_rows(capacity: int, free: Ints | None = None) -> Ints:
    """Return the free rows of a matrix after it grew to `capacity` rows.

    Args:
        capacity: rows of the matrix.
        free: (1 + rows before,): count of free rows, then these rows; the last is taken first. None: there were none.

    Returns:
        (1 + capacity,): the same for all rows. New rows are taken when no old one is free, in ascending order.
    """
    before = np.zeros(1, np.int64) if free is None else free
    old, left = len(before) - 1, int(before[0])
    more = capacity - old
    made = np.zeros(1 + capacity, np.int64)
    made[0] = more + left
    made[1 : 1 + more] = np.arange(capacity - 1, old - 1, -1)
    made[1 + more : 1 + more + left] = before[1 : 1 + left]
    return made


def chained(matrix: Ints, firsts: Ints, link: int) -> tuple[Ints, Ints]:
    """Return the rows of linked lists, list by list in their order, and the lengths of the lists.

    Args:
        matrix: holds the rows of the lists.
        firsts: (n,): first row of each list; -1: it is empty.
        link: column that holds the next row; -1: there is none.
    """
    rows: list[int] = []
    lengths: list[int] = []
    for first in firsts.tolist():
        row, before = first, len(rows)
        while row >= 0:
            rows.append(row)
            row = int(matrix[row, link])
        lengths.append(len(rows) - before)
    return np.array(rows, np.int64), np.array(lengths, np.int64)


def chain(matrix: Ints, rows: Ints, lengths: Ints, link: int) -> Ints:
    """Link rows, given as `chained` returns them, also at other places. Return the first row of each list."""
    ends = np.cumsum(lengths)
    matrix[rows[:-1], link] = rows[1:]
    matrix[rows[ends[lengths > 0] - 1], link] = -1
    firsts = np.full(len(lengths), -1, np.int64)
    firsts[lengths > 0] = rows[(ends - lengths)[lengths > 0]]
    return firsts


def take_rows(free: Ints, count: int) -> Ints:
    """Take rows, outside of kernels. There must be enough free ones."""
    left = int(free[0])
    free[0] = left - count
    return free[1 + left - count : 1 + left][::-1].copy()


def put_chains(matrix: Ints, free: Ints, rows: Ints, lengths: Ints, link: int) -> tuple[Ints, Ints, Ints]:
    """Copy linked lists, as `chained` returns them, into free rows. There must be enough of these.

    Args:
        matrix: receives the rows of the lists.
        free: its free rows.
        rows: (n, columns): content of the rows, without links.
        lengths: lengths of the lists.
        link: column that holds the next row.

    Returns:
        The new places of the rows, and the first and last row of each list; -1: it is empty.
    """
    places = take_rows(free, len(rows))
    matrix[places] = rows
    firsts = chain(matrix, places, lengths, link)
    lasts = np.full(len(lengths), -1, np.int64)
    lasts[lengths > 0] = places[np.cumsum(lengths)[lengths > 0] - 1]
    return places, firsts, lasts


class Pool:
    """A matrix of int64 whose rows are taken and given back.

    Attributes:
        rows: (capacity, width), zero when they are first taken.
        free: (1 + capacity,): the free rows, as `free_rows` returns them.
    """

    def __init__(self, width: int, capacity: int) -> None:
        self.rows: Ints = np.zeros((0, width), np.int64)
        self.free: Ints = np.zeros(1, np.int64)
        self.grow(capacity)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def left(self) -> int:
        """Number of free rows."""
        return int(self.free[0])

    @property
    def taken(self) -> int:
        """Number of rows in use."""
        return len(self) - self.left

    def reserve(self, count: int, most: int = sys.maxsize) -> None:
        """Make room for this many free rows, up to `most` rows in all."""
        if self.left < count and len(self) < most:
            self.grow(min(max(2 * len(self), self.taken + count), most))

    def grow(self, capacity: int) -> None:
        """Grow to `capacity` rows."""
        self.free = free_rows(capacity, self.free)
        self.rows = grown(self.rows, capacity)


def grown(matrix: NDArray[Any], size: int, fill: int = 0) -> NDArray[Any]:
    """Return an array of length `size`, with the new items or rows set to `fill`."""
    new = np.zeros((size, *matrix.shape[1:]), matrix.dtype)  # whose pages take no memory before they are written
    new[: len(matrix)] = matrix
    if fill:
        new[len(matrix) :] = fill
    return new
