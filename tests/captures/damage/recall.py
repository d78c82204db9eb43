"""What is found in a damaged capture, held against the undamaged one.

Where the frames are is known from the undamaged capture: rows tell their order and sizes, TCP's sequence numbers where
each byte was. A frame whose bytes are all there in the damaged capture is *whole*. It is *reachable* when the walk
can come to it from the beginning of its stream, over frames whose heads are there; else it is *after* a lost boundary.
"""

from __future__ import annotations

import subprocess
import tempfile
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import pyarrow as pa

from tests.captures.damage.ways import SYN, Capture, other_way
from tests.dissector.builders import Packet, pcap
from tests.dissector.runs import Row, rows

TELLING = {"amqp091_frames": (0, 3, 4, 5, 6), "stream_frames": (0, 1, 2, 3), "amqp010_frames": (1, 2, 3)}
"""Bytes of a head that say what and how long a frame is."""
FRAMES = {"amqp091_frames": 7, "stream_frames": 8, "amqp010_frames": 12}
"""Tables of frames, and the bytes of a head there: what tells where the next frame is, and what kind this is."""
LEFT_OUT = {
    "connection_id", "frame_no", "capture", "packet", "ts_ns", "ts", "first_capture", "first_packet", "first_ts_ns",
    "channel_epoch", "is_partial", "missing", "first_frame_no", "publish_seq_unsure", "unfinished",
}  # fmt: skip
OF_OTHERS = {"publish_seq", "no_ack", "stream", "publisher_reference", "publisher_epoch", "session", "command_id"}
"""What a row has of other frames, which may be lost."""
LONG = {
    "arguments", "headers", "client_properties", "server_properties", "peer_properties", "connection_properties",
    "properties", "mechanisms", "publishing_ids", "streams", "brokers", "reply_to", "value", "commands", "transfers",
}  # fmt: skip
"""Tables, lists and structs: of one that is cut there are the entries before the gap."""
BEGIN = attrgetter("begin")
Direction = tuple[int, tuple[bytes, int, int]]
"""Which connection of its addresses and ports, and these, the sender's first."""


class Extent(NamedTuple):
    """Where a packet's bytes are in their stream."""

    direction: Direction
    begin: int
    size: int


@dataclass(eq=False)
class Frame:
    """A frame of the undamaged capture."""

    row: Row = field(repr=False)
    table: str
    direction: Direction
    begin: int
    end: int
    follows: Frame | None = field(repr=False)
    """The frame before it, when it begins where that ends."""


@dataclass
class Sent:
    """What was sent: frames in the order of their streams, where the bytes of packets are, messages."""

    capture: Capture
    extents: list[Extent | None]
    frames: list[Frame] = field(default_factory=list)
    unplaced: list[Row] = field(default_factory=list)
    """Frames of which it is not known where they are: inside of TLS."""
    messages: dict[tuple[int, int], list[Row]] = field(default_factory=dict)
    """By connection and first frame."""

    @classmethod
    def of(cls, capture: Capture, tables: dict[str, pa.Table]) -> Sent:
        """From the tables of the undamaged capture."""
        sent = cls(capture, extents_of(capture))
        data = streams_of(capture, sent.extents)
        last: dict[tuple[int, bool], Frame] = {}
        for table in FRAMES:
            for row in rows(tables[table]):
                extent = sent.extents[row["first_packet"] - 1]
                before = last.get((row["connection_id"], row["from_client"]))
                begin = None if extent is None else place(data, extent, row, table, before.end if before else 0)
                if extent is None or begin is None:
                    sent.unplaced.append(row)
                    continue
                follows = before if before and before.end == begin else None
                frame = Frame(row, table, extent.direction, begin, begin + row["size"], follows)
                last[row["connection_id"], row["from_client"]] = frame
                sent.frames.append(frame)
        for row in rows(tables["messages"]):
            sent.messages.setdefault((row["connection_id"], row["first_frame_no"]), []).append(row)
        capture.heads = [bytes_of_head(sent, frame) for frame in sent.frames if not is_protocol_header(frame.row)]
        return sent


