"""What a view hands to the page: words, figures and tables, without any markup of the page.

Text is plain and not yet safe to show: the template escapes it, and spells out what is invisible.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from amqpscope.dashboards import units


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: What is shown.
        kind: `text`, `number` (right-aligned), `filter` (a display filter to copy), `muted`, or `bad` (stands out).
        title: The whole text, where what is shown is short for it.
    """

    text: str
    kind: str = "text"
    title: str = ""


@dataclass(frozen=True)
class Grid:
    """A table: a caption, column heads, rows of cells, and what was left out."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Key:
    """A line of a legend: the name of a colour in the theme, what it stands for, and the shape that has it."""

    colour: str
    text: str
    shape: str = "\N{BLACK SQUARE}"


@dataclass(frozen=True)
class Figure:
    """A drawing, made by `theme.render`.

    Attributes:
        title: Heading.
        drawing: SVG.
        alt: What it shows, in words.
        caption: Text below.
        legend: What the colours stand for.
    """

    title: str
    drawing: str
    alt: str
    caption: str
    legend: Sequence[Key] = ()


@dataclass(frozen=True)
class Single:
    """What stands in the place of a chart where there are too few samples to draw: the numbers themselves."""

    title: str
    text: str


@dataclass(frozen=True)
class Finding:
    """Something that went wrong.

    Attributes:
        severity: error, warning or note.
        text: What, and how often.
        advice: What to do.
        packet: Packet that shows the first of it; None when that is not known.
        capture: File that the packet is in.
        ts_ns: When that was.
        filter: Wireshark filter for all of it, or for that packet.
    """

    severity: str
    text: str
    advice: str
    packet: int | None = None
    capture: str | None = None
    ts_ns: int | None = None
    filter: str = ""

    @property
    def first(self) -> str:
        """Return the place of its first packet."""
        if self.packet is None:
            return ""
        where = f" of {self.capture}" if self.capture else ""
        return f"first: packet {self.packet}{where}, {units.instant(self.ts_ns)} UTC"


@dataclass(frozen=True)
class Reading:
    """One value with its name, as on the face of an instrument."""

    name: str
    value: str
    kind: str = ""


@dataclass
class Section:
    """A part of the page.

    Attributes:
        anchor: Identifier within the page.
        title: Heading.
        lead: One or two sentences that say what is seen here.
        empty: Why there is nothing to see; nothing else is shown then.
        readings: Values that stand before the rest.
        losses: Values of what was lost.
        findings: What went wrong, worst first.
        parts: Figures and tables.
        note: What stands below everything.
    """

    anchor: str
    title: str
    lead: str = ""
    empty: str = ""
    readings: list[Reading] = field(default_factory=list)
    losses: list[Reading] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    parts: list[Figure | Grid | Single] = field(default_factory=list)
    note: str = ""


def number(text: str, *, bad: bool = False) -> Cell:
    """Return a right-aligned cell, standing out when it is bad news."""
    return Cell(text, "number bad" if bad else "number")


def missing(table: str, *, there: bool, nothing: str) -> str:
    """Return why a section is empty: its table is missing, or has no rows."""
    return nothing if there else f"There is no table `{table}`."


def of_all(shown: int, total: int) -> str:
    """Return the note below a table that shows only the first rows."""
    return f"{units.count(shown)} of {units.count(total)} shown." if total > shown else ""
