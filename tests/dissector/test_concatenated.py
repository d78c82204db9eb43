"""Files that were concatenated: what follows a further file header is read by it."""

from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

from tests.dissector.builders import Packet, pcap, sll
from tests.dissector.runs import BOTH, Row, dissect, rows
from tests.dissector.wire import Tape, session

SESSION = Tape().play(session()).end().packets
FORMATS = [{"order": order, "ns": ns} for order, ns in product("<>", (False, True))]


def found(path: Path, **how: Any) -> dict[str, list[Row]]:
    tables = dissect(path, **how)
    return {
        name: rows(tables[name], "capture", "first_capture", "vantage")
        for name in ("amqp091_frames", "messages", "connections")
    }


def cooked(packets: list[Packet]) -> list[Packet]:
    """The same packets with the link layer of cooked captures."""
    return [Packet(packet.ts_ns, sll(packet.data[14:])) for packet in packets]


@BOTH
@pytest.mark.parametrize("formats", list(product(FORMATS, FORMATS)))
def test_concatenated_captures_are_read_to_the_end(formats: Any, compiled: bool, tmp_path: Path) -> None:
    whole, both = tmp_path / "whole.pcap", tmp_path / "both.pcap"
    whole.write_bytes(pcap(SESSION))
    one, two = formats
    both.write_bytes(pcap(SESSION[:15], **one) + pcap(SESSION[15:], **two))
    assert found(both, compiled=compiled) == found(whole)


@pytest.mark.parametrize("cut", [1, 7, 15, 16, 20, 23])
def test_a_header_inside_which_the_file_ends_loses_nothing_before_it(cut: int, tmp_path: Path) -> None:
    whole, torn = tmp_path / "whole.pcap", tmp_path / "torn.pcap"
    whole.write_bytes(pcap(SESSION))
    torn.write_bytes(pcap(SESSION) + pcap(SESSION)[:cut])
    assert found(torn) == found(whole)


@pytest.mark.parametrize("places", [(10,), (3, 20), (1, 2, 3)])
def test_each_header_has_its_link_type(places: tuple[int, ...], tmp_path: Path) -> None:
    whole, many = tmp_path / "whole.pcap", tmp_path / "many.pcap"
    whole.write_bytes(pcap(SESSION))
    edges = [0, *places, len(SESSION)]
    parts = [SESSION[a:b] for a, b in pairwise(edges)]
    many.write_bytes(b"".join(pcap(cooked(part), link=113) if n % 2 else pcap(part) for n, part in enumerate(parts)))
    assert found(many) == found(whole)
