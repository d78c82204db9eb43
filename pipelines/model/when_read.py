"""What statistics have besides where they are read: times as timestamps, and the addresses of their connections.

Both follow from other columns, so files do without them (`spec.model.Table.when_read`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope import spec
from amqpscope.pipelines.model.walk import TYPES
from amqpscope.spec import documents
from amqpscope.spec.data import CONNECTION

LATEST = 1 << 62
"""Times from here on, and up to its negative (ns), are none: they stand for "always", or come from broken clocks."""
ADDRESSES = ("client_ip", "client_port", "server_ip", "server_port")


def added(table: str) -> pa.Schema:
    """Return the columns that a table has besides where it is read; none for tables of `dissect`."""
    return _added(table, documents.generation())


@cache
def _added(table: str, _: object) -> pa.Schema:
    return pa.schema([(column.name, TYPES[column.type]) for column in spec.tables()[table].when_read])


def sources(table: str) -> dict[str, tuple[str, str | None]]:
    """Return what the added columns of a table are made of.

    Returns:
        By name, the column that it follows from; of an address also which of ADDRESSES it is.
    """
    found: dict[str, tuple[str, str | None]] = {}
    for field in added(table):
        address = next((each for each in ADDRESSES if field.name.endswith(each)), None)
        found[field.name] = (
            (f"{field.name}_ns", None) if address is None else (field.name.removesuffix(address) + CONNECTION, address)
        )
    return found


def ends(tables: Iterable[pa.Table]) -> pa.Table | None:
    """Return the addresses of connections (see `completed`) that some tables have; None where none has."""
    names = [CONNECTION, *ADDRESSES]
    found = [each.select(names) for each in tables if {*names} <= {*each.column_names}]
    return pa.concat_tables(each.filter(pc.is_valid(each["client_ip"])) for each in found) if found else None


def completed(table: str, rows: pa.Table, connections: pa.Table | None = None) -> pa.Table:
    """Return rows of a table with the columns that it has where it is read.

    Args:
        table: its name.
        rows: in its declared columns.
        connections: `connection_id` and ADDRESSES, such as `endpoints` or `connections`; without it addresses are null.
    """
    kinds, places = added(table), {}
    for name, (column, address) in sources(table).items():
        if address is None:
            rows = rows.append_column(kinds.field(name), _times(rows[column]))
            continue
        if connections is None:
            rows = rows.append_column(kinds.field(name), pa.nulls(len(rows), kinds.field(name).type))
            continue
        if column not in places:
            known = connections[CONNECTION].combine_chunks()
            places[column] = pc.index_in(rows[column], value_set=known, skip_nulls=True)
        rows = rows.append_column(kinds.field(name), connections[address].take(places[column]))
    return rows


def _times(ns: pa.ChunkedArray) -> pa.Array:
    whole = ns.combine_chunks()
    values = whole.fill_null(LATEST).to_numpy()
    none = (values >= LATEST) | (values <= -LATEST)
    return pa.array(np.where(none, 0, values // 1000), pa.int64(), mask=none).cast(TYPES["timestamp"])
