"""The command `amqpscope report`."""

import argparse
import sys
from pathlib import Path


class Report:
    """Makes one self-contained HTML page from the tables of `dissect` and `analyze`."""

    name = "report"
    help = "one self-contained page of tables and plots"
    requires = ("matplotlib", "jinja2")
    extra = "report"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "tables",
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

        found = tables.locate(arguments.tables)
        page.write(found, arguments.output)
        sys.stderr.write(f"{arguments.output}\n")
        return 0
