"""The recordings as they are read here, and by the slow, independent decoder (dpkt and pamqp)."""

import functools
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa

from tests import reference
from tests.dissector.builders import Packet, pcap
from tests.dissector.runs import CAPTURES, SETS, Row, dissect, recorded, rows
from tests.reference.packets import read_packets

READABLE = [capture for capture in CAPTURES if not capture.stem.startswith("tls_")]
"""What the reference reads of AMQP 0-9-1: it knows no TLS."""
BEHIND_A_PROXY = "wrong_ports"
WHOLE = [c for c in READABLE if c.stem != BEHIND_A_PROXY and not c.stem.startswith("stream_")]
"""Of which it reads all: it knows no PROXY protocol either, and nothing of streams."""
BROKEN_STREAMS = {"stream_errors", "stream_wrong_ports"}
STREAMS = [c for c in READABLE if c.stem.startswith("stream_") and c.stem not in BROKEN_STREAMS]
"""What the other reference reads, that of streams: it knows no connections that break the protocol."""
COVERED = {capture.stem for capture in [*WHOLE, *STREAMS]}
"""Recordings whose rows are all compared with those of an independent decoder, of AMQP 0-9-1 or of streams.

What is compared with our own rows of one of these is compared with rows that are known to be right.
"""


@functools.cache
def theirs(capture: Path) -> list[Row]:
    """The reference's frames. The files of a rotated capture are read as one, and their packets numbered anew."""
    if capture not in SETS:
        return [row | {"capture": capture.name} for row in reference.frames(capture)]
    parts = {path.name: read_packets(path) for path in sorted(capture.glob("*.pcap"))}
    places = [(name, packet.number) for name, packets in parts.items() for packet in packets]
    data = pcap([Packet(p.ts_ns, p.data) for packets in parts.values() for p in packets], ns=True)
    with tempfile.NamedTemporaryFile() as whole:
        whole.write(data)
        whole.flush()
        found = reference.frames(whole.name)
    for row in found:
        row["first_packet"] = places[row["first_packet"] - 1][1]
        row["capture"], row["packet"] = places[row["packet"] - 1]
    return found


@functools.cache
def ours(capture: Path) -> dict[str, pa.Table]:
    return dissect(capture, check=True)


@functools.cache
def identities(capture: Path) -> dict[int, tuple[str, str, int]]:
    """Connections by `connection_id` as the reference names them."""
    seen: Counter[tuple[str, str]] = Counter()
    found = {}
    for row in sorted(rows(ours(capture)["connections"]), key=lambda row: row["first_ts_ns"]):
        ends = f"{row['client_ip']}:{row['client_port']}", f"{row['server_ip']}:{row['server_port']}"
        found[row["connection_id"]] = (*ends, seen[ends])
        seen[ends] += 1
    return found


def covered(name: str) -> tuple[list[Packet], int]:
    """The packets of a recording, and its link type; what our rows of it are is not only our own word."""
    assert Path(name).stem in COVERED
    return recorded(name)
