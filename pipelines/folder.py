"""Folders of part files, as `dissect` and `analyze` write them. No Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from amqpscope import spec
from amqpscope.dissector.places import Place, mapped, matching, place, readable
from amqpscope.dissector.tables import formats
from amqpscope.dissector.tables.origin import MADE_FROM
from amqpscope.dissector.tables.output import NOTE, NULLS, digest
from amqpscope.errors import Error, MissingError, reason

GROUPS = 2
"""Row groups that are read at a time."""


class ReadError(Error):
    """A folder or file cannot be read; the message is one line that says what and where."""


class MissingTablesError(ReadError, MissingError):
    """A file or folder to read is not there."""


def check_paths(paths: Sequence[str]) -> None:
    """Check that there are captures under these paths, as far as names tell.

    Raises:
        MissingTablesError: nothing is there; the message is one line.
    """
    for path in paths:
        if not place(path).exists() and not matching(path):
            raise MissingTablesError(f"{path}: no such file or folder")


def dissected(folder: Place) -> Place:
    """Return the folder if it holds tables of `dissect`.

    Raises:
        ReadError: it does not hold them.
    """
    if not folder.is_dir():
        if not folder.exists():
            raise MissingTablesError(f"{folder}: no such folder")
        raise ReadError(f"{folder}: not a folder")
    wanted = [name for name, table in spec.tables().items() if table.written_by == "dissect"]
    missing = [name for name in wanted if not (folder / name).is_dir()]
    missing = [name for name in missing if not formats.lacks(_note(folder), name)]
    if missing:
        raise ReadError(f"{folder}: no table {missing[0]} in it; give a folder that amqpscope dissect wrote")
    return folder


def read_note(folder: Place) -> dict[str, Any]:
    """Return what `dissect` noted of its output: at least complete, from_ns and to_ns.

    A folder without a note was written by another program, and counts as complete.

    Raises:
        FormatError: a later release wrote the folder.
    """
    return {"complete": True, "from_ns": None, "to_ns": None} | _note(folder)


def _note(folder: Place) -> dict[str, Any]:
    """Return the note as it is; empty where there is none.

    Raises:
        FormatError: a later release wrote the folder.
    """
    try:
        found = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    note = found if isinstance(found, dict) else {}
    formats.check(folder, note)
    return note


def note_of_statistics(folder: Place) -> dict[str, Any]:
    """Return the note of statistics that are made of a folder of tables."""
    note = read_note(folder)
    return {
        "tables": str(folder.absolute()), "tables_complete": note["complete"], "made_of": digest(folder),
        MADE_FROM: note.get(MADE_FROM, []),
    }  # fmt: skip


def parts(folder: Place, table: str) -> list[Place]:
    """Return the part files of a table, in order."""
    return sorted(path for path in (folder / table).glob("[!._]*") if path.suffix in (".parquet", ".arrow"))


def weight(folder: Place, table: str, columns: Sequence[str]) -> tuple[int, int]:
    """Return the number of rows of a table, and an estimate of the bytes of memory that these columns take."""
    fields = pa.schema([field for field in _declared(table) if field.name in columns])
    width = sum(4 if pa.types.is_string(f.type) else f.type.bit_width / 8 for f in fields if f.type != pa.binary())
    rows, texts = 0, 0
    for path in parts(folder, table):
        if path.suffix == ".arrow":
            with _opened(path) as file:
                rows += sum(batch.num_rows for batch in batches_of(file))
            continue
        found = _metadata(path)
        rows += found.num_rows
        for group in range(found.num_row_groups):
            of = found.row_group(group)
            for at in range(found.num_columns):
                column = of.column(at)
                if column.path_in_schema in fields.names and column.physical_type == "BYTE_ARRAY":
                    texts += column.total_uncompressed_size
    return rows, int(rows * width) + texts


Read = Callable[[], pa.Table]
"""Reads some rows; any thread may call it."""


def read_parts(folder: Place, table: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of a table, some row groups at a time; columns that it lacks are left out.

    So are columns that a file notes to have no value. Texts of Parquet files are dictionaries.

    Raises:
        ReadError: a part cannot be read.
    """
    return (read() for read in reads(folder, table, columns))


def reads(folder: Place, table: str, columns: Sequence[str]) -> Iterator[Read]:
    """Yield functions that return the rows of a table, some row groups each, as `read_parts` yields them.

    Raises:
        ReadError: a part cannot be read; so do the functions.
        FormatError: another release wrote the folder.
    """
    suffices(folder, table, columns)
    for path in parts(folder, table):
        yield from reads_of(path, table, columns)


