"""Text for a terminal: paragraphs and aligned columns that fit its width, and colours where it shows them."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

MIN_LAST = 30
"""The last column is never narrower than this; longer lines are left to the terminal."""

INKS = {"error": "1;31", "warning": "33", "note": "36", "fine": "32", "name": "1", "aside": "2"}
"""Colours (SGR parameters, ECMA-48 8.3.117) by what they are for: a severity, a name, something less important."""


COLORS = ("auto", "always", "never")
"""Values of --color."""

_color = "auto"


def set_color(when: str) -> None:
    """Set whether texts are painted, one of `COLORS`."""
    global _color  # noqa: PLW0603
    _color = when


def is_painted() -> bool:
    """Return whether texts are painted.

    With `auto`, the environment decides: NO_COLOR (no-color.org), FORCE_COLOR (force-color.org), CLICOLOR_FORCE
    (bixense.com/clicolors); else whether output is a terminal that knows colours.
    """
    if _color != "auto":
        return _color == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if any(os.environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def paint(text: str, ink: str) -> str:
    """Return a text in a colour of `INKS`, where texts are painted."""
    if not is_painted():
        return text
    return f"\x1b[{INKS[ink]}m{text}\x1b[0m"


def width() -> int:
    """Return the width of the terminal in characters, at most 120; 100 without a terminal."""
    return min(shutil.get_terminal_size((100, 24)).columns, 120)


def paragraph(text: str, indent: int = 2) -> list[str]:
    """Return a text wrapped and indented."""
    return textwrap.wrap(text, max(width(), MIN_LAST), initial_indent=" " * indent, subsequent_indent=" " * indent)


def aligned(rows: Iterable[Sequence[str]], indent: int = 2) -> list[str]:
    """Align rows of cells in columns, without empty ones; the last column takes the rest of the line and wraps."""
    cells = [list(row) for row in rows]
    if not cells:
        return []
    kept = [i for i in range(len(cells[0])) if i == len(cells[0]) - 1 or any(row[i] for row in cells)]
    cells = [[row[i] for i in kept] for row in cells]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]) - 1)]
    used = indent + sum(w + 2 for w in widths)
    room = max(width() - used, MIN_LAST)
    lines = []
    for row in cells:
        start = " " * indent + "".join(cell.ljust(w + 2) for cell, w in zip(row, widths, strict=False))
        wrapped = textwrap.wrap(row[-1], room, break_long_words=False, break_on_hyphens=False) or [""]
        lines.append((start + wrapped[0]).rstrip())
        lines.extend(" " * used + more for more in wrapped[1:])
    return lines


def title(name: str, kind: str) -> list[str]:
    """Return a heading: the name, and what it is."""
    return [f"{paint(name, 'name')}  ({kind})", ""]
