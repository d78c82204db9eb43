"""How much is remembered of each open connection besides rows of fixed width: bytes that were read of it."""

import numpy as np

from amqpscope.dissector.kernels.arrays import Ints

PIECE_COST = 256
"""Bytes that a piece takes that is held back, besides its own."""


def most_retained(octets: Ints) -> Ints:
    """What may be remembered of pieces with so many octets: twice these where a record and a message in it are kept."""
    return 2 * octets + PIECE_COST


class MemoryAccounting:
    """Bytes by slot; `total` is their sum."""

    def __init__(self) -> None:
        self.octets = np.zeros(64, np.int64)
        self.total = 0

    def add(self, slots: Ints, octets: Ints) -> None:
        """So many more are remembered of these slots, which may come several times."""
        if len(slots):
            self._reach(int(slots.max()))
            np.add.at(self.octets, slots, octets)
            self.total += int(octets.sum())

    def change(self, slot: int, octets: int) -> None:
        """So many more, or with a negative number fewer, are remembered of one."""
        self._reach(slot)
        self.octets[slot] += octets
        self.total += octets

    def take_out(self, slots: Ints) -> Ints:
        """Count nothing more of connections; returns what it was."""
        self._reach(int(slots.max(initial=-1)))
        taken: Ints = self.octets[slots]
        self.forget(slots)
        return taken

    def forget(self, slots: Ints) -> None:
        """Connections that are over."""
        slots = slots[slots < len(self.octets)]
        self.total -= int(self.octets[slots].sum())
        self.octets[slots] = 0

    def heaviest(self) -> Ints:
        """Slots with half of the mean or more: together they have more than half of all."""
        has = self.octets > 0
        found: Ints = np.flatnonzero(has & (2 * self.octets * np.count_nonzero(has) >= self.total))
        return found

    def _reach(self, slot: int) -> None:
        if slot >= len(self.octets):
            self.octets = np.concatenate([self.octets, np.zeros(2 * slot + 2 - len(self.octets), np.int64)])
