"""Count gaps: bytes missing from the streams of connections."""

import numpy as np
from numpy.typing import NDArray

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.dissector.tcp.state import FRAME_GAP, GAP, Chunk, Fault


class Gap(Matrix):
    """Gaps of open connections, by slot."""

    COUNT = column("gaps")
    BYTES = column("bytes in them")
    REPORTED = column("1: an anomaly reports one of them")
    SIDE = column("side that sent the first one")
    POS = column("its position in the stream")
    PACKET = column("packet that shows it")
    TS = column("time of that")
    CAPTURE = column("capture of that")


PLACE = [Gap.SIDE, Gap.POS, Gap.PACKET, Gap.TS, Gap.CAPTURE]
PLACE_IN_CHUNK = [Chunk.SIDE, Chunk.POS, Chunk.PACKET, Chunk.TS, Chunk.CAPTURE]
PLACE_IN_FAULT = [Fault.SIDE, Fault.POS, Fault.PACKET, Fault.TS, Fault.CAPTURE]


class Gaps:
    """Counts of gaps.

    Attributes:
        count: gaps of ended connections.
        bytes: bytes in them.
        connections: connections with gaps.
    """

    def __init__(self) -> None:
        self.count = self.bytes = self.connections = 0
        self._open = Gap.make(0)

    def take(self, chunks: Ints, capacity: int) -> None:
        """Count the gaps among chunks, as TCP emits them; `capacity` is the number of slots."""
        gaps = chunks[:, chunks[Chunk.OFFSET] < 0]
        if not gaps.shape[1]:
            return
        self._reach(capacity)
        slots, first = np.unique(gaps[Chunk.SLOT], return_index=True)
        new = self._open[slots, Gap.COUNT] == 0
        self._open[np.ix_(slots[new], PLACE)] = gaps[np.ix_(PLACE_IN_CHUNK, first[new])].T
        np.add.at(self._open, (gaps[Chunk.SLOT], Gap.COUNT), 1)
        np.add.at(self._open, (gaps[Chunk.SLOT], Gap.BYTES), gaps[Chunk.LENGTH])

    def report(self, slots: Ints) -> None:
        """Note that anomalies report gaps of these connections."""
        self._reach(int(slots.max(initial=-1)) + 1)
        self._open[slots, Gap.REPORTED] = 1

    def unreported(self, slots: Ints, have_rows: NDArray[np.bool_]) -> Ints:
        """Return a fault for each connection with gaps of which none was reported, at the first: (Fault, n).

        Args:
            slots: connections that end.
            have_rows: whether their frames have rows, which say what they lack.
        """
        self._reach(int(slots.max(initial=-1)) + 1)
        silent = (self._open[slots, Gap.COUNT] > 0) & (self._open[slots, Gap.REPORTED] == 0)
        slots, gaps = slots[silent], self._open[slots[silent]]
        faults = Fault.room(len(slots))
        faults[Fault.SLOT], faults[Fault.VALUE] = slots, gaps[:, Gap.BYTES]
        faults[Fault.CODE] = np.where(have_rows[silent], FRAME_GAP, GAP)
        faults[PLACE_IN_FAULT] = gaps[:, PLACE].T
        return faults

    def take_out(self, slots: Ints) -> bytes:
        """Take out the counts of open connections."""
        self._reach(int(slots.max(initial=-1)) + 1)
        taken = Gap.written(self._open[slots])
        self._open[slots] = 0
        return taken

    def put_back(self, taken: bytes, slots: Ints, captures: Ints) -> None:
        """Put back what `take_out` returned."""
        self._reach(int(slots.max(initial=-1)) + 1)
        self._open[slots] = Gap.read(taken, captures)

    def _reach(self, capacity: int) -> None:
        if len(self._open) < capacity:
            self._open = Gap.grown(self._open, capacity)

    def end(self, slots: Ints, decoded: Ints) -> None:
        """Take the counts of ended connections, if they were decoded."""
        slots, decoded = (s[s < len(self._open)] for s in (slots, decoded))
        ended = self._open[decoded]
        self.count += int(ended[:, Gap.COUNT].sum())
        self.bytes += int(ended[:, Gap.BYTES].sum())
        self.connections += int(np.count_nonzero(ended[:, Gap.COUNT]))
        self._open[slots] = 0
