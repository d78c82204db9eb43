"""The engine on Spark: one shuffle by connection for all statistics, and the same runner as in this process.

Tasks cut the rows of all tables into blocks by connection. Others walk over the connections of a part, and each attempt
writes part files of all statistics into a folder of its own. Tasks return only the names of these files, so files of a
killed or repeated task are ignored. This process moves part files into place, and finishes what needs rows of all
connections; on Spark again where these are many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from amqpscope.dissector.places import Place, readable, remove_tree
from amqpscope.dissector.tables.output import HIDDEN, Output, Part
from amqpscope.pipelines.folder import read_note, read_parts
from amqpscope.pipelines.latencies.latency import PARTIAL, Latencies
from amqpscope.pipelines.model.events import decoded
from amqpscope.pipelines.model.members import KeyedWalk
from amqpscope.pipelines.model.walk import Rows, schema
from amqpscope.pipelines.run import kernels, local
from amqpscope.pipelines.run.engine import Engine
from amqpscope.pipelines.run.preparing import snapped
from amqpscope.pipelines.run.runner import CONNECTIONS, NOTE, Runner
from amqpscope.pipelines.spark import relations, row_blocks, tasks
from amqpscope.pipelines.spark.precompile import compile_kernels
from amqpscope.pipelines.spark.progress import Done, Tally, watched
from amqpscope.pipelines.spark.reader import by_tasks
from amqpscope.pipelines.spark.row_blocks import BLOCKS
from amqpscope.pipelines.spark.tasks import WRITTEN, Submission, collected
from amqpscope.pipelines.spark.versions import by_part
from amqpscope.pipelines.statistics import HOUR_NS, METRICS, OverKeys, over_keys, resolved, rows_for, tables

LATENCIES = "latencies"
"""Name of partial results of latencies."""
UNDECIDED = "undecided "
"""Prefix of a table's name: rows of it that other connections decide."""
SMALL = 32 << 20
"""Tables that take fewer bytes of memory are read and walked over in one task."""
TASK = 128 << 20
"""Bytes of memory that the rows of a task take, about."""
FEW = 1 << 21
"""Walks over keys with fewer rows run in this process."""
TASK_ROWS = 1 << 22
"""Rows of a walk over keys that a task walks over, about."""
TURNS = 2
"""Tasks that each core has at least to read with."""
READ_EVERY = 1 << 16
"""Rows of a batch that goes to Python."""
AT_A_TIME = 8
"""Blocks that go to Python at a time."""


class Job(NamedTuple):
    """What tasks get.

    Attributes:
        folder: where each attempt makes a folder of its own.
        compiled: whether kernels run compiled.
        tally: what tasks add to.
        window_ns: how far before a delivery to look for its publish (ns).
        cut: names of captures with cut packets.
        note: of the dissection (`Runner`).
    """

    folder: str
    compiled: bool
    tally: Tally
    window_ns: int = HOUR_NS
    cut: tuple[str, ...] = ()
    note: Mapping[str, Any] = NOTE


def analyze_folder(folder: Place, to: Submission, window_ns: int = HOUR_NS) -> dict[str, int]:
    """Write the statistics of a folder of tables, on Spark.

    Args:
        folder: what `dissect` wrote; tasks see it under the same path.
        to: where this is done.
        window_ns: how far before a delivery to look for its publish (ns).

    Raises:
        ReadError: a table cannot be read.
        OutputError: a table cannot be written.
        SessionError: Spark does not start.
        SparkError: a task failed repeatedly.
    """
    weight = local.weight(folder)
    # Spark does little but move blocks: however large the tables, its compilers would cost more than they save.
    return to.run(partial(_analyze, folder.absolute(), to, window_ns, weight), small=True)


