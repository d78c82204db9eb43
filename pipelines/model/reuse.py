"""Rows of a matrix that are taken and given back: a list of free rows through one of its columns."""

from __future__ import annotations

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel

FREE, USED, ASKED_FREE, ASKED_USED = range(4)
"""Places in `counts` where it is that of two matrices, the second one of requests."""


@kernel
def take(rows: Array, following: int, counts: Array, free: int, used: int) -> int:
    """Take a free row, else the next one that was never used; there must be one.

    Args:
        rows: the matrix.
        following: its column with the next free row.
        counts: has the first free row (-1: none) at `free`, and the number of rows ever used at `used`.
        free: where.
        used: where.
    """
    row: int = counts[free]
    if row >= 0:
        counts[free] = rows[row, following]
    else:
        row = counts[used]
        counts[used] = row + 1
    return row


@kernel
def give(rows: Array, following: int, counts: Array, free: int, row: int) -> None:
    """Give a row back."""
    rows[row, following] = counts[free]
    counts[free] = row
