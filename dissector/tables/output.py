"""Write record batches to part files: a folder per table, complete parts only.

A part is written under a temporary name and renamed when it is complete. Threads make rows and write them beside the
dissection, because kernels and pyarrow run without Python's lock.
"""

import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Lock, Semaphore
from typing import TYPE_CHECKING, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from amqpscope.dissector import places
from amqpscope.dissector.places import Place, arrow, draft, place, writable
from amqpscope.dissector.tables.descriptions import described
from amqpscope.dissector.tables.formats import FORMAT, KEY
from amqpscope.dissector.tables.workers import WorkerPool
from amqpscope.errors import Error, reason

if TYPE_CHECKING:  # readers of tables import names from here, and do not make rows
    from amqpscope.dissector.tables.rows import Row, Work

NOTE = "_amqpscope.json"
"""File that marks a folder as our output and records whether it is complete."""
HIDDEN = ".amqpscope-tasks"
"""Folder of parts that other processes write before they are adopted; remains of a killed run are removed."""
STATE = "_state"
"""Folder of what a dissection that follows a directory remembers; it goes with the tables that it belongs to."""
FORMATS = ("parquet", "arrow")
CODEC = "zstd"
"""Default compression of Parquet: tables are 30 % smaller than with snappy, for a tenth more time."""
GROUP_ROWS = 1 << 17
"""Most rows of a row group."""
GROUP_BYTES = 32 << 20
"""Size of the rows in memory from which on a row group is written."""
WRITTEN_ROWS = 1 << 14
"""Rows of a column encoded at a time; more than pyarrow's 1,024 save 3 % of the time."""
GROUPS_TO_TRIM = 32
"""Row groups after which unused memory returns to the system: one thread allocates rows and another frees them, and
unused memory grew by 70 MB per GB of capture. Seldom, because the system clears what is allocated again."""
PART_ROWS = 1 << 22
"""Most rows of a part file: as many are lost when a run is killed."""
PART_NAME = re.compile(r"part-\d+\.\w+|\.part-\d+\.\w+\.writing")
"""Names of our files: complete parts, and those that a killed run left."""
WAITING_WORK = 8
"""Batches of rows that may wait for an earlier one that is still being made."""
WAITING_GROUPS = 3
"""Row groups that may wait to be written, including those being written."""


WITH_STATISTICS = (
    "connection_id", "frame_no", "capture", "packet", "ts_ns", "ts", "channel", "method", "command", "kind",
    "publish_seq", "publish_seq_unsure", "delivery_tag", "code",
)  # fmt: skip
"""Columns by which readers skip row groups; statistics of all others would cost a tenth of the writing time."""
NULLS = "amqpscope.null_columns"
"""Entry of a Parquet file's metadata: JSON, the columns without a value in it, so that readers need not decode them."""

RISING = frozenset(
    ("frame_no", "packet", "first_packet", "ts_ns", "ts", "publish_seq", "delivery_tag", "offset", "chunk_id")
)
RISING_ENDS = ("_ts_ns", "_frame_no")
"""Columns that mostly grow, by name and by end of name: written as differences they take half the space, and less time
to compress."""
SIZES = frozenset(("size", "body_size", "record_size"))
"""Columns that vary little: as differences they take half the space and two thirds of the time."""
REPEATED = frozenset(("bucket", "low_ns", "high_ns", "count"))
"""Numbers with few distinct values: as dictionaries they take a third of the space and half the time."""


Then = Callable[[Place], Iterable[tuple[str, pa.Table]]]
"""Makes tables of those that lie in a folder."""


class OutputError(Error):
    """The output cannot be written; the message is one line."""


class InUseError(OutputError):
    """Another process writes there."""


class Part(NamedTuple):
    """A part file of a table."""

    table: str
    file: Place
    rows: int


