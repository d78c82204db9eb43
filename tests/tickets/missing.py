"""`python -m tests.tickets.missing [--every N] [NAME...]`: tickets with one packet left out, each in turn.

What is found then must be found in the whole capture, but for what is said of the capture itself. It prints what is
not, and how many captures it was of; status 1 where there is something.
"""

from __future__ import annotations

import argparse
import struct
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tests.pipelines.analyzed import findings, walked
from tests.tickets import FOLDER, TICKETS

HEADER, RECORD = 24, 16
"""Bytes of the header of a pcap, and of the header of a packet."""


def records(data: bytes) -> list[tuple[int, int]]:
    """Return where the packets of a pcap begin and end, with their headers."""
    found, at = [], HEADER
    while at < len(data):
        end = at + RECORD + struct.unpack_from("<I", data, at + 8)[0]
        found.append((at, end))
        at = end
    return found


def codes(path: Path) -> set[str]:
    """Return the codes of what is found in a capture."""
    return {row["code"] for row in findings(walked(path))}


def made_up(name: str, place: int, whole: set[str] | None = None) -> set[str]:
    """Return what is found in a ticket without one packet, and not in the whole; `cap-*` is not counted."""
    path = FOLDER / f"{name}.pcap"
    data = path.read_bytes()
    begin, end = records(data)[place]
    with tempfile.TemporaryDirectory() as folder:
        less = Path(folder) / path.name
        less.write_bytes(data[:begin] + data[end:])
        found = codes(less)
    return {code for code in found - (codes(path) if whole is None else whole) if not code.startswith("cap-")}


def of_ticket(name: str, every: int) -> tuple[str, int, list[tuple[int, set[str]]]]:
    """Return a ticket's name, how many packets were left out, and what was made up without which (from 1 on)."""
    path = FOLDER / f"{name}.pcap"
    whole, places = codes(path), range(0, len(records(path.read_bytes())), every)
    found = [(place + 1, made_up(name, place, whole)) for place in places]
    return name, len(places), [each for each in found if each[1]]


def main(words: Iterable[str]) -> int:
    """Print what is made up."""
    assert __doc__
    parser = argparse.ArgumentParser("python -m tests.tickets.missing", description=__doc__.split("\n")[0])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="leave out each Nth packet only")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all tickets")
    given = parser.parse_args(list(words))
    captures = wrong = 0
    with ProcessPoolExecutor() as pool:
        for name, count, found in pool.map(partial(of_ticket, every=given.every), given.names or TICKETS):
            captures += count
            wrong += len(found)
            for packet, made in found:
                print(f"{name} without packet {packet}: {', '.join(sorted(made))}", flush=True)
    print(f"{captures:,} captures, something made up in {wrong:,}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
