"""Frames of AMQP 0-10 as events."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.model.events import SPOKEN, source_of

FRAMES_010 = source_of("amqp010_frames")
PROTOCOL = SPOKEN[FRAMES_010]
HEAD = 12
"""Bytes of the head of a frame."""


def prepared(frames: pa.Table) -> pa.Table:
    """Return frames of AMQP 0-10 with `cut` (int8), and `content_size`: their bytes of header and body."""
    kind = frames["segment_type"].cast(pa.string())
    is_content = pc.fill_null(pc.is_in(kind, value_set=pa.array(["header", "body"])), False)
    cut = pc.and_not(pc.and_(frames["is_partial"], pc.is_valid(kind)), is_content)
    size = pc.if_else(is_content, pc.subtract(frames["size"].cast(pa.int64()), HEAD), 0)
    return frames.append_column("cut", pc.fill_null(cut, False).cast(pa.int8())).append_column("content_size", size)
