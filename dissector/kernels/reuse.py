"""Memory that is used again: the system clears every page that it hands out, which takes as long as filling it.

Whoever took the memory of a batch cannot give it back, for rows still to be made look at it, in other threads. It comes
back by itself when the last view of it dies.
"""

from collections import deque
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import DTypeLike, NDArray

KEPT = 4
"""Dead arrays whose memory is kept at most."""


class Reuse:
    """Arrays of one shape and type, not initialised, in the memory of others that have died if there is any.

    One thread takes them; the last view of an array may die in any thread.
    """

    def __init__(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> None:
        self.shape, self.dtype = shape, dtype
        self._dead: deque[NDArray[Any]] = deque(maxlen=KEPT)

    def __len__(self) -> int:
        """How many arrays there is memory for."""
        return len(self._dead)

    def take(self) -> NDArray[Any]:
        """An array."""
        memory = self._dead.pop() if self._dead else np.empty(self.shape, self.dtype)
        # Views refer to this array, not to the one whose memory it is: numpy stops at what is no array.
        array = np.asarray(memory.data)
        finalize(array, self._dead.append, memory).atexit = False
        return array
