"""The options by which commands follow a directory, and how they do."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from amqpscope.dissector.capture.live import Watch
from amqpscope.dissector.cli import arguments as common
from amqpscope.dissector.cli.arguments import ArgumentError
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.formatting import counted
from amqpscope.dissector.places import place
from amqpscope.dissector.tables.output import CODEC

if TYPE_CHECKING:
    import pyarrow as pa

    from amqpscope.dissector.following.dissection import Dissection, IdleDissector
    from amqpscope.dissector.following.folder import Plan
    from amqpscope.dissector.following.loop import Make


def add_arguments(parser: argparse.ArgumentParser, goes_on: bool = True) -> None:
    """Declare the options.

    Args:
        parser: gets them.
        goes_on: whether an output stays that a later run goes on with.
    """
    after = "where an earlier run ended" if goes_on else "with the next one; a later run begins anew"
    parser.add_argument(
        "--follow", action="store_true",
        help="follow a directory that tcpdump or dumpcap rotates into: take each file when it is complete, and go on "
        + after,
    )  # fmt: skip
    parser.add_argument(
        "--until-idle", metavar="SECONDS", type=seconds,
        help="with --follow: end after this time in which nothing was written to the directory (default: at Ctrl-C)",
    )  # fmt: skip


def seconds(text: str) -> float:
    """Return a number of seconds.

    Raises:
        argparse.ArgumentTypeError: the text is something else.
    """
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return found


def is_wanted(arguments: argparse.Namespace) -> bool:
    """Return whether a directory is to be followed.

    Raises:
        ArgumentError: the arguments contradict each other.
    """
    if not arguments.follow:
        if arguments.until_idle is not None:
            raise ArgumentError("--until-idle goes with --follow")
        return False
    if getattr(arguments, "jobs", 1) > 1:
        raise ArgumentError("--follow works in one process, or on Spark with --master, without --jobs")
    if len(arguments.captures) != 1 or not Path(arguments.captures[0]).is_dir():
        raise ArgumentError(f"--follow needs one directory of this machine, not {' '.join(arguments.captures)}")
    output = getattr(arguments, "output", Path())
    if not isinstance(place(output), Path):
        raise ArgumentError(f"--follow writes to a folder of this machine, not to {output}")
    if common.wanted_times(arguments).needs_day:
        raise ArgumentError("with --follow, --from and --to need a date")
    return True


def _check(output: Path, followed: str, replace: bool) -> None:
    """Check that the output may be written there: it goes on with an earlier one, or replaces what may be replaced."""
    from amqpscope.dissector.capture.sources import CAPTURE_NAME, named  # noqa: PLC0415
    from amqpscope.dissector.tables import origin  # noqa: PLC0415
    from amqpscope.dissector.tables.output import NOTE, STATE  # noqa: PLC0415

    if replace or (output / STATE).exists() or not (output / NOTE).exists():
        return
    is_empty = not any(CAPTURE_NAME.search(path.name) for path in Path(followed).rglob("*"))
    origin.check(output, [] if is_empty else origin.of_captures(named([followed])))


def run(
    arguments: argparse.Namespace,
    options: Options,
    schemas: "Mapping[str, pa.Schema]",
    make: "Make",
    form: str = "parquet",
    compression: str = CODEC,
    extra: str = "",
    dissector: "Callable[[Options, bool], IdleDissector] | None" = None,
    after: "Callable[[], None] | None" = None,
    shown: str = "",
) -> int:
    """Follow a directory until nothing comes, or the user ends it. Return the exit status, 2 if files were skipped.

    Args:
        arguments: of the command.
        options: of the dissection.
        schemas: of the tables that are written.
        make: makes what takes the rows of a batch (`loop.Follower`).
        form: format of the files.
        compression: compression of Parquet.
        extra: further options on which rows or state depend.
        dissector: makes the dissector of each batch (`loop.Follower`).
        after: called when a batch is committed.
        shown: what messages call the output; its path where this is empty.
    """
    from amqpscope.dissector.cli.precompile import compile_kernels  # noqa: PLC0415
    from amqpscope.dissector.cli.program import settle  # noqa: PLC0415
    from amqpscope.dissector.cli.warnings import Contradictions, capture_lines  # noqa: PLC0415
    from amqpscope.dissector.following.dissection import IdleDissector  # noqa: PLC0415
    from amqpscope.dissector.following.folder import Folder  # noqa: PLC0415
    from amqpscope.dissector.following.journal import Journal  # noqa: PLC0415
    from amqpscope.dissector.following.loop import Follower, author  # noqa: PLC0415

    settle()
    (named,) = arguments.captures
    path, output = os.path.realpath(named), str(arguments.output)
    _check(Path(output), path, arguments.replace)
    note = {"captures": [named], "followed": True, "from_ns": options.from_ns, "to_ns": options.to_ns}
    contradictions = Contradictions()

    def report(dissection: "Dissection", plan: "Plan") -> None:
        rows, progress = sum(journal.rows.values()), dissection.progress
        for source in dissection.refused:
            common.print_skipped(f"{source.given}: {source.error}")
        for line in (*capture_lines(dissection.seen), *contradictions.lines(dissection.dissector.connections)):
            sys.stderr.write(f"amqpscope: {line}\n")
        waiting = f"; {counted(plan.left, 'file')} not complete" if plan.left else ""
        done = f"{counted(progress.files, 'file')}, {progress.bytes / 1e6:,.1f} MB, {counted(rows, 'row')}"
        sys.stderr.write(f"{shown or output}: {done}{waiting}\n")
        if after:
            after()

    made_by = author(path, options, extra)
    with Watch() as watch, Journal(output, schemas, form, compression, note, made_by, arguments.replace) as journal:
        follower = Follower(
            Folder(path), journal, options, make, compile_kernels, report, watch, arguments.until_idle,
            dissector or IdleDissector,
        )  # fmt: skip
        refused = follower.progress.refused
        follower.run()
        if watch.over:
            goes_on = "ended" if shown else "ended; the same command goes on from here"
            sys.stderr.write(f"{shown or output}: {goes_on}\n")
    return 2 if follower.progress.refused > refused else 0
