"""Spark 3.5 and 4.0, where a variable names an environment that has one: rows are those of one process.

The variable holds the paths of interpreters, separated by colons, whose environments have PySpark of other versions and
what amqpscope requires: AMQPSCOPE_SPARKS=/opt/spark-3.5/bin/python:/opt/spark-4.0/bin/python.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from amqpscope.dissector.cli.program import main
from tests.dissector.runs import FOLDER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
PYTHONS = os.environ.get("AMQPSCOPE_SPARKS", "").split(":")
CAPTURES = [str(FOLDER / name) for name in ("orders_pika.pcap", "stream_super.pcap")]
SOURCE = """
import sys
from amqpscope import pipelines
from amqpscope.pipelines.spark.session import session
spark = session("local[2]", small=True)
print(pipelines.read(spark, sys.argv[1:], "messages").count())
"""


def run(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    if not python:
        pytest.skip("AMQPSCOPE_SPARKS names no environment with another Spark")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    environment |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    return subprocess.run([python, *arguments], env=environment, capture_output=True, text=True, check=False)


def rows(folder: Path) -> dict[str, Counter[str]]:
    tables = [path.name for path in folder.iterdir() if path.is_dir()]
    return {name: Counter(map(repr, pq.read_table(folder / name).to_pylist())) for name in sorted(tables)}


@pytest.mark.parametrize("python", PYTHONS)
def test_captures_and_tables(python: str, tmp_path: Path) -> None:
    main(["dissect", *CAPTURES, "-o", str(tmp_path / "tables")])
    main(["analyze", str(tmp_path / "tables"), "-o", str(tmp_path / "statistics")])
    command, master = ["-m", "amqpscope"], ["--master", "local[3]"]
    for way, given, out, wanted in (
        ("dissect", CAPTURES, "dissected", "tables"),
        ("analyze", CAPTURES, "at once", "statistics"),
        ("analyze", [str(tmp_path / "tables")], "behind", "statistics"),
    ):
        done = run(python, *command, way, *given, "-o", str(tmp_path / out), *master)
        assert done.returncode == 0, done.stderr
        assert rows(tmp_path / out) == rows(tmp_path / wanted), out


@pytest.mark.parametrize("python", PYTHONS)
def test_captures_as_a_data_source(python: str, tmp_path: Path) -> None:
    """Which came with 4.0: before, one line says so."""
    done = run(python, "-c", SOURCE, *CAPTURES)
    main(["dissect", *CAPTURES, "-o", str(tmp_path)])
    version = run(python, "-c", "import pyspark; print(pyspark.__version__)").stdout
    if version.startswith("3."):
        assert done.stderr.endswith("captures are read by Spark 4.0 and newer; have them dissected first\n")
    else:
        assert done.stdout == f"{pq.read_table(tmp_path / 'messages').num_rows}\n", done.stderr


@pytest.mark.parametrize("count", [1, 3, 16])
def test_parts_have_partitions_of_their_own(spark: SparkSession, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Spark partitions by hash only."""
    from pyspark.sql import functions as sf  # noqa: PLC0415

    from amqpscope.pipelines.spark import versions  # noqa: PLC0415

    parts = spark.range(0, count * 3).select((sf.col("id") % count).cast("int").alias("part"))
    for each in (versions.version(), (3, 5)):
        monkeypatch.setattr(versions, "version", lambda each=each: each)
        found = versions.by_part(parts, count).select("part", sf.spark_partition_id().alias("partition")).collect()
        assert len(found) == 3 * count
        assert all(row.part == row.partition for row in found), each


@pytest.mark.parametrize("version", ["3.4.4", "5.0.0"])
def test_a_version_that_nobody_knows_is_one_line(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from amqpscope.pipelines.spark import session  # noqa: PLC0415

    monkeypatch.setattr("pyspark.__version__", version)
    with pytest.raises(session.SessionError) as told:
        session._check("local[1]")
    assert str(told.value) == f"Spark cannot be started: this is PySpark {version}, and 3.5 to 4 are supported"
