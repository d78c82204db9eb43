"""Which connections are in use: that somebody did more than come in."""

import numpy as np
from numpy.typing import NDArray

from dissector.arrays import Ints


class Used:
    """Slots of connections whose first use was seen."""

    def __init__(self) -> None:
        self.slots = np.zeros(0, np.bool_)

    def first(self, slot: Ints, is_use: NDArray[np.bool_]) -> Ints:
        """Indexes of frames of these slots that are the first use of their connection."""
        most = int(slot.max(initial=-1)) + 1
        if most > len(self.slots):
            self.slots = np.concatenate([self.slots, np.zeros(2 * most - len(self.slots), np.bool_)])
        uses = np.flatnonzero(is_use & ~self.slots[slot])
        first: Ints = uses[np.unique(slot[uses], return_index=True)[1]]
        return first

    def note(self, slots: Ints) -> None:
        """The first use of these was seen."""
        self.slots[slots] = True

    def forget(self, slots: Ints) -> None:
        """Connections that are over."""
        self.slots[slots[slots < len(self.slots)]] = False
