"""Records of publishes and chunks: their entries read, sub-batches opened, counts and CRCs checked.

Bytes of a frame that lie together are a region. Most frames are one; a long one comes in parts, of which each is a
region with what its predecessor left over, so that a frame never lies together as a whole.
"""

import zlib
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.fields import columns, text
from amqpscope.dissector.fields.arrow import array
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Array, Bytes, Ints
from amqpscope.dissector.kernels.hashing import hash_begin, hash_end, hash_feed
from amqpscope.dissector.kernels.kernel import call
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.protocols.amqp100 import section_walk, sections
from amqpscope.dissector.protocols.amqp100.state import Body
from amqpscope.dissector.protocols.state import LIMIT
from amqpscope.dissector.protocols.stream import coding, entries
from amqpscope.dissector.protocols.stream.state import (
    COUNT_WRONG,
    DELIVERED,
    FAULTS,
    FIELD_FAULTS,
    FILTERED,
    ID_TOO_LARGE,
    MESSAGE_MALFORMED,
    MORE,
    PUBLISHED,
    UNREADABLE,
    WHOLE,
    Entry,
)
from amqpscope.dissector.protocols.stream.unpacking import Account, Accounts, Unpacked

ID_BYTES = 8
ENTRY_BYTES = 12
"""Of a published entry, at least."""
LARGE_HEAD = 64
"""Bytes of a long entry that must be there before it is hashed as it comes: they show what it begins with."""


class Regions(NamedTuple):
    """Bytes to read: (n,) each, as `entries.read_entries` has them, and the CRC and count that the chunk says."""

    at: Ints
    end: Ints
    limit: Ints
    kind: Ints
    ends: Ints
    left: Ints


class Found(NamedTuple):
    """Records of some regions."""

    records: Ints
    """(layout.Entry.WIDTH, n): sub-batches are opened, as far as they can be."""
    wrong: list[tuple[int, int, int]]
    """Region, fault and its value."""
    total: Ints
    """(regions,) records announced by the entries that were read."""


@dataclass
class Long:
    """A publish or delivery of which parts have come."""

    kind: int
    head: bytes
    """The bytes before the entries."""
    left: int
    """Entries still to come."""
    size: int
    """Bytes of all entries."""
    data_left: int
    """Bytes of entries still to come."""
    crc: int = 0
    records: int = 0
    waiting: list[Array] = field(default_factory=list)
    """Bytes of an entry that is not complete."""
    waiting_bytes: int = 0
    need: int = 0
    """Bytes that this entry has, as far as is known."""
    found: list[tuple[Ints, dict[str, pa.Array]]] = field(default_factory=list)
    found_bytes: int = 0
    wrong: list[tuple[int, int]] = field(default_factory=list)
    given_up: int = 0
    """Bytes skipped, because a bound was reached or the entries were broken."""
    limited: bool = False
    """It was a bound."""
    account: Account = field(default_factory=Account)
    large: "Large | None" = None

    @property
    def held(self) -> int:
        """Bytes that are kept until the frame is complete."""
        return self.waiting_bytes + self.found_bytes

    def add(self, ordinals: Ints, made: dict[str, pa.Array]) -> None:
        """Add messages, by their ordinals and columns."""
        self.found.append((ordinals, made))
        self.found_bytes += sum(array.nbytes for array in made.values())


@dataclass
class Large:
    """A message that is too long to be put together: it is hashed as it comes."""

    number: int | None
    size: int
    left: int
    held: sections.Sections
    """What its first bytes show."""
    lanes: Array
    tail: Array

    @property
    def hashed(self) -> bool:
        """The body is in one run up to the record's end, so that it can be hashed."""
        return bool(self.held.body[Body.KIND, 0] in (section_walk.RAW, section_walk.DATA))


