"""The Spark session that the jobs expect."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from amqpscope.errors import Error

_SMALL = {
    "spark.sql.shuffle.partitions": "1",
    # Planning anew behind each stage, and compiling loops for a few rows, take longer than they save.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # So do the optimizing compiler of the JVM, as planning is most of the work, and collecting garbage in parallel.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC",
}
"""Settings for little data, on one machine."""

THROWN = re.compile(r"\b(?:\w+\.)+\w*(?:Exception|Error): (.+)")
"""What the JVM threw, by its class: behind it stands what was wrong."""


class SessionError(Error):
    """Spark cannot be started; the message is one line that says why."""


def session(master: str | None = None, *, small: bool = False, **settings: str) -> SparkSession:
    """A session with the settings that the tables need; the running one, if there is one.

    Times are UTC, timestamps in Parquet are microseconds (Spark's own default is a deprecated type of 96 bits), errors
    in arithmetic are errors, and the workers run this Python.

    Args:
        master: Spark's master URL, such as `local[*]`; None leaves it to the environment (`spark-submit`).
        small: there is little to read: on one machine, spend less on planning and compiling for it.
        settings: further ones, `_` standing for `.`: `spark_sql_shuffle_partitions="2"`.

    Raises:
        SessionError: Spark does not start.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("amqpscope")
    chosen = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.ansi.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            chosen |= _local(small)
    chosen |= {name.replace("_", "."): value for name, value in settings.items()}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True  # the page it writes is in the exception as well
    with _silenced() as said:
        try:
            return builder.getOrCreate()
        except Exception as error:  # py4j and the launcher raise many kinds
            raise SessionError(_reason(error, said)) from error


def _local(small: bool) -> dict[str, str]:
    """One machine: nothing listens to the outside, and the memory is a part of what there is."""
    cores = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": f"{min(max(memory // 4, 1024), 8192)}m",
        "spark.sql.shuffle.partitions": str(4 * cores),
    } | (_SMALL if small else {})


@contextlib.contextmanager
def _silenced() -> Iterator[Path]:
    """Sends what the JVM says on standard error to a file: its start is a page of warnings that help nobody."""
    with tempfile.TemporaryDirectory(prefix="amqpscope-") as folder:
        path = Path(folder, "stderr")
        sys.stderr.flush()
        saved = os.dup(2)
        try:
            with path.open("wb") as file:
                os.dup2(file.fileno(), 2)
            yield path
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _reason(error: Exception, said: Path) -> str:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "Spark cannot be started: there is no Java; install a JDK, version 17 or 21"
    lines = said.read_text(errors="replace").splitlines()
    thrown = next(filter(None, map(THROWN.search, str(error).splitlines() + lines)), None)
    told = [line for line in lines if "rror" in line or "xception" in line] or str(error).splitlines()
    return f"Spark cannot be started: {(thrown[1] if thrown else (told or [type(error).__name__])[0]).strip()}"
