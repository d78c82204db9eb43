"""Rows of a matrix that are found by two of their columns: a hash table with open addressing and linear probing.

A table (int64, a power of two of places, at least twice as many as rows) has row + 1, or 0 where a place is free.
Removing a row moves those after it back, so that a table has no other free places than those. Numbers that follow each
other do not lie together: runs that meet take many steps. A key of one column is found by that one twice.
"""

import numpy as np

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import call, kernel


def table_of(
    rows: Ints, columns: tuple[int, int], entered: Ints, places: int | None = None, compiled: bool = False
) -> Ints:
    """Return a table that finds some rows, whose values in two columns are unique.

    Args:
        rows: the matrix.
        columns: those that they are found by.
        entered: row + 1 of each, and zeros: such as another table.
        places: of the table; None: twice as many as there is room for rows.
        compiled: whether kernels run compiled.
    """
    table = np.zeros(places or 1 << (2 * max(len(rows), 1) - 1).bit_length(), np.int64)
    call(enter_all, compiled, table, rows, *columns, entered)
    return table


@kernel
def home(a: int, b: int, mask: int) -> int:
    """Return the place where the search for two values begins."""
    return mix(mix(7, a), b) & mask


@kernel
def place_of(table: Array, rows: Array, first: int, a: int, second: int, b: int) -> int:
    """Return the place of the row with these values in its columns `first` and `second`, or the free one for it."""
    mask = len(table) - 1
    place = home(a, b, mask)
    while table[place] != 0 and (rows[table[place] - 1, second] != b or rows[table[place] - 1, first] != a):
        place = (place + 1) & mask
    return place


@kernel
def row_of(table: Array, rows: Array, first: int, a: int, second: int, b: int) -> int:
    """Return the row with these values in its columns `first` and `second`; -1: there is none."""
    row: int = table[place_of(table, rows, first, a, second, b)] - 1
    return row


@kernel
def enter(table: Array, rows: Array, first: int, second: int, row: int) -> None:
    """Enter a row whose values are new."""
    table[place_of(table, rows, first, rows[row, first], second, rows[row, second])] = row + 1


@kernel
def enter_all(table: Array, rows: Array, first: int, second: int, entered: Array) -> None:
    """Enter rows whose values are new: row + 1 of each, and zeros, such as another table has."""
    for i in range(len(entered)):
        if entered[i] > 0:
            enter(table, rows, first, second, entered[i] - 1)


@kernel
def leave(table: Array, rows: Array, first: int, second: int, row: int) -> None:
    """Take a row out, and move those after it back whose search passes the place that becomes free."""
    mask = len(table) - 1
    place = place_of(table, rows, first, rows[row, first], second, rows[row, second])
    later = (place + 1) & mask
    while table[later] != 0:
        other = table[later] - 1
        if (later - home(rows[other, first], rows[other, second], mask)) & mask >= (later - place) & mask:
            table[place] = other + 1
            place = later
        later = (later + 1) & mask
    table[place] = 0


@kernel
def empty(table: Array, rows: Array, first: int, second: int, count: int) -> None:
    """Empty a table that has some of the first `count` rows: of each, from where its search begins to a free place."""
    mask = len(table) - 1
    for row in range(count):
        place = home(rows[row, first], rows[row, second], mask)
        while table[place] != 0:
            table[place] = 0
            place = (place + 1) & mask
