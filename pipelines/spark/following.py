"""A directory that is followed, on Spark: each batch is one job, whose tasks dissect a part of the flows each.

This process looks for files, reads and merges them, and cuts their segments by flow (`following.parts`). A task puts
the state of its part back, dissects, and for statistics walks over the rows at once; it writes part files and the new
state into a folder of its attempt. This process concludes what needs all connections, and commits the files of
successful tasks as one process does (`following.journal`). So a task, an executor or all of it may be killed at any
point.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from amqpscope.dissector.cli import arguments as common
from amqpscope.dissector.cli import following as followed
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.following.dissection import LATEST, Dissection, IdleDissector
from amqpscope.dissector.following.journal import Journal
from amqpscope.dissector.following.loop import End
from amqpscope.dissector.following.parts import Cutter, Files, Sequel
from amqpscope.dissector.places import place
from amqpscope.dissector.tables.output import CODEC, HIDDEN, Output
from amqpscope.dissector.tables.rows import Work, schemas
from amqpscope.pipelines.model.store import pack, unpack
from amqpscope.pipelines.model.walk import schema
from amqpscope.pipelines.run import following, kernels, local
from amqpscope.pipelines.run.following import MOST_ROWS
from amqpscope.pipelines.run.incremental import Continuing
from amqpscope.pipelines.spark import session
from amqpscope.pipelines.spark.archive import numbers
from amqpscope.pipelines.spark.executors import PARALLELISM
from amqpscope.pipelines.spark.tasks import WRITTEN, Task, collected, interruptible
from amqpscope.pipelines.statistics import tables

PARTS = "parts"
"""Name of the state that says how many parts there are: as many as in the first batch."""
GROWTH = 4
"""Parts for each core of the first batch: so many times more cores are made use of when they come."""
DISSECTION, STATISTICS = "dissection-{}", "statistics-{}"
"""Names of the state of a part."""
REST, VERSION = "rest-", 3
"""What tasks leave for this process; the number of the part follows."""


def dissect(arguments: argparse.Namespace) -> int:
    """Follow a directory: `amqpscope dissect --follow --master`. Return the exit status."""
    options = common.options(arguments)
    form = arguments.format, arguments.compression
    return _follow(arguments, options, schemas(options.protocol), Spread, "", *form)


def analyze(arguments: argparse.Namespace) -> int:
    """Follow a directory: `amqpscope analyze --follow --master`. Return the exit status."""
    make, extra = partial(SpreadAnalysis, arguments.transit_window), f"{arguments.transit_window}"
    return _follow(arguments, common.options(arguments), following.schemas(), make, extra=extra)


def _follow(
    arguments: argparse.Namespace,
    options: Options,
    schemas: Mapping[str, pa.Schema],
    make: Callable[[SparkSession, Journal, Output, Dissection], Spread],
    extra: str = "",
    form: str = "parquet",
    compression: str = CODEC,
) -> int:
    keylog = options.keylog and str(place(options.keylog).absolute())  # tasks run elsewhere
    options = replace(options, keylog=keylog)
    own = session.parallelism(arguments.parts)
    with session.running(arguments.master, small=True, answer_s=arguments.master_timeout, **own) as begin:
        made = partial(make, interruptible(begin))
        return followed.run(arguments, options, schemas, made, form, compression, f"{extra} on Spark", Cutter)


class Walks(NamedTuple):
    """What tasks need to walk over rows.

    Attributes:
        window_ns: how far before a delivery to look for its publish (ns).
        compiled: whether kernels of walks run compiled.
        cut: names of captures with cut packets.
        most: see `following.Analysis`.
    """

    window_ns: int
    compiled: bool
    cut: list[str]
    most: int


class Job(NamedTuple):
    """What tasks get.

    Attributes:
        folder: where the files of the parts lie, and each attempt makes a folder of its own.
        before: the folder with the state that the batch before left.
        sequel: what dissectors of parts need to know.
        form: format and compression of the tables.
        walks: None if there are no statistics.
    """

    folder: str
    before: str
    sequel: Sequel
    form: tuple[str, str]
    walks: Walks | None = None

    def state(self, name: str, number: int) -> bytes | None:
        """Return the state of a part; None in the first batch."""
        path = Path(self.before, name.format(number))
        return path.read_bytes() if path.exists() else None

    def dissector(self, number: int) -> IdleDissector:
        """Return the dissector of a part."""
        return self.sequel.dissector(self.state(DISSECTION, number))

    def leave(self, number: int, dissector: IdleDissector, task: Task) -> None:
        """Have a task write the state of a dissector, unless nothing follows."""
        if self.sequel.end_ns is None:
            task.leave(DISSECTION.format(number), dissector.take_out())


class Spread:
    """One batch of tables on Spark: what takes the rows of captures, and has the others made (`loop.Batch`).

    Args:
        spark: the session.
        journal: has the state that the batch before left.
        output: for the tables.
        dissection: of a `Cutter`.
    """

    def __init__(self, spark: SparkSession, journal: Journal, output: Output, dissection: Dissection) -> None:
        self.spark, self.output, self.dissection = spark, output, dissection
        self._form = journal.form, journal.compression
        tables = Path(str(output.folder)).absolute()
        self._before, self._new = str(journal.last.absolute()), tables.parent
        cores = int(spark.sparkContext.defaultParallelism)  # those of executors that have registered by now
        chosen = spark.sparkContext.getConf().get(PARALLELISM)
        self.parts = int(journal.state(PARTS) or chosen or GROWTH * cores)
        self._tasks = min(self.parts, cores)
        self._folder = tables / HIDDEN
        self._folder.mkdir()
        assert isinstance(dissection.dissector, Cutter)
        self._cutter = dissection.dissector
        self._files = Files([_file(str(self._folder), each) for each in range(self.parts)], self._cutter.compiled)

    def add(self, work: Work) -> None:
        """See `loop.Batch`."""
        self.output.add(work)

    def rest(self) -> None:
        """See `loop.Batch`."""
        for each in self._cutter.taken:
            self._files.write(each)
        self._cutter.taken.clear()

    def finish(self, is_last: bool) -> End:
        """See `loop.Batch`."""
        self.made(dissect_part, self.job(is_last))
        return End(self.state)

    @property
    def state(self) -> dict[str, bytes]:
        """The state besides that of parts."""
        return {PARTS: str(self.parts).encode()}

    def job(self, is_last: bool, **more: Any) -> Job:
        """Return what tasks get."""
        cutter = self._cutter
        end_ns = cutter.end_ns if is_last else None
        sequel = Sequel(cutter.captures, cutter.points, cutter.options, cutter.compiled, end_ns)
        return Job(str(self._folder), self._before, sequel, self._form, **more)

    def made(self, task: Callable[[Job, Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], job: Job) -> list[bytes]:
        """Run tasks, and take the tables and states that they wrote; return what else they left (REST).

        Raises:
            SparkError: a task failed repeatedly.
        """
        self.rest()
        self._files.close()
        rest: list[bytes] = []
        tasks = numbers(self.spark, self.parts, self._tasks).mapInArrow(partial(task, job), WRITTEN)
        for name, parts in collected(tasks, 1).items():
            for part in parts:
                if name in self.output.rows:
                    self.output.adopt(part)
                elif name.startswith(REST):
                    rest.append(Path(str(part.file)).read_bytes())
                else:
                    Path(str(part.file)).rename(self._new / name)
        shutil.rmtree(self._folder)
        return rest


class SpreadAnalysis(Spread):
    """One batch of statistics on Spark (`loop.Batch`).

    Args:
        window_ns: how far before a delivery to look for its publish (ns).
        spark: as for `Spread`, as all arguments but these.
        journal: has the state that the batch before left.
        output: for the tables of statistics.
        dissection: of a `Cutter`.
        most: see `following.Analysis`.
    """

    def __init__(
        self,
        window_ns: int,
        spark: SparkSession,
        journal: Journal,
        output: Output,
        dissection: Dissection,
        most: int = MOST_ROWS,
    ) -> None:
        super().__init__(spark, journal, output, dissection)
        self._engine = Continuing(kernels.begin(dissection.size), window_ns, partial(local.emitted, output))
        state = following.read_state(journal)
        self._cut: list[str] = state.get("cut", [])
        if state:
            self._engine.merge(state)
        self._most = most

    def add(self, work: Work) -> None:
        """See `loop.Batch`; only rows about captures are written."""
        for table, batch in work():
            if table == following.CAPTURES:
                self._engine.emit(table, pa.Table.from_batches([batch]))

    def finish(self, is_last: bool) -> End:
        """See `loop.Batch`."""
        engine, cut = self._engine, following.snapped(self.dissection, self._cut)
        ended, held_ns = [pa.array([], pa.int64())], LATEST
        walks = Walks(engine.window_ns, engine.compiled, cut, self._most)
        for data in self.made(analyze_part, self.job(is_last, walks=walks)):
            found = unpack(REST, VERSION, data)
            engine.merge(found)
            ended += found["ended"]["connection_id"].chunks
            held_ns = min(held_ns, found["held_ns"])
        engine.conclude_batch(pa.concat_arrays(ended), held_ns, is_last)
        end = following.written(engine, engine.summaries(is_last), cut, {})
        return end._replace(state={**end.state, **self.state})


def dissect_part(job: Job, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Dissect parts, by their numbers; yield what was written (WRITTEN)."""
    with Task(job.folder, schemas(job.sequel.options.protocol), *job.form) as task:
        for number in _numbers(batches):
            _dissect(job, number, task)
    yield from task.written()