def bytes_of_head(sent: Sent, frame: Frame) -> list[tuple[int, int]]:
    """The bytes of a head that say what and how long the frame is: packets, and places in them; of the first copies."""
    found = []
    wanted = [frame.begin + at for at in TELLING[frame.table]]
    for i in range(frame.row["first_packet"] - 1, frame.row["packet"]):
        extent, segment = sent.extents[i], sent.capture.segments[i]
        if extent is not None and segment is not None and extent.direction == frame.direction:
            there = range(extent.begin, extent.begin + extent.size)
            found += [(i, segment.payload + at - extent.begin) for at in wanted if at in there]
            wanted = [at for at in wanted if at not in there]
    return found


def extents_of(capture: Capture) -> list[Extent | None]:
    """Where the bytes of each packet are; position 0 is after the SYN, or where the capture first sees the stream."""
    first: dict[Direction, int] = {}
    current: dict[tuple[bytes, int, int], int] = {}
    found: list[Extent | None] = []
    for i, (packet, segment) in enumerate(zip(capture.packets, capture.segments, strict=True)):
        if segment is None:
            found.append(None)
            continue
        seq = int.from_bytes(packet.data[segment.tcp + 4 : segment.tcp + 8], "big")
        pair = min(segment.flow, other_way(segment.flow))
        direction = current.setdefault(pair, 0), segment.flow
        if segment.flags & SYN:
            seq += 1
            if first.setdefault(direction, seq) != seq:  # the ports are used again
                current[pair] += 1
                direction = current[pair], segment.flow
                first[direction] = seq
        if capture.data(i) == 0:
            found.append(None)
            continue
        begin = (seq - first.setdefault(direction, seq) + 2**31) % 2**32 - 2**31
        found.append(Extent(direction, begin, capture.data(i)))
    return found


def streams_of(capture: Capture, extents: list[Extent | None]) -> dict[Direction, bytearray]:
    """The bytes of each direction, the first copies."""
    found: dict[Direction, bytearray] = defaultdict(bytearray)
    for i, extent in reversed(list(enumerate(extents))):
        if extent is None or extent.begin < 0:
            continue
        stream, segment = found[extent.direction], capture.segments[i]
        assert segment is not None
        data = capture.packets[i].data[segment.payload :][: extent.size]
        stream.extend(bytes(max(extent.begin + len(data) - len(stream), 0)))
        stream[extent.begin : extent.begin + len(data)] = data
    return found


def place(data: dict[Direction, bytearray], extent: Extent, row: Row, table: str, expected: int) -> int | None:
    """Where the frame of a row begins: at the place expected, or in its first packet where its head stands."""
    stream = data[extent.direction]
    own = range(max(extent.begin, 0), extent.begin + extent.size)
    places = (begin for begin in (expected, *own) if begin in own and is_head(stream, begin, row, table))
    return next(places, None)


def is_head(stream: bytearray, begin: int, row: Row, table: str) -> bool:
    """Whether bytes say what a row says of its frame's size."""
    size: int = row["size"]
    if table == "stream_frames":
        return int.from_bytes(stream[begin : begin + 4], "big") + 4 == size
    if table == "amqp010_frames" and row["segment_type"]:
        kind = ["control", "command", "header", "body"].index(row["segment_type"])
        return stream[begin + 1 : begin + 4] == bytes([kind]) + size.to_bytes(2, "big")
    if is_protocol_header(row):
        return stream.startswith(b"AMQP", begin)
    kind = ["method", "header", "body"].index(row["frame_type"]) + 1 if row["frame_type"] != "heartbeat" else 8
    channel: int = row["channel"]
    return stream.startswith(bytes([kind]) + channel.to_bytes(2, "big") + (size - 8).to_bytes(4, "big"), begin)


