"""The program `amqpscope`: finds the commands that the packages bring, and runs one.

A command is a class in the entry-point group `amqpscope.commands`, with `name`, `help`, `requires` (modules that it
needs), `extra` (what brings them), `add_arguments(parser)` and `run(arguments) -> exit status`.
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

from amqpscope.errors import Error

GROUP = "amqpscope.commands"
COLLECT_AT = 100_000
"""Objects made before those are looked for that only hold each other: hardly any do, and each search takes 40 ms."""


is_running = False
"""Whether this process is the program, and nobody else's who calls it."""


class Command(Protocol):
    """What a package gives to be a command."""

    name: str
    help: str
    requires: tuple[str, ...]
    extra: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare options and arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; the result is the exit status."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help that keeps our line breaks."""


def commands(wanted: str | None = None) -> tuple[dict[str, Command], dict[str, str]]:
    """The commands that can run here, and the extras that others lack; only the wanted one where it is named."""
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
    """Run the command named in the arguments; the result is the exit status."""
    global is_running  # noqa: PLW0603
    is_running = argv is None
    gc.set_threshold(COLLECT_AT)
    try:
        return _run(argv)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone; nothing more is wanted of us.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not _is_ours(error):
            raise
        told = str(error)
        if isinstance(error, OSError) and error.strerror and not error.filename:
            told = f"cannot write: {error.strerror.lower()}"
        print(f"amqpscope: {' '.join(told.split())}", file=sys.stderr)
        return 2


def _run(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    names = {entry.name for entry in entry_points(group=GROUP)}
    ready, lacking = commands(words[0] if words and words[0] in names else None)
    if words and words[0] in lacking:
        print(
            f"amqpscope: {words[0]} needs what is not installed here; pip install 'amqpscope[{lacking[words[0]]}]'",
            file=sys.stderr,
        )
        return 2
    parser = argparse.ArgumentParser(
        prog="amqpscope",
        description="Packet captures of message brokers to typed tables, statistics and a report.",
        epilog="".join(f"{n}: pip install 'amqpscope[{extra}]' brings it\n" for n, extra in lacking.items()),
        formatter_class=_Help,
    )
    parser.add_argument("--version", action="version", version=f"amqpscope {version('amqpscope')}")
    below = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in ready.items():
        command.add_arguments(below.add_parser(name, help=command.help, description=command.help))
    arguments, left = parser.parse_known_args(words)
    if left:  # argparse would show the usage of the program
        below.choices[arguments.command].error(f"unrecognized arguments: {' '.join(left)}")
    return ready[arguments.command].run(arguments)


def _is_ours(error: Exception) -> bool:
    """Whether the error is one that a user can act upon; others are bugs and keep their trace."""
    return isinstance(error, OSError | Error)


def without_pandas() -> None:
    """Keep pyarrow from importing pandas, where this process is the program: nothing here uses it, and it takes 0.2 s.

    pyarrow tries it once, when something is first made an array.
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
        """Find nothing, and say of pandas that it is not there."""
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


if __name__ == "__main__":
    sys.exit(main())