class Output:
    """The tables of one folder, written as their rows come.

    Args:
        folder: created if it does not exist; refused if it holds anything but an earlier output.
        schemas: the schemas of all tables, or of some, with some of their columns: others are left out. A table without
            rows has a part, too.
        form: `parquet` or `arrow` (IPC files).
        compression: compression of Parquet.
        note: content of the note, besides whether the output is complete.
        then: yields rows of further tables of `schemas`, by name, when those of all others are written; called with
            the folder, in the thread that finishes.
        group_bytes: size of the rows of a table in memory from which on a row group is written.

    Raises:
        OutputError: the folder holds other files, or cannot be created.
    """

    def __init__(
        self,
        folder: str,
        schemas: Mapping[str, pa.Schema],
        form: str = "parquet",
        compression: str = CODEC,
        note: Mapping[str, object] | None = None,
        then: Then | None = None,
        group_bytes: int = GROUP_BYTES,
    ) -> None:
        self.folder = place(folder)
        self._then = then
        self._group_bytes = group_bytes
        self.note = dict(note or {})
        self.rows = dict.fromkeys(schemas, 0)
        # If a run is killed in between, the next one recognises the folder, and nobody takes it for complete.
        parts = claim(self.folder, schemas)
        self._write_note(complete=False)
        empty(self.folder, parts, schemas)
        self._workers = WorkerPool()
        self._work: deque[Future[list[Row]]] = deque()
        self._room = Semaphore(WAITING_GROUPS)
        self._error: Exception | None = None
        self._tables = {name: _Table(self.folder / name, schema, form, compression) for name, schema in schemas.items()}

    def add(self, work: "Work") -> None:
        """Make and write these rows in the background; rows of a table stay in order.

        Raises:
            OutputError: writing failed, now or earlier.
        """
        self._work.append(self._workers.do(work))
        while self._work and (len(self._work) > WAITING_WORK or self._work[0].done()):
            self._place(self._workers.result(self._work.popleft()))

    def _place(self, rows: "list[Row]") -> None:
        for name, whole in rows:
            table = self._tables.get(name)
            if table is None:
                continue
            batch = whole if whole.num_columns == len(table.schema) else whole.select(table.schema.names)
            self.rows[name] += batch.num_rows
            table.waiting.append(batch)
            table.rows += batch.num_rows
            # `nbytes` takes ten times as long; columns of nulls share memory, which counts for no batch
            table.size += sum(c.get_total_buffer_size() for c in batch.columns if c.null_count < len(c))
            if table.rows >= GROUP_ROWS or table.size >= self._group_bytes:
                self._submit(table)

    def _submit(self, table: "_Table") -> None:
        """Write the waiting rows. One thread at a time writes a table, and goes on while there are rows."""
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
            raise self._failed(error) from error
        if error is not None:
            raise error

    def adopt(self, part: Part) -> None:
        """Adopt a file that another process wrote, by renaming it.

        Raises:
            OutputError: it cannot be renamed.
        """
        try:
            self._tables[part.table].adopt(part.file, part.rows)
        except OSError as error:
            raise self._failed(error) from error
        self.rows[part.table] += part.rows

    def parts(self) -> list[Part]:
        """Return the complete parts that have rows."""
        return [part for table in self._tables.values() for part in table.made if part.rows]

    def finish(self) -> None:
        """Complete all parts.

        Raises:
            OutputError: writing failed.
        """
        while self._work:
            self._place(self._workers.result(self._work.popleft()))
        for table in self._tables.values():
            if table.waiting:
                self._submit(table)
        self._workers.leave()
        self._check()
        try:
            for table in self._tables.values():
                table.complete()
            for name, rows in self._then(self.folder) if self._then else ():
                self._tables[name].write(rows)
                self.rows[name] += len(rows)
            for table in self._tables.values():
                if not table.made:
                    table.write(table.schema.empty_table())
                    table.complete()
            self._write_note(complete=True)
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error

    def _failed(self, error: BaseException) -> OutputError:
        """Return the error as people read it: the folder that they named, and what of it stays."""
        folder, hidden, _ = str(self.folder).partition(HIDDEN)
        kept = "complete parts are kept" if self.parts() and not hidden else "nothing of this run is kept"
        return OutputError(f"{folder.rstrip('/') if hidden else folder}: cannot write: {reason(error)}; {kept}")

    def abort(self) -> None:
        """Stop: remove incomplete parts, keep complete ones."""
        self._workers.leave(at_once=True)
        for table in self._tables.values():
            table.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Complete the tables, or stop after an error."""
        if kind is not None:
            self.abort()
            return
        try:
            self.finish()
        except BaseException:
            self.abort()
            raise

    def _write_note(self, *, complete: bool) -> None:
        text = json.dumps({"complete": complete, KEY: FORMAT, **self.note, "rows": self.rows}, indent=1)
        try:
            replace(self.folder / NOTE, text)
        except OSError as error:
            raise OutputError(f"{self.folder}: cannot write: {reason(error)}") from error


class _Table:
    """The parts of one table."""

    def __init__(self, folder: Place, schema: pa.Schema, form: str, compression: str) -> None:
        self.folder, self.schema, self.form, self.compression = folder, schema, form, compression
        self.waiting: list[pa.RecordBatch] = []
        self.rows = self.size = 0
        self.written = self.groups = 0
        self.made: list[Part] = []
        self._writer: pq.ParquetWriter | pa.ipc.RecordBatchFileWriter | None = None
        self._temporary: Place = Path()
        self._sink: pa.NativeFile | None = None
        self._nulls: set[str] = set()
        self._groups: deque[pa.Table] = deque()
        self._lock = Lock()
        self._is_written = False

    def put(self) -> bool:
        """Turn the waiting rows into a group to be written; return whether a thread must start writing."""
        group = pa.Table.from_batches(self.waiting, self.schema)
        self.waiting = []
        self.rows = self.size = 0
        with self._lock:
            self._groups.append(group)
            is_needed, self._is_written = not self._is_written, True
        return is_needed

    def next(self) -> pa.Table | None:
        """Return the next group to write; None when there is none, and the thread may end."""
        with self._lock:
            if self._groups:
                return self._groups.popleft()
            self._is_written = False
            return None

    def write(self, group: pa.Table) -> None:
        """Write one row group after the one before it, and complete the part when it is large enough."""
        if self._writer is None:
            self._nulls = set(self.schema.names)
            schema = described(self.folder.name, self.schema)
            self._temporary = draft(self.folder / f"part-{len(self.made):05d}.{self.form}")
            if self.form == "parquet":
                encoded = [f.name for f in self.schema if pa.types.is_string(f.type) or f.name in REPEATED]
                numbers = [f.name for f in self.schema if pa.types.is_integer(f.type) or pa.types.is_timestamp(f.type)]
                rising = [name for name in numbers if name in RISING | SIZES or name.endswith(RISING_ENDS)]
                where, system = arrow(self._temporary)
                self._writer = pq.ParquetWriter(
                    where,
                    schema,
                    filesystem=system,
                    compression=self.compression,
                    use_dictionary=encoded,
                    write_statistics=[name for name in WITH_STATISTICS if name in self.schema.names],
                    column_encoding=dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
                    write_batch_size=WRITTEN_ROWS,
                )
            else:
                self._sink = writable(self._temporary)
                self._writer = pa.ipc.new_file(self._sink, schema)
        if group.num_rows:
            self._writer.write_table(group)
            self._nulls = {name for name in self._nulls if group[name].null_count == len(group)}
            self.groups += 1
            if self.groups % GROUPS_TO_TRIM == 0:
                pa.default_memory_pool().release_unused()
        self.written += group.num_rows
        if self.written >= PART_ROWS:
            self.complete()

    def complete(self) -> None:
        """Close the current part and give it its name."""
        if self._writer is None:
            return
        try:
            if isinstance(self._writer, pq.ParquetWriter):
                self._writer.add_key_value_metadata({NULLS: json.dumps(sorted(self._nulls))})
            self._writer.close()
            if self._sink is not None:
                self._sink.close()
        finally:
            self._forget()
        self.adopt(self._temporary, self.written)
        self._temporary = Path()
        self.written = 0

    def adopt(self, file: Place, rows: int) -> None:
        """Give a complete part its name."""
        with self._lock:
            name = self.folder / f"part-{len(self.made):05d}.{self.form}"
            places.rename(file, name)
            self.made.append(Part(self.folder.name, name, rows))

    def discard(self) -> None:
        """Remove the current part."""
        self._forget()
        if self._temporary.name:
            self._temporary.unlink(missing_ok=True)

    def _forget(self) -> None:
        """Drop the writer. An open one would close itself later, and report a full disk again."""
        if isinstance(self._writer, pq.ParquetWriter):
            self._writer.is_open = False
        self._writer = self._sink = None


def digest(folder: Place) -> str | None:
    """Return a digest of a folder's note, by which the same tables are recognised; None without a note."""
    note = folder / NOTE
    return hashlib.sha256(note.read_bytes()).hexdigest()[:16] if note.is_file() else None


