"""What the formats of capture files have in common: records one behind the other, listed piece by piece.

A scanner holds the state of one file. Its kernel lists the packets of the whole records in a piece of the file, until
more bytes are wanted, the matrix of packets is full, or a record makes no sense.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from amqpscope.dissector.capture.model import CaptureInfo
from amqpscope.dissector.kernels import kernel as kernels
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.kernels.state import Matrix, Records, column

MAX_RECORD = 16 << 20
"""Bytes of a packet beyond which its record cannot be right. An IP packet has at most 64 KiB, a jumbogram seen before
segmentation some hundred KiB; captures of other things (USB, D-Bus) that go beyond have no TCP in them."""

# Why a scan ended: more bytes are wanted, the matrix is full, a header makes no sense, a block is for plain Python.
MORE, FULL, CORRUPT, RARE = range(4)


class Packet(Records):
    """Packets that a scan lists."""

    OFFSET = column("position in the data")
    CAPLEN = column("bytes captured")
    LENGTH = column("bytes on the wire")
    TS_NS = column("time, ns since the epoch")
    PACKET = column("number in the file")
    LINK = column("link type")


class Scan(Matrix):
    """State that the kernels of all formats share: one row."""

    POSITION = column("where the next record begins")
    ROWS = column("packets found")
    NEED = column("bytes wanted from the position on")
    NUMBER = column("number of the last packet")


class Scanned(NamedTuple):
    """What a scanner found in a piece of a file.

    Attributes:
        position: where the next record begins.
        rows: packets found.
        need: bytes wanted from `position` on before there can be another packet; 0 when there was no room for more.
        stop: nothing from `position` on can be trusted.
    """

    position: int
    rows: int
    need: int
    stop: bool


class Scanner:
    """Finds the packets of one capture file, piece by piece.

    Args:
        info: takes what is learned of the file.
        kernel: lists packets: (data, end, table, columns, state) to why it ended.
        table: what the kernel must know besides its state.
        state: declares what the kernel remembers.
    """

    def __init__(self, info: CaptureInfo, kernel: Callable[..., Any], table: Ints, state: type[Scan]) -> None:
        self.info = info
        self.table = table
        self.state = state.make(1)[0]
        self._kernel = kernel

    def scan(self, data: Bytes, start: int, end: int, columns: Ints, origin: int, compiled: bool) -> Scanned:
        """List the packets of the whole records in `data[start:end]`; data[0] is byte `origin` of the file."""
        state = self.state
        state[Scan.POSITION], state[Scan.ROWS], status = start, 0, RARE
        while status == RARE:
            status = kernels.call(self._kernel, compiled, data, end, self.table, columns, state)
            if status == RARE:
                status = self.rare(data, end, origin)
        position, rows, need, number = state[[Scan.POSITION, Scan.ROWS, Scan.NEED, Scan.NUMBER]].tolist()
        if status == CORRUPT:
            self.info.problem("header-unknown", number + 1, origin + position, self.nonsense(data, position))
        return Scanned(position, rows, need if status == MORE else 0, status == CORRUPT)

    def rare(self, data: Bytes, end: int, origin: int) -> int:
        """Take in the record at state[Scan.POSITION] that is not for the kernel; RARE means to go on behind it."""
        raise NotImplementedError

    def nonsense(self, data: Bytes, position: int) -> str:
        """What is wrong with the record at this position, where reading stops."""
        raise NotImplementedError

    def remainder(self, data: Bytes, start: int, end: int, columns: Ints, row: int, origin: int) -> int:
        """List the packet in `data[start:end]`, in which the file ends, if all before its bytes is there.

        Returns:
            The number of packets, 0 or 1.
        """
        self.info.truncated = True
        number = int(self.state[Scan.NUMBER]) + 1
        self.info.problem("capture-truncated", number, origin + start, "the file ends inside this record")
        return int(self.torn(data, start, end, columns[:, row]))

    def torn(self, data: Bytes, start: int, end: int, packet: Ints) -> bool:
        """Fill in the packet of the record in which the file ends; whether there is one."""
        raise NotImplementedError

    def finish(self) -> None:
        """The file has ended: tell what the kernel could only count."""
