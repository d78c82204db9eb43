"""Read the rows of `connections` that verdicts are printed from, out of captures or of written tables."""

import csv
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.capture.input import CaptureError
from amqpscope.dissector.dissector import Options
from amqpscope.dissector.handshakes.listing import COLUMNS
from amqpscope.dissector.places import Place, arrow, place
from amqpscope.dissector.reading import Reading
from amqpscope.errors import Error, reason

if TYPE_CHECKING:
    import pyarrow.dataset as ds


class VerdictError(Error):
    """Captures or tables without the verdicts asked for; the text is one line."""


def tables_at(paths: list[str]) -> Place | None:
    """Return the folder of `connections`, if the only path is a folder that `dissect` wrote."""
    folder = place(paths[0]) / "connections"
    return folder if len(paths) == 1 and folder.is_dir() else None


def rows(source: Place | Reading, options: Options) -> Iterator[dict[str, Any]]:
    """Yield rows of `connections` with the columns in `listing.COLUMNS`.

    Raises:
        VerdictError: the tables come from a release without verdicts.
        CaptureError: a capture cannot be read.
    """
    batches = (b for name, b in source if name == "connections") if isinstance(source, Reading) else _of_tables(source)
    start, end = options.from_ns, options.to_ns
    for batch in batches:
        for row in batch.select(list(COLUMNS)).to_pylist():
            if (start is None or row["last_ts_ns"] >= start) and (end is None or row["first_ts_ns"] < end):
                yield row


def begin_ns(folder: Place) -> int:
    """Return the time of the first packet of the connections in a folder; 0 where there are none."""
    with _reading(folder):
        return pc.min(_dataset(folder).to_table(columns=["first_ts_ns"])["first_ts_ns"]).as_py() or 0


def packets(source: Place | Reading) -> int:
    """Return the number of packets in captures that were read, or from which tables were written."""
    if isinstance(source, Reading):
        return sum(seen.info.packets for seen in source.seen)
    folder = source.with_name("captures")
    with _reading(folder):
        return pc.sum(_dataset(folder).to_table(columns=["packets"])["packets"]).as_py() or 0


def _dataset(folder: Place) -> "ds.Dataset":
    import pyarrow.dataset as ds  # noqa: PLC0415 - it takes 0.2 s, with pandas twice that, and captures need none

    where, system = arrow(folder)
    return ds.dataset(where, filesystem=system, format="parquet" if any(folder.glob("*.parquet")) else "arrow")


@contextmanager
def _reading(folder: Place) -> Iterator[None]:
    """Raise a CaptureError where the tables cannot be read."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise CaptureError(f"{folder}: cannot read: {reason(error)}") from error


def _of_tables(folder: Place) -> Iterator[pa.RecordBatch]:
    with _reading(folder):
        table = _dataset(folder)
        missing = sorted(set(COLUMNS) - set(table.schema.names))
        if missing:
            raise VerdictError(f"{folder}: no verdicts in these tables ({missing[0]} is missing); dissect again")
        yield from table.to_batches(columns=list(COLUMNS))


CSV = (
    "connection_id", "client", "server", "protocol", "first", "last", "severity", "code", "summary", "remedy",
    "handshake_stage", "handshake_outcome", "ending", "handshake_ns", "closed_by", "reply_code", "reply_text", "vhost",
    "user", "first_capture", "first_packet",
)  # fmt: skip
"""Columns of `--format csv`."""


def write_csv(file: TextIO, connections: Iterable[dict[str, Any]]) -> None:
    """Write connections (`listing.as_dict`) as CSV, with a line of names."""
    writer = csv.DictWriter(file, CSV, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(connections)
