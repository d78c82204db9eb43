"""The classic capture file (pcap): a header of 24 octets, then records of a header and the packet's octets.

Source: draft-ietf-opsawg-pcap, "PCAP Capture File Format". Both byte orders, microseconds and nanoseconds, and the
records of 24 octets that a patched libpcap of the nineties wrote (magic 0xa1b2cd34).
"""

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dissector import kernel as kernels
from dissector.input import CaptureError
from dissector.kernel import kernel

if TYPE_CHECKING:
    from dissector.capture import CaptureInfo

MAX_RECORD = 16 << 20
"""Octets of a packet beyond which its record cannot be right. An IP packet has at most 64 KiB, a jumbogram seen before
segmentation some hundred KiB; captures of other things (USB, D-Bus) that go beyond have no TCP in them."""

HEADER = 24

# Columns of a scan, all int64: the position and octets of a packet in the data, its original octets, nanoseconds since
# the epoch, number in the file, link type.
OFFSET, CAPLEN, LENGTH, TS_NS, PACKET, LINK, COLUMNS = 0, 1, 2, 3, 4, 5, 6

# Why a scan ended.
MORE, FULL, CORRUPT, RARE = 0, 1, 2, 3

# state of scan_records
_POSITION, _ROWS, _NEED, _NUMBER, _LINK, _BIG, _UNIT_NS, _PREFIX, _STATE = 0, 1, 2, 3, 4, 5, 6, 7, 8

_FORMATS = {  # magic: nanoseconds of the fraction's unit, octets of a record's header
    0xA1B2C3D4: (1000, 16),
    0xA1B23C4D: (1, 16),
    0xA1B2CD34: (1000, 24),
}


class Scanned(NamedTuple):
    """What a scanner found in a piece of a file.

    Attributes:
        position: where the next record begins.
        rows: packets written to the columns.
        need: octets wanted from `position` on before there can be another packet; 0 when the columns are full.
        stop: nothing behind `position` can be trusted.
    """

    position: int
    rows: int
    need: int
    stop: bool


@kernel
def u32(data, p, big):  # type: ignore[no-untyped-def]
    """Unsigned 32-bit integer at p, in either byte order."""
    if big:
        return ((data[p] * 256 + data[p + 1]) * 256 + data[p + 2]) * 256 + data[p + 3]
    return ((data[p + 3] * 256 + data[p + 2]) * 256 + data[p + 1]) * 256 + data[p]


@kernel
def scan_records(data, end, columns, state):  # type: ignore[no-untyped-def]
    """List the whole records in data[state[POSITION]:end]; see `Scanned`."""
    position, rows, room = state[0], 0, columns.shape[1]
    number, link, big, unit, prefix = state[3], state[4], state[5], state[6], state[7]
    status, need = 1, 0
    while rows < room:
        if end - position < prefix:
            status, need = 0, prefix
            break
        caplen = u32(data, position + 8, big)
        if caplen > 16777216:  # MAX_RECORD
            status = 2
            break
        if end - position - prefix < caplen:
            status, need = 0, prefix + caplen
            break
        columns[0, rows] = position + prefix
        columns[1, rows] = caplen
        columns[2, rows] = u32(data, position + 12, big)
        columns[3, rows] = u32(data, position, big) * 1000000000 + u32(data, position + 4, big) * unit
        number += 1
        columns[4, rows] = number
        columns[5, rows] = link
        rows += 1
        position += prefix + caplen
    state[0] = position
    state[1] = rows
    state[2] = need
    state[3] = number
    return status


class PcapScanner:
    """Finds the packets of one classic capture file, piece by piece.

    Raises:
        CaptureError: the file ends in its header.
    """

    def __init__(self, head: bytes, name: str, info: "CaptureInfo") -> None:
        if len(head) < HEADER:
            raise CaptureError(f"{name}: ends inside its file header ({len(head)} of {HEADER} octets): capture it again")
        order, (unit, prefix) = next(
            (order, _FORMATS[magic]) for order in "<>" if (magic := struct.unpack_from(order + "I", head)[0]) in _FORMATS
        )
        snap_length, link = struct.unpack_from(order + "II", head, 16)
        self._info, self._order, self._unit, self._prefix = info, order, unit, prefix
        self._state = np.zeros(_STATE, np.int64)
        # The upper half holds what is known of frame check sequences.
        self._state[_LINK] = link & 0xFFFF
        self._state[_BIG], self._state[_UNIT_NS], self._state[_PREFIX] = order == ">", unit, prefix
        info.format, info.snap_length, info.link_types = "pcap", snap_length, [link & 0xFFFF]

    def scan(self, data: np.ndarray, start: int, end: int, columns: np.ndarray, origin: int, compiled: bool) -> Scanned:
        """Find the whole records in `data[start:end]`; data[0] is octet `origin` of the file."""
        state = self._state
        state[_POSITION] = start
        status = kernels.call(scan_records, compiled, data, end, columns, state)
        position, rows, need = (int(state[i]) for i in (_POSITION, _ROWS, _NEED))
        if status == CORRUPT:
            detail = f"record of {self._field(data, position, 8)} octets: what follows is not read"
            self._info.problem("capture-corrupt", int(state[_NUMBER]) + 1, origin + position, detail)
        return Scanned(position, rows, need, status == CORRUPT)

    def remainder(self, data: np.ndarray, start: int, end: int, columns: np.ndarray, origin: int) -> int:
        """Deliver the packet in which the file ends, if its record header is whole. Returns the number of rows."""
        number = int(self._state[_NUMBER]) + 1
        self._info.truncated = True
        self._info.problem("capture-truncated", number, origin + start, "the file ends inside this record")
        if end - start < self._prefix:
            return 0
        seconds, fraction, _, length = (self._field(data, start, 4 * i) for i in range(4))
        first = start + self._prefix
        row = (first, end - first, length, seconds * 10**9 + fraction * self._unit, number, self._state[_LINK])
        columns[:, 0] = row
        return 1

    def _field(self, data: np.ndarray, position: int, at: int) -> int:
        value: int = struct.unpack_from(self._order + "I", data, position + at)[0]
        return value


def is_pcap(head: bytes) -> bool:
    """Whether a file that begins so is a classic capture."""
    return len(head) >= 4 and any(struct.unpack_from(order + "I", head)[0] in _FORMATS for order in "<>")
