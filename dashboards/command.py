"""The command `amqpscope report`."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Report:
    """Makes one self-contained HTML page from the tables of `dissect` and `analyze`."""

    name = "report"
    help = "one self-contained page: findings, pictures, tables"
    requires = ("matplotlib", "jinja2")
    extra = "report"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "paths",
            metavar="DIR|STATS",
            nargs="+",
            type=Path,
            help="folder that `analyze` or `dissect` wrote, or one of each; of one, the other is looked for",
        )
        parser.add_argument("-o", "--output", metavar="FILE.html", type=Path, required=True, help="page to write")

    def run(self, arguments: argparse.Namespace) -> int:
        """Write the page.

        Raises:
            ValueError: What was given is not a folder of tables, or a table cannot be read.
            OSError: A folder cannot be read, or the page cannot be written.
        """
        from amqpscope.dashboards import page, tables  # noqa: PLC0415 - loads pyarrow

        page.check(arguments.output)
        with _statistics(arguments) as folders:
            page.write(tables.locate(folders), arguments.output)
        sys.stderr.write(f"{arguments.output}\n")
        return 0


@contextmanager
def _statistics(arguments: argparse.Namespace) -> Iterator[list[Path]]:
    """Yield the folders of tables that the page is made from; what is made for it alone is removed afterwards.

    The one place that knows where statistics come from. Folders are taken as they are. Captures are to become a
    temporary folder here, with the tables of `dissect` and of `analyze` in it, and nothing else has to change: the
    page names the captures, not the folder.
    """
    yield arguments.paths
