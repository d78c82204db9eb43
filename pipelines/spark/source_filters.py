"""Filters of queries, applied where the data source reads; Spark 4.1 and newer."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource
from pyspark.sql.datasource import Filter

from amqpscope.pipelines.model.walk import schema as of_arrow


class Filtering:
    """Of a reader: it applies filters of the query. Spark refuses it unless that is enabled for sources in Python."""

    table: str
    filter: pc.Expression | None

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - the name is Spark's
        """Keep the filters that part files can be read by; yield the others."""
        types = {field.name: field.type for field in of_arrow(self.table)}
        for each in filters:
            found = condition(each, types)
            if found is None:
                yield each
            else:
                self.filter = found if self.filter is None else self.filter & found


_COMPARED: dict[type[Filter], Callable[[Any, Any], Any]] = {
    datasource.EqualTo: operator.eq,
    datasource.GreaterThan: operator.gt,
    datasource.GreaterThanOrEqual: operator.ge,
    datasource.LessThan: operator.lt,
    datasource.LessThanOrEqual: operator.le,
}


def condition(wanted: Filter, types: MutableMapping[str, pa.DataType]) -> pc.Expression | None:
    """Return a filter of Spark for pyarrow; None for one that Spark itself must apply.

    Args:
        wanted: the filter.
        types: of the columns.
    """
    if isinstance(wanted, datasource.Not):
        # A null passes neither a comparison nor its opposite, in Spark as in pyarrow; `isin` is false for it.
        inner = None if isinstance(wanted.child, datasource.In) else condition(wanted.child, types)
        return None if inner is None else ~inner
    column: tuple[str, ...] = getattr(wanted, "attribute", ())
    value: Any = getattr(wanted, "value", None)
    if len(column) != 1 or column[0] not in types:
        return None
    field, kind = pc.field(column[0]), types[column[0]]
    try:
        if type(wanted) in _COMPARED:
            return _COMPARED[type(wanted)](field, pa.scalar(value, kind))
        if isinstance(wanted, datasource.In) and None not in value:
            return field.isin(pa.array(value, kind))
    except (pa.ArrowException, TypeError, OverflowError):
        return None
    if isinstance(wanted, datasource.IsNull | datasource.IsNotNull):
        return field.is_null() if isinstance(wanted, datasource.IsNull) else field.is_valid()
    return None
