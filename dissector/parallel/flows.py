"""Split TCP segments by flow, as Arrow: what one process decodes from packets, others reassemble.

Both directions of a connection, and all connections between the same endpoints, are one flow. Rows of a connection
depend on the segments of its flow alone.
"""

import ipaddress
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.dissector.kernels.words import copy_bytes
from amqpscope.dissector.packets.merging import Decoded
from amqpscope.dissector.packets.segments import SegmentBatch
from amqpscope.dissector.tcp.numbers import endpoints, side_of

NUMBERS = tuple(name for name in SegmentBatch._fields if name not in ("row", "offset"))
"""Columns of segments that mean the same in every process."""
PAYLOAD = "payload"
SCHEMA = pa.schema([*((name, pa.int64()) for name in NUMBERS), (PAYLOAD, pa.binary())])
"""Segments, in capture order; `payload` are the captured bytes."""
SPARE = 1 << 16
"""Least bytes of unused room after the payloads of segments."""
Halves = tuple[int, int]
"""The upper and the lower half of an address, as in `SegmentBatch`."""
NOTHING: Mapping[str, Ints] = {}


@kernel
def choose(batch: SegmentBatch, count: int, out: Array) -> None:
    """Write the part that each segment belongs to, 0 to `count` - 1: the same for both directions of a flow."""
    for i in range(len(out)):
        a_hi, a_lo, a_port, b_hi, b_lo, b_port = endpoints(batch, i, side_of(batch, i))
        flow = mix(mix(mix(mix(a_hi, a_lo), b_hi), b_lo), a_port << 16 | b_port)  # two hashes of one address cancel
        out[i] = mix(flow, 0) % count


@kernel
def pack(data: Array, offset: Array, caplen: Array, out: Array) -> None:
    """Copy payloads, one after the other. `out` has room for them."""
    at = 0
    for i in range(len(offset)):
        size = caplen[i]
        if size > 0:  # the first and the last byte lie in both, so all do
            start = offset[i]
            out[at] = data[start]
            out[at + size - 1] = data[start + size - 1]
            copy_bytes(data, start, out, at, size)
            at += size


def halves(address: str) -> Halves:
    """Return an address as segments have it.

    Raises:
        ValueError: the text is not an address.
    """
    parsed = ipaddress.ip_address(address)
    packed = parsed.packed if parsed.version == 6 else b"\0" * 10 + b"\xff\xff" + parsed.packed
    return int.from_bytes(packed[:8], signed=True), int.from_bytes(packed[8:], signed=True)


def of_addresses(segments: SegmentBatch, addresses: Collection[Halves]) -> Ints:
    """Return the indexes of the segments that one of these addresses sent or received: all of its flows."""
    found = np.zeros(len(segments.ts_ns), np.bool_)
    for high, low in addresses:
        found |= (segments.src_hi == high) & (segments.src_lo == low)
        found |= (segments.dst_hi == high) & (segments.dst_lo == low)
    return np.flatnonzero(found)


def part(segments: SegmentBatch, number: int, count: int, compiled: bool) -> SegmentBatch:
    """Return the segments of one part of `count`, in their order."""
    parts = np.empty(len(segments.ts_ns), np.int64)
    call(choose, compiled, segments, count, parts)
    return segments.cut(np.flatnonzero(parts == number))


def split(decoded: Decoded, count: int, compiled: bool, further: Mapping[str, Ints] = NOTHING) -> list[pa.RecordBatch]:
    """Return the segments of each part (SCHEMA), in their order; `further` are more columns of them."""
    parts = np.empty(len(decoded.segments.ts_ns), np.int64)
    call(choose, compiled, decoded.segments, count, parts)
    order = np.argsort(parts, kind="stable")
    segments = decoded.segments.cut(order)
    ends = np.zeros(len(parts) + 1, np.int32)
    np.cumsum(segments.caplen, out=ends[1:])
    payload = np.empty(int(ends[-1]), np.uint8)
    call(pack, compiled, decoded.data, segments.offset, segments.caplen, payload)
    columns = [pa.array(column) for name, column in segments._asdict().items() if name in NUMBERS]
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(payload)]
    columns.append(pa.BinaryArray.from_buffers(pa.binary(), len(parts), buffers))
    columns += [pa.array(column[order]) for column in further.values()]
    rows = pa.RecordBatch.from_arrays(columns, [*SCHEMA.names, *further])
    sizes = np.bincount(parts, minlength=count)
    begins = np.cumsum(sizes) - sizes
    return [rows.slice(begin, size) for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True)]


def written(batches: Sequence[pa.RecordBatch], compression: str | None = None) -> bytes:
    """Return segments as a stream of Arrow."""
    sink = pa.BufferOutputStream()
    schema = batches[0].schema if batches else SCHEMA
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def joined(batches: Sequence[pa.RecordBatch]) -> Decoded:
    """Return segments (SCHEMA) as a `Dissector` takes them."""
    rows = pa.concat_batches(batches)
    columns: Ints = np.zeros((len(SegmentBatch._fields), rows.num_rows), np.int64)
    segments = SegmentBatch(*columns)
    for name in NUMBERS:
        getattr(segments, name)[:] = rows[name].to_numpy()
    _, ends, payload = rows[PAYLOAD].buffers()
    places = np.frombuffer(ends, np.int32)[rows[PAYLOAD].offset :][: rows.num_rows + 1]
    used = int(places[-1] - places[0])
    segments.offset[:] = places[:-1] - places[0]
    data = np.empty(2 * used + SPARE, np.uint8)
    data[:used] = np.frombuffer(payload or b"", np.uint8)[places[0] : places[-1]]
    return Decoded(segments, data, used)
