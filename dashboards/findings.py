"""What is wrong: the findings of the rules, and what to say where nothing is."""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from amqpscope.dashboards import relations
from amqpscope.dashboards.section import Finding
from amqpscope.dashboards.tables import Tables
from amqpscope.pipelines.findings import CLEAR, NOT_MEASURABLE

Row = dict[str, Any]
MOST = 60
"""Findings that are listed; what is left out is counted."""
MOST_ALIKE = 20
"""Findings that are listed below another one that says the same."""
_NUMBER = re.compile(
    r"(?<!\S)\(?\d[\d,]*(?::\d\d){0,2}(?:\.\d+)?(?:\s(?:[nµm]?s|min|h|[kMG]?B))?%?(?=[).,;:]*(?:\s|$))"
)
"""Of a text, with its unit; none is part of a name or an address."""


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


def alike(rows: Sequence[Row]) -> list[list[Row]]:
    """Return findings with those that say the same of the same client: only numbers in their texts differ.

    A program that runs forty times does wrong forty times, and is one thing to mend.

    Args:
        rows: of the table `findings`, worst first; so are the lists, and each of them.
    """
    found: dict[Any, list[Row]] = {}
    for at, row in enumerate(rows):
        what = (row["code"], row["severity"], row["server"], row["client"], _NUMBER.sub("#", row["text"]))
        found.setdefault(what if row["client"] else at, []).append(row)
    return list(found.values())


def such(others: int) -> str:
    """Return how many findings more say the same; nothing where none does."""
    return f"{others:,} more such" if others else ""


def finding(row: Row, low_ns: int = 0, others: Sequence[Row] = ()) -> Finding:
    """Return what the page shows of a finding.

    Args:
        row: of the table `findings`.
        low_ns: from when on its time is counted (ns since the epoch).
        others: findings that say the same.
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
        such(len(others)),
        [finding(each | {"advice": ""}, low_ns) for each in islice(others, MOST_ALIKE)],
    )
