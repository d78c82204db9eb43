"""Write what is published of the program: its manual page, and the schemas of its JSON (docs/).

`python -m amqpscope.dissector.cli.published` writes the files, `--check` says whether one is stale.
"""

import argparse
import sys

from amqpscope.dissector.cli import json_schema, manual, program
from amqpscope.dissector.cli.command import PROGRAM
from amqpscope.dissector.handshakes.listing import VERSION
from amqpscope.spec.reference import PAGE, publish

COMMAND = "python -m amqpscope.dissector.cli.published"


def files() -> dict[str, str]:
    """Return the texts of the files, by name."""
    known = program.commands()
    schemas = {f"{name}-{VERSION}.schema.json": json_schema.text(name) for name in json_schema.SCHEMAS}
    return {f"{PROGRAM}.1": manual.page(program.parser(known), known)} | schemas


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or check them.

    Returns:
        0; 1 when one is stale and `--check` was given.
    """
    parser = argparse.ArgumentParser(prog=COMMAND, description="Write the manual page and the schemas under docs/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when a file is stale")
    check = parser.parse_args(arguments).check
    return max([publish(PAGE.with_name(name), text, check, COMMAND) for name, text in files().items()])


if __name__ == "__main__":
    sys.exit(main())
