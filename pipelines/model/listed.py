"""Rows about TCP, which have no frame number: they come as lists in the rows of their connections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.model.events import CONNECTIONS, Events

LISTED = {"windows": "tcp_windows", "tcp_events": "tcp_events"}
"""Columns of connections with such lists, and the table that each is from; see `preparing.with_tcp`."""


def listed(events: Events, at: Any, column: str, kept: Sequence[str]) -> tuple[pa.Table, pa.Table] | None:
    """Return the rows of a list of LISTED, and the row of the connection of each; None where there are none.

    Args:
        events: a batch.
        at: positions of connections.
        column: the list.
        kept: further columns of connections.
    """
    if not len(at) or column not in events.tables[CONNECTIONS].column_names:
        return None
    connections = events.take(CONNECTIONS, at, ("connection_id", *kept, column)).combine_chunks()
    lists = connections[column].combine_chunks()
    parents = connections.drop_columns(column)  # a list is not repeated for each of its rows
    return pa.Table.from_struct_array(pc.list_flatten(lists)), parents.take(pc.list_parent_indices(lists))
