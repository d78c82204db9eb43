"""Declared tables as Spark schemas, and results brought into them."""

from __future__ import annotations

from functools import cache

from pyspark.sql import types

from amqpscope import spec
from amqpscope.spec.model import Table

_TYPES: dict[str, types.DataType] = {
    "bool": types.BooleanType(),
    "int32": types.IntegerType(),
    "int64": types.LongType(),
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "timestamp": types.TimestampType(),
    "double": types.DoubleType(),
}


@cache
def declared(table: str) -> Table:
    """Return the declaration of a table, with the columns of the method arguments where it has such.

    Raises:
        KeyError: there is none of that name.
    """
    found = spec.tables()[table]
    return found.with_methods(spec.load(found.methods_of)) if found.methods_of else found


def schema(table: str) -> types.StructType:
    """Return the columns of a table in their order, all nullable."""
    return types.StructType([types.StructField(column.name, _TYPES[column.type]) for column in declared(table).columns])
