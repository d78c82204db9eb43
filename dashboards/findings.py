"""What went wrong, worst first: the first section of the page.

Publishes that were refused or returned, publishers that were blocked, and channels that were closed with an error
stand before everything else: nobody who reads only the first lines may take a capture with them for a good one.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc

from amqpscope.dashboards import blocked, errors, filters, groups, refusals, units
from amqpscope.dashboards.connections import endpoints
from amqpscope.dashboards.section import Finding, Section, of_all
from amqpscope.dashboards.tables import Tables, plausible

MOST_ALIKE = 6
"""Findings of one kind that are listed."""

SEVERITIES = ("error", "warning", "note")
_BLOCKED = "blocked"
"""Verdict on a connection that was blocked when the capture ended."""


def query(tables: Tables) -> tuple[list[Finding], int]:
    """Return the findings to list, worst first, and the number of all."""
    stops = blocked.findings(tables)
    kinds = [
        refusals.refused(tables),
        refusals.returned(tables),
        stops,
        *(errors.closed(tables, method) for method in errors.CLOSES),
        failed(tables, without=[_BLOCKED] if stops else []),
        refusals.unconfirmed(tables),
        errors.refused_requests(tables),
        refusals.rejected(tables),
        silent(tables),
    ]
    listed = [finding for kind in kinds for finding in kind[:MOST_ALIKE]]
    return sorted(listed, key=lambda f: SEVERITIES.index(f.severity)), sum(len(kind) for kind in kinds)


def failed(tables: Tables, without: Sequence[str]) -> list[Finding]:
    """Return the verdicts on connections that failed or ended badly."""
    made = []
    for code, severity, came_up, count, first in _verdicts(tables):
        if code not in without and severity in SEVERITIES[:2]:
            text = f"{units.counted(count, 'connection')} {'ended badly' if came_up else 'never came up'}: {code}"
            packet = first["first_packet"]
            made.append(
                Finding(
                    severity,
                    text,
                    "see Verdicts on connections",
                    packet,
                    first["first_capture"],
                    first["first_ts_ns"],
                    filters.of_packet(packet),
                )
            )
    return made


def _verdicts(tables: Tables) -> list[tuple[str, str, bool, int, dict[str, Any]]]:
    """Return verdict, severity, whether they came up, the number of connections, and the first of them.

    `connections` has it; without that table `failures` does, where they are summed by client and server.
    """
    columns = ["first_capture", "first_packet", "first_ts_ns"]
    bad = pc.field("severity").isin(list(SEVERITIES[:2]))
    if tables.has("connections"):
        keys = ["handshake_outcome", "ending", "severity"]
        found = groups.query(tables, "connections", keys, bad, "first_ts_ns", columns)
        return [(g.key[1] or g.key[0], g.key[2], g.key[1] is not None, g.count, g.first) for g in found]
    rows = [
        row
        for batch in tables.scan("failures", ["code", "severity", "came_up", "connections", *columns], bad)
        for row in batch.to_pylist()
    ]
    alike: dict[tuple[str, str, bool], list[dict[str, Any]]] = {}
    for row in rows:
        alike.setdefault((row["code"], row["severity"], row["came_up"]), []).append(row)
    return [
        (*key, sum(r["connections"] or 0 for r in members), min(members, key=lambda r: r["first_ts_ns"] or 0))
        for key, members in alike.items()
    ]


def silent(tables: Tables) -> list[Finding]:
    """Return the sides of connections that did not send the heartbeats they owed."""
    found = tables.top(
        "heartbeats",
        ["connection_id", "from_client", "negotiated_s", "missed"],
        "longest_silence_ns",
        1,
        pc.field("missed") > 0,
    )
    if not found:
        return []
    worst = found[0]
    sides = tables.rows("heartbeats", pc.field("missed") > 0)
    who = endpoints(tables, [worst["connection_id"]])
    side = "client" if worst["from_client"] else "server"
    return [
        Finding(
            "warning",
            f"Heartbeats missed in {units.counted(sides, 'direction')}; longest silence "
            f"{units.duration(worst['longest_silence_ns'])} of {worst['negotiated_s']} s agreed on",
            f"{side} of {who.name(worst['connection_id'])}",
        )
    ]


def nothing(tables: Tables) -> str:
    """Return what these tables show when there are no findings."""
    known = [
        (tables.has("confirms"), "no publish was refused or returned"),
        (tables.has("flow_control"), _unblocked(tables)),
        (errors.known(tables), "no channel was closed with an error"),
    ]
    parts = [text for there, text in known if there]
    if not parts:
        return "These tables do not show what was refused, returned or blocked."
    text = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    return f"As far as captured, {text}."


def _unblocked(tables: Tables) -> str:
    """Return what holds of publishers where no finding says that one was blocked.

    A broker also stops clients that do not know connection.blocked: it reads no more from them.
    """
    shut = (pc.field("cause") == "zero-window") & (pc.field("side") == "server")
    longest = tables.top("flow_control", [], "duration_ns", 1, shut & plausible("duration_ns"))
    if not longest:
        return "no publisher was blocked"
    shown = units.duration(longest[0]["duration_ns"])
    return f"no connection.blocked was sent (a server's TCP window was closed for up to {shown})"


def section(tables: Tables) -> Section:
    """Return the first section of the page."""
    page = Section("findings", "Findings")
    page.findings, total = query(tables)
    if page.findings:
        page.note = of_all(len(page.findings), total)
    else:
        page.empty = nothing(tables)
    return page
