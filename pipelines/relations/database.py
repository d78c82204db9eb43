"""DuckDB, closed off: it reads the tables that it is given, and no other files, nor the network."""

from __future__ import annotations

import re
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from amqpscope.dissector.places import Place
from amqpscope.errors import Error
from amqpscope.pipelines import memory

if TYPE_CHECKING:
    import duckdb

MEMORY = 256_000_000
"""Bytes of memory beyond which DuckDB writes to temporary files."""
MEMORY_PER_ROW = 20
"""The same for each row of statistics, where that is more: not all that joins and windows keep can go to files."""
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
SMALL = 1 << 25
"""Bytes in memory below which a table is copied once, instead of being read by each text."""
SMALL_FILES = 1 << 20
"""The same of Parquet files."""
FEW = 10_000
"""Rows in all below which planning takes longer than it saves: from 30,000 on, plans as texts stand are slower."""
AS_THEY_STAND = ("set threads = 1", "pragma disable_optimizer")
AGAIN_S, TIMES = 0.1, 10
"""Seconds after which what runs then is interrupted as well, and how often."""
END = b"\0"
"""No signal has this number."""
LATEST = (1 << 62) - 1
"""Times and durations beyond it, or below 0, come from broken clocks: they are null. No sum of two overflows."""
_TYPES = {
    pa.int64(): "bigint", pa.int32(): "int", pa.string(): "varchar", pa.bool_(): "boolean", pa.float64(): "double",
}  # fmt: skip
MOST_PARSED = 1_000
_PARSED: dict[str, duckdb.Statement] = {}
"""Texts that were run; who follows a directory, and who asks for several captures, runs the same again."""


BROKERS = """
    with named as (
        select server, min(cluster_name) as cluster_name from endpoints where cluster_name is not null
        group by server having count(distinct cluster_name) = 1
    ),
    homes as (
        select cluster_name, min(server) as broker from named group by cluster_name
    )
    select n.server, h.broker from named n join homes h on n.cluster_name = h.cluster_name where n.server <> h.broker"""
"""Addresses of servers (ports for TLS and streams, interfaces, nodes) that have the cluster's name in common with an
earlier one, and that one: queues are the cluster's. One with several names (a port that is forwarded) is left alone."""
MOST_MERGED = 1000
"""Such addresses at most: with more of them, the capture is no broker's."""


class MemoryLimitError(Error):
    """Relations or rules need more memory than they may take; the message is one line that says what to do."""


@contextmanager
def connect(folder: Path | None = None, rows: int = FEW) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database in memory that loads no extension, keeps its settings, and reads files of one folder at most.

    What does not fit into memory lies in a temporary folder meanwhile.

    Args:
        folder: that folder; None: no file.
        rows: of its tables, in all.

    Raises:
        MemoryLimitError: that takes more memory than so many rows may.
    """
    import duckdb  # noqa: PLC0415 - loaded by those who compute relations

    limit = max(MEMORY, min(MEMORY_PER_ROW * rows, memory.of_machine() // 2)) // 1_000_000
    with tempfile.TemporaryDirectory(prefix="amqpscope-") as spilled:
        settings: dict[str, Any] = {
            "memory_limit": f"{limit}MB",
            "threads": THREADS,
            "temp_directory": spilled,
            "preserve_insertion_order": False,
        }
        with duckdb.connect(":memory:", config=settings) as made, _interruptible(made):
            if folder is not None:
                made.execute("set allowed_directories = [?]", [str(folder.absolute())])
            for each in (*(AS_THEY_STAND if rows < FEW else ()), *SAFE):
                made.execute(each)
            try:
                yield made
            except duckdb.OutOfMemoryException as error:
                text = f"relations of {rows:,} rows of statistics need more than {limit:,} MB of memory"
                raise MemoryLimitError(f"{text}: use fewer captures at a time, or a cluster (--master)") from error


@contextmanager
def _interruptible(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Interrupt what a connection computes at Ctrl-C, and raise KeyboardInterrupt, whatever error DuckDB makes of it.

    By itself it looks for signals between its steps alone, which may be long.
    """
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    came = threading.Event()

    def watch() -> None:
        again = 0
        while True:
            try:
                number = reader.recv(1)
            except TimeoutError:  # perhaps nothing ran when it was interrupted, and something does now
                number, again = b"", again - 1
            if number == END:
                return
            if number == bytes([signal.SIGINT]):
                came.set()
                again = TIMES
            if again:
                connection.interrupt()
            reader.settimeout(AGAIN_S if again else None)

    watching = threading.Thread(target=watch, name="amqpscope-interrupt", daemon=True)
    with reader, writer:
        writer.setblocking(False)
        former = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        watching.start()
        try:
            try:
                yield
            finally:
                signal.set_wakeup_fd(former)
                writer.setblocking(True)
                writer.send(END)
                watching.join()  # it has seen all signals that came
        except Exception as error:
            if came.is_set():
                raise KeyboardInterrupt from error
            raise


