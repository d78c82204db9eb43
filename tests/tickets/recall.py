"""`python -m tests.tickets.recall`: what each rule finds, and does not, in tickets, their twins and healthy recordings.

It prints the table of docs/recall.md; `--write` writes that page. A ticket counts for a rule if its finding stands
first, or is among its notes if it is about a note; a near miss, if the rule is silent there (of rules that are more
than notes, a note is silence), and so does everything else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from amqpscope.spec import findings as rules
from tests.pipelines.analyzed import HEALTHY, findings, walked
from tests.tickets import FOLDER, RECORDINGS, TICKETS, path_of

PAGE = FOLDER.parents[1] / "docs" / "recall.md"
PROVEN = 5
"""Tickets that a rule needs to be called proven."""
HEAD = """# What the rules find

Each rule is held against captures whose cause is known: problems of users reproduced with a real broker and real
clients (`tests/tickets`), near misses that share the symptom but not the cause, and recordings in which nothing is
wrong. Some are recordings of `tests/captures`; rules about the capture, and most about the network, have captures that
are derived from others by what would have happened to them: packets dropped, cut, sent again, held back.

- found: tickets of the rule in which its finding stands first, of all of them; of a note, in which it is there.
- silent in near misses: those of the rule in which it says nothing; unless it is only a note, a note is nothing.
- silent elsewhere: all other tickets and healthy recordings in which it says nothing.

A rule with fewer than five tickets is unproven: it has tests, but few captures. The thresholds were tried on these
captures, so expect less of others. `python -m tests.tickets.recall --write` makes this page;
`python -m tests.tickets.missing` leaves out each packet of each ticket in turn, and looks for what is then made up:
nothing in 2,122 captures, a sample of 406 tickets (each 16th packet of 81 of them, each 40th of the others).

"""


class Said(NamedTuple):
    """Codes of what is found in a capture, in order: what is more than a note, and notes."""

    above: list[str]
    notes: list[str]


class Line(NamedTuple):
    """What a rule did: (right, of all) for its tickets, their near misses, and all else."""

    code: str
    found: tuple[int, int]
    near: tuple[int, int]
    elsewhere: tuple[int, int]


ONLY_NOTES = {rule.code for rule in rules.load() if rule.severity == "note"} - {
    rule.code for rule in rules.load() if rule.severity != "note"
}
"""Rules that never are more than a note."""


def own(code: str) -> set[str]:
    """Return the tickets in which a rule must find something."""
    return {
        name for name, each in TICKETS.items() if code in (each["first"], *each.get("notes", ()), *each.get("also", ()))
    }


def near(code: str) -> set[str]:
    """Return the near misses of a rule."""
    firing = own(code)
    twins = {name for name, each in TICKETS.items() if each.get("twin") in firing and code not in ONLY_NOTES}
    return (twins | {name for name, each in TICKETS.items() if code in each.get("near", ())}) - firing


def judged(said: Mapping[str, Said]) -> list[Line]:
    """Return a line for each rule, those with tickets first.

    Args:
        said: what is found, by capture: tickets, and healthy recordings by other names.
    """
    lines = []
    for code in dict.fromkeys(rule.code for rule in rules.load()):
        firing, misses = own(code), near(code)
        right = sum(_is_found(code, name, said[name]) for name in firing)
        elsewhere = said.keys() - firing - misses
        if code in ONLY_NOTES:  # true of many captures, and stated of none
            elsewhere = set()
        lines.append(Line(code, (right, len(firing)), _silent(code, misses, said), _silent(code, elsewhere, said)))
    return sorted(lines, key=lambda line: -line.found[1])


def _is_found(code: str, name: str, said: Said) -> bool:
    ticket = TICKETS[name]
    return said.above[:1] == [code] if ticket["first"] == code else code in (*said.notes, *said.above)


def _silent(code: str, names: Iterable[str], said: Mapping[str, Said]) -> tuple[int, int]:
    are_silent = [code not in said[name].above + (said[name].notes if code in ONLY_NOTES else []) for name in names]
    return sum(are_silent), len(are_silent)


def page(lines: Iterable[Line]) -> str:
    """Return the page: a table with a row for each rule."""
    rows = ["| rule | found | silent in near misses | silent elsewhere | |", "|---|---|---|---|---|"]
    for line in lines:
        cells = [f"{right} of {of}" if of else "-" for right, of in line[1:]]
        state = "" if line.found[1] >= PROVEN else "unproven" if line.found[1] else "no ticket"
        rows.append(f"| `{line.code}` | {' | '.join(cells)} | {state} |")
    return HEAD + "\n".join(rows) + "\n"


def heard(path: Path) -> Said:
    """Return what is found in a capture."""
    rows: list[dict[str, Any]] = findings(walked(path))
    return Said(*([row["code"] for row in rows if (row["severity"] == "note") == note] for note in (False, True)))


def main(words: list[str]) -> int:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(prog="python -m tests.tickets.recall")
    parser.add_argument("--write", action="store_true", help="write docs/recall.md")
    paths = {name: path_of(name) for name in TICKETS}
    paths |= {f"healthy {stem}": RECORDINGS / f"{stem}.pcap" for stem in HEALTHY}
    with ProcessPoolExecutor() as pool:
        said = dict(zip(paths, pool.map(heard, paths.values(), chunksize=4), strict=True))
    text = page(judged(said))
    if parser.parse_args(words).write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
