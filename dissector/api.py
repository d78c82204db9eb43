"""Frames and verdicts in Python: what the commands `frames` and `handshakes` print, as plain dicts."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.cli import verdict_rows
from amqpscope.dissector.cli.printers import Peers, objects
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.handshakes import listing
from amqpscope.dissector.reading import Paths, Reading
from amqpscope.spec import handshakes as rules
from amqpscope.spec.model import Protocol


def frames(
    paths: Paths,
    *,
    ports: dict[int, str] | None = None,
    protocol: Protocol | None = None,
    from_ns: int | None = None,
    to_ns: int | None = None,
    keylog: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the frames of captures as they are decoded, those of a connection in their order.

    Each is what `amqpscope frames --format json` prints: `ts` (ISO 8601, UTC), `sender` and `receiver` (address and
    port), and the columns of `amqp091_frames`, `stream_frames` or `amqp010_frames` that are not null; use
    `frame.get("method")` for those that some frames lack. For many frames take the tables of `read`.

    Args:
        paths: a capture file, directory or glob, or several.
        ports: protocol names by TCP port, where content is not to decide.
        protocol: AMQP 0-9-1 with a user's document laid over it (`spec.overlay`).
        from_ns: leave out frames before this time (ns since the epoch, UTC).
        to_ns: leave out frames at or after this time.
        keylog: TLS key log (NSS format) to decrypt with.

    Raises:
        CaptureError: there is nothing of that name (it is a `FileNotFoundError` then), or a file is no capture, or TLS
            cannot be decrypted; most of it when the first frame is asked for.
    """
    options = Options(ports or {}, protocol, from_ns=from_ns, to_ns=to_ns, keylog=keylog)
    return _frames(Reading(find(_named(paths)), options))


def handshakes(
    paths: Paths,
    *,
    ports: dict[int, str] | None = None,
    protocol: Protocol | None = None,
    from_ns: int | None = None,
    to_ns: int | None = None,
    keylog: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a verdict on each connection as it ends: how far it came, why no further, which packets prove it.

    Each is one of `connections` in what `amqpscope handshakes --format json` prints: columns of the table
    `connections`, with `client` and `server` (address and port), `code`, `summary` (one sentence), `meaning`, `remedy`,
    and the steps of the handshake.

    Args:
        paths: a capture file, directory or glob, or several; or the folder that `amqpscope dissect` wrote.
        ports: protocol names by TCP port, where content is not to decide.
        protocol: AMQP 0-9-1 with a user's document laid over it (`spec.overlay`).
        from_ns: leave out connections that ended before this time (ns since the epoch, UTC).
        to_ns: leave out connections that began at or after this time.
        keylog: TLS key log (NSS format) to decrypt with.

    Raises:
        CaptureError: there is nothing of that name (it is a `FileNotFoundError` then), or a file is no capture, or TLS
            cannot be decrypted; most of it when the first verdict is asked for.
        VerdictError: the tables are of a release without verdicts.
    """
    options = Options(ports or {}, protocol, from_ns=from_ns, to_ns=to_ns, keylog=keylog, handshakes=True)
    named = _named(paths)
    return _verdicts(verdict_rows.tables_at(named) or Reading(find(named), options), options)


def _named(paths: Paths) -> list[str]:
    return [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]


def _frames(reading: Reading) -> Iterator[dict[str, Any]]:
    peers = Peers(reading.dissector)
    for table, batch in reading:
        if table.endswith("_frames"):
            yield from objects(batch, peers)


def _verdicts(found: Path | Reading, options: Options) -> Iterator[dict[str, Any]]:
    known = rules.load()
    for row in verdict_rows.rows(found, options):
        yield listing.as_dict(row, known)
