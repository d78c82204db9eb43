"""Histograms as flat Arrow tables: what tasks exchange, and the columns that name a group."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from amqpscope.pipelines.latencies.groupings import COLUMNS, GROUPINGS
from amqpscope.pipelines.latencies.histograms import NEVER, Histograms
from amqpscope.pipelines.latencies.log_linear import Integers
from amqpscope.pipelines.model.walk import schema

COUNTS = ("count", "failed", "censored", "unanswered", "unusable")
"""Columns of `latency_summary` that count operations."""

FIGURES = COUNTS[1:]
"""Those that are not of latencies."""

_ROW = schema("latency_summary")
PARTIAL = pa.schema(
    [
        *(_ROW.field(name) for name in ("metric", "grouping", *COLUMNS)),
        ("bucket", pa.int64()),
        *(_ROW.field(name) for name in COUNTS),
        ("min_ns", pa.int64()),
        ("max_ns", pa.int64()),
    ]
)
"""A partial result: rows of metric, grouping that is kept, group and bucket, which merge by sum, minimum and maximum.

`count` is of the bucket, which is null for a group without latencies. The other columns are of the group: they stand in
its first row, and are 0 or null in the others.
"""

_MOST_TEXTS = 1 << 16
"""Texts of a chunk: none on the wire is longer than 32 KiB, and the offsets of a chunk have 31 bits."""


def named(metric: str, grouping: str, found: Histograms, group: Integers) -> dict[str, pa.Array | pa.ChunkedArray]:
    """Return the columns that name the groups at these positions."""
    columns = {
        "metric": pa.repeat(pa.scalar(metric), len(group)),
        "grouping": pa.repeat(pa.scalar(grouping), len(group)),
    }
    for name, key in found.keys.items():
        if pa.types.is_large_string(key.type):
            at = range(0, len(group), _MOST_TEXTS)
            chunks = [key.take(pa.array(group[start : start + _MOST_TEXTS])).cast(pa.string()) for start in at]
            columns[name] = pa.chunked_array(chunks, pa.string())
        else:
            columns[name] = key.take(pa.array(group))
    return columns


def to_rows(metric: str, grouping: str, found: Histograms) -> pa.Table:
    """Return groups as rows of `PARTIAL`."""
    cells = len(found.group)
    without = np.flatnonzero(found.counts() == 0)
    group = np.concatenate([found.group, without])
    first = np.full(len(group), fill_value=False)
    first[np.unique(group, return_index=True)[1]] = True
    columns = named(metric, grouping, found, group)
    columns["bucket"] = pa.array(np.pad(found.bucket, (0, len(without))), mask=np.arange(len(group)) >= cells)
    columns["count"] = pa.array(np.pad(found.latencies, (0, len(without))))
    columns |= {name: pa.array(figure[group] * first) for name, figure in zip(FIGURES, found.figures, strict=True)}
    nothing = ~first | (found.most[group] < 0)
    columns["min_ns"] = pa.array(found.least[group], mask=nothing)
    columns["max_ns"] = pa.array(found.most[group], mask=nothing)
    unused = {field.name: pa.nulls(len(group), field.type) for field in PARTIAL if field.name not in columns}
    return pa.table(columns | unused).select(PARTIAL.names)


def of_rows(grouping: str, rows: pa.Table) -> Histograms:
    """Return rows of `PARTIAL` of one metric and grouping as groups."""

    def numbers(name: str, null: int) -> Integers:
        values: Integers = column(rows, name, pa.int64()).fill_null(null).to_numpy(zero_copy_only=False)
        return values

    keys = {name: column(rows, name, _ROW.field(name).type) for name in GROUPINGS[grouping]}
    bucket = numbers("bucket", -1)
    cell = np.flatnonzero(bucket >= 0)
    figures = np.stack([numbers(name, 0) for name in FIGURES])
    least, most, count = numbers("min_ns", NEVER), numbers("max_ns", -1), numbers("count", 0)
    each = Histograms(rows.num_rows, keys, figures, least, most, cell, bucket[cell], count[cell])
    return each.by(keys)


def column(rows: pa.Table | pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    """Return a column as one array of this type; texts as large_string, for together they may pass 2 GiB."""
    values = rows.column(name)
    if values.type != kind:
        values = values.cast(kind)
    if kind == pa.string():
        values = values.cast(pa.large_string())
    if isinstance(values, pa.ChunkedArray):
        return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    return values
