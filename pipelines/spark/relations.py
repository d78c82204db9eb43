"""Relations computed by Spark SQL, by the same texts as in this process. No view stays in the session."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from amqpscope.dissector.places import Place, readable, remove_tree
from amqpscope.dissector.tables.output import HIDDEN
from amqpscope.pipelines.findings import ASKED, evaluate
from amqpscope.pipelines.folder import parts, weight
from amqpscope.pipelines.model.walk import schema as declared
from amqpscope.pipelines.relations import compute, database
from amqpscope.pipelines.relations.compute import ENDPOINTS, KEYS, QUEUES, SETUP, python_tables
from amqpscope.pipelines.relations.database import LATEST, is_time
from amqpscope.pipelines.relations.texts import CHANGES, MADE, SOURCES, begins_with, read_by_rules, tables_of, texts
from amqpscope.pipelines.spark.reader import read_table
from amqpscope.pipelines.spark.schemas import schema
from amqpscope.pipelines.spark.versions import of_arrow, to_arrow

FEW = 1 << 22
"""Statistics with fewer rows are related in this process."""
SMALL = 1 << 14
"""Tables with at most so many rows are held in this process: less is planned, and rules over them need no job."""


def relations(
    spark: SparkSession, given: Mapping[str, DataFrame], wanted: Iterable[str] | None = None
) -> Iterator[tuple[str, DataFrame]]:
    """Yield relations with their names, in the declared columns.

    Args:
        spark: the session.
        given: the statistics, by name; those that are missing count as empty.
        wanted: names of relations; None: all.
    """
    known = {
        name: given[name].select([_plausible(field) for field in declared(name)])
        if name in given
        else spark.createDataFrame([], schema(name))
        for name in SOURCES
    }
    known["endpoints"] = _merged(spark, known["endpoints"])
    asked, run, read = compute.Plan.of(wanted)
    small: dict[str, pa.Table] = {}
    kept: list[DataFrame] = []
    try:
        begun = {name: begins_with(name) for name in run}
        none = {name for name in {*begun.values()} if name and known[name].isEmpty()}
        for name in run:
            if begun[name] in none:
                small[name] = declared(name).empty_table()
                known[name] = of_arrow(spark, small[name])
            else:
                rows = _rows(spark, texts()[name], known)
                known[name] = rows.select([sf.col(field.name).cast(field.dataType) for field in schema(name)])
            if name in read - small.keys():  # by texts and rules, each of which would compute it anew
                kept.append(known[name].persist())
                if (few := _few(known[name])) is not None:
                    known[name], small[name] = of_arrow(spark, few, schema(name)), few
                    kept.pop().unpersist()
            if name in asked:
                yield name, known[name]
            if name == CHANGES and (asked | read) & {*MADE}:
                read_for_them = (to_arrow(_rows(spark, text, known)) for text in (ENDPOINTS, SETUP, KEYS, QUEUES))
                ends, setup, *others = read_for_them
                for made, table in python_tables(ends, setup.to_batches(), *others).items():
                    known[made], small[made] = of_arrow(spark, table), table
                    if made in asked:
                        yield made, known[made]
        if asked & {*compute.FINDINGS}:
            for name in {*ASKED, *read_by_rules()} - small.keys():
                if (few := _few(known[name])) is not None:
                    small[name] = few
            for name, table in findings(spark, known, small).items():
                yield name, of_arrow(spark, table)
    finally:
        for each in kept:
            each.unpersist()


def findings(spark: SparkSession, known: Mapping[str, DataFrame], small: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Return the tables `findings` and `rules`.

    Args:
        spark: the session.
        known: statistics and relations, by name.
        small: those that are held in this process: rules that read no others are evaluated here.
    """
    with database.connect(rows=sum(map(len, small.values()))) as connection:
        for name, rows in small.items():
            database.keep(connection, name, rows)

        def select(text: str) -> list[dict[str, Any]]:
            if tables_of(text) <= small.keys():
                return database.rows(connection, text)
            rows: list[dict[str, Any]] = to_arrow(_rows(spark, text, known)).to_pylist()
            return rows

        return evaluate(select, empty=[name for name, rows in small.items() if not len(rows)])


def _merged(spark: SparkSession, endpoints: DataFrame) -> DataFrame:
    """Return `endpoints` with one `server` for each broker or cluster, as `database.merge_brokers`."""
    found = _rows(spark, database.BROKERS, {"endpoints": endpoints}).take(database.MOST_MERGED + 1)
    if len(found) > database.MOST_MERGED or not found:
        return endpoints
    return endpoints.replace({row["server"]: row["broker"] for row in found}, subset=["server"])


def _few(rows: DataFrame) -> pa.Table | None:
    """Return rows if they are few, else None."""
    found = to_arrow(rows.limit(SMALL + 1))
    return found if len(found) <= SMALL else None


def _plausible(field: pa.Field) -> Column:
    """Return a column; times that cannot be are null."""
    column = sf.col(field.name)
    return sf.when(column.between(0, LATEST), column).alias(field.name) if is_time(field) else column


_LEAST = re.compile(r"\b(min|max)_by\(([\w.]+), ((?:[^()]|\((?:[^()]|\([^()]*\))*\))+)\)")
"""The first or last of a column: DuckDB passes rows over where that is null, and Spark does not."""


def _rows(spark: SparkSession, text: str, known: Mapping[str, DataFrame]) -> DataFrame:
    """Return what a text selects of these tables; sums that do not fit into 64 bits are null, as in this process."""
    names = sorted(tables_of(text))
    code = re.sub(r"\bsum\(", "try_sum(", database.tolerant(re.sub(r"--[^\n]*", "", text)))
    code = _LEAST.sub(r"\1_by(\2, case when \2 is not null then \3 end)", code)
    marked = re.sub(rf"\b(from|join)(\s+)({'|'.join(names)})\b", r"\1\2{\3}", code)
    found: DataFrame = spark.sql(marked, args=None, **{name: known[name] for name in names})
    return found


def of_folder(spark: SparkSession, folder: Place) -> Iterator[tuple[str, pa.Table]]:
    """Yield relations of a folder of statistics, in parts; those of few rows are computed in this process.

    Args:
        spark: the session; its tasks see the folder under the same path.
        folder: where statistics lie, and where tasks may write.
    """
    if sum(weight(folder, name, ())[0] for name in SOURCES) < FEW:
        yield from compute.of_folder(folder)
        return
    hidden = folder / HIDDEN / "relations"
    try:
        given = {name: read_table(spark, folder, name) for name in SOURCES}
        for name, rows in relations(spark, given):
            rows.write.parquet(str(hidden / name))
            for file in parts(hidden, name):
                with pq.ParquetFile(readable(file)) as opened:
                    yield from ((name, pa.Table.from_batches([batch])) for batch in opened.iter_batches())
    finally:
        remove_tree(folder / HIDDEN)
