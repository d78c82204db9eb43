"""The commands `amqpscope summary`, `messages`, `report` and `plot`."""

from __future__ import annotations

import argparse
import difflib
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqpscope.dashboards.tables import Tables
    from amqpscope.dissector.places import Place
    from amqpscope.dissector.tables.origin import Known


REFRESH_S = 10
"""Seconds after which browsers load a page again whose captures are followed."""


class Report:
    """Write one self-contained HTML page from captures, or from the tables of `dissect` and `analyze`."""

    name = "report"
    help = "write one self-contained page: findings, pictures, tables"
    requires = ("jinja2",)
    extra = "report"
    examples = (
        ("report trouble.pcap -o report.html", "a page about a capture"),
        ("report tables stats -o report.html", "a page from tables and statistics that are there"),
        ("report --follow captures/ -o page.html", "written anew while tcpdump -G 60 -w 'captures/%s.pcap' goes on"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        from amqpscope.dissector.cli import arguments, following  # noqa: PLC0415

        what = "captures, as for `dissect`; or a folder written by `dissect` or `analyze`, or one of each"
        arguments.add_common(parser, what=("CAPTURE|DIR|STATS", what))
        parser.add_argument("-o", "--output", metavar="FILE.html", type=Path, required=True, help="page to write")
        following.add_arguments(parser, goes_on=False)

    def run(self, arguments: argparse.Namespace) -> int:
        """Write the page.

        Raises:
            Error: the input cannot be read, or mixes captures and tables.
            OSError: a folder cannot be read, or the page cannot be written.
        """
        from amqpscope.dissector.cli import following  # noqa: PLC0415
        from amqpscope.dissector.cli.program import settle  # noqa: PLC0415

        settle()  # first: what is loaded makes arrays
        from amqpscope.dashboards import page  # noqa: PLC0415 - loads pyarrow

        page.check(arguments.output)
        if following.is_wanted(arguments):
            return _followed(arguments)
        with _statistics(arguments) as (tables, captures, status):
            page.write(tables, arguments.output, captures)
        sys.stderr.write(f"{arguments.output}\n")
        return status


def _followed(arguments: argparse.Namespace) -> int:
    """Write the page anew after each batch of a directory that is followed; in between, browsers load it again."""
    from amqpscope.dashboards import followed, page  # noqa: PLC0415

    written = 0

    def write(tables: Tables, refresh_s: int = REFRESH_S) -> None:
        nonlocal written
        page.write(tables, arguments.output, refresh_s=refresh_s, is_ours=written > 0)
        written += 1

    with followed.statistics(arguments, write, str(arguments.output)) as (tables, status):
        if written:
            write(tables(), refresh_s=0)
    sys.stderr.write(f"{arguments.output}\n")
    return status


@contextmanager
def _statistics(arguments: argparse.Namespace) -> Iterator[tuple[Tables, list[Known] | None, int]]:
    """Yield the tables of the page, captures that were read for it, and the exit status.

    Temporary tables are removed afterwards.
    """
    from amqpscope.dashboards import making  # noqa: PLC0415
    from amqpscope.dissector.cli import arguments as common  # noqa: PLC0415
    from amqpscope.dissector.places import place  # noqa: PLC0415

    paths = [place(path) for path in arguments.captures]
    if making.are_tables(paths):
        common.refuse_for_tables(arguments)
        with making.of_folders(paths) as tables:
            yield tables, None, 0
        return
    with making.temporary() as folder:
        yield _of_captures(arguments, folder)


def _of_captures(
    arguments: argparse.Namespace, folder: Path, keeps_tables: bool = True
) -> tuple[Tables, list[Known], int]:
    from amqpscope.dashboards import making, page  # noqa: PLC0415
    from amqpscope.dissector.cli import arguments as common  # noqa: PLC0415
    from amqpscope.dissector.cli import progress  # noqa: PLC0415
    from amqpscope.dissector.cli.precompile import compile_kernels  # noqa: PLC0415
    from amqpscope.dissector.reading import Reading  # noqa: PLC0415
    from amqpscope.dissector.tables import origin  # noqa: PLC0415

    sources, options, status = common.sources(arguments)
    captures = origin.of_captures(sources)
    if keeps_tables and arguments.output.suffix == ".html":  # for a page
        page.check(arguments.output, captures)
    with progress.shown() as advance, common.watch(sources) as watch:
        compile_kernels(sources)
        read = progress.reading(advance, sources, lambda: (len(reading.seen), reading.rows))
        reading = Reading(sources, options, read, watch=watch)
        tables = making.of_captures(reading, folder, captures, keeps_tables)
    return tables, captures, common.print_warnings(reading, arguments.tz) or status


class Plot:
    """`amqpscope plot NAME CAPTURE...|DIR|STATS -o FILE`: one picture."""

    name = "plot"
    help = "save one picture: lanes, percentiles, heat maps, staircases"
    requires = ("matplotlib",)
    extra = "report"
    examples = (
        (
            "plot lanes trouble.pcap -o lanes.png",
            "rates, latencies, time in queue and unacknowledged deliveries over time",
        ),
        ("plot percentiles stats -o latency.svg", "how long the slowest share took"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        from amqpscope.dissector.cli import arguments  # noqa: PLC0415

        parser.add_argument(
            "picture", metavar="NAME",
            help="lanes, percentiles, confirm-heat, settlement-heat, staircase, flow-control, streams or sizes",
        )  # fmt: skip
        what = "captures, as for `dissect`; or a folder written by `dissect` or `analyze`, or one of each"
        arguments.add_common(parser, what=("CAPTURE|DIR|STATS", what))
        parser.add_argument(
            "-o", "--output", metavar="FILE", type=Path, required=True, help="picture to write: .png, .svg or .pdf"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Write the picture.

        Raises:
            Error: the input cannot be read; or there is no such picture, or nothing to draw.
            OSError: a folder cannot be read.
        """
        from amqpscope.dissector.cli.program import settle  # noqa: PLC0415

        settle()
        from amqpscope.dashboards import pictures  # noqa: PLC0415

        pictures.check(arguments.picture, arguments.output)
        with _statistics(arguments) as (tables, _, status):
            pictures.save(arguments.picture, tables, arguments.output)
        sys.stderr.write(f"{arguments.output}\n")
        return status


class Summary:
    """`amqpscope summary CAPTURE...|DIR|STATS`: the first screen."""

    name = "summary"
    help = "say what is wrong, by whom, and which packets show it"
    requires: tuple[str, ...] = ()
    extra: str | None = None
    examples = (
        ("summary trouble.pcap", "the first screen: what is wrong, queues, clients, rates"),
        ("summary stats --format json", "all findings and the tables behind them, for programs"),
        ("summary trouble.pcap --fail-on error", "for scripts: status 1 on these"),
        ("summary trouble.pcap --states", "all rules, also those that cannot be judged from this capture"),
        ("summary --follow captures/", "written again while tcpdump -G 60 -w 'captures/%s.pcap' goes on"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        from amqpscope.dissector.cli import arguments, following, options  # noqa: PLC0415

        what = "captures, as for `dissect`; or a folder written by `dissect` or `analyze`"
        arguments.add_common(parser, what=("CAPTURE|DIR|STATS", what))
        parser.add_argument(
            "--format", choices=("text", "json"), default="text", help="format of the output (default: text)"
        )
        parser.add_argument(
            "--rules", metavar="FILE", type=Path, help="further rules for findings, a TOML file like spec/findings.toml"
        )
        parser.add_argument("--states", action="store_true", help="list all rules with their state")
        fail_on = parser.add_argument(
            "--fail-on", metavar="CODE|SEVERITY", action="append", default=[], type=_code_or_severity,
            help="exit with status 1 on findings of this code, or of this severity (error, warning, note) or worse; "
            "with --follow, on those of the last screen",
        )  # fmt: skip
        options.suggest(fail_on, _codes_and_severities)
        following.add_arguments(parser, goes_on=False)

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the first screen.

        Raises:
            Error: the input cannot be read, or mixes captures and tables; or a rule is wrong.
            OSError: a folder cannot be read.
        """
        from amqpscope.dissector.cli import following  # noqa: PLC0415

        follows = following.is_wanted(arguments)
        from amqpscope.dashboards import first_screen  # noqa: PLC0415
        from amqpscope.dashboards.tables import Tables  # noqa: PLC0415
        from amqpscope.spec import findings  # noqa: PLC0415
        from amqpscope.spec.layout import paint  # noqa: PLC0415

        rules = findings.user(arguments.rules) if arguments.rules else None
        failing = False

        def show(tables: Tables) -> None:
            nonlocal failing
            data = first_screen.collect(tables, rules)
            failing = bool(first_screen.failing(data, arguments.fail_on))
            if arguments.format == "json":
                print(json.dumps(data), flush=True)
                return
            width = min(shutil.get_terminal_size((first_screen.WIDTH, 24)).columns, first_screen.WIDEST)
            begin = followed.begin(sys.stdout) if follows else ""
            print(begin + first_screen.text(data, max(width, 40), arguments.states, paint), end="", flush=True)

        if follows:
            from amqpscope.dashboards import followed  # noqa: PLC0415

            with followed.statistics(arguments, show, arguments.captures[0]) as (_, status):
                pass
        else:
            with analyzed(arguments) as (folder, status):
                show(Tables(None, folder))
        return status or int(failing)


class Messages:
    """`amqpscope messages CAPTURE...|DIR|STATS`: a line per message."""

    name = "messages"
    help = "print each message on one line, with its confirm or settlement and how late it came"
    requires: tuple[str, ...] = ()
    extra: str | None = None
    examples = (
        ("messages trouble.pcap --queue orders -c 20", "the first 20 messages of a queue"),
        ("messages trouble.pcap --slower-than 100ms", "those whose confirm or settlement came late, or not at all"),
        ("messages stats --unanswered --format json", "those that nobody answered, for programs"),
        ("messages trouble.pcap --message-id 7f3a", "what became of a message: publish, confirm, deliveries"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        from amqpscope.dissector.cli import arguments  # noqa: PLC0415
        from amqpscope.pipelines.command import duration  # noqa: PLC0415

        what = "captures, as for `dissect`; or a folder written by `dissect` or `analyze`"
        arguments.add_common(parser, what=("CAPTURE|DIR|STATS", what))
        parser.add_argument(
            "--format", choices=("text", "json", "csv"), default="text", help="format of the lines (default: text)"
        )
        group = parser.add_argument_group(
            "selection", "Messages that match all of these options; where one is repeated, any of its values."
        )
        for option, metavar, which in (
            ("message-id", "ID", "with this message id (deliveries: that of their publish)"),
            ("routing-key", "KEY", "with this routing key"),
            ("queue", "NAME", "delivered from this queue or stream, or known to have reached it"),
            ("exchange", "NAME", "published to this exchange; '' is the default exchange"),
        ):
            group.add_argument(
                f"--{option}", metavar=metavar, action="append", default=[], help=f"only messages {which}"
            )
        group.add_argument(
            "--slower-than", metavar="DURATION", type=duration,
            help="only messages whose confirm or settlement took longer, or did not come for longer: 100ms, 2s",
        )  # fmt: skip
        group.add_argument(
            "--unanswered", action="store_true",
            help="only messages without confirm or settlement; not those whose answer may lie in a gap",
        )  # fmt: skip
        group.add_argument("-c", "--count", metavar="N", type=arguments.count, help="only the first of them, N at most")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the messages.

        Raises:
            Error: the input cannot be read, or mixes captures and tables.
            OSError: a folder cannot be read.
        """
        from amqpscope.dashboards import message_lines, messages  # noqa: PLC0415
        from amqpscope.dissector.formatting import counted  # noqa: PLC0415

        wanted = messages.Wanted(
            arguments.message_id, arguments.routing_key, arguments.queue, arguments.exchange, arguments.slower_than,
            arguments.unanswered, arguments.count,
        )  # fmt: skip
        with analyzed(arguments) as (folder, status), messages.find(folder, wanted) as found:
            if arguments.format == "json":
                message_lines.json_lines(found, sys.stdout, arguments.tz)
            elif arguments.format == "csv":
                message_lines.csv_lines(found, sys.stdout, arguments.tz)
            else:
                width = shutil.get_terminal_size((message_lines.NARROWEST, 24)).columns
                message_lines.text_lines(found, sys.stdout, arguments.tz, width)
            if not found.count:
                what = f"none of {counted(found.all, 'message')} matches" if found.all else "no messages to list"
                sys.stderr.write(f"amqpscope: {what}\n")
        return status


def _codes_and_severities() -> list[str]:
    from amqpscope.spec import findings  # noqa: PLC0415

    return [*findings.SEVERITIES, *sorted(rule.code for rule in findings.load())]


def _code_or_severity(text: str) -> str:
    known = _codes_and_severities()
    if text not in known:
        near = difflib.get_close_matches(text, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise argparse.ArgumentTypeError(f"no such finding: {text!r}{hint} (see `amqpscope summary --states`)")
    return text


@contextmanager
def analyzed(arguments: argparse.Namespace) -> Iterator[tuple[Place, int]]:
    """Yield a folder of statistics and the exit status; a temporary one is removed afterwards."""
    from amqpscope.dashboards import making  # noqa: PLC0415
    from amqpscope.dissector.cli import arguments as common  # noqa: PLC0415
    from amqpscope.dissector.cli.program import settle  # noqa: PLC0415
    from amqpscope.dissector.places import place  # noqa: PLC0415
    from amqpscope.pipelines.folder import MissingTablesError  # noqa: PLC0415

    settle()
    paths = [place(path) for path in arguments.captures]
    if making.are_tables(paths):
        common.refuse_for_tables(arguments)
        with making.of_folders(paths) as tables:
            if tables.analyzed is None:
                raise MissingTablesError(f"{paths[0]}: no statistics, and no tables to make them of")
            yield tables.analyzed, 0
        return
    with making.temporary() as folder:
        tables, _, status = _of_captures(arguments, folder, keeps_tables=False)
        assert tables.analyzed is not None
        yield tables.analyzed, status
