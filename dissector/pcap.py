"""The classic capture file (pcap): a header of 24 octets, then records of a header and the packet's octets.

Source: draft-ietf-opsawg-pcap, "PCAP Capture File Format". Both byte orders, microseconds and nanoseconds, and the
records with a header of 24 octets that a patched libpcap of the nineties wrote (magic 0xa1b2cd34). The snap length in
the file header is not relied on: many programs write it wrong.
"""

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dissector import kernel as kernels
from dissector.arrays import Array, Ints, Octets
from dissector.input import CaptureError
from dissector.kernel import kernel

if TYPE_CHECKING:
    from dissector.capture import CaptureInfo

MAX_RECORD = 16 << 20
"""Octets of a packet beyond which its record cannot be right. An IP packet has at most 64 KiB, a jumbogram seen before
segmentation some hundred KiB; captures of other things (USB, D-Bus) that go beyond have no TCP in them."""

HEADER = 24
"""Octets of the file header."""

# Rows of the matrix that a scan fills, one column a packet: position and octets of the packet in the data, original
# octets, nanoseconds since the epoch, number in the file, link type.
OFFSET, CAPLEN, LENGTH, TS_NS, PACKET, LINK, COLUMNS = range(7)

# Why a scan ended: more octets are wanted, the matrix is full, a header makes no sense, a block is for plain Python.
MORE, FULL, CORRUPT, RARE = range(4)

# Items of the state of scan_records: position, packets found, octets wanted from the position on; number of the last
# packet; as the file header says: link type, byte order (1: big), nanoseconds in a unit of the fraction, octets of a
# record header.
K_POSITION, K_ROWS, K_NEED, K_NUMBER, K_LINK, K_BIG, K_UNIT_NS, K_PREFIX, K_WIDTH = range(9)

_FORMATS = {  # magic number: nanoseconds in a unit of the fraction, octets of a record header
    0xA1B2C3D4: (1000, 16),
    0xA1B23C4D: (1, 16),
    0xA1B2CD34: (1000, 24),
}


class Scanned(NamedTuple):
    """What a scanner found in a piece of a file.

    Attributes:
        position: where the next record begins.
        rows: packets found.
        need: octets wanted from `position` on before there can be another packet; 0 when the matrix is full.
        stop: nothing from `position` on can be trusted.
    """

    position: int
    rows: int
    need: int
    stop: bool


@kernel
def u32(data: Array, p: int, big: int) -> int:
    """Unsigned 32-bit integer at p, in either byte order."""
    value: int
    if big:
        value = ((data[p] * 256 + data[p + 1]) * 256 + data[p + 2]) * 256 + data[p + 3]
    else:
        value = ((data[p + 3] * 256 + data[p + 2]) * 256 + data[p + 1]) * 256 + data[p]
    return value


@kernel
def scan_records(data: Array, end: int, columns: Array, state: Array) -> int:
    """List the packets of the whole records from state[K_POSITION] to `end`; tell why it ended."""
    position, rows, room = state[K_POSITION], 0, columns.shape[1]
    number, link, big, unit, prefix = state[K_NUMBER], state[K_LINK], state[K_BIG], state[K_UNIT_NS], state[K_PREFIX]
    status, need = FULL, 0
    while rows < room:
        if end - position < prefix:
            status, need = MORE, prefix
            break
        caplen = u32(data, position + 8, big)
        if caplen > MAX_RECORD:
            status = CORRUPT
            break
        if end - position - prefix < caplen:
            status, need = MORE, prefix + caplen
            break
        number += 1
        columns[OFFSET, rows] = position + prefix
        columns[CAPLEN, rows] = caplen
        columns[LENGTH, rows] = u32(data, position + 12, big)
        columns[TS_NS, rows] = u32(data, position, big) * 1_000_000_000 + u32(data, position + 4, big) * unit
        columns[PACKET, rows] = number
        columns[LINK, rows] = link
        rows += 1
        position += prefix + caplen
    state[K_POSITION] = position
    state[K_ROWS] = rows
    state[K_NEED] = need
    state[K_NUMBER] = number
    return status


class PcapScanner:
    """Finds the packets of one classic capture file, piece by piece.

    Args:
        head: the first octets of the file.
        name: of the file, for messages.
        info: takes what is learned of the file.

    Raises:
        CaptureError: the file ends in its header.
    """

    def __init__(self, head: bytes, name: str, info: "CaptureInfo") -> None:
        if len(head) < HEADER:
            raise CaptureError(
                f"{name}: ends inside its file header ({len(head)} of {HEADER} octets); capture it again"
            )
        self._order = _byte_order(head) or "<"
        magic, snap_length, link = struct.unpack_from(self._order + "I12xII", head)
        self._unit_ns, self._prefix = _FORMATS[magic]
        self._info = info
        self._state = np.zeros(K_WIDTH, np.int64)
        self._state[K_LINK] = link & 0xFFFF  # the upper half is about frame check sequences
        self._state[K_BIG] = self._order == ">"
        self._state[K_UNIT_NS], self._state[K_PREFIX] = self._unit_ns, self._prefix
        info.format, info.snap_length, info.link_types = "pcap", snap_length, [link & 0xFFFF]

    def scan(self, data: Octets, start: int, end: int, columns: Ints, origin: int, compiled: bool) -> Scanned:
        """List the packets of the whole records in `data[start:end]`; data[0] is octet `origin` of the file."""
        state = self._state
        state[K_POSITION] = start
        status = kernels.call(scan_records, compiled, data, end, columns, state)
        position, rows, need, number = state[[K_POSITION, K_ROWS, K_NEED, K_NUMBER]].tolist()
        if status == CORRUPT:
            caplen = struct.unpack_from(self._order + "8xI", data.data, position)[0]
            detail = f"a record of {caplen} octets is not possible; nothing behind it was read"
            self._info.problem("header-unknown", number + 1, origin + position, detail)
        return Scanned(position, rows, need, status == CORRUPT)

    def remainder(self, data: Octets, start: int, end: int, columns: Ints, row: int, origin: int) -> int:
        """List the packet in `data[start:end]`, in which the file ends, if its record header is whole.

        Returns:
            The number of packets, 0 or 1.
        """
        number = int(self._state[K_NUMBER]) + 1
        self._info.truncated = True
        self._info.problem("capture-truncated", number, origin + start, "the file ends inside this record")
        first = start + self._prefix
        if end < first:
            return 0
        seconds, fraction, length = struct.unpack_from(self._order + "II4xI", data.data, start)
        ts_ns = seconds * 1_000_000_000 + fraction * self._unit_ns
        columns[:, row] = first, end - first, length, ts_ns, number, self._state[K_LINK]
        return 1

    def finish(self) -> None:
        """The file has ended; there is nothing that was only counted."""


def is_pcap(head: bytes) -> bool:
    """Whether a file that begins so is a classic capture."""
    return _byte_order(head) is not None


def _byte_order(head: bytes) -> str | None:
    if len(head) >= 4:
        for order in "<>":
            if struct.unpack_from(order + "I", head)[0] in _FORMATS:
                return order
    return None
