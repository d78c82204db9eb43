"""How large messages are: a bar for each doubling of the size, published and delivered apart."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from amqpscope.dashboards import units
from amqpscope.dashboards.chart import Boxes, Chart, Mark, Panel, Scale, linear
from amqpscope.dashboards.section import Figure, Key, Section
from amqpscope.dashboards.tables import Tables

KINDS = (("publish", "published", "blue"), ("deliver", "delivered", "green"))
OCTAVES = 64


def query(tables: Tables) -> dict[str, np.ndarray]:
    """Return, by kind of message, the number with a body of 0, 1, 2 to 3, 4 to 7, ... bytes (int64 of OCTAVES)."""
    found = {}
    for kind, *_ in KINDS:
        counts = np.zeros(OCTAVES, np.int64)
        for rows in tables.scan("messages", ["body_size"], (pc.field("kind") == kind) & (pc.field("body_size") >= 0)):
            _, octave = np.frexp(rows["body_size"].to_numpy().astype(np.float64))
            counts += np.bincount(np.minimum(octave, OCTAVES - 1), minlength=OCTAVES)
        if counts.any():
            found[kind] = counts
    return found


def drawn(found: dict[str, np.ndarray]) -> Chart:
    """Return the bars, those of each kind beside each other."""
    there = np.flatnonzero(sum(found.values(), np.zeros(OCTAVES, np.int64)))
    first, last = int(there[0]), int(there[-1])
    octaves = np.arange(first, last + 1)
    marks: list[Mark] = []
    wide = 0.8 / len(found)
    for place, (kind, _, colour) in enumerate(k for k in KINDS if k[0] in found):
        left = octaves + 0.1 + place * wide
        marks.append(Boxes(left, left + wide, np.zeros(len(octaves)), found[kind][octaves], colour))
    step = -(-(last - first + 1) // 10)
    ticks = [(float(o), "0" if o == 0 else units.size(2 ** (o - 1))) for o in range(first, last + 2, step)]
    most = max(int(counts.max()) for counts in found.values())
    across = Scale(
        (float(first), float(last + 1)), ticks=ticks, title="size of the body; each bar ends at twice its begin"
    )
    return Chart(across, [Panel(linear(most, 4, "messages"), marks, 150)])


def section(tables: Tables) -> Section:
    """Return the section of sizes."""
    page = Section("sizes", "Message sizes")
    found = query(tables)
    if not found:
        page.empty = "No messages, or the tables of `amqpscope dissect` are not there."
        return page
    largest = {kind: units.size(2 ** int(np.flatnonzero(counts)[-1])) for kind, counts in found.items()}
    total = {kind: units.count(int(counts.sum())) for kind, counts in found.items()}
    names = {kind: name for kind, name, _ in KINDS}
    text = "; ".join(f"{total[kind]} {names[kind]}, all below {largest[kind]}" for kind in found)
    keys = [Key(colour, name) for kind, name, colour in KINDS if kind in found]
    page.parts.append(Figure("Sizes of bodies", drawn(found), f"Sizes of message bodies: {text}.", f"{text}.", keys))
    return page
