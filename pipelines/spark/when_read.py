"""What statistics have besides where they are read (`model.when_read`), as columns of DataFrames."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from amqpscope.pipelines.model.when_read import ADDRESSES, LATEST, added, sources
from amqpscope.spec.data import CONNECTION


def ends(tables: Iterable[DataFrame]) -> DataFrame | None:
    """Return the addresses of connections (see `completed`) that some tables have; None where none has."""
    names = [CONNECTION, *ADDRESSES]
    found = [each.select(names).where("client_ip is not null") for each in tables if {*names} <= {*each.columns}]
    return reduce(DataFrame.union, found).dropDuplicates([CONNECTION]) if found else None


def completed(table: str, rows: DataFrame, connections: DataFrame | None = None) -> DataFrame:
    """Return rows of a table with the columns that it has where it is read.

    Args:
        table: its name.
        rows: in its declared columns.
        connections: `connection_id` and ADDRESSES, such as `endpoints` or `connections`; without it addresses are null.
    """
    made, names, ends = sources(table), rows.columns, {}
    for at, column in enumerate(dict.fromkeys(column for column, address in made.values() if address)):
        if connections is not None:
            ends[column] = f"__{at}_"
            hidden = connections.select([sf.col(each).alias(f"__{at}_{each}") for each in (CONNECTION, *ADDRESSES)])
            rows = rows.join(hidden, rows[column] == hidden[f"__{at}_{CONNECTION}"], "left")
    columns: list[Column] = [sf.col(name) for name in names]
    for name, (column, address) in made.items():
        if address is None:
            value = _time(column)
        elif column in ends:
            value = sf.col(ends[column] + address)
        else:
            value = sf.lit(None).cast("int" if added(table).field(name).type == "int32" else "string")
        columns.append(value.alias(name))
    return rows.select(*columns)


def _time(column: str) -> Column:
    within = f"`{column}` > {-LATEST} and `{column}` < {LATEST}"
    return sf.expr(f"case when {within} then timestamp_micros((`{column}` - pmod(`{column}`, 1000L)) div 1000L) end")
