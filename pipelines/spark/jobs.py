"""The functions of `jobs` for DataFrames: the same walks, evaluated lazily, on the Spark of the DataFrames.

Rows of all tables are one union, grouped by connection and sorted; walks run in the Python workers, in bounded memory.
What needs rows of several connections is grouped by its key in a second step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial, reduce
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from amqpscope.pipelines import statistics
from amqpscope.pipelines.across import keys
from amqpscope.pipelines.connections import failures
from amqpscope.pipelines.connections.failures import Failures
from amqpscope.pipelines.latencies import latency
from amqpscope.pipelines.latencies.latency import Latencies
from amqpscope.pipelines.model import events as ev
from amqpscope.pipelines.model.event_rows import prepared
from amqpscope.pipelines.model.events import Events
from amqpscope.pipelines.model.listed import LISTED
from amqpscope.pipelines.model.walk import Rows, schema
from amqpscope.pipelines.run import kernels
from amqpscope.pipelines.run.event_store import layouts
from amqpscope.pipelines.run.preparing import TIMED, snapped, timed
from amqpscope.pipelines.spark import union
from amqpscope.pipelines.spark.versions import to_arrow
from amqpscope.pipelines.statistics import (
    KEYED,
    METRICS,
    OverKeys,
    chains,
    needs_of,
)

Batches = Iterator[pa.RecordBatch]


class Task(NamedTuple):
    """What the Python workers get.

    Attributes:
        of: name of the rows that walks over connections yield.
        cut: names of captures with cut packets.
    """

    of: str
    cut: tuple[str, ...]


def job(name: str, tables: Mapping[str, DataFrame], window_ns: int) -> DataFrame:
    """Return a table of statistics.

    Args:
        name: its name.
        tables: the tables that it takes, by name.
        window_ns: how far before a delivery to look for its publish (ns).
    """
    if name == "failures":
        return _merged(tables["connections"].mapInArrow(_failed, _spark(failures.PARTIAL)), _failures, name)
    if name.startswith("latency_"):
        added = [
            rows.mapInArrow(partial(_added, METRICS[table]), _spark(latency.PARTIAL)) for table, rows in tables.items()
        ]
        return _merged(reduce(DataFrame.union, added), partial(_latencies, name), name)
    cut: tuple[str, ...] = ()
    if "captures" in tables:
        cut = tuple(snapped(to_arrow(tables["captures"].select("capture", "snap_length"))).to_pylist())
    over_keys = [over for over in statistics.over_keys() if name in over.tables]
    parts = [
        _over_keys(over, name, tables, window_ns, cut)
        for over in over_keys
        if not over.shares or _there(over.of, tables)
    ]
    if parts and not any(over.shares for over in over_keys):
        return reduce(DataFrame.union, parts)
    rows = reduce(DataFrame.union, [_over_connections(Task(name, cut), tables, schema(name)), *parts])
    resolved = statistics.resolved().get(name)
    if resolved is not None and _there(resolved.of, tables):
        return _resolved(name, rows, _over_connections(Task(resolved.of, cut), tables, resolved.schema))
    return rows


def _there(of: str, tables: Collection[str]) -> bool:
    """Return whether there are frames of the protocol whose walks yield these rows."""
    sources = {source for chain in chains(rows=(of,)) for needs in chain.needs for source in needs}
    return any(source in ev.SPOKEN and ev.SOURCES[source] in tables for source in sources)


def _spark(fields: pa.Schema) -> StructType:
    return from_arrow_schema(fields)


# ---- walks over connections


def _over_connections(task: Task, tables: Mapping[str, DataFrame], fields: pa.Schema) -> DataFrame:
    kept = layouts(needs_of(chains(rows=(task.of,))))
    there = {source: tables[name] for source, name in ev.sources().items() if name in tables}
    there[ev.CONNECTIONS] = _with_tcp(tables)
    ordered = union.ordered(there, kept)
    return ordered.mapInArrow(partial(walk_connections, task), _spark(fields))


def _with_tcp(tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return connections with the rows of LISTED as lists (`preparing.with_tcp`)."""
    if "connections" not in tables:
        return next(iter(tables.values())).sparkSession.createDataFrame([], _spark(schema("connections")))
    connections = tables["connections"]
    for column, name in LISTED.items():
        if name in tables:
            at = sf.monotonically_increasing_id().alias("at")
            fields = [field.name for field in union.TYPES[column].value_type]
            lists = (
                tables[name]
                .select("connection_id", sf.struct(at, sf.struct(*fields).alias("row")).alias("each"))
                .groupBy("connection_id")
                .agg(sf.transform(sf.sort_array(sf.collect_list("each")), lambda each: each["row"]).alias(column))
            )
            connections = connections.join(lists, "connection_id", "left")
    return connections


