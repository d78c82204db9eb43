"""How frames change the credit of subscriptions, and the waits that follow: the kernel of `stream_credit`.

The states of a subscription:

| state | what leads there | what it says |
|---|---|---|
| unknown | its beginning was not seen; a gap in either direction since; one direction missing | no balance |
| has credit | subscribe, credit | |
| waits | a frame after which the balance is 0 or less | an interval of `flow_control` begins |
| released | credit, while it waits | the interval ends; the next delivery shows whether it was a wait |

A wait ends when another subscription takes its id. No chunk is delivered before it is written, so the least age of
chunks bounds how much the clock of the capture is ahead of the broker's.
"""

from __future__ import annotations

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model.connection import CONN
from amqpscope.pipelines.model.credit import (
    AT_LEAST,
    MILLISECOND,
    MOST_ROUND_TRIP,
    MOST_TIME,
    NONE,
    ST,
    SUB,
    Written,
    cut_off,
    is_certain,
    prove,
    wait,
)
from amqpscope.pipelines.model.events import CONNECTIONS, EV, what
from amqpscope.pipelines.model.stopped import DONE, NEEDS_OUTPUT_ROOM
from amqpscope.pipelines.stream.frames import STREAM_FRAMES
from amqpscope.pipelines.stream.streams import IDS

SUBSCRIBED, CREDIT, DELIVERED, UNSUBSCRIBED = range(4)
KINDS = ("subscribe", "credit", "deliver", "unsubscribe")
SUBSCRIBE, _CREDIT, DELIVER, UNSUBSCRIBE = (what(STREAM_FRAMES, kind) for kind in KINDS)
CLOSES, CHANGES = range(-2, 0)
"""Further reasons to stop: the connection is over; an event is to be applied (`subscriptions.apply`)."""


class MORE(Matrix):
    """Columns of `more`."""

    IDENTITY = column("id of the event")
    SUBSCRIPTION = column("subscription_id; -1 for null")
    CREDIT = column("NONE for null")
    CORRELATION = column("-1 for null")
    CODE = column("response_code; -1 for null")
    RTT = column("of connections; -1 for null")
    CHUNK = column("of deliveries: when the chunk was written, by the broker's clock (ms); -1 for null")


class CH(Matrix):
    """Columns of `changes`: a row of `stream_credit`."""

    EVENT = column("id of the frame")
    CONNECTION = column("connection_id")
    SUBSCRIPTION = column("subscription_id")
    EPOCH = column("subscription_epoch")
    BEGUN = column("id of the subscribe frame; -1: not seen")
    KIND = column("what it is: a number in KINDS")
    CREDIT = column("that it grants or uses; NONE for null")
    GRANTED = column("credit that was granted so far")
    USED = column("credit that was used so far")
    KNOWN = column("1: there is a balance")
    SINCE = column("time since which no credit is left; NONE: some is left")


@kernel
def walk(
    events: Array, more: Array, conn: Array, gaps: Array, rows: Array, row_of: Array, written: Written, state: Array
) -> int:
    """Walk over a batch from state[ST.AT] on; return why it stopped (DONE: at the end of the batch).

    It stops where a connection is over, and after what begins or ends a subscription, which the caller applies.
    """
    for i in range(state[ST.AT], len(events)):
        state[ST.AT] = i
        if state[ST.CHANGES] + 3 > len(written[0]) or state[ST.WAITS] + 4 > len(written[1]):
            return NEEDS_OUTPUT_ROOM
        if events[i, EV.CONNECTION] != conn[CONN.ID]:
            return CLOSES
        word, side, number = events[i, EV.WHAT], events[i, EV.FROM_CLIENT], more[i, MORE.SUBSCRIPTION]
        answers = events[i, EV.RESPONSE] == 1
        changes = word == SUBSCRIBE or word == _CREDIT or word == DELIVER or word == UNSUBSCRIBE
        lacks = word == 0 or (changes and number < 0 and events[i, EV.RESPONSE] == 0)
        lacks = lacks or (word == _CREDIT and events[i, EV.RESPONSE] == 0 and more[i, MORE.CREDIT] == NONE)
        if events[i, EV.CUT] > 0 and side >= 0 and lacks:
            cn.add_gap(conn, gaps, side, events[i, EV.ORDER], events[i, EV.TS], -1)
        cn.update_connection(conn, gaps, events, i, more[i, MORE.IDENTITY])
        if events[i, EV.SOURCE] == CONNECTIONS and 0 <= more[i, MORE.RTT] <= MOST_ROUND_TRIP:
            state[ST.WINDOW] = max(2 * more[i, MORE.RTT], AT_LEAST)
        row = row_of[min(number, IDS - 1)] if number >= 0 else -1
        if (answers and word == SUBSCRIBE) or (changes and events[i, EV.RESPONSE] == 0 and number >= 0):
            is_overdue = row >= 0 and rows[row, SUB.ASKED] >= 0 and conn[CONN.SERVER_GAPS] > rows[row, SUB.ASKED_LOST]
            if row < 0 or word == SUBSCRIBE or word == UNSUBSCRIBE or (word == DELIVER and is_overdue):
                state[ST.AT] = i + 1
                return CHANGES
            if word == _CREDIT:
                credit(events, more, i, rows, row, conn, gaps, written, state)
            else:
                deliver(events, more, i, rows, row, conn, gaps, written, state)
    state[ST.AT] = len(events)
    return DONE


