"""Processes that dissect the flows of one sequence of captures, each some of them.

This process reads packets and merges captures; it is a `Dissector` that passes segments on. Each other process has a
`Dissector` for its part of the flows, and writes part files of its own, which become those of the output in the end.
"""

from __future__ import annotations

import gc
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa

from amqpscope.dissector.capture.model import PacketBatch
from amqpscope.dissector.dissector import Dissector, Options
from amqpscope.dissector.packets.merging import Decoded
from amqpscope.dissector.parallel import flows
from amqpscope.dissector.places import place, remove_tree
from amqpscope.dissector.tables.output import HIDDEN, Output, Part
from amqpscope.dissector.tables.rows import Row, Work, schemas
from amqpscope.errors import Error

ROOM = 4 << 20
"""Bytes of segments that go to a process at a time, about."""
COLLECT_AT = 100_000
"""Objects made between two passes of the garbage collector, as in the program."""


class JobError(Error):
    """A process ended before its work was done; the message is one line."""


class Target(NamedTuple):
    """Where and how processes write."""

    folder: str
    form: str
    compression: str


class Done(NamedTuple):
    """What a process did.

    Attributes:
        parts: part files that it wrote.
        gaps: gaps of its connections, bytes in them, connections with gaps.
        sealed: connections that stay encrypted.
        spoken: connections of each protocol, and those whose protocol the user named against the content.
    """

    parts: list[Part]
    gaps: tuple[int, int, int]
    sealed: int
    spoken: tuple[Counter[str], Counter[tuple[str, str]]]


