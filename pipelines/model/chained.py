"""Rows found by a key: chains of those whose keys share a bucket, the oldest first.

The first columns of such rows are those of `Link`. `buckets` (int64, a power of two) has the first and the last row of
each chain, -1 for none: that of a key at `key & (len(buckets) - 1)`. Several rows may have one key.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import call, called
from amqpscope.pipelines.model.store import declare


class Link(NamedTuple):
    """The first columns of a row."""

    KEY: int
    PREVIOUS: int  # the row before it in its chain; -1: none
    NEXT: int  # the row after it; of free rows the next free one


LINK = declare(Link)


def fresh(size: int = 32) -> Ints:
    """Return buckets without rows."""
    return np.full((size, 2), -1, np.int64)


def roomy(rows: Array, buckets: Ints, compiled: bool) -> Ints:
    """Return the buckets, as many as rows at least."""
    if len(buckets) >= len(rows):
        return buckets
    made = fresh(1 << (2 * len(rows) - 1).bit_length())
    call(_move, compiled, rows, buckets, made)
    return made


@called
def _move(rows: Array, old: Array, buckets: Array) -> None:
    for bucket in range(len(old)):
        row = old[bucket, 0]
        while row >= 0:
            following = rows[row, LINK.NEXT]
            enter(rows, buckets, row)
            row = following


@called
def enter(rows: Array, buckets: Array, row: int) -> None:
    """Enter a row, which has its key."""
    bucket = rows[row, LINK.KEY] & (len(buckets) - 1)
    last = buckets[bucket, 1]
    rows[row, LINK.PREVIOUS] = last
    rows[row, LINK.NEXT] = -1
    if last >= 0:
        rows[last, LINK.NEXT] = row
    else:
        buckets[bucket, 0] = row
    buckets[bucket, 1] = row


@called
def leave(rows: Array, buckets: Array, row: int) -> None:
    """Take a row out."""
    bucket = rows[row, LINK.KEY] & (len(buckets) - 1)
    before = rows[row, LINK.PREVIOUS]
    after = rows[row, LINK.NEXT]
    if before >= 0:
        rows[before, LINK.NEXT] = after
    else:
        buckets[bucket, 0] = after
    if after >= 0:
        rows[after, LINK.PREVIOUS] = before
    else:
        buckets[bucket, 1] = before


@called
def empty(buckets: Array, key: int) -> None:
    """Empty the chain in which rows of a key are."""
    bucket = key & (len(buckets) - 1)
    buckets[bucket, 0] = -1
    buckets[bucket, 1] = -1
