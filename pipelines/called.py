"""What things are called in the texts of findings, where their names alone do not say which is meant."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from amqpscope.spec.findings import Rule

Select = Callable[[str], list[dict[str, Any]]]
"""Runs a select over statistics and relations, and returns its rows."""
BY = {"client": "connection_id", "who": "connection_id", "other": "other_connection_id"}
"""Values that may be names of clients, and those that say of which connection."""


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
        """Return how clients without names of their own are called, where others from there are called the same."""
        if not rule.is_about_one_connection:
            return {}
        known = {name: self._addresses.get(row.get(connection, -1)) for name, connection in BY.items()}
        return {name: found[1] for name, found in known.items() if found and found[0] == row.get(name)}

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
    def _addresses(self) -> dict[int, tuple[str, str]]:
        """The names of clients that are products or addresses, and the same with ports, by connection."""
        rows = self._select(
            "select n.connection_id, n.client, n.client_ip, n.client_port from endpoints n "
            "join (select client from endpoints where connection_name is null group by client having count(*) > 1) a "
            "on n.client = a.client where n.connection_name is null and n.client like '%' || n.client_ip"
        )
        return {row["connection_id"]: (row["client"], _with_port(**row)) for row in rows}


def _with_port(client: str, client_ip: str, client_port: int, **_: Any) -> str:
    """Return the name of a client that ends with its address, with the port."""
    address = f"[{client_ip}]" if ":" in client_ip else client_ip
    return f"{client.removesuffix(client_ip)}{address}:{client_port}"
