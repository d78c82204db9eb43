"""How far long work is, shown on standard error where that is a terminal."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from amqpscope.dissector.formatting import counted

if TYPE_CHECKING:
    from amqpscope.dissector.capture.sources import Source


class Advance(Protocol):
    """Called with a step, how much of it is done, how much there is (0: unknown), and what else was counted."""

    def __call__(self, step: str, done: int, total: int, counts: str = "") -> None:
        """Advance."""


def quiet(step: str, done: int, total: int, counts: str = "") -> None:
    """Report nothing."""


@contextmanager
def shown(of_bytes: bool = True) -> Iterator[Advance]:
    """Show steps, each with a bar, its rate and the time left; `of_bytes`: what they go through is bytes."""
    if not sys.stderr.isatty():
        yield quiet
        return
    from rich import progress  # noqa: PLC0415 - it takes time to import
    from rich.console import Console  # noqa: PLC0415

    amounts = (
        (progress.DownloadColumn(), progress.TransferSpeedColumn(), progress.TimeRemainingColumn())
        if of_bytes
        else (progress.MofNCompleteColumn(), progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
    )
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), *amounts)
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task, current = bar.add_task("starting", total=None), ""

        def advance(step: str, done: int, total: int, counts: str = "") -> None:
            nonlocal current
            if current != step:  # the rate is that of this step
                bar.reset(task)
                current = step
            text = f"{step}: {counts}" if counts else step
            bar.update(task, description=text, completed=done, total=total or None)

        yield advance


def amounts(files: int, of: int, rows: int) -> str:
    """Return a number of files, of all that there are, and of rows."""
    return f"{files} of {counted(of, 'file')}, {counted(rows, 'row')}"


def reading(
    advance: Advance, sources: "Sequence[Source]", so_far: Callable[[], tuple[int, int]]
) -> Callable[[int], None]:
    """Return what is called with the bytes of captures that were read since the last call (`Reading`).

    Args:
        advance: is called then.
        sources: the captures.
        so_far: returns the number of captures that were begun, and of rows.
    """
    done, total = 0, sum(source.size or 0 for source in sources)

    def read(size: int) -> None:
        nonlocal done
        done += size
        files, rows = so_far()
        advance("reading", done, total, counts=amounts(files, len(sources), rows))

    return read


def share(advance: Advance, sources: "Sequence[Source]") -> Advance:
    """Return what reports a step that follows reading by the bytes of captures that stand for what is done."""
    size = sum(source.size or 0 for source in sources)
    return lambda step, done, total, counts="": advance(step, size * done // max(total, 1), size, counts=counts)
