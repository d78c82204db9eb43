"""Subscriptions to streams: which one a subscription id belongs to, at each frame.

| event | what it does |
|---|---|
| subscribe | is requested; what the client sends under that id from here on is of the new subscription |
| its answer, done | the new one has the id: what the server sends from here on is of it |
| its answer, refused | the old one goes on, with the credit granted since |
| its answer, its correlation id cut off | it may be that of each request; an id that has one has no balance |
| subscribe or unsubscribe again; the end; a delivery, where a gap or a cut may hold the answer | as if it was done |

Nothing else ends a subscription: chunks may still follow an unsubscribe.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model.connection import CLIENT, CONN, SERVER
from amqpscope.pipelines.model.credit import (
    NEVER,
    NONE,
    ST,
    SUB,
    Written,
    cut_off,
    end_wait,
    gaps_of,
    prove,
    wait,
)
from amqpscope.pipelines.model.events import EV
from amqpscope.pipelines.stream.credit_accounts import (
    DELIVER,
    MORE,
    SUBSCRIBE,
    SUBSCRIBED,
    UNSUBSCRIBE,
    UNSUBSCRIBED,
    change,
    credit,
    deliver,
    note,
)
from amqpscope.pipelines.stream.streams import ASKED, IDS, OK

Subscriptions = tuple[Any, Any, Any, Any]
"""Rows (SUB), the row of each id (-1: none), subscribe requests by correlation id (connection, id, row), and the number
of rows."""


def fresh() -> tuple[Ints, Ints, Ints, Ints]:
    """Return subscriptions of no connection."""
    rows = np.zeros((IDS, SUB.WIDTH), np.int64)
    return rows, np.full(IDS, -1, np.int64), np.full((ASKED, 3), -1, np.int64), np.zeros(1, np.int64)


def row_of(subscriptions: Subscriptions, number: int) -> int:
    """Return the row of a subscription id."""
    rows, places, _, count = subscriptions
    number = min(number, IDS - 1)
    if places[number] < 0:
        row = count[0]
        count[0] += 1
        places[number] = row
        for column in range(SUB.WIDTH):
            rows[row, column] = 0
        for column in (SUB.EVENT, SUB.ASKED, SUB.SINCE, SUB.PROOF, SUB.RELEASED):
            rows[row, column] = -1
        rows[row, SUB.ID] = number
    return places[number]


def asker(subscriptions: Subscriptions, conn: Array, correlation: int) -> int:
    """Return the row whose request an answer belongs to; -1: none."""
    rows, _, requests, _ = subscriptions
    at = max(correlation, 0) % ASKED
    if requests[at, 0] != conn[CONN.ID] or requests[at, 1] != correlation:
        return -1
    row = requests[at, 2]
    requests[at, 0] = -1
    return row if rows[row, SUB.ASKED] >= 0 and rows[row, SUB.CORRELATION] == correlation else -1


def apply(
    events: Array, more: Array, i: int, conn: Array, gaps: Array, subs: Subscriptions, written: Written, state: Array
) -> None:
    """Apply an event that begins or ends a subscription, or may do so, or is the first of its id."""
    rows, _, requests, count = subs
    word, correlation = events[i, EV.WHAT], more[i, MORE.CORRELATION]
    if events[i, EV.RESPONSE] == 1:
        row = asker(subs, conn, correlation)
        if correlation < 0:  # it was cut off: it is not known which request is done, or refused
            for each in range(count[0]):
                if rows[each, SUB.ASKED] >= 0:
                    rows[each, SUB.ASKED_LOST] = -1
                    if rows[each, SUB.EPOCH] > 0:
                        rows[each, SUB.GAPS] = rows[each, SUB.ASKED_GAPS] = -1
        elif row >= 0 and more[i, MORE.CODE] >= 0 and more[i, MORE.CODE] != OK:  # refused
            rows[row, SUB.GRANTED] += rows[row, SUB.ASKED_MORE]
            rows[row, SUB.ASKED] = -1
        elif row >= 0:
            begin(rows, row, conn, gaps, written, state)
        return
    row = row_of(subs, more[i, MORE.SUBSCRIPTION])
    # The answer to what is requested may be lost or cut, where the server delivers under that id.
    is_overdue = word == DELIVER and conn[CONN.SERVER_GAPS] > rows[row, SUB.ASKED_LOST]
    if rows[row, SUB.ASKED] >= 0 and (word == SUBSCRIBE or word == UNSUBSCRIBE or is_overdue):
        begin(rows, row, conn, gaps, written, state)
    if word == SUBSCRIBE:
        rows[row, SUB.ASKED] = more[i, MORE.IDENTITY]
        rows[row, SUB.ASKED_FRAME] = events[i, EV.ORDER]
        rows[row, SUB.ASKED_TS] = events[i, EV.TS]
        rows[row, SUB.ASKED_GAPS] = gaps_of(conn)
        rows[row, SUB.ASKED_LOST] = conn[CONN.SERVER_GAPS]
        rows[row, SUB.ASKED_CREDIT] = more[i, MORE.CREDIT]
        rows[row, SUB.ASKED_MORE] = 0
        rows[row, SUB.CORRELATION] = correlation
        if correlation >= 0:
            at = correlation % ASKED
            requests[at, 0], requests[at, 1], requests[at, 2] = conn[CONN.ID], correlation, row
    elif word == UNSUBSCRIBE:
        change(events, more, i, rows, row, UNSUBSCRIBED, conn, gaps, written, state)
    elif word == DELIVER:
        deliver(events, more, i, rows, row, conn, gaps, written, state)
    else:
        credit(events, more, i, rows, row, conn, gaps, written, state)


def begin(rows: Array, row: int, conn: Array, gaps: Array, written: Written, state: Array) -> None:
    """Give the id to the requested subscription."""
    asked, frame, ts = rows[row, SUB.ASKED], rows[row, SUB.ASKED_FRAME], rows[row, SUB.ASKED_TS]
    prove(rows, row, NONE, -1, conn, written, state)
    if rows[row, SUB.SINCE] >= 0:
        if not cut_off(rows, row, conn, gaps, frame, written, state):
            wait(written, state, conn, rows, row, rows[row, SUB.SINCE], rows[row, SUB.SINCE_TS], asked, ts, 1, 0)
            rows[row, SUB.SINCE] = -1
    begun_with = rows[row, SUB.ASKED_CREDIT]
    first = 0 if begun_with == NONE else begun_with
    rows[row, SUB.EPOCH] += 1
    rows[row, SUB.EVENT] = asked
    rows[row, SUB.GAPS] = -1 if begun_with == NONE else rows[row, SUB.ASKED_GAPS]  # no balance where it was cut off
    rows[row, SUB.GRANTED] = first + rows[row, SUB.ASKED_MORE]
    rows[row, SUB.USED] = 0
    rows[row, SUB.ASKED] = -1
    certain = not cn.is_missing(conn, SERVER) and not cn.is_missing(conn, CLIENT) and begun_with != NONE
    if certain and first <= 0 and rows[row, SUB.GRANTED] <= 0 and gaps_of(conn) == rows[row, SUB.GAPS]:
        rows[row, SUB.SINCE] = asked
        rows[row, SUB.SINCE_FRAME] = frame
        rows[row, SUB.SINCE_TS] = ts
    note(written, state, asked, conn, rows, row, rows[row, SUB.EPOCH], asked, SUBSCRIBED, begun_with, first, 0,
         1 if certain else 0, ts if certain and first <= 0 else NONE)  # fmt: skip


def close(conn: Array, gaps: Array, subs: Subscriptions, written: Written, state: Array) -> bool:
    """End all subscriptions; return False if there is no room: call it again."""
    rows, places, _, count = subs
    for row in range(state[ST.CLOSING], count[0]):
        if state[ST.CHANGES] + 3 > len(written[0]) or state[ST.WAITS] + 4 > len(written[1]):
            return False
        if rows[row, SUB.ASKED] >= 0:
            begin(rows, row, conn, gaps, written, state)
        prove(rows, row, NONE, -1, conn, written, state)
        if rows[row, SUB.SINCE] >= 0 and not cut_off(rows, row, conn, gaps, NEVER, written, state):
            end_wait(rows, row, conn, written, state)
        state[ST.CLOSING] = row + 1
    for row in range(count[0]):
        places[rows[row, SUB.ID]] = -1
    count[0] = state[ST.CLOSING] = 0
    return True


def consumers(rows: pa.Table | None, count: int) -> dict[str, Any]:
    """Return the columns `stream` and `consumer` of the frames that asked for subscriptions.

    Args:
        rows: with `stream` and `properties`; None for null in all.
        count: number of rows.
    """
    if rows is None:
        return {"stream": pa.nulls(count, pa.string()), "consumer": pa.nulls(count, pa.string())}
    properties = rows["properties"].combine_chunks().dictionary_encode()
    names = pa.array([_name(text) for text in properties.dictionary.to_pylist()], pa.string())
    return {"stream": rows["stream"], "consumer": names.take(properties.indices)}


def _name(properties: str) -> str | None:
    """Return the name of a consumer, among the properties of its subscription."""
    if '"name"' not in properties:
        return None
    try:
        found = json.loads(properties)
    except ValueError:  # cut by a gap
        return None
    name = found.get("name") if isinstance(found, dict) else None
    return name if isinstance(name, str) else None
