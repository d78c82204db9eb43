"""Find the packet by which TCP first acknowledged the end of a frame.

TCP knows which packet acknowledges which position of a stream, protocols where frames end. A frame waits here until
an acknowledgement of its end comes. It has none where an earlier one may have been about it: where it was read later
than that, held back, or sent before the other side was seen. All this is decided by positions, not by batches.
"""

from collections.abc import Collection, Mapping

import numpy as np

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.coding import PLAIN
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.dissector.kernels.state import Matrix, Records, column
from amqpscope.dissector.protocols.rows import Made
from amqpscope.dissector.protocols.state import Place
from amqpscope.dissector.tcp.state import Ack, both

CROWDED = f"more than {limits.UNACKED} frames waited for TCP to acknowledge them: some have no time of that"


class Reach(Matrix):
    """Directions of connections."""

    HEARD = column("1: the other side has acknowledged something, or could have")
    PAST = column("position up to which nothing is known of frames")
    NEXT = column("in `match`: the next acknowledgement of it; -1: none", empty=-1)


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
        compiled: whether kernels run compiled.
        reached: receives messages about limits of the process that were reached.
    """

    def __init__(self, compiled: bool, reached: set[str]) -> None:
        self.compiled, self.reached = compiled, reached
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
        count = acks.shape[1]
        if not count and frames is self._waiting:
            return Acked.room(0)
        slots = int(max(2 * acks[Ack.SLOT].max(initial=-1), frames[Awaited.ROW].max(initial=-1)))
        self._extend(slots + 2)
        following, found = np.full(count, -1, np.int64), np.full((2, count), -1, np.int64)
        left = call(match, self.compiled, acks, frames, self._reach, following, found)
        self._wait(frames[:, :left])
        some = np.flatnonzero(found[0] >= 0)
        return _acked(acks[:, some], found[:, some])

    def _wait(self, frames: Ints) -> None:
        if frames.shape[1]:
            row, _, end = frames
            newest = np.zeros(int(row.max()) + 1, np.int64)
            np.maximum.at(newest, row, end)
            frames = frames[:, end >= newest[row] - limits.UNACKED_BYTES]
            if frames.shape[1] > limits.UNACKED:
                self.reached.add(CROWDED)
                frames = frames[:, frames[Awaited.ROW] != np.bincount(frames[Awaited.ROW]).argmax()]
        self._waiting = frames.copy()

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


def _acked(acks: Ints, found: Ints) -> Ints:
    """Return what acknowledgements say of frames: the first and the last that each is about are `found`."""
    made = Acked.room(acks.shape[1])
    made[Acked.SLOT], made[Acked.SIDE] = acks[Ack.SLOT], 1 - acks[Ack.SIDE]
    made[Acked.FIRST], made[Acked.LAST] = found
    made[Acked.PACKET], made[Acked.TS], made[Acked.CAPTURE] = acks[Ack.PACKET], acks[Ack.TS], acks[Ack.CAPTURE]
    return made


@kernel
def match(acks: Array, frames: Array, reach: Array, following: Array, found: Array) -> int:
    """Find the acknowledgement of each frame, both of one direction in their order; return how many wait.

    Args:
        acks: (Ack, n).
        frames: (Awaited, frames); written: those that wait come first.
        reach: (directions, Reach).
        following: (n,), all -1; written: the next acknowledgement of the same direction.
        found: (2, n), all -1; written: numbers of the first and the last frame that each is about.
    """
    for k in range(acks.shape[1] - 1, -1, -1):
        row = 2 * acks[Ack.SLOT, k] + acks[Ack.SIDE, k]
        following[k] = reach[row, Reach.NEXT]
        reach[row, Reach.NEXT] = k
    for k in range(acks.shape[1]):
        row = 2 * acks[Ack.SLOT, k] + acks[Ack.SIDE, k]
        if reach[row, Reach.HEARD] == 0:
            reach[row, Reach.HEARD] = 1
            reach[row, Reach.PAST] = max(reach[row, Reach.PAST], acks[Ack.READ, k])
    left = 0
    for i in range(frames.shape[1]):
        row, number, end = frames[Awaited.ROW, i], frames[Awaited.NUMBER, i], frames[Awaited.END, i]
        if reach[row, Reach.HEARD] == 0 or end <= reach[row, Reach.PAST]:
            continue
        k = reach[row, Reach.NEXT]
        while k >= 0 and acks[Ack.POS, k] < end:
            k = following[k]
        reach[row, Reach.NEXT] = k
        if k < 0:
            frames[Awaited.ROW, left], frames[Awaited.NUMBER, left], frames[Awaited.END, left] = row, number, end
            left += 1
        elif 0 <= acks[Ack.READ, k] - end <= limits.UNACKED_BYTES:
            if found[0, k] < 0:
                found[0, k] = number
            found[1, k] = number
    for k in range(acks.shape[1]):
        row = 2 * acks[Ack.SLOT, k] + acks[Ack.SIDE, k]
        reach[row, Reach.NEXT] = -1
        reach[row, Reach.PAST] = max(reach[row, Reach.PAST], acks[Ack.POS, k])
    return left
