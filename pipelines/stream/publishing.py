"""How frames change outstanding publishing ids: the kernel of `stream_confirms`.

A publishing id is outstanding from the frame on that sent it. What ends that:

| event | what it does |
|---|---|
| publish-confirm, publish-error that list the id | answers its oldest outstanding sending, and no other |
| the same, with several outstanding sendings and a gap after the first | whose it is is unknown: all are censored |
| the publisher's id declared again, and the id sent again | answers belong to the later sending from then on |
| the server's close | what is sent after it is discarded |
| a close of either side, the end of the connection, a gap after it | nobody answers: `ended_by` |
"""

from __future__ import annotations

from typing import Any, NamedTuple

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.lookup import empty
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.model.connection import (
    CLIENT,
    CONN,
    GAP_TS,
    SERVER,
    add_gap,
    first_gap,
    open_connection,
    update_connection,
)  # fmt: skip
from amqpscope.pipelines.model.events import EV, MESSAGES, what
from amqpscope.pipelines.model.stopped import DONE, NEEDS_OUTPUT_ROOM, WAITING_FULL
from amqpscope.pipelines.model.unanswered import ANSWERED, EVICTED, GAP, NOTHING, WHOLE, unanswered
from amqpscope.pipelines.stream import publishers as pb
from amqpscope.pipelines.stream.frames import STREAM_FRAMES
from amqpscope.pipelines.stream.publications import MORE
from amqpscope.pipelines.stream.publishers import PUB, QUERY
from amqpscope.pipelines.stream.publishing_ids import (
    CT,
    UNCERTAIN,
    WAIT,
    enter,
    found,
    leave,
    settle_all,
)  # fmt: skip
from amqpscope.pipelines.stream.streams import IDS

UNANSWERED, ACK, NACK = range(3)
CLOSES, BEGINS, REQUESTS = range(-3, 0)
"""Further reasons to stop: the connection is over; a publisher begins; a request about what is stored, or an answer."""

_PUBLISH = what(MESSAGES, "publish")
_CONFIRM, _ERROR = what(STREAM_FRAMES, "publish-confirm"), what(STREAM_FRAMES, "publish-error")
_DECLARE = what(STREAM_FRAMES, "declare-publisher")
_CREATE, _DELETE = what(STREAM_FRAMES, "create"), what(STREAM_FRAMES, "delete")


class OUT(Matrix):
    """Columns of `out`: a publishing id that is no longer outstanding."""

    OPENER = column("id of a message's event")
    OTHER = column("id of a message of the same sending in this batch; -1: none")
    RECORDS = column("messages that stand for it")
    SIZE = column("of all their bodies; -1: not known")
    OUTCOME = column("number in OUTCOMES")
    ANSWER = column("position in the batch of the event that answers it; -1: none")
    CODE = column("of the error; -1: none")
    MULTIPLE = column("-1: null")
    BY = column("of `unanswered.ENDED_BY`")
    END_TS = column("when it ended; -1: not known")
    DEDUPLICATED = column("1: the stream had it already; -1: null")


class ST(Matrix):
    """Columns of `state`."""

    AT = column("the next event of the batch")
    LISTED = column("the next id of its list; -1: not begun")
    DRAIN = column("the next row at the end of the connection")
    OUT = column("rows of `out`")
    LIMIT = column("ids that may be outstanding")
    BASE = column("id of the first event of the batch")
    REQUESTED = column("the last event that is a request or its answer, and was applied; -1: none")
    OVER = column("1: publishers of the connection are closed")


Ids = tuple[Any, Any, Any]
"""Waiting (WAIT), index, counts (CT)."""


class Outstanding(NamedTuple):
    """What is known of one connection, and what is written.

    Attributes:
        conn, gaps: see `connection`.
        ids: outstanding publishing ids.
        publishers: see `publishers.Publishers.arrays`.
        out: (n, OUT) ids that are no longer outstanding.
        state: ST.
    """

    conn: Array
    gaps: Array
    ids: Ids
    publishers: tuple[Array, Array, Array]
    out: Array
    state: Array


