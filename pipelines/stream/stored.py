"""What a broker has stored of publishers' ids, as far as a capture shows: the basis of `deduplicated`.

A broker keeps the highest publishing id for each stream and publisher reference, over reconnections, and drops what is
not above it. What each event does to what is known of a reference:

| event | what it does |
|---|---|
| create or delete of the stream, done | nothing is stored, of any reference |
| answer to query-publisher-sequence | that is stored, and nothing above; 0 may also mean that nothing is |
| a publisher begins | what is known then holds for it; while another is active, it is unknown what is not stored |
| it ends | what was confirmed is stored; whether ids without an answer are is unknown |

`stream_confirms` has a book of the open connection alone, and reports what happened as partial results (PARTIAL, few
rows of numbers). `verdicts` reads these of all connections, in the order of time, into one book, and `resolve` fills in
what the connection alone did not decide. Streams (column `stream`) may go to several tasks: verdicts of all are their
union.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.model.credit import NEVER
from amqpscope.pipelines.model.digests import combined

PARTIAL = "stream_references"
"""Name of the partial results."""
RENEWED, REPORTED, BEGUN, ENDED = range(4)
"""Kinds of partial results: the stream is new, the broker reported, a publisher began, and ended."""


class FACT(Matrix):
    """Columns of a partial result, all int64."""

    CONNECTION_ID = column("connection_id")
    FRAME_NO = column("frame_no")
    TS_NS = column("ts_ns")
    KIND = column("RENEWED, REPORTED, BEGUN, ENDED")
    STREAM = column("digest of its name")
    REFERENCE = column("digest of stream and reference; 0 for RENEWED")
    PUBLISHER_ID = column("of BEGUN and ENDED, else -1")
    PUBLISHER_EPOCH = column("of BEGUN and ENDED, else -1")
    STORED = column("REPORTED: the answer; ENDED: the highest id that was confirmed; -1 for none")
    SENT = column("ENDED: the highest id that may be stored; NEVER where that is unknown")
    UNSURE = column("ENDED: 1 where the order of sending is uncertain, because ids were refused")


ENTRIES = 1 << 9
"""Of the book of one connection: beyond that, all is forgotten."""
SCHEMA = pa.schema([(name.lower(), pa.int64()) for name in FACT.columns])
VERDICTS = pa.schema(
    [(name, pa.int64()) for name in ("connection_id", "publisher_id", "publisher_epoch", "stored", "above")]
)
"""Of a publisher: ids up to `stored` were stored before it began, ids above `above` were not (NEVER: not known)."""


@dataclass(slots=True)
class Entry:
    """What a book has of a stream, or of a publisher reference.

    Attributes:
        generation: number of times that the stream began anew; of a reference, that number when it was noted.
        stored: the highest id that is certainly stored; -1: none.
        above: ids above are certainly not stored; NEVER: unknown.
        active: publishers that have begun and not ended.
    """

    generation: int = 0
    stored: int = -1
    above: int = NEVER
    active: int = 0


class Book:
    """Entries by digest of a stream, or of stream and reference; `limit`: beyond that, all is forgotten."""

    def __init__(self, limit: int = ENTRIES) -> None:
        self._entries: dict[int, Entry] = {}
        self._limit = limit
        self.forget = self._entries.clear

    def _entry(self, key: int) -> Entry:
        if key not in self._entries:
            if len(self._entries) >= self._limit:
                self.forget()
            self._entries[key] = Entry()
        return self._entries[key]

    def _noted(self, stream: int, reference: int) -> Entry:
        """Return the entry of a reference, with what holds for it since its stream began anew."""
        found, of = self._entry(reference), self._entries.get(stream)
        generation = of.generation if of else 0
        if found.generation != generation:
            found.generation, found.stored, found.above, found.active = generation, -1, -1, 0
        return found

    def renew(self, stream: int) -> None:
        """Note that a stream was created or deleted."""
        self._entry(stream).generation += 1

    def report(self, stream: int, reference: int, number: int) -> None:
        """Note the broker's answer on how far a reference is stored."""
        entry = self._noted(stream, reference)
        entry.stored = number if number > 0 else -1
        if number > 0 or entry.above > 0:
            entry.above = number

    def begin(self, stream: int, reference: int) -> tuple[int, int, int]:
        """Begin a publisher: return what is stored, above what nothing is, and of which generation that is."""
        entry = self._noted(stream, reference)
        entry.active += 1
        return entry.stored, entry.above if entry.active == 1 else NEVER, entry.generation

    def end(self, stream: int, reference: int, generation: int, stored: int, sent: int) -> None:
        """End a publisher of that generation, of which ids up to `stored` are stored, and up to `sent` may be."""
        entry = self._noted(stream, reference)
        if entry.generation == generation:
            entry.active = max(entry.active - 1, 0)
            entry.stored, entry.above = max(entry.stored, stored), max(entry.above, sent)

    def parts(self) -> list[Any]:
        """Return what `put_back` takes."""
        return [[key, *astuple(entry)] for key, entry in self._entries.items()]

    def put_back(self, parts: list[Any]) -> None:
        """Restore what `parts` returned."""
        self._entries.update((key, Entry(*entry)) for key, *entry in parts)


