"""A standalone cluster of Spark on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def cluster(spark: SparkSession, folder: Path, cores: int = 2, workers: int = 1) -> Iterator[str]:
    """A master and workers with room for two executors each, in the JVM of a session; yield its URL."""
    jvm = spark._jvm
    deploy, settings = jvm.org.apache.spark.deploy, jvm.org.apache.spark.SparkConf(False)
    at, none = ("127.0.0.1", 0, 0), jvm.scala.Option.empty()
    master = deploy.master.Master.startRpcEnvAndEndpoint(*at, settings)._1()
    urls = spark.sparkContext._gateway.new_array(jvm.java.lang.String, 1)
    urls[0] = master.address().toSparkURL()
    own = (cores, 1200, urls, str(folder / "worker"))  # cores, MB
    start = deploy.worker.Worker.startRpcEnvAndEndpoint
    started = [start(*at, *own, none, settings, none) for _ in range(workers)]
    try:
        yield urls[0]
    finally:
        for each in (*started, master):
            each.shutdown()
            each.awaitTermination()