def claim(folder: Place, schemas: Mapping[str, pa.Schema]) -> list[Place]:
    """Create the folder, or check that it is our output; return the parts of an earlier output in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = {entry.name for entry in folder.iterdir()}
        notes = {NOTE, draft(folder / NOTE).name}
        strange = there - notes - ({HIDDEN, STATE} if there & notes else set()) - set(schemas)
        parts: list[Place] = []
        for name in sorted(there & set(schemas)):
            parts += (folder / name).iterdir()
        # On a full disk the note may be missing, too; empty folders of tables are ours.
        if not there & notes and (strange or parts):
            raise OutputError(
                f"{folder}: holds files that are not from an earlier run ({sorted(there)[0]}); name another folder"
            )
        if strange:
            raise OutputError(f"{folder}: holds other files ({sorted(strange)[0]}); name another folder")
        foreign = sorted(f"{part.parent.name}/{part.name}" for part in parts if not PART_NAME.fullmatch(part.name))
        if foreign:
            raise OutputError(f"{folder}: holds other files ({foreign[0]}); name another folder")
    except FileExistsError as error:
        raise OutputError(f"{folder} is a file, not a folder") from error
    except OSError as error:
        raise OutputError(f"{folder}: cannot write: {reason(error)}") from error
    return parts


def empty(folder: Place, parts: list[Place], schemas: Mapping[str, pa.Schema]) -> None:
    """Remove an earlier output, and create the folders of the tables."""
    try:
        for part in parts:
            part.unlink()
        for name in (HIDDEN, STATE):
            if (folder / name).exists():
                places.remove_tree(folder / name)
        for name in schemas:
            (folder / name).mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot write: {reason(error)}") from error


def replace(path: Place, text: str) -> None:
    """Write a file at once: readers see what it was, or what it is."""
    temporary = draft(path)
    temporary.write_text(text)
    places.rename(temporary, path)
