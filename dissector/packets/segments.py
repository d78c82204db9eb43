"""The TCP segments of a batch of packets, and a report on the other packets."""

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
        caplen: number of bytes of the payload that were captured.
        length: size of the payload by the IP header; more than `caplen` where the snap length cut it.
        wscale: window scale option of a SYN; -1: none.
        mss: maximum segment size option of a SYN; -1: none.
        mark: distinguishes a retransmitted packet from one that was captured twice: the identification of IPv4; where
            that is zero, and in IPv6, 65536 plus the checksum.
        ttl: time to live, or hop limit.
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
    ttl: Ints
    capture: Ints

    def cut(self, rows: slice | Ints) -> "SegmentBatch":
        """Return some of these segments, or all in another order."""
        return SegmentBatch(*(column[rows] for column in self))

    @classmethod
    def room(cls, count: int) -> "SegmentBatch":
        """Return room for `count` segments, not initialised."""
        return cls(*np.empty((len(cls._fields), count), np.int64))

    @classmethod
    def joined(cls, batches: "Iterable[SegmentBatch]") -> "SegmentBatch":
        """Return batches concatenated."""
        return cls(*map(np.concatenate, zip(*batches, strict=True)))


@dataclass(slots=True)
class PacketReport:
    """What became of the packets of a batch.

    Attributes:
        packets: number of all packets.
        tcp: number of packets with a TCP segment.
        other: number of packets that are intact, but not TCP.
        fragments: number of fragments of IP packets.
        parts: number of these that did not complete a packet.
        counts: number of problems by code.
        problems: one for each packet with a problem; the decoder lists only the first ones of each code.
    """

    packets: int = 0
    tcp: int = 0
    other: int = 0
    fragments: int = 0
    parts: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
