"""Types that annotate kernels and the columns they work on."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = Any
"""A numpy array, or within an interpreted kernel the memoryview of one."""

Ints: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]