def is_protocol_header(row: Row) -> bool:
    """Whether a frame is one with which a side begins."""
    return row.get("frame_type") == "protocol-header" or row.get("segment_type", "") is None


class Visible:
    """Which bytes of the undamaged capture are still there in a damaged one."""

    def __init__(self, sent: Sent, damaged: list[Packet]) -> None:
        self._data: dict[Direction, bytearray] = defaultdict(bytearray)
        self._opened: set[Direction] = set()
        self.changed: set[tuple[Direction, int]] = set()
        """Bytes that are others than were sent."""
        current: dict[tuple[bytes, int, int], set[Direction]] = defaultdict(set)
        for direction in {extent.direction for extent in sent.extents if extent is not None}:
            current[direction[1]].add(direction)
        for packet in damaged:
            segment, extent = sent.capture.segments[packet.interface - 1], sent.extents[packet.interface - 1]
            if segment is None:
                continue
            if segment.flags & SYN:
                self._opened |= current[segment.flow]
            if extent is not None:
                size = min(extent.size, max(len(packet.data) - segment.payload, 0))
                begin, end = max(extent.begin, 0), max(extent.begin + size, 0)
                data = self._data[extent.direction]
                data.extend(bytes(max(end - len(data), 0)))
                was = sent.capture.packets[packet.interface - 1].data
                made_up = packet.data[: segment.payload] != was[: segment.payload]  # of bytes that others have as well
                if made_up or packet.data[segment.payload :][:size] == was[segment.payload :][:size]:
                    data[begin:end] = b"\1" * (end - begin)
                else:
                    same = zip(packet.data[segment.payload :][:size], was[segment.payload :], strict=False)
                    data[begin:end] = bytes(a == b for a, b in same)[begin - extent.begin :]
                    others = (n for n, is_same in enumerate(data[begin:end], begin) if not is_same)
                    self.changed |= {(extent.direction, n) for n in others}

    def there(self, direction: Direction, begin: int, end: int) -> bool:
        """Whether all of these bytes are there."""
        data = self._data[direction]
        return len(data) >= end and data.find(0, begin, end) < 0

    def whole(self, frame: Frame) -> bool:
        return self.there(frame.direction, frame.begin, frame.end)

    def headed(self, frame: Frame) -> bool:
        """Whether the bytes that tell where the frame ends are there."""
        return self.there(frame.direction, frame.begin, min(frame.begin + FRAMES[frame.table], frame.end))

    def damaged(self, frame: Frame) -> bool:
        """Whether bytes of its head are others than were sent."""
        return bool(self.changed) and any(
            (frame.direction, at) in self.changed for at in range(frame.begin, frame.begin + FRAMES[frame.table])
        )

    def opened(self, frame: Frame) -> bool:
        """Whether it is known that the frame is the first of its stream."""
        first = frame.begin == 0 and frame.follows is None
        return first and (frame.direction in self._opened or is_protocol_header(frame.row))


class Missed(NamedTuple):
    """A frame that is whole and was not found, and its place in its run of frames with heads."""

    frame: Frame
    reachable: bool
    place: int
    run: int

    def __str__(self) -> str:
        frame, (number, flow) = self.frame, self.frame.direction
        return (
            f"{flow[1]} -> {flow[2]} ({number}): frame {frame.row['frame_no']}, {kind(frame.row)}, "
            f"bytes {frame.begin} to {frame.end}, {'reachable' if self.reachable else 'behind'}, "
            f"{self.place} of {self.run} in its run"
        )


