"""Captures analyzed in this process, each once: the statistics of walks, and what of the rest a test asks for."""

import atexit
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.reading import Reading
from amqpscope.pipelines.findings import ASKED, evaluate
from amqpscope.pipelines.model.walk import schema
from amqpscope.pipelines.relations import compute, database
from amqpscope.pipelines.relations.texts import tables_of
from amqpscope.pipelines.run import local
from amqpscope.pipelines.statistics import tables
from amqpscope.spec.findings import load
from tests.dissector.runs import FOLDER

HEALTHY = (
    "any_sll", "orders_aio_pika", "pika_confirms", "prefetch", "many_confirms", "topology", "transactions",
    "qpid_plain",
    "qpid_messaging", "stream_rstream", "stream_js", "interleaved_channels", "begun_before",
)  # fmt: skip
"""Recordings in which nothing is wrong: no finding is more than a note."""


def walked(path: Path) -> dict[str, pa.Table]:
    """Statistics as `amqpscope.analyze` has them, without the tables that follow from them."""
    reading = Reading(find([str(path)]), compiled=False)
    found: dict[str, list[pa.Table]] = {name: [schema(name).empty_table()] for name in tables()}
    local.walk_captures(reading, lambda name, rows: found[name].append(rows))
    return {name: pa.concat_tables(parts) for name, parts in found.items()}


def related(statistics: dict[str, pa.Table], name: str) -> list[dict[str, Any]]:
    """The rows of one table that follows from statistics."""
    rows: list[dict[str, Any]] = dict(compute.compute(statistics, [name]))[name].to_pylist()
    return rows


@cache
def statistics(stem: str) -> dict[str, pa.Table]:
    """What `amqpscope analyze` writes for a recording."""
    found = walked(FOLDER / f"{stem}.pcap")
    return {**found, **dict(compute.compute(found))}


@cache
def folder_of(stem: str) -> Path:
    """The same in a folder, which lasts as long as this process: tests only read it."""
    made = tempfile.TemporaryDirectory(prefix=f"{stem}-")
    atexit.register(made.cleanup)
    for name, rows in statistics(stem).items():
        (Path(made.name) / name).mkdir()
        pq.write_table(rows, Path(made.name) / name / "part-0.parquet")
    return Path(made.name)


def findings(statistics: dict[str, pa.Table], code: str | None = None) -> list[dict[str, Any]]:
    """What our rules find; or those of one code, which take a third of the time."""
    if code is None:
        return related(statistics, "findings")
    rules = [rule for rule in load() if rule.code == code]
    read = {*ASKED}.union(*(tables_of(f"{rule.sql} {rule.applies} {rule.unsure}") for rule in rules))
    tables = {**statistics, **dict(compute.compute(statistics, read & {*compute.NAMES}))}
    with database.connect() as connection:
        for name in read:
            database.view(connection, name, tables[name], schema(name))
        rows: list[dict[str, Any]] = evaluate(partial(database.rows, connection), rules)["findings"].to_pylist()
    return rows
