"""What is wrong: the findings of the rules, and what to say where nothing is."""

from typing import Any

from amqpscope.dashboards import relations
from amqpscope.dashboards.section import Finding
from amqpscope.dashboards.tables import Tables
from amqpscope.pipelines.findings import CLEAR, NOT_MEASURABLE

Row = dict[str, Any]
MOST = 60
"""Findings that are listed; what is left out is counted."""


def read(tables: Tables) -> tuple[list[Row], list[Row]]:
    """Return the findings of statistics, and the states of the rules; computed where they lack them.

    Raises:
        ReadError: a table cannot be read.
    """
    return relations.rows(tables, "findings"), relations.rows(tables, "rules")


def calm(rules: list[Row]) -> str:
    """Return what to say where nothing fires: never more than what was judged."""
    judged = sum(row["state"] == CLEAR for row in rules)
    unknown = [row for row in rules if row["state"] == NOT_MEASURABLE]
    if len(unknown) > judged:
        return f"Nothing could be judged: {unknown[0]['reason']}."
    text = f"None of {judged} rules found anything wrong in what was read."
    if unknown:
        text += f" {len(unknown)} could not be judged: {unknown[0]['reason']} (amqpscope summary --states)."
    return text


def finding(row: Row, low_ns: int = 0) -> Finding:
    """Return what the page shows of a finding.

    Args:
        row: of the table `findings`.
        low_ns: from when on its time is counted (ns since the epoch).
    """
    first, last = row["first_ts_ns"], row["last_ts_ns"]
    span = None if first is None else ((first - low_ns) // 1000, ((first if last is None else last) - low_ns) // 1000)
    return Finding(
        row["severity"],
        row["text"],
        row["advice"],
        row["first_packet"],
        row["first_capture"],
        first,
        row["filter"] or "",
        row["code"] or "",
        span,
    )