@dataclass
class Score:
    """What was found of a damaged capture.

    Attributes:
        sent: frames of the undamaged one.
        reachable: whole frames that can be reached from the beginning of their stream; reached: rows for these.
        after: whole frames after a lost boundary; found: rows for these.
        cut: rows of frames with a gap.
        invented: rows of frames and messages that were never sent.
        otherwise: rows of messages that were sent, but say something wrong of what they have of other frames.
        unreported: connections with lost bytes that no anomaly reports, or with a report and no lost bytes.
        publishes: rows of publishes; by_tshark: those that tshark sees.
        missed, made_up, wrong: the frames not found, the rows invented, and what rows say otherwise.
    """

    sent: int = 0
    reachable: int = 0
    reached: int = 0
    behind: int = 0
    found: int = 0
    cut: int = 0
    invented: int = 0
    otherwise: int = 0
    unreported: int = 0
    publishes: int = 0
    by_tshark: int = 0
    missed: list[Missed] = field(default_factory=list)
    made_up: list[Row] = field(default_factory=list)
    wrong: list[Row] = field(default_factory=list)

    def add(self, other: Score) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class Beginnings:
    """Which frames may be those of a row, by the packet that holds their first byte."""

    def __init__(self, sent: Sent, damaged: list[Packet]) -> None:
        self._sent, self._damaged = sent, damaged
        self.visible = Visible(sent, damaged)
        self._frames: dict[Direction, list[Frame]] = defaultdict(list)
        for frame in sorted(sent.frames, key=BEGIN):
            self._frames[frame.direction].append(frame)
        self._unplaced: dict[int, list[Row]] = defaultdict(list)
        for row in sent.unplaced:
            self._unplaced[row["first_packet"]].append(row)

    def placed(self, row: Row) -> list[Frame]:
        """Frames whose place is known that begin in the first packet of a row; those with damaged heads last."""
        extent = self._sent.extents[self._damaged[row["first_packet"] - 1].interface - 1]
        if extent is None:
            return []
        frames = self._frames[extent.direction]
        first, end = (bisect_left(frames, place, key=BEGIN) for place in (extent.begin, extent.begin + extent.size))
        return sorted(frames[first:end], key=self.visible.damaged)

    def is_header(self, row: Row) -> bool:
        """Whether a row is the protocol header that its packet holds, of a connection that spoke nothing known."""
        number = self._damaged[row["first_packet"] - 1].interface - 1
        segment = self._sent.capture.segments[number]
        data = self._sent.capture.packets[number].data
        return is_protocol_header(row) and segment is not None and data.startswith(b"AMQP", segment.payload)

    def unplaced(self, row: Row) -> list[Row]:
        """The other ones."""
        return self._unplaced[self._damaged[row["first_packet"] - 1].interface]


def frames_found(
    sent: Sent, beginnings: Beginnings, tables: dict[str, pa.Table]
) -> Iterator[tuple[Row, Frame | Row | None]]:
    """The rows of frames, each with what was sent: a frame, of unknown place its row alone, or None: never sent."""
    taken: set[int] = set()
    for table in FRAMES:
        for row in rows(tables[table]):
            same: list[Frame | Row] = [
                f for f in beginnings.placed(row) if f.table == table and id(f) not in taken and agrees(row, f.row)
            ]
            same = same[:1] or [r for r in beginnings.unplaced(row) if id(r) not in taken and agrees(row, r)]
            taken |= {id(each) for each in same[:1]}
            yield row, same[0] if same else None


def messages_found(sent: Sent, beginnings: Beginnings, found: list[Row]) -> Iterator[tuple[Row, Row | None]]:
    """The rows of messages, each with the row that it was, or None: never sent."""
    taken: set[int] = set()
    for row in found:
        frames = [*(frame.row for frame in beginnings.placed(row)), *beginnings.unplaced(row)]
        there = [r for f in frames for r in sent.messages.get((f["connection_id"], f["frame_no"]), [])]
        same = [r for r in there if id(r) not in taken and not differences(row, r) - OF_OTHERS]
        best = min(same, key=lambda r: len(differences(row, r)), default=None)
        taken.add(id(best))
        yield row, best


