"""Small tables that follow from statistics, as rows: read where `analyze` wrote them, else computed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.places import Place, readable
from amqpscope.pipelines.folder import parts
from amqpscope.pipelines.model.walk import schema
from amqpscope.pipelines.relations import compute
from amqpscope.spec.findings import Rule

Row = dict[str, Any]
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


def written(folder: Place, name: str, columns: Sequence[str] | None = None) -> list[Row]:
    """Return the rows of a small table that `analyze` wrote; none where it did not.

    Columns that an earlier format lacks are null.
    """
    wanted = [field for field in schema(name) if columns is None or field.name in columns]
    read = [pq.read_table(readable(path), columns=list(columns) if columns else None) for path in parts(folder, name)]
    if not read:
        return []
    found = pa.concat_tables([pa.schema(wanted).empty_table(), *read], promote_options="default")
    rows: list[Row] = _in_order(name, found).to_pylist()
    return rows


def _in_order(name: str, rows: pa.Table) -> pa.Table:
    """Return rows in an order that depends on them alone: the database has several threads."""
    if name not in compute.NAMES or name in compute.FINDINGS:
        return rows
    return rows.sort_by([(column, "ascending") for column in rows.column_names])


def rows(tables: Tables, name: str, columns: Sequence[str] | None = None) -> list[Row]:
    """Return the rows of a table that follows from statistics; none where there are no statistics.

    Raises:
        ReadError: a table cannot be read.
    """
    if tables.analyzed is None:
        return []
    if name not in tables.computed and name in compute.NAMES and not parts(tables.analyzed, name):
        prepare(tables, [*SHOWN, name])
    if name not in tables.computed:
        return written(tables.analyzed, name, columns)
    found: list[Row] = tables.computed[name].to_pylist()
    return found


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
