"""When the kernels of walks run compiled: for large input, and for small input once they are cached."""

from __future__ import annotations

from pathlib import Path

from amqpscope.dissector.kernels import kernel

_WALKS = Path(__file__).parents[1]


def begin(size: int | None) -> bool:
    """Return whether kernels run compiled for captures of this many bytes (None: unknown)."""
    return kernel.worthwhile(size, _WALKS)


def are_cached() -> bool:
    """Return whether a complete run compiled and cached them here before."""
    return kernel.is_cached(_WALKS)


def end(compiled: bool) -> None:
    """Note that a run is complete: what it compiled is cached."""
    if compiled:
        kernel.note_run(_WALKS)
