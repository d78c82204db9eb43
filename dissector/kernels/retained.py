"""Bytes that outlive the batch they came in: ranges of a buffer that rows of state matrices point at."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from amqpscope.dissector.kernels.arrays import Array, Bytes, Ints
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.dissector.kernels.words import copy_octets


class Ranges(NamedTuple):
    """Rows of a matrix whose `used` column is not 0 and whose offset is not below 0 point at bytes.

    No more than `most` rows are in use.
    """

    matrix: Ints
    used: int
    offset: int
    length: int
    most: int


class Buffer:
    """One batch's bytes, and behind them the arena: bytes carried over, then whatever is put together."""

    def __init__(self, data: Bytes, used: int) -> None:
        self.data = data
        self.top = used

    def append(self, octets: Bytes) -> int:
        """Copy bytes into the arena and return where they are."""
        at = self.top
        self.reserve(len(octets))
        self.data[at : at + len(octets)] = octets
        self.top = at + len(octets)
        return at

    def reserve(self, room: int) -> None:
        """See to it that the arena has room for this many bytes more."""
        if self.top + room > len(self.data):
            data = np.empty(max(self.top + room, len(self.data) * 3 // 2), np.uint8)
            data[: self.top] = self.data[: self.top]
            self.data = data


class Retained(NamedTuple):
    """Bytes taken out of a buffer, and for each of the ranges the end of the rows that point at them."""

    octets: Bytes
    ends: tuple[int, ...]

    @classmethod
    def nothing(cls, ranges: Sequence[Ranges]) -> "Retained":
        """No bytes."""
        return cls(np.zeros(0, np.uint8), (0,) * len(ranges))


@kernel
def live_end(matrix: Array, used: int, most: int) -> int:
    """The row behind the last in use. Most matrices are large, and their rows in use few and in front."""
    end = 0
    row = 0
    while most > 0 and row < matrix.shape[0]:
        if matrix[row, used] != 0:
            most -= 1
            end = row + 1
        row += 1
    return end


@kernel
def gather_ranges(
    matrix: Array, end: int, used: int, offset: int, length: int, data: Array, out: Array, at: int
) -> int:
    """Copy the bytes of all live rows to `out`, and make the rows point there. Returns the end of what was copied."""
    for row in range(end):
        if matrix[row, used] != 0 and matrix[row, offset] >= 0:
            start = matrix[row, offset]
            octets = matrix[row, length]
            if octets > 0:  # the first and the last byte lie in both, so all do
                out[at] = data[start]
                out[at + octets - 1] = data[start + octets - 1]
                copy_octets(data, start, out, at, octets)
            matrix[row, offset] = at
            at += octets
    return at


@kernel
def count_ranges(matrix: Array, end: int, used: int, offset: int, length: int) -> int:
    """Bytes that all live rows point at."""
    total = 0
    for row in range(end):
        if matrix[row, used] != 0 and matrix[row, offset] >= 0:
            total += matrix[row, length]
    return total


@kernel
def move_ranges(matrix: Array, end: int, used: int, offset: int, by: int) -> None:
    """Shift what all live rows point at."""
    for row in range(end):
        if matrix[row, used] != 0 and matrix[row, offset] >= 0:
            matrix[row, offset] += by


def gather(ranges: Sequence[Ranges], data: Bytes, compiled: bool) -> Retained:
    """Copy all that these ranges point at out of a buffer that goes away; they now point into the result."""
    ends = tuple(int(call(live_end, compiled, r.matrix, r.used, r.most)) for r in ranges)
    both = list(zip(ranges, ends, strict=True))
    total = sum(call(count_ranges, compiled, r.matrix, end, r.used, r.offset, r.length) for r, end in both)
    out = np.empty(total, np.uint8)
    at = 0
    for r, end in both:
        at = call(gather_ranges, compiled, r.matrix, end, r.used, r.offset, r.length, data, out, at)
    return Retained(out, ends)


def move(ranges: Sequence[Ranges], carried: Retained, by: int, compiled: bool) -> None:
    """Shift what these ranges point at, after the bytes were placed in another buffer."""
    for r, end in zip(ranges, carried.ends, strict=True):
        call(move_ranges, compiled, r.matrix, end, r.used, r.offset, by)
