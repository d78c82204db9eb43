"""What is wrong: the findings of the rules, as the first section of the page."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from amqpscope.dashboards.section import Finding, Section, of_all
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.places import Place, readable
from amqpscope.pipelines.findings import CLEAR, NOT_MEASURABLE
from amqpscope.pipelines.folder import parts
from amqpscope.pipelines.relations import compute

Row = dict[str, Any]
MOST = 60
"""Findings that are listed; what is left out is counted."""


def read(folder: Place) -> tuple[list[Row], list[Row]]:
    """Return the findings of a folder of statistics, and the states of the rules; computed where it lacks them.

    Raises:
        ReadError: a table cannot be read.
    """
    lacking = [name for name in compute.FINDINGS if not parts(folder, name)]
    made = dict(compute.of_folder(folder, lacking)) if lacking else {}
    found, states = (
        made[name]
        if name in made
        else pa.concat_tables([pq.read_table(readable(path)) for path in parts(folder, name)])
        for name in compute.FINDINGS
    )
    return found.to_pylist(), states.to_pylist()


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


def section(tables: Tables) -> Section:
    """Return the first section of the page."""
    page = Section("findings", "Findings")
    if tables.analyzed is None:
        page.empty = "Findings come from statistics: `amqpscope analyze` makes them."
        return page
    rows, rules = read(tables.analyzed)
    page.findings = [
        Finding(
            row["severity"],
            row["text"],
            row["advice"],
            row["first_packet"],
            row["first_capture"],
            row["first_ts_ns"],
            row["filter"] or "",
        )
        for row in rows[:MOST]
    ]
    if not rows:
        page.empty = calm(rules)
    elif len(rows) > MOST:
        page.note = of_all(MOST, len(rows))
    return page
