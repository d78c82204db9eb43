"""Run the program `amqpscope`: find the commands that the packages bring, and run one.

A command is a class in the entry-point group `amqpscope.commands`, with `name`, `help`, `requires` (modules that it
needs), `extra` (the extra that installs them), `add_arguments(parser)` and `run(arguments) -> exit status`.
"""

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from typing import Protocol

from amqpscope.errors import Error, installing, reason

GROUP = "amqpscope.commands"
COLLECT_AT = 100_000
"""Objects made between two passes of the garbage collector: cycles are rare, and each pass takes 40 ms."""


is_running = False
"""Whether this process is the program, not a library user's."""


class Command(Protocol):
    """A command that a package brings."""

    name: str
    help: str
    requires: tuple[str, ...]
    extra: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare options and arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command and return the exit status."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help that keeps our line breaks."""


def commands(wanted: str | None = None) -> tuple[dict[str, Command], dict[str, str]]:
    """Return the commands that can run here, and the extras that the others need; or the wanted one only."""
    ready: dict[str, Command] = {}
    lacking: dict[str, str] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        if wanted and entry.name != wanted:
            continue
        command: Command = entry.load()()
        if all(find_spec(module) for module in command.requires):
            ready[entry.name] = command
        else:
            lacking[entry.name] = command.extra or ""
    return ready, lacking


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command named in the arguments and return the exit status."""
    global is_running  # noqa: PLW0603
    is_running = argv is None
    gc.set_threshold(COLLECT_AT)
    try:
        return _run(argv)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has closed it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not _is_ours(error):
            raise
        print(f"amqpscope: {_where(error)}{reason(error)}", file=sys.stderr)
        return 2


def _run(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    names = {entry.name for entry in entry_points(group=GROUP)}
    ready, lacking = commands(words[0] if words and words[0] in names else None)
    if words and words[0] in lacking:
        print(
            f"amqpscope: {words[0]} needs packages that are missing: {installing(lacking[words[0]])}",
            file=sys.stderr,
        )
        return 2
    parser = argparse.ArgumentParser(
        prog="amqpscope",
        description="Turn packet captures of message brokers into typed tables, statistics and a report.",
        epilog="".join(f"{n} is not installed: {installing(extra)}\n" for n, extra in lacking.items()),
        formatter_class=_Help,
    )
    parser.add_argument("--version", action="version", version=f"amqpscope {version('amqpscope')}")
    below = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in ready.items():
        command.add_arguments(below.add_parser(name, help=command.help, description=command.help))
    arguments, left = parser.parse_known_args(words)
    if left:  # argparse would print the usage of the program
        below.choices[arguments.command].error(f"unrecognized arguments: {' '.join(left)}")
    return ready[arguments.command].run(arguments)


def _is_ours(error: Exception) -> bool:
    """Return whether a user can act upon the error; others are bugs and keep their trace."""
    return isinstance(error, OSError | Error)


def _where(error: Exception) -> str:
    """Return the file of a failed system call, before its reason; standard output has no name."""
    if not isinstance(error, OSError) or not error.errno:
        return ""
    return "cannot write: " if error.filename is None else f"{os.fsdecode(error.filename)}: "


def without_pandas() -> None:
    """Keep pyarrow from importing pandas, where this process is the program: it is not used, and takes 0.2 s.

    pyarrow tries it once, when it makes its first array.
    """
    if not is_running or "pandas" in sys.modules:
        return
    import pyarrow as pa  # noqa: PLC0415 - not every command needs it

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Report pandas as missing, and find nothing."""
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


if __name__ == "__main__":
    sys.exit(main())
