"""Rows of all tables as one DataFrame in the order of events, and tables again where tasks walk over them.

Tables share the columns of the union by type alone: the cost of shuffling, sorting and passing rows to Python grows
with the number of columns, empty ones included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial, reduce

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr
from pyspark.sql.pandas.types import from_arrow_type

from amqpscope.pipelines.model import events as ev
from amqpscope.pipelines.model.event_rows import ACKED
from amqpscope.pipelines.model.listed import LISTED
from amqpscope.pipelines.model.walk import schema
from amqpscope.pipelines.run.acknowledged import LONGEST, PATIENCE_NS
from amqpscope.pipelines.run.event_store import Layout
from amqpscope.pipelines.run.preparing import with_tcp

ORDER = ("connection_id", "order", "source", "position")
"""Rows are sorted by these: the frame at which they stand, the rank of their table, their position in it."""
_POSITION = "__position"
"""Column of rows before they are joined with others: where they were."""
_EMPTY = {name: schema(name).empty_table() for name in LISTED.values()}
TYPES = {column: with_tcp(schema("connections").empty_table(), _EMPTY).field(column).type for column in LISTED}
"""Types of the lists of rows about TCP."""


def ordered(tables: Mapping[int, DataFrame], kept: Mapping[int, Layout]) -> DataFrame:
    """Return rows grouped by connection, and sorted.

    Args:
        tables: by `events.SOURCES`; columns that they lack are null.
        kept: what is stored of each.
    """
    acks = tables.get(ev.ACKS)
    parts = [_part(source, rows, kept[source], acks) for source, rows in tables.items() if source != ev.ACKS]
    union = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts)
    return union.repartition("connection_id").sortWithinPartitions(*ORDER)


def rows_of(batch: pa.RecordBatch, source: int, layout: Layout) -> pa.Table:
    """Return the rows of a table in a batch of `ordered`, in order, with the columns that are stored of it."""
    slots = _slots(source, layout)
    mine = batch.select(list(slots.values())).take(pa.array(np.flatnonzero(batch["source"].to_numpy() == source)))
    rows = pa.table({name: mine[slot].cast(_type(source, name)) for name, slot in slots.items()})
    if source == ev.CONNECTIONS:
        at = rows.column_names.index("is_partial")
        rows = rows.set_column(at, "is_partial", rows["is_partial"].fill_null(False))
    return rows


def _part(source: int, rows: DataFrame, layout: Layout, acks: DataFrame | None) -> DataFrame:
    """Return rows of a table, their columns named after slots. In SQL: each `Column` costs a call to the JVM."""
    position = "monotonically_increasing_id()"
    if acks is not None and _is_acked(layout):
        rows, position = _with_acked(source, rows.selectExpr("*", f"{position} as {_POSITION}"), acks), _POSITION
    order, there = _ORDER.get(source, "frame_no"), set(rows.columns)
    columns = [
        f"cast({f'`{name}`' if name in there else 'null'} as {_sql(_type(source, name))}) as `{slot}`"
        for name, slot in _slots(source, layout).items()
    ]
    return rows.where(f"connection_id is not null and {order} is not null").selectExpr(
        f"{order} as order", f"{source}Y as source", f"{position} as position", *columns
    )


def _is_acked(layout: Layout) -> bool:
    return ACKED in (*layout.leading, *layout.further)


def _with_acked(source: int, rows: DataFrame, acks: DataFrame) -> DataFrame:
    """Return rows with the column ACKED, as `acknowledged.join` makes it."""
    of = acks.selectExpr(
        "connection_id as of_connection", "not from_client as of_client",
        "explode(sequence(first_frame_no, last_frame_no)) as of_frame", "ts_ns as of_ts_ns",
    )  # fmt: skip
    same = "connection_id = of_connection and from_client = of_client and frame_no = of_frame"
    known = f"of_ts_ns - ts_ns <= {PATIENCE_NS}"
    if source == ev.MESSAGES:
        known += f" and frame_no - {_ORDER[source]} <= {LONGEST}"
    joined = rows.join(of, expr(same), "left")
    return joined.selectExpr(*(f"`{name}`" for name in rows.columns), f"if({known}, of_ts_ns, null) as {ACKED}")


_ORDER = {
    ev.CONNECTIONS: "-1L",
    ev.MESSAGES: "if(kind in ('deliver', 'get'), coalesce(first_frame_no, frame_no), frame_no)",
}
"""The frame at which rows stand, where it is not `frame_no`."""


def _slots(source: int, layout: Layout) -> dict[str, str]:
    """Return the stored columns of a table, each with its column of the union: the first free one of its type."""
    names = dict.fromkeys((*layout.base, *(("is_partial", *LISTED) if source == ev.CONNECTIONS else ())))
    names |= {ACKED: None} if _is_acked(layout) else {}
    taken: Counter[str] = Counter()
    found = {}
    for name in names:
        kind = _sql(_type(source, name))
        found[name] = "connection_id" if name == "connection_id" else f"{kind} {taken[kind]}"
        taken[kind] += name != "connection_id"
    return found


def _sql(kind: pa.DataType) -> str:
    return str(from_arrow_type(kind).simpleString())


def _type(source: int, column: str) -> pa.DataType:
    if column == ACKED:
        return pa.int64()
    if source == ev.CONNECTIONS and column == "is_partial":
        return pa.bool_()
    if source == ev.CONNECTIONS and column in LISTED:
        return TYPES[column]
    return schema(ev.SOURCES[source]).field(column).type