@kernel
def walk(events: Array, more: Array, listed: Array, of: Outstanding) -> int:
    """Walk over a batch from state[ST.AT] on; return why it stopped (DONE: at the end of the batch).

    It stops where the caller ends or begins publishers, and at requests about what is stored.
    """
    rows, row_of, before = of.publishers
    conn, gaps, ids, state = of.conn, of.gaps, of.ids, of.state
    for i in range(state[ST.AT], len(events)):
        state[ST.AT] = i
        if state[ST.OUT] + 2 > len(of.out):
            return NEEDS_OUTPUT_ROOM
        if ids[2][CT.ROWS] >= len(ids[0]):
            return WAITING_FULL
        if events[i, EV.CONNECTION] != conn[CONN.ID]:
            if state[ST.OVER] == 0:
                return CLOSES
            if not close(of):
                return NEEDS_OUTPUT_ROOM
            state[ST.OVER] = 0
            open_connection(conn, events[i, EV.CONNECTION])
        word, side = events[i, EV.WHAT], events[i, EV.FROM_CLIENT]
        publisher = more[i, MORE.PUBLISHER]
        sender = row_of[min(max(publisher, 0), IDS - 1)]
        if word == _PUBLISH and (sender < 0 or more[i, MORE.EPOCH] > rows[sender, PUB.EPOCH]):
            return BEGINS
        if (word == QUERY or word == _CREATE or word == _DELETE) and state[ST.REQUESTED] != i:
            return REQUESTS
        answers = (word == _CONFIRM or word == _ERROR) and side == SERVER
        if state[ST.LISTED] < 0:
            if events[i, EV.CUT] > 0 and side >= 0 and (word == 0 or answers):
                add_gap(conn, gaps, side, events[i, EV.ORDER], events[i, EV.TS], -1)
            update_connection(conn, gaps, events, i, more[i, MORE.IDENTITY])
        if word == _PUBLISH:
            publish(events, more, i, sender, of)
        elif answers and publisher >= 0:
            if not answer(events, more, i, listed, of):
                return NEEDS_OUTPUT_ROOM
        elif word == _DECLARE and side == CLIENT and publisher >= 0:
            before[min(publisher, IDS - 1)] = conn[CONN.CLIENT_GAPS]
    state[ST.AT] = len(events)
    return DONE


# ------------------------------------------------------------------------------------------- sendings and answers


@kernel
def publish(events: Array, more: Array, i: int, publisher: int, of: Outstanding) -> None:
    """Add messages of one entry of a frame of a publisher (its row): a sending, or more of the last one."""
    waiting, index, counts = of.ids
    rows = of.publishers[0]
    number, frame, opener = events[i, EV.NUMBER], events[i, EV.ORDER], more[i, MORE.IDENTITY]
    first = found(waiting, index, rows[publisher, PUB.ID], number)
    last = waiting[first, WAIT.LAST] if first >= 0 else -1
    if last >= 0 and waiting[last, WAIT.FRAME] == frame and waiting[last, WAIT.ENTRY] == more[i, MORE.ENTRY]:
        waiting[last, WAIT.RECORDS] += more[i, MORE.RECORDS]
        if more[i, MORE.SIZE] >= 0:
            waiting[last, WAIT.SIZE] = max(waiting[last, WAIT.SIZE], 0) + more[i, MORE.SIZE]
        # It is named after the message with the least name.
        column = WAIT.OPENER if waiting[last, WAIT.OPENER] >= of.state[ST.BASE] else WAIT.OTHER
        if waiting[last, column] < 0 or more[i, MORE.RANK] < waiting[last, WAIT.RANK]:
            waiting[last, column] = opener
            waiting[last, WAIT.RANK] = more[i, MORE.RANK]
        return
    if counts[CT.LIVE] >= of.state[ST.LIMIT]:
        row = counts[CT.OLDEST]
        while row < counts[CT.ROWS] and waiting[row, WAIT.OPENER] < 0:
            row += 1
        counts[CT.OLDEST] = row
        if row < counts[CT.ROWS] and waiting[row, WAIT.FRAME] < frame:
            finish(of, row, UNANSWERED, -1, -1, -1, EVICTED, events[i, EV.TS], pb.UNKNOWN)
    row = counts[CT.ROWS]
    if row == 0 or waiting[row - 1, WAIT.FRAME] != frame:
        counts[CT.LAST_FRAME] = row
    waiting[row, WAIT.OPENER] = opener
    waiting[row, WAIT.OTHER] = -1
    waiting[row, WAIT.RANK] = more[i, MORE.RANK]
    waiting[row, WAIT.FRAME] = frame
    waiting[row, WAIT.ENTRY] = more[i, MORE.ENTRY]
    waiting[row, WAIT.PUBLISHER] = rows[publisher, PUB.ID]
    waiting[row, WAIT.EPOCH] = rows[publisher, PUB.EPOCH]
    waiting[row, WAIT.NUMBER] = number
    waiting[row, WAIT.RECORDS] = more[i, MORE.RECORDS]
    waiting[row, WAIT.SIZE] = more[i, MORE.SIZE]
    waiting[row, WAIT.FATE] = 0
    waiting[row, WAIT.LOST_TS] = -1
    waiting[row, WAIT.GUESS] = pb.guess(rows, publisher, number, more[i, MORE.EPOCH], of.conn)
    enter(waiting, index, row)
    counts[CT.ROWS] = row + 1
    counts[CT.LIVE] += 1
    rows[publisher, PUB.COUNT] += 1
    rows[publisher, PUB.HIGHEST] = max(rows[publisher, PUB.HIGHEST], number)
    rows[publisher, PUB.FRAME] = frame
    rows[publisher, PUB.TS] = max(rows[publisher, PUB.TS], events[i, EV.TS])


