"""How a protocol is recognised in the middle of connections: by frames that follow each other."""

from typing import Any

import numpy as np

from amqpscope.dissector.kernels.arrays import Array, Bytes
from amqpscope.dissector.kernels.kernel import call, kernel, specialize
from amqpscope.dissector.protocols.resync import Own, next_frame
from amqpscope.dissector.protocols.state import Trial


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
        next_frame: the kernel that searches use, `resync.next_frame`.
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
