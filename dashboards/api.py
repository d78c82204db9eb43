"""The report in Python: what the command `report` writes."""

from __future__ import annotations

import os
from pathlib import Path

from amqpscope.dashboards import making, page
from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.reading import Paths, Reading
from amqpscope.spec.model import Protocol


def report(
    paths: Paths,
    file: str | os.PathLike[str],
    *,
    ports: dict[int, str] | None = None,
    protocol: Protocol | None = None,
    from_ns: int | None = None,
    to_ns: int | None = None,
    keylog: str | None = None,
) -> Path:
    """Write one self-contained HTML page about captures, or about tables of them, in this process.

    Args:
        paths: a capture file, directory or glob, or several; or a folder that `amqpscope dissect` or `amqpscope
            analyze` wrote, or one of each. Of tables without statistics these are made.
        file: the page to write.
        ports: protocol names by TCP port, where content is not to decide.
        protocol: AMQP 0-9-1 with a user's document laid over it (`spec.overlay`).
        from_ns: leave out what was before this time (ns since the epoch, UTC).
        to_ns: leave out what was at this time or later.
        keylog: TLS key log (NSS format) to decrypt with.

    Returns:
        The path of the page.

    Raises:
        CaptureError: there is nothing of that name (it is a `FileNotFoundError` then), or a file is no capture, or TLS
            cannot be decrypted.
        NotTablesError: a table cannot be read.
        MixedError: there are captures and folders of tables.
        ValueError: an option for captures is given with a folder of tables.
        OSError: the page cannot be written.
    """
    named = [Path(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    file = Path(file)
    page.check(file)
    options = Options(ports or {}, protocol, from_ns=from_ns, to_ns=to_ns, keylog=keylog)
    if making.are_tables(named):
        if options != Options():
            raise ValueError("ports, protocol, from_ns, to_ns and keylog are for captures, not for their tables")
        with making.of_folders(named) as tables:
            page.write(tables, file)
        return file
    with making.temporary() as folder:
        page.write(making.of_captures(Reading(find(named), options), folder), file)
    return file
