"""An archive of captures on Spark: each file is read where there is room, and each flow dissected in one task.

A light pass over all files comes first: from their times follows the order of their packets. Then each task reads some
files, and cuts their segments into blocks by flow; there is one shuffle, of these blocks. Sorted, they are what one
process would merge, and go through the same `Dissector`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from amqpscope.dissector.capture.sources import Source, total_size
from amqpscope.dissector.cli.precompile import compile_kernels
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.kernels import kernel
from amqpscope.dissector.parallel.archive import Archive, archive, dissect, rows_of_captures
from amqpscope.dissector.parallel.arrangement import RANGE, chains, surveyed
from amqpscope.dissector.parallel.blocks import Block, Seated, cut
from amqpscope.dissector.parallel.survey import Piece, Survey, survey
from amqpscope.dissector.places import Place, place, readable, remove_tree
from amqpscope.dissector.tables.output import CODEC, HIDDEN, Output
from amqpscope.dissector.tables.rows import schemas
from amqpscope.pipelines import here, on_spark, session
from amqpscope.pipelines.engine import Advance, Engine, quiet
from amqpscope.pipelines.preparing import PACKET
from amqpscope.pipelines.schemas import schema as of_spark
from amqpscope.pipelines.statistics import HOUR_NS, KEYED
from amqpscope.pipelines.tasks import WRITTEN, Task, collected, interruptible, run, watched
from amqpscope.pipelines.walks.events import decoded
from amqpscope.pipelines.walks.walk import schema

BLOCKS = "part int, key long, capture int, number long, segments binary, secrets binary"
"""What `parallel.blocks.Block` holds."""
SMALL = 8 << 20
"""Bytes of captures below which little planning pays."""
LEAST = 8 << 20
"""Least bytes of a capture that a task reads, where it is not the whole one."""
TASK = 128 << 20
"""Bytes of captures that a task dissects, about."""
ROOM = 256 << 20
"""Bytes of rows that wait in memory for the walks of a task; more go to files."""
CONNECTIONS = "connections"
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


class Ready(NamedTuple):
    """Captures after the light pass, and what their dissectors need to know."""

    surveys: list[Survey]
    read: list[list[Seated]]
    known: Archive
    compiled: bool

    @property
    def times(self) -> dict[str, int | None]:
        """The range of time that is wanted, for notes."""
        return {"from_ns": self.known.options.from_ns, "to_ns": self.known.options.to_ns}

    def made(self, rows: Mapping[str, int]) -> Made:
        """Return what a job did that wrote these rows."""
        return Made(rows, [each.source for each in self.surveys])


Range = Callable[[int], Options]
"""Returns the options, given the time of the first packet (ns)."""


def dissect_captures(
    sources: Sequence[Source],
    output: Place,
    options: Range,
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
        options: of the dissection.
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
    folder = output.absolute()

    def job(spark: SparkSession, ready: Ready) -> Made:
        with _output(folder, schemas(ready.known.options.protocol), {**note, **ready.times}, form) as made:
            made.add(partial(list, rows_of_captures(ready.surveys, ready.known)))
            tasks = Job(str(folder / HIDDEN), ready.known, ready.compiled, form)
            for files in collected(segments(spark, ready).mapInArrow(partial(dissect_part, tasks), WRITTEN)).values():
                for file in files:
                    made.adopt(file)
        return ready.made(made.rows)

    return _run(job, sources, options, master, advance, settings)


def analyze_captures(
    sources: Sequence[Source],
    output: Place,
    options: Range,
    note: Mapping[str, object],
    master: str,
    window_ns: int = HOUR_NS,
    advance: Advance = quiet,
    **settings: str,
) -> Made:
    """Write the statistics of captures, on Spark: rows go straight into the walks, in the task that dissects them.

    Args:
        sources: as for `dissect_captures`, as all arguments but these.
        output: folder for the statistics.
        options: of the dissection.
        note: the note that is written there.
        master: the URL of Spark's master.
        window_ns: how far before a delivery to look for its publish (ns).
        advance: called with the step, the amount done and the total.
        settings: of the session.

    Raises:
        CaptureError: a file that the user named, or every file, cannot be read.
        OutputError: a table cannot be written.
        SessionError: Spark does not start.
        SparkError: a task failed repeatedly.
    """
    folder = output.absolute()

    def job(spark: SparkSession, ready: Ready) -> Made:
        cut = tuple(each.source.name for each in ready.surveys if 0 < each.snap_length < PACKET)
        tasks = on_spark.Job(str(folder / HIDDEN), ready.compiled, window_ns, cut)
        engine = Engine(ready.compiled, window_ns)
        with _output(folder, {name: schema(name) for name in here.tables()}, {**note, **ready.times}) as made:
            walking = partial(analyze_part, tasks, ready.known)
            found = collected(segments(spark, ready).mapInArrow(walking, WRITTEN))
            for file in found.get(CONNECTIONS, ()):
                engine.failures.add(pq.read_table(readable(file.file)))
            on_spark.conclude(spark, engine, made, found, tasks)
        return ready.made(made.rows)

    return _run(job, sources, options, master, advance, settings)


def _run(
    job: Callable[[SparkSession, Ready], Made],
    sources: Sequence[Source],
    options: Range,
    master: str,
    advance: Advance,
    settings: Mapping[str, str],
) -> Made:
    """Start Spark, survey the captures, and run a job over them."""

    def work() -> Made:
        spark = begin()
        with watched(spark, advance):
            return job(spark, ready(spark, sources, options))

    with session.running(master, small=(total_size(sources) or 0) < SMALL, **SETTINGS, **settings) as begin:
        advance("starting Spark", 0, 0)
        return interruptible(work)


@contextmanager
def _output(
    folder: Place, wanted: Mapping[str, pa.Schema], note: Mapping[str, object], form: Form = PARQUET
) -> Iterator[Output]:
    """Yield an output, in which tasks write into a hidden folder; it is complete unless an error ends this."""
    made = Output(str(folder), wanted, *form, note)
    try:
        yield made
        made.finish()
    except BaseException:
        made.abort()
        raise
    finally:
        remove_tree(folder / HIDDEN)


def table(spark: SparkSession, sources: Sequence[Source], name: str) -> DataFrame:
    """Return a table of captures, which are dissected when it is read; their light pass is made at once.

    Raises:
        CaptureError: a file that the user named, or every file, cannot be read.
        SparkError: a task failed repeatedly.
    """
    found = ready(spark, sources, lambda begin_ns: Options())
    names = schema(name).names
    about = [rows.select(names) for table, rows in rows_of_captures(found.surveys, found.known) if table == name]
    rows = spark.range(1, numPartitions=1).mapInArrow(partial(given, about), of_spark(name))
    if name == "captures":
        return rows
    dissecting = partial(rows_of_part, found.known, found.compiled, name)
    return rows.unionAll(segments(spark, found).mapInArrow(dissecting, of_spark(name)))


def ready(spark: SparkSession, sources: Sequence[Source], options: Range) -> Ready:
    """Return what the light pass over captures shows."""
    found = [replace(source, path=str(place(str(source.path)).absolute())) for source in sources]
    compiled = prepared(spark, found)
    each = (total_size(found) or 0) // int(spark.sparkContext.defaultParallelism)
    surveys = surveyed(found, partial(survey_all, spark, compiled), max(min(each, RANGE), LEAST))
    read = chains(surveys)
    begin_ns = min(each.source.begin for chain in read for each in chain)
    return Ready(surveys, read, archive(surveys, read, options(begin_ns)), compiled)


def prepared(spark: SparkSession, sources: Sequence[Source]) -> bool:
    """Return whether kernels run compiled; on one machine, compile them if they are not cached."""
    compiled = kernel.worthwhile(total_size(sources))
    if compiled and str(spark.sparkContext.master).startswith("local"):
        compile_kernels(list(sources))
    return compiled


def parts(spark: SparkSession, sources: Sequence[Source]) -> int:
    """Return the number of parts of the flows."""
    return max(-(-(total_size(sources) or 0) // TASK), int(spark.sparkContext.defaultParallelism))


def survey_all(spark: SparkSession, compiled: bool, lists: list[list[Piece]]) -> list[Survey]:
    """Return the surveys of lists of pieces of captures, each made by one task."""
    tasks = spark.sparkContext.parallelize(lists, len(lists)).flatMap(partial(survey, compiled=compiled))
    return run(tasks.collect)


def segments(spark: SparkSession, ready: Ready) -> DataFrame:
    """Return the blocks of captures, each part of the flows in one partition, in order."""
    count = parts(spark, [each.source for each in ready.surveys])
    cutting = partial(cut_chains, ready.read, count, ready.compiled)
    cuts = spark.range(0, len(ready.read), 1, len(ready.read)).mapInArrow(cutting, BLOCKS)
    return cuts.repartitionById(count, "part").sortWithinPartitions("key", "capture", "number")


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
        *((name, pa.int64() if name in ("key", "number") else pa.int32()) for name in Block._fields[:4]),
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


def rows_of_part(
    known: Archive, compiled: bool, table: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Dissect the flows of a part; yield the rows of a table."""
    names = schema(table).names
    for work in dissect(blocks_of(batches), known, compiled):
        yield from (rows.select(names) for name, rows in work() if name == table)


def given(rows: Sequence[pa.RecordBatch], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield these rows, once there is a batch."""
    for _ in batches:
        yield from rows


def analyze_part(job: on_spark.Job, known: Archive, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Dissect the flows of a part, and walk over their rows; yield the part files that were written (WRITTEN)."""
    engine = Engine(job.compiled, job.window_ns)
    engine.gathered.room = ROOM
    cut = pa.array(job.cut, pa.string())
    with on_spark.Task(job, {**on_spark.partial_schemas(), CONNECTIONS: schema(CONNECTIONS)}) as task:
        for work in dissect(blocks_of(batches), known, job.compiled):
            for table, batch in work():
                rows = pa.Table.from_batches([batch])
                if table == CONNECTIONS:
                    task.add([(CONNECTIONS, rows)])
                stored = engine.prepare(table, rows, cut)
                if stored is not None:
                    task.add([(KEYED, decoded(stored.keyed))] if stored.keyed is not None else [])
                    engine.add(stored._replace(keyed=None))
        engine.connect({"complete": True, "from_ns": known.options.from_ns, "to_ns": known.options.to_ns})
        for events in engine.events():
            for chain in engine.chains:
                task.add(chain.feed(events))
        task.finish(engine.chains)
    yield from task.written()
