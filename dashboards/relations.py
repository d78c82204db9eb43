"""Small tables that follow from statistics, as rows: read where `analyze` wrote them, else computed once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.places import Place, readable
from amqpscope.pipelines.folder import parts
from amqpscope.pipelines.model.walk import schema
from amqpscope.pipelines.relations import compute
from amqpscope.spec.findings import Rule

Row = dict[str, Any]
Where = tuple[str, Collection[Any]]
"""A column, and the values that it has in the rows that are asked for."""
SHOWN = (
    "findings",
    "rules",
    "rates",
    "occupancy",
    "queues",
    "consumers",
    "clients",
    "topology",
    "endpoints",
    "channels",
    "time_spent",
)
"""Those that a page shows; where one is lacking all that are lacking are computed together."""


def written(folder: Place, name: str, columns: Sequence[str] | None = None, where: Where | None = None) -> list[Row]:
    """Return the rows of a small table that `analyze` wrote; none where it did not.

    Columns that an earlier format lacks are null.
    """
    asked = {*(columns or schema(name).names), *(where[:1] if where else ())}
    wanted = pa.schema([field for field in schema(name) if field.name in asked])
    read = [pq.read_table(readable(path), columns=wanted.names if columns else None) for path in parts(folder, name)]
    if not read:
        return []
    found = pa.concat_tables([wanted.empty_table(), *read], promote_options="default")
    return _made(_in_order(name, _those(found, where)), columns)


def _those(rows: pa.Table, where: Where | None) -> pa.Table:
    if where is None:
        return rows
    column, values = where
    return rows.filter(pc.is_in(rows[column], pa.array(list(values), rows.schema.field(column).type)))


def _made(rows: pa.Table, columns: Sequence[str] | None) -> list[Row]:
    made: list[Row] = (rows.select(list(columns)) if columns else rows).to_pylist()
    return made


def _in_order(name: str, rows: pa.Table) -> pa.Table:
    """Return rows in an order that depends on them alone: the database has several threads."""
    if name not in compute.NAMES or name in compute.FINDINGS:
        return rows
    return rows.sort_by([(column, "ascending") for column in rows.column_names])


def rows(tables: Tables, name: str, columns: Sequence[str] | None = None, where: Where | None = None) -> list[Row]:
    """Return the rows of a table that follows from statistics; none where there are no statistics.

    Args:
        tables: the statistics.
        name: of the table.
        columns: those that are asked for; None: all.
        where: which rows are; None: all.

    Raises:
        ReadError: a table cannot be read.
    """
    if tables.analyzed is None:
        return []
    if name not in tables.computed and name in compute.NAMES and not parts(tables.analyzed, name):
        prepare(tables, [*SHOWN, name])
    if name not in tables.computed:
        return written(tables.analyzed, name, columns, where)
    return _made(_those(tables.computed[name], where), columns)


def prepare(tables: Tables, names: Sequence[str], rules: Sequence[Rule] | None = None) -> None:
    """Compute those tables that follow from statistics and that are lacking, all at once.

    Args:
        tables: the statistics.
        names: of the tables; those of other kinds are left alone.
        rules: of findings: all tables are computed anew; None: ours.

    Raises:
        ReadError: a table cannot be read.
        RuleError: a rule is wrong.
    """
    if tables.analyzed is None:
        return
    lacking = [
        name
        for name in dict.fromkeys(names)
        if name in compute.NAMES and (rules or not (name in tables.computed or parts(tables.analyzed, name)))
    ]
    if lacking:
        made = compute.of_folder(tables.analyzed, lacking, rules)
        tables.computed |= {name: _in_order(name, rows) for name, rows in made}
