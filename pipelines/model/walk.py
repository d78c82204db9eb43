"""What a walk is: events in, rows of its tables out, state as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import pyarrow as pa

from amqpscope import spec
from amqpscope.pipelines.model.events import Events
from amqpscope.spec import documents

Rows = tuple[str, pa.Table]
"""Rows of a table of statistics, in its declared columns."""

TYPES = {
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "double": pa.float64(),
}
"""Types of columns, by their names in declarations."""


@dataclass(frozen=True)
class Needs:
    """What a walk needs of a table besides the leading columns (`event_rows.LEADING`), which all events have.

    Attributes:
        columns: further ones.
        names: the methods, commands, kinds or codes that it wants; None for all. Of others it learns at least when
            which side was heard (`merging`).
        last: those of `names` of which it wants only the last on a channel before a close.
        asks: those of `names` that ask for an answer: rows have the time when TCP acknowledged them
            (`event_rows.ACKED`).
    """

    columns: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None
    last: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()


class Walk(Protocol):
    """A pass over the events of one connection after the other.

    Events come in their order (`events`), in batches of any size; a connection may go on in the next batch, and is over
    when another begins or `finish` is called.
    """

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables that it writes."""

    @property
    def needs(self) -> Mapping[int, Needs]:
        """What it needs, by source (`events.SOURCES`)."""

    def feed(self, events: Events) -> Iterator[Rows]:
        """Walk over a batch; yield rows that are final. Exhaust it before the next call."""
        ...

    def finish(self) -> Iterator[Rows]:
        """End the last connection: yield the rows of everything outstanding, and reset the walk."""
        ...

    def take_out(self) -> bytes:
        """Return the state of the open connection as versioned bytes, and reset the walk."""
        ...

    def put_back(self, state: bytes) -> None:
        """Restore the state that `take_out` returned.

        Raises:
            ValueError: the bytes are the state of something else.
        """
        ...


def schema(table: str) -> pa.Schema:
    """Return the declared columns of a table.

    Raises:
        KeyError: no table has that name.
    """
    return _schema(table, documents.generation())


@cache
def _schema(table: str, _: object) -> pa.Schema:
    found = spec.tables()[table]
    declared = found.with_methods(spec.load(found.methods_of)) if found.methods_of else found
    return pa.schema([(column.name, TYPES[column.type]) for column in declared.columns])


def conform(table: str, columns: Mapping[str, Any], count: int) -> pa.Table:
    """Return columns as rows of a declared table: in order, cast, null where none is given.

    Args:
        table: its name.
        columns: arrays of `count` values (numpy, Arrow), or single values for all rows.
        count: number of rows.

    Raises:
        ValueError: a column is not declared.
    """
    kinds = _kinds(table)
    unknown = columns.keys() - kinds.keys()
    if unknown:
        raise ValueError(f"{table} has no column {', '.join(sorted(unknown))}")
    made = []
    for name, kind in kinds.items():
        value = columns.get(name)
        if value is None:
            value = pa.nulls(count, kind)
        elif isinstance(value, str | int | bool):
            value = pa.repeat(pa.scalar(value, kind), count)
        elif not isinstance(value, pa.Array | pa.ChunkedArray):
            value = pa.array(value)
        made.append(value if value.type == kind else value.cast(kind))
    return pa.table(made, schema=schema(table))


def facts(declared: pa.Schema, connections: Any, **columns: Any) -> pa.Table:
    """Return rows of partial results that say one thing of connections: those columns, the others null.

    Args:
        declared: the columns; the first is `connection_id`.
        connections: it (int64).
        columns: of the same length, by name.
    """
    others = (columns.get(each.name, pa.nulls(len(connections), each.type)) for each in list(declared)[1:])
    return pa.table([connections, *others], schema=declared)


@cache
def _kinds(table: str) -> dict[str, pa.DataType]:
    """Return the types of the declared columns of a table, by name."""
    declared = schema(table)
    return dict(zip(declared.names, declared.types, strict=True))


def known(values: Any, missing: int = -1) -> pa.Array:
    """Return int64 values as Arrow, null where they are `missing`."""
    return pa.array(values, pa.int64(), mask=values == missing)


@dataclass
class Collected:
    """Rows by table, as they come."""

    parts: dict[str, list[pa.Table]] = field(default_factory=dict)

    def add(self, rows: Iterable[Rows]) -> None:
        """Add rows."""
        for table, part in rows:
            self.parts.setdefault(table, []).append(part)

    def table(self, name: str) -> pa.Table:
        """Return all rows of a table."""
        return pa.concat_tables([schema(name).empty_table(), *self.parts.get(name, ())])
