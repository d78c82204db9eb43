"""Leave out each packet of the recorded handshakes and endings once, and compare the verdicts.

    python -m tests.captures.damage.verdicts [--examples] [capture...]

says what became of the verdicts on the connections that lack one packet:

- same: as with all packets.
- gap: the outcome or the ending says that what decides is missing.
- unseen: another one, but no packet that is left shows that one is missing.
- proven: `gap`, though a later message proves what is unknown; must be 0.
- wrong: another one; must be 0.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from amqpscope.dissector.dissector import Options
from tests.captures.damage.recordings import recordings
from tests.captures.damage.ways import FIN_SYN_RST, SYN, Capture, Segment, numbered, other_way
from tests.dissector.builders import Packet
from tests.dissector.runs import Row, dissect_packets, recorded, rows

BEGINNING, END = 28, 14
"""Packets of a connection that are left out: the first and the last ones."""
FIRST_PORT = 20_000
"""The client's port of the first copy; the others follow."""
UNKNOWN = {"gap", "close-in-gap", "end-in-gap", "one-direction", "login-refused", "encrypted"}
"""Outcomes and endings of connections of which something is missing. Without the login it is not known why that was
refused, and without the client's hello nothing of TLS can be read."""
REFUSALS = (403, 530)
"""Reply codes of brokers that say what they refuse."""
KINDS = ("same", "gap", "unseen", "proven", "wrong")
ACK = 16
NEUTRAL = ("heartbeat", "exchange-command-versions", "peer-properties", "sasl-handshake", "sasl-authenticate", "tune",
           "open", "close")  # fmt: skip
"""Commands of streams that prove nothing of their connection."""


class Copy(NamedTuple):
    """A connection without one of its packets, and which; None: with all of them."""

    packets: list[Packet]
    lacks: int | None


@dataclass
class Verdict:
    """A copy's row of `connections`, and whether frames show that the connection was in use."""

    row: Row
    used: bool

    @property
    def says(self) -> tuple[str, str, str | None]:
        return self.row["handshake_stage"], self.row["handshake_outcome"], self.row["ending"]

    @property
    def is_gap(self) -> bool:
        return not UNKNOWN.isdisjoint(self.says)

    @property
    def is_proven(self) -> bool:
        """Whether a message that is there tells what the outcome or the ending says to be missing."""
        refused = self.row["closed_by"] == "server-close" and self.row["reply_code"] in REFUSALS
        # in AMQP 1.0 both sides send a close, of which the first may be missing
        is_closed = self.row["reply_code"] is not None and self.row["protocol"] != "amqp-1.0"
        return ((self.used or refused) and self.row["handshake_outcome"] == "gap") or (
            is_closed and self.row["ending"] in UNKNOWN
        )


def connections(capture: Capture) -> Iterator[list[int]]:
    """The indexes of the packets of each connection; a SYN after packets with data begins another one."""
    open_: dict[tuple[bytes, int, int], list[int]] = {}
    found = []
    for i, segment in enumerate(capture.segments):
        if segment is None:
            continue
        key = min(segment.flow, other_way(segment.flow))
        is_new = segment.flags & FIN_SYN_RST == SYN and not segment.flags & ACK
        if key not in open_ or (is_new and any(capture.data(j) for j in open_[key])):
            open_[key] = []
            found.append(open_[key])
        open_[key].append(i)
    yield from found


def copies(capture: Capture, indexes: list[int]) -> Iterator[Copy]:
    """A connection, and it without each of its first and last packets."""
    yield Copy([capture.packets[i] for i in indexes], None)
    for i in sorted({*indexes[:BEGINNING], *indexes[-END:]}):
        yield Copy([capture.packets[j] for j in indexes if j != i], i)


def readdressed(capture: Capture, packet: Packet, port: int) -> Packet:
    """The packet with another port of the client: of the two, that is the higher one."""
    segment = capture.segments[packet.interface - 1]
    assert segment is not None
    at = segment.tcp if segment.flow[1] > segment.flow[2] else segment.tcp + 2
    return replace(packet, data=packet.data[:at] + port.to_bytes(2, "big") + packet.data[at + 2 :])


