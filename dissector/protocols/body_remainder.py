"""Where the body frame ends whose head was lost, when its content's rest is known.

The first kernels are templates: a protocol lays its own under their names.
"""

from collections.abc import Callable
from typing import Any

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel, specialize
from amqpscope.dissector.protocols.candidates import Own, next_frame
from amqpscope.dissector.protocols.state import BodyRemainder, Parser, ParserState, Trial

OVERHEAD, HEAD_BYTES = 0, 0
"""Bytes of a body frame besides its payload, and of its head."""
USUAL = 0
"""Largest frame in bytes that peers agree upon by default."""
SMALL = 4_096
"""The size that all peers must take (AMQP 0-9-1 §4.2.2, frame-min-size; 0-10, MIN-MAX-FRAME-SIZE)."""
BINDING = True
"""Whether the announced size of a content is what its frames add up to."""


@kernel
def may_end(data: Array, p: int) -> bool:
    """Return whether a frame may end before p."""
    return True


@kernel
def body_at(data: Array, p: int, channel: int) -> int:
    """Return the size of the payload of the body frame of this channel that seems to begin at p; -1: none does."""
    raise NotImplementedError


@kernel
def expected_boundary(walk: ParserState, base: int, n: int, pos: int, row: int, own: Own) -> int:
    """Return where the body frame ends whose head was lost; as `resync.expected_boundary`.

    A content's frames are as large as its last full one, or as others before, or as is usual, and the last is the rest.
    """
    parsers, announced, data = walk.parsers, own.announced, walk.data
    lost = parsers[row, Parser.LOST]
    rest = parsers[row, Parser.REST]
    if lost < 0 or rest <= 0 or rest > 1 << 40:
        return -1
    sure = False
    is_later = False
    for choice in range(5):
        size = announced[row, BodyRemainder.BODY]
        if choice == 1:
            size = rest
        elif choice == 2:
            size = parsers[row, Parser.LARGEST] - OVERHEAD
        elif choice == 3:
            size = USUAL - OVERHEAD
        elif choice == 4:
            size = SMALL - OVERHEAD
        if size <= 0:
            continue
        # the first end of a frame that is not before these bytes
        frames = max((pos - lost + size + OVERHEAD - 1) // (size + OVERHEAD), 1)
        passed = min(frames * size, rest)
        place: int = lost + passed + OVERHEAD * min(frames, (rest + size - 1) // size) - pos
        if place < 0:
            continue
        if place + HEAD_BYTES > n:
            is_later = True
            sure = sure or (BINDING and (choice == 0 or rest <= SMALL - OVERHEAD))
            continue
        at = base + place
        if place > 0 and not may_end(data, at):
            continue
        if passed < rest:
            if body_at(data, at, announced[row, BodyRemainder.CHANNEL]) == min(size, rest - passed):
                parsers[row, Parser.REST] = rest - passed
                announced[row, BodyRemainder.PASSED] = passed
                return place
            continue
        walk.trial[Trial.CHANNEL] = -1
        if next_frame(data, at, base + n, walk.trial, own) >= 0:
            parsers[row, Parser.REST] = 0
            announced[row, BodyRemainder.PASSED] = rest
            return place
    if sure:
        return -3
    return -2 if is_later else -1


def build_kernels(**own: Any) -> Callable[..., int]:
    """Return `expected_boundary` for a protocol, with its kernels and constants."""
    return specialize(expected_boundary, **own)
