"""Try a wheel as somebody who never had it: `make trial`.

It is installed by pip, pipx and uvx into empty environments, for a user whose home is empty, without numba. Printed is
how long each answer took, beside the time that it may take. The exit status is 1 if one took longer, if something was
compiled, or if it left files in the home. A machine that does other work is slower.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.captures import made

CAPTURES = Path(__file__).parents[1] / "tests" / "captures"
BIG = 250_000_000
"""Bytes of the large capture."""
FIRST = "amqpscope handshakes, first run"
ANSWERS: list[tuple[str, float, Callable[[Path], list[str]]]] = [
    ("amqpscope --help, first run", 1.0, lambda big: ["--help"]),
    ("amqpscope --help", 0.2, lambda big: ["--help"]),
    (f"{FIRST}: AMQP 0-9-1, 20 kB", 2.0, lambda big: ["handshakes", str(CAPTURES / "orders_aio_pika.pcap")]),
    (f"{FIRST}: streams, 50 kB", 2.0, lambda big: ["handshakes", str(CAPTURES / "stream_super.pcap")]),
    (f"{FIRST}: AMQP 0-10, 30 kB", 2.0, lambda big: ["handshakes", str(CAPTURES / "qpid_exceptions.pcap")]),
    (f"{FIRST}: 250 MB", 5.0, lambda big: ["handshakes", str(big)]),
    ("amqpscope frames, first run: 250 MB, 20 of a queue", 5.0,
     lambda big: ["frames", str(big), "--queue", "orders", "-c", "20"]),
]  # fmt: skip
"""What is asked, the seconds that it may take, and the words of the command."""
EXTRAS = "[report,tls]"
PERSONAL = ("PYTHON", "VIRTUAL_ENV", "NUMBA_", "XDG_", "AMQPSCOPE_")
"""Variables that change what is installed, found or kept."""


class Trial:
    """A folder with an empty home and environments; `failed` is set where something is not as it must be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self.failed = False

    def run(self, what: str, command: Sequence[object], limit: float | None = None, **variables: str) -> str:
        """Run a command in the user's environment, print what it took, and return what it printed."""
        known = {name: value for name, value in os.environ.items() if not name.startswith(PERSONAL)}
        known |= {"HOME": str(self.home), "TMPDIR": str(self.folder)}
        begin, before = time.perf_counter(), os.times()
        done = subprocess.run(  # noqa: S603
            list(map(str, command)), env=known | variables, cwd=self.folder, capture_output=True, text=True, check=False
        )
        seconds, after = time.perf_counter() - begin, os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        wrong = []
        if done.returncode:
            wrong.append(f"exit status {done.returncode}: {done.stderr.strip()}")
        if "compiling" in done.stderr:
            wrong.append("it compiled kernels")
        if limit is not None and seconds > limit:
            wrong.append("too slow")
        allowed = f" of {limit} s" if limit else ""
        self.report(what, f"{seconds:6.2f} s{allowed}, {used:.2f} s of processor", wrong)
        return done.stdout

    def report(self, what: str, found: str, wrong: Sequence[str]) -> None:
        """Print a line."""
        self.failed |= bool(wrong)
        print(f"{what:<62}{found:<40}{'; '.join(wrong)}", flush=True)  # noqa: T201

    def in_home(self) -> set[str]:
        """Return what is in the home: installers may leave something there, the program must not."""
        return {path.name for path in self.home.iterdir()}

    def environment(self, name: str, *packages: object) -> Path:
        """Make a virtual environment with some packages; return where its programs are."""
        programs = self.folder / name / "bin"
        self.run(f"python -m venv {name}", [sys.executable, "-m", "venv", self.folder / name])
        self.run(f"pip install ({name})", [programs / "pip", "install", "-q", "--no-cache-dir", *packages])
        return programs


def by_pip(trial: Trial, wheel: Path, big: Path) -> None:
    """Install the wheel alone, and ask for all answers."""
    programs = trial.environment("plain", wheel)
    listed = trial.run("pip list", [programs / "pip", "list", "--format", "freeze"]).split()
    compilers = [each for each in listed if each.startswith(("numba", "llvmlite"))]
    trial.report("compilers installed", str(len(compilers)), compilers)
    before = trial.in_home()
    for what, limit, words in ANSWERS:
        trial.run(what, [programs / "amqpscope", *words(big)], limit)
    left = sorted(trial.in_home() - before)
    trial.report("files that all these left in the home", str(len(left)), left)


def by_others(trial: Trial, wheel: Path) -> None:
    """Install it as README says: by pipx with extras, and for one command by uvx."""
    tools = trial.environment("tools", "pipx", "uv")
    places = {f"PIPX_{name}": str(trial.folder / "pipx" / name.lower()) for name in ("HOME", "BIN_DIR", "MAN_DIR")}
    trial.run(f"pipx install WHEEL{EXTRAS}", [tools / "pipx", "install", "-q", f"{wheel}{EXTRAS}"], **places)
    program = trial.folder / "pipx" / "bin_dir" / "amqpscope"
    small = str(CAPTURES / "orders_aio_pika.pcap")
    trial.run(f"{FIRST}: 20 kB", [program, "handshakes", small], 2.0)
    trial.run("amqpscope report, first run: 20 kB", [program, "report", small, "-o", "page.html"])
    uvx = {"UV_CACHE_DIR": str(trial.folder / "uv"), "UV_PYTHON": sys.executable}
    for run in ("with installing", "again"):
        trial.run(f"uvx --from WHEEL amqpscope handshakes: 20 kB, {run}",
                  [tools / "uvx", "--from", wheel, "amqpscope", "handshakes", small], **uvx)  # fmt: skip


@contextmanager
def begun() -> Iterator[Trial]:
    """Yield a trial in a folder that is removed after it."""
    with tempfile.TemporaryDirectory(prefix="trial-") as folder:
        yield Trial(Path(folder))


def main(wheel: Path) -> int:
    """Try it; return the exit status."""
    with begun() as trial, made(BIG) as big:
        by_pip(trial, wheel, big)
        by_others(trial, wheel)
        return int(trial.failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Try a wheel as somebody who never had it.")
    parser.add_argument("wheel", type=Path)
    sys.exit(main(parser.parse_args().wheel.resolve()))
