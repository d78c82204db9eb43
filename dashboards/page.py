"""The page: all views, in the order of the questions that people ask, as one self-contained HTML file.

Every text passes `units.visible` and the template's escaping; only drawings made here, without any text of the
capture, are put in as markup. The page's content policy forbids everything but its own style and script, so that
even a mistake in escaping would load and run nothing.
"""

import base64
import contextlib
import hashlib
import html
import json
import os
import re
import secrets
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from amqpscope.dashboards import (
    captured,
    connections,
    findings,
    heatmap,
    rpcs,
    slowest,
    staircase,
    streams,
    summary,
    theme,
    units,
    verdicts,
    waits,
)
from amqpscope.dashboards.section import Figure, Section, Single
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.tables import origin
from amqpscope.errors import Error, MissingError, reason


class PageError(Error):
    """A file is there that the page does not replace; the message is one line."""


_DISSECTED = (findings, captured, verdicts, connections)
_ANALYZED = (summary, heatmap, staircase, streams, waits, slowest, rpcs)
_WHOLE_TEXT = 2000
"""Nothing on the page is longer, whatever a capture holds; tables cut earlier."""

_MARKS = re.compile(rb'<meta name="amqpscope-captures" content="([^"]*)">')
_HEAD = 1 << 24
"""Bytes of a page in which its captures are named."""

_ORDER = (
    "findings",
    "captured",
    "verdicts",
    "latency",
    "heat",
    "staircase",
    "waits",
    "streams",
    "rpcs",
    "slowest",
    "connections",
)


def sections(tables: Tables) -> list[Section]:
    """Return all sections that these tables can fill, in the order of the page."""
    views = [*_DISSECTED, *(_ANALYZED if tables.analyzed else ())]
    if streams in views and not tables.rows("stream_deliveries"):
        views.remove(streams)
    return sorted((view.section(tables) for view in views), key=lambda s: _ORDER.index(s.anchor))


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


def render(tables: Tables) -> str:
    """Return the page as text.

    Raises:
        NotTablesError: A table cannot be read.
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
    script = texts["page.js"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.from_string(texts["page.html"]).render(
        sections=sections(tables),
        notices=notices(tables),
        source=heading(tables),
        marks=Markup(html.escape(json.dumps(origin.marks(about(tables))))),  # noqa: S704 - escaped
        style=Markup(_colours() + texts["page.css"]),  # noqa: S704 - our own files
        script=Markup(script),  # noqa: S704
        script_hash=Markup(f"sha256-{digest}"),  # noqa: S704
        drawing=Markup,
    )


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


def write(tables: Tables, path: Path, captures: Sequence[origin.Known] | None = None) -> None:
    """Write the page; where a file may take its place, under another name until it is whole.

    Args:
        tables: what it shows.
        path: of the page; a page about the same captures may be there.
        captures: they, where they were read for it; None: the note in the folders of the tables has them.

    Raises:
        PageError: Something else is there.
        NotTablesError: A table cannot be read.
        Error: The file cannot be written.
    """
    check(path, about(tables) if captures is None else captures)
    text = render(tables)
    is_special = path.exists() and not path.is_file()  # a device or a pipe, such as /dev/stdout
    target = path if is_special else path.resolve()  # a link stays one
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        if is_special:
            target.write_text(text, encoding="utf-8")
            return
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, target)  # noqa: PTH105 - the same, and says what it does
    except OSError as error:
        raise Error(f"{path}: cannot write: {reason(error)}") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def _colours() -> str:
    """Return the theme as CSS variables: light, dark where the reader prefers it, light on paper."""
    light, dark = ("".join(f"--{n}:{c};" for n, c in inks.items()) for inks in (theme.INK, theme.DARK))
    return (
        f":root{{{light}color-scheme:light dark}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    )
