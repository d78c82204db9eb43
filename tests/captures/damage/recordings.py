"""Recordings to be damaged."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa

from tests.captures.damage.recall import FRAMES, Sent
from tests.captures.damage.thinning import THINNED
from tests.captures.damage.ways import FLIPPED, HARMFUL, HARMLESS, Capture, numbered
from tests.dissector.builders import Packet
from tests.dissector.comparing import TIMED
from tests.dissector.runs import dissect_packets, recorded, rows

FOLDER = Path(__file__).parents[1]
OTHER_WAYS = {"snapped", "lossy_link"}
"""Recordings that have gaps, or disorder of their own: which packet brought a byte first changes there."""
COMPILED = 1 << 20
"""Recordings of more bytes are dissected with compiled kernels."""


def recordings() -> list[Path]:
    """The recordings that can be damaged: of one file, whole, of Ethernet or cooked captures."""
    return [path for path in sorted(FOLDER.glob("*.pcap")) if path.stem not in OTHER_WAYS]


class Recording:
    """A recording and what is in it."""

    def __init__(self, name: str, packets: list[Packet], link: int = 1, *, compiled: bool = False) -> None:
        self.name, self.link = name, link
        self._compiled = compiled or sum(len(packet.data) for packet in packets) > COMPILED
        self.capture = Capture(numbered(packets), link)
        self.tables = self.dissect(self.capture.packets)
        self.sent = Sent.of(self.capture, self.tables)

    @classmethod
    def of(cls, path: Path, *, compiled: bool = False) -> Recording:
        return cls(path.name, *recorded(str(path.resolve())), compiled=compiled)

    def dissect(self, packets: list[Packet]) -> dict[str, pa.Table]:
        return dissect_packets(packets, self.link, self._compiled)

    def damaged(self, way: str, seed: int) -> list[Packet]:
        return (HARMLESS | HARMFUL | FLIPPED | THINNED)[way](self.capture, random.Random(f"{seed} {self.name}"))

    def others(self, packets: list[Packet]) -> int:
        """How many rows are not as they were, in columns but those that have times and numbers of packets."""
        tables = self.dissect(packets)
        count = 0
        for table in (*FRAMES, "messages"):
            mine, theirs = (rows(t[table], *TIMED) for t in (tables, self.tables))
            count += sum(a != b for a, b in zip(mine, theirs, strict=False)) + abs(len(mine) - len(theirs))
        return count

    @property
    def ports(self) -> set[int]:
        found = rows(self.tables["connections"])
        return {row["server_port"] for row in found if row["protocol"] == "amqp-0-9-1"} - {5672}
