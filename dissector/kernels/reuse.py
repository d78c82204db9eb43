"""Reuse memory: the system clears every page that it allocates, which takes as long as filling it.

The code that took the memory of a batch cannot give it back, because other threads still make rows from it. The memory
returns by itself when the last view of it dies.
"""

from collections import deque
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import DTypeLike, NDArray

KEPT = 4
"""Most dead arrays whose memory is kept."""


class Reuse:
    """Arrays of one shape and type, not initialised, in the memory of dead ones if there is any.

    One thread takes arrays; the last view of an array may die in any thread.
    """

    def __init__(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> None:
        self.shape, self.dtype = shape, dtype
        self._dead: deque[NDArray[Any]] = deque(maxlen=KEPT)

    def __len__(self) -> int:
        """Return the number of arrays that there is memory for."""
        return len(self._dead)

    def take(self) -> NDArray[Any]:
        """Return an array."""
        memory = self._dead.pop() if self._dead else np.empty(self.shape, self.dtype)
        # Views refer to this array, not to the owner of the memory: numpy stops at an object that is not an array.
        array = np.asarray(memory.data)
        finalize(array, self._dead.append, memory).atexit = False
        return array
