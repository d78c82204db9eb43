"""When the kernels of walks run compiled: of larger input, and of smaller where they were compiled before."""

from __future__ import annotations

import sys
from pathlib import Path

from amqpscope.dissector.kernels import kernel

_WALKS = Path(__file__).parent / "walks"


def begin(size: int | None) -> bool:
    """Return whether kernels run compiled for captures of this many bytes (None: nobody knows).

    It is said on standard error where they are compiled for the first time, for that takes a while.
    """
    compiled = kernel.worthwhile(size, _WALKS)
    if compiled and not are_cached():
        sys.stderr.write("amqpscope: compiling the statistics, once for this installation (most of a minute)\n")
    return compiled


def are_cached() -> bool:
    """Return whether a run compiled them here before, to its end."""
    return kernel.is_cached(_WALKS)


def end(compiled: bool) -> None:
    """Note that a run came to its end: what it compiled is cached."""
    if compiled:
        kernel.note_run(_WALKS)
