"""One Spark session, and all recordings analyzed, for the tests of the pipelines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqpscope.pipelines.run.local import analyze_folder
from tests.dissector.recordings import identities, ours
from tests.dissector.runs import CAPTURES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


WORKER = f"""#!/bin/sh
PYTHONPATH=${{PYTHONPATH#*-src.zip:}} exec "{sys.executable}" "$@"
"""
"""Python without the zip files that Spark puts first: each process would compile the modules in them anew (0.5 s)."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    pytest.importorskip("pyspark")
    from amqpscope.pipelines.spark.session import session  # noqa: PLC0415

    python = tmp_path_factory.mktemp("spark") / "python"
    python.write_text(WORKER)
    python.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", str(python))
        started = session("local[2,2]", small=True, spark_driver_memory="2g")  # each task has two attempts
    yield started
    started.stop()


Name = tuple[str, str, str, int]
"""A recorded connection: capture, client, server, and which of these addresses and ports."""


class Recorded(NamedTuple):
    """All recordings but those of streams, dissected and analyzed as one."""

    tables: Path
    statistics: Path
    names: dict[int, Name]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("recorded")
    parts: dict[str, list[pa.Table]] = {}
    names: dict[int, Name] = {}
    for capture in CAPTURES:
        if capture.stem.startswith("stream"):
            continue
        names |= {connection: (capture.stem, *name) for connection, name in identities(capture).items()}
        for table, rows in ours(capture).items():
            parts.setdefault(table, []).append(rows)
    for table, found in parts.items():
        (folder / "tables" / table).mkdir(parents=True)
        pq.write_table(pa.concat_tables(found), folder / "tables" / table / "part-0.parquet")
    analyze_folder(folder / "tables", folder / "statistics", {}, relations=())
    return Recorded(folder / "tables", folder / "statistics", names)
