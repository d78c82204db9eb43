"""Small tables that follow from statistics, as rows: read where `analyze` wrote them, else computed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.places import Place, readable
from amqpscope.pipelines.folder import parts
from amqpscope.pipelines.relations import compute

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
    """Return the rows of a small table that `analyze` wrote; none where it did not."""
    read = [pq.read_table(readable(path), columns=list(columns) if columns else None) for path in parts(folder, name)]
    found: list[Row] = pa.concat_tables(read, promote_options="default").to_pylist() if read else []
    return found


def rows(tables: Tables, name: str, columns: Sequence[str] | None = None) -> list[Row]:
    """Return the rows of a table that follows from statistics; none where there are no statistics.

    Raises:
        ReadError: a table cannot be read.
    """
    if tables.analyzed is None:
        return []
    if parts(tables.analyzed, name):
        return written(tables.analyzed, name, columns)
    if name not in compute.NAMES:
        return []
    if not tables.computed:
        lacking = [each for each in SHOWN if each in compute.NAMES and not parts(tables.analyzed, each)]
        tables.computed |= dict(compute.of_folder(tables.analyzed, lacking))
    made: list[Row] = tables.computed[name].to_pylist() if name in tables.computed else []
    return made
