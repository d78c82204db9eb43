"""Declare the options of all commands that read captures, and turn them into `Options`."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import tzinfo

from amqpscope.dissector.capture.input import CaptureError
from amqpscope.dissector.capture.live import Watch
from amqpscope.dissector.capture.sources import Source, find
from amqpscope.dissector.cli import times
from amqpscope.dissector.cli.options import suggest
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.formatting import counted
from amqpscope.dissector.protocols import registry
from amqpscope.dissector.reading import Reading
from amqpscope.errors import Error


class ArgumentError(Error):
    """Arguments that contradict each other; the text is one line."""


def add_common(
    parser: argparse.ArgumentParser,
    bodies: bool = False,
    what: tuple[str, str] = ("CAPTURE", "capture file, glob or directory, also by URL (s3://...); - is standard input"),
) -> None:
    """Declare the options.

    Args:
        parser: gets the options.
        bodies: whether the command writes messages, so that --bodies is in its help.
        what: name and description of the captures in the help.
    """
    parser.add_argument("captures", metavar=what[0], nargs="+", help=what[1])
    port = parser.add_argument(
        "--port", metavar="PORT=PROTOCOL", action="append", default=[], type=_port,
        help=f"protocol on this TCP port, whatever its content ({', '.join(registry.decoded())}); "
        "may be repeated",
    )  # fmt: skip
    usual = {"amqp-0-9-1": 5672, "amqp-0-10": 5672, "rabbitmq-stream": 5552}
    suggest(port, lambda: [f"{usual.get(name, 5672)}={name}" for name in registry.decoded()])
    parser.add_argument(
        "--spec", metavar="FILE", help="AMQP XML document (0-8 to 0-10), which extends the built-in protocol"
    )
    parser.add_argument(
        "--keylog", metavar="FILE",
        help="TLS key log (SSLKEYLOGFILE) to decrypt with; it may still grow. Secrets in a pcapng are always used",
    )  # fmt: skip
    parser.add_argument(
        "--from", dest="start", metavar="TIME", type=times.given,
        help="leave out rows before this time: 2026-01-31T12:00:00.5Z, 2026-01-31, seconds since 1970; or 17:40, "
        "of the day of the first packet",
    )  # fmt: skip
    parser.add_argument(
        "--to", dest="end", metavar="TIME", type=times.given, help="leave out rows at or after this time"
    )
    parser.add_argument(
        "--tz", metavar="ZONE", type=times.zone, default="UTC",
        help="time zone of printed times, and of given ones that name none: Europe/Berlin, local (default: UTC)",
    )  # fmt: skip
    parser.add_argument(
        "--bodies",
        choices=("none", "hash", "full"),
        default="hash",
        help="message bodies in the tables: left out, as a hash, or in full (default: hash)"
        if bodies
        else argparse.SUPPRESS,
    )


def add_replace(parser: argparse.ArgumentParser) -> None:
    """Declare the option without which tables of other captures stay."""
    parser.add_argument(
        "--replace", action="store_true", help="replace tables of other captures in the folder, and nothing else there"
    )


def add_master(parser: argparse.ArgumentParser, where: str) -> None:
    """Declare what says that Spark runs a command; `where` ends the help: what this machine does."""
    parser.add_argument(
        "--master", metavar="URL", help=f"run on Spark with this master; local[*] is this machine{where}"
    )
    parser.add_argument(
        "--master-timeout", metavar="SECONDS", type=count, default=60,
        help="how long a master that takes the connection may take to answer (default: 60)",
    )  # fmt: skip
    parser.add_argument(
        "--parts", metavar="N", type=count,
        help="parts of the work on Spark (default: the cores of the executors that are there when it begins)",
    )  # fmt: skip


def check_master(arguments: argparse.Namespace) -> None:
    """Check that what is for Spark comes with a master.

    Raises:
        ArgumentError: it does not.
    """
    if arguments.parts is not None and arguments.master is None:
        raise ArgumentError("--parts goes with --master")


def add_schema(parser: argparse.ArgumentParser) -> None:
    """Declare the option that describes the JSON of a command."""
    parser.add_argument("--json-schema", action=_Schema, nargs=0, help="print the schema of --format json, and end")


class _Schema(argparse.Action):
    """Print the schema that has the name of the command."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print it, and end."""
        from amqpscope.dissector.cli import json_schema  # noqa: PLC0415

        sys.stdout.write(json_schema.text(parser.prog.rpartition(" ")[2]))
        parser.exit()


