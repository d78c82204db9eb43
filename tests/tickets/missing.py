"""`python -m tests.tickets.missing [--every N] [NAME...]`: tickets with one packet left out, each in turn.

What is found then must be found in the whole capture, but for what is said of the capture itself. It prints what is
not, and how many captures it was of; status 1 where there is something.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tests.pipelines.analyzed import findings, walked
from tests.tickets import TICKETS, is_derived, path_of
from tests.tickets.derived import places

IMPLIED = {"cnx-refused": "cnx-reconnect-loop"}
"""What is found where others of its kind are missing, by what is found instead in the whole: it is true there, too."""


def codes(path: Path) -> set[str]:
    """Return the codes of what is found in a capture."""
    return {row["code"] for row in findings(walked(path))}


def made_up(name: str, place: int, whole: set[str] | None = None) -> set[str]:
    """Return what is found in a ticket without one packet, and not in the whole; `cap-*` is not counted."""
    path = path_of(name)
    data = path.read_bytes()
    begin, end = list(places(data))[place]
    with tempfile.TemporaryDirectory() as folder:
        less = Path(folder) / path.name
        less.write_bytes(data[:begin] + data[end:])
        found = codes(less)
    whole = codes(path) if whole is None else whole
    return {code for code in found - whole if not code.startswith("cap-") and IMPLIED.get(code) not in whole}


def of_ticket(name: str, every: int) -> tuple[str, int, list[tuple[int, set[str]]]]:
    """Return a ticket's name, how many packets were left out, and what was made up without which (from 1 on)."""
    path = path_of(name)
    whole, taken = codes(path), range(0, len(list(places(path.read_bytes()))), every)
    found = [(place + 1, made_up(name, place, whole)) for place in taken]
    return name, len(taken), [each for each in found if each[1]]


def recorded() -> list[str]:
    """Return the tickets whose captures are pcaps of their own."""
    return [name for name in TICKETS if not is_derived(name) and path_of(name).suffix == ".pcap"]


def main(words: Iterable[str]) -> int:
    """Print what is made up."""
    assert __doc__
    parser = argparse.ArgumentParser("python -m tests.tickets.missing", description=__doc__.split("\n")[0])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="leave out each Nth packet only")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all that are recorded")
    given = parser.parse_args(list(words))
    captures = wrong = 0
    with ProcessPoolExecutor() as pool:
        for name, count, found in pool.map(partial(of_ticket, every=given.every), given.names or recorded()):
            captures += count
            wrong += len(found)
            for packet, made in found:
                print(f"{name} without packet {packet}: {', '.join(sorted(made))}", flush=True)
    print(f"{captures:,} captures, something made up in {wrong:,}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
