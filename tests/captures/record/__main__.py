"""`python -m tests.captures.record [scenario...]`: records all scenarios, or those named; `--list` lists them."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

from tests.captures.record.scenario import FOLDER, SCENARIOS, House, Stage

MARKS = ("<!-- scenarios -->\n", "<!-- end -->\n")


def load() -> None:
    """Imports the themes, which register their scenarios."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name.startswith("theme_"):
            importlib.import_module(f"tests.captures.record.{module.name}")


def write_readme() -> None:
    """Brings the README's table up to date."""
    path = FOLDER / "README.md"
    head, rest = path.read_text().split(MARKS[0])
    tail = rest.split(MARKS[1])[1]
    rows = [f"| `{item.file}` | {item.about} |\n" for _, item in sorted(SCENARIOS.items())]
    path.write_text(head + MARKS[0] + "| capture | what it holds |\n|---|---|\n" + "".join(rows) + MARKS[1] + tail)


def main(arguments: list[str]) -> int:
    """Records.

    Returns:
        0, or 2 when a name is not known.
    """
    load()
    if arguments == ["--list"]:
        print("\n".join(f"{name}: {item.about}" for name, item in sorted(SCENARIOS.items())))
        return 0
    if "--inside" not in arguments:
        # a network namespace of its own: no port is taken, no other traffic seen, no listener anywhere else
        again = [sys.executable, "-m", "tests.captures.record", "--inside", *arguments]
        return subprocess.run(["unshare", "--net", *again], check=False).returncode
    arguments.remove("--inside")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    unknown = [name for name in arguments if name not in SCENARIOS]
    if unknown:
        print(f"no such scenario: {', '.join(unknown)}", file=sys.stderr)
        return 2
    house = House()
    try:
        for name in arguments or sorted(SCENARIOS):
            stage = Stage(house, SCENARIOS[name])
            stage_run(stage, name)
    finally:
        house.close()
    write_readme()
    return 0


def stage_run(stage: Stage, name: str) -> None:
    """Plays one scenario and writes what it left."""
    SCENARIOS[name].run(stage)
    stage.write()
    print(f"{name}: {len(stage.events)} events")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
