"""Record batches to part files: a folder per table, complete parts only.

A part is written under another name and renamed when it is complete. Making rows and writing them goes on in
threads beside the dissection, for kernels and pyarrow run without Python's lock.
"""

import hashlib
import json
import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Condition, Lock, Semaphore, Thread
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from amqpscope.errors import Error

if TYPE_CHECKING:  # readers of tables need the names here, not what makes rows
    from amqpscope.dissector.tables.rows import Row, Work

T = TypeVar("T")

NOTE = "_amqpscope.json"
"""Marks a folder as ours; says whether it is complete."""
HIDDEN = ".amqpscope-tasks"
"""Folder of parts that others write before they are adopted; what a killed run left of it is removed."""
FORMATS = ("parquet", "arrow")
CODEC = "zstd"
"""Of Parquet, unless another is asked for: tables take 30 % less room than with snappy, for a tenth more time."""
GROUP_ROWS = 1 << 17
"""Rows of a row group at most."""
GROUP_OCTETS = 32 << 20
WRITTEN_ROWS = 1 << 14
"""Rows of a column that are encoded at a time; with more than pyarrow's 1,024 it takes 3 % less time."""
GROUPS_TO_TRIM = 32
"""After so many, memory that lies unused goes back: rows are made by one thread and freed by another, and what lay
between them grew by 70 MB with each GB of capture. Seldom, for what is taken again is cleared again."""
PART_ROWS = 1 << 22
"""Rows of a part file at most: what is lost when a run is killed."""
PART_NAME = re.compile(r"part-\d+\.\w+|\.part-\d+\.\w+\.writing")
"""Files that are ours, complete ones and those that a killed run left."""
WORKERS = max(1, min(2, (os.cpu_count() or 1) - 1))
"""Threads that make rows and write them, besides the one that dissects."""
WAITING_JOBS = 4
"""Jobs that may wait for these; where there are more, the thread that dissects does some of them."""
WAITING_WORK = 8
"""Batches of rows that may wait to be placed behind one that is being made."""
WAITING_GROUPS = 3
"""Row groups that may wait to be written, those being written among them."""


WITH_STATISTICS = (
    "connection_id", "frame_no", "capture", "packet", "ts_ns", "ts", "channel", "method", "command", "kind",
    "publish_seq", "publish_seq_unsure", "delivery_tag", "code",
)  # fmt: skip
"""Columns by which readers leave out row groups; statistics of all others cost a tenth of the writing."""

RISING = frozenset(
    (
        "frame_no",
        "first_frame_no",
        "packet",
        "first_packet",
        "ts_ns",
        "first_ts_ns",
        "ts",
        "publish_seq",
        "delivery_tag",
        "offset",
        "chunk_id",
    )
)
"""Numbers that mostly grow: written as differences they take half the room, and less time to compress."""
SIZES = frozenset(("size", "body_size", "record_size"))
"""Numbers that differ little: as differences they take half the room and two thirds of the time, too."""


class OutputError(Error):
    """The output cannot be written; one line."""


class WorkerPool:
    """Some threads that do jobs, long ones first. Who would wait for them does a job that waits, short ones first.

    So no thread waits while there is something to do, there are no more threads than processors, and the one that
    brings the jobs is seldom kept from bringing more.
    """

    def __init__(self) -> None:
        self._short: deque[Callable[[], None]] = deque()
        self._long: deque[Callable[[], None]] = deque()
        self._changed = Condition()
        self._is_over = False
        self._threads = [Thread(target=self._serve, name="amqpscope-write", daemon=True) for _ in range(WORKERS)]
        for thread in self._threads:
            thread.start()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not (jobs := self._long or self._short):
                    if self._is_over:
                        return
                    self._changed.wait()
                job = jobs.popleft()
            job()

    def do(self, job: Callable[[], T], long: bool = False) -> Future[T]:
        """Have a job done: it may be done already."""
        future: Future[T] = Future()
        with self._changed:
            (self._long if long else self._short).append(partial(_settle, future, job))
            self._changed.notify()
        while len(self._short) > WAITING_JOBS and self.help():
            pass
        return future

    def help(self) -> bool:
        """Do one of the jobs that wait; False when none does."""
        with self._changed:
            jobs = self._short or self._long
            job = jobs.popleft() if jobs else None
        if job is None:
            return False
        job()
        return True

    def result(self, future: Future[T]) -> T:
        """What came of a job."""
        while not future.done() and self.help():
            pass
        return future.result()

    def leave(self, at_once: bool = False) -> None:
        """End the threads, when all jobs are done, or without those that were not begun."""
        with self._changed:
            if at_once:
                self._short.clear()
                self._long.clear()
        while self.help():
            pass
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()


def _settle(future: Future[T], job: Callable[[], T]) -> None:
    try:
        future.set_result(job())
    except Exception as error:
        future.set_exception(error)


