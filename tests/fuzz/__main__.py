"""`make fuzz`: coverage-guided fuzzing with atheris, kernels interpreted, so that it sees into them.

    python -m tests.fuzz TARGET [--seconds N] [--runs N] [--corpus DIR]     fuzz
    python -m tests.fuzz TARGET --keep DIR                                  choose from DIR what tests/fuzz/cases keeps
    python -m tests.fuzz TARGET --replay DIR                                run all of DIR interpreted and compiled, and
                                                                            compare; bounds are checked everywhere

What it finds becomes a line in `tests/fuzz/cases`, which the tests replay, interpreted and compiled.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.cases import FOLDER, read, write

LONGEST = {
    "captures": 1000, "packets": 600, "fragments": 120, "segments": 600, "tables": 300, "maps": 300, "records": 300,
    "operations": 300, "handshakes": 600,
}  # fmt: skip
"""The targets, and bytes of an input at most."""
TARGETS = tuple(LONGEST)
LARGEST = 300
"""Bytes of an input that is kept at most."""


def fuzz(target: str, corpus: Path, flags: list[str]) -> int:
    """Fuzz in a process of its own, for libFuzzer ends the one that it runs in."""
    command = [sys.executable, "-m", "tests.fuzz", target, "--inside", str(corpus)]
    return subprocess.run([*command, *flags], check=False).returncode


def inside(target: str, flags: list[str]) -> None:
    """Run libFuzzer; does not return."""
    import atheris  # noqa: PLC0415 - only here

    with atheris.instrument_imports(include=["amqpscope.dissector"]):
        from tests.fuzz import targets  # noqa: PLC0415

    function = targets.TARGETS[target]
    if target == "segments":
        targets.reuse()
    atheris.Setup([sys.argv[0], *flags], lambda data: function(data, False) and None)
    atheris.Fuzz()


def keep(target: str, corpus: Path, most: int) -> None:
    """Choose among the inputs of a corpus, each of which reached something new when it was found."""
    from tests.fuzz.seeds import seeds  # noqa: PLC0415

    found = {path.read_bytes() for path in corpus.iterdir()} - set(seeds(target))
    fitting = sorted((case for case in found if 0 < len(case) <= LARGEST), key=lambda case: (len(case), case))
    step = max(len(fitting) / most, 1)
    write(target, [fitting[int(i * step)] for i in range(min(most, len(fitting)))])


def replay(target: str, corpus: Path) -> int:
    """Compare what comes of each input interpreted and compiled; the number of those that differ.

    Kernels that do without bounds checks because they are proven are compiled with them.
    """
    from amqpscope.dissector.kernels import declared  # noqa: PLC0415
    from tests.fuzz.targets import TARGETS as FUNCTIONS  # noqa: PLC0415

    declared._proven.clear()
    different, paths = 0, sorted(corpus.iterdir())
    for path in paths:
        raw = path.read_bytes()
        try:
            same = FUNCTIONS[target](raw, False) == FUNCTIONS[target](raw, True)
        except Exception as error:
            print(f"{path}: {error!r}")
            same = False
        different += not same
        if not same:
            print(f"{path}: differs")
    print(f"{target}: {len(paths)} inputs, {different} differ")
    return different


def main() -> int:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", choices=(*TARGETS, "all"))
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: 60)")
    parser.add_argument("--runs", type=int, default=-1, help="executions for each target (default: until time is up)")
    parser.add_argument("--corpus", type=Path, help="folder with a folder for each target, kept (default: thrown away)")
    parser.add_argument("--keep", type=Path, help="folder of a corpus to choose cases from")
    parser.add_argument("--most", type=int, default=100, help="cases to keep of a target (default: 100)")
    parser.add_argument("--replay", type=Path, help="folder of a corpus to run interpreted and compiled")
    parser.add_argument("--inside", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        inside(arguments.target, arguments.inside)
    targets = TARGETS if arguments.target == "all" else (arguments.target,)
    if arguments.keep:
        for target in targets:
            keep(target, arguments.keep / target, arguments.most)
        return 0
    if arguments.replay:
        return min(sum(replay(target, arguments.replay / target) for target in targets), 1)
    for target in targets:
        with tempfile.TemporaryDirectory() as folder:
            corpus = (arguments.corpus or Path(folder)) / target
            corpus.mkdir(parents=True, exist_ok=True)
            from tests.fuzz.seeds import seeds  # noqa: PLC0415 - the process of libFuzzer imports the dissector itself

            for number, case in enumerate(seeds(target) + read(target)):
                (corpus / f"case-{number:04}").write_bytes(case)
            flags = [f"-max_len={LONGEST[target]}", f"-max_total_time={arguments.seconds}", f"-runs={arguments.runs}"]
            flags += [
                "-timeout=300",
                "-rss_limit_mb=2048",
                "-print_final_stats=1",
                f"-artifact_prefix={FOLDER}/{target}-",
            ]
            if status := fuzz(target, corpus, flags):
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
