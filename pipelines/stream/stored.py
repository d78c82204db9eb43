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

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.pipelines.model import lookup as lu
from amqpscope.pipelines.model.credit import NEVER
from amqpscope.pipelines.model.digests import combined
from amqpscope.pipelines.model.store import declare

PARTIAL = "stream_references"
"""Name of the partial results."""
RENEWED, REPORTED, BEGUN, ENDED = range(4)
"""Kinds of partial results: the stream is new, the broker reported, a publisher began, and ended."""


class Fact(NamedTuple):
    """Columns of a partial result, all int64."""

    connection_id: int
    frame_no: int
    ts_ns: int
    kind: int  # RENEWED, REPORTED, BEGUN, ENDED
    stream: int  # digest of its name
    reference: int  # digest of stream and reference; 0 for RENEWED
    publisher_id: int  # of BEGUN and ENDED, else -1
    publisher_epoch: int
    stored: int  # REPORTED: the answer; ENDED: the highest id that was confirmed; -1 for none
    sent: int  # ENDED: the highest id that may be stored; NEVER where that is unknown
    unsure: int  # ENDED: 1 where the order of sending is uncertain, because ids were refused


class Entry(NamedTuple):
    """Columns of a book."""

    KEY: int  # digest of a stream, or of stream and reference
    GENERATION: int  # number of times that the stream began anew; of a reference, that number when it was noted
    STORED: int  # the highest id that is certainly stored; -1: none
    ABOVE: int  # ids above are certainly not stored; NEVER: unknown
    ACTIVE: int  # publishers that have begun and not ended


FACT, BK = declare(Fact), declare(Entry)
ENTRIES = 1 << 9
"""Of the book of one connection: beyond that, all is forgotten."""
SCHEMA = pa.schema([(name, pa.int64()) for name in Fact._fields])
VERDICTS = pa.schema(
    [(name, pa.int64()) for name in ("connection_id", "publisher_id", "publisher_epoch", "stored", "above")]
)
"""Of a publisher: ids up to `stored` were stored before it began, ids above `above` were not (NEVER: not known)."""
Book = tuple[Array, Array, Array]
"""A table that finds entries (`lookup`), these (BK), and their number."""


def fresh(entries: int = ENTRIES) -> Book:
    """Return an empty book for this many entries."""
    return whole(np.zeros((0, len(BK)), np.int64), entries)


def whole(used: Ints, entries: int = ENTRIES) -> Book:
    """Return a book with these entries (`part`), and room for this many in all."""
    rows = np.zeros((entries, len(BK)), np.int64)
    rows[: len(used)] = used
    return lu.table_of(rows, BK.KEY, len(used)), rows, np.array([len(used)], np.int64)


def part(book: Book) -> Ints:
    """Return the entries that are used: for the state of a walk."""
    used: Ints = book[1][: book[2][0]]
    return used


@kernel
def forget(book: Book) -> None:
    """Empty a book."""
    table, entries, count = book
    lu.clear(table, entries, BK.KEY, count[0])
    count[0] = 0


@kernel
def entered(book: Book, key: int) -> int:
    """Return the entry of a key, which is added if it is not there; if there is no room the book is emptied first."""
    table, entries, count = book
    at = lu.row_of(table, entries, BK.KEY, key)
    if at < 0:
        if count[0] >= len(entries):
            forget(book)
        at = count[0]
        count[0] += 1
        entries[at, BK.KEY] = key
        entries[at, BK.GENERATION] = 0
        entries[at, BK.STORED] = -1
        entries[at, BK.ABOVE] = NEVER
        entries[at, BK.ACTIVE] = 0
        lu.enter(table, entries, BK.KEY, at)
    return at


@kernel
def renew(book: Book, stream: int) -> None:
    """Note that a stream was created or deleted."""
    at = entered(book, stream)
    book[1][at, BK.GENERATION] += 1


@kernel
def noted(book: Book, stream: int, reference: int) -> int:
    """Return the entry of a reference, with what holds for it since its stream began anew."""
    table, entries, _ = book
    at = entered(book, reference)
    of = lu.row_of(table, entries, BK.KEY, stream)
    generation = entries[of, BK.GENERATION] if of >= 0 else 0
    if entries[at, BK.GENERATION] != generation:
        entries[at, BK.GENERATION] = generation
        entries[at, BK.STORED] = -1
        entries[at, BK.ABOVE] = -1
        entries[at, BK.ACTIVE] = 0
    return at


