"""What a command is, and what all commands share: the program's name and its exit statuses."""

import argparse
from typing import Protocol

PROGRAM = "amqpscope"


class Command(Protocol):
    """A command that a package brings; `examples` are command lines without the program's name, and what they do."""

    name: str
    help: str
    requires: tuple[str, ...]
    extra: str | None
    examples: tuple[tuple[str, str], ...]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare options and arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command and return the exit status."""


STATUSES = {
    0: "fine",
    1: "findings, where --fail-on asks for them",
    2: "wrong usage, unreadable input, or no room for output; a line says what and where",
    130: "interrupted (Ctrl-C)",
}
"""Exit statuses of all commands."""
