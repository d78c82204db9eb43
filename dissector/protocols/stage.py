"""What all protocols have in common that come in frames: the walk over pieces, and what it hands on."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.pool import APART, grown
from amqpscope.dissector.kernels.retained import Buffer, Ranges
from amqpscope.dissector.protocols.framing import Framing
from amqpscope.dissector.protocols.registry import Context
from amqpscope.dissector.protocols.rows import Faults, Made


class FramedStage:
    """The frames of all connections of one protocol; a protocol says in `take` what becomes of them.

    Args:
        context: what it belongs to.
        walk_pieces: the walk, `walking.walk_pieces` with the protocol's kernels in it.
        height: rows of the matrix of frames.
        width: columns of the protocol's own state of a direction, `self.directions`.
        codes: names of faults.
        ends: bytes of a frame's head, and bytes behind its payload.
        room: frames that a call of the kernel may bring, compiled.
    """

    def __init__(
        self, context: Context, walk_pieces: Callable[..., None], height: int, width: int, codes: tuple[str, ...],
        ends: tuple[int, int], room: int = 65_536,
    ) -> None:  # fmt: skip
        self.compiled = context.compiled
        self.walk_pieces = walk_pieces
        self.codes = codes
        self.ends = ends
        self.room = (room if context.compiled else 2_048) + APART
        self.framing = Framing(context.compiled, self.room)
        self.frames = np.empty((height, self.room), np.int64)
        self.directions = np.zeros((0, width), np.int64)
        """(directions, width), emptied when a connection begins; row 2 * slot + side."""

    @property
    def own(self) -> tuple[NDArray[Any], ...]:
        """What the protocol's kernels get besides."""
        return (self.directions,)

    @property
    def ranges(self) -> list[Ranges]:
        """Bytes of unfinished frames, which must outlive their batch."""
        return self.framing.ranges

    def begin(self, slots: Ints, states: Ints, capacity: int) -> None:
        """Take over connections; `states` are HEAD where a stream is seen from its start, else SEARCH."""
        if len(self.directions) < 2 * capacity:
            self.directions = grown(self.directions, 2 * capacity)
        for side in range(2):
            self.directions[2 * slots + side] = 0
        self.framing.begin(slots, states, capacity)

    def feed(self, pieces: Ints, count: int, buffer: Buffer, conn: Ints) -> Iterator[Made | Faults]:
        """Walk the first `count` pieces. Frames come out before the messages that they complete."""
        for _ in self.framing.rounds(pieces, count, buffer, self.walk_pieces, conn, self.frames, self.own):
            if self.framing.new_faults.shape[1]:
                yield self.faults(self.framing.new_faults.copy())
            frames, aside = self.framing.found
            if frames or aside:
                yield from self.take(frames, aside, buffer, conn)

    def take(self, frames: int, aside: int, buffer: Buffer, conn: Ints) -> Iterator[Made | Faults]:
        """Make rows of the first `frames` of `self.frames`, and of what else the walk put aside."""
        raise NotImplementedError

    def faults(self, rows: Ints) -> Faults:
        """Faults with the names of this protocol."""
        return Faults(rows, self.codes)

    def end(self, slots: Ints, conn: Ints, buffer: Buffer) -> Iterator[Made | Faults]:
        """Forget connections that are over, and hand on what was under way."""
        last = self.framing.last_pieces(slots)
        yield from self.feed(last, last.shape[1], buffer, conn)
        for cuts in self.framing.end(slots, *self.ends):
            yield self.faults(cuts)

    def skipped(self, slots: Ints) -> Ints:
        """Bytes passed over in the searches at hand, both directions together."""
        return self.framing.skipped(slots)

    def holding(self, slots: Ints) -> Iterator[tuple[int, int, bool]]:
        """Of these connections those that hold pieces back, the side looked at, and whether no frame of it was seen."""
        return self.framing.holding(slots)
