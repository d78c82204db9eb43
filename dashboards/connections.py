"""Connections: who spoke with whom, how it began and how it ended."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dashboards import relations, units
from amqpscope.dashboards.section import Cell, Grid, Section, number, of_all
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.formatting import endpoint

MOST = 10_000
PAGE = 10
"""Connections that are listed one by one: those that failed or ended badly first, then the largest."""

_COLUMNS = [
    "connection_id",
    "protocol",
    "client_ip",
    "client_port",
    "server_ip",
    "server_port",
    "first_ts_ns",
    "last_ts_ns",
    "packets",
    "bytes",
    "frames",
    "vantage",
    "rtt_ns",
    "handshake_stage",
    "handshake_outcome",
    "ending",
    "severity",
    "closed_by",
    "vhost",
    "user",
    "lost_bytes",
    "retransmitted_bytes",
]
_BAD = ("error", "warning")


@dataclass(frozen=True)
class Endpoints:
    """Addresses of some connections, to name them by."""

    known: dict[int, dict[str, Any]]

    def name(self, connection: int | None) -> str:
        """Return client and server, with the client's name if it has one, or the identifier where it is unknown."""
        row = self.known.get(connection) if connection is not None else None
        if row is None:
            return f"connection {connection}"
        named = f"{row['client']}, " if row.get("connection_name") and row["client"] else ""
        return f"{named}{address(row, 'client')} → {address(row, 'server')}"

    def several(self, connections: Collection[int | None]) -> str:
        """Name one connection, or give the number of several."""
        one = next(iter(connections), None)
        return self.name(one) if len(connections) == 1 else units.counted(len(connections), "connection")

    def port(self, connection: int | None) -> int | None:
        """Return the client's port, by which connections of one capture differ."""
        row = self.known.get(connection) if connection is not None else None
        return row["client_port"] if row else None

    def speaks(self, protocol: str, connection: int | None) -> bool:
        """Return whether a connection speaks a protocol, as far as known."""
        row = self.known.get(connection) if connection is not None else None
        return row is None or row["protocol"] in (None, protocol)


def address(row: dict[str, Any], side: str) -> str:
    """Return address and port of a side; IPv6 in brackets."""
    return endpoint(row[f"{side}_ip"] or "?", row[f"{side}_port"])


def endpoints(tables: Tables, ids: Iterable[int | None]) -> Endpoints:
    """Look up some connections: by statistics, which have the names of clients, or by what was dissected."""
    wanted = {i for i in ids if i is not None}
    columns = ["connection_id", "client_ip", "client_port", "server_ip", "server_port", "protocol"]
    named = [*columns, "client", "connection_name"]
    found = relations.rows(tables, "endpoints", named, ("connection_id", wanted)) if wanted else []
    known = {row["connection_id"]: row for row in found}
    if wanted - known.keys():
        asked = pc.field("connection_id").isin(pa.array(sorted(wanted - known.keys()), pa.int64()))
        for batch in tables.scan("connections", columns, asked):
            known |= {row["connection_id"]: row for row in batch.to_pylist()}
    return Endpoints(known)


