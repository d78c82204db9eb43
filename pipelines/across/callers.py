"""Callers: of connections that ask, answer or lack bytes, where they are, and when and why a wait for an answer ended.

An answer may lie in a gap of the connection on which answers of its queue came. Where none came, it may be any with a
gap that may have the same home.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.across.homes import HOME, UNKNOWN, Homes
from amqpscope.pipelines.across.waiting import Place, may_be_one
from amqpscope.pipelines.model.ends import OPEN_NS

ENDS = "ends of callers"
WHEN = pa.schema(
    [
        ("connection_id", pa.int64()), ("at_ns", pa.int64()), ("ended_by", pa.string()), ("queue", pa.int64()),
        ("channel", pa.int64()),
        *((name, pa.int64()) for name in HOME),
    ]
)  # fmt: skip
"""When a connection ended, with its home; when bytes of its server may be missing (ended_by gap); when a channel of it
was closed; or the digest of a queue of which answers came on it, alone."""
_MERGED = 64
"""Lists of gaps that are kept for further requests."""


def still_needed(rows: pa.Table, since_ns: int, going_on: pa.Array, asking: pa.Array) -> pa.Table:
    """Return the rows of WHEN that later calls may need, each of them once.

    Args:
        rows: of WHEN.
        since_ns: gaps before this time are before all requests.
        going_on: connections (int64) of which more rows may come.
        asking: connections (int64) of requests and answers that are still to be paired.
    """
    rows = rows.group_by(WHEN.names).aggregate([])
    is_gap = pc.fill_null(pc.equal(rows["ended_by"], "gap"), False)
    late = pc.and_(is_gap, pc.fill_null(pc.greater_equal(rows["at_ns"], since_ns), False))
    whose = pa.chunked_array([*rows.filter(late)["connection_id"].chunks, going_on, asking], pa.int64()).unique()
    return rows.filter(pc.or_(late, pc.and_not(pc.is_in(rows["connection_id"], value_set=whose), is_gap)))


class Callers:
    """What WHEN of all connections says."""

    def __init__(self, rows: pa.Table) -> None:
        self.homes = Homes(rows)
        self._ends: dict[int, tuple[int, str]] = {}
        self._gaps: dict[int, list[int]] = {}
        self._listeners: dict[int, set[int]] = {}
        """By queue, the connections on which answers came."""
        self._closed: dict[tuple[int, int], int] = {}
        """When channels of connections were closed."""
        columns = rows.sort_by("at_ns").select(WHEN.names[:5]).to_pydict()
        for connection, at_ns, why, queue, channel in zip(*columns.values(), strict=True):
            if queue is not None:
                self._listeners.setdefault(queue, set()).add(connection)
            elif channel is not None:
                self._closed.setdefault((connection, channel), at_ns)
            elif why == "gap":
                self._gaps.setdefault(connection, []).append(at_ns)
            else:
                self._ends.setdefault(connection, (at_ns, why))  # of a connection that goes on, a later row has its end
        self._places = dict(zip(self._gaps, self.places(list(self._gaps)), strict=True))
        self._merged = lru_cache(_MERGED)(self._merge)

    def places(self, connections: Any) -> list[Place]:
        """Return the places of connections."""
        homes, brokers = self.homes.of(np.asarray(connections, np.int64))
        return list(zip(homes.tolist(), brokers.tolist(), strict=True))

    def are_one(self, connections: Any, others: Any) -> Any:
        """Return where (bool) two connections (int64) are known to have one home, or there is no other."""
        homes = self.homes.of(connections)[0], self.homes.of(others)[0]
        known = (homes[0] != UNKNOWN) & (homes[0] == homes[1])
        return known | (connections == others) | (not self.homes.several)

    def end(
        self, connection: int, place: Place, queue: int | None, channel: int | None, since_ns: int
    ) -> tuple[int | None, str]:
        """Return when and why the wait for an answer ended.

        Args:
            connection: of the request.
            place: where that is.
            queue: digest of the queue for the answer; None where it comes on the request's connection.
            channel: on which alone it may come; None for any.
            since_ns: time of the request.
        """
        if queue is None:
            gaps = self._gaps.get(connection, [])
        else:
            gaps = self._merged(queue if queue in self._listeners else None, place)
        closed = self._closed.get((connection, channel)) if channel is not None else None
        behind = bisect_left(gaps, since_ns)
        if behind < len(gaps) and (closed is None or gaps[behind] <= closed):
            return gaps[behind], "gap"
        if closed is not None:
            return closed, "channel-close"
        at_ns, why = self._ends.get(connection, (None, "capture-end"))
        return (None, "evicted") if at_ns == OPEN_NS else (at_ns, why)  # the connection goes on, and patience is over

    def _merge(self, queue: int | None, place: Place) -> list[int]:
        """Return the times of gaps in which an answer may lie, in order."""
        listeners = list(self._listeners.get(queue, ())) if queue is not None else []
        where = zip(listeners, self.places(listeners), strict=True)
        known = [each for each, its in where if may_be_one(place, its)]
        if not known:
            known = [each for each, its in self._places.items() if may_be_one(place, its)]
        return sorted(at for each in known for at in self._gaps.get(each, ()))
