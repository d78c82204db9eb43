"""Runs: many records at once, where a connection is under way and its records hold nothing but what is carried.

A window of pieces is taken so far as both directions are in step and their records, of kind data, open with the keys
at hand or are known to stay sealed. The piece at which anything else comes, such as a gap, an alert or new keys, goes
through `Session.feed`, which says what it all means; a run does just the same with many records, in less time.
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
    """What records held: pieces but for their positions, and for each the index of the piece that completed it."""

    pieces: Ints
    order: Ints


@kernel
def ends_of_records(octets: Array, at: int, ends: Array) -> int:
    """Where records of data, one behind the other, end; the last may do so behind the bytes. Returns their number."""
    count = 0
    while (
        at + 5 <= octets.shape[0]
        and octets[at] == DATA
        and octets[at + 1] == 3
        and octets[at + 2] <= 4
        and 0 < be16(octets, at + 3) <= LONGEST
    ):
        at += 5 + be16(octets, at + 3)
        ends[count] = at
        count += 1
    return count


class Direction:
    """The records of one direction in a window. `mine` are the indexes of its pieces, of which none is a gap."""

    def __init__(self, half: TlsDirection, window: Ints, mine: Ints, buffer: Buffer, compiled: bool) -> None:
        walk = half.walk
        self.half, self.window, self.mine = half, window, mine
        lengths, view = window[Chunk.LENGTH, mine], buffer.data.data
        parts = [view[at : at + n] for at, n in zip(window[Chunk.OFFSET, mine].tolist(), lengths.tolist(), strict=True)]
        self.octets = b"".join([walk.octets, *parts])
        self.before = len(walk.octets)
        """Bytes from before the window: the beginning of a record."""
        self.bounds = np.cumsum(lengths) + self.before
        """Where the pieces end."""
        edges = np.empty(len(self.octets) // (HEAD + 1) + 2, np.int64)
        edges[0] = walk.skip
        count = call(ends_of_records, compiled, np.frombuffer(self.octets, np.uint8), walk.skip, edges[1:])
        self.edges = edges[: count + 1]
        """Where the first record begins, and where each ends."""
        known = self.edges[:-1] + HEAD if walk.blind else self.edges[1:]  # what stays sealed is known by its head
        self.last = np.searchsorted(self.bounds, known)
        """With which of `mine` each record is known."""
        head = int(self.edges[-1]) + HEAD
        self.stop = int(mine[np.searchsorted(self.bounds, head)]) if head <= len(self.octets) else window.shape[1]
        """The piece at which something else comes."""
        self.joined = np.zeros(0, np.uint8)
        self.parts, self.lengths = np.zeros(1, np.int64), np.zeros(0, np.int64)
        """Where in what is joined each record's content begins, and the last ends; how long they are."""

    def _before(self, stop: int) -> tuple[int, int]:
        """How many of `mine` come before this piece, and how many records are known by then."""
        pieces = int(np.searchsorted(self.mine, stop))
        return pieces, int(np.searchsorted(self.last, pieces))

    def open(self, stop: int) -> int:
        """Open records, up to this piece. Returns the piece at which one does not open, or holds something else."""
        opener, (_, count) = self.half.opener, self._before(stop)
        if self.half.walk.blind or opener is None:
            return stop
        cipher = opener.epoch.cipher
        contents = cipher.open_run(opener.epoch.number, self.octets, self.edges[: count + 1])
        self.joined = np.frombuffer(bytearray().join(contents), np.uint8)
        self.lengths = np.fromiter(map(len, contents), np.int64, len(contents))
        self.parts = np.append(0, np.cumsum(self.lengths))
        good = self._uncover(contents) if cipher.hides else len(contents)
        return stop if good == count else int(self.mine[self.last[good]])

    def _uncover(self, contents: list[bytes]) -> int:
        """In TLS 1.3 its kind and zeros stand behind a content. Returns how many of these hold data, up to another."""
        self.lengths -= 1
        kinds = self.joined[self.parts[:-1] + self.lengths]
        for index in np.flatnonzero(kinds == 0).tolist():
            content = contents[index].rstrip(b"\0")
            self.lengths[index] = max(len(content) - 1, 0)
            kinds[index] = content[-1] if content else 0
        return int(np.argmin(np.append(kinds == DATA, False)))

    def take(self, stop: int, buffer: Buffer) -> Opened:
        """Leave behind the records that are known before this piece, and hand on what they hold."""
        half, walk, (pieces, count) = self.half, self.half.walk, self._before(stop)
        marks = np.concatenate([np.array([walk.began]).T, self.window[FIRST, :][:, self.mine]], axis=1)
        # Bytes of a record that began before the window are in none of its pieces.
        first = np.searchsorted(self.bounds, self.edges, "right") + (self.edges >= self.before)
        first = np.minimum(first, len(self.mine))
        end, done = int(self.bounds[pieces - 1]) if pieces else self.before, int(self.edges[count])
        walk.leave(self.octets[done:end], min(done, end), max(done - end, 0), At(*marks[:, first[count]].tolist()))
        if walk.blind or half.opener is None:
            half.sealed += count
            lengths = np.diff(self.edges[: count + 1]) - HEAD
            half.missed += lengths[: AHEAD - len(half.missed)].tolist()
            return Opened(np.zeros((Chunk.WIDTH, 0), np.int64), np.zeros(0, np.int64))
        if count:
            body = int(self.edges[count - 1]) + HEAD
            half.opener.advance(count, self.octets[body : body + 8])
        at = buffer.append(self.joined[: self.parts[count]])
        full = np.flatnonzero(self.lengths[:count])
        order = self.mine[self.last[full]]
        found = np.zeros((Chunk.WIDTH, len(full)), np.int64)
        found[Chunk.SLOT], found[Chunk.SIDE] = self.window[Chunk.SLOT, 0], self.window[Chunk.SIDE, self.mine[0]]
        found[Chunk.OFFSET], found[Chunk.LENGTH] = at + self.parts[full], self.lengths[full]
        found[FIRST, :], found[LAST, :] = marks[:, first[full]], self.window[LAST, :][:, order]
        return Opened(found, order)


def run(session: Session, window: Ints, buffer: Buffer, compiled: bool) -> tuple[int, list[Opened]]:
    """Take as many pieces of a window as are of this kind; returns how many, and what each direction held."""
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
    session.shown.decrypted |= any(len(each.order) for each in opened)
    return stop, opened