def query(tables: Tables, most: int = MOST) -> list[dict[str, Any]]:
    """Return the connections to list."""
    failing = pc.field("severity").isin(_BAD)
    failed = tables.top("connections", _COLUMNS, "bytes", most // 2, failing)
    seen = {r["connection_id"] for r in failed}
    rest = tables.top("connections", _COLUMNS, "bytes", most, None)
    return failed + [r for r in rest if r["connection_id"] not in seen][: most - len(failed)]


def vantages(tables: Tables) -> str:
    """Return the capture points at which connections are timed, the most used first; empty where there is only one.

    A point is named by the first file of its set: of one alone, that name says nothing, or hides the other files.
    """
    found = tables.group(
        "connections", ["vantage"], {"count": ("connection_id", "count")}, where=pc.field("vantage").is_valid()
    )
    names = [r["vantage"] for r in sorted(found.to_pylist(), key=lambda r: (-r["count"], r["vantage"])) if r["vantage"]]
    if len(names) < 2:
        return ""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def outcomes(tables: Tables) -> list[dict[str, Any]]:
    """Return the number of connections per protocol and verdict."""
    grouped = tables.group(
        "connections",
        ["protocol", "handshake_outcome", "handshake_stage", "ending", "severity"],
        {"count": ("connection_id", "count")},
    )
    return sorted(grouped.to_pylist(), key=lambda r: -r["count"])


def section(tables: Tables) -> Section:
    """Return the section of connections."""
    page = Section("connections", "Connections")
    total = tables.rows("connections")
    if not total:
        page.empty = "No connections."
        return page
    rows = query(tables, MOST)
    page.lead = "Those that failed or ended badly come first, then the ones with most bytes."
    page.parts.append(_grid(rows, total))
    silent = _silent(tables)
    if silent:
        page.parts.append(silent)
    kinds = outcomes(tables)
    if len(kinds) > 1:
        page.parts.append(
            Grid(
                "Connections by verdict",
                ["protocol", "verdict", "stage reached", "connections"],
                [
                    [
                        Cell(k["protocol"] or units.NONE),
                        _verdict(k),
                        Cell(k["handshake_stage"] or units.NONE),
                        number(units.count(k["count"])),
                    ]
                    for k in kinds[:20]
                ],
                of_all(min(len(kinds), 20), len(kinds)),
                folded=True,
            )
        )
    return page


def _silent(tables: Tables) -> Grid | None:
    """Return the connections on which a side owed heartbeats, longest silence first."""
    columns = ["connection_id", "from_client", "negotiated_s", "longest_silence_ns", "missed"]
    where = pc.field("missed") > 0
    rows = tables.top("heartbeats", columns, "longest_silence_ns", PAGE, where)
    if not rows:
        return None
    who = endpoints(tables, [r["connection_id"] for r in rows])
    return Grid(
        "Heartbeats missed",
        ["connection", "silent side", "agreed on", "longest silence", "missed"],
        [
            [
                Cell(who.name(r["connection_id"]), "mono"),
                Cell("client" if r["from_client"] else "server"),
                number(f"{r['negotiated_s']} s"),
                number(units.duration(r["longest_silence_ns"])),
                number(units.count(r["missed"]), bad=True),
            ]
            for r in rows
        ],
        of_all(len(rows), tables.rows("heartbeats", where)),
    )


def _verdict(row: dict[str, Any]) -> Cell:
    """Return the outcome of the handshake, and the ending of connections that came up."""
    codes = [c for c in (row["handshake_outcome"], row["ending"]) if c]
    return Cell(", ".join(codes) or units.NONE, "bad" if row["severity"] in _BAD else "text")


def _grid(rows: list[dict[str, Any]], total: int) -> Grid:
    points = len({r["vantage"] for r in rows}) > 1
    heads = ["client → server", "protocol", "user", "vhost", "verdict", "ended by"]
    heads += ["length", "frames", "bytes", "lost", "rtt", *(["timed at"] if points else [])]
    return Grid(
        "Connections",
        heads,
        [
            [
                Cell(f"{address(r, 'client')} → {address(r, 'server')}", "mono"),
                Cell(r["protocol"] or units.NONE),
                Cell(r["user"] or units.NONE),
                Cell(r["vhost"] or units.NONE),
                _verdict(r),
                Cell(r["closed_by"] or units.NONE),
                number(units.duration(units.between(r["first_ts_ns"], r["last_ts_ns"]))),
                number(units.count(r["frames"])),
                number(units.size(r["bytes"])),
                number(units.size(r["lost_bytes"]), bad=bool(r["lost_bytes"])),
                number(units.duration(r["rtt_ns"])),
                *([Cell(r["vantage"] or units.NONE)] if points else []),
            ]
            for r in rows
        ],
        of_all(len(rows), total),
        page=PAGE,
    )