@kernel
def report(book: Book, stream: int, reference: int, number: int) -> None:
    """Note the broker's answer on how far a reference is stored."""
    entries = book[1]
    at = noted(book, stream, reference)
    entries[at, BK.STORED] = number if number > 0 else -1
    if number > 0 or entries[at, BK.ABOVE] > 0:
        entries[at, BK.ABOVE] = number


@kernel
def begin(book: Book, stream: int, reference: int) -> tuple[int, int, int]:
    """Begin a publisher: return what is stored, above what nothing is, and of which generation that is."""
    entries = book[1]
    at = noted(book, stream, reference)
    entries[at, BK.ACTIVE] += 1
    above = entries[at, BK.ABOVE] if entries[at, BK.ACTIVE] == 1 else NEVER
    return entries[at, BK.STORED], above, entries[at, BK.GENERATION]


@kernel
def end(book: Book, stream: int, reference: int, generation: int, stored: int, sent: int) -> None:
    """End a publisher of that generation, of which ids up to `stored` are stored, and up to `sent` may be."""
    entries = book[1]
    at = noted(book, stream, reference)
    if entries[at, BK.GENERATION] == generation:
        entries[at, BK.ACTIVE] = max(entries[at, BK.ACTIVE] - 1, 0)
        entries[at, BK.STORED] = max(entries[at, BK.STORED], stored)
        entries[at, BK.ABOVE] = max(entries[at, BK.ABOVE], sent)


def read(facts: Any, publishers: Any, book: Book, found: Any) -> None:
    """Read partial results in the order of time, which are few.

    Args:
        facts: FACT, each of one publisher at most once BEGUN and at most once ENDED.
        publishers: int64 per fact: number of the publisher.
        book: empty.
        found: int64 per publisher: stored, above, generation (-1: not begun), unsure; is written.
    """
    for i in range(len(facts)):
        kind, stream, reference = facts[i, FACT.kind], facts[i, FACT.stream], facts[i, FACT.reference]
        who = publishers[i]
        if kind == RENEWED:
            renew(book, stream)
        elif kind == REPORTED:
            report(book, stream, reference, facts[i, FACT.stored])
        elif kind == BEGUN:
            stored, above, generation = begin(book, stream, reference)
            found[who, 0] = stored
            found[who, 1] = above
            found[who, 2] = generation
        elif found[who, 2] >= 0:
            end(book, stream, reference, found[who, 2], facts[i, FACT.stored], facts[i, FACT.sent])
            found[who, 3] = facts[i, FACT.unsure]
            if facts[i, FACT.sent] == NEVER:
                found[who, 1] = NEVER


def verdicts(partial: pa.Table) -> pa.Table:
    """Return for each publisher what was stored before it began.

    Args:
        partial: partial results of all connections (SCHEMA), in any order; all of a stream are there.

    Returns:
        Rows of VERDICTS, one per publisher with a reference.
    """
    facts = np.stack([partial[name].to_numpy() for name in Fact._fields], 1) if len(partial) else _none()
    order = np.lexsort(
        (facts[:, FACT.kind], facts[:, FACT.frame_no], facts[:, FACT.connection_id], facts[:, FACT.ts_ns])
    )
    facts = np.ascontiguousarray(facts[order])
    names = facts[:, [FACT.connection_id, FACT.publisher_id, FACT.publisher_epoch]]
    known, who = np.unique(names, axis=0, return_inverse=True)
    found = np.full((len(known), 4), (-1, NEVER, -1, 0), np.int64)
    book = fresh(2 * len(facts) + 1)
    call(read, False, facts, who.astype(np.int64).reshape(-1), book, found)
    begun = (found[:, 2] >= 0) & (found[:, 3] == 0)
    columns = (*known[begun].T, found[begun, 0], found[begun, 1])
    return pa.table([pa.array(np.ascontiguousarray(column)) for column in columns], schema=VERDICTS)


def _none() -> Any:
    return np.zeros((0, len(FACT)), np.int64)


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
