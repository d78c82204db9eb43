"""The batches of packets that a capture is read in."""

import io

from hypothesis import strategies as st

from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.capture.model import PacketBatch

batch_sizes = st.sampled_from([1, 64, 100, 333, 1 << 16])


def batches(
    content: bytes, compiled: bool = False, batch_bytes: int = 1 << 16
) -> tuple[list[PacketBatch], CaptureFile]:
    file = CaptureFile(io.BytesIO(content), "test", 3, batch_bytes=batch_bytes, spare=1000, compiled=compiled)
    return list(file), file


def rows(found: list[PacketBatch]) -> list[tuple[int, int, bytes, int, int]]:
    """Number, time, bytes, original length and link type of every packet."""
    return [
        (number, time, bytes(batch.data[offset : offset + caplen]), length, link)
        for batch in found
        for number, time, offset, caplen, length, link in zip(
            *(c.tolist() for c in (batch.packet, batch.ts_ns, batch.offset, batch.caplen, batch.length, batch.link)),
            strict=True,
        )
    ]