def _dissect(job: Job, number: int, task: Task) -> None:
    dissector = job.dissector(number)
    for work in job.sequel.work(dissector, _file(job.folder, number)):
        if work is not None:
            task.output.add(work)
    job.leave(number, dissector, task)


def analyze_part(job: Job, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Dissect parts, by their numbers, and walk over their rows; yield what was written (WRITTEN)."""
    assert job.walks is not None
    with Task(job.folder, {name: schema(name) for name in tables()}) as task:
        for number in _numbers(batches):
            _analyze(job, job.walks, number, task)
    kernels.end(job.walks.compiled)
    yield from task.written()


def _analyze(job: Job, walks: Walks, number: int, task: Task) -> None:
    dissector, state = job.dissector(number), job.state(STATISTICS, number)
    before = unpack(STATISTICS, VERSION, state) if state else {}
    emit = partial(local.emitted, task.output)
    engine = following.engine_of(walks.compiled, walks.window_ns, emit, job.sequel.options, dissector, before)
    ended = []
    for work in job.sequel.work(dissector, _file(job.folder, number)):
        if work is not None:
            following.add(engine, work, walks.cut)
        elif engine.runner.waiting > walks.most:
            ended.append(engine.walk_batch(is_last=False))
    ended.append(engine.walk_batch(job.sequel.end_ns is not None))
    rest = {
        **engine.rest(engine.going_on),
        "ended": pa.table({"connection_id": pa.concat_arrays(ended)}),
        "held_ns": min(dissector.held_ns, engine.runner.held_ns),
    }
    task.leave(f"{REST}{number}", pack(REST, VERSION, rest))
    task.leave(STATISTICS.format(number), pack(STATISTICS, VERSION, engine.runner.take_out()))
    job.leave(number, dissector, task)


def _numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """Yield the numbers of the parts of a task."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _file(folder: str, number: int) -> Path:
    """Return the file with what a part takes."""
    return Path(folder, f"part-{number}.arrow")
