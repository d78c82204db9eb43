"""Packets of findings and relations in a rotated capture: they are those of the whole, in the files that hold them."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from amqpscope.pipelines.relations import compute
from tests.dissector.builders import pcap
from tests.dissector.runs import FOLDER, Packet
from tests.pipelines.analyzed import walked
from tests.reference.packets import read_packets
from tests.tickets import FOLDER as TICKETS

RECORDED = ("lossy_link", "demo", "blocked", "failed_handshakes", "thrown_out", "stream_super", "gets", "zero_window")
"""With findings of each party."""
NAMES = [*(FOLDER / f"{name}.pcap" for name in RECORDED), *sorted(TICKETS.glob("*.pcap"))[::5]]
PARTS = 5


def rotated(packets: list[Packet], link: int, folder: Path) -> dict[tuple[str, int], int]:
    """Write a capture in parts; return the numbers that packets of a file have in the whole."""
    places = {}
    borders = sorted({len(packets) * number // PARTS for number in range(PARTS + 1)})
    for number, (first, last) in enumerate(pairwise(borders)):
        name = f"part-{PARTS - number}.pcap"  # the names tell no order
        (folder / name).write_bytes(pcap(packets[first:last], ns=True, link=link))
        places |= {(name, at - first): at for at in range(first + 1, last + 1)}
    return places


def placed(row: dict[str, Any], places: dict[tuple[str, int], int]) -> dict[str, Any]:
    """A row with the numbers of the whole; the packets of files are in columns of such names."""
    found = dict(row)
    for name, packet in row.items():
        capture = f"{name.removesuffix('packet')}capture"
        if name.endswith("packet"):
            found[name] = None if packet is None or capture not in row else places[row[capture], packet]
            assert name != "last_packet" or capture in row
    return {name: value for name, value in found.items() if not name.endswith("capture")}


def said(row: dict[str, Any]) -> dict[str, Any]:
    """A finding without numbers in its text, which are those of files, and what selects them in one."""
    return {**row, "filter": None, "text": re.sub(r"packets? \d+", "", row["text"])}


@pytest.mark.sampled(14)
@pytest.mark.parametrize("path", NAMES, ids=lambda path: path.stem)
def test_packets_are_those_of_the_whole_in_their_files(path: Path, tmp_path: Path) -> None:
    read = read_packets(path)
    packets, link = [Packet(packet.ts_ns, packet.data) for packet in read], read[0].link_type
    (tmp_path / "whole.pcap").write_bytes(pcap(packets, ns=True, link=link))
    (tmp_path / "parts").mkdir()
    places = rotated(packets, link, tmp_path / "parts")
    one, several = walked(tmp_path / "whole.pcap"), walked(tmp_path / "parts")
    whole = {("whole.pcap", number): number for number in range(1, len(packets) + 1)}
    of_several = dict(compute.compute(several))
    for name, rows in compute.compute(one):
        expected = [placed(row, whole) for row in rows.to_pylist()]
        found = [placed(row, places) for row in of_several[name].to_pylist()]
        if name == "findings":
            expected, found = ([said(row) for row in each] for each in (expected, found))
        assert sorted(map(repr, found)) == sorted(map(repr, expected)), name
