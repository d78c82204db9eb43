"""An archive of captures on Spark: each file is read where there is room, and each flow dissected in one task.

A light pass over all files comes first: from their times follows the order of their packets. Then each task reads some
files, and cuts their segments into blocks by flow; there is one shuffle, of these blocks. Sorted, they are what one
process would merge, and go through the same `Dissector`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from amqpscope.dissector import places
from amqpscope.dissector.capture.sources import Source, place, total_size
from amqpscope.dissector.cli.precompile import compile_kernels
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.kernels import kernel
from amqpscope.dissector.parallel import blocks
from amqpscope.dissector.parallel.archive import Archive, Plan, dissect, planned, rows_of_captures, steps
from amqpscope.dissector.parallel.arrangement import RANGE
from amqpscope.dissector.parallel.blocks import Seated
from amqpscope.dissector.parallel.counts import Counts
from amqpscope.dissector.parallel.process import settle
from amqpscope.dissector.parallel.survey import Split, Survey, survey
from amqpscope.dissector.places import Place, remove_tree
from amqpscope.dissector.reading import Reading
from amqpscope.dissector.tables.output import CODEC, HIDDEN, Output, Then
from amqpscope.dissector.tables.rows import schemas
from amqpscope.pipelines.run import local
from amqpscope.pipelines.run.engine import Engine
from amqpscope.pipelines.run.preparing import PACKET
from amqpscope.pipelines.run.runner import Runner
from amqpscope.pipelines.spark import engine as on_spark
from amqpscope.pipelines.spark import relations
from amqpscope.pipelines.spark.progress import Done, Tally, Watch, watched
from amqpscope.pipelines.spark.tasks import WRITTEN, SparkError, Submission, Task, collected, run
from amqpscope.pipelines.spark.versions import by_part
from amqpscope.pipelines.statistics import HOUR_NS, rows_for, tables

BLOCKS = "part int, key long, capture int, number long, segments binary, secrets binary"
"""`parallel.blocks.SCHEMA`."""
LEAST = 8 << 20
"""Least bytes of a capture that a task reads, where it is not the whole one."""
TASK = 128 << 20
"""Bytes of captures that a task dissects, about."""
READ, TURNS = 64 << 20, 2
"""Bytes of captures after which a task reads no further one; fewer, so that each core has as many tasks."""
SURVEYS = "surveys binary"
"""Lists of `parallel.survey.Survey`, pickled."""


class Form(NamedTuple):
    """The format of part files, and how they are compressed."""

    format: str = "parquet"
    compression: str = CODEC


PARQUET = Form()


class Made(NamedTuple):
    """What a job did: the rows of each table, and what it learned of the captures, as after a pass over them."""

    rows: Mapping[str, int]
    reading: Reading


class Job(NamedTuple):
    """What the tasks of a dissection get; each attempt makes a folder of its own in `folder`."""

    folder: str
    known: Archive
    compiled: bool
    form: Form
    tally: Tally


class Ready(NamedTuple):
    """Captures after the light pass.

    Attributes:
        plan: what it showed.
        compiled: whether kernels run compiled.
        reading: what warnings need, as after a pass over all of them.
        tally: what tasks add to.
    """

    plan: Plan
    compiled: bool
    reading: Reading
    tally: Tally

    @property
    def times(self) -> dict[str, int | None]:
        """The range of time that is wanted, for notes."""
        return {"from_ns": self.reading.options.from_ns, "to_ns": self.reading.options.to_ns}

    def counted(self, counts: Counts) -> None:
        """Add what a task counted."""
        counts.add_to(self.reading.dissector)


Range = Callable[[int], Options]
"""Returns the options, given the time of the first packet (ns)."""


def dissect_captures(sources: Sequence[Source], options: Range, to: Submission, form: Form = PARQUET) -> Made:
    """Write the tables of captures, on Spark.

    Args:
        sources: `capture.sources.named`; tasks see them under the same paths.
        options: of the dissection.
        to: where this is done.
        form: the format of part files.

    Raises:
        CaptureError: a file that the user named, or every file, cannot be read.
        OutputError: a table cannot be written.
        SessionError: Spark does not start.
        SparkError: a task failed repeatedly.
    """
    folder = to.output.absolute()

    def job(spark: SparkSession, ready: Ready, watch: Watch) -> Made:
        known = ready.plan.known
        with _output(folder, schemas(known.options.protocol), {**to.note, **ready.times}, form) as made:
            made.add(partial(list, rows_of_captures(ready.plan.surveys, known)))
            tasks = Job(str(folder / HIDDEN), known, ready.compiled, form, ready.tally)
            dissected = segments(spark, ready).mapInArrow(partial(dissect_part, tasks), WRITTEN)
            found = collected(dissected, on_spark.AT_A_TIME, ready.counted)
            for file in chain.from_iterable(found.values()):
                made.adopt(file)
        return Made(made.rows, ready.reading)

    return _run(job, sources, options, to)


def analyze_captures(sources: Sequence[Source], options: Range, to: Submission, window_ns: int = HOUR_NS) -> Made:
    """Write the statistics of captures, on Spark: rows go straight into the walks, in the task that dissects them.

    Args:
        sources: as for `dissect_captures`, as all arguments but the last.
        options: of the dissection.
        to: where this is done.
        window_ns: how far before a delivery to look for its publish (ns).

    Raises:
        CaptureError: a file that the user named, or every file, cannot be read.
        OutputError: a table cannot be written.
        SessionError: Spark does not start.
        SparkError: a task failed repeatedly.
    """
    folder = to.output.absolute()

    def job(spark: SparkSession, ready: Ready, watch: Watch) -> Made:
        cut = tuple(each.source.name for each in ready.plan.surveys if 0 < each.snap_length < PACKET)
        tasks = on_spark.Job(str(folder / HIDDEN), ready.compiled, ready.tally, window_ns, cut)
        engine = Engine(ready.compiled, window_ns)
        engine.captures += [
            pa.Table.from_batches([rows])
            for table, rows in rows_of_captures(ready.plan.surveys, ready.plan.known)
            if table == "captures"
        ]
        note, then = {**to.note, **ready.times}, partial(relations.of_folder, spark)
        with _output(folder, local.schemas(), note, then=then) as made:
            walked = segments(spark, ready).mapInArrow(partial(analyze_part, tasks, ready.plan.known), WRITTEN)
            found = collected(walked, on_spark.AT_A_TIME, ready.counted)
            watch.steps = ()
            on_spark.conclude(spark, engine, made, found, tasks)
        return Made(made.rows, ready.reading)

    return _run(job, sources, options, to)


def _run(
    job: Callable[[SparkSession, Ready, Watch], Made], sources: Sequence[Source], options: Range, to: Submission
) -> Made:
    """Start Spark, survey the captures, and run a job over them; do that again if any vanish meanwhile."""

    def work(spark: SparkSession) -> Made:
        with watched(spark, to.advance) as watch:
            while True:
                watch.size, watch.files = total_size(sources) or 0, len(sources)
                watch.steps, watch.tally.value = ("surveying captures",), Done()
                found = ready(spark, sources, options, watch.tally)
                watch.steps, watch.tally.value = ("reading packets", "dissecting connections"), Done()
                try:
                    return job(spark, found, watch)
                except SparkError:
                    if all(map(_exists, found.reading.sources)):
                        raise

    # Spark does little but move blocks: however large the captures, its compilers would cost more than they save.
    return to.run(work, small=True)


def _exists(source: Source) -> bool:
    """Return whether a capture is there that the light pass could read."""
    return bool(source.error) or places.place(str(source.path)).exists()


@contextmanager
def _output(
    folder: Place,
    wanted: Mapping[str, pa.Schema],
    note: Mapping[str, object],
    form: Form = PARQUET,
    then: Then | None = None,
) -> Iterator[Output]:
    """Yield an output, in which tasks write into a hidden folder; it is complete unless an error ends this."""
    try:
        with Output(str(folder), wanted, *form, note, then) as made:
            yield made
    finally:
        remove_tree(folder / HIDDEN)


def ready(spark: SparkSession, sources: Sequence[Source], options: Range, tally: Tally) -> Ready:
    """Return what the light pass over captures shows."""
    found = [replace(source, path=str(places.place(str(source.path)).absolute())) for source in sources]
    compiled = prepared(spark, found)
    each = (total_size(found) or 0) // int(spark.sparkContext.defaultParallelism)
    plan = planned(found, partial(survey_all, spark, compiled, tally), options, max(min(each, RANGE), LEAST))
    reading = Reading([each.source for each in plan.surveys], plan.options, compiled=False)
    in_order = sorted(plan.surveys, key=lambda each: place(each.source))
    reading.seen += [each.summary for each in in_order if each.summary]
    return Ready(plan, compiled, reading, tally)


def prepared(spark: SparkSession, sources: Sequence[Source]) -> bool:
    """Return whether kernels run compiled; on one machine, compile them if they are not cached."""
    compiled = kernel.worthwhile(total_size(sources))
    if compiled and str(spark.sparkContext.master).startswith("local"):
        compile_kernels(list(sources))
    return compiled


def parts(spark: SparkSession, sources: Sequence[Source]) -> int:
    """Return the number of parts of the flows."""
    return max(-(-(total_size(sources) or 0) // TASK), int(spark.sparkContext.defaultParallelism))


T = TypeVar("T", Split, Seated)


def grouped(spark: SparkSession, lists: Sequence[Sequence[T]]) -> list[list[Sequence[T]]]:
    """Return lists of splits of captures in groups, each for one task, by the sizes of the splits."""
    sizes = [sum(map(_size, splits)) for splits in lists]
    room = min(READ, sum(sizes) // (TURNS * spark.sparkContext.defaultParallelism))
    groups: list[list[Sequence[T]]] = []
    left = -1
    for splits, size in zip(lists, sizes, strict=True):
        if left < 0:
            groups.append([])
            left = room
        groups[-1].append(splits)
        left -= size
    return groups


def _files(lists: Iterable[Sequence[Split | Seated]]) -> Done:
    """Return the number of captures in lists of splits, of which some may be parts of them."""
    splits = [each for splits in lists for each in splits]
    return Done(files=sum(_size(each) / (each.source.size or 1) if each.part else 1 for each in splits))


def _size(split: Split | Seated) -> int:
    size = split.source.size or 0
    return size if split.part is None else (split.part.end or size) - split.part.begin


def numbers(spark: SparkSession, count: int, tasks: int | None = None) -> DataFrame:
    """Return the numbers below `count`, divided among tasks; None: each has one of its own."""
    return spark.range(0, count, 1, tasks or count)


def survey_all(spark: SparkSession, compiled: bool, tally: Tally, lists: list[list[Split]]) -> list[Survey]:
    """Return the surveys of lists of splits of captures, in their order."""
    groups = grouped(spark, lists)
    found = run(
        numbers(spark, len(groups)).mapInArrow(partial(survey_groups, groups, compiled, tally), SURVEYS).collect
    )
    return [each for row in found for each in pickle.loads(row.surveys)]  # noqa: S301 - our own tasks wrote them


def survey_groups(
    groups: Sequence[Sequence[Sequence[Split]]], compiled: bool, tally: Tally, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the surveys (SURVEYS) of groups of lists of splits, by the numbers of the groups."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            found = [each for splits in groups[number] for each in survey(splits, compiled)]
            tally.add(_files(groups[number]))
            yield pa.RecordBatch.from_pydict({"surveys": [pickle.dumps(found)]})


def segments(spark: SparkSession, ready: Ready) -> DataFrame:
    """Return the blocks of captures, each part of the flows in one partition, in order."""
    groups = grouped(spark, ready.plan.chains)
    count = parts(spark, [each.source for each in ready.plan.surveys])
    cuts = numbers(spark, len(groups)).mapInArrow(
        partial(cut_groups, groups, count, ready.compiled, ready.tally), BLOCKS
    )
    return by_part(cuts, count).sortWithinPartitions(*blocks.ORDER)


def cut_groups(
    groups: Sequence[Sequence[Sequence[Seated]]],
    parts: int,
    compiled: bool,
    tally: Tally,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield the blocks (BLOCKS) of groups of chains of captures, by the numbers of the groups."""
    settle()
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for captures in groups[number]:
                yield from map(blocks.written, blocks.cut(captures, parts, compiled))
            tally.add(_files(groups[number]))


