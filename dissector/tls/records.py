"""Walk over the records of one direction: from bytes and gaps to records and what is missing of them.

A record whose header is visible has a known length, whatever part of it lies in a gap. After a gap that hides headers,
the walk searches for the next record and lets `Walk.confirm` confirm it.
Sources: RFC 5246 section 6.2.1, RFC 8446 section 5.1.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import chain, pairwise
from typing import NamedTuple

HEAD = 5
"""Bytes of the header: kind, version (2), length (2)."""
LONGEST = (1 << 14) + 2048
"""Most bytes of a record after its header."""
CHANGE, ALERT, HANDSHAKE, DATA, HEARTBEAT = range(20, 25)
LIKE_HEAD = re.compile(rb"[\x14-\x18]\x03[\x00-\x04]")


class At(NamedTuple):
    """A packet: its number, its time, and the index of its capture."""

    packet: int
    ts_ns: int
    capture: int


NOWHERE = At(0, 0, 0)


class Record(NamedTuple):
    """A record. `body` is None if only its length is needed."""

    head: bytes
    body: bytes | None
    first: At
    last: At

    @property
    def kind(self) -> int:
        """Its content type."""
        return self.head[0]

    @property
    def length(self) -> int:
        """Number of bytes after its header."""
        return self.head[3] << 8 | self.head[4]


class Lost(NamedTuple):
    """A record with bytes in a gap."""

    head: bytes
    last: At


class Gap(NamedTuple):
    """Bytes of an unknown number of records, before the next record that was found."""

    length: int
    last: At


Event = Record | Lost | Gap


class Walk:
    """The walk over one direction. `confirm` returns whether bytes after a gap begin with a record.

    It takes the bytes of the record and of a header after it, as far as they are there, and the record's length.
    """

    __slots__ = (
        "at",
        "buffered",
        "confirm",
        "doubted",
        "gap",
        "likely",
        "looked",
        "marks",
        "need",
        "skip",
        "skips_bodies",
    )

    def __init__(self, begun: bool, confirm: Callable[[bytes, int, int], bool]) -> None:
        self.confirm = confirm
        self.skips_bodies = False
        """Whether the content of data records is not needed."""
        self.buffered = bytearray()
        self.need = HEAD
        """Number of bytes from which on there is something to do."""
        self.skip = 0
        """Bytes of a record that are still to be skipped."""
        self.gap = -1 if begun else 0
        """Position from which on a record is searched for; -1: synchronised."""
        self.at = 0
        """Position of the first of `buffered` in the stream."""
        self.marks: list[tuple[int, At]] = []
        """Positions at which the bytes of each packet begin."""
        self.looked = 0
        """In a search: position up to which headers were searched for."""
        self.likely: list[tuple[int, int]] = []
        """Headers that were found: where their records would end, and begin; a heap."""
        self.doubted = -1
        """Position of the last record whose length was doubted, for no header follows it."""

    def feed(self, data: bytes | None, length: int, first: At, last: At) -> Iterable[Event]:
        """Take a chunk (None: a gap of this length); return an iterator to be read before the next chunk."""
        if data is None:
            return self._gap(length, last)
        if self.skip:
            taken = min(self.skip, length)
            self.skip -= taken
            self.at += taken
            if taken == length:
                return ()
            data = data[taken:]
        if self.gap >= 0:
            self.marks.append((self.at + len(self.buffered), first))
            self.buffered += data
            return self._search(last)
        if not self.buffered:
            return self._records(data, first, first, last)
        self.buffered += data
        if len(self.buffered) < self.need:
            return ()
        whole, began = bytes(self.buffered), self.marks[0][1]
        self.buffered.clear()
        return self._records(whole, began, first, last)

    @property
    def in_step(self) -> bool:
        """Whether record boundaries are known."""
        return self.gap < 0

    @property
    def began(self) -> At:
        """Where the current record began."""
        return self.marks[0][1] if self.marks else NOWHERE

    def leave(self, data: bytes, passed: int, skip: int, began: At) -> None:
        """Continue, synchronised, after records that others have read: with the first bytes of one, or within one."""
        self.buffered.clear()
        self.need, self.skip = HEAD, skip
        self._keep(data, passed, began)

    def _records(self, data: bytes, began: At, first: At, last: At) -> Iterable[Event]:
        """Yield the records of these bytes: the first began in an earlier packet, all others in the current one."""
        found: list[Event] = []
        at, end = 0, len(data)
        before = at, began
        self.need = HEAD
        while end - at >= HEAD:
            if not is_head(data, at):
                if found and not self.skips_bodies and self.at + before[0] > self.doubted:
                    found.pop()  # others may begin in it: the search tells
                    at, began = before
                    self.doubted = self.at + at
                self._keep(data[at:], at, began)
                self._lose(self.at)
                return chain(found, self._search(last))
            stop = at + HEAD + (data[at + 3] << 8 | data[at + 4])
            if self.skips_bodies and data[at] == DATA:
                found.append(Record(data[at : at + HEAD], None, began, last))
                if stop > end:
                    self.skip = stop - end
                    stop = end
            elif stop > end:
                self.need = stop - at
                break
            else:
                found.append(Record(data[at : at + HEAD], data[at + HEAD : stop], began, last))
            before = at, began
            at, began = stop, first
        self._keep(data[at:], at, began)
        return found

    def end(self) -> Iterable[Event]:
        """Return the records in what is buffered of one that did not end: its length may be wrong."""
        if self.gap >= 0 or len(self.buffered) < HEAD:
            return ()
        self._lose(self.at)
        return self._search(self.marks[-1][1])

    def _keep(self, data: bytes, done: int, began: At) -> None:
        """Keep what is left of bytes after the first `done` ones."""
        self.at += done
        self.marks = [(self.at, began)] if data else []
        self.buffered += data

    def _first(self, offset: int) -> At:
        """Return the packet of a byte; drop those before it."""
        marks, position = self.marks, self.at + offset
        while len(marks) > 1 and marks[1][0] <= position:
            del marks[0]
        return marks[0][1]

    def _drop(self, count: int) -> None:
        """Drop bytes at the front."""
        if count == len(self.buffered):
            self.buffered.clear()
            self.marks.clear()
        else:
            self._first(count)
            del self.buffered[:count]
        self.at += count

    def _gap(self, length: int, last: At) -> Iterator[Event]:
        held, rest = len(self.buffered), 0
        head = bytes(self.buffered[:HEAD])
        self._drop(held)
        self.need = HEAD
        if self.gap >= 0:
            self.likely.clear()
        elif self.skip or held >= HEAD:
            rest = self.skip or HEAD + (head[3] << 8 | head[4]) - held
            if not self.skip:
                yield Lost(head, last)
            self.skip = max(rest - length, 0)
        if self.gap < 0 and length > rest:
            self._lose(self.at + rest - (held if held < HEAD else 0))
        self.at += length
        self.looked = self.at

    def _lose(self, position: int) -> None:
        """Note that record boundaries are lost from here on."""
        self.gap = self.looked = position
        self.likely.clear()

    def _found(self, data: bytes, passed: int, last: At) -> Iterator[Event]:
        """Yield the records from the one that was found on; they may have begun in several packets."""
        self._drop(passed)
        marks, self.marks, begin = self.marks, [], self.at
        self.buffered.clear()
        for (start, first), (end, _) in pairwise([*marks, (begin + len(data), NOWHERE)]):
            yield from self.feed(data[max(start - begin, 0) : end - begin], end - max(start, begin), first, last)

    def _search(self, last: At) -> Iterator[Event]:
        """Search for a record; skip bytes that can belong to none."""
        data, end = self.buffered, self.at + len(self.buffered)
        for start in [found.start() for found in LIKE_HEAD.finditer(data, max(self.looked - self.at, 0))]:
            if start + HEAD <= len(data) and is_head(data, start):
                length = HEAD + (data[start + 3] << 8 | data[start + 4])
                heappush(self.likely, (self.at + start + length, self.at + start))
        self.looked = max(end - HEAD + 1, self.looked)
        while self.likely and self.likely[0][0] <= end:
            stop, start = heappop(self.likely)
            at = start - self.at
            if self.confirm(bytes(data[at : at + stop - start + HEAD]), stop - start, start - self.gap):
                gap, self.gap = start - self.gap, -1
                self.likely.clear()
                yield Gap(gap, last)
                yield from self._found(bytes(data[at:]), at, last)
                return
        # A possible header of a longer record is kept, however old it is, but not beyond the length of a record.
        self._drop(max(min(end - HEAD - LONGEST, self.looked) if self.likely else self.looked, self.at) - self.at)


def is_head(data: bytes | bytearray, at: int) -> bool:
    """Return whether a record can begin there; five bytes must be there."""
    return (
        CHANGE <= data[at] <= HEARTBEAT
        and data[at + 1] == 3
        and data[at + 2] <= 4
        and 0 < (data[at + 3] << 8 | data[at + 4]) <= LONGEST
    )


def is_followed(data: bytes, length: int) -> bool:
    """Return whether another record seems to follow one of this length, or nothing at all."""
    return length == len(data) or (length + HEAD <= len(data) and is_head(data, length))


def boundary(data: bytes, chain: int) -> int:
    """Return where this many headers of consecutive records are; -1 if nowhere."""
    for found in LIKE_HEAD.finditer(data):
        at, count = found.start(), 0
        while count < chain and at + HEAD <= len(data) and is_head(data, at):
            at += HEAD + (data[at + 3] << 8 | data[at + 4])
            count += 1
        if count == chain:
            return found.start()
    return -1
