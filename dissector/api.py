"""In Python what commands do: `frames` and `handshakes` as dicts, and `dissect`."""

import os
from collections.abc import Iterator
from typing import Any

from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.cli import verdict_rows
from amqpscope.dissector.cli.printers import Peers, Views, objects
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.handshakes import listing
from amqpscope.dissector.parallel.jobs import Jobs, Target, write
from amqpscope.dissector.places import Place, place
from amqpscope.dissector.reading import Paths, Reading
from amqpscope.dissector.tables import origin
from amqpscope.dissector.tables.output import CODEC
from amqpscope.dissector.time_range import When, time_range
from amqpscope.spec import handshakes as rules
from amqpscope.spec.model import Protocol


def frames(
    paths: Paths,
    *,
    ports: dict[int, str] | None = None,
    protocol: Protocol | None = None,
    from_: When = None,
    to: When = None,
    keylog: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the frames of captures as they are decoded, in order within each connection.

    Each is a dict, as `amqpscope frames --format json` prints it, but all numbers are numbers: `ts` (ISO 8601, UTC),
    `sender` and `receiver` (address and port), and the columns of `amqp091_frames`, `stream_frames` or `amqp010_frames`
    that are not null; use `frame.get("method")` for columns that some frames lack. The tables of `read` are faster.

    Args:
        paths: a capture file, directory or glob, or several.
        ports: protocol names by TCP port, for ports where detection by content is not wanted.
        protocol: AMQP 0-9-1 or 0-10 extended by a user's document (`spec.overlay`).
        from_: leave out frames before this time: a datetime with its zone, or ns since the epoch (UTC).
        to: leave out frames at or after this time.
        keylog: TLS key log (NSS format) to decrypt with.

    Raises:
        CaptureError: a path does not exist (then it is also a `FileNotFoundError`), a file is not a capture, or TLS
            cannot be decrypted. Most errors come with the first frame.
    """
    options = Options(ports or {}, protocol, "hash", *time_range(from_, to), keylog=keylog)
    return _frames(Reading(find(_named(paths)), options), Views(protocol))


def handshakes(
    paths: Paths,
    *,
    ports: dict[int, str] | None = None,
    protocol: Protocol | None = None,
    from_: When = None,
    to: When = None,
    keylog: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a verdict on each connection when it ends: how far it came, why no further, which packets prove it.

    Each is a dict, as in the list `connections` of `amqpscope handshakes --format json`, but with all numbers as
    numbers: columns of the table
    `connections`, with `client` and `server` (address and port), `code`, `summary` (one sentence), `meaning`, `remedy`,
    and the steps of the handshake.

    Args:
        paths: a capture file, directory or glob, or several; or the folder that `amqpscope dissect` wrote.
        ports: protocol names by TCP port, for ports where detection by content is not wanted.
        protocol: AMQP 0-9-1 or 0-10 extended by a user's document (`spec.overlay`).
        from_: leave out connections that ended before this time: a datetime with its zone, or ns since the epoch (UTC).
        to: leave out connections that began at or after this time.
        keylog: TLS key log (NSS format) to decrypt with.

    Raises:
        CaptureError: a path does not exist (then it is also a `FileNotFoundError`), a file is not a capture, or TLS
            cannot be decrypted. Most errors come with the first verdict.
        VerdictError: an older release without verdicts wrote the tables.
    """
    options = Options(ports or {}, protocol, "hash", *time_range(from_, to), keylog=keylog, handshakes=True)
    named = _named(paths)
    return _verdicts(verdict_rows.tables_at(named) or Reading(find(named), options), options)


def dissect(
    paths: Paths,
    output: str | os.PathLike[str],
    *,
    ports: dict[int, str] | None = None,
    protocol: Protocol | None = None,
    bodies: str = "hash",
    from_: When = None,
    to: When = None,
    keylog: str | None = None,
    form: str = "parquet",
    compression: str = CODEC,
    jobs: int = 1,
    replace: bool = False,
) -> Place:
    """Write captures as tables, as the command `dissect` does, in this process and `jobs - 1` others.

    Args:
        paths: a capture file, directory or glob, or several.
        output: folder for the tables, also on an object store (`s3://...`); those of the same captures are replaced.
        ports: protocol names by TCP port, for ports where detection by content is not wanted.
        protocol: AMQP 0-9-1 or 0-10 extended by a user's document (`spec.overlay`).
        bodies: `none`, `hash`, or `full` for bodies in `messages`.
        from_: leave out rows before this time: a datetime with its zone, or ns since the epoch (UTC).
        to: leave out rows at or after this time.
        keylog: TLS key log (NSS format) to decrypt with.
        form: `parquet` or `arrow`.
        compression: of Parquet: `zstd`, `snappy`, `lz4` or `none`.
        jobs: number of processes.
        replace: whether tables of other captures in the folder are replaced.

    Returns:
        The folder.

    Raises:
        CaptureError: a path does not exist (then it is also a `FileNotFoundError`), a file is not a capture, or TLS
            cannot be decrypted.
        OutputError: the folder holds something else, or cannot be written.
    """
    named, options = _named(paths), Options(ports or {}, protocol, bodies, *time_range(from_, to), keylog=keylog)
    sources, folder = find(named), place(output)
    captures = origin.of_captures(sources)
    origin.check(folder, captures, replace)
    target = Target(str(folder), form, compression)
    with Jobs(jobs, target) as others:
        write(
            Reading(sources, options, make=others.make),
            others,
            target,
            origin.note(named, (options.from_ns, options.to_ns), captures),
        )
    return folder


def _named(paths: Paths) -> list[str]:
    return [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]


def _frames(reading: Reading, views: Views) -> Iterator[dict[str, Any]]:
    peers = Peers(reading.dissector)
    for table, batch in reading:
        if table.endswith("_frames"):
            yield from objects(batch, peers, views[table])


def _verdicts(found: Place | Reading, options: Options) -> Iterator[dict[str, Any]]:
    known = rules.load()
    for row in verdict_rows.rows(found, options):
        yield listing.as_dict(row, known)
