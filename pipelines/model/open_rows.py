"""A walk whose state is rows that are not final yet: of the open connection, or of a run that goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pyarrow as pa

from amqpscope.pipelines.model.store import pack, unpack
from amqpscope.pipelines.model.walk import Rows


class OpenRows:
    """What such walks share (`walk.Walk`).

    Args:
        compiled: whether kernels run compiled.
    """

    tables: ClassVar[tuple[str, ...]]
    VERSION: ClassVar[int]

    def __init__(self, compiled: bool = False) -> None:
        self.compiled = compiled
        self._open: pa.Table | None = None

    def declared(self, rows: pa.Table) -> pa.Table:
        """Return rows as the table has them."""
        raise NotImplementedError

    def finish(self) -> Iterator[Rows]:
        """Yield the open rows, and reset the walk."""
        rows, self._open = self._open, None
        if rows is not None:
            yield self.tables[0], self.declared(rows)

    def take_out(self) -> bytes:
        """See `walk.Walk`."""
        rows, self._open = self._open, None
        return pack(self.tables[0], self.VERSION, {} if rows is None else {"open": rows})

    def put_back(self, state: bytes) -> None:
        """See `walk.Walk`."""
        self._open = unpack(self.tables[0], self.VERSION, state).get("open")