@kernel
def deliver(
    events: Array, more: Array, i: int, rows: Array, row: int, conn: Array, gaps: Array, written: Written, state: Array
) -> None:
    """Use a unit of credit for a chunk."""
    chunk = more[i, MORE.CHUNK]
    if 0 <= chunk < MOST_TIME and events[i, EV.TS] >= 0:
        state[ST.AGE] = min(state[ST.AGE], events[i, EV.TS] - chunk * MILLISECOND)
    prove(rows, row, events[i, EV.TS], chunk, conn, written, state)
    rows[row, SUB.USED] += 1
    change(events, more, i, rows, row, DELIVERED, conn, gaps, written, state)


@kernel
def credit(
    events: Array, more: Array, i: int, rows: Array, row: int, conn: Array, gaps: Array, written: Written, state: Array
) -> None:
    """Add granted credit to the requested subscription, if there is one."""
    granted = 0 if more[i, MORE.CREDIT] == NONE else more[i, MORE.CREDIT]
    if rows[row, SUB.ASKED] < 0:
        rows[row, SUB.GRANTED] += granted
        change(events, more, i, rows, row, CREDIT, conn, gaps, written, state)
        return
    rows[row, SUB.ASKED_MORE] += granted
    first = 0 if rows[row, SUB.ASKED_CREDIT] == NONE else rows[row, SUB.ASKED_CREDIT]
    total = first + rows[row, SUB.ASKED_MORE]
    certain = rows[row, SUB.ASKED_CREDIT] != NONE and is_certain(conn, rows[row, SUB.ASKED_GAPS])
    since = events[i, EV.TS] if certain and total <= 0 else NONE
    note(written, state, more[i, MORE.IDENTITY], conn, rows, row, rows[row, SUB.EPOCH] + 1, rows[row, SUB.ASKED],
         CREDIT, more[i, MORE.CREDIT], total, 0, 1 if certain else 0, since)  # fmt: skip


@kernel
def change(
    events: Array, more: Array, i: int, rows: Array, row: int, kind: int, conn: Array, gaps: Array, written: Written,
    state: Array,
) -> None:  # fmt: skip
    """Note a frame that changed the credit of a subscription: write a row, and begin or end a wait."""
    frame, ts = events[i, EV.ORDER], events[i, EV.TS]
    certain = rows[row, SUB.EPOCH] > 0 and is_certain(conn, rows[row, SUB.GAPS])
    waits = certain and rows[row, SUB.GRANTED] - rows[row, SUB.USED] <= 0 and kind != UNSUBSCRIBED
    if rows[row, SUB.SINCE] >= 0 and not waits:
        if not cut_off(rows, row, conn, gaps, frame, written, state):
            if kind == CREDIT:
                rows[row, SUB.PROOF] = rows[row, SUB.SINCE]
                rows[row, SUB.PROOF_TS] = rows[row, SUB.SINCE_TS]
                rows[row, SUB.RELEASED] = more[i, MORE.IDENTITY]
                rows[row, SUB.RELEASED_TS] = ts
            else:
                wait(written, state, conn, rows, row, rows[row, SUB.SINCE], rows[row, SUB.SINCE_TS],
                     more[i, MORE.IDENTITY], ts, 1, 0)  # fmt: skip
            rows[row, SUB.SINCE] = -1
    elif waits and rows[row, SUB.SINCE] < 0:
        prove(rows, row, NONE, -1, conn, written, state)
        rows[row, SUB.SINCE] = more[i, MORE.IDENTITY]
        rows[row, SUB.SINCE_FRAME] = frame
        rows[row, SUB.SINCE_TS] = ts
    granted = more[i, MORE.CREDIT] if kind == CREDIT else NONE
    since = rows[row, SUB.SINCE_TS] if waits else NONE
    note(written, state, more[i, MORE.IDENTITY], conn, rows, row, rows[row, SUB.EPOCH], rows[row, SUB.EVENT], kind,
         granted, rows[row, SUB.GRANTED], rows[row, SUB.USED], 1 if certain else 0, since)  # fmt: skip


@kernel
def note(
    written: Written, state: Array, event: int, conn: Array, rows: Array, row: int, epoch: int, begun: int, kind: int,
    credit: int, granted: int, used: int, certain: int, since: int,
) -> None:  # fmt: skip
    """Write a row of `changes`: it has fourteen parameters because a row has eleven columns."""
    changes = written[0]
    at = state[ST.CHANGES]
    changes[at, CH.EVENT] = event
    changes[at, CH.CONNECTION] = conn[CONN.ID]
    changes[at, CH.SUBSCRIPTION] = rows[row, SUB.ID]
    changes[at, CH.EPOCH] = epoch
    changes[at, CH.BEGUN] = begun
    changes[at, CH.KIND] = kind
    changes[at, CH.CREDIT] = credit
    changes[at, CH.GRANTED] = granted
    changes[at, CH.USED] = used
    changes[at, CH.KNOWN] = certain
    changes[at, CH.SINCE] = since
    state[ST.CHANGES] = at + 1