def verdicts(partial: pa.Table) -> pa.Table:
    """Return for each publisher what was stored before it began.

    Args:
        partial: partial results of all connections (SCHEMA), in any order; all of a stream are there.

    Returns:
        Rows of VERDICTS, one per publisher with a reference.
    """
    facts = np.stack([each.to_numpy() for each in partial.select(SCHEMA.names).columns], 1) if len(partial) else _none()
    order = np.lexsort(
        (facts[:, FACT.KIND], facts[:, FACT.FRAME_NO], facts[:, FACT.CONNECTION_ID], facts[:, FACT.TS_NS])
    )
    facts = np.ascontiguousarray(facts[order])
    names = facts[:, [FACT.CONNECTION_ID, FACT.PUBLISHER_ID, FACT.PUBLISHER_EPOCH]]
    known, who = np.unique(names, axis=0, return_inverse=True)
    found = np.full((len(known), 4), (-1, NEVER, -1, 0), np.int64)
    """Stored, above, generation (-1: not begun), unsure."""
    book = Book(2 * len(facts) + 1)
    for row, each in zip(facts.tolist(), who.reshape(-1).tolist(), strict=True):
        kind, stream, reference = row[FACT.KIND], row[FACT.STREAM], row[FACT.REFERENCE]
        if kind == RENEWED:
            book.renew(stream)
        elif kind == REPORTED:
            book.report(stream, reference, row[FACT.STORED])
        elif kind == BEGUN:
            found[each, :3] = book.begin(stream, reference)
        elif found[each, 2] >= 0:
            book.end(stream, reference, int(found[each, 2]), row[FACT.STORED], row[FACT.SENT])
            found[each, 3] = row[FACT.UNSURE]
            if row[FACT.SENT] == NEVER:
                found[each, 1] = NEVER
    begun = (found[:, 2] >= 0) & (found[:, 3] == 0)
    columns = (*known[begun].T, found[begun, 0], found[begun, 1])
    return pa.table([pa.array(np.ascontiguousarray(column)) for column in columns], schema=VERDICTS)


def _none() -> Any:
    return np.zeros((0, FACT.WIDTH), np.int64)


def undecided(confirms: pa.Table) -> Any:
    """Return which rows of `confirms` (bool, numpy) other connections may decide."""
    found = pc.and_(pc.is_null(confirms["deduplicated"]), pc.equal(confirms["outcome"], "ack"))
    for name in ("publisher_reference", "publish_seq", "publisher_epoch"):
        found = pc.and_(found, pc.is_valid(confirms[name]))
    return found.to_numpy()


def resolve(confirms: pa.Table, found: pa.Table) -> pa.Table:
    """Fill in `deduplicated` where a connection alone did not decide it.

    Args:
        confirms: rows of `confirms`, any of them.
        found: `verdicts` of all connections.
    """
    at = np.flatnonzero(undecided(confirms))
    if not len(at) or not len(found):
        return confirms
    names = ("connection_id", "publisher_id", "publisher_epoch")
    rows = confirms.select([*names, "publish_seq"]).take(pa.array(at))
    mine, theirs = (combined([each[name] for name in names]) for each in (rows, found))
    order = np.argsort(theirs)
    place = order[np.minimum(np.searchsorted(theirs[order], mine), len(order) - 1)]
    known = theirs[place] == mine
    sequence = rows["publish_seq"].to_numpy()
    stored = known & (sequence <= found["stored"].to_numpy()[place])
    fresh_ = known & (sequence > found["above"].to_numpy()[place])
    decided = at[stored | fresh_]
    value, mask = np.zeros(len(confirms), np.bool_), np.ones(len(confirms), np.bool_)
    value[at[stored]] = True
    mask[decided] = False
    column = pc.coalesce(confirms["deduplicated"], pa.array(value, mask=mask))
    return confirms.set_column(confirms.column_names.index("deduplicated"), "deduplicated", column)
