"""What a view hands to the page: words, figures and tables, without any markup of the page.

Text is plain and not yet safe to show: the template escapes it, and spells out what is invisible.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from amqpscope.dashboards import units
from amqpscope.dashboards.chart import Chart


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: What is shown.
        kind: `text`, `number` (right-aligned), `filter` (a display filter to copy), `muted`, `bad` (stands out), or
            `range` (drawn: `range` has its begin, a middle and its end as shares of the column; `text` says it).
        title: The whole text, where what is shown is short for it.
    """

    text: str
    kind: str = "text"
    title: str = ""
    range: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Column:
    """A column of rows that only the script shows, which makes their texts: of many rows that takes long here.

    Attributes:
        kind: See `Cell`.
        form: `text`, `count`, `instant` (of microseconds since the epoch), `packets` (their
            numbers) or `filter` (the port; the packets are those of their column).
        values: A value or list each; or the text itself, where the script could not make it.
    """

    kind: str
    form: str
    values: list[Any]


@dataclass(frozen=True)
class Grid:
    """A table: a caption, column heads, rows of cells, what was left out, and the rows that are shown at a time.

    Further rows are data for the script: those behind the first page, and then `more`, column by column.
    """

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    folded: bool = False
    page: int = 25
    more: Sequence[Column] = ()


@dataclass(frozen=True)
class Key:
    """A line of a legend: the name of a colour in the theme, what it stands for, and the shape that has it."""

    colour: str
    text: str
    shape: str = "\N{BLACK SQUARE}"


@dataclass(frozen=True)
class Figure:
    """A chart with what is said of it.

    Attributes:
        title: Heading.
        chart: What is drawn.
        alt: What it shows, in words.
        caption: Text below.
        legend: What the colours stand for.
    """

    title: str
    chart: Chart
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
        code: Of its rule.
        span: From when to when, in microseconds since the begin of the lanes; None when that is not known.
        such: How many more say the same; empty where none does.
        others: The first of these.
    """

    severity: str
    text: str
    advice: str
    packet: int | None = None
    capture: str | None = None
    ts_ns: int | None = None
    filter: str = ""
    code: str = ""
    span: tuple[int, int] | None = None
    such: str = ""
    others: Sequence["Finding"] = ()

    @property
    def place(self) -> str:
        """Return its first packet, in short."""
        return "" if self.packet is None else f"packet {self.packet}"

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
        parts: Figures, tables, and `flow.Flow`.
        folded: Whether it is shown when it is asked for.
    """

    anchor: str
    title: str
    lead: str = ""
    empty: str = ""
    readings: list[Reading] = field(default_factory=list)
    losses: list[Reading] = field(default_factory=list)
    parts: list[Any] = field(default_factory=list)
    folded: bool = False


def number(text: str, *, bad: bool = False) -> Cell:
    """Return a right-aligned cell, standing out when it is bad news."""
    return Cell(text, "number bad" if bad else "number")


def missing(table: str, *, there: bool, nothing: str) -> str:
    """Return why a section is empty: its table is missing, or has no rows."""
    return nothing if there else f"There is no table `{table}`."


def of_all(shown: int, total: int, command: str = "") -> str:
    """Return the note below a table that holds only the first rows, with the command that prints all of them."""
    return (
        f"{units.count(shown)} of {units.count(total)} shown{f': {command} prints all' if command else ''}."
        if total > shown
        else ""
    )
