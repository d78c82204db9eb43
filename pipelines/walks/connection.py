"""What every walk knows of the open connection: which sides were seen, what is missing, how it closed.

`conn` is one row (CONN). `gaps` (int64, three columns) lists where frames may be missing: row 2 * k + side is gap k of
that side, with the number of the frame after it, the time at which that was certain, and the number of the last frame
of that side before it (-1 for none).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.pipelines.walks.events import ANOMALIES, CONNECTIONS, EV, FRAMES, FRAMES_010, STREAM_FRAMES, what
from amqpscope.pipelines.walks.store import declare, grown

SERVER, CLIENT = range(2)
"""Sides: `from_client` as a number."""


class Connection(NamedTuple):
    """Columns of `conn`; -1 where nothing is known."""

    ID: int  # connection_id
    HAS_ROW: int  # 1: it has a row in `connections`
    SILENCE_TS: int  # time of its first FIN or RST, else of its last packet
    CLOSED: int  # 1: there was a FIN or RST; 2: it was evicted
    PART: int  # 1: only a part of a capture was dissected; a side may be silent in it
    SEEN_SERVER: int  # 1: frames of that side were seen
    SEEN_CLIENT: int
    SPOKEN: int  # 1: a frame shows that both sides have spoken
    LAST_SERVER: int  # number of the last frame of that side
    LAST_CLIENT: int
    LAST_FRAME: int  # of either
    LAST_TS: int  # largest time of a frame
    SERVER_CLOSE: int  # number of the first connection.close (streams: close) of that side
    CLIENT_CLOSE: int
    SERVER_CLOSE_TS: int
    CLIENT_CLOSE_TS: int
    SERVER_CLOSE_EVENT: int  # its event's id
    CLIENT_CLOSE_EVENT: int
    SERVER_GAPS: int  # rows of `gaps` of that side
    CLIENT_GAPS: int


CONN = declare(Connection)
GAP_FRAME, GAP_TS, GAP_SINCE = range(3)

_GAP_CODES = tuple(
    what(ANOMALIES, code)
    for code in (
        "tcp-gap", "bytes-skipped", "frame-type-unknown", "frame-too-large", "frame-end-wrong", "header-unknown",
        "amqp-header-unexpected", "tls-unexpected", "http-unexpected", "frame-length-wrong",
    )
)  # fmt: skip
"""Anomalies after which frames of that direction may be missing."""
_GAP_1, _GAP_2, _GAP_3, _GAP_4, _GAP_5, _GAP_6, _GAP_7, _GAP_8, _GAP_9, _GAP_10 = _GAP_CODES
_CONNECTION = what(CONNECTIONS)
_CLOSE, _CLOSE_010 = (what(source, "connection.close") for source in (FRAMES, FRAMES_010))
_START, _START_010 = (what(source, "connection.start") for source in (FRAMES, FRAMES_010))
_STREAM_CLOSE, _PROPERTIES = what(STREAM_FRAMES, "close"), what(STREAM_FRAMES, "peer-properties")


def fresh() -> tuple[Array, Array]:
    """Return a `conn` without a connection, and `gaps`."""
    return np.full(len(CONN), -1, np.int64), np.zeros((64, 3), np.int64)


def with_room(conn: Array, gaps: Array, lacking: int) -> Array:
    """`gaps` with room for what a batch may add (`Events.lacking`)."""
    most = max(int(conn[CONN.SERVER_GAPS]), int(conn[CONN.CLIENT_GAPS]), 0)
    return grown(gaps, 2 * (most + lacking + 1))


@kernel
def is_gap(what: int) -> bool:
    """Return whether an anomaly means that frames may be missing before its frame number."""
    return what in (_GAP_1, _GAP_2, _GAP_3, _GAP_4, _GAP_5, _GAP_6, _GAP_7, _GAP_8, _GAP_9, _GAP_10)


@kernel
def open_connection(conn: Array, identity: int) -> None:
    """Begin the next connection, and forget the last one."""
    for column in range(len(conn)):
        conn[column] = -1
    conn[CONN.ID] = identity
    conn[CONN.SERVER_GAPS] = 0
    conn[CONN.CLIENT_GAPS] = 0


@kernel
def add_gap(conn: Array, gaps: Array, side: int, frame: int, ts: int) -> None:
    """Note a place at which frames of a side may be missing."""
    row = 2 * conn[CONN.SERVER_GAPS + side] + side
    if row < len(gaps):
        gaps[row, GAP_FRAME] = frame
        gaps[row, GAP_TS] = ts
        gaps[row, GAP_SINCE] = conn[CONN.LAST_SERVER + side]
        conn[CONN.SERVER_GAPS + side] += 1


@kernel
def attend(conn: Array, gaps: Array, events: Array, i: int, identity: int) -> None:
    """Note what an event says of its connection, which is open. Call this for every event before using it.

    A cut frame is a gap of its channel alone: the walk notes it (EV.CUT).

    Args:
        conn: CONN.
        gaps: see the module.
        events: EV.
        i: the event.
        identity: the event's id.
    """
    source = events[i, EV.SOURCE]
    side = events[i, EV.FROM_CLIENT]
    word = events[i, EV.WHAT]
    ts = events[i, EV.TS]
    if source == CONNECTIONS:
        conn[CONN.HAS_ROW] = 1
        closed = events[i, EV.NUMBER]
        conn[CONN.SILENCE_TS] = closed if closed >= 0 else ts
        conn[CONN.CLOSED] = events[i, EV.MULTIPLE]
        conn[CONN.PART] = 1 if events[i, EV.PARTIAL] == 1 else 0
    elif source == ANOMALIES:
        if side >= 0 and is_gap(word):
            add_gap(conn, gaps, side, events[i, EV.ORDER], ts)
    elif (source == FRAMES or source == STREAM_FRAMES or source == FRAMES_010) and side >= 0:
        conn[CONN.SEEN_SERVER + side] = 1
        conn[CONN.LAST_SERVER + side] = events[i, EV.ORDER]
        conn[CONN.LAST_FRAME] = events[i, EV.ORDER]
        conn[CONN.LAST_TS] = max(conn[CONN.LAST_TS], ts)
        if source == STREAM_FRAMES:
            if side == SERVER or word != _PROPERTIES:
                conn[CONN.SPOKEN] = 1
        elif word > 0 and (side == CLIENT or not may_be_first(word)):
            conn[CONN.SPOKEN] = 1
        if closes(word, events[i, EV.RESPONSE]) and conn[CONN.SERVER_CLOSE + side] < 0:
            conn[CONN.SERVER_CLOSE + side] = events[i, EV.ORDER]
            conn[CONN.SERVER_CLOSE_TS + side] = ts
            conn[CONN.SERVER_CLOSE_EVENT + side] = identity


@kernel
def may_be_first(word: int) -> bool:
    """Return whether a method may be the first that a server sends on a connection."""
    return word == _START or word == _START_010 or closes(word, 0)


@kernel
def closes(word: int, response: int) -> bool:
    """Return whether a frame closes its connection."""
    return word == _CLOSE or word == _CLOSE_010 or (word == _STREAM_CLOSE and response != 1)


@kernel
def is_missing(conn: Array, side: int) -> bool:
    """Return whether a whole direction is missing so far: the other side speaks as if it had been answered."""
    other = CLIENT - side
    one = conn[CONN.SEEN_SERVER + side] != 1 and conn[CONN.SEEN_SERVER + other] == 1
    return one and conn[CONN.SPOKEN] == 1 and conn[CONN.PART] != 1


@kernel
def first_gap(conn: Array, gaps: Array, side: int, frame: int) -> int:
    """Return the row of `gaps` of a side's first gap after a frame; -1 for none."""
    low = 0
    high = conn[CONN.SERVER_GAPS + side]
    while low < high:
        middle = (low + high) // 2
        if gaps[2 * middle + side, GAP_FRAME] > frame:
            high = middle
        else:
            low = middle + 1
    return 2 * low + side if low < conn[CONN.SERVER_GAPS + side] else -1
