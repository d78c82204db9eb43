"""The classic capture file (pcap): a header of 24 bytes, then records of a header and the packet's bytes.

Source: draft-ietf-opsawg-pcap, "PCAP Capture File Format". Both byte orders, microseconds and nanoseconds, and the
records with a header of 24 bytes that a patched libpcap of the nineties wrote (magic 0xa1b2cd34). The snap length in
the file header is not relied on: many programs write it wrong.
"""

import struct

import numpy as np

from amqpscope.dissector.capture.input import CaptureError
from amqpscope.dissector.capture.model import CaptureInfo
from amqpscope.dissector.capture.scanner import (
    CAPLEN,
    CORRUPT,
    FULL,
    K_NEED,
    K_NUMBER,
    K_POSITION,
    K_ROWS,
    K_SHARED,
    LENGTH,
    LINK,
    MAX_RECORD,
    MORE,
    OFFSET,
    PACKET,
    TS_NS,
    Scanner,
    u32,
)  # fmt: skip
from amqpscope.dissector.kernels.arrays import Array, Ints, Octets
from amqpscope.dissector.kernels.kernel import kernel

HEADER = 24
"""Bytes of the file header."""

# Further items of the state of scan_records, as the file header says: link type, byte order (1: big), nanoseconds in a
# unit of the fraction, bytes of a record header.
K_LINK, K_BIG, K_UNIT_NS, K_PREFIX, K_WIDTH = range(K_SHARED, K_SHARED + 5)

_FORMATS = {  # magic number: nanoseconds in a unit of the fraction, bytes of a record header
    0xA1B2C3D4: (1000, 16),
    0xA1B23C4D: (1, 16),
    0xA1B2CD34: (1000, 24),
}


@kernel
def scan_records(data: Array, end: int, table: Array, columns: Array, state: Array) -> int:
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


class PcapScanner(Scanner):
    """Finds the packets of one classic capture file, piece by piece.

    Args:
        head: the first bytes of the file.
        name: of the file, for messages.
        info: takes what is learned of the file.

    Raises:
        CaptureError: the file ends in its header.
    """

    def __init__(self, head: bytes, name: str, info: CaptureInfo) -> None:
        super().__init__(info, scan_records, np.zeros((0, 0), np.int64), K_WIDTH)
        if len(head) < HEADER:
            raise CaptureError(
                f"{name}: ends inside its file header ({len(head)} of {HEADER} octets); capture it again"
            )
        self._order = _byte_order(head) or "<"
        magic, snap_length, link = struct.unpack_from(self._order + "I12xII", head)
        self._unit_ns, self._prefix = _FORMATS[magic]
        self.state[K_LINK] = link & 0xFFFF  # the upper half is about frame check sequences
        self.state[K_BIG] = self._order == ">"
        self.state[K_UNIT_NS], self.state[K_PREFIX] = self._unit_ns, self._prefix
        info.format, info.snap_length, info.link_types = "pcap", snap_length, [link & 0xFFFF]

    def nonsense(self, data: Octets, position: int) -> str:
        """What is wrong with a record: only its length can be."""
        caplen = struct.unpack_from(self._order + "8xI", data.data, position)[0]
        return f"a record of {caplen} octets is not possible; nothing behind it was read"

    def torn(self, data: Octets, start: int, end: int, packet: Ints) -> bool:
        """Fill in the packet of the record in which the file ends; whether its header is whole."""
        first = start + self._prefix
        if end < first:
            return False
        seconds, fraction, length = struct.unpack_from(self._order + "II4xI", data.data, start)
        ts_ns = seconds * 1_000_000_000 + fraction * self._unit_ns
        packet[:] = first, end - first, length, ts_ns, self.state[K_NUMBER] + 1, self.state[K_LINK]
        return True


def is_pcap(head: bytes) -> bool:
    """Whether a file that begins so is a classic capture."""
    return _byte_order(head) is not None


def _byte_order(head: bytes) -> str | None:
    if len(head) >= 4:
        for order in "<>":
            if struct.unpack_from(order + "I", head)[0] in _FORMATS:
                return order
    return None
