"""Captures as a data source of Spark: `spark.read.format("amqpscope").option("table", "messages").load("captures/")`.

Spark finds the format by the package `pyspark_amqpscope`; where that is not installed, `register` makes it known.

Spark gives a data source in Python no shuffle, so its tasks share a dissection through files (`parallel.cached`): they
divide the captures, then the parts of the flows. The tables of all parts stay there until the session ends, for later
reads of the same captures and options. A read takes from them the columns of the schema that the user gave, by default
all of them (Spark does not tell such a source which ones it needs), and with `pushFilters` the rows that pass filters.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from amqpscope import spec
from amqpscope.dissector.capture.sources import look_for, named, total_size
from amqpscope.dissector.cli import arguments
from amqpscope.dissector.cli.precompile import compile_kernels
from amqpscope.dissector.kernels import kernel
from amqpscope.dissector.parallel.archive import rows_of_captures
from amqpscope.dissector.parallel.cached import Dissection
from amqpscope.dissector.parallel.flows import Halves, halves
from amqpscope.errors import Error, near
from amqpscope.pipelines.folder import ReadError, check_paths
from amqpscope.pipelines.model.walk import schema as of_arrow
from amqpscope.pipelines.spark.schemas import schema as of_spark
from amqpscope.pipelines.spark.source_stream import StreamReader
from amqpscope.pipelines.spark.versions import version

if TYPE_CHECKING:
    import pyarrow.dataset as ds

PART = 64 << 20
"""Bytes of captures that a task dissects, about."""
LISTING = StructType([StructField("table", StringType()), StructField("rows", StringType())])
"""Columns of what is read where no table is named: names of tables, and what a row of each is."""
OWN = ("table", "path", "paths", "parts", "cache", "ignorecorruptfiles", "pushfilters", "untilidle", "address")
"""Options of the format; the others are those of `amqpscope dissect`, without the hyphens."""


class Captures(DataSource):
    """Captures as the tables of `dissect`.

    Options:
        table: name of the table; without it, a listing of the tables and what their rows are.
        port, keylog, from, to, tz, bodies, spec: as for `amqpscope dissect`; several ports are separated by commas.
        address: IP addresses, separated by commas: only connections with one of them are dissected.
        ignoreCorruptFiles: `true` to list files that cannot be read in the table `captures` even if the user named
            them; those that a folder or glob contains are always listed there.
        pushFilters: `true` to filter rows where they are read. This needs `spark.sql.python.filterPushdown.enabled` and
            a DataFrame for each query: Spark, up to 4.3, applies what one query of a DataFrame filters to its later
            queries without filters, so that SQL over views is wrong.
        parts: number of tasks; the default depends on the size of the captures.
        cache: folder for the files of the dissection, which the user removes; on a cluster it is best seen by all
            nodes, which else repeat work. Default: a temporary folder of each executor. A stream needs it.
        untilIdle: of a stream: seconds without a write after which all files are complete, and connections end.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Check the options: Spark makes a source when it is loaded.

        Raises:
            ReadError: an option is wrong.
            MissingTablesError: a path does not exist.
        """
        super().__init__(options)
        with _one_sentence():
            if "table" in options or _asked(options):
                given, parsed = _parsed(options)
                check_paths(given)
                arguments.options(parsed)
                _addresses(options)
                _number(options, "parts", int)
                _number(options, "untilIdle", float)
            self.schema()

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "amqpscope"

    def schema(self) -> StructType:
        """Return the columns of the table, or those of the listing.

        Raises:
            ReadError: `dissect` writes no such table.
        """
        return of_spark(self._table()) if "table" in self.options else LISTING

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads the columns of a schema.

        Raises:
            ReadError: an option is wrong, or a column is not in the table.
            CaptureError: a path does not exist.
        """
        if "table" not in self.options:
            return Listing()
        with _one_sentence():
            kind = _filtering() if _is_on(self.options, "pushFilters") else Reader
            return kind(self._table(), self._columns(schema), *_dissection(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - the name is Spark's
        """Return what follows a directory, and reads the columns of a schema.

        Raises:
            ReadError: an option is wrong or missing, or a column is not in the table.
        """
        given, parsed = _parsed(self.options)
        if len(given) != 1 or not Path(given[0]).is_dir():
            raise ReadError(f"a stream needs one directory of this machine, not {' '.join(given)}")
        if "cache" not in self.options:
            raise ReadError('a stream needs option("cache", ...): the folder for its tables and state')
        if arguments.wanted_times(parsed).needs_day:
            raise ReadError("from and to of a stream need a date")
        if "address" in self.options:
            raise ReadError("address is for batches: a stream has all connections")
        until_idle = _number(self.options, "untilIdle", float)
        columns, options = self._columns(schema), arguments.options(parsed)
        return StreamReader(self._table(), columns, given[0], _absolute(self.options["cache"]), options, until_idle)

    def _columns(self, schema: StructType) -> list[str]:
        """Return the columns of a schema, which are in the table."""
        there = {field.name: field for field in self.schema().fields}
        for field in schema.fields:
            if field.name not in there or there[field.name].dataType != field.dataType:
                raise ReadError(f"no column {field.name} of type {field.dataType.simpleString()} in {self._table()}")
        return list(schema.names)

    def _table(self) -> str:
        tables = [name for name, table in spec.tables().items() if table.written_by == "dissect"]
        name = self.options.get("table", "")
        if name not in tables:
            wrong = f"no table {name!r}{near(name, tables)}" if name else "no table is named"
            raise ReadError(f'{wrong}; option("table", ...) takes {", ".join(tables)}')
        return name


class Listing(DataSourceReader):
    """Lists the tables that the option `table` takes (LISTING)."""

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str]]:
        """Yield name and meaning of each table."""
        return ((name, table.doc) for name, table in spec.tables().items() if table.written_by == "dissect")


