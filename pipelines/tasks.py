"""Tasks on Spark that write part files, and how this process runs them.

Each attempt of a task writes into a folder of its own, and returns the names of its files: files of a killed or
repeated attempt are ignored. This process moves the part files into place.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Self, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from amqpscope.dissector.places import place
from amqpscope.dissector.tables.output import CODEC, Output, Part
from amqpscope.errors import Error
from amqpscope.pipelines import session
from amqpscope.pipelines.engine import Advance

T = TypeVar("T")

WRITTEN = "name string, file string, rows long"
"""What tasks return: part files of tables and of partial results."""
LOOK_EVERY_S = 0.5
"""Seconds between two reports of progress."""
_CAUSE = re.compile(r"^\s*(?:Caused by: )?([\w.]*(?:Error|Exception)): (.+)$", re.MULTILINE)


class SparkError(Error):
    """A job failed on Spark; the message is one line that says why."""


class Task:
    """What one attempt of a task writes, in a folder of its own."""

    def __init__(
        self, folder: str, schemas: Mapping[str, pa.Schema], form: str = "parquet", compression: str = CODEC
    ) -> None:
        context = TaskContext.get()
        assert context is not None
        path = place(folder) / f"{context.stageId()}-{context.partitionId()}-{context.taskAttemptId()}"
        self.output = Output(str(path), schemas, form, compression)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.output.finish()
        else:
            self.output.abort()

    def written(self) -> Iterator[pa.RecordBatch]:
        """Yield what was written."""
        parts = self.output.parts()
        yield pa.RecordBatch.from_pydict(
            {
                "name": pa.array([part.table for part in parts], pa.string()),
                "file": pa.array([str(part.file) for part in parts], pa.string()),
                "rows": pa.array([part.rows for part in parts], pa.int64()),
            }
        )


def interruptible(work: Callable[[], T]) -> T:
    """Do work in a thread: this one is there for Ctrl-C, which the gateway to the JVM keeps to itself.

    Raises:
        KeyboardInterrupt: the JVM was ended.
    """
    with ThreadPoolExecutor(1, "amqpscope-spark") as pool:
        future: Future[T] = pool.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            logging.disable()  # of the gateway, that the JVM is gone
            session.end()
            wait([future])
            logging.disable(logging.NOTSET)
            raise


@contextmanager
def watched(spark: SparkSession, advance: Advance) -> Iterator[None]:
    """Report the number of finished tasks of the running jobs."""
    over = Event()

    def watch() -> None:
        tracker = spark.sparkContext.statusTracker()
        with suppress(Py4JError, OSError):  # the JVM may end at any time
            while not over.wait(LOOK_EVERY_S):
                jobs = filter(None, map(tracker.getJobInfo, tracker.getActiveJobsIds()))
                stages = [found for job in jobs for each in job.stageIds if (found := tracker.getStageInfo(each))]
                if stages:
                    done = sum(stage.numCompletedTasks for stage in stages)
                    advance("tasks on Spark", done, sum(stage.numTasks for stage in stages))

    watcher = Thread(target=watch, name="amqpscope-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(LOOK_EVERY_S)


def collected(jobs: DataFrame) -> dict[str, list[Part]]:
    """Run tasks; return what the successful ones wrote, by name.

    Raises:
        SparkError: a task failed repeatedly.
    """
    made: dict[str, list[Part]] = {}
    for name, file, rows in run(jobs.collect):
        made.setdefault(name, []).append(Part(name, place(file), rows))
    return made


def run(job: Callable[[], T]) -> T:
    """Return what a job on Spark returns.

    Raises:
        SparkError: a task failed repeatedly.
    """
    try:
        return job()
    except (PySparkException, Py4JError, OSError) as error:
        raise SparkError(f"Spark: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return the most useful line: the last error raised in Python, or the first that the JVM threw."""
    found = _CAUSE.findall(str(error))
    ours = [text for name, text in found if name.startswith("amqpscope.")]
    python = [f"{name}: {text}" for name, text in found if "." not in name]
    texts = ours[-1:] or python[-1:] or [text for _, text in found[-1:]] or str(error).strip().splitlines()[:1]
    return " ".join((texts or [type(error).__name__])[0].split())
