"""Log-linear buckets: numbers of at least 0, cut so that each bucket is narrow compared with what is in it.

Below 256 each number has its own bucket; above, each power of two is cut into 128. A bucket is narrower than 0.8 % of
the numbers in it, so its middle is off by less than 0.4 %. Counts of buckets add up over files, days and groups.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

BITS = 7
"""A power of two is cut into 2**7 buckets."""

BUCKETS = (62 - BITS) * 2**BITS + 2 ** (BITS + 1)
"""Number of buckets that hold all int64 of at least 0."""

_POWERS = np.int64(1) << np.arange(BITS + 1, 63, dtype=np.int64)


def bucket_of(values: Integers) -> Integers:
    """Return the bucket of each value of at least 0: `shift * 128 + (value >> shift)`, where a shift leaves 8 bits."""
    shift = np.searchsorted(_POWERS, values, side="right").astype(np.int64)
    bucket: Integers = (shift << BITS) + (values >> shift)
    return bucket


def low_of(buckets: Integers) -> Integers:
    """Return the smallest value of each bucket."""
    shift = _shift(buckets)
    low: Integers = (buckets - (shift << BITS)) << shift
    return low


def high_of(buckets: Integers) -> Integers:
    """Return the smallest value above each bucket; the last of all buckets ends with the largest int64."""
    last = (buckets == BUCKETS - 1).astype(np.int64)
    high: Integers = low_of(buckets) + ((np.int64(1) << _shift(buckets)) - last)
    return high


def middle_of(buckets: Integers) -> Integers:
    """Return the middle of each bucket, rounded up: off by at most half of its width."""
    middle: Integers = low_of(buckets) + ((np.int64(1) << _shift(buckets)) >> 1)
    return middle


def _shift(buckets: Integers) -> Integers:
    shift: Integers = np.maximum((buckets >> BITS) - 1, 0)
    return shift
