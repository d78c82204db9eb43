"""Statistics in Python: what the command `analyze` writes, as Arrow tables or as a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import overload

import pyarrow as pa

from amqpscope import spec
from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.places import Place, place
from amqpscope.dissector.reading import Paths, Reading
from amqpscope.dissector.tables import origin
from amqpscope.dissector.time_range import When, time_range
from amqpscope.pipelines.command import is_tables
from amqpscope.pipelines.folder import dissected, note_of_statistics, parts, read_parts
from amqpscope.pipelines.model.events import decoded
from amqpscope.pipelines.model.walk import conform, schema
from amqpscope.pipelines.model.when_read import ADDRESSES, added, completed
from amqpscope.pipelines.relations.compute import NAMES, compute, in_parts
from amqpscope.pipelines.run import local
from amqpscope.pipelines.run.engine import Emit
from amqpscope.pipelines.statistics import HOUR_NS, tables
from amqpscope.spec.model import Protocol


@overload
def analyze(
    paths: Paths,
    output: None = None,
    *,
    ports: dict[int, str] | None = None,
    protocol: Protocol | None = None,
    from_: When = None,
    to: When = None,
    keylog: str | None = None,
    window_ns: int = HOUR_NS,
) -> dict[str, pa.Table]: ...


@overload
def analyze(
    paths: Paths,
    output: str | os.PathLike[str],
    *,
    ports: dict[int, str] | None = None,
    protocol: Protocol | None = None,
    from_: When = None,
    to: When = None,
    keylog: str | None = None,
    window_ns: int = HOUR_NS,
    replace: bool = False,
) -> Place: ...


def analyze(
    paths: Paths,
    output: str | os.PathLike[str] | None = None,
    *,
    ports: dict[int, str] | None = None,
    protocol: Protocol | None = None,
    from_: When = None,
    to: When = None,
    keylog: str | None = None,
    window_ns: int = HOUR_NS,
    replace: bool = False,
) -> dict[str, pa.Table] | Place:
    """Make the statistics of captures, or of a folder of tables, in this process.

    Args:
        paths: a capture file, directory or glob, or several; or the folder that `amqpscope dissect` wrote.
        output: folder to write the tables to; None returns them.
        ports: protocol names by TCP port; for other ports the content decides.
        protocol: AMQP 0-9-1 with a user's document laid over it (`spec.overlay`).
        from_: leave out rows before this time: a datetime with its zone, or ns since the epoch (UTC).
        to: leave out rows at or after this time.
        keylog: TLS key log (NSS format) to decrypt with.
        window_ns: how far before a delivery to look for its publish (ns).
        replace: whether statistics of other captures in `output` are replaced.

    Returns:
        Tables by name (`confirms`, `settlements`, ...), with the columns that they have when read (`read_tables`); the
        folder, if `output` is given.

    Raises:
        CaptureError: nothing has that name (then it is also a `FileNotFoundError`), a file is not a capture, or TLS
            cannot be decrypted.
        ReadError: the folder of tables cannot be read.
        OutputError: the output cannot be written.
        ValueError: an option for captures is given with a folder of tables.
    """
    named = [place(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    options = Options(ports or {}, protocol, "hash", *time_range(from_, to), keylog=keylog)
    if len(named) == 1 and is_tables(named[0]):
        if options != Options():
            raise ValueError("ports, protocol, from_, to and keylog are for captures, not for their tables")
        return _of_folder(dissected(named[0]), output, window_ns, replace)
    reading = Reading(find(named), options)
    if output is not None:
        made_from = origin.of_captures(reading.sources)
        origin.check(place(output), made_from, replace)
        note = origin.note(named, (options.from_ns, options.to_ns), made_from)
        local.analyze_captures(reading, place(output), note, window_ns)
        return place(output)
    return _collected(lambda emit: local.walk_captures(reading, emit, window_ns))


def _of_folder(
    folder: Place, output: str | os.PathLike[str] | None, window_ns: int, replace: bool
) -> dict[str, pa.Table] | Place:
    if output is None:
        return _collected(lambda emit: local.walk_folder(folder, emit, window_ns))
    origin.check(place(output), origin.of_tables(folder), replace)
    local.analyze_folder(folder, place(output), note_of_statistics(folder), window_ns)
    return place(output)


def read_tables(folder: str | os.PathLike[str]) -> dict[str, pa.RecordBatchReader]:
    """Read a folder of tables or statistics.

    Statistics have times as timestamps, and the addresses of their connections besides; those that follow from others
    are computed where the folder lacks them.

    Args:
        folder: what `amqpscope dissect` or `amqpscope analyze` wrote.

    Returns:
        A reader for each table, by name. Readers are lazy; columns that the folder lacks are null.

    Raises:
        ReadError: it holds no tables. Reading one that cannot be read raises it as well.
    """
    where = place(folder)
    is_analyzed = (where / "endpoints").is_dir()
    if not is_analyzed:
        dissected(where)
    names = ("captures", *tables(), *NAMES) if is_analyzed else [n for n in spec.tables() if (where / n).is_dir()]
    addresses = cache(lambda: _whole(where, "endpoints", ("connection_id", *ADDRESSES)))

    def rows(name: str) -> Iterator[pa.RecordBatch]:
        is_lacking = name in NAMES and not parts(where, name)
        computed = (each for _, each in in_parts(where, [name])) if is_lacking else ()
        read = () if is_lacking else read_parts(where, name, schema(name).names)
        for each in chain(computed, map(decoded, read)):
            whole = conform(name, {column: each[column] for column in each.column_names}, len(each))
            yield from completed(name, whole, addresses() if added(name) else None).combine_chunks().to_batches()

    made = {name: pa.schema([*schema(name), *added(name)]) for name in dict.fromkeys(names)}
    return {name: pa.RecordBatchReader.from_batches(kinds, rows(name)) for name, kinds in made.items()}


def _whole(folder: Place, name: str, columns: Sequence[str]) -> pa.Table:
    rows = map(decoded, read_parts(folder, name, columns))
    kinds = pa.schema([schema(name).field(column) for column in columns])
    return pa.concat_tables([kinds.empty_table(), *rows], promote_options="default")


def _collected(make: Callable[[Emit], None]) -> dict[str, pa.Table]:
    """Return all tables that are emitted."""
    found = {name: [schema(name).empty_table()] for name in tables()}
    make(lambda name, rows: found[name].append(rows))
    made = {name: pa.concat_tables(parts) for name, parts in found.items()}
    made |= dict(compute(made))
    return {name: completed(name, rows, made["endpoints"]) for name, rows in made.items()}
