"""Spark Connect: the data source, jobs and relations, whose rows are those of this process."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from amqpscope.dissector.cli.program import main
from amqpscope.pipelines import jobs

DEMO = Path(__file__).parents[1] / "captures" / "demo.pcap"
TABLES = ("amqp091_frames", "messages", "connections", "anomalies")
PROGRAM = """
import sys
from pyspark.sql import SparkSession
from amqpscope import pipelines
from amqpscope.pipelines import jobs

spark = SparkSession.builder.remote("local[1]").getOrCreate()
capture, tables = sys.argv[1:3]
there = {name: pipelines.read(spark, tables, name) for name in sys.argv[3:]}
confirms = jobs.confirms(*there.values())
print(
    pipelines.read(spark, capture, "messages").count(), there["messages"].count(), confirms.count(),
    jobs.latency_summary(confirms=confirms).count(), jobs.relation("rates", confirms=confirms).count(),
)
"""


@pytest.mark.spark
def test_rows_are_those_of_this_process(tmp_path: Path) -> None:
    for needed in ("grpc", "grpc_status", "zstandard"):
        pytest.importorskip(needed)
    main(["dissect", str(DEMO), "-o", str(tmp_path / "tables")])
    frames, messages, connections, anomalies = (pq.read_table(tmp_path / "tables" / name) for name in TABLES)
    confirms = jobs.confirms(frames, messages, connections, anomalies)
    wanted = [
        messages,
        messages,
        confirms,
        jobs.latency_summary(confirms=confirms),
        jobs.relation("rates", confirms=confirms),
    ]
    command = [sys.executable, "-c", PROGRAM, str(DEMO), str(tmp_path / "tables"), *TABLES]
    here = os.environ | {"PYSPARK_PYTHON": sys.executable}
    made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=here)
    assert made.stdout.splitlines()[-1] == " ".join(str(len(each)) for each in wanted)
