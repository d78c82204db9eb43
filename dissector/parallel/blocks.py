"""Segments of many captures on the way to the dissectors of their flows: cut where they are read, merged where they go.

Readers of captures work side by side. Each cuts its segments into blocks, one for each part of the flows; sorted, the
blocks of a part hold its segments in the order of one process that merges all captures (`packets.merging`).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.capture.model import Range
from amqpscope.dissector.capture.sources import Source
from amqpscope.dissector.packets.decoder import PacketDecoder
from amqpscope.dissector.packets.merging import Decoded, Seat
from amqpscope.dissector.parallel import flows
from amqpscope.dissector.parallel.flows import Halves

KEY = "key"
"""Column of segments: the running maximum of time, from the floor of their capture on."""
BATCH = 4 << 20
"""Bytes of packets read at a time."""
ROOM = 16 << 20
"""Bytes of segments that a reader collects before it cuts blocks."""
ENOUGH = 4 << 20
"""Bytes of segments that a dissector takes at a time, about."""


class Seated(NamedTuple):
    """A capture to read, with its index and its seat among the others.

    Attributes:
        part: the range of it to read; None: all of it.
    """

    source: Source
    capture: int
    seat: Seat
    part: Range | None = None


class Block(NamedTuple):
    """Consecutive segments of one capture that belong to one part of the flows; or secrets, which belong to all parts.

    Sorted by (key, capture, number), the blocks of a part come as `merged` takes them.

    Attributes:
        part: which part.
        key: that of the first segment; of secrets, that of the last segment before them.
        capture: index of the capture.
        number: position among the blocks of this capture: grows, from the byte on where their range begins.
        segments: stream of Arrow (`flows.SCHEMA` and KEY); empty for secrets.
        secrets: a TLS key log that the capture holds here.
    """

    part: int
    key: int
    capture: int
    number: int
    segments: bytes
    secrets: bytes = b""


ORDER = ("key", "capture", "number")
"""What the blocks of a part are sorted by."""
SCHEMA = pa.schema(
    [
        ("part", pa.int32()), ("key", pa.int64()), ("capture", pa.int32()), ("number", pa.int64()),
        ("segments", pa.binary()), ("secrets", pa.binary()),
    ]
)  # fmt: skip
"""Blocks as rows."""


def written(block: Block) -> pa.RecordBatch:
    """Return a block as a row (SCHEMA)."""
    return pa.RecordBatch.from_pydict({name: [value] for name, value in block._asdict().items()}, SCHEMA)


def read(batches: Iterable[pa.RecordBatch]) -> Iterator[Block]:
    """Yield the blocks of rows (SCHEMA)."""
    for rows in batches:
        for row in range(rows.num_rows):
            yield Block(*(column[row].as_py() for column in rows.columns))


def cut(captures: Iterable[Seated], parts: int, compiled: bool, addresses: Collection[Halves] = ()) -> Iterator[Block]:
    """Yield the blocks of captures that are read one after the other, by one decoder of packets.

    Args:
        captures: to read.
        parts: number of parts of the flows.
        compiled: whether kernels run compiled.
        addresses: whose flows are wanted; empty: all flows.
    """
    decoder = PacketDecoder()
    for source, capture, seat, part in captures:
        number, size, last = part.begin if part else 0, 0, seat.floor
        waiting: list[list[pa.RecordBatch]] = [[] for _ in range(parts)]
        how: dict[str, Any] = {"batch_bytes": BATCH, "compiled": compiled, "part": part}
        for batch in CaptureFile(source.path, source.given, capture, alone=False, **how):
            if batch.secrets or size > ROOM:
                yield from _blocks(waiting, capture, number)
                number, size = number + 1, 0
            for secrets in batch.secrets:
                yield from (Block(part, last, capture, number, b"", secrets) for part in range(parts))
                number += 1
            segments, _ = decoder.segments(batch, compiled, seat.point)
            keys = np.maximum.accumulate(np.maximum(segments.ts_ns, last))
            last = int(keys[-1]) if len(keys) else last
            if addresses:
                wanted = flows.of_addresses(segments, addresses)
                segments, keys = segments.cut(wanted), keys[wanted]
            decoded = Decoded(segments, batch.data, batch.used)
            for rows, found in zip(waiting, flows.split(decoded, parts, compiled, {KEY: keys}), strict=True):
                if found.num_rows:
                    rows.append(found)
                    size += found.nbytes
        yield from _blocks(waiting, capture, number)


def _blocks(waiting: Sequence[list[pa.RecordBatch]], capture: int, number: int) -> Iterator[Block]:
    for part, rows in enumerate(waiting):
        if rows:
            yield Block(part, rows[0][KEY][0].as_py(), capture, number, flows.written(rows, "lz4"))
            rows.clear()


def merged(blocks: Iterable[Block]) -> Iterator[Decoded | bytes]:
    """Yield the segments of the sorted blocks of one part, in order, and secrets where they come between them."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for block in blocks:
        if waiting and (size > ENOUGH or block.secrets):
            ready, waiting = _before(waiting, block)
            if ready.num_rows:
                yield flows.joined([ready])
            size = sum(rows.nbytes for rows in waiting)
        if block.secrets:
            yield block.secrets
            continue
        found = list(pa.ipc.open_stream(block.segments))
        waiting += found
        size += sum(rows.nbytes for rows in found)
    if waiting:
        yield flows.joined([_sorted(waiting)])


def _before(waiting: Sequence[pa.RecordBatch], block: Block) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
    """Return the segments before a block, in order, and the others."""
    rows = _sorted(waiting)
    keys, captures = rows[KEY].to_numpy(), rows["capture"].to_numpy()
    count = int(np.count_nonzero((keys < block.key) | ((keys == block.key) & (captures <= block.capture))))
    rest = rows.slice(count)
    return rows.slice(0, count), [rest] if rest.num_rows else []


def _sorted(waiting: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return segments in order of key and capture; those of a capture stay in their order."""
    rows = pa.concat_batches(waiting)
    captures = rows["capture"].to_numpy()
    if (captures == captures[0]).all():
        return rows
    return rows.take(pa.array(np.lexsort((captures, rows[KEY].to_numpy()))))
