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
        wide: SVG for wide screens.
        narrow: SVG for narrow screens.
        alt: What it shows, in words.
        caption: Text below.
        legend: What the colours stand for.
    """

    title: str
    wide: str
    narrow: str
    alt: str
    caption: str
    legend: Sequence[Key] = ()


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
        parts: Figures and tables.
    """

    anchor: str
    title: str
    lead: str = ""
    empty: str = ""
    readings: list[Reading] = field(default_factory=list)
    losses: list[Reading] = field(default_factory=list)
    parts: list[Figure | Grid] = field(default_factory=list)


def number(text: str, *, bad: bool = False) -> Cell:
    """A right-aligned cell, standing out when it is bad news."""
    return Cell(text, "number bad" if bad else "number")


def missing(table: str, *, there: bool, nothing: str) -> str:
    """Why a section is empty: its table is missing, or has no rows."""
    return nothing if there else f"There is no table `{table}`."


def left_out(shown: int, total: int, what: str) -> str:
    """The note below a table that shows only the first rows."""
    return f"{units.count(total - shown)} more {what} left out." if total > shown else ""
