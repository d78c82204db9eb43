"""Rows found by a digest: a hash table (int64, a power of two, -1 for none) over a column of the rows."""

from __future__ import annotations

import numpy as np

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import called, kernel

WIDER = 4
"""Places of a table for each row, at least."""


def table_of(rows: Ints, column: int, count: int) -> Ints:
    """Return a table that finds the first `count` of these rows, with room for all of them."""
    table = np.full(1 << (WIDER * max(len(rows), 1)).bit_length(), -1, np.int64)
    for row in range(count):
        enter(table, rows, column, row)
    return table


@kernel
def row_of(table: Array, rows: Array, column: int, key: int) -> int:
    """Return the row with this key; -1: there is none."""
    mask = len(table) - 1
    at = (key ^ (key >> 32)) & mask
    while table[at] >= 0 and rows[table[at], column] != key:
        at = (at + 1) & mask
    found: int = table[at]
    return found


@called
def enter(table: Array, rows: Array, column: int, row: int) -> None:
    """Enter a row whose key is new."""
    mask = len(table) - 1
    at = (rows[row, column] ^ (rows[row, column] >> 32)) & mask
    while table[at] >= 0:
        at = (at + 1) & mask
    table[at] = row


@called
def clear(table: Array, rows: Array, column: int, count: int) -> None:
    """Empty a table that has these rows."""
    mask = len(table) - 1
    for row in range(count):
        at = (rows[row, column] ^ (rows[row, column] >> 32)) & mask
        while table[at] >= 0:  # rows lie together from the place of the first on
            table[at] = -1
            at = (at + 1) & mask
