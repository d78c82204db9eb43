"""The command `amqpscope analyze`."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

SMALL = 64 << 20
"""Octets of tables below which Spark is started for little work."""


class Analyze:
    """`amqpscope analyze DIR -o STATS`."""

    name = "analyze"
    help = "statistics from the tables of dissect: confirms, settlements, requests, waits, latencies"
    requires = ("pyspark", "pandas")
    extra = "spark"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare options and arguments."""
        parser.add_argument("tables", metavar="DIR", type=Path, help="folder that `dissect` wrote")
        parser.add_argument(
            "-o", "--output", metavar="STATS", required=True, type=Path, help="folder for the statistics"
        )
        parser.add_argument(
            "--master", metavar="URL", default="local[*]", help="where Spark runs (default: local[*], this machine)"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Analyze.

        Raises:
            amqpscope.pipelines.reader.ReadError: the folder has no tables.
            amqpscope.pipelines.output.OutputError: the output cannot be written.
            amqpscope.pipelines.session.SessionError: Spark does not start.
        """
        from amqpscope.dissector.tables.output import digest  # noqa: PLC0415
        from amqpscope.pipelines.analysis import analyze, jobs  # noqa: PLC0415 - Spark is slow to import
        from amqpscope.pipelines.output import Output  # noqa: PLC0415
        from amqpscope.pipelines.reader import dissected, read_note  # noqa: PLC0415
        from amqpscope.pipelines.session import session  # noqa: PLC0415

        folder = dissected(arguments.tables)
        complete = read_note(folder)["complete"]
        if not complete:
            print(f"amqpscope: {folder}: dissect did not finish; this is what it wrote until then", file=sys.stderr)
        note = {"tables": str(folder.absolute()), "tables_complete": complete, "made_of": digest(folder)}
        output = Output(arguments.output, note)
        with _progress(len(jobs())) as tell:
            tell("starting Spark")
            octets = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            spark = session(arguments.master, small=octets < SMALL)
            try:
                analyze(spark, folder, output, tell)
            finally:
                spark.stop()
        print(f"{arguments.output}: {', '.join(jobs())}", file=sys.stderr)
        return 0


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """Says on standard error what is being made; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        said = -1

        def tell(what: str) -> None:
            nonlocal said
            said += 1
            bar.update(task, description=what, completed=max(said - 1, 0))

        yield tell
