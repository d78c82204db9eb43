"""Scan the classic capture file (pcap): a header of 24 bytes, then records of a header and the packet's bytes.

Source: draft-ietf-opsawg-pcap, "PCAP Capture File Format". Both byte orders, microseconds and nanoseconds, and the
records with a header of 24 bytes that a patched libpcap of the nineties wrote (magic 0xa1b2cd34). The snap length in
the file header does not count: many programs write a wrong one. Files that were concatenated (`cat`) have further file
headers between records; each holds for the records after it. Where the section header of a next-generation capture
follows, another scanner goes on.
"""

import struct

import numpy as np

from amqpscope.dissector.capture.input import CaptureError
from amqpscope.dissector.capture.model import Before, CaptureInfo
from amqpscope.dissector.capture.scanner import (
    CHANGED,
    CORRUPT,
    FULL,
    MAX_RECORD,
    MORE,
    RARE,
    After,
    Packet,
    Scan,
    Scanner,
    ordered_words,
)
from amqpscope.dissector.kernels.arrays import Array, Bytes, Ints
from amqpscope.dissector.kernels.integers import ordered32
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.state import column

HEADER = 24
"""Bytes of the file header."""
SECTION, ORDERS, SECTION_BYTES = 0x0A0D0D0A, (0x1A2B3C4D, 0x4D3C2B1A), 28
"""Type of the block with which next-generation captures begin, its byte-order magic, and fewest bytes of it."""

FORMATS = {
    # magic number: nanoseconds in a unit of the fraction, bytes of a record header
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
    position, rows, room = state[PcapScan.POSITION], state[PcapScan.ROWS], columns.shape[1]
    number, link = state[PcapScan.NUMBER], state[PcapScan.LINK]
    big, unit, prefix = state[PcapScan.BIG], state[PcapScan.UNIT_NS], state[PcapScan.PREFIX]
    status, need = FULL, 0
    while rows < room:
        if end - position < prefix:
            status, need = MORE, prefix
            break
        if is_header(data, position):
            status, need = (MORE, HEADER) if end - position < HEADER else (RARE, 0)
            break
        caplen = ordered32(data, position + 8, big)
        if caplen in ORDERS and ordered32(data, position, big) == SECTION:
            status, need = (MORE, SECTION_BYTES) if end - position < SECTION_BYTES else (CHANGED, 0)
            break
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


@kernel
def is_header(data: Array, position: int) -> bool:
    """Return whether a file header begins here: a magic number, version 2, and eight bytes of zeros.

    A record that begins like that would be empty, and of the year 2055.
    """
    for order in range(2):
        magic = ordered32(data, position, order)
        if magic == 0xA1B2C3D4 or magic == 0xA1B23C4D or magic == 0xA1B2CD34:
            version = ordered32(data, position + 4, order)
            is_two = (version >> 16 if order else version & 0xFFFF) == 2
            found: bool = is_two and ordered32(data, position + 8, 0) == 0 and ordered32(data, position + 12, 0) == 0
            return found
    return False


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
        info.format = "pcap"
        self._kept: list[tuple[int, bytes]] = []
        self._take(head[:HEADER])

    def _take(self, header: bytes) -> None:
        """Take a file header, which holds for the records after it."""
        self._order = byte_order(header) or "<"
        magic, snap_length, link = struct.unpack_from(self._order + "I12xII", header)
        self._unit_ns, self._prefix = FORMATS[magic]
        link &= 0xFFFF  # the upper half is about frame check sequences
        self.state[PcapScan.LINK] = link
        self.state[PcapScan.BIG] = self._order == ">"
        self.state[PcapScan.UNIT_NS], self.state[PcapScan.PREFIX] = self._unit_ns, self._prefix
        self.info.snap_length = max(self.info.snap_length or 0, snap_length)
        if link not in self.info.link_types:
            self.info.link_types.append(link)

    def rare(self, data: Bytes, end: int, origin: int) -> int:
        """Read a further file header."""
        position = int(self.state[PcapScan.POSITION])
        header = bytes(data[position : position + HEADER])
        self._take(header)
        self._kept.append((origin + position, header))
        self.state[PcapScan.POSITION] += HEADER
        return RARE

    def resume(self, before: Before) -> None:
        """Go on after these records of the file, by its last header."""
        super().resume(before)
        for header in before.blocks:
            self._take(header)

    def after(self) -> After:
        """Return what the records of a range say of the file, once they are read."""
        return After(self.number, 0, None if self.is_mixed else tuple(self._kept))

    def add(self, after: After, origin: int) -> None:
        """Take the headers in a range."""
        for _, header in after.kept or ():
            self._take(header)

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
    return byte_order(head) is not None


def byte_order(head: bytes) -> str | None:
    """Return the byte order of a file header, as `struct` has it; None where it is none."""
    if len(head) >= 4:
        for order in "<>":
            if struct.unpack_from(order + "I", head)[0] in FORMATS:
                return order
    return None
