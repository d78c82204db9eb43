"""The TCP segments of captures: ours, and what dpkt finds in an IP packet."""

import io
import struct
from typing import Any

import dpkt
import numpy as np

from amqpscope.dissector.capture.file import CaptureFile
from amqpscope.dissector.capture.model import PacketBatch
from amqpscope.dissector.packets.decoder import PacketDecoder
from amqpscope.dissector.packets.segments import PacketReport, SegmentBatch


def decode(content: bytes, compiled: bool = False, batch_bytes: int = 1 << 16) -> tuple[list[Any], PacketReport]:
    """All segments of a capture as tuples, and the sum of the reports."""
    decoder, found, total = PacketDecoder(), [], PacketReport()
    for batch in CaptureFile(io.BytesIO(content), "test", 0, batch_bytes=batch_bytes, compiled=compiled):
        segments, report = decoder.segments(batch, compiled)
        found += tuples(batch, segments)
        total.packets += report.packets
        total.tcp += report.tcp
        total.other += report.other
        total.fragments += report.fragments
        total.parts += report.parts
        total.problems += report.problems
        for code, count in report.counts.items():
            total.counts[code] = total.counts.get(code, 0) + count
    return found, total


def tuples(batch: PacketBatch, segments: SegmentBatch) -> list[Any]:
    names = [
        "ts_ns",
        "packet",
        "src_hi",
        "src_lo",
        "dst_hi",
        "dst_lo",
        "sport",
        "dport",
        "seq",
        "ack",
        "flags",
        "window",
        "length",
        "wscale",
        "mss",
        "ttl",
    ]
    columns = [getattr(segments, name) for name in names]
    assert all(c.dtype == np.int64 and c.flags.c_contiguous and len(c) == len(segments.row) for c in columns)
    payloads = [
        bytes(batch.data[offset : offset + caplen])
        for offset, caplen in zip(segments.offset.tolist(), segments.caplen.tolist(), strict=True)
    ]
    assert (batch.packet[segments.row] == segments.packet).all()
    return list(zip(*(c.tolist() for c in columns), payloads, strict=True))


def halves(address: bytes) -> tuple[int, int]:
    whole = int.from_bytes(address if len(address) == 16 else bytes(10) + b"\xff\xff" + address)
    return struct.unpack("qq", struct.pack("QQ", whole >> 64, whole & (2**64 - 1)))


def by_dpkt(network: bytes, number: int = 1, ts_ns: int = 0) -> Any:
    """The segment that dpkt finds in an IP packet."""
    ip = dpkt.ip.IP(network) if network[0] >> 4 == 4 else dpkt.ip6.IP6(network)
    segment = ip.data
    assert isinstance(segment, dpkt.tcp.TCP)
    wscale = mss = -1
    if segment.flags & dpkt.tcp.TH_SYN:
        for kind, value in dpkt.tcp.parse_opts(segment.opts):
            if kind == dpkt.tcp.TCP_OPT_WSCALE and len(value) == 1:
                wscale = value[0]
            elif kind == dpkt.tcp.TCP_OPT_MSS and len(value) == 2:
                mss = int.from_bytes(value)
    return (
        ts_ns, number, *halves(ip.src), *halves(ip.dst), segment.sport, segment.dport, segment.seq, segment.ack,
        segment.flags & 0xFF, segment.win, len(segment.data), wscale, mss,
        ip.ttl if network[0] >> 4 == 4 else ip.hlim, bytes(segment.data),
    )  # fmt: skip
