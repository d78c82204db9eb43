"""The number of the format of tables and statistics, in their notes: which release can read which folder.

Folders of an earlier format are read where they have the columns that are needed, those of a later one never. A folder
whose note has no number is of format 0; one without a note was written by another program, and has no format.
"""

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from amqpscope.dissector.places import Place
from amqpscope.errors import Error

FORMAT = 8
"""Increased when a table needs a column that it did not have, or a column changes its meaning."""
ADDED = {"tcp_acks": 6}
"""Tables that earlier formats lack, which have no rows there, and the first format with them."""
KEY = "format"
"""Entry of a note."""


class FormatError(Error, ValueError):
    """Another release wrote a folder; one line that says how to make it anew."""


def of_note(note: Mapping[str, Any]) -> int | None:
    """Return the format of the folder that has this note; None for one that another program wrote."""
    if "complete" not in note:
        return None
    found = note.get(KEY, 0)
    return found if isinstance(found, int) else 0


def check(folder: Place, note: Mapping[str, Any]) -> None:
    """Check that this release reads the format of a folder.

    Raises:
        FormatError: a later release wrote it.
    """
    found = of_note(note)
    if found is not None and found > FORMAT:
        text = f"{folder}: format {found}, of a later release; this one reads up to {FORMAT}"
        raise FormatError(f"{text}; {anew(folder, note)}")


def is_earlier(note: Mapping[str, Any]) -> bool:
    """Return whether a folder is of an earlier format."""
    found = of_note(note)
    return found is not None and found < FORMAT


def lacks(note: Mapping[str, Any], table: str) -> bool:
    """Return whether a folder may be without a table, because its format did not have it."""
    found = of_note(note)
    return table in ADDED and (found is None or found < ADDED[table])


def check_columns(
    folder: Place, note: Mapping[str, Any], table: str, there: Iterable[str], needed: Iterable[str]
) -> None:
    """Check that a folder has what is needed of a table.

    Args:
        folder: the folder.
        note: in it.
        table: name of the table.
        there: its columns in the folder; none where the table is not there.
        needed: columns.

    Raises:
        FormatError: it lacks one.
    """
    known = {*there}
    missing = next((name for name in needed if name not in known), None)
    if missing is not None:
        text = f"{folder}: format {of_note(note)}, of an earlier release, has no column {missing} of {table}"
        raise FormatError(f"{text}; {anew(folder, note)}")


def check_same(one: tuple[Place, Mapping[str, Any]], other: tuple[Place, Mapping[str, Any]]) -> None:
    """Check that two folders with their notes, which are read together, are of one format.

    Raises:
        FormatError: they are not.
    """
    earlier, later = sorted((one, other), key=lambda each: of_note(each[1]) or 0)
    formats = of_note(earlier[1]), of_note(later[1])
    if None not in formats and formats[0] != formats[1]:
        text = f"{earlier[0]} has format {formats[0]} and {later[0]} has format {formats[1]}"
        raise FormatError(f"{text}; {anew(*earlier)}")


def anew(folder: Place, note: Mapping[str, Any]) -> str:
    """Return how a folder is made anew."""
    command = "dissect" if (folder / "connections").is_dir() else "analyze"
    made_of = note.get("tables", note.get("captures"))
    named = [made_of] if isinstance(made_of, str) else made_of if isinstance(made_of, list) else []
    sources = shlex.join(map(str, named)) or "CAPTURE..."
    return f"make it anew: amqpscope {command} {sources} -o {shlex.quote(str(folder))} --replace"
