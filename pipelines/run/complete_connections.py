"""Waves: connections are walked over as soon as all of their rows are read, so that few rows are in memory at a time.

Where a connection's rows end is known from a first look at the column `connection_id` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from amqpscope.pipelines.folder import Read


class Chunk(NamedTuple):
    """Rows to read.

    Attributes:
        table: name of their table.
        read: reads them.
    """

    table: str
    read: Read


def interleaved(tables: Sequence[Sequence[Chunk]]) -> list[Chunk]:
    """Return the chunks of several tables in one order, in which all tables are at the same share of their chunks.

    Rows of all tables are roughly in the order of time, so rows of a connection are then close to each other.
    """
    shares = [((at + 0.5) / len(chunks), chunk) for chunks in tables for at, chunk in enumerate(chunks)]
    return [chunk for _, chunk in sorted(shares, key=lambda each: each[0])]


class Waves:
    """Tells which connections are complete.

    Args:
        chunks: returns the column `connection_id` of all that will be read, in this order; asked when a wave comes.
        pool: threads that read.
    """

    def __init__(self, chunks: Callable[[], Sequence[Chunk]], pool: Executor) -> None:
        self._chunks, self._pool = chunks, pool
        self._given = -1

    @cached_property
    def _ends(self) -> tuple[pa.Array, NDArray[np.int64]]:
        """The connections, and the last chunk of each."""
        found = list(self._pool.map(lambda chunk: chunk.read()["connection_id"].unique(), self._chunks()))
        each = pa.chunked_array(found, pa.int64()).dictionary_encode().combine_chunks()
        last = np.zeros(len(each.dictionary), np.int64)
        at = np.repeat(np.arange(len(found)), [len(some) for some in found])
        there = each.is_valid().to_numpy(zero_copy_only=False)
        np.maximum.at(last, each.indices.filter(each.is_valid()).to_numpy(), at[there])
        return each.dictionary, last

    def complete(self, read: int) -> pa.Array:
        """Return the connections that became complete since the last call, when this many chunks are read."""
        identities, last = self._ends
        some = (last > self._given) & (last < read)
        self._given = read - 1
        return identities.filter(pa.array(some))
