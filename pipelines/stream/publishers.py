"""Publishers of the open connection: what they sent, and what the broker had stored before, as far as known.

An epoch of a publisher begins with its first publish and ends when its id goes to another one, or the connection ends.
Both are partial results (`stored.FACT`), as are answers to queries, and streams that are created or deleted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.pipelines.model.connection import CONN
from amqpscope.pipelines.model.credit import NEVER
from amqpscope.pipelines.model.events import EV, what
from amqpscope.pipelines.model.store import declare
from amqpscope.pipelines.stream import stored
from amqpscope.pipelines.stream.frames import STREAM_FRAMES
from amqpscope.pipelines.stream.publications import MORE
from amqpscope.pipelines.stream.stored import BEGUN, ENDED, FACT, RENEWED, REPORTED
from amqpscope.pipelines.stream.streams import ASKED, IDS, OK

UNKNOWN, NO, YES, SENT_BEFORE = range(4)
"""Whether an id was deduplicated; SENT_BEFORE: yes, by what its publisher sent before, unless that was refused."""
QUERY = what(STREAM_FRAMES, "query-publisher-sequence")


class Publisher(NamedTuple):
    """Columns of publishers: an epoch of a publisher id."""

    ID: int
    EPOCH: int  # 0 where the declaration was not seen
    STREAM: int  # digests; REFERENCE is 0 without a reference
    REFERENCE: int
    FRAME: int  # of its last publish or answer
    TS: int
    COUNT: int  # ids that were sent
    ACKED: int  # of these confirmed
    REFUSED: int
    HIGHEST: int  # id that was sent and not refused; -1: none
    HIGHEST_ACKED: int
    HIGHEST_REFUSED: int
    STORED: int  # what `stored.begin` returned
    ABOVE: int
    GENERATION: int
    GAPS: int  # gaps in what the client sent before it was declared
    UNSURE: int  # 1: ids may have been sent before, or were refused


class Request(NamedTuple):
    """Columns of `asked`: a request whose answer reports what is stored, by the last bits of its correlation id."""

    CONNECTION: int
    CORRELATION: int
    WHAT: int
    STREAM: int
    REFERENCE: int


PUB, RQ = declare(Publisher), declare(Request)
Publishers = tuple[Any, Any, Any, Any]
"""Rows (PUB), the row of each id (-1: none), gaps of the client's before an id was declared, and the number of rows."""
Facts = tuple[Any, Any]
"""Partial results (`stored.FACT`), and their number."""


def fresh() -> tuple[Ints, Ints, Ints, Ints]:
    """Return publishers of no connection."""
    rows = np.zeros((IDS, len(PUB)), np.int64)
    return rows, np.full(IDS, -1, np.int64), np.zeros(IDS, np.int64), np.zeros(1, np.int64)


@kernel
def ask(events: Array, more: Array, i: int, asked: Array) -> None:
    """Note a request whose answer may report what is stored."""
    correlation = more[i, MORE.CORRELATION]
    if correlation >= 0 and more[i, MORE.STREAM] != 0:
        at = correlation % ASKED
        asked[at, RQ.CONNECTION] = events[i, EV.CONNECTION]
        asked[at, RQ.CORRELATION] = correlation
        asked[at, RQ.WHAT] = events[i, EV.WHAT]
        asked[at, RQ.STREAM] = more[i, MORE.STREAM]
        asked[at, RQ.REFERENCE] = more[i, MORE.REFERENCE]


@kernel
def learn(events: Array, more: Array, i: int, asked: Array, book: stored.Book, facts: Facts) -> None:
    """Note the answer to such a request."""
    at = max(more[i, MORE.CORRELATION], 0) % ASKED
    same = asked[at, RQ.CONNECTION] == events[i, EV.CONNECTION] and asked[at, RQ.WHAT] == events[i, EV.WHAT]
    if not same or asked[at, RQ.CORRELATION] != more[i, MORE.CORRELATION]:
        return
    stream, reference = asked[at, RQ.STREAM], asked[at, RQ.REFERENCE]
    asked[at, RQ.WHAT] = 0
    if more[i, MORE.CODE] != OK:
        return
    if events[i, EV.WHAT] != QUERY:
        stored.renew(book, stream)
        note(facts, events, i, RENEWED, stream, 0, -1, -1, -1)
    elif more[i, MORE.SEQUENCE] >= 0 and reference != 0:
        stored.report(book, stream, reference, more[i, MORE.SEQUENCE])
        note(facts, events, i, REPORTED, stream, reference, -1, -1, more[i, MORE.SEQUENCE])


@kernel
def note(
    facts: Facts, events: Array, i: int, kind: int, stream: int, reference: int, publisher: int, epoch: int, number: int
) -> None:
    """Write a partial result for a frame."""
    rows, count = facts
    at = count[0]
    rows[at, FACT.connection_id] = events[i, EV.CONNECTION]
    rows[at, FACT.frame_no] = events[i, EV.ORDER]
    rows[at, FACT.ts_ns] = events[i, EV.TS]
    rows[at, FACT.kind] = kind
    rows[at, FACT.stream] = stream
    rows[at, FACT.reference] = reference
    rows[at, FACT.publisher_id] = publisher
    rows[at, FACT.publisher_epoch] = epoch
    rows[at, FACT.stored] = number
    rows[at, FACT.sent] = -1
    rows[at, FACT.unsure] = 0
    count[0] = at + 1


