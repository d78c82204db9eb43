"""Why nobody answered: one rule for all that asks for an answer, whatever the protocol.

What is sent behind the other side's close is discarded; closes may be answered even so, where the capture may lack it.
All else is outstanding until its end: the first close of its scope (a channel epoch, a session) or of the connection,
by either side; or the connection's silence. Where the answering side has a gap that begins before this end, the answer
may have been in it; also behind the end, where that is a client's own close: clients acknowledge what came before also
after that. Nor does a client's close end what it asked where the capture ends before the server says more: it answers
in order.
"""

from __future__ import annotations

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.pipelines.model.connection import (
    CLIENT,
    CONN,
    GAP_FRAME,
    GAP_LATE,
    GAP_SINCE,
    GAP_TS,
    first_gap,
    is_missing,
)

ENDED_BY = (
    None, "capture-end", "gap", "evicted", "channel-close", "connection-close", "discarded", "recover", "rollback",
)  # fmt: skip
"""Names of the numbers that follow."""
PATIENCE_NS = 60_000_000_000
"""A transaction whose tx.select was missed is committed within this."""
ANSWERED, CAPTURE_END, GAP, EVICTED, CHANNEL_CLOSE, CONNECTION_CLOSE, DISCARDED, RECOVER, ROLLBACK = range(9)
NEVER = 1 << 62
Scope = tuple[int, int, int, int, int, int]
"""The server's first close of a scope and the client's (frames), their times, the server's frame by which it is open
anew (behind a close of its own only where the client's is missing that opens it), its time; -1: none."""
WHOLE: Scope = (-1, -1, -1, -1, -1, -1)
"""The scope of what only the end of the connection ends."""
Lost = tuple[int, int, int]
"""A gap: the frame behind it (NEVER: none), the time at which it was certain, the side's last frame before it."""
NOTHING: Lost = (NEVER, -1, -1)


@kernel
def lost_after(conn: Array, gaps: Array, side: int, frame: int, own: Lost) -> Lost:
    """Return the first gap of a side after a frame.

    Args:
        conn: `connection.CONN`.
        gaps: see `connection`.
        side: the side.
        frame: the frame.
        own: the first gap of the scope alone after the frame.
    """
    row = first_gap(conn, gaps, side, frame)
    if row >= 0 and gaps[row, GAP_FRAME] <= own[0]:
        return gaps[row, GAP_FRAME], gaps[row, GAP_TS], gaps[row, GAP_SINCE]
    if own[0] == NEVER and is_missing(conn, side):
        return conn[CONN.LAST_FRAME] + 1, conn[CONN.LAST_TS], -1
    return own


@kernel
def unanswered(
    conn: Array, gaps: Array, side: int, frame: int, scope: Scope, own: Lost, closes: int
) -> tuple[int, int]:
    """Return why nobody answered a frame (ENDED_BY), and when that was certain (-1: when it was sent).

    A scope that the server opens anew was closed before: where no close was seen, frames of both sides are missing.

    Args:
        conn: `connection.CONN`.
        gaps: see `connection`.
        side: the side that should have answered.
        frame: the frame.
        scope: how the scope of the frame ends.
        own: the first gap of the scope alone after the frame: cut frames, which may have answered anything.
        closes: 1 for a close: others that cross it do not end its wait.
    """
    silence = CONNECTION_CLOSE if conn[CONN.CLOSED] == 1 else EVICTED if conn[CONN.CLOSED] == 2 else CAPTURE_END
    end, end_ts, by = NEVER, conn[CONN.SILENCE_TS], silence
    heard, heard_ts, own_end, unheard = NEVER, -1, False, False
    for each in range(4):
        who, whole = each % 2, each // 2
        at = conn[CONN.SERVER_CLOSE + who] if whole == 1 else scope[who]
        ts = conn[CONN.SERVER_CLOSE_TS + who] if whole == 1 else scope[2 + who]
        if 0 <= at < frame:
            gap = first_gap(conn, gaps, CLIENT, at) if whole == 0 else -1
            if whole == 0 and (at < scope[4] < frame or (gap >= 0 and gaps[gap, GAP_SINCE] < frame)):
                return GAP, -1  # the scope was opened again in it
            if who == side and at < heard:
                heard, heard_ts = at, ts
        elif frame <= at < end and closes == 0:
            end, end_ts, by = at, ts, CONNECTION_CLOSE if whole == 1 else CHANNEL_CLOSE
            own_end = who == CLIENT == side
            unheard = who == CLIENT != side and conn[CONN.LAST_SERVER] < at
    lost, lost_ts, since = lost_after(conn, gaps, side, frame, own)
    if unheard and silence == CAPTURE_END:
        end_ts, by = conn[CONN.SILENCE_TS], CAPTURE_END
    silent = by != CONNECTION_CLOSE and conn[CONN.LAST_SERVER + side] < frame
    may_follow = closes == 1 and (lost < NEVER or silent)
    if heard < NEVER and not may_follow:
        gap = first_gap(conn, gaps, side, frame)
        if not (gap >= 0 and 0 <= gaps[gap, GAP_LATE] <= frame):  # else it may be late, and answered before
            return DISCARDED, heard_ts
    if frame < scope[4] < end:
        return GAP, lost_ts if lost < scope[4] else scope[5]
    return (GAP, lost_ts) if lost < NEVER and (since < end or own_end) else (by, end_ts)
