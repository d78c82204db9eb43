"""Credit of subscriptions: what is remembered of one, and when a wait for credit begins, ends and is proven.

A wait that a gap cuts off counts up to the gap, and has no end. It is proven where the next delivery follows the credit
at once, or brings a chunk that the broker had written before the credit came.
"""

from __future__ import annotations

from typing import Any

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model.connection import CLIENT, CONN, GAP_FRAME, GAP_TS, SERVER

NEVER = (1 << 63) - 1
NONE = -(1 << 62)
"""Stands for null where -1 may be a value."""
AT_LEAST = 1_000_000
"""A delivery within one millisecond, or two round trips if that is longer, follows a credit (ns)."""
MILLISECOND = 1_000_000
MOST_TIME = 1 << 42
"""Times of chunks beyond this (milliseconds: the year 2109) do not count."""
MOST_ROUND_TRIP = 1 << 40
"""Longer round trips (18 minutes) do not count."""


class SUB(Matrix):
    """Columns of `rows`: a subscription id; what is requested has columns of its own."""

    ID = column("subscription_id")
    EPOCH = column("counts subscriptions; 0: of one whose beginning was not seen")
    EVENT = column("id of the frame that asked for it; -1: not seen")
    GAPS = column("gaps of the connection up to that frame")
    GRANTED = column("credit that was granted so far")
    USED = column("credit that was used so far")
    ASKED = column("id of the frame that asks for the next one; -1: none")
    ASKED_FRAME = column("its frame_no")
    ASKED_TS = column("its time")
    ASKED_GAPS = column("gaps of the connection up to it")
    ASKED_LOST = column("gaps in what the server sent")
    ASKED_CREDIT = column("that it begins with; NONE for null")
    ASKED_MORE = column("granted since")
    CORRELATION = column("its correlation_id; -1 for null")
    SINCE = column("id of the frame since which there is no credit; -1: there is, or it is not known")
    SINCE_FRAME = column("its frame_no")
    SINCE_TS = column("its time")
    PROOF = column("id of the frame that began the last wait, if the next delivery decides about it; -1: none")
    PROOF_TS = column("when that began")
    RELEASED = column("id of the frame that ended it")
    RELEASED_TS = column("its time")


class WT(Matrix):
    """Columns of `waits`: a row of `flow_control`."""

    CONNECTION = column("connection_id")
    SUBSCRIPTION = column("subscription_id")
    START = column("id of the frame that began it")
    START_TS = column("its time")
    END = column("id of the frame that ended it; -1: none")
    END_TS = column("NONE: not known")
    SEEN = column("1: the end was seen")
    PROVEN = column("1: nothing was lost that could have ended it before")


class ST(Matrix):
    """Columns of `state`."""

    AT = column("the next event of the batch")
    CHANGES = column("rows of `changes`")
    WAITS = column("rows of `waits`")
    WINDOW = column("ns within which a delivery follows a credit")
    CLOSING = column("subscriptions that are closed, at the end of the connection")
    AGE = column("the least age of a chunk that was delivered (ns); NEVER: none")


Written = tuple[Any, Any]
"""Changes of credit, which a walk declares, and waits (WT)."""


@kernel
def gaps_of(conn: Array) -> int:
    """Return the number of gaps of a connection so far."""
    return conn[CONN.SERVER_GAPS] + conn[CONN.CLIENT_GAPS]


@kernel
def is_certain(conn: Array, gaps: int) -> bool:
    """Return whether no frame of either side can be missing since there were this many gaps."""
    return gaps_of(conn) == gaps and not cn.is_missing(conn, SERVER) and not cn.is_missing(conn, CLIENT)


@kernel
def prove(rows: Array, row: int, ts: int, chunk: int, conn: Array, written: Written, state: Array) -> None:
    """Decide about the last wait, by the next delivery.

    Args:
        rows: see `subscriptions`.
        row: the subscription.
        ts: time of the delivery; NONE: there was none.
        chunk: when its chunk was written (ms); -1: not known.
        conn: CONN.
        written: rows of waits.
        state: ST.
    """
    if rows[row, SUB.PROOF] < 0:
        return
    released, proven = rows[row, SUB.RELEASED_TS], 0
    if released <= ts and ts != NONE and not (released < 0 and ts > NEVER + released):
        # until when the chunk was written at the latest, by the clock of the capture
        written_by = (chunk + 1) * MILLISECOND + min(state[ST.AGE], MOST_TIME * MILLISECOND)
        by_chunk = 0 <= chunk < MOST_TIME and written_by <= released
        proven = 1 if ts - released <= state[ST.WINDOW] or by_chunk else 0
    wait(written, state, conn, rows, row, rows[row, SUB.PROOF], rows[row, SUB.PROOF_TS], rows[row, SUB.RELEASED],
         rows[row, SUB.RELEASED_TS], 1, proven)  # fmt: skip
    rows[row, SUB.PROOF] = -1
    rows[row, SUB.RELEASED] = -1


@kernel
def cut_off(rows: Array, row: int, conn: Array, gaps: Array, until: int, written: Written, state: Array) -> bool:
    """Return whether a gap up to that frame cuts off a wait, which then ends there."""
    found = -1
    for side in range(2):
        gap = cn.first_gap(conn, gaps, side, rows[row, SUB.SINCE_FRAME])
        if gap >= 0 and gaps[gap, GAP_FRAME] <= until:
            if found < 0 or gaps[gap, GAP_FRAME] < gaps[found, GAP_FRAME]:
                found = gap
    if found < 0:
        return False
    wait(written, state, conn, rows, row, rows[row, SUB.SINCE], rows[row, SUB.SINCE_TS], -1, gaps[found, GAP_TS], 0, 0)
    rows[row, SUB.SINCE] = -1
    return True


@kernel
def end_wait(rows: Array, row: int, conn: Array, written: Written, state: Array) -> None:
    """End a wait with the close of the connection, or at the end of what was captured."""
    server, client = conn[CONN.SERVER_CLOSE], conn[CONN.CLIENT_CLOSE]
    side = SERVER if client < 0 or 0 <= server < client else CLIENT
    by, ts, seen = -1, conn[CONN.SILENCE_TS], 1 if conn[CONN.CLOSED] == 1 else 0
    if conn[CONN.SERVER_CLOSE + side] > rows[row, SUB.SINCE_FRAME]:
        by, ts, seen = conn[CONN.SERVER_CLOSE_EVENT + side], conn[CONN.SERVER_CLOSE_TS + side], 1
    if conn[CONN.HAS_ROW] != 1 and by < 0:
        ts = NONE
    wait(written, state, conn, rows, row, rows[row, SUB.SINCE], rows[row, SUB.SINCE_TS], by, ts, seen, 0)
    rows[row, SUB.SINCE] = -1


@kernel
def wait(
    written: Written, state: Array, conn: Array, rows: Array, row: int, start: int, start_ts: int, end: int,
    end_ts: int, seen: int, proven: int,
) -> None:  # fmt: skip
    """Write a row of `waits`: it has eleven parameters because a row has eight columns."""
    waits = written[1]
    at = state[ST.WAITS]
    waits[at, WT.CONNECTION] = conn[CONN.ID]
    waits[at, WT.SUBSCRIPTION] = rows[row, SUB.ID]
    waits[at, WT.START] = start
    waits[at, WT.START_TS] = start_ts
    waits[at, WT.END] = end
    waits[at, WT.END_TS] = end_ts
    waits[at, WT.SEEN] = seen
    waits[at, WT.PROVEN] = proven
    state[ST.WAITS] = at + 1
