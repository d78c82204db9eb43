"""Verdicts: connections that failed or ended badly, grouped by what went wrong, with a ladder of each kind."""

import json
import re
from typing import Any

import pyarrow.compute as pc

from amqpscope.dashboards import theme, units
from amqpscope.dashboards.section import Cell, Figure, Grid, Key, Section, left_out, number
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.handshakes import ladder
from amqpscope.dissector.handshakes.ladder import Step
from amqpscope.dissector.handshakes.listing import COLUMNS, TEXTS, Group, Listing, cause_of, ends_of, sentence
from amqpscope.dissector.handshakes.verdict import say
from amqpscope.spec import handshakes
from amqpscope.spec.handshakes import Cause

GROUPS = 20
"""Groups that are listed."""
LADDERS = 4
"""Kinds of verdict that are drawn, each by the first connection that has it."""
STEPS = 24
"""Steps drawn of a ladder; of longer ones the last."""
NOTES = 12
"""Kinds of notes that are listed."""

_NAME = re.compile(r"[a-z0-9 .()-]{1,40}")
_ROW = 34
"""Height of a step in CSS pixels."""


def query(tables: Tables) -> Listing:
    """All connections that failed or ended badly, in groups, worst first; and what is noted of any."""
    listing = Listing(handshakes.load())
    dataset = tables.dataset("connections")
    if dataset is None or not set(COLUMNS) <= set(dataset.schema.names):
        return listing
    telling = pc.field("severity").isin(["error", "warning"]) | pc.field("handshake_notes").is_valid()
    for batch in tables.scan("connections", list(COLUMNS), telling):
        for row in batch.to_pylist():
            if _known(row, listing.handshakes):
                listing.add(row)
    return listing


def _known(row: dict[str, Any], known: handshakes.Handshakes) -> bool:
    """Whether codes and JSON are of the kind that `dissect` writes; folders may come from anywhere."""
    try:
        documents = [json.loads(row[name] or "null") for name in TEXTS]
    except (ValueError, RecursionError):
        return False
    codes = {row["handshake_outcome"], row["ending"] or row["handshake_outcome"]}
    return codes <= known.causes.keys() and all(d is None or isinstance(d, list | dict) for d in documents)


def section(tables: Tables) -> Section:
    """The section of verdicts."""
    page = Section("verdicts", "What went wrong")
    listing = query(tables)
    groups = [g for g in listing.worst_first if g.first["severity"] in ("error", "warning")]
    if not groups:
        page.empty = "No connection failed or ended badly." if tables.rows("connections") else "No connections."
        return page
    page.lead = "Connections that never came up, then those that ended badly. The codes are explained below."
    page.parts.append(_grid(groups, listing))
    kinds: dict[str, tuple[Cause, Group]] = {}
    for group in groups:
        cause = cause_of(group.first, listing.handshakes)
        kinds.setdefault(cause.code, (cause, group))
    page.parts.append(_meanings(list(kinds.values())))
    failed = [kind for kind in kinds.values() if kind[0].severity == "error"]
    for place, (cause, group) in enumerate(failed[:LADDERS]):
        steps = ladder.steps(group.first)
        if steps:
            page.parts += [_ladder(place, cause, group.first, steps), _said(group.first, steps)]
    if listing.notes:
        page.parts.append(_notes(listing))
    return page


def draw(ax: Any, steps: list[Step]) -> None:
    """Draw both sides as lines and each step as an arrow between them; the verdict rests on the red ones."""
    narrow = theme.is_narrow(ax)
    left, right = (0.3, 1.0) if narrow else (0.22, 0.86)
    ax.set_axis_off()
    ax.set_xlim(0, 1.02)
    ax.set_ylim(len(steps) - 0.3, -1.0)
    for x, side in ((left, "client"), (right, "server")):
        ax.plot([x, x], [-0.6, len(steps) - 0.4], color=theme.INK["rule"], linewidth=1.2, zorder=1)
        ax.text(x, -0.75, side, color=theme.INK["muted"], ha="center" if x < 1 else "right", va="bottom")
    for place, step in enumerate(steps):
        ink = theme.INK["red" if step.is_proof else "blue"]
        begin, end = (left, right) if step.from_client else (right, left)
        ax.annotate(
            "", xy=(end, place), xytext=(begin, place),
            arrowprops={"arrowstyle": "-|>", "color": ink, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip
        name = step.name if _NAME.fullmatch(step.name.lower()) else "?"
        ax.text((left + right) / 2, place - 0.14, name, color=theme.INK["ink"], ha="center", va="bottom")
        packet = "" if step.packet is None else f"#{step.packet}"
        time = units.duration(step.since_ns) if step.since_ns else "0"
        ax.text(left - 0.02, place, time, color=theme.INK["muted"], ha="right", va="center")
        ax.text(left - (0.18 if narrow else 0.1), place, packet, color=theme.INK["muted"], ha="right", va="center")
        if not narrow and step.took_ns is not None:
            ax.text(right + 0.02, place, f"+{units.duration(step.took_ns)}", color=theme.INK["muted"], va="center")


def _ladder(place: int, cause: Cause, row: dict[str, Any], steps: list[Step]) -> Figure:
    client, server = ends_of(row)
    shown = steps[-STEPS:]
    what = sentence(row)
    sent = ", ".join(f"{'client' if s.from_client else 'server'} {s.name}" for s in shown)
    return theme.render(
        f"ladder{place}",
        [draw],
        shown,
        title=f"{cause.code}: {client} → {server}",
        legend=[Key("red", "proves the verdict", "→")] if any(s.is_proof for s in shown) else [],
        height=_ROW * (len(shown) + 1),
        alt=f"Ladder of the handshake: {sent}.",
        caption=f"{what[:1].upper()}{what[1:]}. On the left the packet and the time since the first one, on the right, "
        f"where there is room, the time since the step before{'; the last steps only' if len(steps) > STEPS else ''}.",
    )


def _said(row: dict[str, Any], steps: list[Step]) -> Grid:
    """The same in words, with what each step said."""
    client, server = ends_of(row)
    return Grid(
        "Its steps in words",
        ["packet", "time", "from", "step", "after", "what it says"],
        [
            [
                number(units.count(s.packet)),
                number(units.duration(s.since_ns)),
                Cell(client if s.from_client else server, "mono"),
                Cell(s.name, "bad" if s.is_proof else "text"),
                number(units.duration(s.took_ns)),
                Cell(s.detail or units.NONE),
            ]
            for s in steps[-STEPS:]
        ],
        folded=True,
    )


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
                Cell(sentence(g.first), "prose"),
            ]
            for g in groups[:GROUPS]
        ],
        left_out(min(len(groups), GROUPS), len(groups), "groups"),
    )


def _who(group: Group) -> str:
    client, server = ends_of(group.first)
    if group.count > 1:
        client = group.first["client_ip"] if len(group.clients) == 1 else f"{len(group.clients)} clients"
    return f"{client} → {server}"


def _pace(group: Group) -> str:
    return f", every {units.duration(group.every_ns)}" if group.count > 2 and group.every_ns else ""


def _meanings(kinds: list[tuple[Cause, Group]]) -> Grid:
    rows = []
    for cause, group in kinds:
        facts = json.loads(group.first["handshake_facts"] or "{}")
        what = say(cause.meaning, facts), say(cause.remedy, facts)
        rows.append([Cell(cause.code), *(Cell(text, "prose") for text in what)])
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
    return Grid("Also noted", ["note", "times", "meaning", "first connection", "what it said"], rows)
