"""Headers of TLS records with a flipped bit: frames in the damaged record are lost, and no others."""

from dataclasses import replace
from functools import cache

import pyarrow as pa
import pytest

from amqpscope.dissector.dissector import Options
from tests.captures.damage.ways import Capture, numbered
from tests.dissector.builders import Packet
from tests.dissector.runs import FOLDER, dissect_packets, recorded, rows

DATA = 23
HEAD = 5


@cache
def capture() -> Capture:
    packets, link = recorded("tls_pika.pcap")
    return Capture(numbered(packets), link)


def frames(packets: list[Packet]) -> list[tuple[bool, str, int]]:
    """Frames with their senders and sizes."""
    options = Options(keylog=str(FOLDER / "tls_pika.keylog"))
    table: pa.Table = dissect_packets(packets, capture().link, options=options)["amqp091_frames"]
    return sorted((row["from_client"], row["method"] or row["frame_type"], row["size"]) for row in rows(table))


@cache
def whole() -> list[tuple[bool, str, int]]:
    return frames(capture().packets)


def records() -> list[tuple[int, int]]:
    """Records with data: the packet, and the place in it."""
    found = []
    for i, packet in enumerate(capture().packets):
        segment = capture().segments[i]
        at = segment.payload if segment else len(packet.data)
        while at + HEAD <= len(packet.data) and capture().data(i):
            length = int.from_bytes(packet.data[at + 3 : at + HEAD], "big")
            if packet.data[at] == DATA:
                found.append((i, at))
            at += HEAD + length
    return found


@pytest.mark.parametrize("bit", [0, 7, *range(24, 40)])
@pytest.mark.parametrize("place", [0.3, 0.9])
def test_a_flipped_bit_costs_one_record(place: float, bit: int) -> None:
    i, at = records()[int(place * len(records()))]
    packets = [*capture().packets]
    data = bytearray(packets[i].data)
    data[at + bit // 8] ^= 0x80 >> bit % 8
    packets[i] = replace(packets[i], data=bytes(data))
    found, left = frames(packets), [*whole()]
    for frame in found:
        left.remove(frame)
    assert len(left) <= 3
