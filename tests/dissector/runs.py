"""Runs of the dissector over captures that lie in memory or beside the tests, and their rows."""

import io
from collections.abc import Iterable
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.capture.sources import find
from amqpscope.dissector.dissector import Dissector, Options
from amqpscope.dissector.reading import Reading
from amqpscope.dissector.tables.rows import schemas as all_schemas
from tests.dissector.builders import Packet, pcap
from tests.reference.packets import read_packets

FOLDER = Path(__file__).parents[1] / "captures"
SETS = [path for path in FOLDER.iterdir() if path.is_dir() and any(path.glob("*.pcap"))]
CAPTURES = sorted(
    path
    for path in [*FOLDER.glob("*.pcap"), *FOLDER.glob("*.pcapng"), *SETS]
    if (FOLDER / f"{path.stem}.golden.json").exists()
)

BOTH = pytest.mark.parametrize("compiled", [False, True])
"""A test of kernels as they are, and compiled."""

Row = dict[str, Any]
Batches = Iterable[tuple[str, pa.RecordBatch]]


def tables(batches: Batches, options: Options | None = None, check: bool = False) -> dict[str, pa.Table]:
    """All tables; with `check` every batch is held to Arrow's rules in full."""
    schemas = all_schemas(options.protocol if options else None)
    found: dict[str, list[pa.RecordBatch]] = {name: [] for name in schemas}
    for name, batch in batches:
        if check:
            batch.validate(full=True)
        found[name].append(batch)
    return {name: pa.Table.from_batches(found[name], schema) for name, schema in schemas.items()}


def dissect(*paths: Path | str, check: bool = False, **how: Any) -> dict[str, pa.Table]:
    """The tables of capture files; `how` goes to `Reading`, which is interpreted by default.

    A key log that lies beside a capture is used unless options are given.
    """
    keylog = Path(paths[0]).with_suffix(".keylog")
    if keylog.exists():
        how.setdefault("options", Options(keylog=str(keylog)))
    reading = Reading(find([str(path) for path in paths]), **({"compiled": False} | how))
    return tables(reading, how.get("options"), check)


def dissect_packets(
    packets: list[Packet], link: int = 1, compiled: bool = False, batch_bytes: int = 1 << 20, check: bool = False,
    options: Options | None = None, ends: bool = True,
) -> dict[str, pa.Table]:  # fmt: skip
    """The tables of packets (without that of captures), or what there is of them before the capture `ends`."""
    dissector = Dissector(options, compiled)
    dissector.captures.append("memory.pcap")
    data = io.BytesIO(pcap(packets, ns=True, link=link))

    def batches() -> Batches:
        for batch in CaptureFile(data, "memory.pcap", 0, batch_bytes=batch_bytes, compiled=compiled):
            yield from dissector.feed(batch)
        if ends:
            yield from dissector.finish()

    return tables(batches(), options, check)


def recorded(name: str) -> tuple[list[Packet], int]:
    """The packets of a recorded pcap file, and its link type."""
    found = read_packets(FOLDER / name)
    return [Packet(packet.ts_ns, packet.data) for packet in found], found[0].link_type


def rows(table: pa.Table, *left_out: str) -> list[Row]:
    """The rows, by connection and frame number, then as they came."""
    found = plain_rows(table.drop_columns([name for name in left_out if name in table.schema.names]))
    if "frame_no" in table.schema.names:
        last = 1 << 62
        order = zip(table["connection_id"].to_pylist(), table["frame_no"].to_pylist(), strict=True)
        keys = [(connection or 0, last if number is None else number) for connection, number in order]
        found = [found[i] for i in sorted(range(len(found)), key=keys.__getitem__)]
    return found


def plain_rows(table: pa.Table) -> list[Row]:
    """The rows as `to_pylist` has them, which takes twice as long, most of it for the zone of each time."""
    names = table.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*map(_values, table.columns), strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    if not pa.types.is_timestamp(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    return [ts and ts.replace(tzinfo=UTC) for ts in column.to_numpy().tolist()]
