"""Compile the kernels of walks in another process before tasks start; otherwise each task would compile them.

It walks over the first rows of the tables, so that only the kernels that they need are compiled. The memory of the
compiler is freed when the process ends.
"""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from contextlib import suppress
from itertools import islice

from amqpscope.dissector.places import Place, place
from amqpscope.pipelines.run import kernels


def compile_kernels(folder: Place) -> None:
    """Fill an empty cache with the kernels that the tables in a folder need."""
    if not kernels.are_cached():
        subprocess.run([sys.executable, "-m", __name__, str(folder)], check=False)  # noqa: S603


def main(folder: Place) -> None:
    """Walk over the first rows of these tables."""
    from amqpscope.pipelines.folder import read_note, read_parts  # noqa: PLC0415
    from amqpscope.pipelines.run.local import FIRST, then  # noqa: PLC0415
    from amqpscope.pipelines.run.runner import Runner  # noqa: PLC0415

    runner = Runner(compiled=True, note=read_note(folder))
    for table in FIRST + then():
        for rows in islice(read_parts(folder, table, runner.columns(table)), 1):
            runner.add(runner.prepare(table, rows))
    deque(runner.finish(), 0)
    kernels.end(compiled=True)


if __name__ == "__main__":
    with suppress(Exception, KeyboardInterrupt):  # what goes wrong does so in tasks again, and is reported there
        main(place(sys.argv[1]))
