"""How far jobs on Spark are: stages by their tasks, and what these counted, reported while they run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from amqpscope.dissector.cli.progress import Advance, amounts
from amqpscope.dissector.formatting import counted

LOOK_EVERY_S = 0.5
"""Seconds between two reports."""


class Done(NamedTuple):
    """What tasks have done: captures, of which some may be read in part, and rows."""

    files: float = 0
    rows: int = 0


Tally = Accumulator[Done]
"""What tasks add to; the driver learns of it when they end."""


class _Adding(AccumulatorParam[Done]):
    """How a tally adds."""

    def zero(self, value: Done) -> Done:
        """Return what a task begins with."""
        return Done()

    def addInPlace(self, value1: Done, value2: Done) -> Done:  # noqa: N802 - the name is Spark's
        """Return the sum."""
        return Done(value1.files + value2.files, value1.rows + value2.rows)


class Watch:
    """Reports how far the running jobs are.

    Attributes:
        steps: names of the stages of the job at hand, in their order.
        size: bytes that each of these stages goes through; 0: report tasks of any stages.
        files: number of captures that the job goes through.
        tally: what the tasks add to.
    """

    def __init__(self, spark: SparkSession, advance: Advance) -> None:
        self._tracker, self._advance = spark.sparkContext.statusTracker(), advance
        self.steps: tuple[str, ...] = ()
        self.size = self.files = 0
        self.tally: Tally = spark.sparkContext.accumulator(Done(), _Adding())

    def look(self) -> None:
        """Report."""
        steps, size = self.steps, self.size
        jobs = filter(None, map(self._tracker.getJobInfo, self._tracker.getActiveJobsIds()))
        known = map(self._tracker.getStageInfo, sorted(each for job in jobs for each in job.stageIds))
        stages = [(stage.numCompletedTasks, stage.numTasks) for stage in known if stage]
        for step, (done, tasks) in zip(steps, stages, strict=False):
            if done < tasks:
                self._advance(step, size * done // tasks, size, counts=self._counts())
                return
        if stages and not size:
            done, tasks = (sum(column) for column in zip(*stages, strict=True))
            self._advance("tasks on Spark", done, tasks, counts=self._counts())

    def _counts(self) -> str:
        done = self.tally.value
        if not self.files:
            return counted(done.rows, "row")
        return amounts(min(int(done.files + 1e-6), self.files), self.files, done.rows)  # parts of files add up nearly


@contextmanager
def watched(spark: SparkSession, advance: Advance) -> Iterator[Watch]:
    """Report how far jobs are, until the context ends."""
    over = Event()
    watch = Watch(spark, advance)

    def look() -> None:
        with suppress(Py4JError, OSError):  # the JVM may end at any time
            while not over.wait(LOOK_EVERY_S):
                watch.look()

    watcher = Thread(target=look, name="amqpscope-progress", daemon=True)
    watcher.start()
    try:
        yield watch
    finally:
        over.set()
        watcher.join(LOOK_EVERY_S)
