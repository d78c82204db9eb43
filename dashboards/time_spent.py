"""One sentence about where the time of a connection went, of a row of `time_spent`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from amqpscope.dissector.formatting import duration
from amqpscope.pipelines.findings import size

Row = Mapping[str, Any]
OWNERS = {
    "unknown_ns": "cannot be told (bytes, a direction or keys are missing)",
    "network_ns": "on the way or held by TCP",
    "broker_ns": "the client waits for the broker",
    "client_ns": "the broker waits for the client",
    "idle_ns": "no wait seen",
}
"""Who has a share of the time, in the order in which a moment is theirs, and what is said of it."""
SHORT = 0.02
"""Connections that last no longer than this share of the longest one are not shown."""
LEAST = 0.01
"""Share of the time below which an owner is not named."""
NEAR = {
    "client": "captured near the client",
    "server": "captured near the broker",
    "between": "captured between the two",
    "same host": "captured on the host of both",
}


def sentence(row: Row) -> str:
    """Return where the time of a connection went, largest share first, and where it was captured."""
    wall = row["wall_ns"]
    if not wall:
        return "no time passed"
    shares = sorted(((row[name] / wall, name) for name in OWNERS), reverse=True)
    said = [f"{share:.0%} {OWNERS[name]}{_why(row, name)}" for share, name in shares if share >= LEAST]
    notes = [NEAR[row["captured_near"]]] if row["captured_near"] in NEAR else []
    return "; ".join([f"{duration(wall)}: {', '.join(said)}", *notes])


def _why(row: Row, name: str) -> str:
    if name == "broker_ns" and row["blocked_ns"] >= LEAST * row["wall_ns"]:
        return f" (blocked for {duration(row['blocked_ns'])})"
    if name == "network_ns" and row["retransmitted_bytes"]:
        return f" ({size(row['retransmitted_bytes'])} were sent again)"
    return ""


def telling(rows: Iterable[Row], findings: Iterable[Row], most: int) -> list[Row]:
    """Return the connections whose time is worth a line: of clients that findings name, then those that waited longest.

    Args:
        rows: of `time_spent`.
        findings: of `findings`, worst first.
        most: number of connections at most. Those on which nobody waited, or nothing can be told, are left out; so are
            those that are short beside others, or of a client of which another one says the same but for figures.
    """
    rows = list(rows)
    of = {row["connection_id"]: (row["client"] or row["connection_id"], row["server"]) for row in rows}
    named = {of.get(row["connection_id"]): -at for at, row in reversed(list(enumerate(findings)))}
    brief = SHORT * max((row["wall_ns"] for row in rows), default=0)
    waiting = [
        row for row in rows
        if row["wall_ns"] >= brief and max(row["idle_ns"], row["unknown_ns"]) < row["wall_ns"] * (1 - LEAST)
    ]  # fmt: skip
    waiting.sort(
        key=lambda row: (named.get(of[row["connection_id"]], -len(named) - 1), row["wall_ns"] - row["idle_ns"]),
        reverse=True,
    )
    distinct: dict[tuple[Any, str], Row] = {}
    for row in waiting:
        if len(distinct) == most:
            break
        who, _ = of[row["connection_id"]]
        distinct.setdefault((who, re.sub(r"[0-9.]+", "", sentence(row))), row)
    return list(distinct.values())


def by_connection(rows: Sequence[Row]) -> dict[int, str]:
    """Return the sentence of each connection."""
    return {row["connection_id"]: sentence(row) for row in rows}
