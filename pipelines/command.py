"""The command `amqpscope analyze`."""

import argparse
import re
import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

from amqpscope.dissector.cli import progress
from amqpscope.dissector.places import Place, place

if TYPE_CHECKING:
    from amqpscope.dissector.capture.sources import Source

UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}


class Analyze:
    """`amqpscope analyze DIR|CAPTURE... -o STATS`."""

    name = "analyze"
    help = "statistics of captures or of dissected tables: confirms, settlements, requests, flow control, latencies"
    requires: tuple[str, ...] = ()
    extra: str | None = None
    examples = (
        ("analyze trouble.pcap -o stats", "the statistics of a capture, in this process"),
        ("analyze tables -o stats --master 'local[*]'", "the statistics of tables, on Spark"),
        ("analyze --follow captures/ -o stats", "go on while tcpdump -G 60 -w 'captures/%s.pcap' writes files"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare options and arguments."""
        from amqpscope.dissector.cli import arguments, following  # noqa: PLC0415

        arguments.add_common(parser, what=("DIR|CAPTURE", "folder that `dissect` wrote; or captures, as for `dissect`"))
        parser.add_argument(
            "-o", "--output", metavar="STATS", required=True, type=place,
            help="folder for the statistics; those of the same captures in it are replaced",
        )  # fmt: skip
        arguments.add_replace(parser)
        arguments.add_master(parser, " (default: in this process)")
        parser.add_argument(
            "--transit-window",
            metavar="DURATION",
            type=duration,
            default=UNITS["h"],
            help="how far before a delivery to look for its publish: 90s, 30m, 2h (default: 1h)",
        )
        following.add_arguments(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Analyze.

        Raises:
            amqpscope.pipelines.folder.ReadError: the folder has no tables.
            amqpscope.dissector.capture.input.CaptureError: a capture cannot be read.
            amqpscope.dissector.tables.output.OutputError: the output cannot be written.
            amqpscope.pipelines.spark.session.SessionError: Spark does not start.
        """
        from amqpscope.dissector.cli import arguments as common  # noqa: PLC0415
        from amqpscope.dissector.cli import following  # noqa: PLC0415
        from amqpscope.dissector.cli.program import settle  # noqa: PLC0415

        common.check_master(arguments)
        if following.is_wanted(arguments):
            return self._follow(arguments)
        settle()
        named = arguments.captures
        if len(named) == 1 and is_tables(place(named[0])):
            common.refuse_for_tables(arguments)
            return self._tables(arguments, place(named[0]))
        return self._captures(arguments)

    def _follow(self, arguments: argparse.Namespace) -> int:
        """Write the statistics of a directory that a capture rotates into."""
        from amqpscope.dissector.cli import arguments as common  # noqa: PLC0415
        from amqpscope.dissector.cli import following as followed  # noqa: PLC0415
        from amqpscope.pipelines.run import following  # noqa: PLC0415

        if arguments.master is not None:
            followed_on_spark: int = on_spark("following").analyze(arguments)
            return followed_on_spark
        options = common.options(arguments)
        make = partial(following.Analysis, options, arguments.transit_window)
        return followed.run(arguments, options, following.schemas(), make, extra=f"{arguments.transit_window}")

    def _captures(self, arguments: argparse.Namespace) -> int:
        from amqpscope.dissector.cli import arguments as common  # noqa: PLC0415
        from amqpscope.dissector.cli.precompile import compile_kernels  # noqa: PLC0415
        from amqpscope.dissector.reading import Reading  # noqa: PLC0415
        from amqpscope.dissector.tables import origin  # noqa: PLC0415
        from amqpscope.pipelines.run import local  # noqa: PLC0415

        if arguments.master is not None:
            return self._archive(arguments)
        sources, options, status = common.sources(arguments)
        made_from = origin.of_captures(sources)
        origin.check(arguments.output, made_from, arguments.replace)
        note = origin.note(arguments.captures, (options.from_ns, options.to_ns), made_from)
        with progress.shown() as advance, common.watch(sources) as watch:
            compile_kernels(sources)
            read = progress.reading(advance, sources, lambda: (len(reading.seen), reading.rows))
            reading = Reading(sources, options, read, watch=watch)
            walking = progress.share(advance, sources)
            made = local.analyze_captures(reading, arguments.output, note, arguments.transit_window, walking)
        print_written(made, arguments.output)
        return common.print_warnings(reading, arguments.tz) or status

    def _archive(self, arguments: argparse.Namespace) -> int:
        """Analyze captures on Spark."""
        from amqpscope.dissector.cli import arguments as common  # noqa: PLC0415

        archive = on_spark("archive")
        sys.stderr.write(f"amqpscope: on Spark, {arguments.master}\n")
        with progress.shown() as advance:
            made = archive.analyze_captures(*_captures(arguments, advance), arguments.transit_window)
        status = _skipped(made.reading.sources)
        print_written(made.rows, arguments.output)
        common.print_warnings(made.reading, arguments.tz)
        return status

    def _tables(self, arguments: argparse.Namespace, folder: Place) -> int:
        from amqpscope.dissector.tables import origin  # noqa: PLC0415
        from amqpscope.pipelines.folder import dissected, note_of_statistics  # noqa: PLC0415

        origin.check(arguments.output, origin.of_tables(dissected(folder)), arguments.replace)
        note = note_of_statistics(folder)
        complete = note["tables_complete"]
        if not complete:
            sys.stderr.write(f"amqpscope: {folder}: incomplete: dissect was interrupted; this is what it wrote\n")
        if arguments.master is not None:
            sys.stderr.write(f"amqpscope: on Spark, {arguments.master}\n")
        with progress.shown(of_bytes=False) as advance:
            if arguments.master is None:
                from amqpscope.pipelines.run import local  # noqa: PLC0415

                made = local.analyze_folder(folder, arguments.output, note, arguments.transit_window, advance)
            else:
                cluster = on_spark("engine")
                how = {"answer_s": arguments.master_timeout, "parts": arguments.parts}
                to = cluster.Submission(arguments.master, arguments.output, note, advance, **how)
                made = cluster.analyze_folder(folder, to, arguments.transit_window)
        print_written(made, arguments.output)
        return 0


def dissect_on_spark(arguments: argparse.Namespace) -> int:
    """Write the tables of captures on Spark: `amqpscope dissect --master`. Return the exit status."""
    from amqpscope.dissector.cli import arguments as common  # noqa: PLC0415

    if arguments.follow:
        followed: int = on_spark("following").dissect(arguments)
        return followed
    archive = on_spark("archive")
    form = archive.Form(arguments.format, arguments.compression)
    with progress.shown() as advance:
        made = archive.dissect_captures(*_captures(arguments, advance), form)
    status = _skipped(made.reading.sources)
    frames = common.print_written(arguments.output, made.rows)
    common.print_warnings(made.reading, arguments.tz, frames)
    return status


def _captures(arguments: argparse.Namespace, advance: progress.Advance) -> tuple[object, ...]:
    """Return the first arguments of jobs over captures: these, the options, and where the jobs are done."""
    from amqpscope.dissector.capture.sources import named  # noqa: PLC0415
    from amqpscope.dissector.cli import arguments as common  # noqa: PLC0415
    from amqpscope.dissector.tables import origin  # noqa: PLC0415
    from amqpscope.pipelines.spark.tasks import Submission  # noqa: PLC0415

    sources = named(arguments.captures)
    made_from = origin.of_captures(sources)
    origin.check(place(arguments.output), made_from, arguments.replace)
    note = {"captures": arguments.captures, origin.MADE_FROM: origin.marks(made_from)}
    output, wait, count = place(arguments.output), arguments.master_timeout, arguments.parts
    to = Submission(arguments.master, output, note, advance, answer_s=wait, parts=count)
    return sources, partial(common.options, arguments), to


def _skipped(sources: "list[Source]") -> int:
    """Report captures that cannot be read on standard error; return the exit status."""
    from amqpscope.dissector.cli import arguments as common  # noqa: PLC0415

    bad = [source for source in sources if source.error]
    for source in bad:
        common.print_skipped(f"{source.given}: {source.error}")
    return 2 if bad else 0


def on_spark(name: str) -> ModuleType:
    """Return a module that needs Spark.

    Raises:
        Error: Spark is not installed.
    """
    from amqpscope.errors import Error, installing  # noqa: PLC0415

    if find_spec("pyspark") is None:
        raise Error(f"Spark is not installed: {installing('spark')}")
    return import_module(f"amqpscope.pipelines.spark.{name}")


def is_tables(path: Place) -> bool:
    """Return whether a path is a folder of tables, or a folder without anything that could be a capture."""
    if not path.is_dir():
        return False
    from amqpscope.dissector.capture.sources import CAPTURE_NAME  # noqa: PLC0415
    from amqpscope.dissector.tables.output import NOTE  # noqa: PLC0415

    if (path / NOTE).exists() or (path / "connections").is_dir():
        return True
    return not any(CAPTURE_NAME.search(each.name) for each in path.iterdir())


def duration(text: str) -> int:
    """Return a duration in ns.

    Raises:
        argparse.ArgumentTypeError: the text is not a duration.
    """
    found = re.fullmatch(r"(\d{1,9})(ns|us|ms|s|m|h|d)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"not a duration: {text!r}; give 90s, 30m or 2h")
    return int(found[1]) * UNITS[found[2]]


def print_written(made: dict[str, int], output: Place) -> None:
    """Print on standard error what was written."""
    counts = ", ".join(f"{name} {rows:,}" for name, rows in made.items() if rows)
    sys.stderr.write(f"{output}: {counts or 'no rows'}\n")
