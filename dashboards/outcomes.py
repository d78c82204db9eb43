"""Latency of confirms by their outcome: an ack and a nack are different answers, and take different times.

The summary that `analyze` writes has both together, so these come from the rows, in one pass that keeps only buckets.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from amqpscope.dashboards.tables import Tables, plausible

OUTCOMES = ("ack", "nack")
_BITS = 7
_BUCKETS = (64 - _BITS) << _BITS


@dataclass(frozen=True)
class Distribution:
    """Latencies in log-linear buckets: below 256 ns one each, then 128 to each doubling.

    Attributes:
        counts: int64, latencies in each bucket.
        answered: Answers, also those without a usable latency.
        max_ns: Longest; None without any.
    """

    counts: np.ndarray
    answered: int
    max_ns: int | None

    @property
    def samples(self) -> int:
        """Return the number of latencies."""
        return int(self.counts.sum())

    def at(self, share: float) -> int | None:
        """Return the latency that a share of them did not exceed: the longest of its bucket; None without any."""
        if self.max_ns is None:
            return None
        rank = max(int(np.ceil(share * self.samples - 1e-9)), 1)
        number = int(np.searchsorted(np.cumsum(self.counts), rank))
        return min(longest(number), self.max_ns)


def query(tables: Tables) -> dict[str, Distribution]:
    """Return the distribution of each outcome that occurs."""
    counts = {outcome: np.zeros(_BUCKETS, np.int64) for outcome in OUTCOMES}
    answered = dict.fromkeys(OUTCOMES, 0)
    most: dict[str, int | None] = dict.fromkeys(OUTCOMES)
    for outcome in OUTCOMES:
        is_one = pc.field("outcome") == outcome
        answered[outcome] = tables.rows("confirms", is_one)
        for batch in tables.scan("confirms", ["latency_ns"], is_one & plausible("latency_ns")):
            latency = batch["latency_ns"].to_numpy()
            counts[outcome] += np.bincount(bucket(latency), minlength=_BUCKETS)
            most[outcome] = max(int(latency.max()), most[outcome] or 0)
    return {o: Distribution(counts[o], answered[o], most[o]) for o in OUTCOMES if answered[o]}


def bucket(latency: np.ndarray) -> np.ndarray:
    """Return the number of each latency's bucket."""
    _, exponent = np.frexp(latency.astype(np.float64))
    length = exponent.astype(np.int64)  # bits; a number just below a power of two may be rounded up to it
    length -= (latency < np.left_shift(np.int64(1), np.maximum(length - 1, 0))) & (length > 0)
    shift = np.maximum(length - _BITS - 1, 0)
    numbers: np.ndarray = (shift << _BITS) + (latency >> shift)
    return numbers


def longest(number: int) -> int:
    """Return the longest latency in a bucket."""
    if number < 2 << _BITS:
        return number
    shift = (number >> _BITS) - 1
    return (((number & ((1 << _BITS) - 1)) + (1 << _BITS) + 1) << shift) - 1
