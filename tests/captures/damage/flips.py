"""Flip one bit of the type or length in the head of one frame at a time, and count the frames that are lost by it.

    python -m tests.captures.damage.flips [--each N] [--seed SEED] [--worst] [capture...]

says how many heads were damaged that cost so many frames besides their own.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.captures.damage.recall import Score, compare
from tests.captures.damage.recordings import COMPILED, Recording, recordings
from tests.dissector.builders import Packet


def damaged(recording: Recording, each: int, seed: int) -> Iterator[tuple[str, list[Packet]]]:
    """The packets with one flipped bit, for some heads of frames, and which bit that is."""
    rnd = random.Random(f"{seed} {recording.name}")
    heads = recording.capture.heads
    for head in rnd.sample(heads, min(each, len(heads))):
        i, at = rnd.choice(head)
        bit = rnd.randrange(8)
        packets = list(recording.capture.packets)
        data = bytearray(packets[i].data)
        data[at] ^= 1 << bit
        packets[i] = replace(packets[i], data=bytes(data))
        yield f"{recording.name}, packet {i + 1}, byte {at}, bit {bit}", packets


def scores(recording: Recording, each: int, seed: int) -> Iterator[tuple[str, Score]]:
    """What is found of a recording with each of these bits flipped."""
    for where, packets in damaged(recording, each, seed):
        yield where, compare(recording.sent, packets, recording.dissect(packets))


def main(arguments: list[str]) -> int:
    """Print the counts; 1 when a row was of nothing that was sent."""
    assert __doc__
    parser = argparse.ArgumentParser("python -m tests.captures.damage.flips", description=__doc__.split("\n")[0])
    parser.add_argument("--each", type=int, default=10, help="heads damaged in each recording (default 10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worst", action="store_true", help="name the bits that cost more than one other frame")
    parser.add_argument("captures", nargs="*", type=Path, help="default: the recordings below 1 MB")
    given = parser.parse_args(arguments)
    counts: Counter[int] = Counter()
    wrong = 0
    for path in given.captures or [path for path in recordings() if path.stat().st_size < COMPILED]:
        for where, score in scores(Recording.of(path, compiled=True), given.each, given.seed):
            counts[len(score.missed)] += 1
            wrong += score.invented + score.otherwise
            if given.worst and (len(score.missed) > 1 or score.invented + score.otherwise):
                print(f"{where}: {len(score.missed)} lost, {score.invented + score.otherwise} wrong", flush=True)
    print("| other frames lost | heads |\n|--:|--:|")
    for lost, heads in sorted(counts.items()):
        print(f"| {lost} | {heads} |")
    print(f"rows of nothing that was sent, or that say otherwise: {wrong}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