def reads_of(path: Place, table: str, columns: Sequence[str]) -> Iterator[Read]:
    """Yield functions that return the rows of a part file, some row groups each, see `reads`.

    Raises:
        ReadError: it cannot be read; so do the functions.
    """
    declared = _declared(table)
    with _named(path):
        found = _arrow(path, columns) if path.suffix == ".arrow" else _parquet(path, columns)
        for read in found:
            yield partial(_checked, path, read, declared)


def suffices(folder: Place, table: str, columns: Sequence[str]) -> None:
    """Check that a folder of an earlier format has columns of a table.

    Raises:
        FormatError: it lacks one, or a later release wrote it.
        ReadError: it cannot be read.
    """
    note, there = _note(folder), parts(folder, table)
    if formats.is_earlier(note) and not formats.lacks(note, table):
        found = _columns(there[0]) if there else []
        formats.check_columns(folder, note, table, found, columns)


def _columns(path: Place) -> list[str]:
    """Return the columns of a part."""
    if path.suffix != ".arrow":
        return list(_metadata(path).schema.names)
    with _opened(path) as file:
        return [name for batch in batches_of(file) for name in batch.schema.names]


def _checked(path: Place, read: Read, declared: pa.Schema) -> pa.Table:
    with _named(path):
        return _fitting(path, read(), declared)


@contextmanager
def _named(path: Place) -> Iterator[None]:
    """Name the file in errors of reading it."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise ReadError(f"{path}: cannot read: {reason(error)}") from error


def _fitting(path: Place, rows: pa.Table, declared: pa.Schema) -> pa.Table:
    """Return the rows with their columns cast to the declared types.

    Raises:
        ReadError: a column cannot be cast.
    """
    for at, field in enumerate(rows.schema):
        wanted = declared.field(field.name).type
        is_text = pa.types.is_dictionary(field.type) and field.type.value_type == wanted
        if field.type != wanted and not is_text:
            try:
                rows = rows.set_column(at, field.name, rows.column(at).cast(wanted))
            except pa.ArrowException as error:
                given = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
                raise ReadError(f"{path}: column {field.name} has type {given}, not {wanted}") from error
    return rows


def _parquet(path: Place, columns: Sequence[str]) -> Iterator[Read]:
    with pq.ParquetFile(readable(path)) as file:
        fields, groups, metadata = file.schema_arrow, range(file.num_row_groups), file.metadata
    nulls = _nulls(metadata)
    there = [name for name in columns if name in fields.names and name not in nulls]
    texts = [name for name in there if pa.types.is_string(fields.field(name).type)]

    def read(some: list[int]) -> pa.Table:
        # A file is for one thread.
        with pq.ParquetFile(readable(path), metadata=metadata, read_dictionary=texts, pre_buffer=False) as file:
            return file.read_row_groups(some, there, use_threads=False)

    return (partial(read, list(groups[first : first + GROUPS])) for first in groups[::GROUPS])


def _nulls(metadata: pq.FileMetaData) -> set[str]:
    """Return the columns without a value in the file that `dissect` noted; not the one that all rows are read with."""
    try:
        found = json.loads((metadata.metadata or {}).get(NULLS.encode(), b"[]"))
        return {name for name in found if name != "connection_id"}
    except (ValueError, TypeError):
        return set()


def least(folder: Place, table: str, column: str) -> str | None:
    """Return a lower bound of the texts of a column, by the statistics of row groups; None where there is none.

    Raises:
        ReadError: a part cannot be read.
    """
    found = []
    for path in parts(folder, table):
        metadata = _metadata(path) if path.suffix == ".parquet" else None
        if metadata is None or column not in metadata.schema.names:
            return None
        at = metadata.schema.names.index(column)
        for group in range(metadata.num_row_groups):
            values = metadata.row_group(group).column(at).statistics
            if values is None or not values.has_min_max:
                return None
            found.append(values.min)
    return min(found, default=None)


def _arrow(path: Place, columns: Sequence[str]) -> Iterator[Read]:
    with _opened(path) as file:
        for batch in batches_of(file):
            rows = pa.Table.from_batches([batch])
            yield partial(rows.select, [name for name in columns if name in rows.column_names])


def _opened(path: Place) -> pa.NativeFile:
    return mapped(path)


def batches_of(file: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an Arrow file or stream."""
    magic = file.read(6)
    file.seek(0)
    if magic == b"ARROW1":
        reader = pa.ipc.open_file(file)
        return (reader.get_batch(i) for i in range(reader.num_record_batches))
    return iter(pa.ipc.open_stream(file))


def _metadata(path: Place) -> pq.FileMetaData:
    try:
        return pq.read_metadata(readable(path))
    except (OSError, pa.ArrowException) as error:
        raise ReadError(f"{path}: cannot read: {reason(error)}") from error


def _declared(table: str) -> pa.Schema:
    from amqpscope.pipelines.model.walk import schema  # noqa: PLC0415 - readers of notes need no walks

    return schema(table)
