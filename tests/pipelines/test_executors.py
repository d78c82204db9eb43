"""Executors of a cluster: how many are waited for, and that work is divided by the cores of those that came."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from amqpscope.pipelines.spark import executors
from tests.pipelines.clusters import cluster

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
        ([*range(99)], None, 15),  # one more each second
        ([0, 1] * 99, 3, 1),  # one that comes and goes
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


ENTRYPOINT = Path(__file__).parents[2] / "tools" / "entrypoint"
needs_tools = pytest.mark.skipif(not ENTRYPOINT.exists(), reason="the package does not have it")
ON_OTHERS = """
import sys
from amqpscope.pipelines.spark.session import session
spark = session(
    sys.argv[1], spark_driver_port=sys.argv[2], spark_driver_host="127.0.0.1", spark_driver_bindAddress="127.0.0.1",
    spark_executor_instances="1",
)
print(sorted(row[0] for row in spark.range(4).mapInArrow(lambda batches: batches, "id long").collect()))
"""


@pytest.mark.thorough
@pytest.mark.spark
@needs_tools
def test_the_image_is_an_executor(spark: SparkSession, tmp_path: Path) -> None:
    """Started as Kubernetes starts it, for a driver that has no other executor."""
    options = spark._jvm.org.apache.spark.launcher.JavaModuleOptions.defaultModuleOptionArray()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = {f"SPARK_JAVA_OPT_{number}": option for number, option in enumerate(options)}
    about = {
        "DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{port}", "EXECUTOR_ID": "7", "EXECUTOR_CORES": "1",
        "EXECUTOR_MEMORY": "512m", "APPLICATION_ID": "spark-1", "EXECUTOR_POD_IP": "127.0.0.1",
        "RESOURCE_PROFILE_ID": "0", "EXECUTOR_POD_NAME": "pod",
    }  # fmt: skip
    own = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    started = os.environ | given | {f"SPARK_{name}": value for name, value in about.items()} | {"PATH": own}
    with cluster(spark, tmp_path, workers=0) as master:
        command = [sys.executable, "-c", ON_OTHERS, master, str(port)]
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        while driver.poll() is None and not listens(port):
            time.sleep(0.1)
        with (tmp_path / "log").open("wb") as log:
            executor = subprocess.Popen([str(ENTRYPOINT), "executor"], env=started, stdout=log, stderr=log)
        printed, _ = driver.communicate()
        executor.wait()  # it ends with its driver
    assert printed.splitlines()[-1] == "[0, 1, 2, 3]", (tmp_path / "log").read_text(errors="replace")[-2000:]


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@needs_tools
def test_the_image_runs_the_command(tmp_path: Path) -> None:
    own = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    made = subprocess.run([str(ENTRYPOINT), "--version"], check=True, capture_output=True, env=os.environ | own)
    assert made.stdout.startswith(b"amqpscope ")
