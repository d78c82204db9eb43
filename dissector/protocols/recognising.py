"""How a protocol is recognised in the middle of connections: by frames that follow each other.

The kernels `plausible` and `may_begin` are templates, as is HEAD_BYTES: a protocol lays its own under their names.
"""

from typing import Any

import numpy as np

from amqpscope.dissector.kernels.arrays import Array, Bytes
from amqpscope.dissector.kernels.kernel import call, kernel, specialize
from amqpscope.dissector.protocols.candidates import Own, may_begin, next_frame
from amqpscope.dissector.protocols.state import Trial

HEAD_BYTES = 0
"""Fewest bytes of a frame that show whether it may be one."""


@kernel
def plausible(data: Array, p: int, end: int, known: Array) -> int:
    """Return the size of the frame that may begin at p, wherever it ends; -1 where none can, 0 with too few bytes.

    The complement of its size where it is as good as two.
    """
    raise NotImplementedError


@kernel
def looks_like_frames(data: Array, start: int, end: int, known: Array) -> int:
    """Return where whole frames begin in bytes of a protocol that is not known, or -1.

    At the start of a chunk one whole frame is enough, for senders like to begin segments with a frame; elsewhere there
    must be two, or one that fills the rest.

    Args:
        data: the buffer.
        start: where the bytes begin.
        end: where they end.
        known: what `plausible` needs of the protocol.
    """
    for p in range(start, end - HEAD_BYTES + 1):
        if p > start and not may_begin(data, p):
            continue
        q = p
        count = 0
        while end - q >= HEAD_BYTES and count < 8:
            size = plausible(data, q, end, known)
            if size == -1:
                count = -1
                break
            if size < 0:
                size = ~size
                count += 2
            if size == 0 or q + size > end:
                break
            q += size
            count += 1
        if count >= 2 or (count == 1 and (p == start or q == end)):
            return p
    return -1


@kernel
def follow_each_other(data: Array, p: int, end: int, trial: Array, own: Own) -> bool:
    """Return whether bytes are whole frames of whoever sends them, and nothing else."""
    trial[Trial.CHANNEL] = -1
    trial[Trial.SENDER] = 3
    size = 1
    while p < end and size > 0:
        size = next_frame(data, p, end, trial, own)
        p += size
    return p == end and size > 0


class FramesRecogniser:
    """Recognises a protocol where a segment begins and ends with its frames; for those with much in their heads.

    Args:
        compiled: run kernels compiled.
        next_frame: the kernel that searches use, `candidates.next_frame`.
        own: what that gets besides.
    """

    def __init__(self, compiled: bool, next_frame: Any, own: Own) -> None:
        self.compiled = compiled
        self.follow = specialize(follow_each_other, next_frame=next_frame)
        self.own = own
        self.trial = Trial.make(1)[0]

    def look(self, data: Bytes, begin: int, end: int, position: int, due: int) -> tuple[bool, int]:
        """Return whether these bytes are frames; see `registry.Recogniser`."""
        padded = np.concatenate([data[begin:end], np.zeros(16, np.uint8)])  # kernels may look a little beyond
        return bool(call(self.follow, self.compiled, padded, 0, end - begin, self.trial, self.own)), -1
