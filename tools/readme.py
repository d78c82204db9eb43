"""Run the commands of README as they are written: `python -m tools.readme`.

Each section is one user, in a folder of its own with the captures that it names; `/captures/` is a folder there. What
needs docker, a cluster, an installer or a network interface is not run: `ELSEWHERE` says so.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CAPTURES = ROOT / "tests" / "captures"
TLS = "tls_sessions_13"
ELSEWHERE = {
    "docker": "needs docker", "spark://": "needs a cluster", "tcpdump -i": "needs a network interface",
    "make ": "continuous integration runs it", "pipx": "installs", "uvx": "installs", "pip install": "installs",
    "man -l": "needs man", "jq ": "needs jq", "duckdb": "needs the program duckdb",
}  # fmt: skip
"""Parts of commands that are not run here, and why; a program that is there is run."""
PROGRAMS = {"jq ": "jq", "duckdb": "duckdb", "man -l": "man"}
FINDINGS = ("--fail-on",)
"""Options with which status 1 is right."""
LIMIT_S = 120


def main() -> int:
    """Run all commands; return 0, or 1 where one failed."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="readme-") as folder:
        for number, (title, lines) in enumerate(sections((ROOT / "README.md").read_text(encoding="utf-8"))):
            place = Path(folder, str(number))
            prepare(place)
            commands = [line for line in lines if is_command(line)]
            for command in commands:
                failed += not run(place, command)
            code = [line for line in lines if not is_command(line)]
            if title == "You have a notebook":
                failed += not run_python(place, code)
    return int(failed > 0)


def sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the title of each section, and its indented lines, those that go on joined."""
    for part in re.split(r"^## ", re.sub(r"```text.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        lines: list[str] = []
        for line in body.splitlines():
            if not line.startswith("    "):
                continue
            plain = line[4:]
            if plain.startswith("     ") and lines:  # goes on
                lines[-1] += "\n" + plain
            else:
                lines.append(plain)
        yield title, lines


def is_command(line: str) -> bool:
    """Return whether a line is one of a shell."""
    return re.match(r"amqpscope |make |uvx |pipx |pip |docker |tcpdump |duckdb |eval ", line) is not None


def prepare(folder: Path) -> None:
    """Put there what the commands name."""
    (folder / "captures" / "2026-11").mkdir(parents=True)
    shutil.copy(CAPTURES / "orders_pika.pcap", folder / "trouble.pcap")
    shutil.copy(CAPTURES / "pika_confirms.pcap", folder / "captures" / "2026-11" / "one.pcap")
    shutil.copy(CAPTURES / "many_confirms.pcap", folder / "captures" / "2026-11" / "two.pcap")
    shutil.copy(CAPTURES / f"{TLS}.keylog", folder / "keys.log")


def run(folder: Path, line: str) -> bool:
    """Run a command, print how long it took, and return whether its status is right."""
    command = re.sub(r"\s{2,}# .*", "", line, flags=re.DOTALL) if "# " in line else line
    for part, why in ELSEWHERE.items():
        if part in command and not (part in PROGRAMS and shutil.which(PROGRAMS[part])):
            print(f"   --     {command.splitlines()[0]}    ({why})")  # noqa: T201
            return True
    given = command.replace("/captures/", f"{folder}/captures/")
    given += " --until-idle 0" if "--follow" in given else ""
    known = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
    }
    begin = time.monotonic()
    done = subprocess.run(  # noqa: S602 - as a user types it
        given, shell=True, executable="/bin/bash", cwd=folder, env=known, capture_output=True, text=True,
        check=False, timeout=LIMIT_S, preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL),
    )  # fmt: skip
    right = {0, 1} if any(option in given for option in FINDINGS) else {0}
    if "--connection 10.0.3.7" in given and "no connection with" in done.stderr:
        right |= {2}  # an address of an example
    if "--at 17:40" in given and "outside of the capture" in done.stderr:
        right |= {2}  # a time of an example
    is_right = done.returncode in right
    print(f"{time.monotonic() - begin:5.1f} s   {command.splitlines()[0]}", flush=True)  # noqa: T201
    if not is_right:
        print(f"          status {done.returncode}: {done.stderr.strip()[-500:]}")  # noqa: T201
    return is_right


def run_python(folder: Path, lines: list[str]) -> bool:
    """Run the lines of Python in one process; return whether all ran."""
    code = "\n".join(lines).replace("/captures/", f"{folder}/captures/")
    code = code.replace("messages = spark.read", "spark = session()\nmessages = spark.read", 1)
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False,
        timeout=LIMIT_S,
    )  # fmt: skip
    print(f"          {len(lines)} lines of Python")  # noqa: T201
    if done.returncode:
        print(done.stderr[-1500:])  # noqa: T201
    return done.returncode == 0


if __name__ == "__main__":
    argparse.ArgumentParser(description="Run the commands of README.").parse_args()
    sys.exit(main())
