"""Tasks on Spark that write part files, and how this process runs them.

Each attempt of a task writes into a folder of its own, and returns the names of its files: files of a killed or
repeated attempt are ignored. This process moves the part files into place.
"""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from amqpscope.dissector.cli.progress import Advance, quiet
from amqpscope.dissector.parallel.counts import Counts
from amqpscope.dissector.parallel.process import settle
from amqpscope.dissector.places import Place, place
from amqpscope.dissector.tables.output import CODEC, Output, Part
from amqpscope.errors import Error
from amqpscope.pipelines.spark import session

T = TypeVar("T")

WRITTEN = "name string, file string, rows long, counts binary"
"""What tasks return: part files of tables and of partial results, and what they counted (`Counts`, pickled)."""
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_WRITTEN = pa.schema([("name", pa.string()), ("file", pa.string()), ("rows", pa.int64()), ("counts", pa.binary())])
_CAUSE = re.compile(r"^\s*(?:Caused by: )?([\w.]*(?:Error|Exception)): (.+)$", re.MULTILINE)


class SparkError(Error):
    """A job failed on Spark; the message is one line that says why."""


@dataclass(frozen=True)
class Submission:
    """Work for Spark: where it runs, and where it writes.

    Attributes:
        master: the URL of Spark's master.
        output: folder for the tables; tasks see it under the same path.
        note: the note that is written there.
        advance: called with the step, the amount done and the total.
        settings: further ones of the session (`session.session`).
        answer_s: seconds in which the master must answer.
        parts: of the work; None: as many as there are cores when it begins.
    """

    master: str
    output: Place
    note: Mapping[str, object] = field(default_factory=dict)
    advance: Advance = quiet
    settings: Mapping[str, str] = field(default_factory=dict)
    answer_s: int = session.ANSWER_S
    parts: int | None = None

    def run(self, work: Callable[[SparkSession], T], small: bool) -> T:
        """Start a session, if none runs, and do work that this process cannot do without it.

        Args:
            work: gets the session; Ctrl-C interrupts it.
            small: there is little for Spark itself to do.

        Raises:
            SessionError: Spark does not start.
        """
        own = {"spark.sql.adaptive.enabled": "false", **session.parallelism(self.parts), **self.settings}
        with session.running(self.master, small=small, answer_s=self.answer_s, **own) as begin:
            self.advance("starting Spark", 0, 0)
            return interruptible(lambda: work(begin()))


class Task:
    """What one attempt of a task writes, in a folder of its own."""

    def __init__(
        self, folder: str, schemas: Mapping[str, pa.Schema], form: str = "parquet", compression: str = CODEC
    ) -> None:
        settle()
        context = TaskContext.get()
        assert context is not None
        path = place(folder) / f"{context.stageId()}-{context.partitionId()}-{context.taskAttemptId()}"
        self.output = Output(str(path), schemas, form, compression)
        self._left: list[tuple[object, ...]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.output.__exit__(kind, *error)

    def leave(self, name: str, data: bytes) -> None:
        """Write a file beside the tables, in a local folder."""
        path = Path(str(self.output.folder), name)
        path.write_bytes(data)
        self._left.append((name, str(path), 0, None))

    def written(self, counts: Counts | None = None) -> Iterator[pa.RecordBatch]:
        """Yield what was written, left and counted."""
        rows = [(part.table, str(part.file), part.rows, None) for part in self.output.parts()] + self._left
        if counts is not None:
            rows.append(("", "", 0, pickle.dumps(counts)))
        yield pa.RecordBatch.from_pylist([dict(zip(_WRITTEN.names, row, strict=True)) for row in rows], _WRITTEN)


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


def collected(
    jobs: DataFrame, at_a_time: int, counted: Callable[[Counts], None] | None = None
) -> dict[str, list[Part]]:
    """Run tasks; return what the successful ones wrote, by name.

    Args:
        jobs: what tasks yield (WRITTEN).
        at_a_time: rows that go to Python at a time.
        counted: called with what each of them counted.

    Raises:
        SparkError: a task failed repeatedly.
    """

    def collect() -> list[Row]:
        with _at_a_time(jobs.sparkSession, at_a_time):
            return jobs.collect()

    made: dict[str, list[Part]] = {}
    for name, file, rows, counts in run(collect):
        if counts is None:
            made.setdefault(name, []).append(Part(name, place(file), rows))
        elif counted is not None:
            counted(pickle.loads(counts))  # noqa: S301 - our own tasks wrote it
    return made


@contextmanager
def _at_a_time(spark: SparkSession, rows: int) -> Iterator[None]:
    """Have this number of rows go to Python at a time."""
    before = str(spark.conf.get(_ROWS))
    spark.conf.set(_ROWS, rows)
    try:
        yield
    finally:
        spark.conf.set(_ROWS, before)


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
