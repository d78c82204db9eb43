"""What README shows of commands is what they print: `python -m tools.screens` says where not, `--write` mends it.

A screen is a block that begins with `$ ` and a command about a recording; one that ends with `...` goes on.
"""

import argparse
import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
SCREEN = re.compile(r"(?<=```text\n)\$ (amqpscope [^\n]*)\n(.*?)(?=```)", re.DOTALL)
WIDTH = 100
"""Columns of the terminal."""
MORE = "...\n"


def drawn(shown: re.Match[str]) -> str:
    """Return a screen as its command prints it now, as long as it is shown."""
    command, before = shown[1], shown[2]
    words = [sys.executable, "-m", "amqpscope", *shlex.split(command)[1:]]
    with tempfile.TemporaryDirectory(prefix="screens-") as folder:
        for name in re.findall(r"\S+\.pcap", command):
            shutil.copy(ROOT / "tests" / "captures" / name, folder)
        done = subprocess.run(  # noqa: S603 - our own commands
            words, cwd=folder, env=os.environ | {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=True,
        )  # fmt: skip
    printed = done.stdout
    if before.endswith(MORE):
        printed = "".join(printed.splitlines(keepends=True)[: before.count("\n") - 1]) + MORE
    return f"$ {command}\n{printed}"


def main(writes: bool) -> int:
    """Compare all screens, or write them anew; return 1 where one was another."""
    text = README.read_text(encoding="utf-8")
    new = SCREEN.sub(drawn, text)
    if new == text:
        return 0
    if writes:
        README.write_text(new, encoding="utf-8")
        return 0
    sys.stdout.writelines(difflib.unified_diff(text.splitlines(True), new.splitlines(True), "README.md", "printed now"))
    return 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare the screens of README with what commands print.")
    parser.add_argument("--write", action="store_true", help="write them anew")
    sys.exit(main(parser.parse_args().write))
