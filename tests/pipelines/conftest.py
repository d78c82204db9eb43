"""One Spark session for all tests of the pipelines; every test of this folder is marked `spark`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amqpscope import dissector
from amqpscope.pipelines.here import analyze_folder
from tests.dissector.runs import CAPTURES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    pytest.importorskip("pyspark")
    from amqpscope.pipelines.session import session  # noqa: PLC0415

    started = session("local[2]", small=True, spark_driver_memory="1g")
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
        keylog = str(capture.with_suffix(".keylog")) if capture.with_suffix(".keylog").exists() else None
        tables = {table: reader.read_all() for table, reader in dissector.read(capture, keylog=keylog).items()}
        seen: Counter[tuple[str, str]] = Counter()
        for row in sorted(tables["connections"].to_pylist(), key=lambda row: row["first_ts_ns"]):
            ends = f"{row['client_ip']}:{row['client_port']}", f"{row['server_ip']}:{row['server_port']}"
            names[row["connection_id"]] = (capture.stem, *ends, seen[ends])
            seen[ends] += 1
        for table, rows in tables.items():
            parts.setdefault(table, []).append(rows)
    for table, found in parts.items():
        (folder / "tables" / table).mkdir(parents=True)
        pq.write_table(pa.concat_tables(found), folder / "tables" / table / "part-0.parquet")
    analyze_folder(folder / "tables", folder / "statistics", {})
    return Recorded(folder / "tables", folder / "statistics", names)
