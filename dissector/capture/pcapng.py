"""Scan the next-generation capture file (pcapng): blocks of a type, a length, a body and the length again.

Source: draft-ietf-opsawg-pcapng, "PCAP Next Generation Capture File Format". A kernel lists packet blocks and
skips blocks of no interest; plain Python reads the few kinds that carry state (sections, interfaces, statistics,
secrets). Where the header of a classic capture follows, another scanner goes on.
"""

import struct
from collections.abc import Iterator, Sequence

import numpy as np

from amqpscope.dissector.capture.input import CaptureError
from amqpscope.dissector.capture.model import Before, CaptureInfo
from amqpscope.dissector.capture.pcap import FORMATS, HEADER, is_header, is_pcap
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
from amqpscope.dissector.kernels import kernel as kernels
from amqpscope.dissector.kernels.arrays import Array, Bytes, Ints
from amqpscope.dissector.kernels.integers import ordered32
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.state import Matrix, column

SECTION_MAGIC = b"\x0a\x0d\x0d\x0a"
"""Type of the block that begins a section, the same in both byte orders."""

MAX_BLOCK = MAX_RECORD + (1 << 20)
"""Most bytes that a block can have: a packet and its options, or anything else."""

MAX_INTERFACES = 1 << 16
"""Most interfaces of a section. The obsolete packet block could name no more."""

MAX_NAME = 256
"""Most bytes kept of an interface's name."""

MAX_SECRETS = 16 << 20
"""Most bytes kept of the secrets in a file."""

MAX_PAUSES = 256
"""Number of secrets between packets at which a scan ends a batch, so that they are known for the packets after them and
not before; further secrets may be known a little earlier, because each costs a batch."""

MAX_KEPT = 1 << 20
"""Most bytes of blocks with state in a file that is read in ranges."""

_TLS_KEY_LOG = 0x544C534B

MAX_SECONDS = 9_000_000_000
"""Times further from the epoch (after the year 2255) are clamped to this, so that nanoseconds fit in 64 bits."""

# Block types.
_SECTION, _INTERFACE, _OBSOLETE_PACKET, _SIMPLE_PACKET, _STATISTICS, _PACKET, _SECRETS = 0x0A0D0D0A, 1, 2, 3, 5, 6, 10

_PREFIX = 28  # size of what precedes the packet in both larger packet blocks
_SHORTEST_SECTION = 28


_MAGICS = tuple(each for magic in FORMATS for each in (magic, int.from_bytes(magic.to_bytes(4, "big"), "little")))
"""With these classic captures begin, in either byte order."""
_KINDS = np.array([_SECTION, *range(1, 11)], np.uint32)  # types of blocks that capture programs write


class PcapngScan(Scan):
    """State of `scan_blocks`."""

    BIG = column("1: the section is big-endian")
    INTERFACES = column("interfaces of the section")
    LAST_NS = column("time of the last packet")
    HOMELESS = column("packets on an interface that is not described")
    TIMES_CUT = column("times that were clamped")


_COUNTED = {
    PcapngScan.HOMELESS: "packets skipped because the file does not describe their interface: {}",
    PcapngScan.TIMES_CUT: "times after the year 2255 clamped: {}",
}
"""What the kernel can only count, and how it is reported."""


class Interface(Matrix):
    """Interfaces of the section."""

    LINK = column("link type")
    SNAP = column("snap length")
    PER_SECOND = column("ticks in a second")
    SHIFT = column("exponent, if this is a power of two; 0: it is a power of ten")
    OFFSET_S = column("seconds to add")


@kernel
def nanoseconds(high: int, low: int, interfaces: Array, interface: int, state: Array) -> int:
    """Return the nanoseconds since the epoch, rounded down, of a tick count in two halves of 32 bits."""
    per_second, shift = interfaces[interface, Interface.PER_SECOND], interfaces[interface, Interface.SHIFT]
    seconds, fraction = MAX_SECONDS + MAX_SECONDS + 1, 0
    if high < 0x80000000:
        ticks = high * 0x100000000 + low
        seconds = ticks // per_second
        fraction = ticks - seconds * per_second
        if shift > 32:  # in two parts, because the product does not fit in 64 bits
            upper = fraction >> 32
            lower = fraction - (upper << 32)
            fraction = (upper * 1_000_000_000 + (lower * 1_000_000_000 >> 32)) >> (shift - 32)
        elif shift > 0:
            fraction = fraction * 1_000_000_000 >> shift
        elif per_second <= 1_000_000_000:
            fraction *= 1_000_000_000 // per_second
        else:
            fraction //= per_second // 1_000_000_000
        seconds = min(seconds, MAX_SECONDS + MAX_SECONDS + 1)
    seconds += interfaces[interface, Interface.OFFSET_S]
    if seconds > MAX_SECONDS:
        state[PcapngScan.TIMES_CUT] += 1
        seconds, fraction = MAX_SECONDS, 0
    time: int = seconds * 1_000_000_000 + fraction
    return time


