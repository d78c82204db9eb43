"""The command `amqpscope report`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqpscope.dashboards.tables import Tables
    from amqpscope.dissector.tables.origin import Known


class Report:
    """Write one self-contained HTML page from captures, or from the tables of `dissect` and `analyze`."""

    name = "report"
    help = "write one self-contained page: findings, pictures, tables"
    requires = ("matplotlib", "jinja2")
    extra = "report"
    examples = (
        ("report trouble.pcap -o report.html", "a page about a capture"),
        ("report tables stats -o report.html", "a page from tables and statistics that are there"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        from amqpscope.dissector.cli import arguments  # noqa: PLC0415

        what = "captures, as for `dissect`; or a folder written by `dissect` or `analyze`, or one of each"
        arguments.add_common(parser, what=("CAPTURE|DIR|STATS", what))
        parser.add_argument("-o", "--output", metavar="FILE.html", type=Path, required=True, help="page to write")

    def run(self, arguments: argparse.Namespace) -> int:
        """Write the page.

        Raises:
            Error: the input cannot be read, or mixes captures and tables.
            OSError: a folder cannot be read, or the page cannot be written.
        """
        from amqpscope.dashboards import page  # noqa: PLC0415 - loads pyarrow

        page.check(arguments.output)
        with _statistics(arguments) as (tables, captures, status):
            page.write(tables, arguments.output, captures)
        sys.stderr.write(f"{arguments.output}\n")
        return status


@contextmanager
def _statistics(arguments: argparse.Namespace) -> Iterator[tuple[Tables, list[Known] | None, int]]:
    """Yield the tables of the page, captures that were read for it, and the exit status.

    Temporary tables are removed afterwards.
    """
    from amqpscope.dashboards import making  # noqa: PLC0415
    from amqpscope.dissector.cli import arguments as common  # noqa: PLC0415
    from amqpscope.dissector.cli.program import settle  # noqa: PLC0415
    from amqpscope.dissector.places import place  # noqa: PLC0415

    settle()
    paths = [place(path) for path in arguments.captures]
    if making.are_tables(paths):
        common.refuse_for_tables(arguments)
        with making.of_folders(paths) as tables:
            yield tables, None, 0
        return
    with making.temporary() as folder:
        yield _of_captures(arguments, folder)


def _of_captures(arguments: argparse.Namespace, folder: Path) -> tuple[Tables, list[Known], int]:
    from amqpscope.dashboards import making, page  # noqa: PLC0415
    from amqpscope.dissector.cli import arguments as common  # noqa: PLC0415
    from amqpscope.dissector.cli import progress  # noqa: PLC0415
    from amqpscope.dissector.cli.precompile import compile_kernels  # noqa: PLC0415
    from amqpscope.dissector.reading import Reading  # noqa: PLC0415
    from amqpscope.dissector.tables import origin  # noqa: PLC0415

    sources, options, status = common.sources(arguments)
    captures = origin.of_captures(sources)
    page.check(arguments.output, captures)
    with progress.shown() as advance, common.watch(sources) as watch:
        compile_kernels(sources)
        read = progress.reading(advance, sources, lambda: (len(reading.seen), reading.rows))
        reading = Reading(sources, options, read, watch=watch)
        tables = making.of_captures(reading, folder, captures)
    return tables, captures, common.print_warnings(reading, arguments.tz) or status
