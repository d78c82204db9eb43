"""Dissectors that hand their state on, and rows compared whatever the order between connections."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from amqpscope.dissector.capture.model import PacketBatch
from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.dissector import Dissector, Options
from amqpscope.dissector.kernels.pool import take_rows
from amqpscope.dissector.packets.merging import Decoded
from amqpscope.dissector.reading import Reading
from amqpscope.dissector.tables.rows import Work
from amqpscope.dissector.tcp.state import Facts
from tests.dissector.runs import Row, rows


class Relay(Reading):
    """A pass over captures in which the state moves to another dissector behind each batch.

    Slots are others there. `borders` counts the moves, `largest` is the most bytes that one took.
    """

    borders = largest = 0

    def flush(self) -> Iterator[Work]:
        yield from super().flush()
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


def by_connection(tables: dict[str, pa.Table]) -> dict[str, list[Row]]:
    """The rows of tables, those of a connection in their order."""
    return {name: sorted(rows(table), key=lambda row: row.get("connection_id") or 0) for name, table in tables.items()}


class Parts(Dissector):
    """Dissectors that share the connections of one sequence of captures: each packet goes to that of its endpoints."""

    def __init__(self, options: Options, count: int) -> None:
        super().__init__(options, compiled=True)
        self.parts = [Dissector(options, compiled=True) for _ in range(count)]

    def decode(self, batch: PacketBatch) -> Decoded:
        for part in self.parts:
            part.captures[:] = self.captures
            for secrets in batch.secrets:
                part.tls.add(secrets, batch.capture)
        return super().decode(batch)

    def take(self, decoded: Decoded) -> Iterator[Work]:
        self.end_ns = max(self.end_ns, int(decoded.segments.ts_ns.max(initial=0)))
        segments = decoded.segments
        flow = (segments.src_lo ^ segments.dst_lo) + (segments.sport ^ segments.dport)
        for number, part in enumerate(self.parts):
            part.tcp.place(self.points)
            mine = np.flatnonzero(flow * 0x9E3779B1 // 64 % len(self.parts) == number)
            yield from part.take(Decoded(segments.cut(mine), decoded.data.copy(), decoded.used))

    def last_work(self, end_ns: int | None = None) -> Iterator[Work]:
        for part in self.parts:
            yield from part.last_work(self.end_ns)


class Split(Reading):
    """A pass over captures by several dissectors."""

    def __init__(self, paths: list[str], options: Options, count: int, batch_bytes: int) -> None:
        super().__init__(find(paths), options, compiled=True, batch_bytes=batch_bytes)
        self.dissector = Parts(options, count)
