"""Options that everything that reads captures has, from the command line to `Options`."""

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
    """The arguments contradict each other; one line."""


class Progress(Protocol):
    """Called with the bytes done since the last call."""

    def __call__(self, octets: int) -> None:
        """Go on."""


def add_common(
    parser: argparse.ArgumentParser,
    bodies: bool = False,
    what: tuple[str, str] = ("CAPTURE", "capture file, glob or directory; - is standard input"),
) -> None:
    """Declare the options.

    Args:
        parser: gets them.
        bodies: messages are made, so what becomes of their bodies can be number_of.
        what: how the help names the captures and describes them.
    """
    parser.add_argument("captures", metavar=what[0], nargs="+", help=what[1])
    parser.add_argument(
        "--port", metavar="PORT=PROTOCOL", action="append", default=[], type=_port,
        help=f"protocol on this TCP port, whatever the content looks like ({', '.join(registry.names())}); "
        "may be repeated",
    )  # fmt: skip
    parser.add_argument("--spec", metavar="FILE", help="AMQP XML document of a vendor, laid over our own data")
    parser.add_argument(
        "--keylog", metavar="FILE",
        help="TLS key log (SSLKEYLOGFILE) to decrypt with, also while it grows; secrets in a pcapng are used anyway",
    )  # fmt: skip
    parser.add_argument(
        "--from", dest="from_ns", metavar="TIME", type=_time,
        help="leave out what was before: 2026-01-31T12:00:00.5Z or seconds since 1970 (UTC)",
    )  # fmt: skip
    parser.add_argument(
        "--to", dest="to_ns", metavar="TIME", type=_time, help="leave out what was at this time or later"
    )
    parser.add_argument(
        "--bodies",
        choices=("none", "hash", "full"),
        default="hash",
        help="message bodies in the tables (default: hash)" if bodies else argparse.SUPPRESS,
    )


def options(arguments: argparse.Namespace) -> Options:
    """What the arguments say.

    Raises:
        ArgumentError: the time range is empty.
        SpecError: the user's document cannot be used.
    """
    if None not in (arguments.from_ns, arguments.to_ns) and arguments.to_ns <= arguments.from_ns:
        raise ArgumentError("--to is not behind --from: the time range is empty")
    protocol = None
    if arguments.spec:
        from amqpscope import spec  # noqa: PLC0415

        protocol = spec.overlay(spec.load("amqp-0-9-1"), spec.load_xml(arguments.spec))
    return Options(
        dict(arguments.port), protocol, arguments.bodies, arguments.from_ns, arguments.to_ns, keylog=arguments.keylog
    )


def refuse_for_tables(arguments: argparse.Namespace) -> None:
    """See that no option is given that is for captures alone, where folders of tables are read.

    Raises:
        ArgumentError: one is.
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
            raise ArgumentError(f"{option} is for captures; give it to `amqpscope dissect`, which writes the tables")


def sources(arguments: argparse.Namespace) -> tuple[list[Source], int]:
    """The captures that the arguments name, and the exit status: 2 where files of a folder are left out, which is told.

    Raises:
        CaptureError: there is nothing of that name, or a file that is named itself is no capture.
    """
    refused: list[CaptureError] = []
    found = find(arguments.captures, refused)
    for error in refused:
        sys.stderr.write(f"amqpscope: {' '.join(str(error).split())}; it is left out, the others are read\n")
    return found, 2 if refused else 0


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
            f"{text!r} is no time; give 2026-01-31T12:00:00.5Z or seconds since 1970"
        ) from None
    if whole.tzinfo is None:
        whole = whole.replace(tzinfo=UTC)
    return int(whole.timestamp()) * 1_000_000_000 + int((parts[2] or "").ljust(9, "0"))


def print_warnings(reading: Reading, frames: int | None = None) -> None:
    """Say on standard error what a user should know of captures that were read; `frames` are those shown."""
    from amqpscope.dissector.cli.warnings import warning_lines  # noqa: PLC0415

    for line in warning_lines(reading, frames):
        sys.stderr.write(f"amqpscope: {line}\n")


def held_back_printer(reading: Reading) -> Callable[[], None]:
    """What says on standard error, each time it is called, what is held back and was not told before."""
    from amqpscope.dissector.cli.warnings import HeldBack  # noqa: PLC0415

    held = HeldBack(reading)

    def tell_held() -> None:
        for line in held.lines():
            sys.stderr.write(f"amqpscope: {line}\n")

    return tell_held


@contextmanager
def watch(sources: list[Source]) -> Iterator[Watch | None]:
    """What waits for pipes, whose reading the user may end; None where there are none."""
    if all(source.size is not None for source in sources):
        yield None
        return
    with Watch() as watch:
        yield watch


@contextmanager
def progress(sources: list[Source]) -> Iterator[Progress]:
    """A progress bar by bytes on standard error; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield lambda octets: None
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
        yield lambda octets: bar.advance(task, octets)