class Reader:
    """Reads regions."""

    def __init__(self, compiled: bool, keep_bodies: bool, reached: set[str]) -> None:
        self.compiled = compiled
        self.keep_bodies = keep_bodies
        self.unpacked = Unpacked(reached)

    def read(self, regions: Regions, accounts: Accounts, buffer: Buffer) -> Found:
        """Read all records; `at` and `left` of the regions move on as far as was read."""
        begins, lefts = regions.at.copy(), regions.left.copy()
        found = self._entries(regions, buffer)
        retry = np.flatnonzero((regions.kind == FILTERED) & ~_done(regions) & (regions.ends == WHOLE))
        if len(retry):
            regions.at[retry], regions.left[retry] = begins[retry], lefts[retry]
            found = found[:, ~np.isin(found[Entry.REGION], retry)]
            parts = [found, self._without_filters(regions, retry, buffer), self._entries(regions, buffer)]
            joined = np.concatenate(parts, axis=1)
            found = np.ascontiguousarray(joined[:, np.argsort(joined[Entry.REGION], kind="stable")])
        return self._opened(found, len(regions.at), accounts, buffer)

    def _entries(self, regions: Regions, buffer: Buffer) -> Ints:
        least = np.where(regions.kind == DELIVERED, 4, ENTRY_BYTES)
        room = int(np.minimum(regions.left, np.maximum(regions.end - regions.at, 0) // least).sum())
        found = np.empty((Entry.WIDTH, room), np.int64)
        n = call(
            entries.read_entries, self.compiled, buffer.data, regions.at, regions.end, regions.limit, regions.kind,
            regions.ends, regions.left, found,
        )  # fmt: skip
        return found if n == room else np.ascontiguousarray(found[:, :n])

    def _without_filters(self, regions: Regions, retry: Ints, buffer: Buffer) -> Ints:
        """Read entries again without filter values, which some clients leave out, in all entries of a frame or in some.

        What fits so is read, and its regions are done.
        """
        found = np.empty((Entry.WIDTH, 0), np.int64)
        for read in (self._plain, self._mixed):
            size = (regions.end - regions.at)[retry]
            retry = retry[(regions.left[retry] > 0) & (regions.left[retry] * ENTRY_BYTES <= size)]
            some = Regions(*(column[retry] for column in regions))
            made = read(some, buffer)
            good = _done(some)
            regions.at[retry[good]] = some.at[good]
            regions.left[retry[good]] = 0
            made = made[:, good[made[Entry.REGION]]].copy()
            made[Entry.REGION] = retry[made[Entry.REGION]]
            found = np.concatenate([found, made], axis=1)
        return found

    def _plain(self, regions: Regions, buffer: Buffer) -> Ints:
        regions.kind[:] = PUBLISHED
        return self._entries(regions, buffer)

    def _mixed(self, regions: Regions, buffer: Buffer) -> Ints:
        found = np.empty((Entry.WIDTH, int(regions.left.sum())), np.int64)
        start, plain = (np.empty(int(regions.left.max(initial=0)), np.int64) for _ in range(2))
        n = call(
            entries.read_mixed, self.compiled, buffer.data, regions.at, regions.end, regions.left, found, start, plain
        )
        return found[:, :n]

    def _opened(self, found: Ints, n: int, accounts: Accounts, buffer: Buffer) -> Found:
        """Replace sub-batches by their records."""
        lasts = np.flatnonzero(np.diff(found[Entry.REGION], append=-1))
        total = np.zeros(n, np.int64)
        total[found[Entry.REGION, lasts]] = (found[Entry.ORDINAL] + found[Entry.COUNT])[lasts]
        batches = np.flatnonzero(found[Entry.CODING] >= 0)
        wrong: list[tuple[int, int, int]] = []
        records = found
        if len(batches):
            readable = np.ones(found.shape[1], np.bool_)
            at, counts = self._unpack(found, batches, readable, wrong, accounts, buffer)
            found[Entry.OPEN] = readable
            there = np.where(readable[batches], counts, 1)
            records = np.empty((Entry.WIDTH, found.shape[1] + int(there.sum()) - len(batches)), np.int64)
            call(entries.open_batches, self.compiled, buffer.data, found, batches, at, counts, records)
        large = found[Entry.REGION, found[Entry.LARGE] == 1]
        wrong += [(r, ID_TOO_LARGE, 0) for r in np.unique(large).tolist()]
        return Found(records, wrong, total)

    def _unpack(
        self, found: Ints, batches: Ints, readable: Array, wrong: list[tuple[int, int, int]], accounts: Accounts,
        buffer: Buffer,
    ) -> tuple[Ints, Ints]:  # fmt: skip
        at, size = found[Entry.OFFSET][batches].copy(), found[Entry.LENGTH][batches].copy()
        kinds, announced = found[Entry.CODING][batches], found[Entry.SIZE][batches]
        readable[batches] = found[Entry.MISSING][batches] == 0
        packed = readable[batches] & (kinds != coding.NONE)
        parts: list[bytes] = []
        total = 0
        held = buffer.data.data
        some = np.flatnonzero(packed)
        region, rows = found[Entry.REGION][batches], found[Entry.COUNT][batches] * limits.RECORD
        for k, begin, length, kind, wanted, of, cost in zip(
            *(each[some].tolist() for each in (np.arange(len(at)), at, size, kinds, announced, region, rows)),
            strict=True,
        ):
            account, origin = accounts(of)
            most = cost + max(wanted, 0)
            fits = account.fits(origin + begin, most) and self.unpacked.fits(most)
            data = coding.unpack(held[begin : begin + length], kind, wanted) if fits else None
            if fits:
                spent = cost + (max(wanted, 0) if data is None else len(data))
                account.spent += spent
                self.unpacked.spent += spent
            if data is None:
                readable[batches[k]] = False
                wrong.append((of, *((UNREADABLE, kind) if fits else (LIMIT, length))))
                continue
            at[k], size[k] = total, len(data)
            total += len(data)
            parts.append(data)
        opened = readable[batches] & packed
        at[opened] += buffer.append(np.frombuffer(b"".join(parts), np.uint8))
        size[~readable[batches]] = 0
        counts = np.zeros(len(batches), np.int64)
        most = found[Entry.COUNT][batches]
        call(entries.count_inner, self.compiled, buffer.data, at, size, most, counts)
        torn = counts < 0
        counts = np.where(torn, ~counts, counts)
        other = np.flatnonzero((torn | (counts != found[Entry.COUNT][batches])) & readable[batches])
        wrong.extend((int(found[Entry.REGION, batches[k]]), COUNT_WRONG, int(counts[k])) for k in other.tolist())
        return at, counts

    def columns(
        self, records: Ints, data: Bytes, before: int = 0
    ) -> tuple[dict[str, pa.Array], list[tuple[int, int, int]]]:
        """Return the columns of messages that records hold, and what is wrong in them: region, fault, count.

        Touches no state: any thread may do it.

        Args:
            records: as `Found`.
            data: the bytes that they lie in.
            before: records of the frame that came before its region.
        """
        n = records.shape[1]
        places, lengths, missing = records[Entry.OFFSET], records[Entry.LENGTH], records[Entry.MISSING]
        held = sections.read(data, places, lengths, missing, self.compiled)
        hashes = sections.hashes(data, places, lengths, held, self.compiled)
        sealed, partial = records[Entry.OPEN] == 0, missing > 0
        filtered = np.flatnonzero(records[Entry.FILTER_LENGTH] >= 0)
        spans = records[Entry.FILTER][filtered], records[Entry.FILTER_LENGTH][filtered]
        texts = text.gather(data, *spans, self.compiled)
        made = held.columns | {
            "publish_seq": array(records[Entry.NUMBER], mask=records[Entry.LARGE] != 0),
            "entry": array((records[Entry.FIRST] + before).astype(np.int32)),
            "record_size": array(lengths + missing, mask=sealed),
            "body_size": array(held.body[Body.SIZE], mask=sealed | (held.body[Body.SIZE] < 0)),
            "body_hash": array(hashes.view(np.int64), mask=sealed | partial),
            "is_partial": array(partial),
            "missing": array(missing),
            "filter_value": columns.texts(
                columns.validity(n, filtered), filtered, texts.sizes, texts.data, self.compiled
            ),
        }
        if self.keep_bodies:
            there = (~sealed & ~partial).tolist()
            spans_of = np.stack([places, lengths, *held.body[[Body.AT, Body.SIZE, Body.SECTIONS]]], axis=1).tolist()
            bodies = [
                sections.body(data, *span)[: limits.BODY] if whole else None
                for span, whole in zip(spans_of, there, strict=True)
            ]
            made["body"] = array(bodies, pa.binary())
        if sealed.any():
            made["body_kind"] = pc.if_else(array(sealed), None, made["body_kind"])
        return made, self._faults(records[Entry.REGION], ~sealed, held)

    @staticmethod
    def _faults(region: Ints, readable: Array, held: sections.Sections) -> list[tuple[int, int, int]]:
        broken = np.flatnonzero((held.body[Body.KIND] == section_walk.BROKEN) & readable)
        codes = [np.full(len(broken), MESSAGE_MALFORMED), FIELD_FAULTS[held.problems[:, 1]]]
        records = np.concatenate([broken, held.problems[:, 0]])
        if not len(records):
            return []
        keys = region[records] * len(FAULTS) + np.concatenate(codes)
        found, counts = np.unique(keys, return_counts=True)
        pairs = zip(found.tolist(), counts.tolist(), strict=True)
        return [(*divmod(key, len(FAULTS)), count) for key, count in pairs]

    # ------------------------------------------------------------------------------------------------- long frames

    def part(self, long: Long, offset: int, length: int, buffer: Buffer) -> None:
        """Take bytes of a long frame, `length` of them from `offset` on."""
        length = min(length, long.data_left)
        if long.kind == DELIVERED:
            long.crc = zlib.crc32(buffer.data[offset : offset + length].data, long.crc)
        long.data_left -= length
        if long.large is not None:
            taken = self._hash(long, long.large, offset, length, buffer)
            offset, length = offset + taken, length - taken
        if long.given_up or (length == 0 and not long.waiting):
            long.given_up += length if long.given_up else 0
            return
        long.waiting.append(buffer.data[offset : offset + length].copy())
        long.waiting_bytes += length
        if long.waiting_bytes >= long.need or long.data_left == 0:
            self._waiting(long, buffer)

    def _waiting(self, long: Long, buffer: Buffer) -> None:
        at = buffer.append(np.concatenate(long.waiting))
        end = at + long.waiting_bytes
        one = np.ones(1, np.int64)
        regions = Regions(
            one * at, one * end, one * (end + long.data_left), one * long.kind, one * MORE, one * long.left
        )
        origin = long.size - long.data_left - end
        found = self.read(regions, lambda _: (long.account, origin), buffer)
        long.left = int(regions.left[0])
        made, faults = self.columns(found.records, buffer.data, long.records)
        if found.records.shape[1]:
            long.add(found.records[Entry.ORDINAL] + long.records, made)
        long.wrong += [(code, value) for _, code, value in found.wrong + faults]
        long.records += int(found.total[0])
        rest = int(regions.at[0])
        long.waiting = [buffer.data[rest:end].copy()] if rest < end else []
        long.waiting_bytes = end - rest
        long.need = 0
        if rest < end and long.left > 0:
            limit = end + long.data_left
            long.need = call(entries.entry_bytes, self.compiled, buffer.data, rest, end, long.kind, limit)
            if long.need > limit - rest or (long.need <= end - rest and long.data_left == 0):
                self._give_up(long)
            elif long.need > limits.PAYLOAD and end - rest < LARGE_HEAD:
                long.need = LARGE_HEAD
            elif long.need > limits.PAYLOAD:
                self._begin_large(long, rest, end, buffer)
        elif rest < end:
            self._give_up(long)

    @staticmethod
    def _give_up(long: Long) -> None:
        long.given_up = max(long.waiting_bytes, 1)
        long.waiting, long.waiting_bytes = [], 0

    def _begin_large(self, long: Long, rest: int, end: int, buffer: Buffer) -> None:
        published = long.kind != DELIVERED
        body = rest + (ID_BYTES if published else 0) + 4
        if long.kind == FILTERED or body > end or buffer.data[body - 4] >= 0x80:
            long.limited = True
            self._give_up(long)
            return
        number = int.from_bytes(buffer.data[rest : rest + ID_BYTES].tobytes(), "big")
        size = int.from_bytes(buffer.data[body - 4 : body].tobytes(), "big")
        there = min(end - body, size)
        held = sections.read(
            buffer.data, np.array([body]), np.array([there]), np.array([size - there]), self.compiled
        )  # fmt: skip
        begin = int(held.body[Body.AT, 0])
        if held.body[Body.KIND, 0] == section_walk.DATA and begin + held.body[Body.SIZE, 0] != body + size:
            held.body[Body.KIND, 0] = -1
        large = Large(
            number if published and number < 1 << 63 else None, size, size - (begin - body), held,
            np.zeros((1, 8), np.uint64), np.zeros(32, np.uint8),
        )  # fmt: skip
        call(hash_begin, self.compiled, large.lanes, 0)
        long.large, long.waiting, long.waiting_bytes, long.need = large, [], 0, 0
        self._hash(long, large, begin, end - begin, buffer)

    def _hash(self, long: Long, large: Large, offset: int, length: int, buffer: Buffer) -> int:
        take = min(length, large.left)
        call(hash_feed, self.compiled, large.lanes, large.tail, 0, buffer.data, offset, take)
        large.left -= take
        if large.left == 0:
            found = np.array([call(hash_end, self.compiled, large.lanes, large.tail, 0)], np.uint64)
            size = int(large.held.body[Body.SIZE, 0])
            made = large.held.columns | {
                "publish_seq": array([large.number], pa.int64()),
                "entry": array([long.records], pa.int32()),
                "record_size": array([large.size], pa.int64()),
                "body_size": array([size if size >= 0 else None], pa.int64()),
                "body_hash": array(found.view(np.int64), mask=np.array([not large.hashed])),
                "is_partial": array([False], pa.bool_()),
                "missing": array([0], pa.int64()),
                "filter_value": array([None], pa.string()),
            }
            if self.keep_bodies:
                made["body"] = array([None], pa.binary())
            long.add(np.array([long.records], np.int64), made)
            long.records += 1
            long.left -= 1
            long.large = None
        return take


def _done(regions: Regions) -> Array:
    """Return which regions were read to their end."""
    return (regions.left == 0) & (regions.at == regions.end)
