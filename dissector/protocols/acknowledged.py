"""Find the packet by which TCP first acknowledged the end of a frame.

TCP knows which packet acknowledges which position of a stream, protocols where frames end. A frame waits here until
an acknowledgement of its end comes. It has none where an earlier one may have been about it: where it was read later
than that, held back, or sent before the other side was seen. All this is decided by positions, not by batches.
"""

from collections.abc import Collection, Mapping

import numpy as np

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.coding import PLAIN
from amqpscope.dissector.kernels.state import Matrix, Records, column
from amqpscope.dissector.protocols.rows import Made
from amqpscope.dissector.protocols.state import Place
from amqpscope.dissector.tcp.state import Ack, both

BITS = 44
"""Of positions; beyond that, streams are not of this world."""
CROWDED = f"more than {limits.UNACKED} frames waited for TCP to acknowledge them: some have no time of that"


class Reach(Matrix):
    """Directions of connections."""

    HEARD = column("1: the other side has acknowledged something, or could have")
    PAST = column("position up to which nothing is known of frames")


class Awaited(Records):
    """Frames that are not acknowledged yet."""

    ROW = column("direction that sent it")
    NUMBER = column("frame_no")
    END = column("position after it in its stream")


class Acked(Records):
    """Acknowledgements of frames."""

    SLOT = column("slot of the connection")
    SIDE = column("side that sent the acknowledgement")
    FIRST = column("the first frame that it acknowledges")
    LAST = column("the last")
    PACKET = column("packet")
    TS = column("its time")
    CAPTURE = column("its capture")


