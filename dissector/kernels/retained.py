"""Bytes that outlive their batch: ranges of a buffer that rows of state matrices point at."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from amqpscope.dissector.kernels.arrays import Array, Bytes, Ints
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.dissector.kernels.words import copy_bytes


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
    """The bytes of one batch, followed by the arena: retained bytes, then reassembled ones."""

    def __init__(self, data: Bytes, used: int) -> None:
        self.data = data
        self.top = used

    def append(self, data: Bytes) -> int:
        """Copy bytes into the arena; return their position."""
        at = self.top
        self.reserve(len(data))
        self.data[at : at + len(data)] = data
        self.top = at + len(data)
        return at

    def reserve(self, room: int) -> None:
        """Make room for this many more bytes in the arena."""
        if self.top + room > len(self.data):
            data = np.empty(max(self.top + room, len(self.data) * 3 // 2), np.uint8)
            data[: self.top] = self.data[: self.top]
            self.data = data


class Retained(NamedTuple):
    """Bytes copied out of a buffer and, for each of the ranges, the end of the rows that point at them."""

    data: Bytes
    ends: tuple[int, ...]

    @classmethod
    def nothing(cls, ranges: Sequence[Ranges]) -> "Retained":
        """Return no bytes."""
        return cls(np.zeros(0, np.uint8), (0,) * len(ranges))


@kernel
def live_end(matrix: Array, used: int, most: int) -> int:
    """Return the row after the last in use. Most matrices are large, and their few rows in use come first."""
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
    """Copy the bytes of all rows in use to `out`, and make the rows point there. Return the end of the copies."""
    for row in range(end):
        if matrix[row, used] != 0 and matrix[row, offset] >= 0:
            start = matrix[row, offset]
            size = matrix[row, length]
            if size > 0:  # the first and the last byte lie in both, so all do
                out[at] = data[start]
                out[at + size - 1] = data[start + size - 1]
                copy_bytes(data, start, out, at, size)
            matrix[row, offset] = at
            at += size
    return at


@kernel
def count_ranges(matrix: Array, end: int, used: int, offset: int, length: int) -> int:
    """Return the number of bytes that all rows in use point at."""
    total = 0
    for row in range(end):
        if matrix[row, used] != 0 and matrix[row, offset] >= 0:
            total += matrix[row, length]
    return total


@kernel
def move_ranges(matrix: Array, end: int, used: int, offset: int, by: int) -> None:
    """Shift the ranges that all rows in use point at."""
    for row in range(end):
        if matrix[row, used] != 0 and matrix[row, offset] >= 0:
            matrix[row, offset] += by


def gather(ranges: Sequence[Ranges], data: Bytes, compiled: bool) -> Retained:
    """Copy the bytes of these ranges out of a buffer that goes away; the ranges then point into the result."""
    ends = tuple(int(call(live_end, compiled, r.matrix, r.used, r.most)) for r in ranges)
    both = list(zip(ranges, ends, strict=True))
    total = sum(call(count_ranges, compiled, r.matrix, end, r.used, r.offset, r.length) for r, end in both)
    out = np.empty(total, np.uint8)
    at = 0
    for r, end in both:
        at = call(gather_ranges, compiled, r.matrix, end, r.used, r.offset, r.length, data, out, at)
    return Retained(out, ends)


def move(ranges: Sequence[Ranges], retained: Retained, by: int, compiled: bool) -> None:
    """Shift these ranges after their bytes were placed in another buffer."""
    for r, end in zip(ranges, retained.ends, strict=True):
        call(move_ranges, compiled, r.matrix, end, r.used, r.offset, by)


def put_bytes(ranges: Sequence[Ranges], data: Bytes, buffer: Buffer, compiled: bool) -> None:
    """Append bytes that `gather` copied to another buffer, and shift these ranges with them."""
    move(ranges, Retained(data, tuple(len(each.matrix) for each in ranges)), buffer.append(data), compiled)
