"""Show the verdicts on connections: the number that came up, and of these the number that ended badly; nothing else."""

import pyarrow.compute as pc

from amqpscope.dashboards import units
from amqpscope.dashboards.section import Section
from amqpscope.dashboards.tables import Tables

_ONLY = "What was refused, returned or blocked on connections that came up is under Findings."


def sentence(tables: Tables) -> str:
    """Return how connections fared; empty where their verdicts are not known."""
    total = tables.rows("connections")
    if not total or not {"ending", "severity"} <= tables.columns("connections"):
        return ""
    bad = pc.field("severity").isin(["error", "warning"])
    came_up = tables.rows("connections", pc.field("ending").is_valid())
    badly = tables.rows("connections", pc.field("ending").is_valid() & bad)
    failed = tables.rows("connections", pc.field("ending").is_null() & bad)
    endings = "none ended badly" if not badly else f"{units.count(badly)} ended badly"
    if badly == came_up > 1:
        endings = f"all {units.count(badly)} ended badly"
    parts = [f"{units.count(came_up)} of {units.count(total)} came up"]
    parts += [endings] if came_up else []
    parts += [f"{units.count(failed)} failed before that"] if failed else []
    other = total - came_up - failed
    parts += [f"{units.count(other)} without a verdict"] if other else []
    return f"Connections: {', '.join(parts)}."


def section(tables: Tables) -> Section:
    """Return the section of verdicts."""
    page = Section("verdicts", "Verdicts on connections")
    if not tables.rows("connections"):
        page.empty = "No connections."
        return page
    text = sentence(tables)
    telling = pc.field("severity").isin(["error", "warning"]) | pc.field("handshake_notes").is_valid()
    if tables.rows("connections", telling):
        from amqpscope.dashboards import failures  # noqa: PLC0415 - loads the dissector

        page.parts = failures.parts(tables)
    if page.parts:
        page.lead = f"{text} {_ONLY}".strip()
    else:
        page.empty = f"{text or 'The verdicts on these connections are not known.'} {_ONLY}"
    return page
