"""What every walk knows of the open connection: which sides were seen, what is missing, how it closed.

`conn` is one row (CONN). `gaps` (int64, four columns) lists where frames may be missing: row 2 * k + side is gap k of
that side, with the number of the frame after it, the time at which that was certain, and the number of the last frame
of that side before it (-1 for none).

Frames may also be late: where the length of a frame is damaged, the bytes after it wait for its end, while the other
side's frames get their numbers. These may have answered what comes late, so they lack there: this is a gap of the other
side around the late frames, whose first one is the fourth column (-1: frames are missing).
"""

from __future__ import annotations

import numpy as np

from amqpscope import spec
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.model.events import ANOMALIES, CONNECTIONS, EV, FIRST_FRAMES, MESSAGES, what
from amqpscope.pipelines.model.store import grown

SERVER, CLIENT = range(2)
"""Sides: `from_client` as a number."""


class CONN(Matrix):
    """Columns of `conn`; -1 where nothing is known."""

    ID = column("connection_id")
    HAS_ROW = column("1: it has a row in `connections`")
    SILENCE_TS = column("time of its first FIN or RST, else of its last packet")
    CLOSED = column("1: there was a FIN or RST; 2: it was evicted")
    PART = column("1: only a part of a capture was dissected; a side may be silent in it")
    SEEN_SERVER = column("1: frames of that side were seen")
    SEEN_CLIENT = column("the same of the client")
    SPOKEN = column("1: a frame, or the verdict on the connection, shows that both sides have spoken")
    LAST_SERVER = column("number of the last frame of that side")
    LAST_CLIENT = column("the same of the client")
    LAST_FRAME = column("of either")
    LAST_TS = column("largest time of a frame")
    SERVER_CLOSE = column("number of that side's first frame that closes the connection")
    CLIENT_CLOSE = column("the same of the client")
    SERVER_CLOSE_TS = column("its time")
    CLIENT_CLOSE_TS = column("the same of the client")
    SERVER_CLOSE_EVENT = column("its event's id")
    CLIENT_CLOSE_EVENT = column("the same of the client")
    SERVER_GAPS = column("rows of `gaps` of that side")
    CLIENT_GAPS = column("the same of the client")
    LATE_SERVER = column("frames of that side with earlier times are late")
    LATE_CLIENT = column("the same of the client")


GAP_FRAME, GAP_TS, GAP_SINCE, GAP_LATE = range(4)

_GAP_CODES = tuple(
    what(ANOMALIES, code)
    for code in (
        "tcp-gap", "bytes-skipped", "bytes-under-way", "frame-type-unknown", "frame-too-large", "frame-end-wrong",
        "header-unknown", "amqp-header-unexpected", "tls-unexpected", "http-unexpected", "frame-length-wrong",
        "frame-version-unknown", "frame-flags-unknown", "frame-head-wrong", "frame-too-short", "frame-track-wrong",
        "frame-reserved-set",
        "frame-cut",
    )
)  # fmt: skip
"""Anomalies after which frames of that direction may be missing, where they have a frame number."""
FRAME_CUT = _GAP_CODES[-1]
GAPS = tuple(code for code in spec.anomalies() if what(ANOMALIES, code) in _GAP_CODES)
"""Their names."""
GAP_WORDS = tuple(what(ANOMALIES, code) for code in GAPS)
MAY_BE_ANOTHER = what(ANOMALIES, "channel-wrong"), what(ANOMALIES, "content-unexpected")
"""Anomalies that mean that a frame may be another one, whose type was damaged."""
_CONNECTION = what(CONNECTIONS)


def fresh() -> tuple[Array, Array]:
    """Return a `conn` without a connection, and `gaps`."""
    return np.full(CONN.WIDTH, -1, np.int64), np.zeros((64, 4), np.int64)