def verdicts(capture: Capture, found: list[Copy], keylog: Path, compiled: bool) -> dict[int, Verdict]:
    """The verdict on each copy, by its number. All are dissected as one capture, which ends when the recording does."""
    packets = [readdressed(capture, packet, FIRST_PORT + n) for n, copy in enumerate(found) for packet in copy.packets]
    packets.append(replace(capture.packets[-1], data=b""))
    packets.sort(key=attrgetter("ts_ns"))
    options = Options(keylog=str(keylog) if keylog.exists() else None)
    tables = dissect_packets(packets, capture.link, compiled, options=options)
    used = {row["connection_id"] for row in rows(tables["amqp091_frames"]) if row["channel"]}
    used |= {r["connection_id"] for r in rows(tables["stream_frames"]) if r["command"] not in (None, *NEUTRAL)}
    used |= {row["connection_id"] for row in rows(tables["amqp010_frames"]) if row["session"]}
    ports = range(FIRST_PORT, FIRST_PORT + len(found))
    return {
        (row["client_port"] if row["client_port"] in ports else row["server_port"]) - FIRST_PORT: Verdict(
            row, row["connection_id"] in used
        )
        for row in rows(tables["connections"])
    }


def is_shown(capture: Capture, indexes: Iterable[int], lacking: int) -> bool:
    """Whether a later packet shows that one was there: its direction goes on after it, or the other acknowledges it."""
    gone = capture.segments[lacking]
    assert gone is not None
    end = _number(capture, lacking, gone, 4) + capture.data(lacking) + (gone.flags & FIN_SYN_RST & 3 > 0)
    if end == _number(capture, lacking, gone, 4):
        return False
    for i in indexes:
        segment = capture.segments[i]
        assert segment is not None
        if i == lacking or (i < lacking and segment.flow == gone.flow):
            continue
        if segment.flow == gone.flow:
            reached = _number(capture, i, segment, 4)
        elif segment.flags & ACK:
            reached = _number(capture, i, segment, 8)
        else:
            continue
        if (reached - end) % 2**32 < 2**31:
            return True
    return False


def _number(capture: Capture, i: int, segment: Segment, at: int) -> int:
    return int.from_bytes(capture.packets[i].data[segment.tcp + at : segment.tcp + at + 4], "big")


def judged(path: Path, examples: bool = False, compiled: bool = True) -> Counter[str]:
    """What became of the verdicts of a recording, by kind."""
    packets, link = recorded(str(path.resolve()))
    capture = Capture(numbered(packets), link)
    found: list[Copy] = []
    of: list[tuple[int, list[int]]] = []
    for indexes in connections(capture):
        whole = len(found)
        found += copies(capture, indexes)
        of += [(whole, indexes)] * (len(found) - whole)
    counts: Counter[str] = Counter()
    known = verdicts(capture, found, path.with_suffix(".keylog"), compiled)
    for n, copy in enumerate(found):
        whole, indexes = of[n]
        if copy.lacks is None or whole not in known or n not in known:
            continue
        right, says = known[whole], known[n]
        if says.says[1:] == right.says[1:]:
            kind = "same"
        elif says.is_gap:
            kind = "proven" if says.is_proven else "gap"
        else:
            kind = "wrong" if is_shown(capture, indexes, copy.lacks) else "unseen"
        counts[kind] += 1
        if examples and kind in ("wrong", "proven"):
            causes = says.row["handshake_cause"], says.row["ending_cause"]
            print(f"{kind}: {path.name} without packet {copy.lacks + 1}: {right.says} becomes {says.says}, {causes}")
    return counts


def main(arguments: list[str]) -> int:
    """Print what was found; 1 when a verdict was wrong, or not given though it was proven."""
    assert __doc__
    parser = argparse.ArgumentParser("python -m tests.captures.damage.verdicts", description=__doc__.split("\n")[0])
    parser.add_argument("--examples", action="store_true", help="name each verdict that must not be")
    parser.add_argument("captures", nargs="*", type=Path, help="default: the recordings")
    given = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    for path in given.captures or recordings():
        counts += judged(path, given.examples)
    print(f"| {' | '.join(KINDS)} |\n|{'--:|' * len(KINDS)}")
    print(f"| {' | '.join(str(counts[kind]) for kind in KINDS)} |")
    return int(counts["wrong"] + counts["proven"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
