"""What things are called in the texts of findings, where their names alone do not say which is meant."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from amqpscope.spec.findings import Rule

Select = Callable[[str], list[dict[str, Any]]]
"""Runs a select over statistics and relations, and returns its rows."""
BY = ("who",)
"""Values besides `client` that may be the name of the client."""


class Called:
    """What queues and clients of a capture are called."""

    def __init__(self, select: Select) -> None:
        self._select = select

    def named(self, rule: Rule, row: dict[str, Any]) -> dict[str, Any]:
        """Return values of a finding with what differs from them in texts (`said`), where anything does."""
        said = {**self._queue(row), **self._client(rule, row)}
        return {**row, "said": said} if said else row

    def _queue(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return how a queue is called whose name several virtual hosts have."""
        if not row.get("queue") or row["queue"] not in self._queues:
            return {}
        vhost = row.get("vhost") or self._vhosts.get(row.get("connection_id", -1))
        return {"queue": f"{row['queue']} of virtual host {vhost}"} if vhost else {}

    def _client(self, rule: Rule, row: dict[str, Any]) -> dict[str, Any]:
        """Return how a client is called that is an address, and one of several there, by its one connection."""
        port = self._ports.get(row.get("connection_id", -1))
        if port is None or "(" in rule.values["connection_id"] or row.get("client") != port[0]:
            return {}
        address = f"[{port[0]}]:{port[1]}" if ":" in port[0] else f"{port[0]}:{port[1]}"
        return {name: address for name in ("client", *BY) if row.get(name) == port[0]}

    @cached_property
    def _queues(self) -> set[str]:
        """The names of queues that several virtual hosts have."""
        text = (
            "select server, queue from queues where vhost <> '' group by server, queue having count(distinct vhost) > 1"
        )
        return {row["queue"] for row in self._select(text)}

    @cached_property
    def _vhosts(self) -> dict[int, str]:
        """The virtual hosts of connections."""
        rows = self._select("select connection_id, vhost from endpoints where vhost is not null")
        return {row["connection_id"]: row["vhost"] for row in rows}

    @cached_property
    def _ports(self) -> dict[int, tuple[str, int]]:
        """Address and port of connections without a name, where others from there have none either."""
        rows = self._select(
            "select n.connection_id, n.client, n.client_port from endpoints n "
            "join (select client from endpoints where client = client_ip group by client having count(*) > 1) a "
            "on n.client = a.client"
        )
        return {row["connection_id"]: (row["client"], row["client_port"]) for row in rows}
