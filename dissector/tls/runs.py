"""Runs: decrypt many records at once, when a connection is open and its records hold nothing but application data.

A run takes a window of chunks as long as both directions are synchronised and their records, of kind data, decrypt with
the current keys or are known to stay encrypted. A chunk with anything else, such as a gap, an alert or new keys, goes
through `Session.feed`, which handles all cases; a run does the same with many records, in less time.
"""

from typing import NamedTuple

import numpy as np

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.integers import be16
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.tcp.state import Chunk
from amqpscope.dissector.tls.direction import TlsDirection
from amqpscope.dissector.tls.opener import AHEAD
from amqpscope.dissector.tls.records import DATA, HEAD, LONGEST, At
from amqpscope.dissector.tls.session import Session

FIRST, LAST = (Chunk.FIRST_PACKET, Chunk.FIRST_TS, Chunk.FIRST_CAPTURE), (Chunk.PACKET, Chunk.TS, Chunk.CAPTURE)


class Opened(NamedTuple):
    """The content of records: chunks without their positions, and for each the index of the chunk that completed it."""

    chunks: Ints
    order: Ints


@kernel
def ends_of_records(data: Array, at: int, ends: Array) -> int:
    """Find the ends of consecutive data records; the last may end after the bytes. Return their number."""
    count = 0
    while (
        at + 5 <= data.shape[0]
        and data[at] == DATA
        and data[at + 1] == 3
        and data[at + 2] <= 4
        and 0 < be16(data, at + 3) <= LONGEST
    ):
        at += 5 + be16(data, at + 3)
        ends[count] = at
        count += 1
    return count


