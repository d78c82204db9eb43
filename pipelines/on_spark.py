"""The engine on Spark: one shuffle by connection for all statistics, and the same walks as in this process.

Rows of all tables are one union, grouped by connection and sorted: (connection_id, order, rank of the table). Tasks
walk over it, and each attempt writes part files of all tables into a folder of its own. Tasks return only the names of
these files, so files of a killed or repeated task are ignored. This process moves part files into place, and finishes
what needs rows of all connections; on Spark again where these are many.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from amqpscope.dissector.tables.output import HIDDEN, Output, Part
from amqpscope.errors import Error
from amqpscope.pipelines import here, kernels, session, union
from amqpscope.pipelines.engine import Advance, Engine, quiet
from amqpscope.pipelines.folder import read_note, read_parts
from amqpscope.pipelines.gathering import Layout, layouts
from amqpscope.pipelines.precompile import compile_kernels
from amqpscope.pipelines.preparing import snapped, spans, timed
from amqpscope.pipelines.reader import read_table
from amqpscope.pipelines.statistics import (
    HOUR_NS,
    KEYED,
    METRICS,
    OVER_KEYS,
    RESOLVED,
    SHARED,
    Chain,
    KeyedWalk,
    OverKeys,
    chains,
    needs_of,
)  # fmt: skip
from amqpscope.pipelines.walks import events as ev
from amqpscope.pipelines.walks import keys
from amqpscope.pipelines.walks.events import Events, decoded
from amqpscope.pipelines.walks.latency import PARTIAL, Latencies
from amqpscope.pipelines.walks.walk import Rows, schema

T = TypeVar("T")

WRITTEN = "name string, file string, rows long"
"""What tasks return: part files of tables and of partial results."""
LATENCIES = "latencies"
"""Name of partial results of latencies."""
UNDECIDED = "undecided "
"""Prefix of a table's name: rows of it that other connections decide."""
SMALL = 32 << 20
"""Tables that take fewer bytes of memory are walked over in one task, with little planning."""
TASK = 128 << 20
"""Bytes of memory that the rows of a task take, about."""
FEW = 1 << 21
"""Walks over keys with fewer rows run in this process."""
TASK_ROWS = 1 << 22
"""Rows of a walk over keys that a task walks over, about."""
LOOK_EVERY_S = 0.5
"""Seconds between two reports of progress."""
READ_EVERY = 1 << 16
"""Rows of a batch that goes to Python."""
_CAUSE = re.compile(r"^\s*(?:Caused by: )?([\w.]*(?:Error|Exception)): (.+)$", re.MULTILINE)


class SparkError(Error):
    """A job failed on Spark; the message is one line that says why."""


class Job(NamedTuple):
    """What tasks get.

    Attributes:
        folder: where each attempt makes a folder of its own.
        compiled: whether kernels run compiled.
        window_ns: how far before a delivery to look for its publish (ns).
        cut: names of captures with cut packets.
    """

    folder: str
    compiled: bool
    window_ns: int = HOUR_NS
    cut: tuple[str, ...] = ()


def analyze_folder(
    folder: Path,
    output: Path,
    note: Mapping[str, object],
    master: str,
    window_ns: int = HOUR_NS,
    advance: Advance = quiet,
    **settings: str,
) -> dict[str, int]:
    """Write the statistics of a folder of tables, on Spark.

    Args:
        folder: what `dissect` wrote; tasks see it and `output` under the same paths.
        output: folder for the statistics.
        note: the note that is written there.
        master: the URL of Spark's master.
        window_ns: how far before a delivery to look for its publish (ns).
        advance: called with the step, the amount done and the total.
        settings: of the session (`session.session`).

    Raises:
        ReadError: a table cannot be read.
        OutputError: a table cannot be written.
        SessionError: Spark does not start.
        SparkError: a task failed repeatedly.
    """
    folder, output = folder.absolute(), output.absolute()
    weight = here.weight(folder)
    own = {"spark.sql.execution.arrow.maxRecordsPerBatch": str(READ_EVERY), "spark.sql.adaptive.enabled": "false"}
    with session.running(master, small=weight < SMALL, **own, **settings) as begin:
        advance("starting Spark", 0, 0)
        return _interruptible(lambda: _analyze(begin(), folder, output, note, weight, window_ns, advance))


def _interruptible(work: Callable[[], T]) -> T:
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
def _watched(spark: SparkSession, advance: Advance) -> Iterator[None]:
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


