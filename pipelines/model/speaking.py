"""What walks over one protocol share: which events are theirs, and differences of times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.pipelines.model.connection import CONN
from amqpscope.pipelines.model.events import ANOMALIES, CONNECTIONS, SPOKEN, Events


def events_of(events: Events, conn: Ints, source: int, messages: Any = None) -> Ints:
    """Return the positions of the events of a protocol; a batch without any costs almost nothing.

    Args:
        events: the batch.
        conn: the connection that the walk has open (`connection.CONN`).
        source: the table of the protocol's frames.
        messages: which events (bool) are messages that are wanted besides; None for none.
    """
    wanted = np.zeros(len(events), np.bool_) if messages is None else messages.copy()
    if len(events.tables.get(source, ())):
        wanted |= events.source == source
    at = np.flatnonzero(events.source == CONNECTIONS)
    if len(at):
        wanted[at] = speaks(events, at, source)
    if conn[CONN.ID] >= 0 or wanted.any():
        wanted |= events.source == ANOMALIES
    return np.flatnonzero(wanted)


def concerns(events: Events, conn: Ints, source: int) -> bool:
    """Return whether a batch may concern a walk over one protocol; arguments as in `events_of`."""
    if conn[CONN.ID] >= 0 or len(events.tables.get(source, ())):
        return True
    at = np.flatnonzero(events.source == CONNECTIONS)
    return len(at) > 0 and bool(speaks(events, at, source).any())


def speaks(events: Events, at: Ints, source: int) -> Any:
    """Return which rows of connections (at these positions) speak the protocol of a table of frames (bool)."""
    protocol = events.take(CONNECTIONS, at, ["protocol"])["protocol"]
    return pc.equal(protocol, SPOKEN[source]).fill_null(False).to_numpy()


def matrix_of(events: Events, at: Ints) -> Ints:
    """Return the rows of `events.matrix` at these positions."""
    matrix: Ints = events.matrix
    return matrix if len(at) == len(events) else matrix[at]


def difference(minuend: Any, subtrahend: Any) -> pa.Array:
    """Subtract int64 columns (Arrow); null where one is null, or the result does not fit."""
    a, b = (
        column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in (minuend, subtrahend)
    )
    valid = pc.and_(a.is_valid(), b.is_valid()).to_numpy(zero_copy_only=False)
    x, y = (column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) for column in (a, b))
    with np.errstate(over="ignore"):
        found = x - y
    wraps = ((x ^ y) & (x ^ found)) < 0
    return pa.array(found, mask=~valid | wraps)