def with_room(conn: Array, gaps: Array, lacking: int) -> Array:
    """`gaps` with room for what a batch may add (`Events.lacking`)."""
    most = max(int(conn[CONN.SERVER_GAPS]), int(conn[CONN.CLIENT_GAPS]), 0)
    return grown(gaps, 2 * (most + lacking + 1))


def used(conn: Array, gaps: Array) -> Array:
    """Return the part of `gaps` that has any: for the state of a walk."""
    return gaps[: 2 * (int(conn[[CONN.SERVER_GAPS, CONN.CLIENT_GAPS]].max()) + 1)]


@kernel
def open_connection(conn: Array, identity: int) -> None:
    """Begin the next connection, and forget the last one."""
    for number in range(len(conn)):
        conn[number] = -1
    conn[CONN.ID] = identity
    conn[CONN.SERVER_GAPS] = 0
    conn[CONN.CLIENT_GAPS] = 0


@kernel
def add_gap(conn: Array, gaps: Array, side: int, frame: int, ts: int, late: int) -> None:
    """Note a place at which frames of a side may be missing (`late` -1), or late from that frame on."""
    row = 2 * conn[CONN.SERVER_GAPS + side] + side
    if row < len(gaps):
        gaps[row, GAP_FRAME] = frame
        gaps[row, GAP_TS] = ts
        gaps[row, GAP_SINCE] = conn[CONN.LAST_SERVER + side]
        gaps[row, GAP_LATE] = late
        conn[CONN.SERVER_GAPS + side] += 1


@kernel
def update_connection(conn: Array, gaps: Array, events: Array, i: int, identity: int) -> None:
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
        conn[CONN.SILENCE_TS] = events[i, EV.NUMBER] if events[i, EV.NUMBER] >= 0 else ts
        conn[CONN.CLOSED] = events[i, EV.MULTIPLE]
        conn[CONN.PART] = 1 if events[i, EV.PARTIAL] == 1 else 0
        if events[i, EV.RESPONSE] == 1:
            conn[CONN.SPOKEN] = 1
    elif source == ANOMALIES:
        frame = events[i, EV.ORDER]
        # What is cut after a close is not cut by the end of the capture.
        closed = conn[CONN.CLOSED] == 1 or conn[CONN.SERVER_CLOSE] >= 0 or conn[CONN.CLIENT_CLOSE] >= 0
        lacks = closed if word == FRAME_CUT else word in GAP_WORDS or word in MAY_BE_ANOTHER
        if side >= 0 and frame >= 0 and lacks:
            add_gap(conn, gaps, side, frame, ts, -1)
            if ts < conn[CONN.LAST_TS]:
                add_gap(conn, gaps, CLIENT - side, frame, ts, frame)
                conn[CONN.LATE_SERVER + side] = conn[CONN.LAST_TS]
    elif FIRST_FRAMES <= source < MESSAGES and side >= 0:
        conn[CONN.SEEN_SERVER + side] = 1
        conn[CONN.LAST_SERVER + side] = events[i, EV.ORDER]
        conn[CONN.LAST_FRAME] = events[i, EV.ORDER]
        conn[CONN.LAST_TS] = max(conn[CONN.LAST_TS], ts)
        if events[i, EV.SHOWS] == 1:
            conn[CONN.SPOKEN] = 1
        if events[i, EV.CLOSES] == 1 and conn[CONN.SERVER_CLOSE + side] < 0:
            conn[CONN.SERVER_CLOSE + side] = events[i, EV.ORDER]
            conn[CONN.SERVER_CLOSE_TS + side] = ts
            conn[CONN.SERVER_CLOSE_EVENT + side] = identity
    if FIRST_FRAMES <= source <= MESSAGES and side >= 0 and ts < conn[CONN.LATE_SERVER + side]:
        # What the other side sent before a late frame in their order may have come after it.
        last = 2 * (conn[CONN.SERVER_GAPS + CLIENT - side] - 1) + CLIENT - side
        if last >= 0 and gaps[last, GAP_LATE] >= 0:
            gaps[last, GAP_FRAME] = events[i, EV.ORDER] + 1


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
