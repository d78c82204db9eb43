"""Lengths of methods and headers that cannot be right, because of their fields, or because other frames lie in them.

With a damaged length, a frame may end where another one does: nothing else shows it where frames repeat. Then frames
follow each other in its payload up to its own frame-end, and its fields end before these. A payload that holds frames
by intent ends after its fields.
"""

import numpy as np

from amqpscope.dissector.fields.opcodes import BIT, FLAGS, TABLE, TEXT
from amqpscope.dissector.fields.plan import Plan
from amqpscope.dissector.fields.state import Op
from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.integers import be16, be32, unsigned
from amqpscope.dissector.kernels.kernel import i64, kernel, u64
from amqpscope.dissector.kernels.words import HIGH_BITS, WORD, word
from amqpscope.dissector.protocols.amqp091.boundary import HEADER_BYTES, may_begin_head, plausible
from amqpscope.dissector.protocols.amqp091.layout import FRAME_END, IDS_BYTES, METHOD, OVERHEAD, method_index
from amqpscope.dissector.protocols.amqp091.state import Own

FLAG_BYTES = 2
"""Bytes of a word of property flags."""
PUBLISHED, ACK = 60 << 16 | 40, 60 << 16 | 80
"""Class and method of basic.publish and basic.ack."""


def programs(*plans: Plan) -> tuple[Ints, Ints]:
    """Return first ops and ops of the programs of several plans, one plan after the other."""
    begins = np.cumsum([0, *(len(plan.ops) for plan in plans)])
    starts = [plan.starts[:-1] + begin for plan, begin in zip(plans, begins, strict=False)]
    return np.concatenate([*starts, begins[-1:]]), np.concatenate([plan.ops for plan in plans])


@kernel
def has_length(data: Array, p: int, size: int) -> bool:
    """Return whether a method's payload of this size may be whole; for the methods that are counted, it is known.

    Those are basic.publish, with a reserved short and two texts before its bits, and basic.ack (§1.8.3.7, §1.8.3.13).
    """
    ids = be32(data, p) if size >= 4 else 0
    if ids == ACK:
        return size == 13
    if ids != PUBLISHED or size < 9:
        return True
    text = p + 7 + i64(data[p + 6])
    return text >= p + size or text + 2 + i64(data[text]) == p + size


@kernel
def frame_inside_payload(data: Array, p: int, size: int, kind: int, own: Own) -> int:
    """Return where, in a payload at p after which there is a frame-end, frames begin that end there; -1: nowhere."""
    end = p + size + 1
    q = p + IDS_BYTES + 1
    while q + OVERHEAD <= end:
        if word(data, q - 1) & u64(HIGH_BITS) == 0:  # no frame-end among eight bytes
            q += WORD
            continue
        if data[q - 1] == FRAME_END:
            r = q
            while end - r >= OVERHEAD:
                length = plausible(data, r, end, own.methods)
                if length < 0:
                    break
                r += length
            if r == end:
                return -1 if payload_end(data, p, end - 1, kind, own) == end - 1 else q
        q += 1
    return -1


@kernel
def shorter_end(data: Array, p: int, size: int, kind: int, own: Own) -> int:
    """Return where another frame begins in a payload at p, whose fields and a frame-end lie before it; -1: nowhere."""
    end = p + size
    q = payload_end(data, p, end, kind, own) + 1
    if q <= 0 or q >= end or data[q - 1] != FRAME_END or not may_begin_head(data, q, end, own):
        return -1
    return q


@kernel
def payload_end(data: Array, p: int, end: int, kind: int, own: Own) -> int:
    """Return where the fields of the method or header at p end; -1: not before `end`, or nobody knows.

    Bits share bytes here, and properties have flags, as `fields.decoding.fields_end` does not know them.
    """
    methods = len(own.starts) - 1 - len(own.contents)
    program = method_index(own.methods, be16(data, p), be16(data, p + 2)) if kind == METHOD else -1
    at = p + IDS_BYTES
    if kind != METHOD:
        at = p + HEADER_BYTES - FLAG_BYTES
        for k in range(len(own.contents)):
            if own.contents[k] == be16(data, p):
                program = methods + k
    if program < 0:
        return -1
    flags = 0
    bits = 0
    for op in range(own.starts[program], own.starts[program + 1]):
        what, width, flag = own.ops[op, Op.KIND], own.ops[op, Op.BYTES], own.ops[op, Op.FLAG]
        if flag >= 0 and (flags >> flag) & 1 == 0:
            continue
        if what == BIT:  # eight of them share a byte
            width = 1 if bits % 8 == 0 else 0
            bits += 1
        else:
            bits = 0
        if what == FLAGS:
            width = FLAG_BYTES
        if at + width > end:
            return -1
        value = unsigned(data, at, width) if width <= 4 else 0
        at += width
        if what == FLAGS:
            if value & 1:  # more words follow: no class has so many properties
                return -1
            flags = value >> 1
        elif what in (TEXT, TABLE):
            at += value
    return at if at <= end else -1
