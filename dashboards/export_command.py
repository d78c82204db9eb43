"""The commands `amqpscope annotate`, `compare` and `export`: what was found, beside or for something else."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


class Annotate:
    """`amqpscope annotate CAPTURE -o OUT.pcapng`: the capture with comments on its packets."""

    name = "annotate"
    help = "copy a capture with findings, verdicts and answers as packet comments, for Wireshark"
    requires: tuple[str, ...] = ()
    extra: str | None = None
    examples = (
        ("annotate trouble.pcap -o told.pcapng", 'then filter in Wireshark by frame.comment contains "amqpscope"'),
        (
            "annotate trouble.pcap --lua told.lua",
            "the findings for the capture as it is: wireshark -X lua_script:told.lua",
        ),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        from amqpscope.dissector.cli import arguments  # noqa: PLC0415

        arguments.add_common(parser, what=("CAPTURE", "one capture: a file, which is read twice"))
        parser.add_argument("-o", "--output", metavar="OUT.pcapng", type=Path, help="capture to write")
        parser.add_argument("--lua", metavar="FILE", type=Path, help="write findings as a script for Wireshark")
        parser.add_argument(
            "--profile", metavar="DIR", type=Path, help="write a profile for Wireshark: colours, a column"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Write what is asked for.

        Raises:
            Error: the capture cannot be read, or is a pipe; or a file is there, or cannot be written.
        """
        from amqpscope.dashboards import annotate  # noqa: PLC0415
        from amqpscope.dashboards.command import analyzed  # noqa: PLC0415
        from amqpscope.dashboards.replacing import replacing  # noqa: PLC0415
        from amqpscope.dashboards.tables import Tables  # noqa: PLC0415
        from amqpscope.dissector.formatting import counted  # noqa: PLC0415
        from amqpscope.errors import Error  # noqa: PLC0415

        capture = _one_file(arguments.captures)
        wanted = [path for path in (arguments.output, arguments.lua, arguments.profile) if path is not None]
        if not wanted:
            raise Error("nothing to write: give -o OUT.pcapng, --lua FILE or --profile DIR")
        for path in wanted:
            if path.exists():
                raise Error(f"{path} is there already; name another file, or remove it")
            if not path.absolute().parent.is_dir():
                raise Error(f"no such folder: {path.parent}")
        with analyzed(arguments) as (folder, status):
            tables = Tables(None, folder)
            if arguments.output:
                copied = annotate.write(tables, capture, capture.name, arguments.output)
                told = f"{counted(copied.comments, 'comment')} on {counted(copied.packets, 'packet')}"
                sys.stderr.write(f"{arguments.output}: {told}; packets keep all that they hold, passwords too\n")
                if copied.without_room:
                    left = counted(copied.without_room, "comment")
                    sys.stderr.write(f"amqpscope: {left} left out: simple packet blocks cannot have any\n")
                if copied.problem:
                    sys.stderr.write(f"amqpscope: {capture}: {copied.problem}\n")
            if arguments.lua:
                with replacing(arguments.lua) as file:
                    file.write_text(annotate.lua(tables, capture.name), encoding="utf-8")
            if arguments.profile:
                annotate.write_profile(arguments.profile)
        return status


