"""Executors of a cluster: how many are waited for, and that work is divided by the cores of those that came."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from amqpscope.pipelines.spark import executors
from tests.pipelines.test_archive import cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DYNAMIC = {"spark.dynamicAllocation.enabled": "true"}


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, None),
        ({"spark.executor.instances": "4"}, 4),
        (DYNAMIC, 0),
        (DYNAMIC | {"spark.dynamicAllocation.minExecutors": "2"}, 2),
        (DYNAMIC | {"spark.dynamicAllocation.minExecutors": "2", "spark.executor.instances": "3"}, 3),
        ({"spark.dynamicAllocation.enabled": "false", "spark.dynamicAllocation.minExecutors": "2"}, None),
    ],
)
def test_how_many_a_session_begins_with(settings: dict[str, str], count: int | None) -> None:
    assert executors.expected(settings) == count


@pytest.mark.parametrize(
    ("registered", "wanted", "found"),
    [
        ([0, 0, 1, 2, 2, 2, 3], 3, 3),  # all that are expected
        ([0, 1, 1, 2, *[2] * 9, 3], None, 2),  # until no more come
        ([0] * 99, 2, 0),  # none comes
        ([0, 1, *[1] * 99], 2, 1),  # one is missing
        ([5], 0, 5),  # none is expected
    ],
)
def test_what_is_waited_for(
    registered: list[int], wanted: int | None, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(executors.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(executors.time, "sleep", lambda _: None)
    monkeypatch.setattr(executors, "SETTLED_S", 5)
    counts = iter(registered)
    assert executors.gathered(lambda: next(counts), wanted) == found


CORES = """
import sys
from amqpscope.pipelines.spark.session import session
print(session(sys.argv[1], spark_executor_memory="512m").sparkContext.defaultParallelism)
"""


@pytest.mark.spark
def test_work_is_divided_by_the_cores_of_executors_that_registered(spark: SparkSession, tmp_path: Path) -> None:
    """Before they have, Spark says 2."""
    variables = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    with cluster(spark, tmp_path, cores=3) as master:
        command = [sys.executable, "-c", CORES, master]
        made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables)
    assert made.stdout.split()[-1] == "3"