def _analyze(
    spark: SparkSession,
    folder: Path,
    output: Path,
    note: Mapping[str, object],
    weight: int,
    window_ns: int,
    advance: Advance,
) -> dict[str, int]:
    captures = _whole(folder, "captures")
    compiled = kernels.begin(pc.sum(captures["bytes"]).as_py() or 0)
    if compiled and str(spark.sparkContext.master).startswith("local"):
        compile_kernels(folder)
    engine = Engine(compiled, window_ns)
    with here.written(output, note) as made, _watched(spark, advance):
        hidden = output / HIDDEN
        hidden.mkdir()
        try:
            job = Job(str(hidden), compiled, window_ns, tuple(snapped(captures).to_pylist()))
            connections = _connections(engine, folder)
            pq.write_table(connections, hidden / "connections.parquet")
            tables = {source: read_table(spark, folder, name) for source, name in enumerate(ev.SOURCES)}
            tables[ev.CONNECTIONS] = _parquet(spark, [hidden / "connections.parquet"], connections.schema)
            rows = ordered(tables, partitions(spark, weight))
            found = _collected(rows.mapInArrow(partial(walk_connections, job), WRITTEN))
            _conclude(spark, engine, made, found, job)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
    return made.rows


def _parquet(spark: SparkSession, files: Sequence[Path], declared: pa.Schema) -> DataFrame:
    """Return the rows of files; Spark gets their schema, and runs no job to find it."""
    return spark.read.schema(from_arrow_schema(declared)).parquet(*map(str, files))