def _analyze(folder: Place, to: Submission, window_ns: int, weight: int, spark: SparkSession) -> dict[str, int]:
    output, count = to.output.absolute(), partitions(spark, weight)
    captures = _whole(folder, "captures")
    compiled = kernels.begin(pc.sum(captures["bytes"]).as_py() or 0)
    if compiled and str(spark.sparkContext.master).startswith("local"):
        compile_kernels(folder)
    engine = Engine(compiled, window_ns)
    engine.captures.append(captures)
    with (
        local.written(output, to.note, then=partial(relations.of_folder, spark)) as made,
        watched(spark, to.advance) as watch,
    ):
        hidden = output / HIDDEN
        hidden.mkdir()
        try:
            names = tuple(snapped(captures).to_pylist())
            job = Job(str(hidden), compiled, watch.tally, window_ns, names, read_note(folder))
            found = collected(walked(spark, folder, weight, count, job), AT_A_TIME)
            conclude(spark, engine, made, found, job)
        finally:
            remove_tree(hidden)
    return made.rows


def _whole(folder: Place, name: str) -> pa.Table:
    """Return all rows of a small table."""
    parts = map(decoded, read_parts(folder, name, schema(name).names))
    return pa.concat_tables([schema(name).empty_table(), *parts], promote_options="default")


