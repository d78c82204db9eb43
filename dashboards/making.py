"""Make the statistics of a page where they are missing, in this process and in a temporary folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa

from amqpscope.dashboards.tables import FRAMES, Tables, locate
from amqpscope.dissector.places import Place
from amqpscope.errors import Error

if TYPE_CHECKING:
    from amqpscope.dissector.reading import Reading
    from amqpscope.dissector.tables.origin import Known

QUICK = "lz4"
"""Compression of tables that are read once."""
SHOWN = {
    "captures": None,
    "connections": None,
    "anomalies": None,
    **dict.fromkeys(FRAMES, ("connection_id",)),
    "messages": ("kind", "body_size", "is_partial", "publish_seq_unsure"),
}
"""Tables of the dissection that pages read, and the columns that they need: of frames the rows are counted."""


class MixedError(Error, ValueError):
    """Captures and folders of tables in one call; one line that says what to do."""


@contextmanager
def temporary() -> Iterator[Path]:
    """Yield a folder that goes away again."""
    with TemporaryDirectory(prefix="amqpscope-") as folder:
        yield Path(folder)


def are_tables(paths: Sequence[Place]) -> bool:
    """Return whether these are folders of tables, not captures.

    Raises:
        MixedError: they are both.
    """
    from amqpscope.pipelines.command import is_tables  # noqa: PLC0415

    folders = [path for path in paths if is_tables(path)]
    if folders and len(folders) < len(paths):
        other = next(path for path in paths if path not in folders)
        raise MixedError(
            f"{folders[0]} is a folder of tables and {other} is not; name captures, or a folder of dissect and one of "
            "analyze"
        )
    return bool(folders)


@contextmanager
def of_folders(paths: Sequence[Place]) -> Iterator[Tables]:
    """Yield the tables of folders; statistics that are missing, or are of other tables, are made of those of `dissect`.

    Raises:
        NotTablesError: one is not a folder of tables, or there are two of a kind.
        ReadError: a table cannot be read.
    """
    from amqpscope.pipelines.run import local  # noqa: PLC0415

    found = locate(paths)
    is_usable = found.analyzed and (found.analyzed in paths or not (found.outdated() or found.unfinished()))
    if not found.dissected or is_usable:
        yield found
        return
    with temporary() as folder:
        local.analyze_folder(found.dissected, folder, {}, relations=())
        yield Tables(found.dissected, folder)


def of_captures(reading: Reading, folder: Path, captures: Sequence[Known] = (), keeps_tables: bool = True) -> Tables:
    """Return the tables and statistics of captures, which are written to a folder.

    Args:
        reading: the pass over the captures.
        folder: an empty one.
        captures: what they are known by.
        keeps_tables: whether what pages show of the dissection is, besides statistics.

    Raises:
        CaptureError: a capture cannot be read.
        OutputError: there is no room for them.
    """
    from amqpscope.dissector.tables.origin import MADE_FROM, marks  # noqa: PLC0415
    from amqpscope.dissector.tables.output import Output  # noqa: PLC0415
    from amqpscope.dissector.tables.rows import schemas  # noqa: PLC0415
    from amqpscope.pipelines.run import local  # noqa: PLC0415

    tables, statistics = folder / "tables", folder / "statistics"
    if not keeps_tables:
        local.analyze_captures(reading, statistics, {}, relations=())
        return Tables(None, statistics)
    note = {MADE_FROM: marks(captures)}
    declared = schemas(reading.options.protocol)
    shown = {
        name: pa.schema([field for field in declared[name] if columns is None or field.name in columns])
        for name, columns in SHOWN.items()
    }
    with Output(str(tables), shown, compression=QUICK, note=note) as dissected:
        local.analyze_captures(reading, statistics, {}, dissected=dissected, relations=())
    return Tables(tables, statistics)
