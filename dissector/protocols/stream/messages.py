"""Messages of publishes and deliveries: the records in them, whose they are, and what is wrong with them."""

import zlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from amqpscope.dissector.fields.arrow import array, numbers, valid
from amqpscope.dissector.fields.decoding import Decoded
from amqpscope.dissector.fields.plan import Plan
from amqpscope.dissector.fields.state import Op
from amqpscope.dissector.kernels import limits
from amqpscope.dissector.kernels.arrays import Bytes, Ints
from amqpscope.dissector.kernels.coding import Coding, Target
from amqpscope.dissector.kernels.retained import Buffer
from amqpscope.dissector.protocols.amqp100.sections import Sections
from amqpscope.dissector.protocols.state import LIMIT, Fault, Place
from amqpscope.dissector.protocols.stream import layout as sl
from amqpscope.dissector.protocols.stream import names, tracking
from amqpscope.dissector.protocols.stream.records import Large, Long, Reader, Regions
from amqpscope.dissector.protocols.stream.state import (
    COUNT_WRONG,
    CRC_WRONG,
    CUT,
    DELIVERED,
    FILTERED,
    MALFORMED,
    PART,
    PUBLISHED,
    WHOLE,
    Entry,
    Frame,
    Part,
)
from amqpscope.dissector.protocols.stream.unpacking import Account, Accounts
from amqpscope.spec.model import Protocol

STATE = Coding(Long, Large, Sections, Account)
PUBLISH = 2
USER_CHUNK = 0
TRACKING_CHUNKS = (1, 2)


@dataclass(frozen=True, slots=True)
class Unread:
    """Records of which places are known, and what to do to have columns of messages. Any thread may do it."""

    reader: Reader
    data: Bytes
    records: Ints
    """As `records.Found`."""
    holder: Ints
    """(regions,) which of the frames that hold messages each region is."""
    long: list[dict[str, pa.Array]]
    """Columns of messages of long frames, which are read already."""
    order: Ints | None
    """Places of all in the order of their frames; None where they are in order."""

    def columns(self) -> tuple[dict[str, pa.Array], list[tuple[int, int, int]]]:
        """Return the columns, a row a message, and faults: which of the frames, code, value."""
        columns, faults = self.reader.columns(self.records, self.data)
        if self.order is not None:
            parts, at = [columns, *self.long], array(self.order)
            columns = {name: pa.concat_arrays([part[name] for part in parts]).take(at) for name in columns}
        return columns, [(int(self.holder[region]), code, value) for region, code, value in faults]


class StreamMessages(NamedTuple):
    """Some messages, those of a frame together: what they share stands once for each frame until rows are made."""

    rows: Ints
    """(Frame, frames)."""
    counts: Ints
    """(frames,) the number of messages that each frame holds."""
    ordinal: Ints
    """(messages,) number of records that come before it in its frame."""
    shared: dict[str, pa.Array]
    """Columns that the messages of a frame share, besides the leading ones: `frames` rows each."""
    unread: Unread
    """The other columns."""


