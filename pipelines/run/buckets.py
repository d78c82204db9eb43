"""Rows that exceed memory: in files, in buckets, so that one bucket at a time is worked on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from amqpscope.errors import Error, reason
from amqpscope.pipelines.model.events import decoded

COUNT = 16
"""Buckets among which keys are spread."""


class Buckets:
    """Tables in temporary files, which are removed with this object."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="amqpscope-")
        self._writers: dict[tuple[str, int], tuple[list[str], pa.RecordBatchStreamWriter]] = {}
        """Of open files, with the names of their columns."""
        self._files: defaultdict[tuple[str, int], list[Path]] = defaultdict(list)

    def write(self, name: str, rows: pa.Table, bucket: Any) -> None:
        """Add rows to a table.

        Args:
            name: of the table.
            rows: rows to add, in this order; columns with dictionaries come back decoded, those that other rows lack
                are null there.
            bucket: int64, the number of each row's bucket. Files of those from COUNT on are not kept open.

        Raises:
            Error: the files cannot be written, for lack of room or for another reason.
        """
        order = np.argsort(bucket, kind="stable")
        numbers, first = np.unique(bucket[order], return_index=True)
        rows = decoded(rows.take(pa.array(order)))
        for number, start, end in zip(numbers.tolist(), first, [*first[1:], len(rows)], strict=True):
            try:
                self._writer(name, number, rows.schema).write_table(rows.slice(start, end - start))
                if number >= COUNT:
                    self._close((name, number))
            except OSError as error:
                why = f"cannot write: {reason(error)}; set TMPDIR for another folder"
                raise Error(f"{self._folder.name}: {why}") from error

    def _writer(self, name: str, number: int, schema: pa.Schema) -> pa.RecordBatchStreamWriter:
        names, writer = self._writers.get((name, number), (None, None))
        if names != schema.names:
            self._close((name, number))
            files = self._files[name, number]
            files.append(Path(self._folder.name, f"{name}-{number}-{len(files)}.arrow"))
            writer = pa.ipc.new_stream(str(files[-1]), schema)
            self._writers[name, number] = schema.names, writer
        return writer

    def look(self, name: str) -> Iterator[pa.Table]:
        """Yield the rows of a table, in parts, without removing them."""
        for key in [key for key in self._files if key[0] == name]:
            self._close(key)
            yield from map(_read, self._files[key])

    def _close(self, key: tuple[str, int]) -> None:
        if key in self._writers:
            self._writers.pop(key)[1].close()

    def read(self, name: str, number: int) -> pa.Table | None:
        """Return the rows of a table in a bucket, in the order they were added, and remove them; None for nothing."""
        self._close((name, number))
        files = self._files.pop((name, number), [])
        parts = [_read(file) for file in files]
        for file in files:
            file.unlink()
        return pa.concat_tables(parts, promote_options="default") if parts else None


def _read(file: Path) -> pa.Table:
    with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as reader:
        return reader.read_all()


class Pile:
    """Rows of one table in parts; all of them go to buckets when they exceed the room.

    All rows with one key are in one bucket. It does not help when a single key has more rows than fit into memory.

    Args:
        key: column (int64) that groups rows.
        room: bytes of rows in memory.
    """

    def __init__(self, key: str, room: int) -> None:
        self._key, self._room = key, room
        self._parts: list[pa.Table] = []
        self._held = 0
        self._buckets: Buckets | None = None

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        self._parts.append(rows)
        self._held += rows.nbytes
        if self._held > self._room:
            self._spill()

    def _spill(self) -> None:
        self._buckets = self._buckets or Buckets()
        for rows in self._parts:
            self._buckets.write("rows", rows, rows[self._key].to_numpy() % COUNT)
        self._parts, self._held = [], 0

    def groups(self) -> Iterator[list[pa.Table]]:
        """Yield all rows, those of one key in the same list of parts; the pile is then empty."""
        if self._buckets is None:
            parts, self._parts = self._parts, []
            yield parts
            return
        self._spill()
        for number in range(COUNT):
            rows = self._buckets.read("rows", number)
            if rows is not None:
                yield [rows]
        self._buckets = None