def walk_connections(task: Task, batches: Batches) -> Batches:
    """Walk over the connections of a task."""
    compiled = kernels.begin(None)
    walks = chains(compiled, (task.of,))
    kept = layouts(needs_of(walks))
    cut = pa.array(task.cut, pa.string())
    for batch in batches:
        tables = {}
        for source in batch["source"].unique().to_pylist():
            layout = kept[source]
            rows = union.rows_of(batch, source, layout)
            rows = timed(rows, cut) if source == ev.MESSAGES else rows
            columns = (*layout.leading, *layout.further)
            rows = prepared(source, rows, columns, compiled)
            tables[source] = rows.select([name for name in columns if name in rows.column_names])
        events = Events.mixed(tables, batch["source"].to_numpy().astype(np.int8))
        for chain in walks:
            yield from _wanted(task.of, chain.feed(events))
    for chain in walks:
        yield from _wanted(task.of, chain.finish())


def _wanted(of: str, found: Iterator[Rows]) -> Batches:
    for name, rows in found:
        if name == of:
            yield from rows.combine_chunks().to_batches()


# ---- walks over keys, and what other connections decide


def _over_keys(
    over: OverKeys, name: str, tables: Mapping[str, DataFrame], window_ns: int, cut: tuple[str, ...]
) -> DataFrame:
    if over.of == KEYED:
        rows = tables["messages"].mapInArrow(partial(_keyed, cut), _spark(over.schema))
    else:
        rows = _over_connections(Task(over.of, cut), tables, over.schema)
    given = over.given[1].empty_table() if over.given else None
    if over.given and tables.keys() - {"messages", "captures"}:
        given = to_arrow(_over_connections(Task(over.given[0], cut), tables, over.given[1]))
    ordered = rows.repartition(*over.key).sortWithinPartitions(*over.order)
    return ordered.mapInArrow(partial(walk_keys, over.of, name, window_ns, given), _spark(schema(name)))


def _keyed(cut: tuple[str, ...], batches: Batches) -> Batches:
    compiled, fields = kernels.begin(None), schema("messages")
    columns = dict.fromkeys((*keys.COLUMNS, *TIMED))
    for batch in batches:
        rows = pa.table({
            name: batch[name].cast(fields.field(name).type) if name in batch.schema.names
            else pa.nulls(len(batch), fields.field(name).type) for name in columns
        })  # fmt: skip
        yield from keys.keyed(timed(rows, pa.array(cut, pa.string())), compiled).combine_chunks().to_batches()


def walk_keys(of: str, name: str, window_ns: int, given: pa.Table | None, batches: Batches) -> Batches:
    """Walk over the keys of a task."""
    over = next(each for each in statistics.over_keys() if each.of == of)
    walk = over.walk(kernels.begin(None), window_ns, given)
    for batch in batches:
        yield from _wanted(name, walk.feed(pa.Table.from_batches([batch]).cast(over.schema)))
    yield from _wanted(name, walk.finish())


def _resolved(name: str, rows: DataFrame, reported: DataFrame) -> DataFrame:
    """Return rows with the column filled in that facts of all connections decide."""
    resolved = statistics.resolved()[name]
    fields = resolved.facts(resolved.schema.empty_table()).schema
    facts = reported.repartition(1).mapInArrow(partial(_facts, name), _spark(fields))
    by = [each for each in fields.names if each in rows.columns]
    joined = rows.join(facts, by, "left").select(*(rows[each] for each in rows.columns), *set(fields.names) - set(by))
    return joined.mapInArrow(partial(_decided, name), _spark(schema(name)))


def _facts(name: str, batches: Batches) -> Batches:
    resolved = statistics.resolved()[name]
    parts = [pa.Table.from_batches([batch]).cast(resolved.schema) for batch in batches]
    reported = pa.concat_tables([resolved.schema.empty_table(), *parts])
    yield from resolved.facts(reported).combine_chunks().to_batches()


def _decided(name: str, batches: Batches) -> Batches:
    fields = statistics.resolved()[name].facts(statistics.resolved()[name].schema.empty_table()).schema
    for batch in batches:
        whole = pa.Table.from_batches([batch])
        rows = whole.select(schema(name).names).cast(schema(name))
        facts = whole.select(fields.names).cast(fields)
        known = facts.filter(facts["stored"].is_valid()).group_by(fields.names).aggregate([])
        yield from statistics.resolved()[name].resolve(rows, known.select(fields.names)).combine_chunks().to_batches()


# ---- sums


def _merged(parts: DataFrame, merge: Callable[[Batches], Batches], name: str) -> DataFrame:
    """Return the table that partial results make, in one task."""
    return parts.repartition(1).mapInArrow(merge, _spark(schema(name)))


def _failed(batches: Batches) -> Batches:
    found = Failures()
    for batch in batches:
        found.add(batch)
    yield from found.partial().combine_chunks().to_batches()


def _failures(batches: Batches) -> Batches:
    found = Failures()
    for batch in batches:
        found.merge(pa.Table.from_batches([batch]))
    yield from found.table().combine_chunks().to_batches()


def _added(metric: str, batches: Batches) -> Batches:
    found = Latencies()
    for batch in batches:
        found.add(metric, batch)
    yield from found.partial().combine_chunks().to_batches()


def _latencies(name: str, batches: Batches) -> Batches:
    found = Latencies()
    for batch in batches:
        found.merge(pa.Table.from_batches([batch]))
    rows = found.summary() if name == "latency_summary" else found.buckets()
    yield from rows.combine_chunks().to_batches()