@kernel
def finish(publishers: Publishers, publisher: int, conn: Array, book: stored.Book, facts: Facts) -> None:
    """End an epoch of a publisher."""
    rows = publishers[0]
    stream, reference = rows[publisher, PUB.STREAM], rows[publisher, PUB.REFERENCE]
    if reference == 0:
        return
    acked, sent = rows[publisher, PUB.HIGHEST_ACKED], rows[publisher, PUB.HIGHEST]
    if conn[CONN.CLIENT_GAPS] != rows[publisher, PUB.GAPS]:
        sent = NEVER
    stored.end(book, stream, reference, rows[publisher, PUB.GENERATION], acked, sent)
    noted, count = facts
    at = count[0]
    noted[at, FACT.connection_id] = conn[CONN.ID]
    noted[at, FACT.frame_no] = rows[publisher, PUB.FRAME]
    noted[at, FACT.ts_ns] = rows[publisher, PUB.TS]
    noted[at, FACT.kind] = ENDED
    noted[at, FACT.stream] = stream
    noted[at, FACT.reference] = reference
    noted[at, FACT.publisher_id] = rows[publisher, PUB.ID]
    noted[at, FACT.publisher_epoch] = rows[publisher, PUB.EPOCH]
    noted[at, FACT.stored] = acked
    noted[at, FACT.sent] = sent
    noted[at, FACT.unsure] = rows[publisher, PUB.UNSURE]
    count[0] = at + 1


@kernel
def sender(
    events: Array, more: Array, i: int, conn: Array, publishers: Publishers, book: stored.Book, facts: Facts
) -> int:
    """Return the row of the publisher that sends a message; its id may go to another one from now on."""
    rows, row_of, before, count = publishers
    number = min(more[i, MORE.PUBLISHER], IDS - 1)
    epoch = more[i, MORE.EPOCH]
    row = row_of[number]
    if row >= 0 and epoch <= rows[row, PUB.EPOCH]:
        return row
    if row < 0:
        row = count[0]
        count[0] += 1
        row_of[number] = row
    else:
        finish(publishers, row, conn, book, facts)
    for column in range(len(PUB)):
        rows[row, column] = 0
    rows[row, PUB.ID] = number
    rows[row, PUB.EPOCH] = max(epoch, 0)
    rows[row, PUB.GAPS] = before[number]
    rows[row, PUB.HIGHEST] = -1
    rows[row, PUB.HIGHEST_ACKED] = -1
    rows[row, PUB.HIGHEST_REFUSED] = -1
    stream, reference = more[i, MORE.STREAM], more[i, MORE.REFERENCE]
    if epoch >= 0 and reference != 0:
        known, above, generation = stored.begin(book, stream, reference)
        rows[row, PUB.STREAM] = stream
        rows[row, PUB.REFERENCE] = reference
        rows[row, PUB.STORED] = known
        rows[row, PUB.ABOVE] = above
        rows[row, PUB.GENERATION] = generation
        note(facts, events, i, BEGUN, stream, reference, number, epoch, -1)
    return row


@kernel
def finish_all(publishers: Publishers, conn: Array, book: stored.Book, facts: Facts) -> bool:
    """End the connection; return False if there is no room for partial results: call it again."""
    rows, row_of, before, count = publishers
    while count[0] > 0:
        if facts[1][0] >= len(facts[0]):
            return False
        last = count[0] - 1
        finish(publishers, last, conn, book, facts)
        row_of[rows[last, PUB.ID]] = -1
        count[0] = last
    if conn[CONN.CLIENT_GAPS] > 0:
        for number in range(IDS):
            before[number] = 0
    stored.forget(book)
    return True


@kernel
def sent(rows: Array, row: int, number: int, frame: int, ts: int) -> None:
    """Note that a publisher sent an id."""
    rows[row, PUB.COUNT] += 1
    rows[row, PUB.HIGHEST] = max(rows[row, PUB.HIGHEST], number)
    rows[row, PUB.FRAME] = frame
    rows[row, PUB.TS] = max(rows[row, PUB.TS], ts)


@kernel
def guess(rows: Array, row: int, number: int, epoch: int, conn: Array) -> int:
    """Return whether the broker has an id already, if it acknowledges it; call this before `sent`.

    Args:
        rows: PUB.
        row: of the publisher.
        number: the id.
        epoch: of the message; -1 where the declaration was not seen.
        conn: CONN.
    """
    if epoch < 0:
        return UNKNOWN
    if rows[row, PUB.REFERENCE] == 0:
        return NO
    if number <= max(rows[row, PUB.HIGHEST_ACKED], rows[row, PUB.STORED]):
        return YES
    if number <= rows[row, PUB.HIGHEST]:
        return SENT_BEFORE
    if number > rows[row, PUB.ABOVE] and conn[CONN.CLIENT_GAPS] == rows[row, PUB.GAPS]:
        return NO
    return UNKNOWN


@kernel
def answered(rows: Array, row: int, number: int, refused: bool, frame: int, ts: int, guessed: int) -> int:
    """Note the answer to an id of a publisher; return whether it was deduplicated, as far as known so far."""
    rows[row, PUB.FRAME] = frame
    rows[row, PUB.TS] = max(rows[row, PUB.TS], ts)
    if refused:
        rows[row, PUB.REFUSED] += 1
        rows[row, PUB.HIGHEST_REFUSED] = max(rows[row, PUB.HIGHEST_REFUSED], number)
    else:
        rows[row, PUB.ACKED] += 1
        rows[row, PUB.HIGHEST_ACKED] = max(rows[row, PUB.HIGHEST_ACKED], number)
    if rows[row, PUB.COUNT] == rows[row, PUB.ACKED] + rows[row, PUB.REFUSED]:
        rows[row, PUB.HIGHEST] = rows[row, PUB.HIGHEST_ACKED]
    if refused:
        return UNKNOWN
    if guessed == SENT_BEFORE:
        if rows[row, PUB.HIGHEST_REFUSED] < number:
            return YES
        rows[row, PUB.UNSURE] = 1
        return UNKNOWN
    return guessed