def options(arguments: argparse.Namespace, begin_ns: int = 0) -> Options:
    """Return the options that the arguments name; times of the day are those of the day of `begin_ns`.

    Raises:
        ArgumentError: the time range is empty.
        SpecError: the user's document is invalid.
    """
    from_ns, to_ns = wanted_times(arguments).ns(arguments.tz, begin_ns)
    if from_ns is not None and to_ns is not None and to_ns <= from_ns:
        raise ArgumentError("--to is not after --from: the time range is empty")
    protocol = None
    if arguments.spec:
        from amqpscope import spec  # noqa: PLC0415

        user = spec.load_xml(arguments.spec)
        protocol = spec.overlay(spec.load(spec.base_of(user)), user)
    return Options(dict(arguments.port), protocol, arguments.bodies, from_ns, to_ns, keylog=arguments.keylog)


def wanted_times(arguments: argparse.Namespace) -> times.Range:
    """Return the times between which rows are wanted."""
    return times.Range(arguments.start, arguments.end)


def refuse_for_tables(arguments: argparse.Namespace) -> None:
    """Refuse options that apply to captures only, where folders of tables are read.

    Raises:
        ArgumentError: such an option is given.
    """
    given = {
        "--port": arguments.port,
        "--spec": arguments.spec,
        "--keylog": arguments.keylog,
        "--from": arguments.start is not None,
        "--to": arguments.end is not None,
        "--bodies": arguments.bodies != "hash",
    }
    for option, is_given in given.items():
        if is_given:
            raise ArgumentError(
                f"{option} applies to captures; give it to `amqpscope dissect`, which writes the tables"
            )


def sources(arguments: argparse.Namespace) -> tuple[list[Source], Options, int]:
    """Return the captures that the arguments name, the options, and the exit status: 2 where files are skipped.

    Each skipped file of a folder is reported on standard error.

    Raises:
        CaptureError: a path does not exist, or a file that is named itself is not a capture.
        ArgumentError: the time range is empty.
        SpecError: the user's document is invalid.
    """
    refused: list[CaptureError] = []
    found = find(arguments.captures, refused, wanted_times(arguments).needs_day)
    for error in refused:
        print_skipped(str(error))
    begin_ns = min((source.begin for source in found if source.begin), default=0)
    return found, options(arguments, begin_ns), 2 if refused else 0


def print_skipped(error: str) -> None:
    """Report a file of a folder that cannot be read on standard error."""
    sys.stderr.write(f"amqpscope: {' '.join(error.split())}; skipped, the other files are read\n")


def print_written(folder: str, rows: Mapping[str, int]) -> int:
    """Report the tables that were written on standard error; return the number of frames."""
    frames = sum(count for name, count in rows.items() if name.endswith("_frames"))
    counts = [
        counted(rows["connections"], "connection"), counted(frames, "frame"), counted(rows["messages"], "message"),
        counted(rows["anomalies"], "anomaly", "anomalies"),
    ]  # fmt: skip
    sys.stderr.write(f"{folder}: {', '.join(counts)}\n")
    return frames


def count(text: str) -> int:
    """Return a number of at least one.

    Raises:
        argparse.ArgumentTypeError: the text is something else.
    """
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def _port(text: str) -> tuple[int, str]:
    port, sign, name = text.partition("=")
    if not sign or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not PORT=PROTOCOL with a port from 1 to 65535")
    try:
        registry.number_of(name)
    except registry.ProtocolError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    return int(port), name


def print_warnings(reading: Reading, zone: tzinfo, frames: int | None = None) -> int:
    """Print warnings about captures that were read to standard error; return the exit status, 2 if some were skipped.

    Args:
        reading: the pass over them.
        zone: time zone of printed times.
        frames: the number of frames found.
    """
    from amqpscope.dissector.cli.warnings import warning_lines  # noqa: PLC0415

    for source in reading.skipped:
        print_skipped(f"{source.given}: {source.error}")
    for line in warning_lines(reading, zone, frames):
        sys.stderr.write(f"amqpscope: {line}\n")
    return 2 if reading.skipped else 0


def held_back_printer(reading: Reading) -> Callable[[], None]:
    """Return a function that reports connections whose frames are held back on standard error, each once."""
    from amqpscope.dissector.cli.warnings import HeldBack  # noqa: PLC0415

    held = HeldBack(reading)

    def print_held() -> None:
        for line in held.lines():
            sys.stderr.write(f"amqpscope: {line}\n")

    return print_held


@contextmanager
def watch(sources: list[Source]) -> Iterator[Watch | None]:
    """Yield what watches pipes, so that Ctrl-C ends reading them; None without pipes."""
    if all(source.size is not None for source in sources):
        yield None
        return
    with Watch() as watch:
        yield watch