def view(
    connection: duckdb.DuckDBPyConnection, name: str, rows: Sequence[Path] | pa.Table, declared: pa.Schema
) -> None:
    """Let a database know a table, in the declared columns; those that it lacks are null, as are times that cannot be.

    It is a view; of few bytes a table, which needs not be decoded anew by each text that reads it.

    Args:
        connection: one that may read the files.
        name: of the view.
        rows: the table; or Parquet files, at least one, all with the same columns.
        declared: the columns.
    """
    if isinstance(rows, pa.Table) and not len(rows):
        keep_none(connection, name, declared)
        return
    given = f"{name}_as_given"
    if isinstance(rows, pa.Table):
        there, source, is_small = set(rows.column_names), given, rows.nbytes < SMALL
        connection.register(source, rows)
    else:
        there = set(pq.read_schema(rows[0]).names)
        source = f"read_parquet([{', '.join(_literal(file) for file in rows)}])"
        is_small = sum(file.stat().st_size for file in rows) < SMALL_FILES
    columns = ", ".join(_column(field) if field.name in there else _null(field) for field in declared)
    kind = "table" if is_small else "view"
    connection.execute(f"create {kind} {name} as select {columns} from {source}")  # noqa: S608 - quoted
    if is_small and isinstance(rows, pa.Table):
        connection.unregister(given)


def merge_brokers(connection: duckdb.DuckDBPyConnection) -> None:
    """Let all connections to one broker or cluster have one `server` in `endpoints`: the first of its addresses."""
    found = connection.execute(BROKERS).fetchall()
    if not found or len(found) > MOST_MERGED:
        return
    connection.execute("create table merged_brokers (server varchar, broker varchar)")
    connection.executemany("insert into merged_brokers values (?, ?)", found)
    ((kind,),) = connection.execute(
        "select lower(table_type) from information_schema.tables where table_name = 'endpoints'"
    ).fetchall()
    connection.execute(f"alter {'view' if kind == 'view' else 'table'} endpoints rename to endpoints_by_address")
    connection.execute("""
        create view endpoints as select e.* replace (coalesce(m.broker, e.server) as server)
        from endpoints_by_address e left join merged_brokers m on e.server = m.server""")


def keep(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    """Let a database know rows that other texts read; few bytes as a table, as `view` does."""
    if rows.nbytes >= SMALL:
        connection.register(name, rows)
        return
    connection.register(f"{name}_as_given", rows)
    connection.execute(f"create table {name} as select * from {name}_as_given")  # noqa: S608 - ours
    connection.unregister(f"{name}_as_given")


def tolerant(text: str) -> str:
    """Return a text in which sums that do not fit into 64 bits are null: sizes are what the wire says."""
    return re.sub(r"\bcast\(", "try_cast(", text)


def run(connection: duckdb.DuckDBPyConnection, text: str) -> duckdb.DuckDBPyConnection:
    """Run a text, which this process parses once: a fifth of the time that relations of few rows take.

    Raises:
        ValueError: it is several.
    """
    if text not in _PARSED:
        first, *others = connection.extract_statements(text)
        if others:
            raise ValueError("more than one statement")
        if len(_PARSED) == MOST_PARSED:
            _PARSED.clear()
        _PARSED[text] = first
    return connection.execute(_PARSED[text])


def rows(connection: duckdb.DuckDBPyConnection, text: str) -> list[dict[str, Any]]:
    """Return what a text selects, few rows: Arrow would take as long again."""
    made = run(connection, tolerant(text))
    names = [column[0] for column in made.description or ()]
    return [dict(zip(names, row, strict=True)) for row in made.fetchall()]


def keep_none(connection: duckdb.DuckDBPyConnection, name: str, declared: pa.Schema) -> None:
    """Let a database know a table without rows."""
    columns = ", ".join(f'"{field.name}" {_TYPES[field.type]}' for field in declared)
    connection.execute(f"create table {name} ({columns})")


def empty(connection: duckdb.DuckDBPyConnection) -> set[str]:
    """Return the tables that have no rows; views are not looked into."""
    found = connection.execute("select table_name from duckdb_tables() where estimated_size = 0").fetchall()
    return {name for (name,) in found}


def is_time(field: pa.Field) -> bool:
    """Return whether a column has times or durations in ns."""
    return bool(field.type == pa.int64() and field.name.endswith("_ns"))


def _column(field: pa.Field) -> str:
    if is_time(field):
        return f'case when "{field.name}" between 0 and {LATEST} then "{field.name}" end as "{field.name}"'
    return f'"{field.name}"'


def _null(field: pa.Field) -> str:
    return f'cast(null as {_TYPES[field.type]}) as "{field.name}"'


def may_view(folder: Place) -> bool:
    """Return whether DuckDB can read files below a folder: it is local, and its name is no pattern of names."""
    return isinstance(folder, Path) and not {*"*?["} & {*str(folder.absolute())}


def _literal(file: Path) -> str:
    return "'" + str(file.absolute()).replace("'", "''") + "'"
