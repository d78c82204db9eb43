"""Numbers in texts: the lists of ids that frames have, as arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from amqpscope.dissector.kernels.arrays import Ints


def numbers_in(texts: pa.ChunkedArray) -> tuple[Ints, Ints]:
    """Return the numbers (int64) in texts such as `[7,8]` or `[[0,3],[7,7]]`, null for none, and where each text ends.

    Those of more than 63 bits are negative. The places begin with 0, so that they are one more than texts.
    """
    texts = texts.cast(pa.large_binary()).fill_null(b"").combine_chunks()
    _, offsets, data = texts.buffers()
    if data is None:
        return np.zeros(0, np.int64), np.zeros(len(texts) + 1, np.int64)
    ends = np.frombuffer(offsets, np.int64, len(texts) + 1, texts.offset * 8)
    letters = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    digits = (letters >= ord("0")) & (letters <= ord("9"))
    first = digits.copy()
    first[1:] &= ~digits[:-1]
    begun = np.searchsorted(np.flatnonzero(first), ends - ends[0])
    if not begun[-1]:
        return np.zeros(0, np.int64), begun
    return np.fromstring(np.where(digits, letters, ord(" ")).tobytes(), np.uint64, sep=" ").view(np.int64), begun