class Jobs:
    """Processes, which end when the context does. They start with the first segments.

    Args:
        count: their number.
        target: where and how they write.
    """

    def __init__(self, count: int, target: Target) -> None:
        self.count = count
        self.target = target
        self.done: list[Done] = []
        """What they did, once all have finished."""
        self._processes: list[tuple[Any, Connection]] = []

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for _, connection in self._processes:
            connection.close()  # ends a process that waits for more
        for process, _ in self._processes:
            process.join()
        if self._processes:
            remove_tree(place(self.target.folder) / HIDDEN)

    @property
    def is_begun(self) -> bool:
        """Whether the processes have started."""
        return bool(self._processes)

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes."""
        return [process.pid for process, _ in self._processes]

    def begin(self, options: Options, compiled: bool) -> None:
        """Start the processes."""
        context = get_context("spawn")  # this process has threads
        for number in range(self.count):
            ours, theirs = context.Pipe()
            arguments = (theirs, options, compiled, self.target, number)
            process = context.Process(target=work, args=arguments, name=f"amqpscope-{number}", daemon=True)
            process.start()
            theirs.close()
            self._processes.append((process, ours))

    def send(self, number: int, *message: Any) -> None:
        """Have a process call one of its methods: its name and arguments.

        Raises:
            JobError: the process has ended.
        """
        try:
            self._processes[number][1].send(message)
        except OSError:
            raise self._failure(number) from None

    def finish(self, end_ns: int) -> None:
        """Have all processes finish, and wait for them.

        Raises:
            JobError: a process has ended.
        """
        for number in range(len(self._processes)):
            self.send(number, "finish", end_ns)
        for number, (_, connection) in enumerate(self._processes):
            try:
                found = connection.recv()
            except (EOFError, OSError):
                raise self._failure(number) from None
            if isinstance(found, Exception):
                raise found
            self.done.append(found)

    def adopted(self, output: Output) -> None:
        """Move the part files that they wrote to the output."""
        for done in self.done:
            for part in done.parts:
                output.adopt(part)

    def _failure(self, number: int) -> Exception:
        """Return why a process has ended."""
        process, connection = self._processes[number]
        with suppress(EOFError, OSError):
            while connection.poll():
                if isinstance(found := connection.recv(), Exception):
                    return found
        process.join()
        reason = f"by signal {-process.exitcode}" if process.exitcode < 0 else f"with status {process.exitcode}"
        return JobError(f"a process of `--jobs` ended {reason}; complete parts are not kept")


class Distributor(Dissector):
    """A dissector that reads packets, and has other processes dissect their segments."""

    def __init__(self, jobs: Jobs, options: Options, compiled: bool) -> None:
        super().__init__(options, compiled)
        self._jobs = jobs
        self._secrets: list[tuple[bytes, int]] = []
        self._waiting: list[list[pa.RecordBatch]] = [[] for _ in range(jobs.count)]
        self._size = 0
        self._named = 0
        """Number of captures that the processes know."""

    def decode(self, batch: PacketBatch) -> Decoded:
        """Return the segments of a batch of packets; note its secrets for all processes."""
        if batch.secrets and self._size:
            self._flush()  # segments before the secrets
        self._secrets += [(secrets, batch.capture) for secrets in batch.secrets]
        return super().decode(batch)

    def take(self, decoded: Decoded) -> Iterator[Work]:
        """Pass segments on."""
        if not self._jobs.is_begun:
            yield list[Row]  # no rows: whoever writes them makes the folder now, in which the processes write
            self._jobs.begin(self.options, self.compiled)
        self.end_ns = max(self.end_ns, int(decoded.segments.ts_ns.max(initial=0)))
        parts = flows.split(decoded, self._jobs.count, self.compiled)
        for waiting, rows in zip(self._waiting, parts, strict=True):
            if rows.num_rows:
                waiting.append(rows)
                self._size += rows.nbytes
        if self._size > self._jobs.count * ROOM:
            self._flush()

    def last_work(self, end_ns: int | None = None) -> Iterator[Work]:
        """Wait for the other processes, and sum up what the warnings need."""
        self.over = True
        if self._jobs.is_begun:
            self._flush()
            self._jobs.finish(self.end_ns if end_ns is None else end_ns)
        for done in self._jobs.done:
            count, size, connections = done.gaps
            self.gaps.count += count
            self.gaps.bytes += size
            self.gaps.connections += connections
            self.tls.sealed += done.sealed
            self.connections.spoken += done.spoken[0]
            self.connections.contradicted += done.spoken[1]
        yield from ()

    def _flush(self) -> None:
        news = self.captures[self._named :], self.points[self._named :], [] if self.tls.lacks else self._secrets
        for number, waiting in enumerate(self._waiting):
            if waiting or any(news):
                self._jobs.send(number, "take", *news, flows.written(waiting))
                waiting.clear()
        self._named, self._secrets, self._size = len(self.captures), [], 0


class Worker:
    """One of the processes: a dissector, and the part files that it writes."""

    def __init__(self, options: Options, compiled: bool, target: Target, number: int) -> None:
        self._dissector = Dissector(options, compiled)
        folder = str(place(target.folder) / HIDDEN / f"job-{number}")
        self._output = Output(folder, schemas(options.protocol), target.form, target.compression)

    def take(self, captures: list[str], points: list[int], secrets: list[tuple[bytes, int]], segments: bytes) -> None:
        """Dissect segments, after adding captures and secrets."""
        dissector = self._dissector
        dissector.captures += captures
        dissector.points += points
        dissector.tcp.place(dissector.points)
        for each, capture in secrets:
            dissector.tls.add(each, capture)
        batches = list(pa.ipc.open_stream(segments))
        if batches:
            self._add(dissector.take(flows.joined(batches)))

    def finish(self, end_ns: int) -> Done:
        """End all connections; return what was done."""
        dissector = self._dissector
        self._add(dissector.last_work(end_ns))
        self._output.finish()
        gaps, spoken = dissector.gaps, (dissector.connections.spoken, dissector.connections.contradicted)
        return Done(self._output.parts(), (gaps.count, gaps.bytes, gaps.connections), dissector.tls.sealed, spoken)

    def abort(self) -> None:
        """Stop writing."""
        self._output.abort()

    def _add(self, works: Iterator[Work]) -> None:
        for work in works:
            self._output.add(work)
        for work in self._dissector.reported():
            self._output.add(work)


def work(connection: Connection, options: Options, compiled: bool, target: Target, number: int) -> None:
    """Do what the other end of a connection asks for, until it asks to finish or closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that reads
    gc.set_threshold(COLLECT_AT)
    sys.modules.setdefault("pandas", None)  # type: ignore[arg-type] # pyarrow would import it for nothing
    pa.set_memory_pool(pa.system_memory_pool())
    worker = None
    try:
        worker = Worker(options, compiled, target, number)
        while True:
            name, *arguments = connection.recv()
            result = getattr(worker, name)(*arguments)
            if result is not None:
                connection.send(result)
                return
    except EOFError:
        pass
    except Exception as error:
        error.add_note(traceback.format_exc())
        with suppress(OSError):
            connection.send(error)
    if worker is not None:
        worker.abort()
