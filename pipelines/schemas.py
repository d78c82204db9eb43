"""Declared tables as Spark schemas, and results brought into them."""

from __future__ import annotations

from functools import cache

from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql import functions as sf

from amqpscope import spec
from amqpscope.spec.model import Table

_TYPES: dict[str, types.DataType] = {
    "bool": types.BooleanType(),
    "int32": types.IntegerType(),
    "int64": types.LongType(),
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "timestamp": types.TimestampType(),
}


@cache
def declared(table: str) -> Table:
    """The declaration of a table, with the columns of the method arguments where it has such.

    Raises:
        KeyError: there is none of that name.
    """
    found = spec.tables()[table]
    return found.with_methods(spec.load(found.methods_of)) if found.methods_of else found


def schema(table: str) -> types.StructType:
    """The columns of a table in their order, all nullable."""
    return types.StructType([types.StructField(column.name, _TYPES[column.type]) for column in declared(table).columns])


def nothing(spark: SparkSession, table: str) -> DataFrame:
    """A table without rows."""
    return spark.createDataFrame([], schema(table))


def conform(result: DataFrame, table: str) -> DataFrame:
    """A result in the declared columns, order and types; columns that it does not have are null.

    Raises:
        ValueError: the result has a column that is not declared.
    """
    fields = schema(table).fields
    unknown = set(result.columns) - {field.name for field in fields}
    if unknown:
        raise ValueError(f"{table} has no column {', '.join(sorted(unknown))}")
    present = set(result.columns)
    return result.select(
        *((sf.col(f.name) if f.name in present else sf.lit(None)).cast(f.dataType).alias(f.name) for f in fields)
    )
