"""The page: all views, in the order of the questions that people ask, as one self-contained HTML file.

Every text passes `units.visible` and the template's escaping; only drawings made here, without any text of the
capture, are put in as markup. The page's content policy forbids everything but its own style and script, so that
even a mistake in escaping would load and run nothing.
"""

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

from amqpscope.dashboards import (
    captured,
    connections,
    flow,
    heatmap,
    overview,
    queues,
    relations,
    rpcs,
    sizes,
    slowest,
    staircase,
    streams,
    summary,
    svg,
    theme,
    units,
    verdicts,
    waits,
)
from amqpscope.dashboards.chart import Chart
from amqpscope.dashboards.lanes import Lane, Overview
from amqpscope.dashboards.overview import First
from amqpscope.dashboards.replacing import replacing
from amqpscope.dashboards.section import Cell, Column, Figure, Grid, Section, Single
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.tables import origin
from amqpscope.errors import Error, MissingError


class PageError(Error):
    """A file is there that the page does not replace; the message is one line."""


_DISSECTED = (captured, verdicts, sizes, connections)
_ANALYZED = (summary, heatmap, streams, waits, slowest, rpcs, staircase, queues, flow)
_OF_RELATIONS = (connections, staircase, queues, flow)
"""Views of what follows from statistics: made after the others, while that is computed."""
_FOLDED = ("verdicts", "latency", "rpcs", "connections", "sizes", "captured")
"""Sections that are shown when they are asked for."""
MOST_DATA = 8 << 20
"""Bytes of such rows in all."""
_WHOLE_TEXT = 2000
"""Nothing on the page is longer, whatever a capture holds; tables cut earlier."""

_MARKS = re.compile(rb'<meta name="amqpscope-captures" content="([^"]*)">')
_HEAD = 1 << 24
"""Bytes of a page in which its captures are named."""

_ORDER = (
    "queues", "flow", "heat", "staircase", "waits", "streams", "slowest", "verdicts", "latency", "rpcs", "connections",
    "sizes", "captured",
)  # fmt: skip


def sections(tables: Tables) -> list[Section]:
    """Return all sections that these tables can fill, in the order of the page."""
    views = [*_DISSECTED, *(_ANALYZED if tables.analyzed else ())]
    if streams in views and not tables.rows("stream_deliveries"):
        views.remove(streams)
    with ThreadPoolExecutor(1) as pool:
        computed = pool.submit(relations.prepare, tables, relations.SHOWN)
        made = [view.section(tables) for view in views if view not in _OF_RELATIONS]
        computed.result()
    made += [view.section(tables) for view in views if view in _OF_RELATIONS]
    made.sort(key=lambda s: _ORDER.index(s.anchor))
    for each in made:
        each.folded = each.anchor in _FOLDED
    return made


def notices(tables: Tables) -> list[str]:
    """Return what to know before the rest: tables that are incomplete, and what to do where there are no statistics."""
    messages = [f"`{folder}` is incomplete: {command} was interrupted." for folder, command in tables.unfinished()]
    if tables.outdated():
        messages.append(
            f"The tables in `{tables.dissected}` changed after the statistics in `{tables.analyzed}` were "
            "made: what follows is of both. Run `amqpscope analyze` again."
        )
    if tables.analyzed:
        return messages
    return [
        *messages,
        "This page shows what `amqpscope dissect` found. Latencies, confirms, flow control and slowest messages come "
        f"from `amqpscope analyze {tables.dissected or 'DIR'} -o STATS`, then `amqpscope report STATS -o FILE.html`.",
    ]


def heading(tables: Tables) -> str:
    """Return what the page is about: the capture files, or the folder where these are not known."""
    files = captured.names(tables, 3)
    total = tables.rows("captures")
    more = f" and {units.counted(total - len(files), 'more file', 'more files')}" if total > len(files) else ""
    return f"{', '.join(files)}{more}" if files else str(tables.dissected or tables.analyzed)


def render(tables: Tables, refresh_s: int = 0) -> str:
    """Return the page as text.

    Args:
        tables: what it shows.
        refresh_s: seconds after which a browser loads it again; 0: never.

    Raises:
        NotTablesError: A table cannot be read.
    """
    return assemble(
        heading(tables),
        sections(tables),
        first=overview.query(tables),
        captured=captured.sentence(tables),
        notices=notices(tables),
        marks=origin.marks(about(tables)),
        refresh=refresh_s,
    )


