"""Captures dissected in parts, as on a cluster, but in this process; and at once."""

from pathlib import Path

from amqpscope.dissector.capture.sources import find, named
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.parallel import archive, blocks
from amqpscope.dissector.parallel.arrangement import RANGE
from amqpscope.dissector.parallel.survey import Split, Survey, survey
from amqpscope.dissector.reading import Reading
from tests.dissector.moves import by_connection
from tests.dissector.runs import Row, tables


def comparable(found: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Rows without a connection come in any order."""
    return found | {name: sorted(found[name], key=str) for name in ("anomalies", "captures")}


def here(lists: list[list[Split]]) -> list[Survey]:
    """The surveys of splits, made in this process."""
    return [each for mine in lists for each in survey(mine, compiled=False)]


def in_parts(paths: list[str], options: Options, parts: int, size: int = RANGE) -> dict[str, list[Row]]:
    """The rows of captures that are read apart, in ranges of this size; each block sorted to its part."""
    plan = archive.planned(named(paths), here, lambda _: options, size)
    known = plan.known
    made = [block for chain in plan.chains for block in blocks.cut(chain, parts, compiled=False)]
    rows = list(archive.rows_of_captures(plan.surveys, known))
    for number in range(parts):
        mine = sorted((block for block in made if block.part == number), key=lambda block: block[1:4])
        rows += [row for work in archive.dissect(mine, known.dissector(compiled=False), known.end_ns) for row in work()]
    return comparable(by_connection(tables(rows, options)))


def at_once(paths: list[str], options: Options) -> dict[str, list[Row]]:
    return comparable(by_connection(tables(Reading(find(paths, []), options, compiled=False), options)))


def options_of(path: Path) -> Options:
    keylog = path.with_suffix(".keylog")
    return Options(keylog=str(keylog) if keylog.exists() else None)