class Acknowledged:
    """The frames of open connections that are not acknowledged yet.

    Args:
        reached: receives messages about limits of the process that were reached.
    """

    def __init__(self, reached: set[str]) -> None:
        self.reached = reached
        self._reach = Reach.make(0)
        self._waiting = Awaited.room(0)
        self._made: list[Ints] = []

    def add(self, made: Made, others: Collection[int] = ()) -> None:
        """Take the frames that a protocol made, but for those in these slots, whose positions are not those of TCP."""
        if made.ends is None:
            return
        at = np.flatnonzero(made.ends >= 0)
        if others:
            at = at[~np.isin(made.rows[Place.SLOT, at], list(others))]
        if len(at):
            rows = 2 * made.rows[Place.SLOT, at] + made.rows[Place.SIDE, at]
            self._made.append(np.stack((rows, made.rows[Place.NUMBER, at], made.ends[at])))

    def clear(self) -> None:
        """Forget the frames that were added since `take`: nobody knows which acknowledgements came before them."""
        self._made = []

    def hold(self, held: Mapping[int, int]) -> None:
        """Note up to which positions directions, by row, were held back until their protocol was known."""
        for row, pos in held.items():
            self._extend(row + 1)
            self._reach[row, Reach.PAST] = max(self._reach[row, Reach.PAST], pos)

    def take(self, acks: Ints) -> Ints:
        """Take the acknowledgements (Ack, n) that came with the frames added; return what they acknowledge first."""
        frames = np.concatenate([self._waiting, *self._made], axis=1) if self._made else self._waiting
        self._made = []
        if not acks.shape[1] and frames is self._waiting:
            return Acked.room(0)
        acks = acks[:, acks[Ack.POS] < 1 << BITS]
        of = 2 * acks[Ack.SLOT] + acks[Ack.SIDE]
        self._extend(int(max(of.max(initial=-1), frames[Awaited.ROW].max(initial=-1))) + 1)
        reach, by = self._reach, np.argsort(of, kind="stable")
        of, acks = of[by], acks[:, by]
        begins = np.flatnonzero(np.diff(of, prepend=-1))
        new = begins[reach[of[begins], Reach.HEARD] == 0]
        reach[of[new], Reach.HEARD] = 1
        reach[of[new], Reach.PAST] = np.maximum(reach[of[new], Reach.PAST], acks[Ack.READ, new])
        row, _, end = frames
        frames = frames[:, (reach[row, Reach.HEARD] == 1) & (end > reach[row, Reach.PAST]) & (end < 1 << BITS)]
        lasts = np.append(begins[1:], len(of))[: len(begins)] - 1
        reach[of[begins], Reach.PAST] = np.maximum(reach[of[begins], Reach.PAST], acks[Ack.POS, lasts])
        row, number, end = frames
        first = np.searchsorted((of << BITS) + acks[Ack.POS], (row << BITS) + end)
        there = first < len(of)
        there[there] = of[first[there]] == row[there]
        self._wait(frames[:, ~there])
        ahead = acks[Ack.READ, first[there]] - end[there]
        known = (ahead >= 0) & (ahead <= limits.UNACKED_BYTES)
        return _acked(acks, by, first[there][known], number[there][known])

    def _wait(self, frames: Ints) -> None:
        if frames.shape[1]:
            row, _, end = frames
            newest = np.zeros(int(row.max()) + 1, np.int64)
            np.maximum.at(newest, row, end)
            frames = frames[:, end >= newest[row] - limits.UNACKED_BYTES]
            if frames.shape[1] > limits.UNACKED:
                self.reached.add(CROWDED)
                frames = frames[:, frames[Awaited.ROW] != np.bincount(frames[Awaited.ROW]).argmax()]
        self._waiting = frames

    def _extend(self, rows: int) -> None:
        if rows > len(self._reach):
            self._reach = Reach.grown(self._reach, 2 * rows)

    def end(self, slots: Ints) -> None:
        """Forget connections."""
        rows = both(slots)
        Reach.clear(self._reach, rows[rows < len(self._reach)])
        if self._waiting.shape[1]:
            self._waiting = self._waiting[:, ~np.isin(self._waiting[Awaited.ROW], rows)]

    def take_out(self, slots: Ints) -> bytes:
        """Take out what is known of connections."""
        rows = both(slots)
        self._extend(int(rows.max(initial=-1)) + 1)
        order = np.argsort(rows)
        of = order[np.minimum(np.searchsorted(rows, self._waiting[Awaited.ROW], sorter=order), len(rows) - 1)]
        mine = np.flatnonzero(rows[of] == self._waiting[Awaited.ROW]) if len(rows) else of[:0]
        taken = self._waiting[:, mine]
        taken[Awaited.ROW] = of[mine]
        state = PLAIN.written([Reach.written(self._reach[rows]), Awaited.written(taken.T)])
        self.end(slots)
        return state

    def put_back(self, state: bytes, slots: Ints) -> None:
        """Put back what `take_out` returned."""
        reach, waiting = PLAIN.read(state)
        rows, frames = both(slots), Awaited.read(waiting).T
        self._extend(int(rows.max(initial=-1)) + 1)
        self._reach[rows] = Reach.read(reach)
        frames[Awaited.ROW] = rows[frames[Awaited.ROW]]
        self._waiting = np.concatenate([self._waiting, frames], axis=1)


def _acked(acks: Ints, places: Ints, which: Ints, numbers: Ints) -> Ints:
    """Return which acknowledgements acknowledge which frames, in the order in which they came.

    Args:
        acks: (Ack, n).
        places: (n,) places of these in that order.
        which: (frames,) the first of them that acknowledges each frame.
        numbers: (frames,) numbers of these.
    """
    order = np.lexsort((numbers, which))
    which, numbers = which[order], numbers[order]
    begins = np.flatnonzero(np.diff(which, prepend=-1))
    made, some = Acked.room(len(begins)), acks[:, which[begins]]
    made[Acked.SLOT], made[Acked.SIDE] = some[Ack.SLOT], 1 - some[Ack.SIDE]
    made[Acked.FIRST] = numbers[begins]
    made[Acked.LAST] = numbers[np.append(begins[1:], len(numbers))[: len(begins)] - 1]
    made[Acked.PACKET], made[Acked.TS], made[Acked.CAPTURE] = some[Ack.PACKET], some[Ack.TS], some[Ack.CAPTURE]
    in_order: Ints = made[:, np.argsort(places[which[begins]])]
    return in_order
