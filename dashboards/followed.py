"""Follow a directory, and show the statistics after each batch."""

from __future__ import annotations

import argparse
import copy
import datetime as dt
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TextIO

from amqpscope.dashboards import making
from amqpscope.dashboards.tables import Tables
from amqpscope.dissector.cli import arguments as common
from amqpscope.dissector.cli import following as followed
from amqpscope.pipelines.across.transits import HOUR_NS
from amqpscope.pipelines.run import following

CLEAR = "\x1b[H\x1b[2J"
"""Clears a terminal; what scrolled out of it before stays."""


@contextmanager
def statistics(
    arguments: argparse.Namespace, show: Callable[[Tables], None], shown: str
) -> Iterator[tuple[Callable[[], Tables], int]]:
    """Follow a directory to its end; then yield what opens the statistics, and the exit status.

    The statistics lie in a temporary folder, which is removed afterwards.

    Args:
        arguments: of the command.
        show: called with the statistics after each batch.
        shown: what messages call the output.

    Raises:
        Error: a capture or a table cannot be read, or tables cannot be written.
    """
    options = common.options(arguments)
    with making.temporary() as folder:
        given = copy.copy(arguments)
        given.output, given.replace = str(folder / "stats"), False

        def tables() -> Tables:
            return Tables(None, folder / "stats")

        make = partial(following.Shown, options, HOUR_NS)
        yield tables, followed.run(given, options, following.schemas(), make, after=lambda: show(tables()), shown=shown)


def begin(file: TextIO) -> str:
    """Return what begins a screen: on a terminal it takes the place of the one before, elsewhere it has the time."""
    if file.isatty() and os.environ.get("TERM") != "dumb":
        return CLEAR
    return f"--- {dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M:%S} UTC\n\n"
