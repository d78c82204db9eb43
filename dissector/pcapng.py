"""The next-generation capture file (pcapng): blocks of a type, a length, a body and the length again.

Source: draft-ietf-opsawg-pcapng, "PCAP Next Generation Capture File Format"; block and option numbers in the comments
are its own. Packet blocks (and blocks of no interest) are walked by a kernel; the few that carry state - sections,
interfaces, statistics, secrets - come back to plain Python.
"""

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dissector import kernel as kernels
from dissector.input import CaptureError
from dissector.kernel import kernel
from dissector.pcap import CORRUPT, FULL, MORE, RARE, Scanned, u32

if TYPE_CHECKING:
    from dissector.capture import CaptureInfo

SECTION_MAGIC = b"\x0a\x0d\x0d\x0a"
SECTION, INTERFACE, STATISTICS, SECRETS = 0x0A0D0D0A, 1, 5, 10

MAX_INTERFACES = 1 << 16
"""Interfaces remembered in a section. The obsolete packet block could name no more; more than that is an attack."""

MAX_SECRETS = 16 << 20
"""Octets of secrets blocks kept of a file."""

_SHORTEST_SECTION = 28
_MAX_SECONDS = 9_000_000_000  # about the year 2255; times beyond it are cut to it, so that nanoseconds fit 64 bits

# state of scan_blocks
_POSITION, _ROWS, _NEED, _NUMBER, _BIG, _INTERFACES, _LAST_NS, _BAD_INTERFACE, _BAD_TIME, _STATE = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9

# columns of the table of interfaces
_LINK, _SNAP, _PER_SECOND, _SHIFT, _OFFSET_S, _FIELDS = 0, 1, 2, 3, 4, 5


