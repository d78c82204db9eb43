"""Bytes of streams that captures do not hold, counted for the connections that are decoded."""

import numpy as np

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.pool import grown
from amqpscope.dissector.tcp.layout import S_LENGTH, S_OFFSET, S_SLOT


class Gaps:
    """Counts of what is missing.

    Attributes:
        count: gaps of connections that are over.
        octets: bytes in them.
        connections: those that had any.
    """

    def __init__(self) -> None:
        self.count = self.octets = self.connections = 0
        self._open = np.zeros((0, 2), np.int64)  # of each slot: gaps, bytes

    def take(self, pieces: Ints, capacity: int) -> None:
        """Note the gaps among pieces, as TCP hands them on; there are so many slots."""
        holes = pieces[:, pieces[S_OFFSET] < 0]
        if not holes.shape[1]:
            return
        if len(self._open) < capacity:
            self._open = grown(self._open, capacity)
        np.add.at(self._open, holes[S_SLOT], np.stack([np.ones(holes.shape[1], np.int64), holes[S_LENGTH]], axis=1))

    def end(self, slots: Ints, decoded: Ints) -> None:
        """Connections are over; those of them that were decoded count."""
        slots, decoded = (s[s < len(self._open)] for s in (slots, decoded))
        count, octets = self._open[decoded].sum(axis=0).tolist()
        self.count += count
        self.octets += octets
        self.connections += int(np.count_nonzero(self._open[decoded, 0]))
        self._open[slots] = 0
