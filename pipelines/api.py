"""Statistics in Python: what the command `analyze` writes, as Arrow tables or as a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import overload

import pyarrow as pa

from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.places import Place, place
from amqpscope.dissector.reading import Paths, Reading
from amqpscope.dissector.tables import origin
from amqpscope.dissector.time_range import When, time_range
from amqpscope.pipelines.command import is_tables
from amqpscope.pipelines.folder import dissected, note_of_statistics
from amqpscope.pipelines.model.walk import schema
from amqpscope.pipelines.relations.compute import compute
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
        Tables by name (`confirms`, `settlements`, ...); the folder, if `output` is given.

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


def _collected(make: Callable[[Emit], None]) -> dict[str, pa.Table]:
    """Return all tables that are emitted."""
    found = {name: [schema(name).empty_table()] for name in tables()}
    make(lambda name, rows: found[name].append(rows))
    made = {name: pa.concat_tables(parts) for name, parts in found.items()}
    return {**made, **dict(compute(made))}
