"""What protocols yield: rows whose place is known, and columns that are still to be made.

The first rows of each matrix of rows are those of `Place`: so tables put the leading columns before all rows
alike, and know nothing of protocols.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa

from amqpscope.dissector.fields.decoding import Decoded
from amqpscope.dissector.kernels.arrays import Ints


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


class Made(NamedTuple):
    """Some rows of a table, of which the columns are still to be made."""

    table: str
    rows: Ints
    """(at least Place, n)."""
    make: Callable[[], Columns]
    """Makes the columns; it touches no state, so any thread may call it at any time."""
    counts: Ints | None = None
    """(n,) number of rows of the table that each place has; None: one."""
