"""Failures: connections that failed or ended badly, grouped by verdict and peers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.model.folding import Folding
from amqpscope.pipelines.model.walk import conform, schema

__all__ = ["PARTIAL", "Failures", "failures"]

_GROUP = ("code", "severity", "came_up", "client_ip", "server_ip", "server_port", "vhost", "user")
_FIRST = ("first_ts_ns", "connection_id", "first_capture", "first_packet", "cause")
"""Columns of the first connection of a group, in the order that makes it the first: nulls before all else."""

PARTIAL = pa.schema([field for field in schema("failures") if field.name != "every_ns"])
"""A partial result: rows of `failures`, of some of the connections."""


class Failures:
    """Failures of connections that were added and of partial results that were merged, as one table.

    Rows may come in any order and number of batches. Memory grows with the number of groups.
    """

    def __init__(self) -> None:
        self._kept: Folding[pa.Table] = Folding(_folded, PARTIAL.empty_table())

    def add(self, connections: pa.Table | pa.RecordBatch) -> None:
        """Add rows of `connections`; those with severity error or warning count.

        Raises:
            KeyError: a column is missing.
        """
        bad = connections.filter(pc.is_in(connections.column("severity"), pa.array(["error", "warning"])))
        here = {name: bad.column(name) for name in (*_GROUP[3:], *_FIRST[:4], "severity")}
        # Of a connection that came up, the severity is that of its ending.
        here["code"] = pc.coalesce(bad.column("ending"), bad.column("handshake_outcome"))
        here["cause"] = pc.coalesce(bad.column("ending_cause"), bad.column("handshake_cause"))
        here["came_up"] = bad.column("ending").is_valid()
        here["connections"] = np.ones(bad.num_rows, np.int64)
        here["same_cause"] = pa.repeat(pa.scalar(True), bad.num_rows)
        here["latest_ts_ns"] = bad.column("first_ts_ns")
        self._kept.add(_folded([conform("failures", here, bad.num_rows).select(PARTIAL.names)]))

    def partial(self) -> pa.Table:
        """Return what was added and merged so far as rows of `PARTIAL`."""
        return self._kept.folded()

    def merge(self, *partials: pa.Table) -> None:
        """Add partial results of others."""
        for partial in partials:
            self._kept.add(_folded([partial.select(PARTIAL.names).cast(PARTIAL)]))

    def table(self) -> pa.Table:
        """Return the table `failures`, ordered by the columns that name a group, nulls last."""
        rows = self._kept.folded()
        rows = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in _GROUP]))
        columns = {name: rows[name] for name in PARTIAL.names}
        return conform("failures", columns | {"every_ns": _pause(rows)}, rows.num_rows)


def failures(connections: pa.Table) -> pa.Table:
    """Return the table `failures`: one row per verdict, client address, server, vhost and user.

    Args:
        connections: the table `connections`; its verdicts with severity error or warning count.
    """
    found = Failures()
    found.add(connections)
    return found.table()


def _folded(parts: Sequence[pa.Table]) -> pa.Table:
    """Return rows of `PARTIAL` with one row for each group."""
    rows = pa.concat_tables(parts)
    by = [(name, "ascending", "at_start") for name in _FIRST]
    rows = rows.take(pc.sort_indices(rows, sort_keys=by))
    rows = rows.append_column("at", pa.array(np.arange(rows.num_rows)))
    sums = [
        ("at", "min"), ("connections", "sum"), ("latest_ts_ns", "max"), ("same_cause", "all"),
        ("cause", "count_distinct", pc.CountOptions("all")),
    ]  # fmt: skip
    groups = rows.group_by(list(_GROUP), use_threads=False).aggregate(sums)
    first = rows.take(groups["at_min"]).select([*_GROUP, *_FIRST])
    columns = {name: first[name] for name in first.column_names}
    columns |= {"connections": groups["connections_sum"], "latest_ts_ns": groups["latest_ts_ns_max"]}
    is_one = pc.less_equal(groups["cause_count_distinct"], 1)
    columns["same_cause"] = pc.and_(groups["same_cause_all"], is_one)
    return conform("failures", columns, first.num_rows).select(PARTIAL.names)


def _pause(rows: pa.Table) -> pa.Array:
    """Return the mean time between connections of a group: null for one alone, and where times are absurd."""
    first, latest = (rows[name].fill_null(0).to_numpy() for name in ("first_ts_ns", "latest_ts_ns"))
    pauses = rows["connections"].to_numpy() - 1
    span = latest - first  # wraps below zero where times are more than 292 years apart
    unknown = (pauses == 0) | (span < 0) | rows["first_ts_ns"].is_null().to_numpy()
    return pa.array(span // np.maximum(pauses, 1), mask=unknown)