def partitions(spark: SparkSession, weight: int) -> int:
    """Return the number of tasks that walk over rows of this many bytes."""
    return 1 if weight < SMALL else max(-(-weight // TASK), int(spark.sparkContext.defaultParallelism))


# ---- walks over connections


def walked(spark: SparkSession, folder: Place, weight: int, count: int, job: Job) -> DataFrame:
    """Return what tasks write (WRITTEN) that walk over the connections of a folder.

    Args:
        spark: the session.
        folder: what `dissect` wrote.
        weight: bytes of memory that its rows take.
        count: of the tasks; a single one reads the tables itself.
        job: what tasks get.
    """
    read: row_blocks.Reader = row_blocks.blocks
    if count == 1:
        read, given = partial(row_blocks.read, row_blocks.units(folder)), spark.range(0, 1, 1, 1)
    else:
        given = blocks(spark, folder, weight, count)
    return given.mapInArrow(partial(walk_connections, job, read), WRITTEN)


def blocks(spark: SparkSession, folder: Place, weight: int, count: int) -> DataFrame:
    """Return the rows of a folder as blocks (BLOCKS), each part of the connections in one partition, in order."""
    units = row_blocks.units(folder)
    room = min(TASK, weight // (TURNS * int(spark.sparkContext.defaultParallelism)))
    size = max(room * len(units) // weight, 1)
    groups = [units[first : first + size] for first in range(0, len(units), size)]
    cuts = spark.range(0, len(groups), 1, len(groups)).mapInArrow(partial(row_blocks.cut, groups, count), BLOCKS)
    return by_part(cuts, count).sortWithinPartitions("number")


def walk_connections(job: Job, read: row_blocks.Reader, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Walk over connections; yield the part files that were written (WRITTEN).

    Args:
        job: what tasks get.
        read: yields rows, all of each connection in them.
        batches: what it reads.
    """
    runner, cut = Runner(job.compiled, rows_for(tables()), job.note, threads=0), pa.array(job.cut, pa.string())
    with Task(job, partial_schemas()) as task:
        for table, rows in read(batches):
            task.add(runner.add(runner.prepare(table, rows, cut)))
            job.tally.add(Done(rows=len(rows)))
        task.add(runner.finish())
        task.finish()
    yield from task.written()


# ---- tasks


class Task(tasks.Task):
    """What one attempt of a task writes: tables of statistics, and partial results."""

    def __init__(self, job: Job, schemas: Mapping[str, pa.Schema]) -> None:
        super().__init__(job.folder, schemas)
        self.job = job
        self.latencies = Latencies()
        self._shared, self._resolved = {over.of for over in over_keys() if over.shares}, resolved()
        self._unfinished: list[pa.ChunkedArray] = []
        self._schemas = schemas

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        super().__exit__(kind, *error)
        if kind is None:
            kernels.end(self.job.compiled)

    def add(self, found: Iterator[Rows] | Sequence[Rows]) -> None:
        """Write rows."""
        for name, rows in found:
            if name in self._shared:
                self._unfinished.append(rows["connection_id"])
            if name in METRICS:
                self.latencies.add(METRICS[name], rows)
            if name in self._resolved and (waits := self._resolved[name].undecided(rows)).any():
                self._add(UNDECIDED + name, rows.filter(pa.array(waits)))
                self._add(name, rows.filter(pa.array(~waits)))
            else:
                self._add(name, decoded(rows))

    def finish(self) -> None:
        """Write what is known of latencies, after the last rows of walks over connections."""
        self.add(self.latencies.by_connection(self.unfinished))
        self.add([(LATENCIES, self.latencies.partial())])

    @property
    def unfinished(self) -> pa.Array:
        """Connections of which walks over keys will yield more rows (int64)."""
        chunks = [chunk for column in self._unfinished for chunk in column.chunks]
        return pa.chunked_array(chunks, pa.int64()).unique()

    def _add(self, name: str, rows: pa.Table) -> None:
        if len(rows):
            local.emitted(self.output, name, rows.cast(self._schemas[name]))


def partial_schemas() -> dict[str, pa.Schema]:
    """Return the schemas of all that tasks write."""
    found = {name: schema(name) for name in tables()}
    found |= dict(each.given for each in over_keys() if each.given)
    found |= {each.of: each.schema for each in over_keys()} | {each.of: each.schema for each in resolved().values()}
    found |= {UNDECIDED + name: schema(name) for name in resolved()}
    return found | {LATENCIES: PARTIAL, CONNECTIONS: schema(CONNECTIONS)}


# ---- walks over keys, and the end


def conclude(spark: SparkSession, engine: Engine, made: Output, found: dict[str, list[Part]], job: Job) -> None:
    """Move part files into place, and finish what needs rows of all connections."""
    for each in over_keys():
        files = found.get(each.of, [])
        if sum(file.rows for file in files) > FEW:
            given = [part.file for part in found.get(each.given[0], ())] if each.given else []
            for name, parts in collected(_walked_over(spark, each, files, given, job), READ_EVERY).items():
                found[name] = found.get(name, []) + parts
            del found[each.of]
    for name in tables():
        for file in found.get(name, ()):
            made.adopt(file)
    for file in found.get(CONNECTIONS, ()):
        engine.failures.add(pq.read_table(readable(file.file)))
    for file in found.get(LATENCIES, ()):
        engine.latencies.merge(pq.read_table(readable(file.file)))
    for name in engine.partial:
        engine.partial[name] = [pq.read_table(readable(file.file)) for file in found.get(name, ())]
    waiting = {
        name: (pq.read_table(readable(file.file)) for file in found.get(UNDECIDED + name, ())) for name in resolved()
    }
    engine.emit = partial(local.emitted, made)
    engine.conclude(waiting)


def _parquet(spark: SparkSession, files: Sequence[Place], declared: pa.Schema) -> DataFrame:
    """Return the rows of files; Spark gets their schema, and runs no job to find it."""
    if any(not isinstance(file, Path) for file in files):
        return by_tasks(spark, files, from_arrow_schema(declared))
    return spark.read.schema(from_arrow_schema(declared)).parquet(*map(str, files))


def _walked_over(
    spark: SparkSession, over: OverKeys, files: Sequence[Part], given: Sequence[Place], job: Job
) -> DataFrame:
    """Walk over keys on Spark; return the part files (WRITTEN)."""
    rows = _parquet(spark, [each.file for each in files], over.schema)
    partitions = -(-sum(each.rows for each in files) // TASK_ROWS)
    ordered = rows.repartition(max(partitions, spark.sparkContext.defaultParallelism), *over.key)
    return ordered.sortWithinPartitions(*over.order).mapInArrow(partial(walk_keys, over.of, given, job), WRITTEN)


def walk_keys(of: str, given: Sequence[Place], job: Job, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Walk over the keys of a task; yield the part files that it wrote (WRITTEN)."""
    over = next(each for each in over_keys() if each.of == of)
    parts = [pq.read_table(readable(file)) for file in given]
    rows = pa.concat_tables([over.given[1].empty_table(), *parts]) if over.given else None
    walk: KeyedWalk = over.walk(job.compiled, job.window_ns, rows)
    with Task(job, {**{name: schema(name) for name in over.tables}, LATENCIES: PARTIAL}) as task:
        for batch in batches:
            task.add(walk.feed(pa.Table.from_batches([batch]).cast(over.schema)))
        task.add(walk.finish())
        task.add([(LATENCIES, task.latencies.partial())])
    yield from task.written()
