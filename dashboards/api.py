"""Write the report from Python, as the command `report` does."""

from __future__ import annotations

import os
from pathlib import Path

from amqpscope.dashboards import making, page
from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.places import place
from amqpscope.dissector.reading import Paths, Reading
from amqpscope.dissector.tables import origin
from amqpscope.dissector.time_range import When, time_range
from amqpscope.spec.model import Protocol


def report(
    paths: Paths,
    file: str | os.PathLike[str],
    *,
    ports: dict[int, str] | None = None,
    protocol: Protocol | None = None,
    from_: When = None,
    to: When = None,
    keylog: str | None = None,
) -> Path:
    """Write one self-contained HTML page about captures, or about tables of them, in this process.

    Args:
        paths: a capture file, directory or glob, or several; or a folder that `amqpscope dissect` or `amqpscope
            analyze` wrote, or one of each. Missing statistics are computed.
        file: the page to write.
        ports: protocol names by TCP port, which override detection by content.
        protocol: AMQP 0-9-1 extended by a user's document (`spec.overlay`).
        from_: leave out rows before this time: a datetime with its zone, or ns since the epoch (UTC).
        to: leave out rows at or after this time.
        keylog: TLS key log (NSS format) to decrypt with.

    Returns:
        The path of the page.

    Raises:
        CaptureError: a path does not exist (then also a `FileNotFoundError`), a file is not a capture, or TLS cannot
            be decrypted.
        NotTablesError: a table cannot be read.
        MixedError: the paths mix captures and folders of tables.
        ValueError: an option for captures is given with a folder of tables.
        PageError: the file is something else than a page about the same captures.
        OSError: the page cannot be written.
    """
    named = [place(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    file = Path(file)
    page.check(file)
    options = Options(ports or {}, protocol, "hash", *time_range(from_, to), keylog=keylog)
    if making.are_tables(named):
        if options != Options():
            raise ValueError("ports, protocol, from_, to and keylog apply to captures, not to their tables")
        with making.of_folders(named) as tables:
            page.write(tables, file)
        return file
    reading = Reading(find(named), options)
    captures = origin.of_captures(reading.sources)
    page.check(file, captures)
    with making.temporary() as folder:
        page.write(making.of_captures(reading, folder, captures), file, captures)
    return file
