"""Declare the options of all commands that read captures, and turn them into `Options`."""

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol

from amqpscope.dissector.capture.input import CaptureError
from amqpscope.dissector.capture.live import Watch
from amqpscope.dissector.capture.sources import Source, find
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.protocols import registry
from amqpscope.dissector.reading import Reading
from amqpscope.errors import Error


class ArgumentError(Error):
    """Arguments that contradict each other; the text is one line."""


class Progress(Protocol):
    """Called with the number of bytes read since the last call."""

    def __call__(self, size: int) -> None:
        """Advance."""


def add_common(
    parser: argparse.ArgumentParser,
    bodies: bool = False,
    what: tuple[str, str] = ("CAPTURE", "capture file, glob or directory; - is standard input"),
) -> None:
    """Declare the options.

    Args:
        parser: gets the options.
        bodies: whether the command writes messages, so that --bodies is in its help.
        what: name and description of the captures in the help.
    """
    parser.add_argument("captures", metavar=what[0], nargs="+", help=what[1])
    parser.add_argument(
        "--port", metavar="PORT=PROTOCOL", action="append", default=[], type=_port,
        help=f"protocol on this TCP port, whatever its content ({', '.join(registry.names())}); "
        "may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--spec", metavar="FILE", help="AMQP XML document of a vendor, which extends the built-in protocol"
    )
    parser.add_argument(
        "--keylog", metavar="FILE",
        help="TLS key log (SSLKEYLOGFILE) to decrypt with; it may still grow. Secrets in a pcapng are always used",
    )  # fmt: skip
    parser.add_argument(
        "--from", dest="from_ns", metavar="TIME", type=_time,
        help="leave out rows before this time: 2026-01-31T12:00:00.5Z or seconds since 1970 (UTC)",
    )  # fmt: skip
    parser.add_argument("--to", dest="to_ns", metavar="TIME", type=_time, help="leave out rows at or after this time")
    parser.add_argument(
        "--bodies",
        choices=("none", "hash", "full"),
        default="hash",
        help="message bodies in the tables: left out, as a hash, or in full (default: hash)"
        if bodies
        else argparse.SUPPRESS,
    )


def options(arguments: argparse.Namespace) -> Options:
    """Return the options that the arguments name.

    Raises:
        ArgumentError: the time range is empty.
        SpecError: the user's document is invalid.
    """
    if None not in (arguments.from_ns, arguments.to_ns) and arguments.to_ns <= arguments.from_ns:
        raise ArgumentError("--to is not after --from: the time range is empty")
    protocol = None
    if arguments.spec:
        from amqpscope import spec  # noqa: PLC0415

        protocol = spec.overlay(spec.load("amqp-0-9-1"), spec.load_xml(arguments.spec))
    return Options(
        dict(arguments.port), protocol, arguments.bodies, arguments.from_ns, arguments.to_ns, keylog=arguments.keylog
    )


def refuse_for_tables(arguments: argparse.Namespace) -> None:
    """Refuse options that apply to captures only, where folders of tables are read.

    Raises:
        ArgumentError: such an option is given.
    """
    given = {
        "--port": arguments.port,
        "--spec": arguments.spec,
        "--keylog": arguments.keylog,
        "--from": arguments.from_ns is not None,
        "--to": arguments.to_ns is not None,
        "--bodies": arguments.bodies != "hash",
    }
    for option, is_given in given.items():
        if is_given:
            raise ArgumentError(
                f"{option} applies to captures; give it to `amqpscope dissect`, which writes the tables"
            )


def sources(arguments: argparse.Namespace) -> tuple[list[Source], int]:
    """Return the captures that the arguments name, and the exit status: 2 where files of a folder are skipped.

    Each skipped file is reported on standard error.

    Raises:
        CaptureError: a path does not exist, or a file that is named itself is not a capture.
    """
    refused: list[CaptureError] = []
    found = find(arguments.captures, refused)
    for error in refused:
        sys.stderr.write(f"amqpscope: {' '.join(str(error).split())}; skipped, the other files are read\n")
    return found, 2 if refused else 0


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


def _time(text: str) -> int:
    seconds = re.fullmatch(r"(\d{1,10})(?:\.(\d{1,9}))?", text)
    if seconds:
        return int(seconds[1]) * 1_000_000_000 + int((seconds[2] or "").ljust(9, "0"))
    parts = re.fullmatch(r"([^.]+)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", text)
    try:
        if not parts:
            raise ValueError
        whole = datetime.fromisoformat(parts[1] + (parts[3] or ""))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"not a time: {text!r}; give 2026-01-31T12:00:00.5Z or seconds since 1970"
        ) from None
    if whole.tzinfo is None:
        whole = whole.replace(tzinfo=UTC)
    return int(whole.timestamp()) * 1_000_000_000 + int((parts[2] or "").ljust(9, "0"))


def print_warnings(reading: Reading, frames: int | None = None) -> None:
    """Print warnings about captures that were read to standard error; `frames` is the number of frames shown."""
    from amqpscope.dissector.cli.warnings import warning_lines  # noqa: PLC0415

    for line in warning_lines(reading, frames):
        sys.stderr.write(f"amqpscope: {line}\n")


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
    """Yield what waits for pipes, so that Ctrl-C ends reading them; None without pipes."""
    if all(source.size is not None for source in sources):
        yield None
        return
    with Watch() as watch:
        yield watch


@contextmanager
def progress(sources: list[Source]) -> Iterator[Progress]:
    """Show a progress bar by bytes on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("dissecting", total=sum(source.size or 0 for source in sources) or None)
        yield lambda size: bar.advance(task, size)
