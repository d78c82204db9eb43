"""Homes of connections: the broker and the virtual host that they speak to, as far as known.

A message does not leave its home, unless a client or the broker's federation passes it on. A broker is known by the
name of its cluster (server-properties of RabbitMQ), else by the address of its side; where a connection did not show
the name, others to that address may. Ports that the protocols of one broker have by default count as one.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.model.digests import combined, hashed

HOME = ("server", "cluster", "vhost")
"""Digests (int64) that say where a connection is: address, name of the cluster, virtual host; 0 or null if unknown."""
COLUMNS = ("server_ip", "server_port", "vhost", "server_properties")
"""What `digests` takes of `connections`."""
PORTS = (5671, 5672, 5551, 5552)
"""Default ports of one broker: AMQP and streams, with and without TLS."""
UNKNOWN, FIRST = 0, 2
"""Numbers of homes: of a connection whose virtual host is not known; the first of those that are."""
UNSURE = -1
"""Instead of UNKNOWN, where several virtual hosts of the connection's broker are known."""


def digests(connections: pa.Table, compiled: bool | None = None) -> list[Any]:
    """Return the columns HOME (int64 arrays) of connections with COLUMNS."""
    ports = pc.if_else(pc.is_in(connections["server_port"], pa.array(PORTS, pa.int32())), 0, connections["server_port"])
    servers = combined([connections["server_ip"], ports], compiled)
    servers[connections["server_ip"].is_null().to_numpy()] = 0
    said = connections["server_properties"].cast(pa.string()).combine_chunks().dictionary_encode()
    said = said.combine_chunks() if isinstance(said, pa.ChunkedArray) else said
    clusters = pa.array([_cluster(text) for text in said.dictionary.to_pylist()], pa.string()).take(said.indices)
    return [servers, hashed(clusters, compiled), hashed(connections["vhost"], compiled)]


def _cluster(text: str) -> str | None:
    try:
        name = json.loads(text).get("cluster_name")
    except (ValueError, AttributeError):
        return None
    return name if isinstance(name, str) else None


class Homes:
    """Brokers and homes of connections as numbers, from rows with `connection_id` and HOME.

    Attributes:
        several: whether there are two homes at least; else all numbers are UNKNOWN.
    """

    def __init__(self, rows: pa.Table) -> None:
        rows = rows.filter(pc.is_valid(rows["server"]))
        self._connections, of = np.unique(rows["connection_id"].to_numpy(), return_inverse=True)
        server, cluster, vhost = (_known(of, rows[name].to_numpy(), len(self._connections)) for name in HOME)
        _, at = np.unique(server, return_inverse=True)
        named = _known(at, cluster, at.max(initial=-1) + 1)[at]
        broker = np.where(cluster != 0, cluster, np.where(named != 0, named, server))
        self._broker = broker
        homes = combined([broker, vhost])
        homes[(broker == 0) | (vhost == 0)] = 0
        known = np.unique(homes[homes != 0])
        self._home = np.where(homes == 0, UNKNOWN, np.searchsorted(known, homes) + FIRST)
        brokers, count = np.unique(_brokers_of(self._home, broker), return_counts=True)
        self._shared = brokers[count > 1]
        self.several = len(known) > 1 or len(np.unique(broker[broker != 0])) > 1

    def of(self, connections: Any) -> tuple[Any, Any]:
        """Return the homes and the brokers (int64) of connections; UNKNOWN, and 0, for unknown ones."""
        if not self.several:
            return np.zeros(len(connections), np.int64), np.zeros(len(connections), np.int64)
        return self._numbers(self._home, connections), self._numbers(self._broker, connections)

    def _numbers(self, numbers: Any, connections: Any) -> Any:
        if not len(numbers):
            return np.zeros(len(connections), np.int64)
        at = np.minimum(np.searchsorted(self._connections, connections), len(numbers) - 1)
        return np.where(self._connections[at] == connections, numbers[at], 0)

    def half_known(self, some: Any, others: Any) -> Any:
        """Return where (bool) of exactly one of two connections it is known in which virtual host it is."""
        known = [self._numbers(self._home, connections) != UNKNOWN for connections in (some, others)]
        return (known[0] != known[1]) & (some != others)

    def doubted(self, connections: Any) -> tuple[Any, Any]:
        """Return the same, but UNSURE homes where the broker has several virtual hosts."""
        home, broker = self.of(connections)
        return np.where((home == UNKNOWN) & np.isin(broker, self._shared), UNSURE, home), broker


def _brokers_of(homes: Any, brokers: Any) -> Any:
    """Return the broker of each known home, once."""
    homes, at = np.unique(homes, return_index=True)
    return brokers[at[homes >= FIRST]]


def _known(groups: Any, values: Any, count: int) -> Any:
    """Return the largest known value (int64, not 0) of each group; 0 where there is none."""
    order = np.lexsort((values.view(np.uint64), groups))
    found = np.zeros(count, np.int64)
    found[groups[order]] = values[order]
    return found