class Output:
    """The tables of one folder, written as they come.

    Args:
        folder: created where it is not there. One that holds anything but an earlier output is refused.
        schemas: of all tables; one without rows still gets a part.
        form: `parquet` or `arrow` (IPC files).
        compression: of Parquet.
        note: what to write into the note, besides whether the output is complete.

    Raises:
        OutputError: the folder holds other files, or cannot be made.
    """

    def __init__(
        self,
        folder: str,
        schemas: Mapping[str, pa.Schema],
        form: str = "parquet",
        compression: str = CODEC,
        note: Mapping[str, object] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.note = dict(note or {})
        self.rows = dict.fromkeys(schemas, 0)
        # Killed anywhere in between, the next run knows the folder for ours, and nobody takes it for complete.
        parts = _claim(self.folder, schemas)
        self._write_note(complete=False)
        _empty(self.folder, parts, schemas)
        self._workers = WorkerPool()
        self._work: deque[Future[list[Row]]] = deque()
        self._room = Semaphore(WAITING_GROUPS)
        self._error: Exception | None = None
        self._tables = {name: _Table(self.folder / name, schema, form, compression) for name, schema in schemas.items()}

    def add(self, work: "Work") -> None:
        """Have these rows made and written in the background; those of a table stay in order.

        Raises:
            OutputError: writing failed, now or before.
        """
        self._work.append(self._workers.do(work))
        while self._work and (len(self._work) > WAITING_WORK or self._work[0].done()):
            self._place(self._workers.result(self._work.popleft()))

    def _place(self, rows: "list[Row]") -> None:
        for name, batch in rows:
            self.rows[name] += batch.num_rows
            table = self._tables[name]
            table.waiting.append(batch)
            table.rows += batch.num_rows
            # `nbytes` takes ten times as long; columns of nulls share memory, which counts in no batch
            table.octets += sum(c.get_total_buffer_size() for c in batch.columns if c.null_count < len(c))
            if table.rows >= GROUP_ROWS or table.octets >= GROUP_OCTETS:
                self._submit(table)

    def _submit(self, table: "_Table") -> None:
        """Have the rows that wait written. A table has one thread at a time, which goes on while there are any."""
        self._check()
        while not self._room.acquire(blocking=False):
            if not self._workers.help():
                self._room.acquire()
                break
        if table.put():
            self._workers.do(partial(self._write, table), long=True)

    def _write(self, table: "_Table") -> None:
        while (group := table.next()) is not None:
            try:
                if self._error is None:
                    table.write(group)
            except Exception as error:
                self._error = error
            self._room.release()

    def _check(self) -> None:
        error = self._error
        if isinstance(error, OSError | pa.ArrowException):
            raise OutputError(f"{self.folder}: cannot write: {_reason(error)}; complete parts are kept") from error
        if error is not None:
            raise error

    def adopt(self, name: str, part: Path, rows: int) -> None:
        """Make a file that somebody else wrote a part of a table. It is renamed.

        Raises:
            OutputError: it cannot be.
        """
        try:
            self._tables[name].adopt(part)
        except OSError as error:
            raise OutputError(f"{self.folder}: cannot write: {_reason(error)}; complete parts are kept") from error
        self.rows[name] += rows

    def finish(self) -> None:
        """Complete all parts.

        Raises:
            OutputError: writing failed.
        """
        while self._work:
            self._place(self._workers.result(self._work.popleft()))
        for table in self._tables.values():
            if table.waiting or not table.parts:
                self._submit(table)
        self._workers.leave()
        self._check()
        try:
            for table in self._tables.values():
                table.complete()
            self._write_note(complete=True)
        except (OSError, pa.ArrowException) as error:
            raise OutputError(f"{self.folder}: cannot write: {_reason(error)}; complete parts are kept") from error

    def abort(self) -> None:
        """Stop; parts that are not complete go away, complete ones stay."""
        self._workers.leave(at_once=True)
        for table in self._tables.values():
            table.discard()

    def _write_note(self, *, complete: bool) -> None:
        text = json.dumps({"complete": complete, **self.note, "rows": self.rows}, indent=1)
        try:
            _replace(self.folder / NOTE, text)
        except OSError as error:
            raise OutputError(f"{self.folder}: cannot write: {_reason(error)}") from error


class _Table:
    """The parts of one table."""

    def __init__(self, folder: Path, schema: pa.Schema, form: str, compression: str) -> None:
        self.folder, self.schema, self.form, self.compression = folder, schema, form, compression
        self.waiting: list[pa.RecordBatch] = []
        self.rows = self.octets = 0
        self.parts = self.written = self.groups = 0
        self._writer: pq.ParquetWriter | pa.ipc.RecordBatchFileWriter | None = None
        self._temporary = Path()
        self._groups: deque[pa.Table] = deque()
        self._lock = Lock()
        self._is_written = False

    def put(self) -> bool:
        """Make the rows that wait a group to be written; says whether a thread is needed that does it."""
        group = pa.Table.from_batches(self.waiting, self.schema)
        self.waiting = []
        self.rows = self.octets = 0
        with self._lock:
            self._groups.append(group)
            is_needed, self._is_written = not self._is_written, True
        return is_needed

    def next(self) -> pa.Table | None:
        """The next group to write; None when there is none, and the thread is not needed any more."""
        with self._lock:
            if self._groups:
                return self._groups.popleft()
            self._is_written = False
            return None

    def write(self, group: pa.Table) -> None:
        """Write one row group behind the one before it, and complete the part when it is large enough."""
        if self._writer is None:
            self._temporary = self.folder / f".part-{self.parts:05d}.{self.form}.writing"
            if self.form == "parquet":
                texts = [f.name for f in self.schema if pa.types.is_string(f.type)]
                self._writer = pq.ParquetWriter(
                    self._temporary,
                    self.schema,
                    compression=self.compression,
                    use_dictionary=texts,
                    write_statistics=[name for name in WITH_STATISTICS if name in self.schema.names],
                    column_encoding=dict.fromkeys((RISING | SIZES) & set(self.schema.names), "DELTA_BINARY_PACKED"),
                    write_batch_size=WRITTEN_ROWS,
                )
            else:
                self._writer = pa.ipc.new_file(str(self._temporary), self.schema)
        if group.num_rows:
            self._writer.write_table(group)
            self.groups += 1
            if self.groups % GROUPS_TO_TRIM == 0:
                pa.default_memory_pool().release_unused()
        self.written += group.num_rows
        if self.written >= PART_ROWS:
            self.complete()

    def complete(self) -> None:
        """Close the part at hand and give it its name."""
        if self._writer is None:
            return
        try:
            self._writer.close()
        finally:
            self._forget()
        self.adopt(self._temporary)
        self.written = 0

    def adopt(self, part: Path) -> None:
        """Give a complete part its name."""
        with self._lock:
            part.rename(self.folder / f"part-{self.parts:05d}.{self.form}")
            self.parts += 1

    def discard(self) -> None:
        """Remove the part at hand."""
        self._forget()
        if self._temporary.name:
            self._temporary.unlink(missing_ok=True)

    def _forget(self) -> None:
        """Let go of the writer. One that is still open would close itself later, and complain of a full disk again."""
        if isinstance(self._writer, pq.ParquetWriter):
            self._writer.is_open = False
        self._writer = None


def digest(folder: Path) -> str | None:
    """Of what the note of a folder says, to know the same tables again; None where there is no note."""
    note = folder / NOTE
    return hashlib.sha256(note.read_bytes()).hexdigest()[:16] if note.is_file() else None


def _claim(folder: Path, schemas: Mapping[str, pa.Schema]) -> list[Path]:
    """Make the folder, or see that it is ours; the parts of an earlier output in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = {entry.name for entry in folder.iterdir()}
        notes = {NOTE, _temporary(folder / NOTE).name}
        strange = there - notes - ({HIDDEN} if there & notes else set()) - set(schemas)
        parts: list[Path] = []
        for name in sorted(there & set(schemas)):
            parts += (folder / name).iterdir()
        # On a full disk even the note has no room; empty folders of tables are nobody else's.
        if not there & notes and (strange or parts):
            raise OutputError(
                f"{folder}: holds files that are not of an earlier run ({sorted(there)[0]}); name another folder"
            )
        if strange:
            raise OutputError(f"{folder}: holds other files ({sorted(strange)[0]}); name another folder")
        foreign = sorted(str(part.relative_to(folder)) for part in parts if not PART_NAME.fullmatch(part.name))
        if foreign:
            raise OutputError(f"{folder}: holds other files ({foreign[0]}); name another folder")
    except OSError as error:
        raise OutputError(f"{folder}: cannot write: {_reason(error)}") from error
    return parts


def _empty(folder: Path, parts: list[Path], schemas: Mapping[str, pa.Schema]) -> None:
    """Remove an earlier output, and make the folders of the tables."""
    try:
        for part in parts:
            part.unlink()
        if (folder / HIDDEN).exists():
            shutil.rmtree(folder / HIDDEN)
        for name in schemas:
            (folder / name).mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot write: {_reason(error)}") from error


def _replace(path: Path, text: str) -> None:
    temporary = _temporary(path)
    temporary.write_text(text)
    temporary.replace(path)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.writing")


def _reason(error: Exception) -> str:
    number = getattr(error, "errno", None)
    return (os.strerror(number) if number else " ".join(str(error).split())).lower()