@kernel
def scan_blocks(data: Array, end: int, interfaces: Array, columns: Array, state: Array) -> int:
    """List the packets of whole blocks from PcapngScan.POSITION to `end` or a block with state; return why it ended."""
    position, rows, room = state[PcapngScan.POSITION], state[PcapngScan.ROWS], columns.shape[1]
    number, big, known = state[PcapngScan.NUMBER], state[PcapngScan.BIG], state[PcapngScan.INTERFACES]
    status, need = FULL, 0
    while rows < room:
        if end - position < 12:
            status, need = MORE, 12
            break
        kind = ordered32(data, position, big)
        if kind in (_SECTION, _INTERFACE, _STATISTICS, _SECRETS):
            status = RARE
            break
        if kind > 0xFFFF and ordered32(data, position, 0) in _MAGICS:
            if end - position < HEADER:
                status, need = MORE, HEADER
                break
            if is_header(data, position):
                status = CHANGED
                break
        total = ordered32(data, position + 4, big)
        if total < 12 or total % 4 != 0 or total > MAX_BLOCK:
            status = CORRUPT
            break
        if end - position < total:
            status, need = MORE, total
            break
        if ordered32(data, position + total - 4, big) != total:
            status = CORRUPT
            break
        if kind in (_PACKET, _OBSOLETE_PACKET):
            if total < _PREFIX + 4 or ordered32(data, position + 20, big) > total - _PREFIX - 4:
                status = CORRUPT
                break
            interface = ordered32(data, position + 8, big)
            if kind == _OBSOLETE_PACKET:  # 16 bits of interface, 16 bits of drops
                interface = interface >> 16 if big else interface & 0xFFFF
            number += 1
            if interface < known:
                high, low = ordered32(data, position + 12, big), ordered32(data, position + 16, big)
                state[PcapngScan.LAST_NS] = nanoseconds(high, low, interfaces, interface, state)
                columns[Packet.OFFSET, rows] = position + _PREFIX
                columns[Packet.CAPLEN, rows] = ordered32(data, position + 20, big)
                columns[Packet.LENGTH, rows] = ordered32(data, position + 24, big)
                columns[Packet.TS_NS, rows] = state[PcapngScan.LAST_NS]
                columns[Packet.PACKET, rows] = number
                columns[Packet.LINK, rows] = interfaces[interface, Interface.LINK]
                rows += 1
            else:
                state[PcapngScan.HOMELESS] += 1
        elif kind == _SIMPLE_PACKET:
            if total < 16:
                status = CORRUPT
                break
            number += 1
            if known > 0:  # the first interface; its snap length gives the number of bytes captured; there is no time
                length = ordered32(data, position + 8, big)
                caplen = min(length, total - 16)
                if interfaces[0, Interface.SNAP] > 0:
                    caplen = min(caplen, interfaces[0, Interface.SNAP])
                columns[Packet.OFFSET, rows] = position + 12
                columns[Packet.CAPLEN, rows] = caplen
                columns[Packet.LENGTH, rows] = length
                columns[Packet.TS_NS, rows] = state[PcapngScan.LAST_NS]
                columns[Packet.PACKET, rows] = number
                columns[Packet.LINK, rows] = interfaces[0, Interface.LINK]
                rows += 1
            else:
                state[PcapngScan.HOMELESS] += 1
        position += total
    state[PcapngScan.POSITION] = position
    state[PcapngScan.ROWS] = rows
    state[PcapngScan.NEED] = need
    state[PcapngScan.NUMBER] = number
    return status