def dissect_part(job: Job, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Dissect the flows of a part; yield the part files that were written (WRITTEN)."""
    dissector = job.known.dissector(job.compiled)
    with Task(job.folder, schemas(job.known.options.protocol), *job.form) as task:
        for work in dissect(blocks.read(batches), dissector, job.known.end_ns):
            task.output.add(work)
    job.tally.add(Done(rows=sum(task.output.rows.values())))
    yield from task.written(Counts.of(dissector))


def analyze_part(job: on_spark.Job, known: Archive, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Dissect the flows of a part, and walk over their rows; yield the part files that were written (WRITTEN)."""
    dissector = known.dissector(job.compiled)
    note = {"complete": True, "from_ns": known.options.from_ns, "to_ns": known.options.to_ns}
    rows = rows_for(tables())
    runner = Runner(job.compiled, rows, note, under_way=dissector.under_way, threads=0)
    cut = pa.array(job.cut, pa.string())
    with on_spark.Task(job, on_spark.partial_schemas()) as task:
        for step in steps(blocks.read(batches), dissector, known.end_ns):
            for table, batch in chain.from_iterable(work() for work in step):
                job.tally.add(Done(rows=batch.num_rows))
                task.add(runner.add(runner.prepare(table, pa.Table.from_batches([batch]), cut)))
            task.add(runner.step())
        task.add(runner.finish())
        task.finish()
    yield from task.written(Counts.of(dissector))
