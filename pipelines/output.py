"""The folder that `analyze` writes: a folder of Parquet parts per table, each complete or not there."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from amqpscope import spec
from amqpscope.dissector.tables.output import NOTE
from amqpscope.errors import Error


class OutputError(Error):
    """The output cannot be written; the message is one line that says what and where."""


class Output:
    """Tables written one after the other, each under another name and renamed when it is complete.

    Args:
        folder: created where it is not there. One that holds anything but an earlier output is refused.
        note: what to write into the note, besides whether the output is complete.

    Raises:
        OutputError: the folder holds other files, or cannot be made.
    """

    def __init__(self, folder: Path, note: Mapping[str, object]) -> None:
        self.folder = folder
        self.note = note
        self.tables = [name for name, table in spec.tables().items() if table.written_by == "analyze"]
        try:
            self._claim()
            self._write_note(complete=False)
        except OSError as error:
            raise OutputError(f"{folder}: cannot write: {(error.strerror or str(error)).lower()}") from error

    def write(self, table: str, rows: DataFrame) -> None:
        """Write a table.

        Raises:
            OutputError: the table cannot be made or written.
        """
        temporary = self._temporary(table)
        with self.making(table):
            rows.write.option("compression", "zstd").parquet(str(temporary.absolute()))
            temporary.rename(self.folder / table)

    @contextlib.contextmanager
    def making(self, table: str) -> Iterator[None]:
        """What Spark complains of meanwhile is one line: some of a table is already made when it is asked for.

        Raises:
            OutputError: it complained.
        """
        try:
            yield
        except (PySparkException, Py4JError, OSError) as error:
            raise OutputError(
                f"{self.folder / table}: cannot write: {_reason(error)}; complete tables are kept"
            ) from error

    def finish(self) -> None:
        """Mark the output as complete.

        Raises:
            OutputError: that cannot be written.
        """
        try:
            self._write_note(complete=True)
        except OSError as error:
            raise OutputError(f"{self.folder}: cannot write: {(error.strerror or str(error)).lower()}") from error

    def _temporary(self, table: str) -> Path:
        return self.folder / f".{table}.writing"

    def _claim(self) -> None:
        """Make the folder ours, and empty it of an earlier output."""
        self.folder.mkdir(parents=True, exist_ok=True)
        there = {entry.name for entry in self.folder.iterdir()}
        if there and NOTE not in there:
            raise OutputError(
                f"{self.folder}: holds files that are not of an earlier run ({sorted(there)[0]}); name another folder"
            )
        ours = {*self.tables, *(self._temporary(table).name for table in self.tables)}
        strange = there - ours - {NOTE, f".{NOTE}.writing"}
        if strange:
            raise OutputError(f"{self.folder}: holds other files ({sorted(strange)[0]}); name another folder")
        for name in there & ours:
            shutil.rmtree(self.folder / name)

    def _write_note(self, *, complete: bool) -> None:
        temporary = self.folder / f".{NOTE}.writing"
        temporary.write_text(json.dumps({"complete": complete, **self.note}, indent=1), encoding="utf-8")
        temporary.replace(self.folder / NOTE)


def _reason(error: Exception) -> str:
    """The line that says most: Spark wraps the cause in many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes or lines or [type(error).__name__])[-1 if causes else 0]
