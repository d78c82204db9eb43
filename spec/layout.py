"""Plain text for a terminal: paragraphs and aligned columns that fit its width."""

import shutil
import textwrap
from collections.abc import Iterable, Sequence

MIN_LAST = 30
"""The last column is never narrower than this; longer lines are left to the terminal."""


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
    return [f"{name}  ({kind})", ""]
