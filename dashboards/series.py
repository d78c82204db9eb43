"""Points of a lane: all of them where there are few; else the least and the greatest of each column of pixels.

A lone spike never disappears: the greatest of each column is kept with its packets, whatever lies around it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from amqpscope.dashboards.chart import Scale

EXACT = 4_000
"""Points of a series that are kept one by one."""
COLUMNS = 8_192
"""Columns of pixels of which the extremes are kept where there are more: four times what a wide screen has."""
Ints = NDArray[np.int64]
PACKETS = ("begin_packet", "end_packet", "begin_capture")


@dataclass
class Points:
    """A series of points: times (ns since the begin of the lanes) and values, with the packets at both ends.

    Attributes:
        scale: of time; columns of pixels are equal shares of it.
        count: points that were added.
        is_exact: whether all of them are kept.
    """

    scale: Scale
    count: int = 0
    is_exact: bool = True
    _parts: list[pa.Table] = field(default_factory=list)
    _low: Ints = field(default_factory=lambda: np.full(COLUMNS, np.iinfo(np.int64).max))

    def add(self, rows: pa.Table) -> None:
        """Add points.

        Args:
            rows: columns `at` (int64, ns since the begin), `value` (int64), and PACKETS.
        """
        self.count += len(rows)
        self._parts.append(rows)
        if not self.is_exact or self.count > EXACT:
            self.is_exact = False
            self._fold()

    def _fold(self) -> None:
        rows = pa.concat_tables(self._parts)
        at, value = rows["at"].to_numpy(), rows["value"].to_numpy()
        column = np.minimum((self.scale.at(at) * COLUMNS).astype(np.int64), COLUMNS - 1)
        np.minimum.at(self._low, column, value)
        order = np.lexsort((-at, value, column))
        last = np.flatnonzero(np.diff(column[order], append=COLUMNS) > 0)
        self._parts = [rows.take(pa.array(np.sort(order[last])))]

    def rows(self) -> pa.Table:
        """Return the points that are kept, in the order of time: of each column of pixels the greatest."""
        rows = pa.concat_tables(self._parts) if self._parts else None
        return rows.sort_by([("at", "ascending")]) if rows is not None else EMPTY

    def least(self) -> tuple[Ints, Ints]:
        """Return the columns of pixels in which several points lie, and the least value of each; none where exact."""
        if self.is_exact:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        there = np.flatnonzero(self._low != np.iinfo(np.int64).max)
        return there, self._low[there]


EMPTY = pa.Table.from_batches(  # to make an array, pyarrow would import pandas
    [],
    pa.schema(
        [("at", pa.int64()), ("value", pa.int64())]
        + [(name, pa.string() if name.endswith("capture") else pa.int64()) for name in PACKETS]
    ),
)
