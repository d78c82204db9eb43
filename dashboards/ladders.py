"""Ladders: the handshake of one connection as arrows between both sides, and its steps in words."""

import re
from typing import Any

from amqpscope.dashboards import theme, units
from amqpscope.dashboards.section import Cell, Figure, Grid, Key, number
from amqpscope.dissector.handshakes.ladder import Step
from amqpscope.dissector.handshakes.listing import ends_of, sentence
from amqpscope.spec.handshakes import Cause

STEPS = 24
"""Steps drawn of a ladder; of longer ones the last."""

_NAME = re.compile(r"[a-z0-9 .()-]{1,40}")
_HEAD = 0.006
"""Half the length of an arrow's head, as a part of the width."""
_ROW = 34
"""Height of a step in CSS pixels."""


def draw(ax: Any, steps: list[Step]) -> None:
    """Draw both sides as lines and each step as an arrow between them; the verdict rests on the red ones."""
    left, right = 0.22, 0.86
    ax.set_axis_off()
    ax.set_xlim(0, 1.02)
    ax.set_ylim(len(steps) - 0.3, -1.0)
    for x, side in ((left, "client"), (right, "server")):
        ax.plot([x, x], [-0.6, len(steps) - 0.4], color=theme.INK["rule"], linewidth=1.2, zorder=1)
        ax.text(x, -0.75, side, color=theme.INK["muted"], ha="center", va="bottom")
    for from_client in (True, False):
        end, head = (right, ">") if from_client else (left, "<")
        tip = end - _HEAD if from_client else end + _HEAD
        for is_proof, colour in ((False, "blue"), (True, "red")):
            places = [i for i, s in enumerate(steps) if (s.from_client, s.is_proof) == (from_client, is_proof)]
            ax.hlines(places, left, right, color=theme.INK[colour], linewidth=1.3)
            ax.plot([tip] * len(places), places, head, color=theme.INK[colour], markersize=4.5)
    for place, step in enumerate(steps):
        name = step.name if _NAME.fullmatch(step.name.lower()) else "?"
        ax.text((left + right) / 2, place - 0.14, name, color=theme.INK["ink"], ha="center", va="bottom")
        packet = "" if step.packet is None else f"#{step.packet}"
        time = units.duration(step.since_ns) if step.since_ns else "0"
        ax.text(left - 0.02, place, time, color=theme.INK["muted"], ha="right", va="center")
        ax.text(left - 0.1, place, packet, color=theme.INK["muted"], ha="right", va="center")
        if step.took_ns is not None:
            ax.text(right + 0.02, place, f"+{units.duration(step.took_ns)}", color=theme.INK["muted"], va="center")


def figure(place: int, cause: Cause, row: dict[str, Any], steps: list[Step]) -> Figure:
    """Return the drawing of one handshake."""
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
        caption=f"{what[:1].upper()}{what[1:]}. On the left the packet and the time since the first one, on the right "
        f"the time since the step before{'; the last steps only' if len(steps) > STEPS else ''}.",
    )


def in_words(row: dict[str, Any], steps: list[Step]) -> Grid:
    """Return the same in words, with what each step says."""
    client, server = ends_of(row)
    return Grid(
        "Its steps in words",
        ["packet", "time", "from", "step", "after", "detail"],
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
