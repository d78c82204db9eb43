"""What the formats of capture files share: records in a row, listed chunk by chunk.

A scanner holds the state of one file. Its kernel lists the packets of the whole records in a chunk of the file, until
it needs more bytes, the matrix of packets is full, or a record makes no sense.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from amqpscope.dissector.capture.model import Before, CaptureInfo
from amqpscope.dissector.kernels import kernel as kernels
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.kernels.state import Matrix, Records, column

MAX_RECORD = 16 << 20
"""Most bytes that a packet's record can have. An IP packet has at most 64 KiB, a jumbogram seen before segmentation
some hundred KiB; captures of other things (USB, D-Bus) that have more hold no TCP."""

# Why a scan ended: it needs more bytes, the matrix is full, a header makes no sense, plain Python reads the block, or a
# file of the other format follows.
MORE, FULL, CORRUPT, RARE, CHANGED = range(5)


class Packet(Records):
    """The packets that a scan lists."""

    OFFSET = column("position in the data")
    CAPLEN = column("bytes captured")
    LENGTH = column("bytes on the wire")
    TS_NS = column("time, ns since the epoch")
    PACKET = column("number in the file")
    LINK = column("link type")


class Scan(Matrix):
    """The state that the kernels of all formats share: one row."""

    POSITION = column("where the next record begins")
    ROWS = column("packets found")
    NEED = column("bytes needed from the position on")
    NUMBER = column("number of the last packet")


class Scanned(NamedTuple):
    """What a scanner found in a chunk of a file.

    Attributes:
        position: where the next record begins.
        rows: packets found.
        need: bytes needed from `position` on for another packet; 0 when there was no room for more.
        stop: whether nothing from `position` on can be read.
        changed: whether a file of the other format follows from `position` on.
    """

    position: int
    rows: int
    need: int
    stop: bool
    changed: bool


class After(NamedTuple):
    """What a range says of the file besides packets.

    Attributes:
        number: of its last packet.
        last_ns: time of its last packet.
        kept: its blocks with state, with their position in it; None if they are too many.
        counted: numbers of what is reported at the end of the file.
    """

    number: int
    last_ns: int = 0
    kept: tuple[tuple[int, bytes], ...] | None = ()
    counted: tuple[int, ...] = ()


class Scanner:
    """Find the packets of one capture file, chunk by chunk.

    Args:
        info: receives what is learned of the file.
        kernel: lists packets: takes (data, end, table, columns, state) and returns why it ended.
        table: what the kernel needs besides its state.
        state: declaration of the kernel's state.

    Attributes:
        begin: position of the first record in the file.
        is_mixed: whether another scanner had to go on after it: what ranges say of blocks does not count then.
    """

    begin = 0
    is_mixed = False

    def __init__(self, info: CaptureInfo, kernel: Callable[..., Any], table: Ints, state: type[Scan]) -> None:
        self.info = info
        self.table = table
        self.state = state.make(1)[0]
        self._kernel = kernel

    @property
    def number(self) -> int:
        """Number of the last packet."""
        return int(self.state[Scan.NUMBER])

    def scan(self, data: Bytes, start: int, end: int, columns: Ints, origin: int, compiled: bool) -> Scanned:
        """List the packets of the whole records in `data[start:end]`; data[0] is byte `origin` of the file."""
        state = self.state
        state[Scan.POSITION], state[Scan.ROWS], status = start, 0, RARE
        while status == RARE:
            status = kernels.call(self._kernel, compiled, data, end, self.table, columns, state)
            if status == RARE:
                status = self.rare(data, end, origin)
        position, rows, need = state[[Scan.POSITION, Scan.ROWS, Scan.NEED]].tolist()
        return Scanned(position, rows, need if status == MORE else 0, status == CORRUPT, status == CHANGED)

    def rare(self, data: Bytes, end: int, origin: int) -> int:
        """Read the record at state[Scan.POSITION], which the kernel left; return RARE to go on after it."""
        raise NotImplementedError

    def nonsense(self, data: Bytes, position: int) -> str:
        """Return what is wrong with the record at this position, where reading stops."""
        raise NotImplementedError

    def torn(self, data: Bytes, start: int, end: int, packet: Ints) -> bool:
        """Fill in the packet of the record inside which the file ends; return whether there is one."""
        raise NotImplementedError

    def resume(self, before: Before) -> None:
        """Go on after these records of the file."""
        self.state[Scan.NUMBER] = before.number

    def after(self) -> After:
        """Return what the records of a range say of the file, once they are read."""
        return After(self.number)

    def add(self, after: After, origin: int) -> None:
        """Add what a range says of the file; it begins at byte `origin`."""

    def lengths(self, data: Bytes) -> Ints:
        """Return, for each position, the length of the record that may begin there; 0 where none can.

        Positions are left out from which on too little of a record would be seen.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Report, at the end of the file, the problems that the kernel could only count."""


def ordered_words(data: Bytes, order: str) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Return the unsigned 32-bit integer at each position, in a byte order (`<` or `>`)."""
    words = np.zeros(max(0, len(data) - 3), np.uint32)
    for first in range(min(4, len(words))):
        count = (len(data) - first) // 4
        words[first::4] = data[first : first + 4 * count].view(order + "u4")
    return words
