"""`python -m tests.tickets.recall`: what each rule finds, and does not, in tickets, their twins and healthy recordings.

It prints the table of docs/recall.md; `--write` writes that page. A ticket counts for a rule if its finding stands
first; a twin or a healthy recording, if the rule is silent there (a note is silence).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from amqpscope.spec import findings as rules
from tests.dissector.runs import FOLDER as RECORDINGS
from tests.pipelines.analyzed import HEALTHY, findings, walked
from tests.tickets import FOLDER, TICKETS

PAGE = FOLDER.parents[1] / "docs" / "recall.md"
PROVEN = 5
"""Tickets that a rule needs to be called proven."""
HEAD = """# What the rules find

Each rule is held against captures whose cause is known: problems of users reproduced with a real broker and real
clients (`tests/tickets`), twins that share the symptom but not the cause, and recordings in which nothing is wrong.

- found: tickets of the rule in which its finding stands first, of all of them.
- silent in twins: twins of these in which it says nothing; a note is nothing.
- silent elsewhere: all other tickets and healthy recordings in which it says nothing.

A rule with fewer than five tickets is unproven: it has tests, but few captures. The thresholds were tried on these
captures, so expect less of others. `python -m tests.tickets.recall --write` makes this page;
`python -m tests.tickets.missing` leaves out each packet of each ticket in turn, and looks for what is then made up.

"""


class Line(NamedTuple):
    """What a rule did: (right, of all) for its tickets, their twins, and all else."""

    code: str
    found: tuple[int, int]
    twins: tuple[int, int]
    elsewhere: tuple[int, int]


def judged(said: Mapping[str, list[str]]) -> list[Line]:
    """Return a line for each rule, those with tickets first.

    Args:
        said: codes above notes, in order, by capture: tickets, and healthy recordings by other names.
    """
    lines = []
    for code in dict.fromkeys(rule.code for rule in rules.load()):
        own = {name for name, each in TICKETS.items() if each["first"] == code}
        twins = {name for name, each in TICKETS.items() if each.get("twin") in own} - own
        others = said.keys() - own - twins
        lines.append(
            Line(
                code,
                (sum(said[name][:1] == [code] for name in own), len(own)),
                _silent(code, twins, said),
                _silent(code, others, said),
            )
        )
    return sorted(lines, key=lambda line: -line.found[1])


def _silent(code: str, names: Iterable[str], said: Mapping[str, list[str]]) -> tuple[int, int]:
    are_silent = [code not in said[name] for name in names]
    return sum(are_silent), len(are_silent)


def page(lines: Iterable[Line]) -> str:
    """Return the page: a table with a row for each rule."""
    rows = ["| rule | found | silent in twins | silent elsewhere | |", "|---|---|---|---|---|"]
    for line in lines:
        cells = [f"{right} of {of}" if of else "-" for right, of in line[1:]]
        state = "" if line.found[1] >= PROVEN else "unproven" if line.found[1] else "no ticket"
        rows.append(f"| `{line.code}` | {' | '.join(cells)} | {state} |")
    return HEAD + "\n".join(rows) + "\n"


def above_notes(path: Path) -> list[str]:
    """Return the codes of findings that are no notes, in their order."""
    rows: list[dict[str, Any]] = findings(walked(path))
    return [row["code"] for row in rows if row["severity"] != "note"]


def main(words: list[str]) -> int:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(prog="python -m tests.tickets.recall")
    parser.add_argument("--write", action="store_true", help="write docs/recall.md")
    said = {name: above_notes(FOLDER / f"{name}.pcap") for name in TICKETS}
    said |= {f"healthy {stem}": above_notes(RECORDINGS / f"{stem}.pcap") for stem in HEALTHY}
    text = page(judged(said))
    if parser.parse_args(words).write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
