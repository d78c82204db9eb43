"""Frames of AMQP 0-9-1 as events."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.pipelines.model.events import SPOKEN, source_of, what

FRAMES = source_of("amqp091_frames")
PROTOCOL = SPOKEN[FRAMES]
NUMBERED = ("basic.ack", "basic.nack", "basic.reject")
"""Answers that mean nothing without their number."""
_NUMBERED = [what(FRAMES, method) for method in NUMBERED]


def prepared(frames: pa.Table) -> pa.Table:
    """Return frames with `cut` (int8): 1 if its content is unknown, 2 for an answer without its number."""
    return frames.append_column("cut", _cut(frames))


def _cut(frames: pa.Table) -> pa.Array:
    # of a whole method without a name, the ids are unknown ones
    may_be_cut = pc.or_kleene(frames["is_partial"], pc.is_null(frames["method"]))
    if not pc.any(may_be_cut).as_py():
        return pa.repeat(pa.scalar(0, pa.int8()), len(frames))
    method = pc.and_(may_be_cut, pc.equal(frames["frame_type"].cast(pa.string()), "method"))
    number = pc.or_(pc.is_null(frames["delivery_tag"]), pc.is_null(frames["multiple"]))
    answers = pc.and_(pc.is_in(frames["what"], value_set=pa.array(_NUMBERED, pa.int16())), number)
    cut = pc.if_else(pc.is_null(frames["method"]), 1, pc.if_else(answers, 2, 0))
    return pc.fill_null(pc.if_else(method, cut, 0), 0).cast(pa.int8())
