"""An archive of captures on Spark: each file is read where there is room, and each flow dissected in one task.

A light pass over all files comes first: from their times follows the order of their packets. Then each task reads some
files, and cuts their segments into blocks by flow; there is one shuffle, of these blocks. Sorted, they are what one
process would merge, and go through the same `Dissector`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from amqpscope.dissector.capture.sources import Source, total_size
from amqpscope.dissector.cli.precompile import compile_kernels
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.kernels import kernel
from amqpscope.dissector.parallel.archive import Archive, archive, dissect, rows_of_captures
from amqpscope.dissector.parallel.blocks import Block, Seated, cut
from amqpscope.dissector.parallel.survey import Survey, chains, survey, surveyed
from amqpscope.dissector.tables.output import CODEC, HIDDEN, Output
from amqpscope.dissector.tables.rows import schemas
from amqpscope.pipelines import session
from amqpscope.pipelines.engine import Advance, quiet
from amqpscope.pipelines.tasks import WRITTEN, Task, collected, interruptible, run, watched

BLOCKS = "part int, key long, capture int, number int, segments binary, secrets binary"
"""What `parallel.blocks.Block` holds."""
SMALL = 8 << 20
"""Bytes of captures below which little planning pays."""
TASK = 128 << 20
"""Bytes of captures that a task dissects, about."""
AT_A_TIME = 8
"""Blocks that go to Python at a time."""
SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(AT_A_TIME),
    "spark.sql.adaptive.enabled": "false",
}


class Form(NamedTuple):
    """The format of part files, and how they are compressed."""

    format: str = "parquet"
    compression: str = CODEC


PARQUET = Form()


class Made(NamedTuple):
    """What a job did: the rows of each table, and the captures, those that cannot be read with their error."""

    rows: Mapping[str, int]
    sources: list[Source]


class Job(NamedTuple):
    """What the tasks of a dissection get; each attempt makes a folder of its own in `folder`."""

    folder: str
    known: Archive
    compiled: bool
    form: Form


def dissect_captures(
    sources: Sequence[Source],
    output: Path,
    options: Callable[[int], Options],
    note: Mapping[str, object],
    master: str,
    form: Form = PARQUET,
    advance: Advance = quiet,
    **settings: str,
) -> Made:
    """Write the tables of captures, on Spark.

    Args:
        sources: `capture.sources.named`; tasks see them and `output` under the same paths.
        output: folder for the tables.
        options: returns the options, given the time of the first packet (ns).
        note: the note that is written there.
        master: the URL of Spark's master.
        form: the format of part files.
        advance: called with the step, the amount done and the total.
        settings: of the session (`session.session`).

    Raises:
        CaptureError: a file that the user named, or every file, cannot be read.
        OutputError: a table cannot be written.
        SessionError: Spark does not start.
        SparkError: a task failed repeatedly.
    """

    def work() -> Made:
        spark = begin()
        with watched(spark, advance):
            return _dissect(spark, found, output.absolute(), options, note, form)

    found = [replace(source, path=str(Path(str(source.path)).absolute())) for source in sources]
    with session.running(master, small=(total_size(found) or 0) < SMALL, **SETTINGS, **settings) as begin:
        advance("starting Spark", 0, 0)
        return interruptible(work)


def _dissect(
    spark: SparkSession,
    sources: Sequence[Source],
    folder: Path,
    options: Callable[[int], Options],
    note: Mapping[str, object],
    form: Form,
) -> Made:
    compiled = prepared(spark, sources)
    surveys = surveyed(sources, partial(survey_all, spark, compiled))
    read = chains(surveys)
    known = archive(surveys, read, options(min(each.source.begin for chain in read for each in chain)))
    times = {"from_ns": known.options.from_ns, "to_ns": known.options.to_ns}
    made = Output(str(folder), schemas(known.options.protocol), *form, {**note, **times})
    hidden = folder / HIDDEN
    try:
        made.add(partial(list, rows_of_captures(surveys, known)))
        job = Job(str(hidden), known, compiled, form)
        tasks = segments(spark, read, parts(spark, sources), compiled).mapInArrow(partial(dissect_part, job), WRITTEN)
        for files in collected(tasks).values():
            for file in files:
                made.adopt(file)
        made.finish()
    except BaseException:
        made.abort()
        raise
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return Made(made.rows, [each.source for each in surveys])


def prepared(spark: SparkSession, sources: Sequence[Source]) -> bool:
    """Return whether kernels run compiled; on one machine, compile them if they are not cached."""
    compiled = kernel.worthwhile(total_size(sources))
    if compiled and str(spark.sparkContext.master).startswith("local"):
        compile_kernels(list(sources))
    return compiled


def parts(spark: SparkSession, sources: Sequence[Source]) -> int:
    """Return the number of parts of the flows."""
    return max(-(-(total_size(sources) or 0) // TASK), int(spark.sparkContext.defaultParallelism))


def survey_all(spark: SparkSession, compiled: bool, lists: list[list[Source]]) -> list[Survey]:
    """Return the surveys of lists of captures, each made by one task."""
    tasks = spark.sparkContext.parallelize(lists, len(lists)).flatMap(partial(survey, compiled=compiled))
    return run(tasks.collect)


def segments(spark: SparkSession, read: Sequence[Sequence[Seated]], parts: int, compiled: bool) -> DataFrame:
    """Return the blocks of captures, each part of the flows in one partition, in order."""
    cutting = partial(cut_chains, read, parts, compiled)
    cuts = spark.range(0, len(read), 1, len(read)).mapInArrow(cutting, BLOCKS)
    return cuts.repartitionById(parts, "part").sortWithinPartitions("key", "capture", "number")


def cut_chains(
    read: Sequence[Sequence[Seated]], parts: int, compiled: bool, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the blocks (BLOCKS) of some chains of captures."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for block in cut(read[number], parts, compiled):
                yield pa.RecordBatch.from_pydict({name: [value] for name, value in block._asdict().items()}, SCHEMA)


SCHEMA = pa.schema(
    [
        *((name, pa.int32() if name != "key" else pa.int64()) for name in Block._fields[:4]),
        *((name, pa.binary()) for name in Block._fields[4:]),
    ]
)
"""Types of BLOCKS."""


def blocks_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Block]:
    """Yield blocks."""
    for batch in batches:
        for row in range(batch.num_rows):
            yield Block(*(column[row].as_py() for column in batch.columns))


def dissect_part(job: Job, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Dissect the flows of a part; yield the part files that were written (WRITTEN)."""
    with Task(job.folder, schemas(job.known.options.protocol), *job.form) as task:
        for work in dissect(blocks_of(batches), job.known, job.compiled):
            task.output.add(work)
    yield from task.written()
