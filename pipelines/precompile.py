"""Compile the kernels of walks in a process of its own, before tasks do, each for itself.

It walks over the first rows of the tables that are about to be read, so that just what they need is compiled, and takes
the compiler's memory with it when it ends.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path

from amqpscope.pipelines import kernels


def compile_kernels(folder: Path) -> None:
    """Fill an empty cache with what the tables in a folder need."""
    if not kernels.are_cached():
        # Whatever goes wrong in there will go wrong in tasks again, and be told properly.
        command = [sys.executable, "-m", __name__, str(folder)]
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)  # noqa: S603


def main(folder: Path) -> None:
    """Walk over the first rows of these tables."""
    from amqpscope.pipelines.engine import Engine  # noqa: PLC0415
    from amqpscope.pipelines.folder import read_note, read_parts  # noqa: PLC0415
    from amqpscope.pipelines.here import FIRST, THEN  # noqa: PLC0415

    engine = Engine(compiled=True)
    for table in FIRST + THEN:
        for rows in islice(read_parts(folder, table, engine.columns(table)), 1):
            engine.add(engine.prepare(table, rows))
    engine.finish(lambda *_: None, read_note(folder))
    kernels.end(compiled=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
