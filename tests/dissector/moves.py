"""Dissectors that hand their state on, and rows compared whatever the order between connections."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from amqpscope.dissector.dissector import Dissector
from amqpscope.dissector.kernels.pool import take_rows
from amqpscope.dissector.reading import Reading
from amqpscope.dissector.tables.rows import Work
from amqpscope.dissector.tcp.state import Facts
from tests.dissector.runs import Row


class Relay(Reading):
    """A pass over captures in which the state moves to another dissector behind each batch.

    Slots are others there. `borders` counts the moves, `largest` is the most bytes that one took.
    """

    borders = largest = 0

    def _pending(self) -> Iterator[Work]:
        yield from super()._pending()
        if not self.dissector.over:
            self.move()

    def move(self) -> None:
        """Go on with another dissector."""
        before = self.dissector
        state = before.take_out()
        assert not before.tcp.flows.facts[:, Facts.USED].any()
        self.dissector = Dissector(self.options, self.compiled)
        take_rows(self.dissector.tcp.flows.free, self.borders % 5)
        self.dissector.put_back(state)
        self.dissector.points = before.points  # which is the merging's own
        self.dissector.reports = before.reports
        self.borders += 1
        self.largest = max(self.largest, len(state))


def by_connection(tables: dict[str, pa.Table], *left_out: str) -> dict[str, list[Row]]:
    """The rows of tables, those of a connection in their order."""
    found = {}
    for name, table in tables.items():
        rows: list[dict[str, Any]] = table.drop_columns([c for c in left_out if c in table.schema.names]).to_pylist()
        found[name] = sorted(rows, key=lambda row: row.get("connection_id") or 0)
    return found
