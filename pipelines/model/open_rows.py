"""A walk whose state is rows that are not final yet: of the open connection, or of a run that goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from amqpscope.pipelines.model.remembered import Remembers
from amqpscope.pipelines.model.walk import Rows


class OpenRows(Remembers):
    """What such walks share (`walk.Walk`)."""

    STATE = ("_open",)

    def forget(self) -> None:
        """See `Remembers`."""
        self._open: pa.Table | None = None

    def declared(self, rows: pa.Table) -> pa.Table:
        """Return rows as the table has them."""
        raise NotImplementedError

    def finish(self) -> Iterator[Rows]:
        """Yield the open rows, and reset the walk."""
        rows = self._open
        self.forget()
        if rows is not None:
            yield self.tables[0], self.declared(rows)
