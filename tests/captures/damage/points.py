"""Two capture points with a network between them that loses, delays and repeats packets; each misses some itself.

Rows of a connection are those of its capture point: none that this point alone has may become another one by what the
other point has seen.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from tests.captures.damage.recall import FRAMES, OF_OTHERS
from tests.captures.damage.ways import FIN_SYN_RST, NEAR_NS, Capture, in_time, reordered
from tests.dissector.builders import Packet, pcap
from tests.dissector.runs import Row, dissect, rows

NAMES = ("one", "two")
OFFSETS_NS = (0, 1_000, 1_000_000, 30_000_000, 100_000_000, 500_000_000)
"""How far the clocks of both points differ."""
ORDER = {"frame_no", "first_frame_no", "channel_epoch", "publish_seq_unsure", "unfinished", "delivery_tag"}
"""What depends on other frames besides `OF_OTHERS`, of which there may be more now; delivery tags of AMQP 0-10 do."""


def copies(capture: Capture, rnd: random.Random) -> tuple[list[Packet], list[Packet]]:
    """What each point has of a capture: it sees retransmissions of what was lost before it."""
    one, two = (seen(capture, rnd) for _ in NAMES)
    offset = rnd.choice(OFFSETS_NS)
    return one, [replace(packet, ts_ns=packet.ts_ns + offset) for packet in two]


def seen(capture: Capture, rnd: random.Random) -> list[Packet]:
    """What a point has: packets lost on the way come again a little later, and some are not captured."""
    found = []
    for i, packet in enumerate(reordered(capture, rnd, 0.1) if rnd.random() < 0.5 else capture.packets):
        segment, chance = capture.segments[packet.interface - 1], rnd.random()
        can_repeat = segment is not None and not segment.flags & FIN_SYN_RST
        if chance > 0.06 or (can_repeat and chance > 0.02):
            found.append((packet.ts_ns, i, packet))
        if can_repeat and chance < 0.1:
            found.append((packet.ts_ns + rnd.randint(1, NEAR_NS), i, packet))
    return in_time([packet for _, _, packet in sorted(found, key=lambda each: each[:2])])


def changed(one: list[Packet], two: list[Packet], link: int) -> tuple[int, list[Row]]:
    """How many whole rows each point alone has of its connections; and those that are others with both points."""
    count, others = 0, []
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.pcap" for name in NAMES]
        for path, packets in zip(paths, (one, two), strict=True):
            path.write_bytes(pcap(packets, ns=True, link=link))
        both = dissect(*paths)
        for path in paths:
            mine = {row["connection_id"] for row in rows(both["connections"]) if row["vantage"] == path.name}
            alone = dissect(path)
            for table in (*FRAMES, "messages"):
                found = {_key(row) for row in rows(both[table]) if row["connection_id"] in mine}
                whole = _whole(alone, table, mine)
                count += len(whole)
                others += [row for row in whole if _key(row) not in found]
    return count, others


def _whole(alone: dict[str, pa.Table], table: str, mine: set[int]) -> list[Row]:
    return [row for row in rows(alone[table]) if row["connection_id"] in mine and not row["is_partial"]]


def _key(row: Row) -> str:
    return str([(name, value) for name, value in row.items() if name not in ORDER | OF_OTHERS])
