"""Scan the classic capture file (pcap): a header of 24 bytes, then records of a header and the packet's bytes.

Source: draft-ietf-opsawg-pcap, "PCAP Capture File Format". Both byte orders, microseconds and nanoseconds, and the
records with a header of 24 bytes that a patched libpcap of the nineties wrote (magic 0xa1b2cd34). The snap length in
the file header does not count: many programs write a wrong one.
"""

import struct

import numpy as np

from amqpscope.dissector.capture.input import CaptureError
from amqpscope.dissector.capture.model import CaptureInfo
from amqpscope.dissector.capture.scanner import CORRUPT, FULL, MAX_RECORD, MORE, Packet, Scan, Scanner, ordered_words
from amqpscope.dissector.kernels.arrays import Array, Bytes, Ints
from amqpscope.dissector.kernels.integers import ordered32
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.state import column

HEADER = 24
"""Bytes of the file header."""

_FORMATS = {  # magic number: nanoseconds in a unit of the fraction, size of a record header
    0xA1B2C3D4: (1000, 16),
    0xA1B23C4D: (1, 16),
    0xA1B2CD34: (1000, 24),
}


class PcapScan(Scan):
    """State of `scan_records`, with the values of the file header."""

    LINK = column("link type")
    BIG = column("1: big-endian")
    UNIT_NS = column("nanoseconds in a unit of the fraction")
    PREFIX = column("bytes of a record header")


@kernel
def scan_records(data: Array, end: int, table: Array, columns: Array, state: Array) -> int:
    """List the packets of the whole records from PcapScan.POSITION to `end`; return why it ended."""
    position, rows, room = state[PcapScan.POSITION], 0, columns.shape[1]
    number, link = state[PcapScan.NUMBER], state[PcapScan.LINK]
    big, unit, prefix = state[PcapScan.BIG], state[PcapScan.UNIT_NS], state[PcapScan.PREFIX]
    status, need = FULL, 0
    while rows < room:
        if end - position < prefix:
            status, need = MORE, prefix
            break
        caplen = ordered32(data, position + 8, big)
        if caplen > MAX_RECORD:
            status = CORRUPT
            break
        if end - position - prefix < caplen:
            status, need = MORE, prefix + caplen
            break
        number += 1
        columns[Packet.OFFSET, rows] = position + prefix
        columns[Packet.CAPLEN, rows] = caplen
        columns[Packet.LENGTH, rows] = ordered32(data, position + 12, big)
        seconds, fraction = ordered32(data, position, big), ordered32(data, position + 4, big)
        columns[Packet.TS_NS, rows] = seconds * 1_000_000_000 + fraction * unit
        columns[Packet.PACKET, rows] = number
        columns[Packet.LINK, rows] = link
        rows += 1
        position += prefix + caplen
    state[PcapScan.POSITION] = position
    state[PcapScan.ROWS] = rows
    state[PcapScan.NEED] = need
    state[PcapScan.NUMBER] = number
    return status


class PcapScanner(Scanner):
    """Find the packets of one classic capture file, chunk by chunk.

    Args:
        head: the first bytes of the file.
        name: name of the file in messages.
        info: receives what is learned of the file.

    Raises:
        CaptureError: the file ends inside its header.
    """

    begin = HEADER

    def __init__(self, head: bytes, name: str, info: CaptureInfo) -> None:
        super().__init__(info, scan_records, np.zeros((0, 0), np.int64), PcapScan)
        if len(head) < HEADER:
            raise CaptureError(
                f"{name}: truncated inside the file header ({len(head)} of {HEADER} bytes); capture it again"
            )
        self._order = _byte_order(head) or "<"
        magic, snap_length, link = struct.unpack_from(self._order + "I12xII", head)
        self._unit_ns, self._prefix = _FORMATS[magic]
        self.state[PcapScan.LINK] = link & 0xFFFF  # the upper half is about frame check sequences
        self.state[PcapScan.BIG] = self._order == ">"
        self.state[PcapScan.UNIT_NS], self.state[PcapScan.PREFIX] = self._unit_ns, self._prefix
        info.format, info.snap_length, info.link_types = "pcap", snap_length, [link & 0xFFFF]

    def nonsense(self, data: Bytes, position: int) -> str:
        """Return what is wrong with a record: only its length can be wrong."""
        caplen = struct.unpack_from(self._order + "8xI", data.data, position)[0]
        return f"a record cannot have {caplen} bytes; nothing after it was read"

    def lengths(self, data: Bytes) -> Ints:
        """Return the lengths of plausible records, which are not empty."""
        words = ordered_words(data, self._order)
        size = max(0, len(words) - 12)
        fraction, caplen, length = (words[at : at + size] for at in (4, 8, 12))
        is_plausible = (caplen > 0) & (caplen <= MAX_RECORD) & (caplen <= length)
        is_plausible &= fraction < 1_000_000_000 // self._unit_ns
        return np.where(is_plausible, caplen.astype(np.int64) + self._prefix, 0)

    def torn(self, data: Bytes, start: int, end: int, packet: Ints) -> bool:
        """Fill in the packet of the record in which the file ends; return whether its header is whole."""
        first = start + self._prefix
        if end < first:
            return False
        seconds, fraction, length = struct.unpack_from(self._order + "II4xI", data.data, start)
        ts_ns = seconds * 1_000_000_000 + fraction * self._unit_ns
        packet[:] = first, end - first, length, ts_ns, self.state[PcapScan.NUMBER] + 1, self.state[PcapScan.LINK]
        return True


def is_pcap(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is a classic capture."""
    return _byte_order(head) is not None


def _byte_order(head: bytes) -> str | None:
    if len(head) >= 4:
        for order in "<>":
            if struct.unpack_from(order + "I", head)[0] in _FORMATS:
                return order
    return None
