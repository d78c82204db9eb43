"""Spark 3.5 and 4.0, where a variable names folders that have them: rows are those of one process.

Each folder is what `pip install --target` makes of a PySpark: AMQPSCOPE_SPARKS=/opt/spark-3.5:/opt/spark-4.0. What else
amqpscope requires comes from the environment that runs the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
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
SPARKS = os.environ.get("AMQPSCOPE_SPARKS", "").split(":")
CAPTURES = [str(FOLDER / name) for name in ("orders_pika.pcap", "stream_super.pcap")]
ALL_AT_ONCE = """
import os, sys
import pyspark
from amqpscope import pipelines
from amqpscope.dissector.cli.program import main
from amqpscope.errors import Error
from amqpscope.pipelines.spark.session import session
assert pyspark.__file__.startswith(sys.argv[1])
spark, captures = session("local[2]", small=True), sys.argv[2:]
main(["dissect", *captures, "-o", "dissected", "--master", "local[2]"])
main(["analyze", *captures, "-o", "at once", "--master", "local[2]"])
main(["analyze", "tables", "-o", "behind", "--master", "local[2]"])
try:
    print(pipelines.read(spark, captures, "messages").count())
except Error as error:
    print(error)
print(pipelines.read(spark, "tables", "messages").count())
"""
"""One session for all: most of the time goes into starting it."""


def rows(folder: Path) -> dict[str, Counter[str]]:
    tables = [path.name for path in folder.iterdir() if path.is_dir()]
    return {name: Counter(map(repr, pq.read_table(folder / name).to_pylist())) for name in sorted(tables)}


@pytest.mark.parametrize("folder", SPARKS)
def test_rows_are_those_of_one_process(folder: str, tmp_path: Path) -> None:
    """Of captures, of tables, and of captures as a data source, which came with 4.0: before, one line says so."""
    if not folder:
        pytest.skip("AMQPSCOPE_SPARKS names no folder with another Spark")
    main(["dissect", *CAPTURES, "-o", str(tmp_path / "tables")])
    main(["analyze", str(tmp_path / "tables"), "-o", str(tmp_path / "statistics")])
    environment = os.environ | {"PYTHONPATH": f"{folder}:{Path(__file__).parents[2] / 'src'}"}
    command = [sys.executable, "-c", ALL_AT_ONCE, folder, *CAPTURES]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for out, wanted in (("dissected", "tables"), ("at once", "statistics"), ("behind", "statistics")):
        assert rows(tmp_path / out) == rows(tmp_path / wanted), (out, done.stderr)
    count = str(pq.read_table(tmp_path / "tables" / "messages").num_rows)
    if any(Path(folder).glob("pyspark-3.*")):
        count = f"{CAPTURES[0]}: captures are read by Spark 4.0 and newer; have them dissected first\n{count}"
    else:
        count = f"{count}\n{count}"
    assert done.stdout == f"{count}\n", done.stderr


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