@kernel
def answer(events: Array, more: Array, i: int, listed: Array, of: Outstanding) -> bool:
    """Apply a list of confirmed or refused ids; return False if `out` is full: read the list on."""
    waiting, index, _ = of.ids
    rows, row_of, _ = of.publishers
    state = of.state
    publisher = min(more[i, MORE.PUBLISHER], IDS - 1)
    at, stop = more[i, MORE.FIRST], more[i, MORE.END]
    refused = events[i, EV.WHAT] == _ERROR
    width = 2 if refused else 1
    multiple = 1 if stop - at > width else 0
    if state[ST.LISTED] >= 0:
        at = state[ST.LISTED]
    while at + width <= stop:
        if state[ST.OUT] + 2 > len(of.out):
            state[ST.LISTED] = at
            return False
        number = listed[at]
        code = listed[at + 1] if refused and listed[at + 1] <= 0xFFFF else -1
        at += width
        row = found(waiting, index, publisher, number) if number >= 0 else -1
        if row < 0:
            continue
        gap = first_gap(of.conn, of.gaps, SERVER, waiting[row, WAIT.FRAME]) if waiting[row, WAIT.NEXT] >= 0 else -1
        if gap >= 0:  # it may hold another answer, so this may belong to any of these sendings
            settle_all(waiting, row, UNCERTAIN, of.gaps[gap, GAP_TS])
            continue
        deduplicated = pb.UNKNOWN if refused else waiting[row, WAIT.GUESS]
        sender = row_of[publisher]
        if sender >= 0 and rows[sender, PUB.EPOCH] == waiting[row, WAIT.EPOCH]:
            rows[sender, PUB.FRAME] = events[i, EV.ORDER]
            rows[sender, PUB.TS] = max(rows[sender, PUB.TS], events[i, EV.TS])
            number_of, highest = (PUB.REFUSED, PUB.HIGHEST_REFUSED) if refused else (PUB.ACKED, PUB.HIGHEST_ACKED)
            rows[sender, number_of] += 1
            rows[sender, highest] = max(rows[sender, highest], number)
            if rows[sender, PUB.COUNT] == rows[sender, PUB.ACKED] + rows[sender, PUB.REFUSED]:
                rows[sender, PUB.HIGHEST] = rows[sender, PUB.HIGHEST_ACKED]
            if deduplicated == pb.SENT_BEFORE:
                deduplicated = pb.YES
                if rows[sender, PUB.HIGHEST_REFUSED] >= number:
                    deduplicated = pb.UNKNOWN
                    rows[sender, PUB.UNSURE] = 1
        outcome = NACK if refused else ACK
        finish(of, row, outcome, more[i, MORE.POSITION], code, multiple, ANSWERED, -1, deduplicated)
    state[ST.LISTED] = -1
    return True


@kernel
def finish(
    of: Outstanding, row: int, outcome: int, answered_by: int, code: int, multiple: int, by: int, end_ts: int,
    deduplicated: int,
) -> None:  # fmt: skip
    """Write a row of `out`."""
    waiting, index, counts = of.ids
    out, at = of.out, of.state[ST.OUT]
    out[at, OUT.OPENER] = waiting[row, WAIT.OPENER]
    out[at, OUT.OTHER] = waiting[row, WAIT.OTHER]
    out[at, OUT.RECORDS] = waiting[row, WAIT.RECORDS]
    out[at, OUT.SIZE] = waiting[row, WAIT.SIZE]
    out[at, OUT.OUTCOME] = outcome
    out[at, OUT.ANSWER] = answered_by
    out[at, OUT.CODE] = code
    out[at, OUT.MULTIPLE] = multiple
    out[at, OUT.BY] = by
    out[at, OUT.END_TS] = end_ts
    out[at, OUT.DEDUPLICATED] = deduplicated
    of.state[ST.OUT] = at + 1
    leave(waiting, index, counts, row)


@kernel
def close(of: Outstanding) -> bool:
    """End the connection, whose publishers are closed; return False if there is no room: call it again."""
    waiting, index, counts = of.ids
    conn, gaps, state = of.conn, of.gaps, of.state
    while state[ST.DRAIN] < counts[CT.ROWS]:
        row = state[ST.DRAIN]
        if waiting[row, WAIT.OPENER] >= 0:
            if state[ST.OUT] + 2 > len(of.out):
                return False
            by, ts = unanswered(conn, gaps, SERVER, waiting[row, WAIT.FRAME], WHOLE, NOTHING, 0)
            if waiting[row, WAIT.FATE] == UNCERTAIN:
                by, ts = GAP, waiting[row, WAIT.LOST_TS]
            finish(of, row, UNANSWERED, -1, -1, -1, by, ts, pb.UNKNOWN)
        state[ST.DRAIN] = row + 1
    empty(index, waiting, WAIT.PUBLISHER, WAIT.NUMBER, counts[CT.ROWS])
    for number in range(len(counts)):
        counts[number] = 0
    state[ST.DRAIN] = 0
    return True
