"""Count gaps: bytes missing from the streams of decoded connections."""

import numpy as np

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.pool import grown
from amqpscope.dissector.tcp.state import Chunk


class Gaps:
    """Counts of gaps.

    Attributes:
        count: gaps of ended connections.
        bytes: bytes in them.
        connections: connections with gaps.
    """

    def __init__(self) -> None:
        self.count = self.bytes = self.connections = 0
        self._open = np.zeros((0, 2), np.int64)  # of each slot: gaps, bytes

    def take(self, chunks: Ints, capacity: int) -> None:
        """Count the gaps among chunks, as TCP emits them; `slots` is the number of slots."""
        gaps = chunks[:, chunks[Chunk.OFFSET] < 0]
        if not gaps.shape[1]:
            return
        self._reach(capacity)
        lengths = gaps[Chunk.LENGTH]
        np.add.at(self._open, gaps[Chunk.SLOT], np.stack([np.ones_like(lengths), lengths], axis=1))

    def take_out(self, slots: Ints) -> Ints:
        """Take out the counts of open connections: (n, 2)."""
        self._reach(int(slots.max(initial=-1)) + 1)
        taken: Ints = self._open[slots]
        self._open[slots] = 0
        return taken

    def put_back(self, taken: Ints, slots: Ints) -> None:
        """Put back what `take_out` returned."""
        self._reach(int(slots.max(initial=-1)) + 1)
        self._open[slots] = taken

    def _reach(self, capacity: int) -> None:
        if len(self._open) < capacity:
            self._open = grown(self._open, capacity)

    def end(self, slots: Ints, decoded: Ints) -> None:
        """Take the counts of ended connections, if they were decoded."""
        slots, decoded = (s[s < len(self._open)] for s in (slots, decoded))
        count, size = self._open[decoded].sum(axis=0).tolist()
        self.count += count
        self.bytes += size
        self.connections += int(np.count_nonzero(self._open[decoded, 0]))
        self._open[slots] = 0