class Reader(DataSourceReader):
    """Reads a table of captures.

    Args:
        table: its name.
        columns: of the table, in their order.
        dissection: of the captures; its folder is only a name.
        cache: the folder to which that name belongs; None: a temporary one.
    """

    def __init__(self, table: str, columns: list[str], dissection: Dissection, cache: str | None) -> None:
        self.table, self.columns, self.dissection, self.cache = table, columns, dissection, cache
        self.filter: pc.Expression | None = None

    def partitions(self) -> list[InputPartition]:
        """Return the parts of the dissection."""
        return [InputPartition(number) for number in range(self.dissection.parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part; the first one also has those that belong to no connection.

        Raises:
            CaptureError: a file that the user named, or every file, cannot be read.
        """
        import pyarrow.dataset as ds  # noqa: PLC0415 - with pandas it takes 0.3 s, and each step of planning is a process

        dissection = replace(self.dissection, folder=Path(self.cache or _temporary(), self.dissection.folder))
        plan = dissection.plan()
        if partition.value == 0:
            rows = [rows for name, rows in rows_of_captures(plan.surveys, plan.known) if name == self.table]
            yield from self._wanted(ds.dataset(pa.Table.from_batches(rows, of_arrow(self.table))))
        if self.table != "captures":  # for these, nothing is dissected
            files = sorted(Path(dissection.part(partition.value), self.table).glob("*.parquet"))
            yield from self._wanted(ds.dataset(files))

    def _wanted(self, rows: ds.Dataset) -> Iterator[pa.RecordBatch]:
        scanner = rows.scanner(self.columns, self.filter, batch_readahead=1, fragment_readahead=1, use_threads=False)
        return (batch for batch in scanner.to_batches() if batch.num_rows)


def _filtering() -> type[Reader]:
    """Return what reads with filters, which came with Spark 4.1."""
    if version() < (4, 1):
        raise ReadError("pushFilters needs Spark 4.1 or newer")
    from amqpscope.pipelines.spark.source_filters import Filtering  # noqa: PLC0415

    class FilteringReader(Filtering, Reader):
        """A reader that applies filters of the query."""

    return FilteringReader


def register(spark: SparkSession) -> None:
    """Make the format known to a session."""
    try:
        spark.dataSource.register(Captures)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):  # Spark 4.0 has found the package, and keeps that one
            raise


class _Parser(argparse.ArgumentParser):
    """Parses options as the command does, and raises errors."""

    def error(self, message: str) -> NoReturn:
        """Raise an error."""
        raise ReadError(message)


def _parsed(options: MutableMapping[str, str]) -> tuple[list[str], argparse.Namespace]:
    """Return the paths of captures, and the options that `amqpscope dissect` knows."""
    given = json.loads(options["paths"]) if "paths" in options else [options["path"]] if "path" in options else []
    if not given:
        raise ReadError("no captures: give load() their paths")
    asked = _asked(options)
    parser = _Parser(prog="option", add_help=False, allow_abbrev=False)
    arguments.add_common(parser, bodies=True)
    known = {name.removeprefix("--") for name in parser._option_string_actions}
    for name in asked:
        if name not in known:
            there = near(name, known) or f"; there are {', '.join(sorted(known))}"
            raise ReadError(f"no option {name!r}{there}")
    words = [f"--{name}={value}" for name, value in asked.items() if name != "port"]
    words += [f"--port={each.strip()}" for each in asked.get("port", "").split(",") if each]
    parsed = parser.parse_args([*words, *given])
    parsed.keylog, parsed.spec = (path and _absolute(path) for path in (parsed.keylog, parsed.spec))
    return given, parsed


def _asked(options: MutableMapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items() if name.lower() not in OWN}


def _dissection(options: MutableMapping[str, str]) -> tuple[Dissection, str | None]:
    """Return the dissection that options ask for, and where its files lie.

    The name of its folder is made of what they depend on: the captures, as they are now, and the options.
    """
    given, parsed = _parsed(options)
    must_be_good = not _is_on(options, "ignoreCorruptFiles")
    sources = [
        replace(source, path=_absolute(str(source.path)), is_named=source.is_named and must_be_good)
        for source in named(given)
    ]
    arguments.options(parsed)  # what is wrong is reported now, not by tasks
    look_for(sources)
    compiled = kernel.worthwhile(total_size(sources))
    if compiled:
        compile_kernels(sources)
    size = total_size(sources) or 0
    parts = _number(options, "parts", int) or min(-(-size // PART) or 1, 1 << 12)
    about = [(source.path, source.size, _changed(source.path)) for source in sources]
    about += [(path, None, _changed(path)) for path in (parsed.keylog, parsed.spec) if path]
    addresses, about_options = _addresses(options), sorted(_asked(options).items())
    key = hashlib.sha256(repr((about, about_options, must_be_good, parts, addresses)).encode()).hexdigest()[:16]
    wanted = partial(arguments.options, parsed)
    folder = Path(f"amqpscope-{key}")
    return Dissection(folder, tuple(sources), wanted, parts, compiled, addresses), options.get("cache")


def _addresses(options: MutableMapping[str, str]) -> tuple[Halves, ...]:
    given = [each.strip() for each in options.get("address", "").split(",")]
    try:
        return tuple(sorted(map(halves, filter(None, given))))
    except ValueError as error:
        raise ReadError(f"address: {error}") from error


N = TypeVar("N", int, float)


def _number(options: MutableMapping[str, str], name: str, kind: Callable[[str], N]) -> N | None:
    """Return a number that an option gives, 0 or more; None where it is not given."""
    if name not in options:
        return None
    with suppress(ValueError):
        if (found := kind(options[name])) >= 0:
            return found
    raise ReadError(f"{name}: {options[name]!r} is not a number of 0 or more")


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Have Spark report an error of ours without where it was raised; this process was started for one call."""
    try:
        yield
    except Error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def _is_on(options: MutableMapping[str, str], name: str) -> bool:
    return options.get(name, "false").lower() == "true"


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())


def _changed(path: Any) -> int:
    """Return the time of a file's last change (ns); 0 where that is not known."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def _temporary() -> str:
    """Return a folder that Spark removes when the executor ends."""
    return os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0]


if (_running := SparkSession.getActiveSession()) is not None:
    register(_running)
