"""Memory accounting: how many bytes are retained of each open connection, besides state rows of fixed width."""

import numpy as np

from amqpscope.dissector.kernels.arrays import Ints

CHUNK_COST = 256
"""Bytes of memory that a retained chunk takes besides its data."""


def most_retained(sizes: Ints) -> Ints:
    """Return the most bytes that may be retained of chunks of these sizes.

    That is twice the size when both a record and a message in it are kept.
    """
    return 2 * sizes + CHUNK_COST


class MemoryAccounting:
    """Retained bytes by slot; `total` is their sum."""

    def __init__(self) -> None:
        self.sizes = np.zeros(64, np.int64)
        self.total = 0

    def add(self, slots: Ints, sizes: Ints) -> None:
        """Add sizes to the accounts of these slots, which may occur several times."""
        if len(slots):
            self._reach(int(slots.max()))
            np.add.at(self.sizes, slots, sizes)
            self.total += int(sizes.sum())

    def change(self, slot: int, size: int) -> None:
        """Change the account of one slot by a positive or negative size."""
        self._reach(slot)
        self.sizes[slot] += size
        self.total += size

    def take_out(self, slots: Ints) -> Ints:
        """Count nothing more of connections; returns what it was."""
        self._reach(int(slots.max(initial=-1)))
        taken: Ints = self.sizes[slots]
        self.forget(slots)
        return taken

    def forget(self, slots: Ints) -> None:
        """Clear the accounts of ended connections."""
        slots = slots[slots < len(self.sizes)]
        self.total -= int(self.sizes[slots].sum())
        self.sizes[slots] = 0

    def heaviest(self) -> Ints:
        """Return the slots with half of the mean or more: together they hold more than half of all."""
        has = self.sizes > 0
        found: Ints = np.flatnonzero(has & (2 * self.sizes * np.count_nonzero(has) >= self.total))
        return found

    def _reach(self, slot: int) -> None:
        if slot >= len(self.sizes):
            self.sizes = np.concatenate([self.sizes, np.zeros(2 * slot + 2 - len(self.sizes), np.int64)])
