"""Rows of all tables as one DataFrame in the order of events, and tables again where tasks walk over them.

Tables share the columns of the union, by their types alone: what Spark shuffles, sorts and hands to Python costs by the
column, whether there is anything in it or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial, reduce

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_type

from amqpscope.pipelines.preparing import with_windows
from amqpscope.pipelines.sorting import Layout
from amqpscope.pipelines.walks import events as ev
from amqpscope.pipelines.walks.walk import schema

ORDER = ("connection_id", "order", "source", "position")
"""By what rows are sorted: the frame at which they stand, the rank of their table, their place in it."""
WINDOWS = with_windows(*(schema(name).empty_table() for name in ("connections", "tcp_windows"))).field("windows").type
"""Type of the rows of `tcp_windows` as a list."""


def ordered(tables: Mapping[int, DataFrame], kept: Mapping[int, Layout], partitions: int = 0) -> DataFrame:
    """Return rows brought together by connection, and sorted there.

    Args:
        tables: by `events.SOURCES`; columns that they lack are null.
        kept: what is kept of each.
        partitions: how many; 0 leaves it to Spark.
    """
    parts = [_part(source, rows, kept[source]) for source, rows in tables.items()]
    union = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts)
    by = (partitions, "connection_id") if partitions else ("connection_id",)
    return union.repartition(*by).sortWithinPartitions(*ORDER)


def rows_of(batch: pa.RecordBatch, source: int, layout: Layout) -> pa.Table:
    """Return the rows of a table in a batch of `ordered`, in their order, with the columns that are kept of it."""
    slots = _slots(source, layout)
    mine = batch.select(list(slots.values())).take(pa.array(np.flatnonzero(batch["source"].to_numpy() == source)))
    rows = pa.table({name: mine[slot].cast(_type(source, name)) for name, slot in slots.items()})
    if source == ev.CONNECTIONS:
        at = rows.column_names.index("is_partial")
        rows = rows.set_column(at, "is_partial", rows["is_partial"].fill_null(False))
    return rows


def _part(source: int, rows: DataFrame, layout: Layout) -> DataFrame:
    """Rows of a table, their columns under the names of slots."""
    order = _order(source)
    columns = [
        (sf.col(name) if name in rows.columns else sf.lit(None)).cast(from_arrow_type(_type(source, name))).alias(slot)
        for name, slot in _slots(source, layout).items()
    ]
    return rows.where(sf.col("connection_id").isNotNull() & order.isNotNull()).select(
        order.alias("order"), sf.lit(source).cast("byte").alias("source"),
        sf.monotonically_increasing_id().alias("position"), *columns,
    )  # fmt: skip


def _order(source: int) -> Column:
    if source == ev.CONNECTIONS:
        return sf.lit(-1).cast("long")
    if source != ev.MESSAGES:
        return sf.col("frame_no")
    delivered = sf.col("kind").isin("deliver", "get") & sf.col("first_frame_no").isNotNull()
    return sf.when(delivered, sf.col("first_frame_no")).otherwise(sf.col("frame_no"))


def _slots(source: int, layout: Layout) -> dict[str, str]:
    """Columns that are kept of a table, and the column of the union for each: the first free one of its type."""
    names = dict.fromkeys((*layout.base, *(("is_partial", "windows") if source == ev.CONNECTIONS else ())))
    taken: Counter[str] = Counter()
    found = {}
    for name in names:
        kind = from_arrow_type(_type(source, name)).simpleString()
        found[name] = "connection_id" if name == "connection_id" else f"{kind} {taken[kind]}"
        taken[kind] += name != "connection_id"
    return found


def _type(source: int, column: str) -> pa.DataType:
    if source == ev.CONNECTIONS and column == "is_partial":
        return pa.bool_()
    if source == ev.CONNECTIONS and column == "windows":
        return WINDOWS
    return schema(ev.SOURCES[source]).field(column).type
