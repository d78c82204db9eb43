"""Data about captures: batches of packets, the metadata of a file, and its problems."""

from dataclasses import dataclass, field
from typing import NamedTuple

from amqpscope.dissector.kernels.arrays import Bytes, Ints

MAX_PROBLEMS = 1000
"""Most problems of one kind that are listed; further ones are only counted."""


class Problem(NamedTuple):
    """Something wrong in a capture.

    Attributes:
        code: from the closed list of anomalies.
        packet: number of the packet in its file; 0 when it belongs to no packet.
        offset: position in the (decompressed) file, or None when it belongs to the packet as a whole.
        detail: a message for people.
    """

    code: str
    packet: int
    offset: int | None
    detail: str


class Interface(NamedTuple):
    """An interface of a capture: its name (empty if not recorded), link type and snap length."""

    name: str
    link: int
    snap_length: int


@dataclass(slots=True)
class PacketBatch:
    """Consecutive packets of a capture file, as columns over one block of bytes.

    Attributes:
        data: uint8, writable, contiguous: bytes of the packets up to `used`, then unused room.
        used: number of bytes of `data` in use.
        offset: int64, position of each packet in `data`.
        caplen: int64, number of bytes captured.
        length: int64, size of the packet on the wire, as the file records it.
        ts_ns: int64, nanoseconds since the epoch.
        packet: int64, number in the file, from 1.
        link: int64, link type (LINKTYPE of savefiles).
        capture: index of the capture, as the caller gave it.
        consumed: number of bytes of the file read up to the end of this batch.
        secrets: TLS key logs that the file holds between the batch before and this one. They are never shown.
    """

    data: Bytes
    used: int
    offset: Ints
    caplen: Ints
    length: Ints
    ts_ns: Ints
    packet: Ints
    link: Ints
    capture: int
    consumed: int
    secrets: list[bytes] = field(default_factory=list, repr=False)


@dataclass(slots=True)
class CaptureInfo:
    """The metadata of a capture file and counts of its contents; filled while the file is read.

    Attributes:
        format: `pcap` or `pcapng`; empty before reading has begun.
        compression: `gzip`, `zstd`, `lz4`, `bz2`, `xz` or None.
        link_types: link types of the interfaces, each once.
        snap_length: most bytes captured of a packet, as recorded (the largest of the interfaces; 0 is no limit).
        interfaces: interfaces of all sections of a pcapng file (up to 1000).
        packets: number of packets delivered.
        captured_bytes: number of bytes captured of these packets.
        first_ts_ns: time of the first packet in the file; None before the first packet.
        last_ts_ns: time of the last packet in the file.
        dropped: packets dropped by the capturing program, as the file records it; None if not recorded.
        truncated: the file ends in the middle of a record.
        problems: problems of the file, up to 1000 of each kind.
        counts: how often each kind of problem occurred.
        size: number of bytes of the file, decompressed, up to where reading ended.
        secrets: TLS key logs that the file holds. They are never shown.
        secret_bytes: how long these are together.
    """

    format: str = ""
    compression: str | None = None
    link_types: list[int] = field(default_factory=list)
    snap_length: int = 0
    interfaces: list[Interface] = field(default_factory=list)
    packets: int = 0
    captured_bytes: int = 0
    first_ts_ns: int | None = None
    last_ts_ns: int | None = None
    dropped: int | None = None
    truncated: bool = False
    size: int = 0
    problems: list[Problem] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    secrets: list[bytes] = field(default_factory=list, repr=False)
    secret_bytes: int = 0

    def problem(self, code: str, packet: int, offset: int | None, detail: str, count: int = 1) -> None:
        """Note a problem, which stands for `count` problems of its kind."""
        known = self.counts.get(code, 0)
        self.counts[code] = known + count
        if known < MAX_PROBLEMS:
            self.problems.append(Problem(code, packet, offset, detail))

    def interface(self, name: str, link: int, snap_length: int) -> None:
        """Note an interface."""
        if link not in self.link_types and len(self.link_types) < MAX_PROBLEMS:
            self.link_types.append(link)
        if len(self.interfaces) < MAX_PROBLEMS:
            self.interfaces.append(Interface(name, link, snap_length))
        self.snap_length = max(self.snap_length, snap_length)


class Before(NamedTuple):
    """What a range needs of the file before it.

    Attributes:
        head: the first bytes of the file.
        blocks: blocks of pcapng that count in it: header and interfaces of its section.
        secrets: TLS key logs that came after the last packet. They are never shown.
        number: number of packets.
        last_ns: time of the last packet, which packets without a time share.
    """

    head: bytes
    blocks: tuple[bytes, ...] = ()
    number: int = 0
    last_ns: int = 0
    secrets: tuple[bytes, ...] = ()


class Range(NamedTuple):
    """Consecutive records of a capture file that are read apart from the others.

    Attributes:
        begin: byte of the file where reading can begin: any one, or where compressed data begins anew.
        end: that of the next range; None: the file ends with this range.
        compression: as of the file.
        before: what is known of the file before.
        skip: number of bytes from `begin` on, decompressed, that belong to a record of the range before; None: unknown.
    """

    begin: int
    end: int | None
    compression: str | None
    before: Before
    skip: int | None
