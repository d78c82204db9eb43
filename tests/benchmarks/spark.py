"""What Spark takes for `analyze`, and its floor: to read the same columns, cut and shuffle them, and nothing else.

As a program it does one of these, or starts a session and ends it: what is left of the other two without that is what
they take after it.
"""

import argparse
import shutil
import sys
from pathlib import Path

from amqpscope.pipelines.run import local
from amqpscope.pipelines.spark import engine, session

DOINGS = ("start", "floor", "analyze")


def commands(tables: Path, output: Path, master: str) -> dict[str, list[str]]:
    """The programs that are measured."""
    return {each: [sys.executable, "-m", __name__, each, str(tables), str(output), master] for each in DOINGS}


def floor(tables: Path, master: str) -> None:
    """Bring the rows together by connection, and drop them."""
    with session.running(master, small=True) as begin:
        spark, weight = begin(), local.weight(tables)
        rows = engine.blocks(spark, tables, weight, engine.partitions(spark, weight))
        rows.write.format("noop").mode("overwrite").save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("doing", choices=DOINGS)
    parser.add_argument("tables", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("master")
    arguments = parser.parse_args()
    if arguments.doing == "start":
        with session.running(arguments.master) as begin:
            begin()
    elif arguments.doing == "floor":
        floor(arguments.tables, arguments.master)
    else:
        engine.analyze_folder(arguments.tables, engine.Submission(arguments.master, arguments.output))
        shutil.rmtree(arguments.output)


if __name__ == "__main__":
    main()