class PcapngScanner(Scanner):
    """Find the packets of one next-generation capture file, chunk by chunk.

    Args:
        head: the first bytes of the file.
        name: name of the file in messages.
        info: receives what is learned of the file.

    Raises:
        CaptureError: the first block is not a section header, or the file ends inside it.
    """

    def __init__(self, head: bytes, name: str, info: CaptureInfo) -> None:
        super().__init__(info, scan_blocks, Interface.make(8), PcapngScan)
        if len(head) < _SHORTEST_SECTION:
            raise CaptureError(f"{name}: truncated inside the section header (at byte {len(head)}); capture it again")
        if _byte_order(head) is None:
            raise CaptureError(f"{name}: damaged pcapng file: no byte-order magic at byte 8")
        self._order = "<"
        self._drops: dict[int, int] = {}  # by interface of the section
        self._pauses = 0
        self._kept: list[tuple[int, bytes]] = []
        self._room = 0  # bytes that may be kept yet; below zero, some were not
        info.format = "pcapng"

    def rare(self, data: Bytes, end: int, origin: int) -> int:
        """Read a block with state."""
        position = int(self.state[PcapngScan.POSITION])
        total = self._measure(bytes(data[position : position + 12]))
        if total is None:
            return CORRUPT
        if end - position < total:
            self.state[PcapngScan.NEED] = total
            return MORE
        if self.state[PcapngScan.ROWS] and self._pauses < MAX_PAUSES and self._kind(data, position) == _SECRETS:
            self._pauses += 1
            return FULL
        block = bytes(data[position : position + total])
        self._take(block, origin + position)
        self._room -= total
        if self._room >= 0:
            self._kept.append((origin + position, block))
        self.state[PcapngScan.POSITION] += total
        return RARE

    def nonsense(self, data: Bytes, position: int) -> str:
        """Return what is wrong with a block: only its lengths can be wrong."""
        return "the lengths of a block contradict each other; nothing after it was read"

    def resume(self, before: Before) -> None:
        """Go on after these blocks of the file; keep the blocks with state that come, up to MAX_KEPT bytes."""
        super().resume(before)
        for block in before.blocks:
            self._take(block, 0)
        self.state[PcapngScan.LAST_NS] = before.last_ns
        self._room = MAX_KEPT

    def after(self) -> After:
        """Return what the blocks of a range say of the file, once they are read."""
        counted = tuple(int(self.state[item]) for item in _COUNTED)
        kept = tuple(self._kept) if self._room >= 0 and not self.is_mixed else None
        return After(self.number, int(self.state[PcapngScan.LAST_NS]), kept, counted)

    def add(self, after: After, origin: int) -> None:
        """Read the blocks with state of a range; it begins at byte `origin`."""
        for at, block in after.kept or ():
            self._take(block, origin + at)
        for item, count in zip(_COUNTED, after.counted, strict=True):
            self.state[item] += count

    def lengths(self, data: Bytes) -> Ints:
        """Return the lengths of plausible blocks, whose length stands at both ends."""
        words = ordered_words(data, self._order)
        size = max(0, len(words) - 4)
        kind, total = words[:size], words[4:].astype(np.int64)
        is_plausible = (total >= 12) & (total <= MAX_BLOCK) & (total % 4 == 0) & np.isin(kind, _KINDS)
        last = np.arange(size) + total - 4
        is_seen = last < len(words)
        is_plausible &= ~is_seen | (words[np.where(is_seen, last, 0)] == total)
        return np.where(is_plausible, total, 0)

    def torn(self, data: Bytes, start: int, end: int, packet: Ints) -> bool:
        """Fill in the packet of the block in which the file ends; return whether all before its bytes is there."""
        state = self.state
        if end - start < _PREFIX:
            return False
        kind, total, caplen = struct.unpack_from(self._order + "II12xI", data.data, start)
        if kind not in {_PACKET, _OBSOLETE_PACKET} or caplen > total - _PREFIX - 4:
            return False
        # The kernel reads it as the block of an empty packet.
        block = np.zeros(_PREFIX + 4, np.uint8)
        block[:_PREFIX] = data[start : start + _PREFIX]
        for position, value in (4, len(block)), (20, 0), (_PREFIX, len(block)):
            struct.pack_into(self._order + "I", block.data, position, value)
        found = Packet.room(1)
        state[PcapngScan.POSITION] = state[PcapngScan.ROWS] = 0
        kernels.call(scan_blocks, False, block, len(block), self.table, found, state)
        found[Packet.OFFSET], found[Packet.CAPLEN] = start + _PREFIX, min(caplen, end - start - _PREFIX)
        packet[:] = found[:, 0]
        return bool(state[PcapngScan.ROWS])

    def finish(self) -> None:
        """Report, at the end of the file, the problems that the kernel could only count."""
        for item, detail in _COUNTED.items():
            if count := int(self.state[item]):
                self.info.problem("header-unknown", 0, None, detail.format(count), count)

    def _measure(self, head: bytes) -> int | None:
        """Return the length of the block that begins here, or None when it cannot be right."""
        section = head.startswith(SECTION_MAGIC)
        order = _byte_order(head) if section else self._order
        if order is None:
            return None
        total: int = struct.unpack_from(order + "I", head, 4)[0]
        shortest = _SHORTEST_SECTION if section else 12
        return total if shortest <= total <= MAX_BLOCK and total % 4 == 0 else None

    def _kind(self, data: Bytes, position: int) -> int:
        return int(struct.unpack_from(self._order + "I", data.data, position)[0])

    def _take(self, block: bytes, at: int) -> None:
        """Read a block with state; `at` is its position in the file."""
        if block.startswith(SECTION_MAGIC):
            self._order = _byte_order(block) or "<"
            self.state[PcapngScan.BIG], self.state[PcapngScan.INTERFACES] = self._order == ">", 0
            self._drops.clear()
            return
        kind = struct.unpack_from(self._order + "I", block)[0]
        if kind == _INTERFACE and len(block) >= 20:
            self._interface(block, at)
        elif kind == _STATISTICS and len(block) >= 24:
            self._statistics(block)
        elif kind == _SECRETS and len(block) >= 20:
            what, length = struct.unpack_from(self._order + "II", block, 8)
            length = min(length, len(block) - 20)
            if what != _TLS_KEY_LOG:
                return
            if self.info.secret_bytes + length > MAX_SECRETS:
                self.info.problem("limit-reached", 0, at, f"more than {MAX_SECRETS} bytes of secrets")
                return
            self.info.secret_bytes += length
            self.info.secrets.append(block[16 : 16 + length])

    def _interface(self, block: bytes, at: int) -> None:
        number = int(self.state[PcapngScan.INTERFACES])
        if number >= MAX_INTERFACES:
            self.info.problem("limit-reached", 0, at, f"more than {MAX_INTERFACES} interfaces in a section")
            return
        link, snap_length = struct.unpack_from(self._order + "HxxI", block, 8)
        per_second, shift, offset_s, name = 10**6, 0, 0, ""
        for code, value in self._options(block, 16):
            if code == 2:  # if_name
                name = value[:MAX_NAME].decode("utf-8", "replace")
            elif code == 9 and value:  # if_tsresol: ticks of 10**-n or 2**-n seconds
                exponent, binary = value[0] & 0x7F, value[0] & 0x80
                shift = min(exponent, 62) if binary else 0
                per_second = 1 << shift if binary else 10 ** min(exponent, 18)
                if exponent > (62 if binary else 18):
                    detail = f"the time resolution of interface {number} is too fine to be read; its times are wrong"
                    self.info.problem("header-unknown", 0, at, detail)
            elif code == 14 and len(value) == 8:  # if_tsoffset
                offset_s = struct.unpack(self._order + "q", value)[0]
        if number == len(self.table):
            self.table = Interface.grown(self.table, 2 * number)
        offset_s = max(-MAX_SECONDS, min(MAX_SECONDS, offset_s))
        self.table[number] = link, snap_length, per_second, shift, offset_s
        self.state[PcapngScan.INTERFACES] = number + 1
        self.info.interface(name, link, snap_length)

    def _statistics(self, block: bytes) -> None:
        """Read drop counts. They grow while the capture runs, so the last ones of an interface count."""
        interface = struct.unpack_from(self._order + "I", block, 8)[0]
        dropped = [
            struct.unpack(self._order + "Q", value)[0]
            for code, value in self._options(block, 20)
            if code in {5, 7} and len(value) == 8  # isb_ifdrop, isb_osdrop
        ]
        if dropped and interface < self.state[PcapngScan.INTERFACES]:
            total = min(sum(dropped), 1 << 62)
            more = total - self._drops.get(interface, 0)
            self._drops[interface] = total
            self.info.dropped = min((self.info.dropped or 0) + more, 1 << 62)

    def _options(self, block: bytes, position: int) -> Iterator[tuple[int, bytes]]:
        end = len(block) - 4
        while position + 4 <= end:
            code, length = struct.unpack_from(self._order + "HH", block, position)
            position += 4
            if code == 0 or position + length > end:
                return
            yield code, block[position : position + length]
            position += length + -length % 4


def _byte_order(section: bytes) -> str | None:
    """Return the byte order of the section that begins with these bytes, by its magic; None when it has none."""
    return {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}.get(section[8:12])


def in_force(before: Sequence[bytes], after: After) -> tuple[bytes, ...]:
    """Return the header and the interfaces of the section in which a range ends; `before` are those where it begins.

    Of a classic capture that is the last file header after the first one, if there is any.
    """
    blocks = [*before, *(block for _, block in after.kept or ())]
    headers = tuple(block for block in blocks if is_pcap(block))
    if headers:
        return headers[-1:]
    sections = [number for number, block in enumerate(blocks) if block.startswith(SECTION_MAGIC)]
    current = blocks[sections[-1] if sections else 0 :]
    return tuple(block for block in current if _is(block, _SECTION) or _is(block, _INTERFACE))


def _is(block: bytes, kind: int) -> bool:
    """Return whether a block has this type, in either byte order."""
    return block[:4] in (kind.to_bytes(4, "little"), kind.to_bytes(4, "big"))