@kernel
def nanoseconds(high, low, per_second, shift, offset_s, state):  # type: ignore[no-untyped-def]
    """Nanoseconds since the epoch of a tick count, rounded down; cut to what fits.

    Args:
        high: upper 32 bits of the count.
        low: lower 32 bits.
        per_second: ticks in a second: 10**n up to 10**18, or 2**shift.
        shift: 0 to 62; 0 with a power of ten.
        offset_s: seconds to be added.
        state: where times beyond the limits are counted.
    """
    if high >= 2147483648:
        state[8] += 1
        return 9000000000 * 1000000000
    ticks = high * 4294967296 + low
    seconds = ticks // per_second
    fraction = ticks - seconds * per_second
    if shift == 0:
        if per_second <= 1000000000:
            fraction = fraction * (1000000000 // per_second)
        else:
            fraction = fraction // (per_second // 1000000000)
    elif shift <= 32:
        fraction = (fraction * 1000000000) >> shift
    else:
        upper = fraction >> 32
        fraction = (upper * 1000000000 + (((fraction - (upper << 32)) * 1000000000) >> 32)) >> (shift - 32)
    seconds = min(seconds, 9000000001) + offset_s
    if seconds > 9000000000:
        state[8] += 1
        seconds = 9000000000
    return seconds * 1000000000 + fraction


@kernel
def scan_blocks(data, end, interfaces, columns, state):  # type: ignore[no-untyped-def]
    """List the packets in the whole blocks of data[state[POSITION]:end], up to a block with state; see `Scanned`."""
    position, rows, room = state[0], state[1], columns.shape[1]
    number, big, known = state[3], state[4], state[5]
    status, need = 1, 0
    while rows < room:
        if end - position < 12:
            status, need = 0, 12
            break
        kind = u32(data, position, big)
        if kind == 168627466 or kind == 1 or kind == 5 or kind == 10:
            status = 3
            break
        total = u32(data, position + 4, big)
        if total < 12 or total % 4 != 0 or total > 16777216 + 65536:
            status = 2
            break
        if end - position < total:
            status, need = 0, total
            break
        if u32(data, position + total - 4, big) != total:
            status = 2
            break
        if kind == 6 or kind == 2:  # enhanced packet block, obsolete packet block
            if total < 32:
                status = 2
                break
            number += 1
            interface = u32(data, position + 8, big)
            if kind == 2:  # two octets of interface, two of drops
                if big:
                    interface = interface >> 16
                else:
                    interface = interface & 65535
            caplen = u32(data, position + 20, big)
            if caplen > total - 32:
                number -= 1
                status = 2
                break
            if interface < known:
                time = nanoseconds(
                    u32(data, position + 12, big),
                    u32(data, position + 16, big),
                    interfaces[interface, 2],
                    interfaces[interface, 3],
                    interfaces[interface, 4],
                    state,
                )
                columns[0, rows] = position + 28
                columns[1, rows] = caplen
                columns[2, rows] = u32(data, position + 24, big)
                columns[3, rows] = time
                columns[4, rows] = number
                columns[5, rows] = interfaces[interface, 0]
                state[6] = time
                rows += 1
            else:
                state[7] += 1
        elif kind == 3:  # simple packet block: interface 0, no time, captured length by the snap length
            if total < 16:
                status = 2
                break
            number += 1
            if known > 0:
                caplen = total - 16
                length = u32(data, position + 8, big)
                if length < caplen:
                    caplen = length
                if 0 < interfaces[0, 1] < caplen:
                    caplen = interfaces[0, 1]
                columns[0, rows] = position + 12
                columns[1, rows] = caplen
                columns[2, rows] = length
                columns[3, rows] = state[6]
                columns[4, rows] = number
                columns[5, rows] = interfaces[0, 0]
                rows += 1
            else:
                state[7] += 1
        position += total
    state[0] = position
    state[1] = rows
    state[2] = need
    state[3] = number
    return status


class PcapngScanner:
    """Finds the packets of one next-generation capture file, piece by piece.

    Raises:
        CaptureError: the first block is no section header.
    """

    def __init__(self, head: bytes, name: str, info: "CaptureInfo") -> None:
        if len(head) < _SHORTEST_SECTION:
            raise CaptureError(f"{name}: ends inside its section header ({len(head)} octets): capture it again")
        if _byte_order(head, 0) is None:
            raise CaptureError(f"{name}: begins like pcapng, but its section header is damaged (octet 8)")
        self._info = info
        self._state = np.zeros(_STATE, np.int64)
        self._interfaces = np.zeros((8, _FIELDS), np.int64)
        self._order = "<"
        self._drops: dict[int, int] = {}
        self._secrets = 0
        self._reported = [0, 0]  # packets without interface, times beyond the limits
        info.format = "pcapng"

    def scan(self, data: np.ndarray, start: int, end: int, columns: np.ndarray, origin: int, compiled: bool) -> Scanned:
        """Find the packets in the whole blocks of `data[start:end]`; data[0] is octet `origin` of the file."""
        state = self._state
        state[_POSITION], state[_ROWS] = start, 0
        while (status := kernels.call(scan_blocks, compiled, data, end, self._interfaces, columns, state)) == RARE:
            position = int(state[_POSITION])
            total = self._total(data, position)
            if total is None:
                status = CORRUPT
                break
            if end - position < total:
                status, state[_NEED] = MORE, total
                break
            self._block(bytes(data[position : position + total]), origin + position)
            state[_POSITION] = position + total
        position, rows, need = (int(state[i]) for i in (_POSITION, _ROWS, _NEED))
        self._report_counts(origin)
        if status == CORRUPT:
            detail = "block whose length cannot be right: what follows is not read"
            self._info.problem("capture-corrupt", int(state[_NUMBER]) + 1, origin + position, detail)
        return Scanned(position, rows, 0 if status == FULL else need, status == CORRUPT)

    def remainder(self, data: np.ndarray, start: int, end: int, columns: np.ndarray, origin: int) -> int:
        """Deliver the packet in which the file ends, if its block header is whole. Returns the number of rows."""
        number = int(self._state[_NUMBER]) + 1
        self._info.truncated = True
        self._info.problem("capture-truncated", number, origin + start, "the file ends inside this block")
        if end - start < 28:
            return 0
        # The kernel reads it as a whole block once it has been given the room that is missing.
        kind, total, interface, _, _, caplen = struct.unpack_from(self._order + "6I", data, start)
        if kind not in {2, 6} or caplen > total - 32:
            return 0
        if kind == 2:
            interface = interface >> 16 if self._order == ">" else interface & 0xFFFF
        present = min(caplen, end - start - 28)
        block = np.zeros(32, np.uint8)
        block[:28] = data[start : start + 28]
        struct.pack_into(self._order + "I", block, 4, 32)
        struct.pack_into(self._order + "I", block, 20, 0)
        struct.pack_into(self._order + "I", block, 28, 32)
        self._state[_POSITION], self._state[_ROWS] = 0, 0
        kernels.call(scan_blocks, False, block, 32, self._interfaces, columns, self._state)
        rows = int(self._state[_ROWS])
        self._report_counts(origin)
        if rows:
            columns[0, 0], columns[1, 0] = start + 28, present
        return rows

    def _total(self, data: np.ndarray, position: int) -> int | None:
        """Length of the block at `position`, or None when it cannot be right."""
        order = self._order
        if bytes(data[position : position + 4]) == SECTION_MAGIC:
            order = _byte_order(data, position) or ""
        if not order:
            return None
        total: int = struct.unpack_from(order + "I", data, position + 4)[0]
        shortest = {SECTION_MAGIC: _SHORTEST_SECTION}.get(bytes(data[position : position + 4]), 12)
        return total if shortest <= total <= MAX_SECRETS + (1 << 16) and total % 4 == 0 else None

    def _block(self, block: bytes, at: int) -> None:
        """Take in a block that carries state."""
        if block.startswith(SECTION_MAGIC):
            self._order = _byte_order(block, 0) or "<"
            self._state[_BIG] = self._order == ">"
            self._state[_INTERFACES] = 0
            self._drops.clear()
            return
        kind = struct.unpack_from(self._order + "I", block)[0]
        if kind == INTERFACE and len(block) >= 20:
            self._interface(block, at)
        elif kind == STATISTICS and len(block) >= 24:
            self._statistics(block)
        elif kind == SECRETS and len(block) >= 20:
            length = min(struct.unpack_from(self._order + "I", block, 12)[0], len(block) - 20)
            if self._secrets + length <= MAX_SECRETS:
                self._secrets += length
                self._info.secrets.append(block[16 : 16 + length])

    def _interface(self, block: bytes, at: int) -> None:
        number = int(self._state[_INTERFACES])
        if number >= MAX_INTERFACES:
            self._info.problem("capture-corrupt", 0, at, f"more than {MAX_INTERFACES} interfaces in a section")
            return
        link, _, snap_length = struct.unpack_from(self._order + "HHI", block, 8)
        per_second, shift, offset_s, name = 10**6, 0, 0, ""
        for code, value in self._options(block, 16):
            if code == 2:  # if_name
                name = value.decode("utf-8", "replace")
            elif code == 9 and value:  # if_tsresol
                exponent = value[0] & 0x7F
                limit, base, shift = (62, 2, exponent) if value[0] & 0x80 else (18, 10, 0)
                if exponent > limit:
                    self._info.problem("time-out-of-range", 0, at, f"ticks of {base}**-{exponent} s on interface {number}")
                shift = min(shift, limit)
                per_second = base ** min(exponent, limit)
            elif code == 14 and len(value) == 8:  # if_tsoffset
                offset_s = struct.unpack(self._order + "q", value)[0]
        if number == len(self._interfaces):
            self._interfaces = np.concatenate([self._interfaces, np.zeros_like(self._interfaces)])
        offset_s = max(-_MAX_SECONDS, min(_MAX_SECONDS, offset_s))
        self._interfaces[number] = link, snap_length, per_second, shift, offset_s
        self._state[_INTERFACES] = number + 1
        self._info.interface(name, link, snap_length)

    def _statistics(self, block: bytes) -> None:
        """Drop counts; they grow while the capture runs, so the last block of an interface stands."""
        interface = struct.unpack_from(self._order + "I", block, 8)[0]
        dropped = [
            struct.unpack(self._order + "Q", value)[0]
            for code, value in self._options(block, 20)
            if code in {5, 7} and len(value) == 8  # isb_ifdrop, isb_osdrop
        ]
        if dropped and interface < self._state[_INTERFACES]:
            total = min(sum(dropped), 1 << 62)
            more = total - self._drops.get(interface, 0)
            self._drops[interface] = total
            self._info.dropped = min((self._info.dropped or 0) + more, (1 << 63) - 1)

    def _options(self, block: bytes, position: int) -> Iterator[tuple[int, bytes]]:
        end = len(block) - 4
        while position + 4 <= end:
            code, length = struct.unpack_from(self._order + "HH", block, position)
            position += 4
            if code == 0 or position + length > end:
                return
            yield code, block[position : position + length]
            position += length + -length % 4

    def _report_counts(self, origin: int) -> None:
        """Say what the kernel could only count."""
        number = int(self._state[_NUMBER])
        for i, (at, code, detail) in enumerate((
            (_BAD_INTERFACE, "interface-unknown", "packets of an interface that was not described are left out"),
            (_BAD_TIME, "time-out-of-range", "times beyond the year 2255 are cut"),
        )):
            if (count := int(self._state[at]) - self._reported[i]) > 0:
                self._reported[i] += count
                self._info.problem(code, number, origin, detail, count)


def _byte_order(data: Any, position: int) -> str | None:
    """Byte order of the section that begins at `position`, by its magic number; None when it is neither."""
    magic = bytes(data[position + 8 : position + 12])
    return {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}.get(magic)
