"""DuckDB, closed off: it reads the tables that it is given, and no other files, nor the network."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from amqpscope.dissector.places import Place

if TYPE_CHECKING:
    import duckdb

MEMORY = "2GB"
"""Memory beyond which DuckDB writes to temporary files."""
THREADS = 2
SAFE = (
    "set python_enable_replacements = false",
    "set autoinstall_known_extensions = false",
    "set autoload_known_extensions = false",
    "set TimeZone = 'UTC'",
    "set enable_external_access = false",
    "set lock_configuration = true",
)
"""The last of them keeps the others."""
_TYPES = {
    pa.int64(): "bigint", pa.int32(): "int", pa.string(): "varchar", pa.bool_(): "boolean", pa.float64(): "double",
}  # fmt: skip


@contextmanager
def connect(folder: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database in memory that loads no extension, keeps its settings, and reads files of one folder at most.

    What does not fit into memory lies in a temporary folder meanwhile.

    Args:
        folder: that folder; None: no file.
    """
    import duckdb  # noqa: PLC0415 - loaded by those who compute relations

    with tempfile.TemporaryDirectory(prefix="amqpscope-") as spilled:
        settings: dict[str, Any] = {
            "memory_limit": MEMORY,
            "threads": THREADS,
            "temp_directory": spilled,
            "preserve_insertion_order": False,
        }
        with duckdb.connect(":memory:", config=settings) as made:
            if folder is not None:
                made.execute("set allowed_directories = [?]", [str(folder.absolute())])
            for each in SAFE:
                made.execute(each)
            yield made


def view(connection: duckdb.DuckDBPyConnection, name: str, files: Sequence[Path], declared: pa.Schema) -> None:
    """Make a view of Parquet files, in the declared columns; those that the files lack are null.

    Args:
        connection: one that may read them.
        name: of the view.
        files: at least one, all with the same columns.
        declared: the columns.
    """
    there = set(pq.read_schema(files[0]).names)
    columns = ", ".join(
        f'"{field.name}"' if field.name in there else f'cast(null as {_TYPES[field.type]}) as "{field.name}"'
        for field in declared
    )
    paths = ", ".join(_literal(file) for file in files)
    connection.execute(f"create view {name} as select {columns} from read_parquet([{paths}])")  # noqa: S608 - quoted


def may_view(folder: Place) -> bool:
    """Return whether DuckDB can read files below a folder: it is local, and its name is no pattern of names."""
    return isinstance(folder, Path) and not {*"*?["} & {*str(folder.absolute())}


def _literal(file: Path) -> str:
    return "'" + str(file.absolute()).replace("'", "''") + "'"