class Direction:
    """The records of one direction in a window. `mine` are the indexes of its chunks; none is a gap."""

    def __init__(self, half: TlsDirection, window: Ints, mine: Ints, buffer: Buffer, compiled: bool) -> None:
        walk = half.walk
        self.half, self.window, self.mine = half, window, mine
        lengths, view = window[Chunk.LENGTH, mine], buffer.data.data
        parts = [view[at : at + n] for at, n in zip(window[Chunk.OFFSET, mine].tolist(), lengths.tolist(), strict=True)]
        self.data = b"".join([walk.buffered, *parts])
        self.before = len(walk.buffered)
        """Bytes from before the window: the beginning of a record."""
        self.bounds = np.cumsum(lengths) + self.before
        """Where the chunks end."""
        edges = np.empty(len(self.data) // (HEAD + 1) + 2, np.int64)
        edges[0] = walk.skip
        count = call(ends_of_records, compiled, np.frombuffer(self.data, np.uint8), walk.skip, edges[1:])
        self.edges = edges[: count + 1]
        """Where the first record begins, and where each ends."""
        known = (
            self.edges[:-1] + HEAD if walk.skips_bodies else self.edges[1:]
        )  # a record that stays encrypted is known by its header
        self.last = np.searchsorted(self.bounds, known)
        """With which of `mine` each record is complete."""
        head = int(self.edges[-1]) + HEAD
        self.stop = int(mine[np.searchsorted(self.bounds, head)]) if head <= len(self.data) else window.shape[1]
        """The chunk with which anything else comes."""
        self.joined = np.zeros(0, np.uint8)
        self.parts, self.lengths = np.zeros(1, np.int64), np.zeros(0, np.int64)
        """Where each record's content begins in the joined bytes, and the last one ends; their lengths."""

    def _before(self, stop: int) -> tuple[int, int]:
        """Return the number of `mine` that come before this chunk, and the number of records complete by then."""
        chunks = int(np.searchsorted(self.mine, stop))
        return chunks, int(np.searchsorted(self.last, chunks))

    def open(self, stop: int) -> int:
        """Decrypt records up to this chunk. Return the chunk at which one does not decrypt, or holds something else."""
        opener, (_, count) = self.half.opener, self._before(stop)
        if self.half.walk.skips_bodies or opener is None:
            return stop
        cipher = opener.epoch.cipher
        contents = cipher.open_run(opener.epoch.number, self.data, self.edges[: count + 1])
        self.joined = np.frombuffer(bytearray().join(contents), np.uint8)
        self.lengths = np.fromiter(map(len, contents), np.int64, len(contents))
        self.parts = np.append(0, np.cumsum(self.lengths))
        good = self._uncover(contents) if cipher.hides else len(contents)
        return stop if good == count else int(self.mine[self.last[good]])

    def _uncover(self, contents: list[bytes]) -> int:
        """Remove the kind and zeros after each content in TLS 1.3. Return the number of data records up to another."""
        self.lengths -= 1
        kinds = self.joined[self.parts[:-1] + self.lengths]
        for index in np.flatnonzero(kinds == 0).tolist():
            content = contents[index].rstrip(b"\0")
            self.lengths[index] = max(len(content) - 1, 0)
            kinds[index] = content[-1] if content else 0
        return int(np.argmin(np.append(kinds == DATA, False)))

    def take(self, stop: int, buffer: Buffer) -> Opened:
        """Emit the content of the records that are complete before this chunk."""
        half, walk, (chunks, count) = self.half, self.half.walk, self._before(stop)
        marks = np.concatenate([np.array([walk.began]).T, self.window[FIRST, :][:, self.mine]], axis=1)
        # Bytes of a record that began before the window are in none of its chunks.
        first = np.searchsorted(self.bounds, self.edges, "right") + (self.edges >= self.before)
        first = np.minimum(first, len(self.mine))
        end, done = int(self.bounds[chunks - 1]) if chunks else self.before, int(self.edges[count])
        walk.leave(self.data[done:end], min(done, end), max(done - end, 0), At(*marks[:, first[count]].tolist()))
        if walk.skips_bodies or half.opener is None:
            half.sealed += count
            lengths = np.diff(self.edges[: count + 1]) - HEAD
            half.missed += lengths[: AHEAD - len(half.missed)].tolist()
            return Opened(np.zeros((Chunk.WIDTH, 0), np.int64), np.zeros(0, np.int64))
        if count:
            body = int(self.edges[count - 1]) + HEAD
            half.opener.advance(count, self.data[body : body + 8])
        at = buffer.append(self.joined[: self.parts[count]])
        full = np.flatnonzero(self.lengths[:count])
        order = self.mine[self.last[full]]
        found = np.zeros((Chunk.WIDTH, len(full)), np.int64)
        found[Chunk.SLOT], found[Chunk.SIDE] = self.window[Chunk.SLOT, 0], self.window[Chunk.SIDE, self.mine[0]]
        found[Chunk.OFFSET], found[Chunk.LENGTH] = at + self.parts[full], self.lengths[full]
        found[FIRST, :], found[LAST, :] = marks[:, first[full]], self.window[LAST, :][:, order]
        return Opened(found, order)


def run(session: Session, window: Ints, buffer: Buffer, compiled: bool) -> tuple[int, list[Opened]]:
    """Take as many chunks of a window as a run can; return their number, and the content of each direction."""
    stop, directions = window.shape[1], []
    for side, half in enumerate(session.halves):
        mine = np.flatnonzero(window[Chunk.SIDE] == side)
        if len(mine):
            other = mine if not session.is_smooth(side) else mine[window[Chunk.OFFSET, mine] < 0]
            stop = min(stop, int(other[0])) if len(other) else stop
            directions.append((half, mine))
    before = [(half, mine[: np.searchsorted(mine, stop)]) for half, mine in directions]
    found = [Direction(half, window, mine, buffer, compiled) for half, mine in before if len(mine)]
    for direction in found:
        stop = min(stop, direction.stop)
    for direction in found:
        stop = direction.open(stop)
    opened = [direction.take(stop, buffer) for direction in found]
    session.handshake.shown.decrypted |= any(len(each.order) for each in opened)
    return stop, opened
