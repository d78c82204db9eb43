"""What all protocols have in common that come in frames: the walk over chunks, and what it yields."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.kernels.coding import Target
from amqpscope.dissector.kernels.retained import Buffer, Ranges
from amqpscope.dissector.protocols import transfer
from amqpscope.dissector.protocols.framing import Framing
from amqpscope.dissector.protocols.registry import Context
from amqpscope.dissector.protocols.rows import Faults, Made
from amqpscope.dissector.protocols.state import SEARCH, Cursor

CROWDED = (
    f"more than {limits.WAITING_BYTES} bytes, or {limits.FRAGMENTS} segments, were searched for the next frame "
    "or the client: further frames after a gap may be missing"
)


class FramedStage:
    """The frames of all connections of one protocol; a protocol says in `take` what becomes of them.

    Args:
        context: what it belongs to.
        walk_chunks: the walk, as `parser.build_parser` makes it.
        frames: room for frames that a call of it may bring, one column each.
        aside: room for what it brings besides.
        codes: names of faults.
        ends: bytes of a frame's head, and bytes after its payload.
    """

    def __init__(
        self, context: Context, walk_chunks: Callable[..., None], frames: Ints, aside: Ints, codes: tuple[str, ...],
        ends: tuple[int, int],
    ) -> None:  # fmt: skip
        self.context = context
        self.compiled = context.compiled
        self.walk_chunks = walk_chunks
        self.frames, self.aside = frames, aside
        self.codes = codes
        self.ends = ends
        self.framing = Framing(context.compiled, frames, aside)

    @property
    def own(self) -> Any:
        """What the protocol's kernels get besides: a NamedTuple of arrays."""
        raise NotImplementedError

    @property
    def ranges(self) -> list[Ranges]:
        """Bytes of unfinished frames, which must outlive their batch."""
        return self.framing.ranges

    def begin(self, slots: Ints, states: Ints, capacity: int) -> None:
        """Take over connections; `states` are HEAD where a stream is seen from its start, else SEARCH."""
        self.framing.begin(slots, states, capacity)

    def feed(self, chunks: Ints, count: int, buffer: Buffer, facts: Ints) -> Iterator[Made | Faults]:
        """Walk the first `count` chunks. Frames come out before the messages that they complete."""
        for _ in self.framing.rounds(chunks, count, buffer, self.walk_chunks, facts, self.own):
            if self.framing.cursor[Cursor.CROWDED]:
                self.context.reached.add(CROWDED)
            if self.framing.new_faults.shape[1]:
                yield self.faults(self.framing.new_faults.copy())
            frames, aside = self.framing.found
            if frames or aside:
                yield from self.take(frames, aside, buffer, facts)

    def take(self, frames: int, aside: int, buffer: Buffer, facts: Ints) -> Iterator[Made | Faults]:
        """Make rows of the first columns of `self.frames`, and of the other rows of the walk."""
        raise NotImplementedError

    def faults(self, rows: Ints) -> Faults:
        """Return faults with the names of this protocol."""
        return Faults(rows, self.codes)

    def end(self, slots: Ints, facts: Ints, buffer: Buffer) -> Iterator[Made | Faults]:
        """Forget connections that are over, and yield what was under way."""
        last = self.framing.last_chunks(slots)
        yield from self.feed(last, last.shape[1], buffer, facts)
        for cuts in self.framing.end(slots, facts, *self.ends):
            yield self.faults(cuts)

    def take_out(self, slots: Ints, data: Bytes) -> bytes:
        """Take the state of connections out; `data` has the bytes that are retained of them."""
        return transfer.take_out(self.framing, slots, data)

    def put_back(self, data: bytes, target: Target) -> None:
        """Put back what `take_out` took."""
        self.begin(target.slots, np.full(len(target.slots), SEARCH), target.capacity)
        transfer.put_back(self.framing, data, target)

    def end_lost(self, slots: Ints) -> NDArray[np.bool_]:
        """Return which connections may lack the last frames of a direction."""
        return self.framing.end_lost(slots)

    def holding(self, slots: Ints) -> Iterator[tuple[int, int, bool, int]]:
        """Return which of these connections hold chunks back (`registry.Stage`)."""
        return self.framing.holding(slots)
