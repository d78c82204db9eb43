"""Copy a capture with comments on its packets, as pcapng: all else stays, byte for byte.

Source: draft-ietf-opsawg-pcapng, sections 3.5 (options: `opt_comment`, which may be repeated), 4.1 to 4.4. Of a pcapng,
blocks, options and comments that are there are kept; a section of known length gets an unknown one, since comments make
it longer. A pcap becomes a section with an interface for each of its file headers, with times as fine as it had. Where
a capture of the other format was appended, a section begins.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from amqpscope.dissector.capture.file import TORN
from amqpscope.dissector.capture.input import CaptureError, Input, Readable, describe
from amqpscope.dissector.capture.live import Watch
from amqpscope.dissector.capture.pcap import FORMATS, HEADER, ORDERS, SECTION_BYTES, byte_order, is_header, is_pcap
from amqpscope.dissector.capture.pcapng import MAX_BLOCK, SECTION_MAGIC
from amqpscope.dissector.capture.scanner import MAX_RECORD

Comments = Iterable[tuple[int, str]]
"""Packet numbers (from 1), rising, and texts; several of a packet follow each other."""


class Commenting(Protocol):
    """Says what to note on packets as they come."""

    def of_packet(self, number: int) -> Sequence[str]:
        """Return comments on a packet; numbers (from 1) rise."""


CHUNK = 1 << 20
SECTION, INTERFACE, OBSOLETE, SIMPLE, PACKET = 0x0A0D0D0A, 1, 2, 3, 6
OPT_END, OPT_COMMENT, OPT_APPLICATION, OPT_RESOLUTION = 0, 1, 4, 9
UNKNOWN_LENGTH = b"\xff" * 8
_MAGICS = frozenset(struct.pack(f"{order}I", magic) for order in "<>" for magic in FORMATS)
LONGEST = 4000
"""Bytes of a comment at most."""


@dataclass
class Copied:
    """What was copied.

    Attributes:
        packets: number of packets.
        comments: comments that were written.
        without_room: comments on packets in blocks that cannot have any (simple packet blocks).
        problem: why reading ended before the end of the file; empty where it did not.
    """

    packets: int = 0
    comments: int = 0
    without_room: int = 0
    problem: str = ""


def copy(
    path: Readable,
    name: str,
    out: BinaryIO,
    comments: Comments | Commenting,
    summary: str,
    watch: Watch | None = None,
) -> Copied:
    """Copy a capture with comments.

    Args:
        path: of the capture; of any format and compression.
        name: its name in messages.
        out: gets a pcapng.
        comments: on its packets.
        summary: the comment on its first section.
        watch: waits for a capture that is still being written, and may end it.

    Returns:
        What was copied. A file that is truncated or damaged is copied up to that place.

    Raises:
        CaptureError: it is not a capture, or cannot be read.
        OSError: `out` cannot be written.
    """
    source = Input(path, name, watch)
    try:
        reader = _Reader(source)
        head = reader.peek(HEADER)
        if not is_pcap(head) and not head.startswith(SECTION_MAGIC):
            what = f"not a pcap or pcapng file ({describe(head)})" if head else "the file is empty"
            raise CaptureError(f"{name}: {what}")
        if is_pcap(head) and len(head) < HEADER:
            raise CaptureError(f"{name}: truncated inside the file header; capture it again")
        noted = _Noted(_InOrder(comments) if isinstance(comments, Iterable) else comments, summary)
        copiers = {True: _Pcap(reader, out, noted), False: _Pcapng(reader, out, noted)}
        pcap = is_pcap(head)
        while copiers[pcap].run():
            pcap = not pcap
        noted.copied.problem = noted.copied.problem or source.damage or ""
        return noted.copied
    finally:
        source.close()


def options(*given: tuple[int, bytes], order: str = "<") -> bytes:
    """Return options as a block holds them, without their end."""
    parts = []
    for code, value in given:
        parts.append(struct.pack(f"{order}HH", code, len(value)) + value + bytes(-len(value) % 4))
    return b"".join(parts)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    """Return a block with this body, whose length is a multiple of four."""
    total = len(body) + 12
    return struct.pack(f"{order}II", kind, total) + body + struct.pack(f"{order}I", total)


def _encoded(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    return (
        data
        if len(data) <= LONGEST
        else data[: LONGEST - 3].decode("utf-8", "ignore").encode() + "\N{HORIZONTAL ELLIPSIS}".encode()
    )


class _Reader:
    """Bytes of an input, as many at a time as are asked for."""

    def __init__(self, source: Input) -> None:
        self._source = source
        self._data, self._at, self._ended = b"", 0, False

    def peek(self, count: int) -> bytes:
        """Return the next bytes, which the next call returns again; fewer where the input ends."""
        while len(self._data) - self._at < count and not self._ended:
            wanted = max(CHUNK, count)
            room = bytearray(wanted)
            filled, self._ended = self._source.fill(memoryview(room), 0, wanted)
            self._data, self._at = self._data[self._at :] + bytes(room[:filled]), 0
        return self._data[self._at : self._at + count]

    def take(self, count: int) -> bytes:
        """Return the next bytes; fewer where the input ends."""
        found = self.peek(count)
        self._at += len(found)
        return found


class _InOrder:
    """Comments that are known before, by packet; those on packets that were passed over are left out."""

    def __init__(self, comments: Comments) -> None:
        self._comments: Iterator[tuple[int, str]] = iter(comments)
        self._next = next(self._comments, None)

    def of_packet(self, number: int) -> list[str]:
        """See `Commenting`."""
        found = []
        while self._next is not None and self._next[0] <= number:
            if self._next[0] == number:
                found.append(self._next[1])
            self._next = next(self._comments, None)
        return found


class _Noted:
    """What was copied, and the comments that come next."""

    def __init__(self, comments: Commenting, summary: str) -> None:
        self.copied = Copied()
        self._summary, self._comments = summary, comments

    def of_section(self) -> list[tuple[int, bytes]]:
        """Return the comment on the next section, as an option: the first one has the summary."""
        summary, self._summary = self._summary, ""
        return [(OPT_COMMENT, _encoded(summary))] if summary else []

    def of_packet(self, number: int) -> list[tuple[int, bytes]]:
        """Return the comments on a packet, as options."""
        return [(OPT_COMMENT, _encoded(text)) for text in self._comments.of_packet(number)]


class _Copier:
    """What both formats share."""

    def __init__(self, reader: _Reader, out: BinaryIO, noted: _Noted) -> None:
        self.reader, self.out, self.noted, self.copied = reader, out, noted, noted.copied

    def run(self) -> bool:
        """Copy up to the end, or to where a capture of the other format begins; return whether one does."""
        raise NotImplementedError

    def _torn(self, what: str = "") -> bool:
        number = self.copied.packets + 1
        self.copied.problem = what or f"{TORN.format(number)}, which was not copied"
        return False


def _is_header(head: bytes) -> bool:
    """Return whether the file header of a pcap begins here."""
    return head[:4] in _MAGICS and len(head) >= HEADER and is_header(memoryview(head), 0)


def _is_section(head: bytes, order: str) -> bool:
    """Return whether a section header of a pcapng begins here, where a record would; a record would be too long."""
    return head.startswith(SECTION_MAGIC) and struct.unpack_from(f"{order}I", head, 8)[0] in ORDERS


class _Pcapng(_Copier):
    """Blocks as they are, but for sections and packets with comments."""

    def run(self) -> bool:
        order = "<"
        while head := self.reader.peek(HEADER):
            if _is_header(head):
                return True
            if len(head) < 12:
                return self._torn()
            if head.startswith(SECTION_MAGIC):
                if head[8:12] not in (b"\x4d\x3c\x2b\x1a", b"\x1a\x2b\x3c\x4d"):
                    return self._torn("a section header has no byte order; nothing after it was copied")
                order = "<" if head[8:12] == b"\x4d\x3c\x2b\x1a" else ">"
            kind, total = struct.unpack(f"{order}II", head[:8])
            if total < 12 or total % 4 or total > MAX_BLOCK:
                return self._torn(f"a block cannot have {total} bytes; nothing after it was copied")
            whole = self.reader.take(total)
            if len(whole) < total:
                return self._torn()
            if struct.unpack(f"{order}I", whole[-4:])[0] != total:
                return self._torn("the two lengths of a block differ; nothing after it was copied")
            if kind == SECTION:
                whole = self._section(whole, order)
            elif kind in (PACKET, OBSOLETE, SIMPLE):
                whole = self._packet(kind, whole, order)
            self.out.write(whole)
        return False

    def _section(self, whole: bytes, order: str) -> bytes:
        if len(whole) < 28:
            return whole
        body = whole[8:16] + UNKNOWN_LENGTH + whole[24:-4]
        return block(SECTION, _with_options(body, 16, self.noted.of_section(), order), order)

    def _packet(self, kind: int, whole: bytes, order: str) -> bytes:
        self.copied.packets += 1
        added = self.noted.of_packet(self.copied.packets)
        if not added:
            return whole
        if kind == SIMPLE or len(whole) < 32:
            self.copied.without_room += len(added)
            return whole
        (caplen,) = struct.unpack_from(f"{order}I", whole, 20)
        at = 20 + caplen + -caplen % 4
        if at > len(whole) - 12:
            return whole
        self.copied.comments += len(added)
        return block(kind, _with_options(whole[8:-4], at, added, order), order)


def _with_options(body: bytes, at: int, added: list[tuple[int, bytes]], order: str) -> bytes:
    """Return the body of a block whose options begin at a byte, with further ones before the end of its options."""
    if not added:
        return body
    end = at
    while end + 4 <= len(body):
        code, length = struct.unpack_from(f"{order}HH", body, end)
        step = 4 + length + -length % 4
        if code == OPT_END or end + step > len(body):
            break
        end += step
    return body[:end] + options(*added, (OPT_END, b""), order=order)


class _Pcap(_Copier):
    """Records as packet blocks of a section with an interface for each file header."""

    def run(self) -> bool:
        given = options(*self.noted.of_section(), (OPT_APPLICATION, b"amqpscope"), (OPT_END, b""))
        self.out.write(block(SECTION, b"\x4d\x3c\x2b\x1a\x01\x00\x00\x00" + UNKNOWN_LENGTH + given))
        self.interface = -1
        self._header(self.reader.take(HEADER))
        while head := self.reader.peek(SECTION_BYTES):
            if _is_header(head):
                self._header(self.reader.take(HEADER))
                continue
            if len(head) == SECTION_BYTES and _is_section(head, self.order):
                return True
            if len(head) < self.prefix:
                return self._torn()
            seconds, fraction, caplen, length = struct.unpack_from(f"{self.order}IIII", head)
            if caplen > MAX_RECORD:
                return self._torn(f"a record cannot have {caplen} bytes; nothing after it was copied")
            record = self.reader.take(self.prefix + caplen)
            if len(record) < self.prefix + caplen:
                return self._torn()
            self.copied.packets += 1
            added = self.noted.of_packet(self.copied.packets)
            self.copied.comments += len(added)
            ticks = seconds * self.per_second + fraction
            body = struct.pack("<IIIII", self.interface, ticks >> 32, ticks & 0xFFFFFFFF, caplen, length)
            body += record[self.prefix :] + bytes(-caplen % 4)
            self.out.write(block(PACKET, body + (options(*added, (OPT_END, b"")) if added else b"")))
        return False

    def _header(self, header: bytes) -> None:
        """Write the interface of the records after a file header."""
        self.order = byte_order(header) or "<"
        magic, snap_length, link = struct.unpack_from(f"{self.order}I12xII", header)
        unit_ns, self.prefix = FORMATS[magic]
        self.per_second = 1_000_000_000 // unit_ns
        self.interface += 1
        resolution = options((OPT_RESOLUTION, bytes([9 if unit_ns == 1 else 6])), (OPT_END, b""))
        self.out.write(block(INTERFACE, struct.pack("<HHI", link & 0xFFFF, 0, snap_length) + resolution))
