"""How a protocol is recognised in the middle of connections: by frames that follow each other.

The kernels `plausible`, `may_begin` and `may_be_long` are templates, as are the constants: a protocol lays its own
under their names (`build_kernels`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from amqpscope.dissector.kernels.arrays import Array, Bytes
from amqpscope.dissector.kernels.kernel import call, kernel, specialize
from amqpscope.dissector.protocols.candidates import Own, may_begin, next_frame
from amqpscope.dissector.protocols.state import Trial

HEAD_BYTES = 0
"""Fewest bytes of a frame that show whether it may be one."""
USUAL = 0
"""Largest frame in bytes that peers agree upon by default."""


@kernel
def plausible(data: Array, p: int, end: int, known: Array) -> int:
    """Return the size of the frame that may begin at p, wherever it ends; -1 where none can, 0 with too few bytes.

    The complement of its size where it is as good as two.
    """
    raise NotImplementedError


@kernel
def may_be_long(data: Array, p: int) -> bool:
    """Return whether what may begin at p is a frame of the kind that is longer than segments."""
    return False


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
def frame_follows(data: Array, start: int, p: int, end: int, known: Array) -> bool:
    """Return whether one frame may end and another begin at p, in bytes that begin at `start`. Its head is there."""
    return (p == start or may_begin(data, p)) and plausible(data, p, end, known) >= 0


@kernel
def long_frame(data: Array, start: int, end: int, known: Array) -> int:
    """Return where a frame ends that seems to begin in these bytes and is longer; -1: none does."""
    for p in range(start, end - HEAD_BYTES + 1):
        if may_be_long(data, p) and (p == start or may_begin(data, p)):
            size = plausible(data, p, end, known)
            if end - p < size <= USUAL:
                return p + size
    return -1


class Kernels(NamedTuple):
    """The kernels above with a protocol's own in them."""

    looks_like_frames: Callable[..., int]
    frame_follows: Callable[..., bool]
    long_frame: Callable[..., int]


def build_kernels(**own: Any) -> Kernels:
    """Return the kernels for a protocol, with its kernels and constants."""
    return Kernels(
        specialize(looks_like_frames, **own), specialize(frame_follows, **own), specialize(long_frame, **own)
    )


class LongFramesRecogniser:
    """Recognises a protocol by frames that follow each other, also where they are longer than segments.

    Args:
        compiled: run kernels compiled.
        kernels: as `build_kernels` returns them.
        known: what they need of the protocol.
        head_bytes: bytes of a frame's head.
    """

    def __init__(self, compiled: bool, kernels: Kernels, known: Array, head_bytes: int) -> None:
        self.compiled = compiled
        self.kernels = kernels
        self.known = known
        self.head_bytes = head_bytes

    def look(self, data: Bytes, begin: int, end: int, position: int, due: int) -> tuple[bool, int]:
        """Return whether these bytes are frames, or a longer one ends in them; see `registry.Recogniser`."""
        if call(self.kernels.looks_like_frames, self.compiled, data, begin, end, self.known) >= 0:
            return True, -1
        at = due - position + begin if due >= 0 else -1
        if at > end - self.head_bytes:
            return False, due
        if at >= begin and call(self.kernels.frame_follows, self.compiled, data, begin, at, end, self.known):
            return True, -1
        after = call(self.kernels.long_frame, self.compiled, data, begin, end, self.known)
        return False, position + after - begin if after >= 0 else -1


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
