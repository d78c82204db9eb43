"""Ladders: the handshake of one connection, step by step; arrows show which side sent a step."""

from typing import Any

from amqpscope.dashboards import units
from amqpscope.dashboards.section import Cell, Grid, number
from amqpscope.dissector.handshakes.ladder import Step
from amqpscope.dissector.handshakes.listing import ends_of, sentence
from amqpscope.spec.handshakes import Cause

STEPS = 24
"""Steps shown of a ladder; of longer ones the last."""


def grid(cause: Cause, row: dict[str, Any], steps: list[Step]) -> Grid:
    """Return the steps of one handshake, those that prove the verdict marked, and what each says."""
    client, server = ends_of(row)
    what = sentence(row)
    return Grid(
        f"{cause.code}: {client} \N{RIGHTWARDS ARROW} {server}",
        ["packet", "time", "client", "step", "server", "after", "detail"],
        [
            [
                number(units.count(s.packet)),
                number(units.duration(s.since_ns)),
                Cell("\N{EM DASH}" if s.from_client else "\N{LEFTWARDS ARROW}"),
                Cell(f"{s.name} (proof)" if s.is_proof else s.name, "bad" if s.is_proof else "text"),
                Cell("\N{RIGHTWARDS ARROW}" if s.from_client else "\N{EM DASH}"),
                number(units.duration(s.took_ns)),
                Cell(s.detail or units.NONE),
            ]
            for s in steps[-STEPS:]
        ],
        f"{what[:1].upper()}{what[1:]}.{' The last steps only.' if len(steps) > STEPS else ''}",
    )
