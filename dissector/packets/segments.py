"""TCP segments of a batch of packets, and what became of the other packets."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from amqpscope.dissector.capture.model import Problem
from amqpscope.dissector.kernels.arrays import Ints

FIN, SYN, RST, ACK = 1, 2, 4, 16
"""Flags of segments."""


class SegmentBatch(NamedTuple):
    """TCP segments of a batch of packets, in packet order; all columns int64.

    Attributes:
        row: index of the packet in its `PacketBatch`.
        ts_ns: nanoseconds since the epoch.
        packet: number in the file, from 1.
        src_hi: upper half of the sender's 128-bit address (IPv4 as ::ffff:a.b.c.d), as a signed number.
        src_lo: lower half.
        dst_hi: upper half of the receiver's address.
        dst_lo: lower half.
        sport: sender's port.
        dport: receiver's port.
        seq: sequence number, 0 to 2**32 - 1.
        ack: acknowledgement number.
        flags: CWR ECE URG ACK PSH RST SYN FIN, from the highest bit.
        window: as sent, not scaled.
        offset: position of the payload in the batch's data.
        caplen: bytes of the payload that were captured.
        length: bytes of the payload by the IP header; more than `caplen` where the snap length cut it.
        wscale: window scale option of a SYN, -1 without.
        mss: maximum segment size option of a SYN, -1 without.
        mark: what tells a packet sent again from a copy by the capture: the identification of IPv4; where that is zero,
            and in IPv6, 65536 and the checksum.
        capture: index of the capture.
    """

    row: Ints
    ts_ns: Ints
    packet: Ints
    src_hi: Ints
    src_lo: Ints
    dst_hi: Ints
    dst_lo: Ints
    sport: Ints
    dport: Ints
    seq: Ints
    ack: Ints
    flags: Ints
    window: Ints
    offset: Ints
    caplen: Ints
    length: Ints
    wscale: Ints
    mss: Ints
    mark: Ints
    capture: Ints

    def cut(self, rows: slice | Ints) -> "SegmentBatch":
        """Some of these, or all in another order."""
        return SegmentBatch(*(column[rows] for column in self))

    @classmethod
    def room(cls, count: int) -> "SegmentBatch":
        """Room for so many, not initialised."""
        return cls(*np.empty((len(cls._fields), count), np.int64))

    @classmethod
    def joined(cls, batches: "Iterable[SegmentBatch]") -> "SegmentBatch":
        """Batches one behind the other."""
        return cls(*map(np.concatenate, zip(*batches, strict=True)))


@dataclass(slots=True)
class PacketReport:
    """What became of the packets of a batch that are no rows.

    Attributes:
        packets: all packets.
        tcp: those that are segments.
        other: intact, but not TCP.
        parts: fragments of IP packets, but for those that completed one.
        counts: by code of the problem, all of them.
        problems: one for each packet with a problem, up to a limit for each code over the decoder's life.
    """

    packets: int = 0
    tcp: int = 0
    other: int = 0
    parts: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
