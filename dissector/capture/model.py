"""What is known of captures: batches of packets, what a file says of itself, and what is wrong with it."""

from dataclasses import dataclass, field
from typing import NamedTuple

from amqpscope.dissector.kernels.arrays import Bytes, Ints

MAX_PROBLEMS = 1000
"""Problems of one kind that are listed; further ones are only counted."""


class Problem(NamedTuple):
    """Something wrong in a capture.

    Attributes:
        code: from the closed list of anomalies.
        packet: number of the packet in its file, 0 where there is none.
        offset: byte of the (decompressed) file, or None where it belongs to the packet as such.
        detail: for people.
    """

    code: str
    packet: int
    offset: int | None
    detail: str


class Interface(NamedTuple):
    """An interface that was captured on: its name (empty where not told), link type, snap length."""

    name: str
    link: int
    snap_length: int


@dataclass(slots=True)
class PacketBatch:
    """Consecutive packets of a capture file, as columns over one block of bytes.

    Attributes:
        data: uint8, writable, contiguous. Bytes of the packets up to `used`, and untouched room behind.
        used: bytes of `data` that are taken.
        offset: int64, position of each packet in `data`.
        caplen: int64, bytes captured.
        length: int64, bytes that the packet had on the wire, as the file says.
        ts_ns: int64, nanoseconds since the epoch.
        packet: int64, number in the file, from 1.
        link: int64, link type (LINKTYPE of savefiles).
        capture: index of the capture, as the caller gave it.
        consumed: bytes of the file consumed up to the end of this batch.
        secrets: TLS key logs that the file holds before the first of these packets and behind the batch before.
            Never to be shown.
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
    """What a capture file says of itself and what was found in it; filled while it is read.

    Attributes:
        format: `pcap` or `pcapng`; empty before reading has begun.
        compression: `gzip`, `zstd`, `lz4`, `bz2`, `xz` or None.
        link_types: link types of the interfaces, each once.
        snap_length: bytes kept of a packet, as announced (the largest of the interfaces; 0 is no limit).
        interfaces: of pcapng, all sections (up to 1000).
        packets: packets delivered.
        octets: bytes captured, of these.
        first_ts_ns: time of the first packet in the file, None while there is none.
        last_ts_ns: time of the last packet in the file.
        dropped: packets dropped while capturing, as the capturing program counted; None where it did not tell.
        truncated: the file ends in the middle of a record.
        problems: what was wrong, up to 1000 of a kind.
        counts: how often each kind of problem occurred.
        size: bytes of the file, unpacked, up to where reading ended.
        secrets: TLS key logs that came in the file. Never to be shown.
    """

    format: str = ""
    compression: str | None = None
    link_types: list[int] = field(default_factory=list)
    snap_length: int = 0
    interfaces: list[Interface] = field(default_factory=list)
    packets: int = 0
    octets: int = 0
    first_ts_ns: int | None = None
    last_ts_ns: int | None = None
    dropped: int | None = None
    truncated: bool = False
    size: int = 0
    problems: list[Problem] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    secrets: list[bytes] = field(default_factory=list, repr=False)

    def problem(self, code: str, packet: int, offset: int | None, detail: str, count: int = 1) -> None:
        """Note a problem (that stands for `count` of its kind)."""
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