def compare(sent: Sent, damaged: list[Packet], tables: dict[str, pa.Table]) -> Score:
    """Hold the rows of a damaged capture against what was sent."""
    beginnings = Beginnings(sent, damaged)
    visible = beginnings.visible
    score = Score(sent=len(sent.frames) + len(sent.unplaced))
    whole: set[int] = set()
    for row, frame in frames_found(sent, beginnings, tables):
        if frame is None:
            if not any(map(visible.damaged, beginnings.placed(row))) and not beginnings.is_header(row):
                score.made_up.append(row)
            continue
        if row["is_partial"]:
            score.cut += 1
        else:
            whole.add(id(frame))
        score.publishes += row.get("method") == "basic.publish"
    for row, message in messages_found(sent, beginnings, rows(tables["messages"])):
        if any(map(visible.damaged, beginnings.placed(row))):
            continue
        if message is None:
            score.made_up.append(row)
        elif wrong := differences(row, message):
            score.wrong.append({name: (row[name], message[name]) for name in wrong} | {"row": row})
    score.invented, score.otherwise = len(score.made_up), len(score.wrong)
    score.unreported = len(unreported(tables))
    for run, reachable in runs(sent, visible):
        for i, frame in enumerate(run):
            if visible.whole(frame):
                found = id(frame) in whole
                if reachable:
                    score.reachable, score.reached = score.reachable + 1, score.reached + found
                else:
                    score.behind, score.found = score.behind + 1, score.found + found
                if not found:
                    score.missed.append(Missed(frame, reachable, i + 1, len(run)))
    return score


def unreported(tables: dict[str, pa.Table]) -> set[int]:
    """The connections of which `lost_bytes` and the anomalies do not say the same: that bytes are missing, or none."""
    reported = {row["connection_id"] for row in rows(tables["anomalies"]) if row["code"] in ("tcp-gap", "frame-gap")}
    return reported ^ {row["connection_id"] for row in rows(tables["connections"]) if row["lost_bytes"]}


def runs(sent: Sent, visible: Visible) -> Iterator[tuple[list[Frame], bool]]:
    """Frames with heads that follow each other, and whether the first of them begins its stream."""
    members: dict[int, list[Frame]] = {}
    for frame in sent.frames:
        if not visible.headed(frame):
            continue
        run = members.get(id(frame.follows), [])
        run.append(frame)
        members[id(frame)] = run
    for run in {id(run): run for run in members.values()}.values():
        yield run, visible.opened(run[0])


def agrees(row: Row, sent: Row) -> bool:
    """Whether a row says what was sent; one with a gap may say less."""
    return not differences(row, sent)


def differences(row: Row, sent: Row) -> set[str]:
    """The columns in which a row says something else than what was sent; one with a gap may say less."""
    # what an operation of AMQP 0-10 says is in frames before that of its header or body
    partial = row["is_partial"] or row.get("segment_type") in ("header", "body")
    others = OF_OTHERS | ({"delivery_tag"} if row.get("protocol") == "amqp-0-10" else set())
    return {
        name for name, value in sent.items()
        if row[name] != value and name not in LEFT_OUT
        and not (row[name] is None and (partial or name in others)) and not (partial and name in LONG)
    }  # fmt: skip


def kind(row: Row) -> str:
    return str(row.get("method") or row.get("command") or row.get("frame_type"))


def publishes_by_tshark(packets: list[Packet], link: int, ports: Iterable[int]) -> int:
    """How many publishes tshark sees, that gets the ports of AMQP."""
    with tempfile.NamedTemporaryFile(suffix=".pcap") as file:
        file.write(pcap(packets, link=link))
        file.flush()
        fields = ["-e", "amqp.method.class", "-e", "amqp.method.method"]
        options = ["-o", "tcp.reassemble_out_of_order:TRUE", *(o for p in ports for o in ("-d", f"tcp.port=={p},amqp"))]
        command = ["tshark", "-r", file.name, *options, "-Y", "amqp", "-T", "fields", *fields]
        out = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    pairs = [zip(*(part.split(",") for part in line.split("\t")), strict=False) for line in out.splitlines()]
    return sum(pair == ("60", "40") for line in pairs for pair in line)
