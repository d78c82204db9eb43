"""The command `amqpscope spec`: shows what is known, from our documents or a user's."""

import argparse
import sys

from amqpscope import spec
from amqpscope.spec import describe, differences


class Spec:
    """Shows protocols, classes, methods, columns, tables and codes."""

    name = "spec"
    help = "what is known of a protocol, class, method, column, table or code"
    requires: tuple[str, ...] = ()
    extra: str | None = None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this command."""
        parser.add_argument(
            "names",
            nargs="*",
            metavar="NAME",
            help="class, method, table, column, reply code or anomaly code; without, an overview",
        )
        parser.add_argument(
            "--spec",
            metavar="FILE",
            help="a document of yours in the AMQP XML format; alone, it is compared with ours",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Print what was asked for.

        Raises:
            spec.SpecError: nothing of this name, or a document that cannot be read.
            OSError: the file cannot be opened.
        """
        ours = spec.load()
        lines: list[str] = []
        protocol = ours
        if arguments.spec:
            user = spec.load_xml(arguments.spec)
            foreign = len(spec.left_out(user)) == len(user.methods)  # another framing: shown on its own
            protocol = user if foreign else spec.overlay(ours, user)
            if not arguments.names:
                lines = describe.of_protocol(user) if foreign else differences.lines(ours, user, protocol)
        elif not arguments.names:
            lines = describe.overview(protocol)
        for name in arguments.names:
            lines += [""] if lines else []
            lines += describe.describe(name, protocol)
        sys.stdout.write("\n".join(lines) + "\n")
        return 0
