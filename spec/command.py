"""The command `amqpscope spec`: describes names of the built-in documents or a user's."""

import argparse
import sys

from amqpscope import spec
from amqpscope.spec import describe, differences


class Spec:
    """Describe protocols, classes, methods, columns, tables and codes."""

    name = "spec"
    help = "describe a protocol, class, method, column, table or code"
    requires: tuple[str, ...] = ()
    extra: str | None = None
    examples = (
        ("spec basic.publish 406 tcp-gap ended_by", "a method, a reply code, an anomaly, a column"),
        ("spec --spec vendor.xml", "how a vendor's document differs from the built-in protocol"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this command."""
        parser.add_argument(
            "names",
            nargs="*",
            metavar="NAME",
            help="class, method, table, column, reply code or anomaly code; an overview without it",
        )
        parser.add_argument(
            "--spec",
            metavar="FILE",
            help="your document in the AMQP XML format; without NAME, it is compared with the built-in protocol",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the description of each name.

        Raises:
            spec.SpecError: an unknown name, or an invalid document.
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
