"""Find the frames that concern the handshake: those of the connection class, and the first use after it."""

import numpy as np
from numpy.typing import NDArray

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import call, kernel


class FirstUses:
    """The slots of connections whose first use was seen."""

    def __init__(self, compiled: bool) -> None:
        self.compiled = compiled
        self.slots = np.zeros(64, np.bool_)

    def relevant(self, slot: Ints, kind: Ints, of_handshake: NDArray[np.bool_], is_use: NDArray[np.bool_]) -> Ints:
        """Return indexes of frames that belong to a handshake, or are a connection's first use."""
        self._reach(int(slot.max(initial=-1)))
        found = np.empty(len(slot), np.int64)
        count = call(find, self.compiled, slot, kind, of_handshake, is_use, self.slots, found)
        return found[:count]

    def note(self, slots: Ints) -> None:
        """Note that the first use of these connections was seen."""
        self._reach(int(slots.max(initial=-1)))
        self.slots[slots] = True

    def seen(self, slots: Ints) -> NDArray[np.bool_]:
        """Return for which of these connections it was seen."""
        self._reach(int(slots.max(initial=-1)))
        found: NDArray[np.bool_] = self.slots[slots]
        return found

    def _reach(self, most: int) -> None:
        if most >= len(self.slots):
            self.slots = np.concatenate([self.slots, np.zeros(2 * most + 2 - len(self.slots), np.bool_)])

    def forget(self, slots: Ints) -> None:
        """Reset the slots of connections that have ended."""
        self.slots[slots[slots < len(self.slots)]] = False


@kernel
def find(slot: Array, kind: Array, of_handshake: Array, is_use: Array, used: Array, found: Array) -> int:
    """Write what `FirstUses.relevant` returns to `found`, and return their number; kinds below 0 are neither."""
    count = 0
    for i in range(len(slot)):
        what = kind[i]
        if what < 0:
            continue
        if of_handshake[what]:
            found[count] = i
            count += 1
        elif is_use[what] and not used[slot[i]]:
            used[slot[i]] = True
            found[count] = i
            count += 1
    for n in range(count):
        if not of_handshake[kind[found[n]]]:
            used[slot[found[n]]] = False
    return count
