"""Tables that grow by batches, each of which appears at once, together with the state after it, or not at all.

    DIR/_state/00000012/       the last batch that was committed
        manifest.json          number of rows, of parts by table, and what the state belongs to
        NAME                   state, as bytes
        tables/TABLE/          parts of the batch, until they move to DIR/TABLE/
    DIR/_state/00000013.new/   a batch that is being written

The commit of a batch is the renaming of its folder. Parts move after it; if the process is killed before they all
have, they move when it begins again. So folders of tables hold parts of committed batches, and no others.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from amqpscope.dissector.tables.formats import FORMAT, KEY
from amqpscope.dissector.tables.output import CODEC, NOTE, STATE, InUseError, Output, OutputError, claim, empty, replace
from amqpscope.errors import reason

MANIFEST = "manifest.json"
TABLES = "tables"
NEW = ".new"
RENEWED = 10**9
"""Number of the first part that the next batch replaces."""


class Journal:
    """The tables of one folder, batch by batch. A context; one process at a time has a folder.

    Args:
        folder: created if it does not exist; refused if it holds anything but an earlier output. One that was written
            at once is replaced, one that was written by batches goes on.
        schemas: the schemas of all tables; a table without rows has a part, too.
        form: `parquet` or `arrow` (IPC files).
        compression: compression of Parquet.
        note: content of the folder's note, besides whether the output is complete.
        made_by: what wrote the batches, which must be the same when it goes on.
        replace: whether tables that something else wrote are replaced.

    Attributes:
        rows: number of rows, by table.

    Raises:
        OutputError: the folder holds other files, is in use, was written by something else, or cannot be written.
    """

    def __init__(
        self,
        folder: str,
        schemas: Mapping[str, pa.Schema],
        form: str = "parquet",
        compression: str = CODEC,
        note: Mapping[str, object] | None = None,
        made_by: str = "",
        replace: bool = False,
    ) -> None:
        self.folder, self.schemas, self.form, self.compression = Path(folder), schemas, form, compression
        self.note, self.made_by, self.replace = dict(note or {}), made_by, replace
        self.number = 0
        self.rows = dict.fromkeys(schemas, 0)
        self._final = dict.fromkeys(schemas, 0)
        """Those of them that no batch replaces."""
        self._parts = dict.fromkeys(schemas, 0)
        """Number of the next part of each table."""

    def __enter__(self) -> Self:
        with ExitStack() as held, _writing(self.folder):
            parts = claim(self.folder, self.schemas)
            handle = os.open(self.folder, os.O_RDONLY)
            held.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InUseError(f"{self.folder}: another process writes there") from None
            there = self._state.iterdir() if self._state.is_dir() else ()
            self.number = max((int(path.name) for path in there if path.name.isdecimal()), default=0)
            if not (self.number and self._goes_on()):
                self.number = 0
                self._write_note(complete=False)
                empty(self.folder, parts, self.schemas)
            held.callback(lambda: shutil.rmtree(self._next, ignore_errors=True))
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @property
    def _state(self) -> Path:
        return self.folder / STATE

    @property
    def last(self) -> Path:
        """The folder of the last batch."""
        return self._state / f"{self.number:08d}"

    @property
    def _next(self) -> Path:
        return self._state / f"{self.number + 1:08d}{NEW}"

    def _goes_on(self) -> bool:
        """Complete the last batch that was committed, and remove what was not; or return that it is to be replaced."""
        found = json.loads((self.last / MANIFEST).read_text(encoding="utf-8"))
        made = found["made_by"], found["form"], sorted(found["rows"])
        if made != (self.made_by, self.form, sorted(self.schemas)):
            if self.replace:
                return False
            raise OutputError(f"{self.folder}: was begun with other options; name another folder, or give --replace")
        self._publish(found)
        return True

    def state(self, name: str) -> bytes | None:
        """Return state of the last batch; None before the first, and where it has none of that name."""
        path = self.last / name
        return path.read_bytes() if path.exists() else None

    def begin(self) -> Output:
        """Return an output for the rows of the next batch.

        Raises:
            OutputError: it cannot be created.
        """
        shutil.rmtree(self._next, ignore_errors=True)
        return Output(str(self._next / TABLES), self.schemas, self.form, self.compression)

    def commit(
        self, output: Output, state: Mapping[str, bytes], renewed: Mapping[str, pa.Table], complete: bool = False
    ) -> None:
        """Commit a batch: its rows and its state take effect together.

        Args:
            output: what `begin` returned.
            state: by name; it replaces that of the last batch.
            renewed: rows by table that replace those that an earlier batch gave here.
            complete: whether this is all that there is to write.

        Raises:
            OutputError: the batch cannot be written; then it has no effect.
        """
        output.finish()
        with _writing(self.folder):
            new, parts = self._next, {}
            for table, count in output.rows.items():
                first = self._parts[table]
                parts[table] = _number_parts(new / TABLES / table, first, is_needed=count > 0 or first == 0)
            ends = {table: self._renew(table, rows) for table, rows in renewed.items()}
            rows = {name: count + self._final[name] for name, count in output.rows.items()}
            manifest = {
                "made_by": self.made_by, "form": self.form, "complete": complete, "rows": rows, "parts": parts,
                "renewed": {table: [len(renewed[table]), end] for table, end in ends.items()},
            }  # fmt: skip
            (new / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            for name, data in state.items():
                (new / name).write_bytes(data)
            for path in new.rglob("*"):
                _sync(path)
            _sync(new)
            self.number += 1
            new.rename(self.last)
            _sync(self._state)
            self._publish(manifest)

    def _renew(self, table: str, rows: pa.Table) -> int:
        """Write rows to parts after those that stay; return the number after the last."""
        folder = self._next / f"{table}{NEW}"
        output = Output(str(folder), {table: self.schemas[table]}, self.form, self.compression)
        output.add(lambda: [(table, batch) for batch in rows.to_batches()])
        output.finish()
        end = _number_parts(folder / table, RENEWED)
        for part in (folder / table).iterdir():
            part.rename(self._next / TABLES / table / part.name)
        shutil.rmtree(folder)
        return end

    def _publish(self, manifest: Mapping[str, Any]) -> None:
        """Move the parts of the last batch to the tables, and remove what it replaces."""
        self._final, self._parts = manifest["rows"], manifest["parts"]
        renewed = manifest["renewed"]
        self.rows = {name: count + renewed.get(name, (0,))[0] for name, count in self._final.items()}
        for part in sorted((self.last / TABLES).glob("*/part-*")):
            part.replace(self.folder / part.parent.name / part.name)
        shutil.rmtree(self.last / TABLES, ignore_errors=True)
        for table, (_, end) in renewed.items():
            for part in (self.folder / table).glob("part-*"):
                if _number(part) >= end:
                    part.unlink()
        self._write_note(complete=manifest["complete"])
        for path in self._state.iterdir():
            if path.is_dir() and path != self.last:
                shutil.rmtree(path)

    def _write_note(self, *, complete: bool) -> None:
        note = {"complete": complete, KEY: FORMAT, **self.note, "rows": self.rows}
        replace(self.folder / NOTE, json.dumps(note, indent=1))


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Name the folder in errors of writing."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{folder}: cannot write: {reason(error)}") from error


def _number(part: Path) -> int:
    return int(part.stem.removeprefix("part-"))


def _number_parts(folder: Path, first: int, is_needed: bool = True) -> int:
    """Number the parts in a folder on from a number, and return the next one. Those that are not needed go."""
    parts = sorted(folder.iterdir())
    for number, part in reversed(list(enumerate(parts, first))):
        if is_needed:
            part.rename(folder / f"part-{number:05d}{part.suffix}")
        else:
            part.unlink()
    return first + len(parts) * is_needed


def _sync(path: Path) -> None:
    """Have the system write a file or folder, so that a commit survives a loss of power."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