def partitions(spark: SparkSession, weight: int) -> int:
    """Return the number of tasks for rows of this many bytes."""
    return 1 if weight < SMALL else max(-(-weight // TASK), int(spark.sparkContext.defaultParallelism))


def _whole(folder: Path, name: str) -> pa.Table:
    """Return all rows of a small table."""
    parts = map(decoded, read_parts(folder, name, schema(name).names))
    return pa.concat_tables([schema(name).empty_table(), *parts], promote_options="default")


def _connections(engine: Engine, folder: Path) -> pa.Table:
    """Return connections with the further columns that walks need."""
    note, seen = read_note(folder), []
    if not note["complete"]:
        for source, protocol in ev.SPOKEN.items():
            parts = read_parts(folder, ev.SOURCES[source], ["connection_id", "ts_ns"])
            seen.append(spans(parts, protocol))
    rows = engine.connections(_whole(folder, "connections"), _whole(folder, "tcp_windows"), seen, note)
    layout = layouts(needs_of(engine.chains))[ev.CONNECTIONS]
    return rows.select([*layout.base, "is_partial", "windows"])


# ---- walks over connections


def ordered(tables: Mapping[int, DataFrame], partitions: int) -> DataFrame:
    """Return rows of these tables (`events.SOURCES`), each connection in one partition, in the order of its events."""
    return union.ordered(tables, _kept(chains()), partitions)


def _kept(walks: Sequence[Chain]) -> dict[int, Layout]:
    """Return what to store of each table; of messages also what engines need."""
    found = layouts(needs_of(walks))
    messages = found[ev.MESSAGES]
    columns = dict.fromkeys((*messages.base, *keys.COLUMNS, "body_size"))
    return found | {ev.MESSAGES: messages._replace(base=tuple(columns))}


def walk_connections(job: Job, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Walk over the connections of a task; yield the part files that it wrote (WRITTEN)."""
    walks = chains(job.compiled)
    kept = _kept(walks)
    with _Task(job, _schemas()) as task:
        for batch in batches:
            tables = {
                source: rows for source, layout in kept.items() if len(rows := union.rows_of(batch, source, layout))
            }
            if ev.MESSAGES in tables:
                tables[ev.MESSAGES] = timed(tables[ev.MESSAGES], pa.array(job.cut, pa.string()))
                task.add([(KEYED, keys.keyed(tables[ev.MESSAGES], job.compiled))])
            prepared = {source: _prepared(source, rows, kept[source], job) for source, rows in tables.items()}
            events = Events.mixed(prepared, batch["source"].to_numpy().astype(np.int8))
            for chain in walks:
                task.add(chain.feed(events))
        for chain in walks:
            task.add(chain.finish())
        task.add(task.latencies.by_connection(task.unfinished))
        task.add([(LATENCIES, task.latencies.partial())])
    yield from task.written()


def _prepared(source: int, rows: pa.Table, layout: Layout, job: Job) -> pa.Table:
    columns = (*layout.leading, *layout.further)
    rows = ev.prepared(source, rows, columns, job.compiled)
    return rows.select([name for name in columns if name in rows.column_names])


# ---- tasks


class _Task:
    """What one attempt of a task writes, in a folder of its own."""

    def __init__(self, job: Job, schemas: Mapping[str, pa.Schema]) -> None:
        context = TaskContext.get()
        assert context is not None
        self.job = job
        self.latencies = Latencies()
        self._unfinished: list[pa.ChunkedArray] = []
        self.folder = Path(job.folder, f"{context.partitionId()}-{context.taskAttemptId()}")
        self._schemas = schemas
        self._output = Output(str(self.folder), schemas)

    def __enter__(self) -> _Task:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._output.abort()
            return
        self._output.finish()
        kernels.end(self.job.compiled)

    def add(self, found: Iterator[Rows] | Sequence[Rows]) -> None:
        """Write rows."""
        for name, rows in found:
            if name in SHARED:
                self._unfinished.append(rows["connection_id"])
            if name in METRICS:
                self.latencies.add(METRICS[name], rows)
            if name in RESOLVED and (waits := RESOLVED[name].undecided(rows)).any():
                self._add(UNDECIDED + name, rows.filter(pa.array(waits)))
                self._add(name, rows.filter(pa.array(~waits)))
            else:
                self._add(name, rows)

    @property
    def unfinished(self) -> pa.Array:
        """Connections of which walks over keys will yield more rows (int64)."""
        chunks = [chunk for column in self._unfinished for chunk in column.chunks]
        return pa.chunked_array(chunks, pa.int64()).unique()

    def _add(self, name: str, rows: pa.Table) -> None:
        if len(rows):
            here.emitted(self._output, name, rows.cast(self._schemas[name]))

    def written(self) -> Iterator[pa.RecordBatch]:
        """Yield what was written."""
        parts = self._output.parts()
        yield pa.RecordBatch.from_pydict(
            {
                "name": pa.array([part.table for part in parts], pa.string()),
                "file": pa.array([str(part.file) for part in parts], pa.string()),
                "rows": pa.array([part.rows for part in parts], pa.int64()),
            }
        )


def _schemas() -> dict[str, pa.Schema]:
    """Return the schemas of all that tasks write."""
    found = {name: schema(name) for name in here.tables()}
    found |= {each.of: each.schema for each in OVER_KEYS} | {each.of: each.schema for each in RESOLVED.values()}
    found |= {UNDECIDED + name: schema(name) for name in RESOLVED}
    return found | {LATENCIES: PARTIAL}


def _collected(jobs: DataFrame) -> dict[str, list[Part]]:
    """Run tasks; return what the successful ones wrote, by name.

    Raises:
        SparkError: a task failed repeatedly.
    """
    try:
        found = jobs.collect()
    except (PySparkException, Py4JError, OSError) as error:
        raise SparkError(f"Spark: {_reason(error)}") from error
    made: dict[str, list[Part]] = {}
    for name, file, rows in found:
        made.setdefault(name, []).append(Part(name, Path(file), rows))
    return made


def _reason(error: Exception) -> str:
    """Return the most useful line: the last error raised in Python, or the first that the JVM threw."""
    found = _CAUSE.findall(str(error))
    ours = [told for name, told in found if name.startswith("amqpscope.")]
    python = [f"{name}: {told}" for name, told in found if "." not in name]
    told = ours[-1:] or python[-1:] or [told for _, told in found[-1:]] or str(error).strip().splitlines()[:1]
    return " ".join((told or [type(error).__name__])[0].split())


# ---- walks over keys, and the end


def _conclude(spark: SparkSession, engine: Engine, made: Output, found: dict[str, list[Part]], job: Job) -> None:
    """Move part files into place, and finish what needs rows of all connections."""
    for each in OVER_KEYS:
        files = found.get(each.of, [])
        if sum(file.rows for file in files) > FEW:
            for name, parts in _collected(_walked_over(spark, each, files, job)).items():
                found[name] = found.get(name, []) + parts
            del found[each.of]
    for name in here.tables():
        for file in found.get(name, ()):
            made.adopt(file)
    for file in found.get(LATENCIES, ()):
        engine.latencies.merge(pq.read_table(file.file))
    for name in engine.partial:
        engine.partial[name] = [pq.read_table(file.file) for file in found.get(name, ())]
    waiting = {name: (pq.read_table(file.file) for file in found.get(UNDECIDED + name, ())) for name in RESOLVED}
    engine.conclude(partial(here.emitted, made), waiting)


def _walked_over(spark: SparkSession, over: OverKeys, files: Sequence[Part], job: Job) -> DataFrame:
    """Walk over keys on Spark; return the part files (WRITTEN)."""
    rows = _parquet(spark, [each.file for each in files], over.schema)
    partitions = -(-sum(each.rows for each in files) // TASK_ROWS)
    ordered = rows.repartition(max(partitions, spark.sparkContext.defaultParallelism), *over.key)
    return ordered.sortWithinPartitions(*over.order).mapInArrow(partial(walk_keys, over.of, job), WRITTEN)


def walk_keys(of: str, job: Job, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Walk over the keys of a task; yield the part files that it wrote (WRITTEN)."""
    over = next(each for each in OVER_KEYS if each.of == of)
    walk: KeyedWalk = over.walk(job.compiled, job.window_ns)
    with _Task(job, {**{name: schema(name) for name in over.tables}, LATENCIES: PARTIAL}) as task:
        for batch in batches:
            task.add(walk.feed(pa.Table.from_batches([batch]).cast(over.schema)))
        task.add(walk.finish())
        task.add([(LATENCIES, task.latencies.partial())])
    yield from task.written()
