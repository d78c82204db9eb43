"""Captures that lost nothing, but are odd: coarse clocks, clocks that step back, two cards, two capture points in one.

    python -m tests.captures.damage.odd [--seeds N] [--way WAY] [--examples] [capture...]

says, for each way, what became of the verdicts on the connections of the recordings:

- same: as in the recording.
- failed: a connection that came up is called a failure; must be 0.
- other: another one. Where the clock is coarse, the time that something took is another one, and so may be its verdict.
- missing: a connection has no row.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tests.captures.damage.recordings import Recording, recordings
from tests.captures.damage.ways import ALWAYS_THE_SAME, ODD
from tests.dissector.runs import Row, rows

KINDS = ("same", "other", "missing", "failed")
UP = ("ok", "begun-before")
Key = tuple[str, int, str, int, int]


def connections(tables: dict[str, pa.Table]) -> dict[Key, Row]:
    """The rows of connections, by endpoints and how many of the same ones came before."""
    found: dict[Key, Row] = {}
    seen: Counter[tuple[str, int, str, int]] = Counter()
    for row in sorted(rows(tables["connections"]), key=lambda row: int(row["first_packet"])):
        ends = tuple(sorted([(row["client_ip"], row["client_port"]), (row["server_ip"], row["server_port"])]))
        (one, port), (other, its) = ends
        found[one, port, other, its, seen[one, port, other, its]] = row
        seen[one, port, other, its] += 1
    return found


def compared(recording: Recording, way: str, seed: int) -> Iterator[tuple[str, Row, Row | None]]:
    """What became of each verdict (`KINDS`), with the row before and after."""
    theirs = connections(recording.tables)
    mine = connections(recording.dissect(ODD[way](recording.capture, random.Random(f"{seed} {recording.name}"))))
    for key, right in theirs.items():
        row = mine.get(key)
        if row is None:
            yield "missing", right, None
        elif (row["handshake_outcome"], row["ending"]) == (right["handshake_outcome"], right["ending"]):
            yield "same", right, row
        else:
            is_failed = right["handshake_outcome"] in UP and row["handshake_outcome"] not in UP
            yield "failed" if is_failed else "other", right, row


def main(arguments: list[str]) -> int:
    """Print what was found; 1 when a good connection was called a failure, or is missing."""
    assert __doc__
    parser = argparse.ArgumentParser("python -m tests.captures.damage.odd", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="how often each recording is made odd (default 3)")
    parser.add_argument("--way", action="append", choices=ODD, help="default: all")
    parser.add_argument("--examples", action="store_true", help="name each verdict that is another one")
    parser.add_argument("captures", nargs="*", type=Path, help="default: the recordings")
    given = parser.parse_args(arguments)
    found = [Recording.of(path) for path in given.captures or recordings()]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for way in given.way or ODD:
        for recording in found:
            for seed in range(1 if way in ALWAYS_THE_SAME else given.seeds):
                for kind, right, row in compared(recording, way, seed):
                    counts[way][kind] += 1
                    if given.examples and kind != "same":
                        was, now = (
                            (r["handshake_outcome"], r["ending"], r["ending_cause"]) if r else None
                            for r in (right, row)
                        )
                        print(f"{way}, {recording.name}, seed {seed}: {kind}: {was} becomes {now}")
    print(f"| way | {' | '.join(KINDS)} |\n|---|{'--:|' * len(KINDS)}")
    for way, count in counts.items():
        print(f"| {way} | {' | '.join(str(count[kind]) for kind in KINDS)} |")
    return int(any(count["failed"] + count["missing"] for count in counts.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
