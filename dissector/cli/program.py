"""Run the program `amqpscope`: find the commands that the packages bring, and run one.

A command is a class in the entry-point group `amqpscope.commands`, with `name`, `help`, `requires` (modules that it
needs), `extra` (the extra that installs them), `examples`, `add_arguments(parser)` and `run(arguments) -> exit status`.
"""

import argparse
import functools
import gc
import glob
import io
import itertools
import os
import sys
import textwrap
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from amqpscope.dissector.cli import options
from amqpscope.dissector.cli.command import PROGRAM, STATUSES, Command
from amqpscope.dissector.parallel import process
from amqpscope.errors import Error, installing, near, reason
from amqpscope.spec import layout

GROUP = "amqpscope.commands"
SHELLS = ("bash", "zsh", "fish")
"""Shells that commands and options can be completed in."""
DEFAULT = "summary"
"""The command of captures that are given without one."""
HELP_WIDTH = 80

is_running = False
"""Whether this process is the program, not a library user's."""

NO_OPTIONS: tuple[list[str], ...] = ([], ["-h"], ["--help"], ["--version"])
"""Arguments that no option of a command answers."""


def commands(wanted: str | None = None) -> dict[str, Command]:
    """Return all commands by name, or the wanted one only."""
    return {name: entry.load()() for name, entry in _entries().items() if wanted in (None, name)}


@functools.cache
def _entries() -> dict[str, EntryPoint]:
    """Return where the commands are, by name and in its order: looked up among all packages, once."""
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}


def lacking(command: Command) -> bool:
    """Return whether packages are missing that a command needs."""
    return not all(find_spec(module) for module in command.requires)


class Parser(argparse.ArgumentParser):
    """Reports wrong usage in one line, as all errors are."""

    def error(self, message: str) -> NoReturn:
        """Print the line, and end."""
        self.exit(2, f"{PROGRAM}: {message} ({self.prog} --help has all options)\n")


def parser(known: dict[str, Command], with_options: bool = True) -> argparse.ArgumentParser:
    """Return the parser of the program with these commands; declaring their options imports much."""
    missing = {name: installing(each.extra or "") for name, each in known.items() if lacking(each)}
    hints = [f"{name} is not installed: {install}" for name, install in missing.items()]
    whole = Parser(
        prog=PROGRAM,
        description="Turn packet captures of message brokers into typed tables, statistics and a report.",
        epilog="\n".join(
            [
                "amqpscope COMMAND --help has options and examples; without a command: summary.",
                *hints,
            ]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"amqpscope {version('amqpscope')}")
    whole.add_argument("--manual", action=_Print, nargs=0, const=known, help="print the manual page")
    whole.add_argument("--completion", action=_Print, choices=SHELLS, help="print completions for this shell")
    below = whole.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in known.items():
        own = below.add_parser(
            name,
            help=command.help,
            description=textwrap.fill(f"{command.help[:1].upper()}{command.help[1:]}.", HELP_WIDTH),
            epilog=_epilog(command),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if with_options:
            command.add_arguments(own)
            own.add_argument(
                "--color", metavar="WHEN", choices=layout.COLORS, default="auto",
                help="colours: auto, always or never (default: auto, where output is a terminal)",
            )  # fmt: skip
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command named in the arguments and return the exit status."""
    global is_running  # noqa: PLW0603
    is_running = argv is None
    if is_running:
        _open_streams()
    gc.set_threshold(process.COLLECT_AT)
    os.environ.setdefault(*process.ALLOCATOR)
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


def _open_streams() -> None:
    """Open standard streams that are closed; write UTF-8 for programs, and escapes of what a terminal cannot show."""
    sys.stdout, sys.stderr = (
        each or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - until the process ends
        for each in (sys.stdout, sys.stderr)
    )
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding=None if sys.stdout.isatty() else "utf-8", errors="backslashreplace")


def _run(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] not in _entries() and _may_be_capture(words[0]):
        words.insert(0, DEFAULT)
    elif words and not words[0].startswith("-") and words[0] not in _entries():
        what = f"no command and no file {words[0]!r}{near(words[0], _entries())}"
        print(f"{PROGRAM}: {what} ({PROGRAM} --help has all commands; {PROGRAM} CAPTURE sums one up)", file=sys.stderr)
        return 2
    known = commands(words[0] if words and words[0] in _entries() else None)
    if words and words[0] in known and lacking(known[words[0]]):
        extra = known[words[0]].extra or ""
        print(f"amqpscope: {words[0]} needs packages that are missing: {installing(extra)}", file=sys.stderr)
        return 2
    whole = parser(known, with_options=words not in NO_OPTIONS)
    if not words:
        whole.print_help()
        return 0
    own = options.below(whole).get(words[0], whole)
    _refuse_unknown(own, words)
    arguments, left = whole.parse_known_args(words)
    if left:  # argparse would name the program, not the command
        own.error(f"unrecognized arguments: {' '.join(left)}")
    layout.set_color(arguments.color)
    return known[arguments.command].run(arguments)


def _refuse_unknown(own: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """End at an option that no parser has; argparse would first ask for what is missing because of it.

    As for argparse, a word with a space that begins no option is a value.
    """
    names = [name for action in own._actions for name in action.option_strings]
    for word in itertools.takewhile(lambda word: word != "--", words):
        name = word.partition("=")[0]
        if word.startswith("--") and " " not in word and not any(each.startswith(name) for each in names):
            own.error(f"unrecognized arguments: {word}{near(name, (each for each in names if each[:2] == '--'))}")


def _may_be_capture(word: str) -> bool:
    """Return whether a first word that is no command can be read: a file, a folder, a pattern, a URL, `-`."""
    is_there = word == "-" or "://" in word or Path(word).exists() or bool(glob.glob(word))  # noqa: PTH207 - as typed
    return is_there and DEFAULT in _entries()


def _epilog(command: Command) -> str:
    """Return what follows the options in the help of a command."""
    lines = ["examples:"]
    for line, meaning in command.examples:
        lines += [f"  {PROGRAM} {line}", f"      {meaning}"]
    lines += ["", "exit status:", *(f"  {status:<4} {meaning}" for status, meaning in STATUSES.items())]
    return "\n".join(lines)


class _Print(argparse.Action):
    """Print what is made of the declarations of all commands, and end."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: object, value: Any, option: Any = None) -> None:
        """Print the manual page, or what completes in a shell; `const` has the commands."""
        from amqpscope.dissector.cli import completion, manual  # noqa: PLC0415 - rarely needed

        print(completion.SCRIPTS[value](parser) if value else manual.page(parser, self.const), end="")
        parser.exit()


def _is_ours(error: Exception) -> bool:
    """Return whether a user can act upon the error; others are bugs and keep their trace."""
    return isinstance(error, OSError | Error)


def _where(error: Exception) -> str:
    """Return the file of a failed system call, before its reason; standard output has no name."""
    if not isinstance(error, OSError) or not error.errno:
        return ""
    return "cannot write: " if error.filename is None else f"{os.fsdecode(error.filename)}: "


def settle() -> None:
    """Set the process up for much work, where it is the program and not a library user's; see `process.settle`."""
    if is_running:
        process.settle(without_pandas=True)


if __name__ == "__main__":
    sys.modules["amqpscope.dissector.cli.program"] = sys.modules[__name__]  # commands ask this module whether it runs
    sys.exit(main())