class Records:
    """Reads the records of frames, long ones part by part."""

    def __init__(
        self, protocol: Protocol, plan: Plan, known: names.Names, compiled: bool, keep_bodies: bool, reached: set[str]
    ) -> None:
        self.known = known
        self.compiled = compiled
        self.texts = tracking.texts(protocol)
        self.reader = Reader(compiled, keep_bodies, reached)
        self.heads = np.zeros(len(protocol.methods), np.int64)
        """Bytes before the entries, of the layouts that have such; else 0."""
        self.kinds = np.zeros(len(protocol.methods), np.int64)
        for index, method in enumerate(protocol.methods):
            if method.fields and method.fields[-1].type == "rest":
                self.heads[index] = plan.ops[plan.starts[index] : plan.starts[index + 1], Op.BYTES].sum()
                filtered = FILTERED if method.version > 1 else PUBLISHED
                self.kinds[index] = filtered if method.id == PUBLISH else DELIVERED
        self.accounts: dict[tuple[int, int], Account] = {}
        self.long: dict[tuple[int, int], Long] = {}
        self.complete: dict[int, Long] = {}

    def forget(self, slots: Ints) -> None:
        """Forget connections that ended."""
        for key in _directions(slots):
            self.long.pop(key, None)
            self.accounts.pop(key, None)

    def take_out(self, slots: Ints) -> bytes:
        """Take out the long frames of connections, and their accounts."""
        return STATE.written([(self.long.pop(key, None), self.accounts.pop(key, None)) for key in _directions(slots)])

    def put_back(self, data: bytes, target: Target) -> None:
        """Put back what `take_out` took."""
        for key, (long, account) in zip(_directions(target.slots), STATE.read(data, target.captures), strict=True):
            if long:
                self.long[key] = long
            if account:
                self.accounts[key] = account

    # -------------------------------------------------------------------------------------------------- long frames

    def long_frames(self, rows: Ints, parts: Ints, buffer: Buffer) -> None:
        """Take parts of long frames, and the last part of those that are complete now.

        Of these, `rows` get the bytes before the entries, put where their fields can be read.
        """
        self.reader.unpacked.spent = 0
        ends = np.flatnonzero(rows[Frame.PARTED] > 0)
        events = [(int(parts[Part.BEFORE, k]), 0, k) for k in range(parts.shape[1])]
        for before, last, k in sorted(events + [(k, 1, k) for k in ends.tolist()]):
            if last:
                self._last(rows, before, buffer)
                continue
            key = int(parts[Part.SLOT, k]), int(parts[Part.SIDE, k])
            offset, length = int(parts[Part.OFFSET, k]), int(parts[Part.LENGTH, k])
            if parts[Part.PARTED, k] == 0:
                layout, size = int(parts[Part.LAYOUT, k]), int(parts[Part.SIZE, k])
                self.long[key] = long = self._begin(layout, buffer.data[offset : offset + 64].tobytes(), size)
                offset, length = offset + len(long.head), length - len(long.head)
            if key in self.long:
                self.reader.part(self.long[key], offset, length, buffer)
                self._bound(*key)

    def _begin(self, layout: int, content: bytes, size: int) -> Long:
        kind, head = int(self.kinds[layout]), int(self.heads[layout])
        if kind != DELIVERED:
            return Long(kind, content[:head], int.from_bytes(content[1:5], "big"), size - head, size - head)
        chunk = content[head - sl.CHUNK_HEADER :]
        data, trailer = (int.from_bytes(chunk[at : at + 4], "big") for at in (36, 40))
        if size - head not in (data, data + trailer) and size - head + 4 in (data, data + trailer):
            head -= sl.CHUNK_HEADER - sl.CHUNK_HEADER_2021
        left = int.from_bytes(chunk[2:4], "big") if chunk[1] == USER_CHUNK else 0
        return Long(kind, content[:head], left, min(data, size - head), min(data, size - head))

    def _bound(self, slot: int, side: int) -> None:
        """Drop what is too much to hold until a frame is complete."""
        long = self.long[slot, side]
        if long.held > limits.LONG_FRAME or sum(other.held for other in self.long.values()) > limits.LONG_FRAMES:
            long.given_up += max(long.waiting_bytes, 1)
            long.limited = True
            long.waiting, long.waiting_bytes, long.found, long.found_bytes = [], 0, [], 0

    def _last(self, rows: Ints, frame: int, buffer: Buffer) -> None:
        long = self.long.pop((int(rows[Frame.SLOT, frame]), int(rows[Frame.SIDE, frame])), None)
        offset, length = int(rows[Frame.OFFSET, frame]), int(rows[Frame.BODY, frame])
        if long is None:
            rows[Frame.LENGTH, frame], rows[Frame.CUT, frame] = 0, 1
            return
        self.reader.part(long, offset, length, buffer)
        rows[Frame.OFFSET, frame] = buffer.append(np.frombuffer(long.head, np.uint8))
        rows[Frame.LENGTH, frame] = len(long.head)
        rows[Frame.CUT, frame] = 0
        self.complete[frame] = long

    # ---------------------------------------------------------------------------------------------------- tracking

    def tracking(self, rows: Ints, fields: Decoded, buffer: Buffer) -> tuple[pa.Array | None, Ints]:
        """Return the column `tracking` of frames that are whole in one run (None: all null), and faults."""
        layout = rows[Frame.LAYOUT]
        kind = np.where(layout >= 0, self.kinds[layout], 0)
        head = self.heads[layout]
        body = rows[Frame.SIZE] - sl.HEAD_BYTES
        size, trailer = numbers(fields.columns["chunk_data_length"]), numbers(fields.columns["chunk_trailer_length"])
        chunk = numbers(fields.columns["chunk_type"])
        whole = (kind == DELIVERED) & (rows[Frame.PARTED] == 0) & (rows[Frame.BODY] == body)
        tracks = np.isin(chunk, TRACKING_CHUNKS) & (head + size <= body)
        trails = (chunk == USER_CHUNK) & (trailer > 0) & (head + size + trailer == body)
        frames = np.flatnonzero(whole & (tracks | trails))
        if not len(frames):
            return None, faults_of(rows, [])
        begin = rows[Frame.OFFSET] + head + np.where(tracks, 0, size)
        sizes = np.where(tracks, size, trailer)
        column, torn = tracking.render(
            buffer.data, rows.shape[1], frames, begin[frames], sizes[frames], chunk[frames], self.texts, self.compiled
        )
        wrong = [(int(frames[k]), MALFORMED, int(sizes[frames[k]])) for k in torn.tolist()]
        return column, faults_of(rows, wrong)

    # ---------------------------------------------------------------------------------------------------- messages

    def take(self, rows: Ints, fields: Decoded, buffer: Buffer) -> tuple[StreamMessages | None, Ints]:
        """Return the messages in these frames, and faults."""
        layout = rows[Frame.LAYOUT]
        kind = np.where(layout >= 0, self.kinds[layout], 0)
        head = self.heads[layout]
        data_length = numbers(fields.columns["chunk_data_length"])
        user = (kind != DELIVERED) | (numbers(fields.columns["chunk_type"]) == USER_CHUNK)
        whole = np.flatnonzero((kind > 0) & (rows[Frame.PARTED] == 0) & (rows[Frame.BODY] >= head))
        wrong: list[tuple[int, int, int]] = []
        self._check_chunks(rows, fields, whole[kind[whole] == DELIVERED], data_length, wrong, buffer)
        frames = whole[user[whole]]
        at = rows[Frame.OFFSET][frames] + head[frames]
        limit = rows[Frame.OFFSET][frames] + rows[Frame.SIZE][frames] - sl.HEAD_BYTES
        delivered = kind[frames] == DELIVERED
        limit = np.where(delivered, np.minimum(limit, at + data_length[frames]), limit)
        end = np.minimum(rows[Frame.OFFSET][frames] + rows[Frame.BODY][frames], limit)
        left = np.where(
            delivered, numbers(fields.columns["chunk_entries"])[frames], numbers(fields.columns["entry_count"])[frames]
        )
        ends = np.where(rows[Frame.MISSING][frames] > 0, CUT, WHOLE)
        regions = Regions(at, np.maximum(end, at), limit, kind[frames], ends, left.copy())
        found = self.reader.read(regions, self._accounts(rows, frames, at.copy()), buffer)
        wrong += [(int(frames[region]), code, value) for region, code, value in found.wrong]
        for k in np.flatnonzero((ends == WHOLE) & ((regions.left > 0) | (regions.at < regions.end))).tolist():
            rest = int(regions.end[k] - regions.at[k])
            code, value = (MALFORMED, rest) if rest else (COUNT_WRONG, int(left[k] - regions.left[k]))
            wrong.append((int(frames[k]), code, value))
        counted = delivered & (regions.left == 0)
        self._check_counts(fields, frames[counted], found.total[counted], wrong)
        longs = sorted(self.complete.items())
        for frame, long in longs:
            self._check_long(frame, long, rows, fields, wrong)
        self.complete.clear()
        return self._messages(rows, fields, kind, frames, found.records, longs, buffer), faults_of(rows, sorted(wrong))

    def _accounts(self, rows: Ints, frames: Ints, at: Ints) -> Accounts:
        """Return the accounts of frames of which the entries begin at these places."""
        own: dict[int, Account] = {}

        def account(region: int) -> tuple[Account, int]:
            frame = frames[region]
            if rows[Frame.SIZE, frame] > PART:  # where it does not lie together, it is read before those before it
                return own.setdefault(region, Account()), -int(at[region])
            key = int(rows[Frame.SLOT, frame]), int(rows[Frame.SIDE, frame])
            return self.accounts.setdefault(key, Account()), int(rows[Frame.POS, frame] - rows[Frame.OFFSET, frame])

        return account

    def _check_chunks(
        self, rows: Ints, fields: Decoded, frames: Ints, data_length: Ints, wrong: list[tuple[int, int, int]],
        buffer: Buffer,
    ) -> None:  # fmt: skip
        announced, trailers = numbers(fields.columns["chunk_crc"]), numbers(fields.columns["chunk_trailer_length"])
        for frame in frames.tolist():
            at = int(rows[Frame.OFFSET, frame] + self.heads[rows[Frame.LAYOUT, frame]])
            size = int(data_length[frame])
            there = int(rows[Frame.SIZE, frame]) - sl.HEAD_BYTES - int(self.heads[rows[Frame.LAYOUT, frame]])
            if there - size not in (0, int(trailers[frame])):
                wrong.append((frame, MALFORMED, abs(there - size)))
            elif at + size <= rows[Frame.OFFSET, frame] + rows[Frame.BODY, frame]:
                crc = zlib.crc32(buffer.data[at : at + size].data)
                if crc != announced[frame]:
                    wrong.append((frame, CRC_WRONG, crc))

    @staticmethod
    def _check_counts(fields: Decoded, frames: Ints, totals: Ints, wrong: list[tuple[int, int, int]]) -> None:
        announced = numbers(fields.columns["chunk_records"])[frames]
        wrong.extend(
            (int(frames[k]), COUNT_WRONG, int(totals[k])) for k in np.flatnonzero(announced != totals).tolist()
        )

    def _check_long(
        self, frame: int, long: Long, rows: Ints, fields: Decoded, wrong: list[tuple[int, int, int]]
    ) -> None:
        wrong += [(frame, code, value) for code, value in long.wrong]
        if rows[Frame.MISSING, frame] > 0:
            return
        if long.given_up:
            wrong.append((frame, LIMIT if long.limited else MALFORMED, long.given_up))
            return
        if long.left > 0:
            wrong.append((frame, COUNT_WRONG, long.records))
        if long.kind == DELIVERED:
            if long.crc != int(numbers(fields.columns["chunk_crc"])[frame]):
                wrong.append((frame, CRC_WRONG, long.crc))
            user = int(numbers(fields.columns["chunk_type"])[frame]) == USER_CHUNK
            if user and not long.left and long.records != int(numbers(fields.columns["chunk_records"])[frame]):
                wrong.append((frame, COUNT_WRONG, long.records))

    def _messages(
        self, rows: Ints, fields: Decoded, kind: Ints, frames: Ints, records: Ints, longs: list[tuple[int, Long]],
        buffer: Buffer,
    ) -> StreamMessages | None:  # fmt: skip
        frame, ordinal, order = frames[records[Entry.REGION]], records[Entry.ORDINAL], None
        parts = [(number, part) for number, long in longs for part in long.found]
        if parts:
            frame = np.concatenate([frame, *(np.full(len(index), number) for number, (index, _) in parts)])
            ordinal = np.concatenate([ordinal, *(index for _, (index, _) in parts)])
            order = np.argsort(frame, kind="stable")
            frame, ordinal = frame[order], ordinal[order]
        firsts = np.flatnonzero(np.diff(frame, prepend=-1))  # frames ascend
        counts = np.diff(firsts, append=len(frame))
        holders = frame[firsts]
        delivered = kind[holders] == DELIVERED
        publisher, subscription = (numbers(fields.columns[f"{of}_id"])[holders] for of in ("publisher", "subscription"))
        ids = np.where(delivered, subscription + names.SUBSCRIPTIONS, publisher)
        meaning, table = self.known.meanings(rows, fields, holders, ids)  # which notes what the frames show
        if not len(holders):
            return None
        chunk = numbers(fields.columns["chunk_id"])[holders]
        placed = delivered & valid(fields.columns["chunk_id"])[holders]
        times = numbers(fields.columns["chunk_timestamp"])[holders]
        sane = delivered & (np.abs(times) < (1 << 63) // 1_000_000)
        shared = names.columns(meaning, table, delivered) | {
            "kind": array(["publish", "deliver"]).take(array(delivered.astype(np.int64))),
            "publisher_id": array(publisher.astype(np.int32), mask=delivered),
            "subscription_id": array(subscription.astype(np.int32), mask=~delivered),
            "chunk_id": array(chunk, mask=~placed),
            "chunk_ts_ns": array(np.where(sane, times, 0) * 1_000_000, mask=~sane),
        }
        holder = np.searchsorted(holders, frames)
        unread = Unread(self.reader, buffer.data, records, holder, [columns for _, (_, columns) in parts], order)
        return StreamMessages(rows[:, holders], counts, ordinal, shared, unread)


def _directions(slots: Ints) -> list[tuple[int, int]]:
    return [(slot, side) for slot in slots.tolist() for side in range(2)]


def faults_of(rows: Ints, wrong: list[tuple[int, int, int]]) -> Ints:
    """Return rows of faults for frames: (frame, code, value)."""
    faults = np.zeros((Fault.WIDTH, len(wrong)), np.int64)
    if not wrong:
        return faults[:, :0]
    frame, code, value = np.array(wrong, np.int64).T
    faults[Fault.CODE], faults[Fault.VALUE], faults[Fault.CHANNEL] = code, value, -1
    faults[Fault.POS] = rows[Frame.POS][frame]
    faults[: Place.WIDTH] = rows[: Place.WIDTH, frame]
    return faults