class Export:
    """`amqpscope export DIR|STATS --as KIND -o PATH`: statistics for other tools."""

    name = "export"
    help = "write statistics for other tools: Perfetto, HdrHistogram, OpenTelemetry, Prometheus"
    requires: tuple[str, ...] = ()
    extra: str | None = None
    examples = (
        ("export stats --as perfetto -o trace.pftrace", "a trace for ui.perfetto.dev"),
        ("export stats --as hgrm -o percentiles", "a folder of percentile files for HdrHistogram's plotter"),
        ("export tables stats --as otlp -o spans.jsonl", "spans; from tables, with the parents in their headers"),
        ("export stats --as openmetrics -o capture.om", "for promtool tsdb create-blocks-from openmetrics"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "folders", metavar="DIR|STATS", nargs="+", help="a folder written by `dissect` or `analyze`, or one of each"
        )
        parser.add_argument(
            "--as",
            dest="kind",
            choices=("perfetto", "hgrm", "otlp", "openmetrics"),
            required=True,
            help="for which tool",
        )
        parser.add_argument("-o", "--output", metavar="PATH", type=Path, required=True, help="file or folder to write")

    def run(self, arguments: argparse.Namespace) -> int:
        """Write what is asked for.

        Raises:
            Error: a folder is none of tables; or there is nothing to export; or PATH is there, or cannot be written.
        """
        from amqpscope.dashboards import making  # noqa: PLC0415
        from amqpscope.dashboards.exports import KINDS  # noqa: PLC0415
        from amqpscope.dashboards.replacing import replacing  # noqa: PLC0415
        from amqpscope.dissector.cli.program import settle  # noqa: PLC0415
        from amqpscope.dissector.places import place  # noqa: PLC0415
        from amqpscope.errors import Error, MissingError  # noqa: PLC0415

        settle()
        path = arguments.output
        if path.exists():
            raise Error(f"{path} is there already; name another one, or remove it")
        folders = [place(folder) for folder in arguments.folders]
        for folder in folders:
            if not folder.exists():
                raise MissingError(f"no such folder: {folder}")
        if not making.are_tables(folders):
            raise Error(f"{folders[0]} is no folder of tables; run `amqpscope analyze {folders[0]} -o STATS` first")
        with making.of_folders(folders) as tables, replacing(path) as other:
            told = KINDS[arguments.kind](tables, other)
        sys.stderr.write(f"{path}: {told}\n")
        return 0


class Compare:
    """`amqpscope compare A B`, `compare A --at TIME`: what differs by more than chance."""

    name = "compare"
    help = "say what differs between two captures, or before and after a moment, by more than chance"
    requires: tuple[str, ...] = ()
    extra: str | None = None
    examples = (
        ("compare monday.pcap tuesday.pcap", "latencies, rates, outcomes and findings that differ"),
        ("compare stats --at 17:40", "before and after a change"),
        ("compare a b --format json", "all figures with their intervals, for programs"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        from amqpscope.dissector.cli import arguments, times  # noqa: PLC0415

        what = "captures, as for `dissect`; or folders written by `dissect` or `analyze`: two, or one with --at"
        arguments.add_common(parser, what=("A|B", what))
        parser.add_argument(
            "--at", metavar="TIME", type=times.given, help="compare before and after this time, within one capture"
        )
        parser.add_argument(
            "--format", choices=("text", "json"), default="text", help="format of the output (default: text)"
        )
        parser.add_argument("-o", "--output", metavar="FILE.html", type=Path, help="write a page instead")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print what differs, or write it as a page.

        Raises:
            Error: an input cannot be read; or there are not two sides; or a page cannot be written.
        """
        import copy  # noqa: PLC0415
        import json  # noqa: PLC0415
        import shutil  # noqa: PLC0415
        from contextlib import ExitStack  # noqa: PLC0415

        from amqpscope.dashboards import compare  # noqa: PLC0415
        from amqpscope.dashboards.command import analyzed  # noqa: PLC0415
        from amqpscope.dashboards.tables import Tables  # noqa: PLC0415
        from amqpscope.errors import Error, MissingError  # noqa: PLC0415

        names = arguments.captures
        if len(names) != (1 if arguments.at else 2):
            raise Error("compare takes two captures or folders, or one with --at TIME")
        if arguments.output and arguments.output.exists():
            raise Error(f"{arguments.output} is there already; name another file, or remove it")
        if arguments.output and not arguments.output.absolute().parent.is_dir():
            raise MissingError(f"no such folder: {arguments.output.parent}")
        with ExitStack() as stack:
            found, status = [], 0
            for name in names:
                one = copy.copy(arguments)
                one.captures = [name]
                folder, state = stack.enter_context(analyzed(one))
                found.append(compare.whole(Tables(None, folder), name))
                status = max(status, state)
            if arguments.at:
                at = arguments.at.ns(arguments.tz, found[0].low_ns)
                if not found[0].low_ns < at < found[0].high_ns:
                    raise Error("--at is outside of the capture: nothing is before or after it")
                found = list(compare.parts(found[0], at))
            before, after = found
            if arguments.output:
                from amqpscope.dashboards import page  # noqa: PLC0415 - needs Jinja2
                from amqpscope.dashboards.replacing import replacing  # noqa: PLC0415

                text = page.assemble(f"{before.name} and {after.name}", compare.sections(before, after))
                with replacing(arguments.output) as file:
                    file.write_text(text, encoding="utf-8")
                sys.stderr.write(f"{arguments.output}\n")
            elif arguments.format == "json":
                print(json.dumps(compare.data(before, after)))
            else:
                width = min(shutil.get_terminal_size((80, 24)).columns, 120)
                print(compare.text(before, after, max(width, 40)), end="")
        return status


def _one_file(captures: list[str]) -> Path:
    """Return the one file that is named.

    Raises:
        Error: it is something else, which cannot be read twice.
    """
    from amqpscope.errors import Error, MissingError  # noqa: PLC0415

    if len(captures) != 1:
        raise Error("annotate takes one capture; merge several first, as with mergecap")
    path = Path(captures[0])
    if captures[0] != "-" and not path.exists():
        raise MissingError(f"no such file: {path}")
    if captures[0] == "-" or not path.is_file():
        raise Error(f"{captures[0]} is no file: annotate reads a capture twice, so write it to a file first")
    return path
