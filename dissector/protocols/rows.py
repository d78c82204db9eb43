"""What protocols yield: rows whose place is known, and columns that are still to be made.

The first rows of each matrix of rows are those of `Place`: so tables put the leading columns before all rows
alike, and know nothing of protocols.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from amqpscope.dissector.fields.decoding import Decoded
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.protocols.state import AnyFrame
from amqpscope.spec.model import Protocol


class Faults(NamedTuple):
    """Some anomalies."""

    rows: Ints
    """(Fault, n)."""
    codes: Sequence[str]
    """What the numbers in `rows[Fault.CODE]` mean."""


class Columns(NamedTuple):
    """What rows have besides the leading columns."""

    columns: dict[str, pa.Array]
    """A row each; columns of the table that are not here are null."""
    decoded: Decoded | None = None
    """Where the fields' problems are, which become anomalies of the rows."""
    faults: Faults | None = None
    """Further anomalies, found as the columns were made."""


def asking(protocol: Protocol, *names: str) -> NDArray[np.bool_]:
    """Return by the index of a method whether it asks for an answer, or has one of these names; none below 0."""
    return np.array([*(bool(each.responses) or each.name in names for each in protocol.methods), False, False])


def ends(frames: Ints, after: Ints, awaited: NDArray[np.bool_]) -> Ints:
    """Return what `Made.ends` says of frames.

    Args:
        frames: (at least AnyFrame, n).
        after: (n,) position after each.
        awaited: (n,) which of them are, or end, what the other side is to answer.
    """
    found: Ints = np.where(awaited & (frames[AnyFrame.HELD] == 0), after, -1)
    return found


class Made(NamedTuple):
    """Some rows of a table, of which the columns are still to be made."""

    table: str
    rows: Ints
    """(at least Place, n)."""
    make: Callable[[], Columns]
    """Makes the columns; it touches no state, so any thread may call it at any time."""
    counts: Ints | None = None
    """(n,) number of rows of the table that each place has; None: one."""
    ends: Ints | None = None
    """Of frames, (n,): the position after the last byte of each in its stream; -1 where nobody waits for it."""
