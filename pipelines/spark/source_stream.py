"""A directory that captures rotate into, as a stream of Spark: `spark.readStream.format("amqpscope")`.

The process that plans the micro-batches follows the directory as `amqpscope dissect --follow` does, into the folder
that the user named: what it remembers of open connections is committed there with the rows. An offset is a number of
part files of the table. Part files never change, so each micro-batch has the same rows whenever it is repeated, and
all of them together have those of a batch read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from amqpscope.dissector.capture.live import Watch
from amqpscope.dissector.cli.precompile import compile_kernels
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.following.folder import Folder
from amqpscope.dissector.following.journal import Journal
from amqpscope.dissector.following.loop import Dissected, Follower, author
from amqpscope.dissector.tables.output import InUseError
from amqpscope.dissector.tables.rows import schemas

if TYPE_CHECKING:  # Spark 4.1 has no limits
    from pyspark.sql.streaming.datasource import ReadLimit

PARTS = "parts"
"""Name in offsets: the number of part files."""


class StreamReader(DataSourceStreamReader):
    """Reads a table of a directory that is followed.

    Args:
        table: its name.
        columns: of the table, in their order.
        folder: the directory.
        cache: folder for tables and state. Streams of several tables may share it: one of them dissects for all.
        options: of the dissection.
        until_idle: seconds without a write after which everything is complete; None: never.
    """

    def __init__(
        self, table: str, columns: list[str], folder: str, cache: str, options: Options, until_idle: float | None
    ) -> None:
        self.table, self.columns, self.cache, self.options = table, columns, Path(cache), options
        self.folder, self.until_idle = os.path.realpath(folder), until_idle
        self._follower: Follower | None = None
        self._held = ExitStack()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - the names are Spark's
        """Return the offset before all rows."""
        return {PARTS: 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - the name is Spark's, from 4.2 on
        """Return that a micro-batch has the rows of one batch of files."""
        from pyspark.sql.streaming.datasource import ReadMaxFiles  # noqa: PLC0415

        return ReadMaxFiles(1)

    def latestOffset(self, start: object = None, limit: ReadLimit | None = None) -> dict[str, int]:  # noqa: N802
        """Dissect a batch of files that are complete, or all batches there are, and return the offset after them.

        Args:
            start: the offset of the rows that are known; Spark 4.1 gives neither argument.
            limit: asks for all batches if it is `ReadAllAvailable`, as the triggers `availableNow` and `once` do.

        Raises:
            OutputError: the folder is of something else, or cannot be written.
        """
        if self._follower is None:
            with suppress(InUseError):  # then another stream dissects
                self._follower = self._begin()
        follower, takes_all = self._follower, type(limit).__name__ == "ReadAllAvailable"
        while follower and not follower.over and follower.step() and takes_all:
            pass
        return {PARTS: len(list((self.cache / self.table).glob("part-*")))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return the part files between two offsets, by their numbers."""
        return [InputPartition(number) for number in range(start[PARTS], end[PARTS])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part file."""
        with pq.ParquetFile(self.cache / self.table / f"part-{partition.value:05d}.parquet") as file:
            for batch in file.iter_batches(columns=self.columns):
                yield batch.select(self.columns)

    def stop(self) -> None:
        """Leave the folder to others."""
        self._held.close()

    def _begin(self) -> Follower:
        note = {"captures": [self.folder], "followed": True}
        note |= {"from_ns": self.options.from_ns, "to_ns": self.options.to_ns}
        made_by = author(self.folder, self.options)
        journal = Journal(str(self.cache), schemas(self.options.protocol), note=note, made_by=made_by)
        return Follower(
            Folder(self.folder), self._held.enter_context(journal), self.options, Dissected, compile_kernels,
            lambda progress, plan: None, Watch(), self.until_idle,
        )  # fmt: skip
