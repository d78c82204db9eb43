"""All statistics in this process: of a folder of tables, or straight from captures. No Spark, no Java."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.cli.progress import Advance, quiet
from amqpscope.dissector.places import Place
from amqpscope.dissector.tables.output import Output, Then
from amqpscope.dissector.tables.workers import WorkerPool
from amqpscope.pipelines.across.keys import DELIVERIES
from amqpscope.pipelines.folder import least, read_note, read_parts, reads
from amqpscope.pipelines.folder import weight as measured
from amqpscope.pipelines.model.events import decoded, sources
from amqpscope.pipelines.model.listed import LISTED
from amqpscope.pipelines.model.walk import schema
from amqpscope.pipelines.relations.compute import NAMES, in_parts
from amqpscope.pipelines.run import kernels
from amqpscope.pipelines.run.complete_connections import Chunk, Waves, interleaved
from amqpscope.pipelines.run.engine import Emit, Engine
from amqpscope.pipelines.run.preparing import PACKET, snapped
from amqpscope.pipelines.run.runner import THREADS, Prepared
from amqpscope.pipelines.statistics import HOUR_NS, tables

if TYPE_CHECKING:  # tables are analyzed without the dissector
    from amqpscope.dissector.reading import Reading
    from amqpscope.dissector.tables.rows import Row

FIRST = ("connections", *LISTED.values(), "anomalies")
"""Tables that are read before frames and messages."""
AHEAD = 8
"""Chunks that are read while connections are walked over."""
WAITING = 2
"""Batches of rows that are made while the dissector goes on; each holds all that it was made of."""
GROUP_BYTES = 4 << 20
"""Size of the rows of a table of statistics from which on a row group is written: there are many such tables."""


def then() -> tuple[str, ...]:
    """Return the tables that are read then."""
    return tuple(name for name in sources().values() if name not in FIRST)


def analyze_folder(
    folder: Place,
    output: Place,
    note: Mapping[str, object],
    window_ns: int = HOUR_NS,
    advance: Advance = quiet,
    relations: Sequence[str] = NAMES,
) -> dict[str, int]:
    """Write the statistics of a folder of tables.

    Args:
        folder: what `dissect` wrote.
        output: folder for the statistics.
        note: the note that is written there.
        window_ns: how far before a delivery to look for its publish (ns).
        advance: called with the step, the amount done and the total.
        relations: names of those to write besides.

    Raises:
        ReadError: a table cannot be read.
        OutputError: a table cannot be written.
    """
    with written(output, note, relations) as made:
        walk_folder(folder, partial(emitted, made), window_ns, advance)
    return made.rows


def walk_folder(folder: Place, emit: Emit, window_ns: int = HOUR_NS, advance: Advance = quiet) -> None:
    """Make the statistics of a folder of tables.

    Args:
        folder: what `dissect` wrote.
        emit: called with each table's name and rows, in this thread.
        window_ns: how far before a delivery to look for its publish (ns).
        advance: called with the step, the amount done and the total.

    Raises:
        ReadError: a table cannot be read.
    """
    captures = pa.concat_tables(
        [schema("captures").empty_table(), *map(decoded, read_parts(folder, "captures", schema("captures").names))],
        promote_options="default",
    )
    compiled = kernels.begin(pc.sum(captures["bytes"]).as_py() or 0)
    cut, note = snapped(captures), read_note(folder)
    first_kind = least(folder, "messages", "kind")
    deliveries = first_kind is None or first_kind <= max(DELIVERIES)
    engine = Engine(compiled, window_ns, deliveries=deliveries, emit=emit, note=note)
    engine.captures.append(captures)
    readers = ThreadPoolExecutor(THREADS, "amqpscope-read")

    def read(chunks: Sequence[Chunk]) -> Iterator[int]:
        """Read, and yield how many chunks are read."""
        under_way: deque[Future[Prepared | None]] = deque()
        for number, (table, rows) in enumerate(chunks):
            under_way.append(readers.submit(lambda table, rows: engine.runner.prepare(table, rows(), cut), table, rows))
            if len(under_way) > AHEAD:
                engine.add(under_way.popleft().result())
                yield number + 1 - len(under_way)
        while under_way:
            engine.add(under_way.popleft().result())
            yield len(chunks) - len(under_way)

    def chunks(tables: Sequence[str], columns: Callable[[str], Sequence[str]]) -> list[Chunk]:
        return interleaved([[Chunk(table, read) for read in reads(folder, table, columns(table))] for table in tables])

    for _ in read(chunks(FIRST, engine.runner.columns)):
        pass
    rest = chunks(then(), engine.runner.columns)
    if note["complete"]:
        engine.take(engine.runner.connect(ends=False))
    waves = Waves(lambda: chunks(then(), lambda _: ("connection_id",)), readers)
    for done in read(rest):
        advance("reading", done, len(rest))
        if note["complete"] and engine.runner.is_full:
            engine.runner.end(waves.complete(done))
            engine.step()
    readers.shutdown()
    engine.finish(advance)
    kernels.end(compiled)


def weight(folder: Place) -> int:
    """Return the bytes of memory that the statistics of a folder of tables take, roughly."""
    engine = Engine()
    return sum(measured(folder, table, engine.runner.columns(table))[1] for table in FIRST + then())


def schemas(relations: Sequence[str] = NAMES) -> dict[str, pa.Schema]:
    """Return the schemas of all tables of statistics, and of these relations."""
    return {name: schema(name) for name in (*tables(), *relations)}


def written(
    folder: Place, note: Mapping[str, object], relations: Sequence[str] = NAMES, then: Then | None = None
) -> Output:
    """Return an output for the statistics.

    Args:
        folder: to be written.
        note: the note that is written there.
        relations: names of those to write besides; who reads the folder computes the others.
        then: makes these, when the statistics are written; None: this process.
    """
    return Output(
        str(folder),
        schemas(relations),
        note=note,
        then=then or partial(in_parts, wanted=relations),
        group_bytes=GROUP_BYTES,
    )


def analyze_captures(
    reading: Reading,
    output: Place,
    note: Mapping[str, object],
    window_ns: int = HOUR_NS,
    advance: Advance = quiet,
    dissected: Output | None = None,
    relations: Sequence[str] = NAMES,
) -> dict[str, int]:
    """Write the statistics of captures, which are dissected meanwhile.

    Args:
        reading: the pass over the captures.
        output: folder for the statistics; created with the first rows: a file that is not a capture changes nothing.
        note: the note that is written there.
        window_ns: how far before a delivery to look for its publish (ns).
        advance: called with the step, the amount done and the total.
        dissected: output for the tables of the dissection, or None.
        relations: names of those to write besides.

    Raises:
        CaptureError: a capture cannot be read.
        OutputError: a table cannot be written.
    """
    with ExitStack() as opened:
        open_once = cache(lambda: opened.enter_context(written(output, note, relations)))
        walk_captures(reading, lambda table, rows: emitted(open_once(), table, rows), window_ns, advance, dissected)
        made = open_once()
    return made.rows


def walk_captures(
    reading: Reading,
    emit: Emit,
    window_ns: int = HOUR_NS,
    advance: Advance = quiet,
    dissected: Output | None = None,
) -> None:
    """Make the statistics of captures, which are dissected meanwhile.

    Args:
        reading: the pass over the captures.
        emit: called with each table's name and rows, in this thread.
        window_ns: how far before a delivery to look for its publish (ns).
        advance: called with the step, the amount done and the total.
        dissected: output for the tables of the dissection, or None; the caller completes it.

    Raises:
        CaptureError: a capture cannot be read.
        OutputError: a table cannot be written.
    """
    from amqpscope.dissector.capture.sources import total_size  # noqa: PLC0415 - see above

    options, compiled = reading.options, kernels.begin(total_size(reading.sources))
    note = {"complete": True, "from_ns": options.from_ns, "to_ns": options.to_ns}
    engine = Engine(compiled, window_ns, emit=emit, note=note, under_way=reading.dissector.under_way)
    workers = WorkerPool()
    try:
        making: deque[Future[list[Row]]] = deque()
        preparing: deque[Future[Prepared | None]] = deque()

        def go_on(waiting: int) -> None:
            while len(making) > waiting or (making and making[0].done()):
                rows = workers.result(making.popleft())
                if dissected is not None:
                    dissected.add(partial(list, rows))
                cut = pa.array([seen.name for seen in reading.seen if 0 < seen.info.snap_length < PACKET], pa.string())
                for table, batch in rows:
                    reading.rows += batch.num_rows
                    whole = pa.Table.from_batches([batch])
                    if table == "captures":
                        engine.captures.append(whole)
                    preparing.append(workers.do(partial(engine.runner.prepare, table, whole, cut)))
            while len(preparing) > 4 * waiting or (preparing and preparing[0].done()):
                engine.add(workers.result(preparing.popleft()))

        for step in reading.steps():
            for work in step:
                making.append(workers.do(work))
                go_on(WAITING)
            if engine.runner.is_full:  # the dissector is between two batches: it can say what it knows of connections
                go_on(0)
                engine.step()
        go_on(0)
    except BaseException:
        workers.leave(at_once=True)
        raise
    workers.leave()
    engine.finish(advance)
    kernels.end(compiled)


def emitted(output: Output, table: str, rows: pa.Table) -> None:
    """Write rows in the background."""
    output.add(lambda: [(table, batch) for batch in rows.combine_chunks().to_batches()])
