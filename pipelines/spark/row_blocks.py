"""Rows of tables on the way to the walks over their connections: cut where they are read, together where they go.

Tasks read some row groups each, and cut their rows into blocks, one for each part of the connections. A block is a row
of Spark with a stream of Arrow in it: so Spark neither decodes, sorts nor encodes rows, whatever their columns are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.parallel.flows import written
from amqpscope.dissector.places import Place, place
from amqpscope.pipelines.folder import parts, reads_of, suffices
from amqpscope.pipelines.run.local import FIRST, then
from amqpscope.pipelines.run.runner import Runner
from amqpscope.pipelines.run.sorting import joined

BLOCKS = "part int, number long, name string, rows binary"
"""Blocks as rows: the part, the number of the task that cut it, the table, and a stream of Arrow."""
_BLOCKS = pa.schema([("part", pa.int32()), ("number", pa.int64()), ("name", pa.string()), ("rows", pa.binary())])

Reader = Callable[[Iterable[pa.RecordBatch]], Iterator[tuple[str, pa.Table]]]
"""Yields rows and the names of their tables."""


class Unit(NamedTuple):
    """Row groups of a part file.

    Attributes:
        table: its name.
        path: of the file.
        number: which of `folder.reads_of`.
    """

    table: str
    path: str
    number: int


def units(folder: Place) -> list[Unit]:
    """Return the row groups that walks need of a folder, tables in their order.

    Args:
        folder: what `dissect` wrote.

    Raises:
        ReadError: a table cannot be read.
    """
    runner, found = Runner(threads=0), list[Unit]()
    for table in FIRST + then():
        columns = runner.columns(table)
        suffices(folder, table, columns)
        for path in parts(folder, table):
            count = sum(1 for _ in reads_of(path, table, columns))
            found += [Unit(table, str(path.absolute()), at) for at in range(count)]
    return found


def read(units: Iterable[Unit], _: Iterable[pa.RecordBatch] = ()) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of units, with the columns that walks need, and the names of their tables."""
    runner = Runner(threads=0)
    for table, path, number in units:
        yield table, next(islice(reads_of(place(path), table, runner.columns(table)), number, None))()


def cut(groups: Sequence[Sequence[Unit]], parts: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the blocks (BLOCKS) of groups of units, by the numbers of the groups."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            tables: dict[str, list[pa.Table]] = {}
            for table, rows in read(groups[number]):
                tables.setdefault(table, []).append(rows)
            for table, found in tables.items():
                for part, some in enumerate(split(joined(found), parts)):
                    if len(some):
                        block = {
                            "part": part,
                            "number": number,
                            "name": table,
                            "rows": written(some.to_batches(), "lz4"),
                        }
                        yield pa.RecordBatch.from_pylist([block], _BLOCKS)


def split(rows: pa.Table, parts: int) -> Iterator[pa.Table]:
    """Yield the rows of each part of the connections, in their order; those of no connection belong to the first."""
    part = rows["connection_id"].fill_null(0).to_numpy() % parts
    grouped = rows.take(pa.array(np.argsort(part, kind="stable")))
    first = 0
    for count in np.bincount(part, minlength=parts).tolist():
        some = grouped.slice(first, count)
        yield pa.table([_compact(column) for column in some.columns], names=some.column_names)
        first += count


def _compact(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column whose dictionary has no more values than it has rows: large ones are not repeated for each."""
    if not pa.types.is_dictionary(column.type) or not any(len(each.dictionary) > len(each) for each in column.chunks):
        return column
    made = []
    for each in column.chunks:
        used = each.indices.unique().drop_null()
        at = pc.index_in(each.indices, value_set=used, skip_nulls=True).cast(column.type.index_type)
        made.append(pa.DictionaryArray.from_arrays(at, each.dictionary.take(used)))
    return pa.chunked_array(made, column.type)


def blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of blocks (BLOCKS), and the names of their tables."""
    for batch in batches:
        names: Any = batch.column("name").to_pylist()
        for name, rows in zip(names, batch.column("rows"), strict=True):
            yield name, pa.ipc.open_stream(rows.as_buffer()).read_all()
