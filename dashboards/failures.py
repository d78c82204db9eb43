"""Connections that failed or ended badly, grouped by what went wrong, with what it means and a ladder of each kind.

Reads what the dissector says of handshakes with the dissector's own code, which takes a while to load: `verdicts` does
that only where there is something to show.
"""

import json
from typing import Any

import pyarrow.compute as pc

from amqpscope.dashboards import ladders, units
from amqpscope.dashboards.section import Cell, Figure, Grid, Single, number, of_all
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.handshakes import ladder
from amqpscope.dissector.handshakes.listing import (
    COLUMNS,
    OF_FIRST,
    TEXTS,
    Group,
    Listing,
    by_cause,
    cause_of,
    ends_of,
    said_of,
    sentence,
)
from amqpscope.spec import handshakes
from amqpscope.spec.handshakes import Cause

GROUPS = 1_000
"""Groups that are listed."""
LADDERS = 3
"""Kinds of verdict that are drawn, each by the first connection that has it."""
NOTES = 12
"""Kinds of notes that are listed."""


def query(tables: Tables) -> Listing:
    """Return all connections that failed or ended badly, in groups, worst first; and what is noted of any."""
    listing = Listing(handshakes.load())
    if not set(COLUMNS) <= tables.columns("connections"):
        return listing
    telling = pc.field("severity").isin(["error", "warning"]) | pc.field("handshake_notes").is_valid()
    for batch in tables.scan("connections", list(COLUMNS), telling):
        for row in batch.to_pylist():
            if _known(row, listing.handshakes):
                listing.add(row)
    return listing


def _known(row: dict[str, Any], known: handshakes.Handshakes) -> bool:
    """Return whether codes and JSON are of the kind that `dissect` writes; folders may come from anywhere."""
    try:
        documents = [json.loads(row[name] or "null") for name in TEXTS]
    except (ValueError, RecursionError):
        return False
    codes = {row["handshake_outcome"], row["ending"] or row["handshake_outcome"]}
    return codes <= known.causes.keys() and all(d is None or isinstance(d, list | dict) for d in documents)


def parts(tables: Tables) -> list[Figure | Grid | Single]:
    """Return the tables and drawings, worst first, then what is noted of connections that fared well."""
    listing = query(tables)
    groups = [g for g in listing.worst_first if g.first["severity"] in ("error", "warning")]
    made: list[Figure | Grid | Single] = []
    if groups:
        kinds = by_cause(groups, listing.handshakes)
        made += [_grid(groups, listing), _meanings(kinds)]
        failed = [kind for kind in kinds if kind[0].severity == "error"]
        for cause, (group, *_) in failed[:LADDERS]:
            steps = ladder.steps(group.first)
            if steps:
                made.append(ladders.grid(cause, group.first, steps))
    if listing.notes:
        made.append(_notes(listing))
    return made


def _grid(groups: list[Group], listing: Listing) -> Grid:
    return Grid(
        "Connections by verdict",
        ["verdict", "connections", "client → server", "reached", "first (UTC)", "what happened"],
        [
            [
                Cell(cause_of(g.first, listing.handshakes).code, "bad" if g.first["severity"] == "error" else "text"),
                number(units.count(g.count)),
                Cell(_who(g), "mono"),
                Cell(g.first["handshake_stage"] or units.NONE),
                Cell(units.instant(g.first["first_ts_ns"], 1_000_000) + _pace(g)),
                Cell(sentence(g.first) + ("" if g.is_uniform else f" ({OF_FIRST})"), "prose"),
            ]
            for g in groups[:GROUPS]
        ],
        of_all(min(len(groups), GROUPS), len(groups)),
    )


def _who(group: Group) -> str:
    client, server = ends_of(group.first)
    if group.count > 1:
        client = group.first["client_ip"] if len(group.clients) == 1 else f"{len(group.clients)} clients"
    return f"{client} → {server}"


def _pace(group: Group) -> str:
    return f", every {units.duration(group.every_ns)}" if group.count > 2 and group.every_ns else ""


def _meanings(kinds: list[tuple[Cause, list[Group]]]) -> Grid:
    rows = [
        [Cell(cause.code), *(Cell(said_of(text, groups), "prose") for text in (cause.meaning, cause.remedy))]
        for cause, groups in kinds
    ]
    return Grid("What it means, and what to do", ["verdict", "means", "do"], rows)


def _notes(listing: Listing) -> Grid:
    rows = []
    for code, kept in list(listing.notes.items())[:NOTES]:
        row, note = kept[0]
        rows.append(
            [
                Cell(code),
                number(units.count(listing.noted[code])),
                Cell(listing.handshakes.notes[code], "prose"),
                Cell(" → ".join(ends_of(row)), "mono"),
                Cell(note.get("detail") or units.NONE),
            ]
        )
    return Grid("Also noted", ["note", "times", "meaning", "first connection", "detail"], rows)
