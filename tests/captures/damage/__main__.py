"""Damage recordings in all ways, and say what is found in them then.

    python -m tests.captures.damage [--seeds N] [--way WAY] [--misses] [--tshark] [--bodies N | capture...]

says, for each way, how many of the frames that are still whole were found, how many rows are of no frame that was sent,
and how many publishes tshark sees in the same files. Of what does no harm it says how often a row was another one; of
two capture points, how many rows of one are others with both.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.captures.damage.bodies import made
from tests.captures.damage.points import changed, copies
from tests.captures.damage.recall import Score, compare, publishes_by_tshark
from tests.captures.damage.recordings import Recording, recordings
from tests.captures.damage.ways import ALWAYS_THE_SAME, FLIPPED, HARMFUL, HARMLESS

POINTS = "two points"


def scores(recordings: list[Recording], way: str, seeds: int, tshark: bool, misses: bool) -> Iterator[Score]:
    """The score of each recording and seed."""
    for recording in recordings:
        for seed in range(1 if way in ALWAYS_THE_SAME else seeds):
            progress(f"{way}: {recording.name} {seed}")
            packets = recording.damaged(way, seed)
            score = compare(recording.sent, packets, recording.dissect(packets))
            if tshark:
                score.by_tshark = publishes_by_tshark(packets, recording.link, recording.ports)
            if misses:
                for missed in score.missed:
                    print(f"{way}, {recording.name}, seed {seed}, {missed}")
            for what, found in (("invented", score.made_up), ("otherwise", score.wrong)):
                for row in found:
                    values = {name: value for name, value in row.items() if value is not None}
                    print(f"{way}, {recording.name}, seed {seed}: {what} {values}")
            yield score


def two_points(recordings: list[Recording], seeds: int) -> int:
    """Print how many rows of one capture point are others with both; return that."""
    count, others = 0, 0
    for recording in recordings:
        for seed in range(seeds):
            progress(f"{POINTS}: {recording.name} {seed}")
            pair = copies(recording.capture, random.Random(f"{seed} {recording.name}"))
            whole, wrong = changed(*pair, recording.link)
            count, others = count + whole, others + len(wrong)
    progress("")
    print(f"{POINTS}: {others} of {count} rows are others", flush=True)
    return others


def progress(message: str) -> None:
    """Say where it is; nothing where standard error is no terminal."""
    if sys.stderr.isatty():
        print(f"\r{message}\x1b[K", end="", file=sys.stderr, flush=True)


def share(found: int, there: int) -> str:
    return f"{there} | {found / max(there, 1):.2%}" if there else "0 | "


def main(arguments: list[str]) -> int:
    """Print what was found; 1 when a row was of nothing that was sent."""
    assert __doc__
    parser = argparse.ArgumentParser(prog="python -m tests.captures.damage", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="how often each recording is damaged (default 3)")
    parser.add_argument("--way", action="append", choices=[*HARMLESS, POINTS, *HARMFUL, *FLIPPED], help="default: all")
    parser.add_argument("--misses", action="store_true", help="name each frame that was not found")
    parser.add_argument("--tshark", action="store_true", help="count what tshark sees; it takes most of the time then")
    parser.add_argument("--bodies", type=int, metavar="N", help="instead: N sets of captures of frames in messages")
    parser.add_argument("captures", nargs="*", type=Path, help="default: the recordings")
    given = parser.parse_args(arguments)
    if given.bodies:
        found = [Recording(name, packets) for seed in range(given.bodies) for name, packets in made(seed).items()]
    else:
        found = [Recording.of(path) for path in given.captures or recordings()]
    wrong = 0
    for way in given.way or HARMLESS:
        if way in HARMLESS:
            others = sum(r.others(r.damaged(way, seed)) for r in found for seed in range(given.seeds))
            print(f"{way}: {others} rows are others", flush=True)
            wrong += others
    if POINTS in (given.way or (POINTS,)):
        wrong += two_points(found, given.seeds)
    print(
        "| damage | frames | reachable | found | after | found | cut | invented | otherwise | unreported "
        "| publishes | by tshark |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for way in given.way or [*HARMFUL, *FLIPPED]:
        if way not in HARMLESS and way != POINTS:
            total = Score()
            for score in scores(found, way, given.seeds, given.tshark, given.misses):
                total.add(score)
            wrong += total.invented + total.otherwise + total.unreported
            progress("")
            print(
                f"| {way} | {total.sent} | {share(total.reached, total.reachable)} "
                f"| {share(total.found, total.behind)} | {total.cut} | {total.invented} | {total.otherwise} "
                f"| {total.unreported} | {total.publishes} | {total.by_tshark} |",
                flush=True,
            )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
