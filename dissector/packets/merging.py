"""Merge captures whose times overlap to one sequence of segments.

Rotated files, each continuing where the one before ended, are one sequence. Files that overlap come from several
capture points, or repeat each other; but those of a rotation whose packets are out of order overlap by as much. The
sequence is that of (running maximum of time, capture), so that each file
keeps its own order; the maximum goes on from file to file of one capture point. The result does not depend on how files
are cut into batches.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.packets.segments import SegmentBatch

EVER = (1 << 63) - 1
"""No segment is later: damaged and hostile captures have all times (ns) that there are."""
SLACK_NS = 10_000_000
"""Longest overlap of rotated files: packets are not quite in order of time."""
DISORDER_NS = 2_000_000_000
"""Longest overlap of rotated files whose own packets are as much out of order, as those of several cards may be."""


class Decoded(NamedTuple):
    """Segments and their bytes: `data` up to `used`, then room that the receiver may use."""

    segments: SegmentBatch
    data: Bytes
    used: int


@dataclass(slots=True)
class Capture:
    """A capture to be merged: its name, the time of its first packet, and a function that opens it.

    `open` takes the capture's index and the number of captures that are open then.
    """

    name: str
    begin: int
    open: Callable[[int, int], Iterator[Decoded]]


@dataclass(slots=True)
class _Lane:
    """An open capture: batches that were read and not yet taken, with their running maxima of time.

    `last` is the maximum so far, of the captures before it at its capture point, too; `disorder` the longest time that
    a segment was before it, in them as well.
    """

    name: str
    point: int
    source: Iterator[Decoded]
    last: int
    disorder: int = 0
    batches: deque[tuple[Decoded, Ints]] = field(default_factory=deque)
    ended: bool = False

    def read(self) -> bool:
        """Read another batch; return False when there is none."""
        for decoded in self.source:
            if len(decoded.segments.ts_ns):
                times = decoded.segments.ts_ns
                keys = np.maximum.accumulate(np.maximum(times, self.last))
                self.last, self.disorder = int(keys[-1]), max(self.disorder, int((keys - times).max()))
                self.batches.append((decoded, keys))
                return True
        self.ended = True
        return False

    def lasts(self, time: int) -> bool:
        """Return whether there is a segment after this time."""
        while self.last <= time and not self.ended:
            self.read()
        return self.last > time

    def ends_at(self, capture: Capture) -> bool:
        """Return whether a capture may continue this one: it overlaps it hardly, or as packets here are out of order.

        That is twice their disorder at most: a short file may not show all of it.
        """
        slack = SLACK_NS
        if stem(self.name) == stem(capture.name) and not self.lasts(capture.begin + DISORDER_NS):
            slack = max(slack, min(2 * self.disorder, DISORDER_NS))
        return not self.lasts(capture.begin + slack)

    def take(self, time: int) -> Iterator[tuple[Decoded, Ints]]:
        """Yield what was read up to this time."""
        while self.batches:
            decoded, keys = self.batches[0]
            count = int(np.searchsorted(keys, time, "right"))
            if count < len(keys):
                if count:
                    self.batches[0] = cut(decoded, slice(count, None)), keys[count:]
                    yield cut(decoded, slice(count)), keys[:count]
                return
            yield self.batches.popleft()


def merge(captures: Iterable[Capture], points: list[int]) -> Iterator[Decoded]:
    """Yield the segments of captures as one sequence; `captures` are in order of their first packets.

    `points` receives, for each capture, the index of the first capture of the same capture point.
    """
    merger = Merger(points)
    merger.waiting.extend(captures)
    for decoded, _ in merger.segments():
        yield decoded


class Times(NamedTuple):
    """The times of segments in their order (ns): the first one, the least, the largest, and their disorder.

    `disorder` is the longest time that one of them is before the largest so far.
    """

    first: int
    least: int
    last: int
    disorder: int

    @classmethod
    def of(cls, ts_ns: Ints) -> "Times":
        """Return those of some segments (int64, at least one)."""
        disorder = int((np.maximum.accumulate(ts_ns) - ts_ns).max())
        return cls(int(ts_ns[0]), int(ts_ns.min()), int(ts_ns.max()), disorder)

    @classmethod
    def joined(cls, parts: Iterable["Times | None"]) -> "Times | None":
        """Return those of several parts, one after the other; a part without segments has none."""
        found: Times | None = None
        for part in parts:
            if found and part:
                disorder = max(found.disorder, part.disorder, found.last - part.least)
                found = cls(found.first, min(found.least, part.least), max(found.last, part.last), disorder)
            found = found or part
        return found


class Span(NamedTuple):
    """The times of a capture that was read before: of its first packet (ns), and of its segments; None without any."""

    name: str
    begin: int
    times: Times | None


class Seat(NamedTuple):
    """The place of a capture in a sequence.

    Attributes:
        point: index of the first capture of the same capture point.
        floor: where the running maximum of time begins (ns).
    """

    point: int
    floor: int


def arrange(spans: Iterable[Span]) -> list[Seat]:
    """Return the place of each capture; `spans` are in order of their first packets.

    The sequence of `merge` is that of (running maximum of time from `floor` on, index of the capture).
    """
    merger = Merger([])
    merger.waiting.extend(Capture(span.name, span.begin, partial(_outline, span)) for span in spans)
    for _ in merger.segments():
        pass
    return [Seat(*seat) for seat in zip(merger.points, merger.floors, strict=True)]


def _outline(span: Span, index: int, count: int) -> Iterator[Decoded]:
    """Yield as few segments as are out of order like those of a capture, as far as merging looks at them."""
    if span.times:
        first, least, last, disorder = span.times
        times = first, least, last, last - disorder
        segments = SegmentBatch(*np.zeros((len(SegmentBatch._fields), len(times)), np.int64))
        segments.ts_ns[:] = times
        yield Decoded(segments, np.zeros(0, np.uint8), 0)


class Merger:
    """Captures on their way to one sequence. More may be added while others wait; see `merge`.

    Args:
        points: receives, for each capture, the index of the first capture of the same capture point.
    """

    def __init__(self, points: list[int]) -> None:
        self.points = points
        self.floors: list[int] = []
        """For each capture, where its running maximum of time begins."""
        self.waiting: deque[Capture] = deque()
        self.lanes: list[_Lane] = []
        self.tails: list[_Lane] = []
        """Captures that no other one continues."""
        self._reached = -(1 << 62)

    def segments(self, until: int | None = None) -> Iterator[tuple[Decoded, Ints]]:
        """Yield the segments of the captures that wait, in order, with their running maximum of time.

        Args:
            until: nothing from this time on is taken: captures that are added later may come before it (ns).
        """
        while self.lanes or self.waiting:
            for lane in self.lanes:
                if not lane.batches and not lane.ended:
                    lane.read()
            self.lanes = [lane for lane in self.lanes if lane.batches or not lane.ended]
            is_full = len(self.lanes) >= limits.CAPTURES
            begin = self.waiting[0].begin if self.waiting and not is_full else None
            # All segments before it are taken by then, however much was read: the decision rests on times alone.
            if begin is not None and all(lane.batches and lane.batches[0][1][0] >= begin for lane in self.lanes):
                self._begin(self.waiting.popleft())
                continue
            if until is not None:
                if begin is None and all(lane.batches and lane.batches[0][1][0] >= until for lane in self.lanes):
                    return
                begin = until if begin is None else min(begin, until)
            # When too many are open, the next one opens right after the last segment of the first one that ends.
            for decoded, keys in _step(self.lanes, begin, bool(self.waiting) and is_full):
                self._reached = int(keys[-1]) if is_full else self._reached
                yield decoded, keys

    def _begin(self, capture: Capture) -> None:
        """Open a capture: it goes on where one ended, preferably of a similar name, or is of another point."""
        others = sum(not lane.ends_at(capture) for lane in self.lanes)
        before = [lane for lane in self.tails if lane.ends_at(capture)]
        like = [lane for lane in before if stem(lane.name) == stem(capture.name)]
        index = point = len(self.points)
        floor, disorder = max(capture.begin, self._reached), 0
        if before:
            lane = max(like or before, key=lambda lane: lane.last)
            self.tails.remove(lane)
            point, floor, disorder = lane.point, max(floor, lane.last), lane.disorder
        self.points.append(point)
        self.floors.append(floor)
        lane = _Lane(capture.name, point, capture.open(index, others + 1), floor, disorder)
        self.tails.append(lane)
        self.lanes.append(lane)

    @property
    def first(self) -> int | None:
        """Return the time of the first segment that waits (ns); None if none does."""
        return min((int(lane.batches[0][1][0]) for lane in self.lanes if lane.batches), default=None)

    def take_out(self) -> list[Any]:
        """Return what is needed to go on elsewhere, as plain values; captures that are open are read to their end."""
        closed = [lane for lane in self.tails if not any(lane is each for each in self.lanes)]
        state = []
        for lane in (*closed, *self.lanes):
            while lane.read():
                pass
            is_tail = any(lane is each for each in self.tails)
            own = [(_joined([decoded], np.arange(len(keys))), keys) for decoded, keys in lane.batches]
            rest = [[np.array(decoded.segments), decoded.data[: decoded.used], keys] for decoded, keys in own]
            state.append([lane.name, lane.point, lane.last, lane.disorder, is_tail, rest])
        return [self._reached, state]

    def put_back(self, state: list[Any]) -> None:
        """Go on with what `take_out` returned; captures have the indexes that they had."""
        self._reached, lanes = state
        for name, point, last, disorder, is_tail, rest in lanes:
            batches = [(Decoded(SegmentBatch(*rows), data, len(data)), keys) for rows, data, keys in rest]
            lane = _Lane(name, point, iter(()), last, disorder, deque(batches), ended=True)
            if is_tail:
                self.tails.append(lane)
            if batches:
                self.lanes.append(lane)


def stem(name: str) -> str:
    """Return a name without the numbers and times in which rotated files differ."""
    return re.sub(r"\d+", "", name)


def _step(lanes: list[_Lane], begin: int | None, until_end: bool) -> Iterator[tuple[Decoded, Ints]]:
    """Take the segments before `begin` that no later segment can precede. Of equal times, the first lane comes first.

    With `until_end`, take nothing after the end of a lane.
    """
    parts: list[tuple[Decoded, Ints]] = []
    order: list[Ints] = []
    for number, lane in enumerate(lanes):
        others = [
            other.last - (place < number)
            for place, other in enumerate(lanes)
            if other is not lane and (until_end or not other.ended)
        ]
        if begin is not None:
            others.append(begin - 1)
        for part in lane.take(min(others, default=EVER)):
            parts.append(part)
            order.append(np.full(len(part[1]), number))
    if len(parts) == 1 or len(lanes) == 1:
        yield from parts
    elif parts:
        times = np.concatenate([keys for _, keys in parts])
        rows = np.lexsort((np.concatenate(order), times))
        yield _joined([decoded for decoded, _ in parts], rows), times[rows]


def cut(decoded: Decoded, rows: slice) -> Decoded:
    """Return some of these segments. Bytes of others follow theirs, so there is no room to use."""
    return Decoded(decoded.segments.cut(rows), decoded.data[: decoded.used], decoded.used)


def _joined(parts: list[Decoded], order: Ints) -> Decoded:
    """Return several batches as one: their bytes concatenated, their segments in this order."""
    segments, chunks, at = [], [], 0
    for part in parts:
        offset, caplen = part.segments.offset, part.segments.caplen
        low, high = int(offset.min()), int((offset + caplen).max())
        chunks.append(part.data[low:high])
        segments.append(part.segments._replace(offset=offset - low + at))
        at += high - low
    data = np.empty(2 * at + (1 << 16), np.uint8)
    np.concatenate(chunks, out=data[:at])
    return Decoded(SegmentBatch.joined(segments).cut(order), data, at)
