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
from amqpscope.dissector.tables.output import digest
from amqpscope.pipelines import here
from amqpscope.pipelines.command import is_tables
from amqpscope.pipelines.engine import Emit
from amqpscope.pipelines.folder import dissected, read_note
from amqpscope.pipelines.relations.compute import compute
from amqpscope.pipelines.statistics import HOUR_NS
from amqpscope.pipelines.walks.walk import schema
from amqpscope.spec.model import Protocol


@overload
def analyze(
    paths: Paths,
    output: None = None,
    *,
    ports: dict[int, str] | None = None,
    protocol: Protocol | None = None,
    from_ns: int | None = None,
    to_ns: int | None = None,
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
    from_ns: int | None = None,
    to_ns: int | None = None,
    keylog: str | None = None,
    window_ns: int = HOUR_NS,
) -> Place: ...


def analyze(
    paths: Paths,
    output: str | os.PathLike[str] | None = None,
    *,
    ports: dict[int, str] | None = None,
    protocol: Protocol | None = None,
    from_ns: int | None = None,
    to_ns: int | None = None,
    keylog: str | None = None,
    window_ns: int = HOUR_NS,
) -> dict[str, pa.Table] | Place:
    """Make the statistics of captures, or of a folder of tables, in this process.

    Args:
        paths: a capture file, directory or glob, or several; or the folder that `amqpscope dissect` wrote.
        output: folder to write the tables to; None returns them.
        ports: protocol names by TCP port; for other ports the content decides.
        protocol: AMQP 0-9-1 with a user's document laid over it (`spec.overlay`).
        from_ns: leave out rows before this time (ns since the epoch, UTC).
        to_ns: leave out rows at or after this time.
        keylog: TLS key log (NSS format) to decrypt with.
        window_ns: how far before a delivery to look for its publish (ns).

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
    options = Options(ports or {}, protocol, from_ns=from_ns, to_ns=to_ns, keylog=keylog)
    if len(named) == 1 and is_tables(named[0]):
        if options != Options():
            raise ValueError("ports, protocol, from_ns, to_ns and keylog are for captures, not for their tables")
        return _of_folder(dissected(named[0]), output, window_ns)
    reading = Reading(find(named), options)
    if output is not None:
        note = {"captures": [str(path) for path in named], "from_ns": from_ns, "to_ns": to_ns}
        here.analyze_captures(reading, place(output), note, window_ns)
        return place(output)
    engine = here.gather(reading, window_ns)
    return _collected(lambda emit: here.finish(engine, reading, emit))


def _of_folder(folder: Place, output: str | os.PathLike[str] | None, window_ns: int) -> dict[str, pa.Table] | Place:
    if output is None:
        return _collected(lambda emit: here.walk_folder(folder, emit, window_ns))
    note = {
        "tables": str(folder.absolute()), "tables_complete": read_note(folder)["complete"], "made_of": digest(folder)
    }  # fmt: skip
    here.analyze_folder(folder, place(output), note, window_ns)
    return place(output)


def _collected(make: Callable[[Emit], None]) -> dict[str, pa.Table]:
    """Return all tables that are emitted."""
    found = {name: [schema(name).empty_table()] for name in here.tables()}
    make(lambda name, rows: found[name].append(rows))
    tables = {name: pa.concat_tables(parts) for name, parts in found.items()}
    return {**tables, **dict(compute(tables))}
