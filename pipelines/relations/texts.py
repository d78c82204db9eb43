"""The SQL texts of relations, and the order in which they are computed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from graphlib import TopologicalSorter
from importlib.resources import files

from amqpscope.spec.findings import load

MADE = ("routes", "routed", "clock")
"""Tables that Python makes, of statistics and CHANGES, for the texts that read them."""
CHANGES = "changes"
"""The relation that runs before them; it reads statistics alone."""
SOURCES = (
    "endpoints", "operations", "published", "confirms", "settlements", "rpcs", "transits", "flow_control",
    "latency_summary", "stream_deliveries", "stream_credit",
    "heartbeats", "channel_errors", "failures", "captures", "gaps", "deaths", "tcp_delays", "calls", "violations",
    "stream_metadata", "unconfirmed",
)  # fmt: skip
"""Statistics that they read."""
_NAMED = re.compile(r"\b(?:from|join)\s+([a-z_0-9]+)")
_COMMON = re.compile(r"(?:\bwith|,)\s+([a-z_0-9]+)\s+as\s*\(")


@cache
def texts() -> dict[str, str]:
    """Return the texts by the names of their tables, each after those that it reads."""
    folder = files("amqpscope.pipelines.relations")
    found = {
        each.name.removesuffix(".sql"): each.read_text(encoding="utf-8")
        for each in folder.iterdir()
        if each.name.endswith(".sql")
    }
    of = {name: sorted(tables_of(text) & found.keys()) for name, text in sorted(found.items())}  # the same in all runs
    return {name: found[name] for name in TopologicalSorter(of).static_order()}


@cache
def tables_of(text: str) -> frozenset[str]:
    """Return the tables that a text reads; common table expressions are none."""
    code = re.sub(r"--[^\n]*|'[^']*'", "", text)
    return frozenset(_NAMED.findall(code)) - frozenset(_COMMON.findall(code))


@cache
def begins_with(name: str) -> str | None:
    """Return the table without whose rows a relation has none, as its text says; None: it says nothing."""
    found = re.search(r"^-- None without rows of ([a-z_0-9]+)\.$", texts()[name], re.MULTILINE)
    return found and found[1]


@cache
def read_by_rules() -> set[str]:
    """Return the tables that our rules of findings read."""
    return set().union(*(tables_of(f"{rule.sql} {rule.applies} {rule.unsure}") for rule in load()))


def needed(names: Iterable[str]) -> tuple[str, ...]:
    """Return the texts that run for some relations, in order: CHANGES first, where any of MADE is wanted."""
    wanted, of = set(names), texts()
    for name in reversed(of):
        if name in wanted:
            wanted |= tables_of(of[name])
    if wanted & {*MADE}:
        wanted.add(CHANGES)
    return tuple(name for name in dict.fromkeys((CHANGES, *of)) if name in wanted)
