"""Processes that dissect one sequence of captures together: each reads all of it, and dissects its part of the flows.

To read packets and find their flows takes a small part of the time of a dissection, less than to pass segments from
process to process. This process has the first part. Others write part files of their own, which become those of the
output in the end.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterator, Mapping, MutableSequence
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread
from types import TracebackType
from typing import Any, NamedTuple

from amqpscope.dissector.capture.model import PacketBatch
from amqpscope.dissector.capture.sources import Source
from amqpscope.dissector.dissector import Dissector, Options
from amqpscope.dissector.packets.merging import Decoded
from amqpscope.dissector.parallel import flows
from amqpscope.dissector.parallel.counts import Counts
from amqpscope.dissector.parallel.process import settle
from amqpscope.dissector.places import place, remove_tree
from amqpscope.dissector.reading import Reading
from amqpscope.dissector.tables.output import HIDDEN, Output
from amqpscope.dissector.tables.rows import Row, Work, schemas
from amqpscope.errors import Error


class JobError(Error):
    """A process ended before its work was done; the message is one line."""


class Target(NamedTuple):
    """Where and how processes write."""

    folder: str
    form: str
    compression: str


class Share(Dissector):
    """A dissector of one part of the flows.

    Args:
        number: which part, from 0.
        count: the number of parts.
        options: of the dissection.
        compiled: whether kernels run compiled.
    """

    def __init__(self, number: int, count: int, options: Options, compiled: bool) -> None:
        super().__init__(options, compiled)
        self._number, self._count, self._is_begun = number, count, False

    def decode(self, batch: PacketBatch) -> Decoded:
        """Do as a dissector; only the first one reports what is wrong with secrets in captures."""
        decoded = super().decode(batch)
        if self._number:
            self.tls.problems.clear()
        return decoded

    def take(self, decoded: Decoded) -> Iterator[Work]:
        """Do as a dissector, for the flows of this part."""
        if not self._is_begun:
            self._is_begun = True
            yield list[Row]  # no rows: whoever writes them makes the folder now, in which the other processes write
        self.end_ns = max(self.end_ns, int(decoded.segments.ts_ns.max(initial=0)))
        mine = flows.part(decoded.segments, self._number, self._count, self.compiled)
        if len(mine.ts_ns):
            yield from super().take(decoded._replace(segments=mine))


class Jobs:
    """Processes, which end when the context does.

    Args:
        count: their number, with this one.
        target: where and how they write.
    """

    def __init__(self, count: int, target: Target) -> None:
        self.count = count
        self.target = target
        self._processes: list[tuple[Any, Connection]] = []
        self._context = get_context("spawn")  # this process has threads
        self._rows = self._context.RawArray("q", count)

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process, connection in self._processes:
            connection.close()  # ends a process that still works
            process.join()
        if self._processes:
            remove_tree(place(self.target.folder) / HIDDEN)

    @property
    def rows(self) -> int:
        """The number of rows that the other processes have made."""
        return sum(self._rows)

    @property
    def pids(self) -> list[int]:
        """The numbers of the other processes."""
        return [process.pid for process, _ in self._processes]

    def make(self, options: Options, compiled: bool) -> Dissector:
        """Return the dissector of this process."""
        return Dissector(options, compiled) if self.count == 1 else Share(0, self.count, options, compiled)

    def begin(self, reading: Reading) -> None:
        """Start the other processes; the folder of the output is there."""
        for number in range(1, self.count):
            ours, theirs = self._context.Pipe()
            share = number, self.count, self._rows
            arguments = (theirs, reading.sources, reading.options, reading.compiled, self.target, *share)
            process = self._context.Process(target=work, args=arguments, name=f"amqpscope-{number}", daemon=True)
            process.start()
            theirs.close()
            self._processes.append((process, ours))

    def finish(self, dissector: Dissector, output: Output) -> None:
        """Wait for the other processes; add what they did to the output, and to the counts that warnings need.

        Raises:
            JobError: a process has ended.
        """
        for process, connection in self._processes:
            try:
                found = connection.recv()
            except (EOFError, OSError):
                raise _failure(process) from None
            if isinstance(found, Exception):
                raise found
            parts, counts = found
            for part in parts:
                output.adopt(part)
            counts.add_to(dissector)


def _failure(process: Any) -> JobError:
    process.join()
    reason = f"by signal {-process.exitcode}" if process.exitcode < 0 else f"with status {process.exitcode}"
    return JobError(f"a process of `--jobs` ended {reason}; complete parts are not kept")


def work(
    connection: Connection,
    sources: list[Source],
    options: Options,
    compiled: bool,
    target: Target,
    number: int,
    count: int,
    rows: MutableSequence[int],
) -> None:
    """Dissect a part of the flows, and send what was done or the error; end when the connection's other end closes.

    Args:
        connection: to the first process.
        sources: the captures.
        options: of the dissection.
        compiled: whether kernels run compiled.
        target: where and how to write.
        number: which part, from 0.
        count: the number of parts.
        rows: gets the number of rows so far, at the number of the part.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the first process
    Thread(target=_end_with, args=(connection,), daemon=True).start()
    settle(without_pandas=True)
    output = None
    try:
        folder = str(place(target.folder) / HIDDEN / f"job-{number}")
        output = Output(folder, schemas(options.protocol), target.form, target.compression)
        share = partial(Share, number, count)
        reading = Reading(sources, options, compiled=compiled, make=share, about_captures=False)
        for each in reading.work():
            output.add(each)
            rows[number] = sum(output.rows.values())
        output.finish()
        connection.send((output.parts(), Counts.of(reading.dissector)))
    except Exception as error:
        error.add_note(traceback.format_exc())
        if output is not None:
            output.abort()
        with suppress(OSError):
            connection.send(error)


def _end_with(connection: Connection) -> None:
    """End this process when the connection's other end is closed: nobody wants its work any more."""
    with suppress(EOFError, OSError):
        connection.recv()
    os._exit(1)


def write(reading: Reading, jobs: Jobs, target: Target, note: Mapping[str, object]) -> dict[str, int]:
    """Write the tables of captures; return the number of rows of each table, as `reading` counts them meanwhile.

    The folder is created only after the first rows: a file that is not a capture changes nothing.

    Args:
        reading: the pass over them; its dissector is made by `jobs`.
        jobs: the processes.
        target: where and how to write.
        note: of the folder (`origin.note`).

    Raises:
        CaptureError: a capture cannot be read.
        OutputError: the folder cannot be written.
    """
    output: Output | None = None

    def opened() -> Output:
        made = Output(target.folder, schemas(reading.options.protocol), target.form, target.compression, note)
        jobs.begin(reading)
        return made

    try:
        for rows in reading.work():
            output = output or opened()
            output.add(rows)
            reading.rows = sum(output.rows.values())
        output = output or opened()
        jobs.finish(reading.dissector, output)
        output.finish()
    except BaseException:
        if output is not None:
            output.abort()
        raise
    return output.rows