def assemble(
    source: str,
    parts: Sequence[Section],
    *,
    first: First | None = None,
    captured: str = "",
    notices: Sequence[str] = (),
    marks: Any = (),
    refresh: int = 0,
) -> str:
    """Return sections as a page.

    Args:
        source: what the page is about.
        parts: its sections.
        first: its first screen; None for a page without.
        captured: what was captured, in a line.
        notices: what to know before the rest.
        marks: what its captures are known by.
        refresh: seconds after which a browser loads it again; 0: never.
    """
    import jinja2  # noqa: PLC0415 - only this command pays
    from markupsafe import Markup  # noqa: PLC0415

    def shown(value: Any) -> Any:
        return units.visible(value, _WHOLE_TEXT) if isinstance(value, str) and not isinstance(value, Markup) else value

    texts = {
        name: (files("amqpscope.dashboards") / name).read_text(encoding="utf-8")
        for name in ("page.html", "page.css", "page.js")
    }
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=shown
    )
    environment.filters["cut"] = units.visible
    environment.tests["figure"] = lambda part: isinstance(part, Figure)
    environment.tests["single"] = lambda part: isinstance(part, Single)
    environment.tests["flow"] = lambda part: isinstance(part, flow.Flow)
    script = "\n".join(line.strip() for line in texts["page.js"].splitlines() if not line.strip().startswith("//"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = _Data()
    return environment.from_string(texts["page.html"]).render(
        sections=parts,
        first=first,
        captured=captured,
        refresh=refresh,
        rest=lambda grid: Markup(_packed(data.rest(grid))),  # noqa: S704 - base64
        lanes_data=Markup(_packed(_json(first.data)) if first else ""),  # noqa: S704 - base64
        lane_drawing=lambda lane, of, is_last: Markup(_lane(lane, of, is_last)),  # noqa: S704 - drawn here
        notices=notices,
        source=source,
        marks=Markup(html.escape(json.dumps(marks))),  # noqa: S704 - escaped
        style=Markup(_colours() + texts["page.css"]),  # noqa: S704 - our own files
        script=Markup(script),  # noqa: S704
        script_hash=Markup(f"sha256-{digest}"),  # noqa: S704
        drawing=lambda part: Markup(svg.markup(part.chart, part.alt)),  # noqa: S704 - drawn here
    )


def _lane(lane: Lane, of: Overview, is_last: bool) -> str:
    shades = "".join(f'<b class="shade" style="--a:{a:.5f};--b:{max(b, a + 0.001):.5f}"></b>' for a, b in of.shades)
    return svg.markup(Chart(of.x, [lane.panel]), lane.title, overlay=shades, with_axis=is_last)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _packed(text: str) -> str:
    """Return a text compressed (deflate, without header) and as base64, as the script unpacks it."""
    packer = zlib.compressobj(9, wbits=-15)
    return base64.b64encode(packer.compress(text.encode()) + packer.flush()).decode()


_PACKETS = re.compile(r"tcp\.port == (\d+) && frame\.number in \{(\d+), (\d+)\}")


def _cell(cell: Cell, kind: str) -> Any:
    """Return a cell as the script reads it: a text, or with a kind of its own; a filter for two packets as numbers."""
    if cell.kind == "range":
        return [cell.text, cell.kind, list(cell.range)]
    short = _PACKETS.fullmatch(cell.text) if cell.kind == "filter" else None
    if short:
        return [int(number) for number in short.groups()]
    text = units.visible(cell.text, 240)
    return text if cell.kind == kind else [text, cell.kind]


class _Data:
    """Rows of tables beyond the first page, as data for the script."""

    def __init__(self) -> None:
        self.left = MOST_DATA

    def rest(self, grid: Grid) -> str:
        """Return the rows of a table behind its first page, as many as there is room for, column by column.

        Columns compress better than rows. Cells without a kind of their own have that of their column.
        """
        if grid.more:
            return self._columns(grid.more)
        rows = grid.rows[grid.page :]
        kinds = [cell.kind for cell in rows[0]]
        kept = []
        for row in rows:
            cells = [_cell(cell, kind) for cell, kind in zip(row, kinds, strict=True)]
            self.left -= len(_json(cells))
            if self.left < 0:
                break
            kept.append(cells)
        return _json({"kinds": kinds, "columns": [list(column) for column in zip(*kept, strict=True)]})

    def _columns(self, columns: Sequence[Column]) -> str:
        heads = {"kinds": [each.kind for each in columns], "forms": [each.form for each in columns]}
        values = [each.values for each in columns]
        text = _json({**heads, "columns": values})
        fit = len(values[0])
        while fit and len(text) > self.left:
            fit = min(fit - 1, max(fit * self.left // len(text), 0))
            text = _json({**heads, "columns": [each[:fit] for each in values]})
        self.left -= len(text)
        return text


def about(tables: Tables) -> list[origin.Known]:
    """Return what the captures of these tables are known by."""
    folder = tables.dissected or tables.analyzed
    return origin.of_tables(folder) if folder else []


def check(path: Path, captures: Sequence[origin.Known] | None = None) -> None:
    """Check that a page can be written there, before anything is read for it.

    Args:
        path: of the page.
        captures: of which the page will be; None: not known yet.

    Raises:
        OSError: It cannot.
        PageError: Something else is there than a page about the same captures.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name the file to write, such as {path / 'report.html'}")
    if not path.absolute().parent.is_dir():
        raise MissingError(f"no such folder: {path.parent}")
    if captures is None or not path.is_file() or not path.stat().st_size:
        return
    with path.open("rb") as file:
        found = _MARKS.search(file.read(_HEAD))
    if not found:
        raise PageError(f"{path} is a file that is no page of amqpscope; name another file, or remove it")
    if not origin.are_known(json.loads(html.unescape(found[1].decode())), captures):
        raise PageError(f"{path} is a page about other captures; name another file, or remove it")


def write(
    tables: Tables,
    path: Path,
    captures: Sequence[origin.Known] | None = None,
    refresh_s: int = 0,
    is_ours: bool = False,
) -> None:
    """Write the page.

    Args:
        tables: what it shows.
        path: of the page; a page about the same captures may be there.
        captures: they, where they were read for it; None: the note in the folders of the tables has them.
        refresh_s: see `render`.
        is_ours: whether this process wrote the page that is there.

    Raises:
        PageError: Something else is there.
        NotTablesError: A table cannot be read.
        Error: The file cannot be written.
    """
    if not is_ours:
        check(path, about(tables) if captures is None else captures)
    text = render(tables, refresh_s)
    with replacing(path) as file:
        file.write_text(text, encoding="utf-8")


def _colours() -> str:
    """Return the theme as CSS variables: light, dark where the reader prefers it, light on paper."""
    light, dark = ("".join(f"--{n}:{c};" for n, c in inks.items()) for inks in (theme.INK, theme.DARK))
    return (
        f":root{{{light}color-scheme:light dark}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    )
