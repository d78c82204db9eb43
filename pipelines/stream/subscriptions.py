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
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.pipelines.model.connection import CONN
from amqpscope.pipelines.model.credit import NONE, SUB, gaps_of
from amqpscope.pipelines.model.events import what
from amqpscope.pipelines.stream.frames import STREAM_FRAMES
from amqpscope.pipelines.stream.streams import ASKED, IDS

SUBSCRIBE = what(STREAM_FRAMES, "subscribe")


Subscriptions = tuple[Any, Any, Any, Any]
"""Rows (SUB), the row of each id (-1: none), subscribe requests by correlation id (connection, id, row), and the number
of rows."""


def fresh() -> tuple[Ints, Ints, Ints, Ints]:
    """Return subscriptions of no connection."""
    rows = np.zeros((IDS, len(SUB)), np.int64)
    return rows, np.full(IDS, -1, np.int64), np.full((ASKED, 3), -1, np.int64), np.zeros(1, np.int64)


@kernel
def row_of(subscriptions: Subscriptions, number: int) -> int:
    """Return the row of a subscription id."""
    rows, places, _, count = subscriptions
    number = min(number, IDS - 1)
    if places[number] < 0:
        row = count[0]
        count[0] += 1
        places[number] = row
        for column in range(len(SUB)):
            rows[row, column] = 0
        rows[row, SUB.ID] = number
        rows[row, SUB.EVENT] = -1
        rows[row, SUB.ASKED] = -1
        rows[row, SUB.SINCE] = -1
        rows[row, SUB.PROOF] = -1
        rows[row, SUB.RELEASED] = -1
    return places[number]


@kernel
def forget(subscriptions: Subscriptions) -> None:
    """Forget all at the end of a connection."""
    rows, places, _, count = subscriptions
    for row in range(count[0]):
        places[rows[row, SUB.ID]] = -1
    count[0] = 0


@kernel
def ask(
    subscriptions: Subscriptions, row: int, conn: Array, identity: int, frame: int, ts: int, correlation: int,
    credit: int,
) -> None:  # fmt: skip
    """Note a request for a subscription, with no other request open under that id."""
    rows, _, requests, _ = subscriptions
    rows[row, SUB.ASKED] = identity
    rows[row, SUB.ASKED_FRAME] = frame
    rows[row, SUB.ASKED_TS] = ts
    rows[row, SUB.ASKED_GAPS] = gaps_of(conn)
    rows[row, SUB.ASKED_LOST] = conn[CONN.SERVER_GAPS]
    rows[row, SUB.ASKED_CREDIT] = credit
    rows[row, SUB.ASKED_MORE] = 0
    rows[row, SUB.CORRELATION] = correlation
    if correlation >= 0:
        at = correlation % ASKED
        requests[at, 0] = conn[CONN.ID]
        requests[at, 1] = correlation
        requests[at, 2] = row


@kernel
def asker(subscriptions: Subscriptions, conn: Array, correlation: int) -> int:
    """Return the row whose request an answer belongs to; -1: none."""
    rows, _, requests, _ = subscriptions
    at = max(correlation, 0) % ASKED
    if requests[at, 0] != conn[CONN.ID] or requests[at, 1] != correlation:
        return -1
    row = requests[at, 2]
    requests[at, 0] = -1
    return row if rows[row, SUB.ASKED] >= 0 and rows[row, SUB.CORRELATION] == correlation else -1


@kernel
def answer_any(subscriptions: Subscriptions) -> None:
    """Note an answer whose correlation id was cut off: it is not known which request is done, or refused."""
    rows, _, _, count = subscriptions
    for row in range(count[0]):
        if rows[row, SUB.ASKED] >= 0:
            rows[row, SUB.ASKED_LOST] = -1
            if rows[row, SUB.EPOCH] > 0:
                rows[row, SUB.GAPS] = -1
                rows[row, SUB.ASKED_GAPS] = -1


@kernel
def is_overdue(rows: Array, row: int, conn: Array) -> bool:
    """Return whether the answer to what is requested may be lost or cut, where the server delivers under that id."""
    return rows[row, SUB.ASKED] >= 0 and conn[CONN.SERVER_GAPS] > rows[row, SUB.ASKED_LOST]


@kernel
def grant(rows: Array, row: int) -> None:
    """Grant what is requested, as far as known: where the first credit was cut off, no balance is."""
    rows[row, SUB.EPOCH] += 1
    rows[row, SUB.EVENT] = rows[row, SUB.ASKED]
    credit = rows[row, SUB.ASKED_CREDIT]
    rows[row, SUB.GAPS] = -1 if credit == NONE else rows[row, SUB.ASKED_GAPS]
    rows[row, SUB.GRANTED] = (0 if credit == NONE else credit) + rows[row, SUB.ASKED_MORE]
    rows[row, SUB.USED] = 0
    rows[row, SUB.ASKED] = -1


@kernel
def refuse(rows: Array, row: int) -> None:
    """Refuse what is requested."""
    rows[row, SUB.GRANTED] += rows[row, SUB.ASKED_MORE]
    rows[row, SUB.ASKED] = -1


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
