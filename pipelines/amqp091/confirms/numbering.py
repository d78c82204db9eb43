"""Kernels that derive the numbers of publishes; the rules are in `numbering_rules`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.pipelines.amqp091.confirms.numbering_rules import (
    BASE,
    CLIENT_CLOSE,
    CLIENT_CLOSES_ALL,
    CONFIRM,
    COUNTED,
    EPOCH,
    EXPECTS,
    NONE,
    OTHER_CLOSE,
    OTHER_CLOSES_ALL,
    OVER,
    PAUSE_NS,
    PROVEN,
    QUIET_NS,
    SEGMENT,
    TIMES,
    TURN,
    TURNS,
    UNKNOWN,
    UNSURE,
    room_for,
)

STEP = 1 << 20
"""Rows that are processed at a time."""
_MOST = (1 << 63) - 1

Release = Callable[[int, int], None]


def nothing(first: int, end: int) -> None:
    """Keep rows in memory."""


def derive(rows: Array, bases: Array, gaps: Array, compiled: bool = False, release: Release = nothing) -> None:
    """Derive the numbers of publishes: NUMBER becomes the derived number, EXPECTS or -1, and GIVEN how it is known.

    Args:
        rows: TURN, int64; overwritten.
        bases: BASE, a row per epoch (those of a connection together).
        gaps: int64 (2, gaps): time at which each gap was certain, below all times for the beginning of a connection;
            and the bytes that are missing, -1 for unknown.
        compiled: whether kernels are compiled.
        release: called with a range of rows that are not needed for now.
    """
    epochs = _epochs(bases)
    parts = [(first, min(first + STEP, len(rows))) for first in range(0, len(rows), STEP)]
    made = closed = 0
    ragged = np.zeros(gaps.shape[1] + 1, np.bool_)
    for first, end in parts:
        made, closed = call(count, compiled, rows, epochs, first, end, made, closed)
        cut = rows[first:end, TURN.GAP][rows[first:end, TURN.PARTIAL] == 1]
        ragged[cut] = ragged[cut + 1] = True
        release(first, end)
    room = np.cumsum(room_for(gaps[1], ragged[:-1]))
    segments = np.full((made + 2 * len(bases) + 1, SEGMENT.WIDTH), NONE, np.int64)
    segments[:, [SEGMENT.FIRST, SEGMENT.BY, SEGMENT.TURNS, SEGMENT.IN_TURN]] = 0
    made = 0
    for first, end in reversed(parts):
        made = call(link, compiled, rows, epochs, segments, first, end, made)
        release(first, end)
    made = _join(bases, epochs, segments, made)
    for first, end in parts:
        call(tally, compiled, rows, epochs, segments, first, end)
        release(first, end)
    call(judge, compiled, epochs, segments, room, made)
    for first, end in parts:
        _write(rows[first:end], segments, gaps[0])
        release(first, end)


def _epochs(bases: Ints) -> Ints:
    """Return epochs with what is known of publishes before the rows."""
    epochs = np.zeros((len(bases), EPOCH.WIDTH), np.int64)
    epochs[:, [EPOCH.COUNT, EPOCH.SENT, EPOCH.UNTIL]] = bases[:, [BASE.COUNT, BASE.COUNT, BASE.UNTIL]]
    epochs[:, [EPOCH.LOST, EPOCH.GAP, EPOCH.END_TURN, EPOCH.END_TS, EPOCH.NEXT, EPOCH.SEGMENT]] = -1
    epochs[:, EPOCH.AHEAD] = NONE
    return epochs


def _join(bases: Ints, epochs: Ints, segments: Ints, made: int) -> int:
    """Add what is known of the numbers of publishes before the rows; return the number of segments."""
    known = np.flatnonzero((epochs[:, EPOCH.SEGMENT] >= 0) & (bases[:, BASE.AHEAD] != NONE))
    at = epochs[known, EPOCH.SEGMENT]
    other = segments[at, SEGMENT.GAP] != bases[known, BASE.GAP]
    at[other] = np.arange(made, made + np.count_nonzero(other))
    segments[at, SEGMENT.EPOCH], segments[at, SEGMENT.GAP] = known, bases[known, BASE.GAP]
    segments[at, SEGMENT.COUNTED] = np.maximum(segments[at, SEGMENT.COUNTED], bases[known, BASE.AHEAD])
    return made + int(np.count_nonzero(other))


def _write(rows: Ints, segments: Ints, gap_ts: Ints) -> None:
    """Write the numbers of publishes that have none for certain, and how they are known."""
    at = np.flatnonzero(rows[:, TURN.KIND] == UNSURE)
    turn, of = rows[at, TURN.NUMBER], rows[at, TURN.LOST]
    how, ahead = segments[of, SEGMENT.BY], segments[of, SEGMENT.AHEAD]
    rows[:, TURN.NUMBER], rows[:, TURN.GIVEN] = -1, 0
    known = (how != 0) & (ahead <= _MOST - turn) & (turn + ahead > 0)
    at, how, number = at[known], how[known], (turn + ahead)[known]
    # What was read late has the time of reading, not its own.
    how = np.where(rows[at, TURN.BEGUN] < gap_ts[rows[at, TURN.GAP]], UNKNOWN, how)
    rows[at, TURN.NUMBER], rows[at, TURN.GIVEN] = np.where(how == UNKNOWN, EXPECTS, number), how


@kernel
def close(epochs: Array, e: int, ts: int, gap: int, lost: int, by_client: int) -> None:
    """End an epoch, unless it has ended already."""
    if epochs[e, EPOCH.END_TS] < 0:
        epochs[e, EPOCH.END_TS] = ts
    if by_client == 1 and epochs[e, EPOCH.END_TURN] < 0:
        epochs[e, EPOCH.END_TURN] = epochs[e, EPOCH.COUNT] + 1
        epochs[e, EPOCH.END_GAP] = gap
        epochs[e, EPOCH.LOST] = max(epochs[e, EPOCH.LOST], lost)


@kernel
def count(rows: Array, epochs: Array, first: int, end: int, made: int, closed: int) -> tuple[int, int]:
    """Go forward: count the publishes of an epoch, and find its end.

    Args:
        rows: TURN.
        epochs: EPOCH.
        first: row to begin with.
        end: row before which to end.
        made: how often there was a gap between publishes of an epoch.
        closed: bit 0: the client closed the connection that the rows are of, bit 1: the broker did.

    Returns:
        made, closed.
    """
    for i in range(first, end):
        kind = rows[i, TURN.KIND]
        e = rows[i, TURN.EPOCH]
        ts = rows[i, TURN.TS]
        gap = rows[i, TURN.GAP]
        lost = rows[i, TURN.LOST]
        if kind <= CONFIRM:
            epochs[e, EPOCH.UNTIL] = max(epochs[e, EPOCH.UNTIL], ts)
            epochs[e, EPOCH.LOST] = max(epochs[e, EPOCH.LOST], lost)
            if kind == CONFIRM:
                rows[i, TURN.TS] = epochs[e, EPOCH.UNTIL]
            else:
                epochs[e, EPOCH.COUNT] += 1
                if gap != epochs[e, EPOCH.GAP]:
                    epochs[e, EPOCH.GAP] = gap
                    made += 1
        elif kind <= OTHER_CLOSE:
            close(epochs, e, ts, gap, lost, 1 if kind == CLIENT_CLOSE else 0)
        else:
            bit = 1 if kind == CLIENT_CLOSES_ALL else 2
            if kind == OVER or closed & bit == 0:
                for other in range(e, rows[i, TURN.NUMBER] if rows[i, TURN.NUMBER] >= 0 else len(epochs)):
                    close(epochs, other, ts, gap, lost, 0 if kind == OTHER_CLOSES_ALL else 1)
            closed = 0 if kind == OVER else closed | bit
    return made, closed


@kernel
def link(rows: Array, epochs: Array, segments: Array, first: int, end: int, made: int) -> int:
    """Go backward: set turns, segments, and of each publish the next of its epoch; return the number of segments.

    Segments of an epoch are made from its last to its first.
    """
    for back in range(end - first):
        i = end - 1 - back
        kind = rows[i, TURN.KIND]
        if kind > UNSURE:
            continue
        e = rows[i, TURN.EPOCH]
        gap = rows[i, TURN.GAP]
        turn = epochs[e, EPOCH.COUNT]
        epochs[e, EPOCH.COUNT] -= 1
        at = epochs[e, EPOCH.SEGMENT]
        if at < 0:
            if epochs[e, EPOCH.END_TURN] >= 0 and epochs[e, EPOCH.END_GAP] > gap:
                segments[made, SEGMENT.EPOCH] = e
                segments[made, SEGMENT.GAP] = epochs[e, EPOCH.END_GAP]
                epochs[e, EPOCH.LAST_SEGMENT] = made
                made += 1
            else:
                epochs[e, EPOCH.LAST_SEGMENT] = made
            epochs[e, EPOCH.LEAST] = rows[i, TURN.BEGUN]
        if at < 0 or segments[at, SEGMENT.GAP] != gap:
            at = made
            segments[made, SEGMENT.EPOCH] = e
            segments[made, SEGMENT.GAP] = gap
            made += 1
            epochs[e, EPOCH.SEGMENT] = at
        epochs[e, EPOCH.LEAST] = min(epochs[e, EPOCH.LEAST], rows[i, TURN.BEGUN])
        if rows[i, TURN.NUMBER] >= 0 and rows[i, TURN.NUMBER] - turn > segments[at, SEGMENT.COUNTED]:
            segments[at, SEGMENT.COUNTED] = rows[i, TURN.NUMBER] - turn
        if rows[i, TURN.GIVEN] > 0:
            given = rows[i, TURN.GIVEN] - turn
            if segments[at, SEGMENT.GIVEN_LEAST] == NONE or given < segments[at, SEGMENT.GIVEN_LEAST]:
                segments[at, SEGMENT.GIVEN_LEAST] = given
            segments[at, SEGMENT.GIVEN_MOST] = max(segments[at, SEGMENT.GIVEN_MOST], given)
        if kind == UNSURE:
            segments[at, SEGMENT.FIRST] = turn
        rows[i, TURN.NUMBER] = turn
        rows[i, TURN.TS] = epochs[e, EPOCH.LEAST]
        rows[i, TURN.GIVEN] = epochs[e, EPOCH.NEXT]
        rows[i, TURN.LOST] = at
        epochs[e, EPOCH.NEXT] = i
    return made


@kernel
def conclude(rows: Array, epochs: Array, segments: Array, e: int) -> None:
    """Note what the confirms of a turn show: all came after the same number of publishes had begun."""
    turn = epochs[e, EPOCH.TURN]
    if turn == 0:
        return
    follows = epochs[e, EPOCH.FOLLOWS]
    at = rows[follows, TURN.LOST] if follows >= 0 else epochs[e, EPOCH.LAST_SEGMENT]
    tag = epochs[e, EPOCH.TAG]
    bound = tag - (turn - 1)
    segments[at, SEGMENT.TAG] = max(segments[at, SEGMENT.TAG], tag)
    if bound > segments[at, SEGMENT.BOUND]:
        segments[at, SEGMENT.BOUND] = bound
        segments[at, SEGMENT.BOUND_FIRST] = turn
        segments[at, SEGMENT.IN_TURN] = 0
    if bound == segments[at, SEGMENT.BOUND]:
        segments[at, SEGMENT.BOUND_LAST] = turn
    until = -1
    if follows >= 0:
        until = rows[follows, TURN.BEGUN]
        segments[at, SEGMENT.FOLLOWED] = max(segments[at, SEGMENT.FOLLOWED], bound)
    end = epochs[e, EPOCH.END_TS]
    if epochs[e, EPOCH.END_TURN] == turn and end >= 0 and (until < 0 or end < until):
        until = end
    lost, pause = epochs[e, EPOCH.LOST_BEFORE], until - epochs[e, EPOCH.WHEN]
    if lost > segments[at, SEGMENT.TURNS_LOST]:
        segments[at, SEGMENT.TURNS_LOST] = lost
        segments[at, SEGMENT.TURNS] = 0
        segments[at, SEGMENT.IN_TURN] = 0
    segments[at, SEGMENT.TURNS] += 1
    if epochs[e, EPOCH.SINCE] != segments[at, SEGMENT.GAP]:
        return
    answer = epochs[e, EPOCH.WHEN] - epochs[e, EPOCH.BEGAN]
    if bound == segments[at, SEGMENT.BOUND] and epochs[e, EPOCH.BEGAN] >= 0 and pause >= max(PAUSE_NS, TIMES * answer):
        segments[at, SEGMENT.IN_TURN] += 1
    if pause >= QUIET_NS:
        if lost > segments[at, SEGMENT.QUIET_LOST]:
            segments[at, SEGMENT.QUIET_LOST] = lost
            segments[at, SEGMENT.QUIET_BOUND] = bound
        elif lost == segments[at, SEGMENT.QUIET_LOST] and bound > segments[at, SEGMENT.QUIET_BOUND]:
            segments[at, SEGMENT.QUIET_BOUND] = bound


@kernel
def tally(rows: Array, epochs: Array, segments: Array, first: int, end: int) -> None:
    """Go forward: which publishes had begun when each confirm came, and what that shows of the segment."""
    for i in range(first, end):
        e = rows[i, TURN.EPOCH]
        tag = rows[i, TURN.NUMBER]
        if rows[i, TURN.KIND] != CONFIRM or tag <= 0 or epochs[e, EPOCH.SEGMENT] < 0:
            continue
        when = rows[i, TURN.TS]
        began = -1
        while epochs[e, EPOCH.NEXT] >= 0 and rows[epochs[e, EPOCH.NEXT], TURN.TS] <= when:
            began = max(began, rows[epochs[e, EPOCH.NEXT], TURN.BEGUN])
            epochs[e, EPOCH.NEXT] = rows[epochs[e, EPOCH.NEXT], TURN.GIVEN]
            epochs[e, EPOCH.SENT] += 1
        if epochs[e, EPOCH.SENT] + 1 != epochs[e, EPOCH.TURN]:
            conclude(rows, epochs, segments, e)
            epochs[e, EPOCH.TURN] = epochs[e, EPOCH.SENT] + 1
            epochs[e, EPOCH.BEGAN] = began
            epochs[e, EPOCH.FOLLOWS] = epochs[e, EPOCH.NEXT]
            epochs[e, EPOCH.TAG] = 0
        epochs[e, EPOCH.TAG] = max(epochs[e, EPOCH.TAG], tag)
        epochs[e, EPOCH.WHEN] = when
        epochs[e, EPOCH.SINCE] = rows[i, TURN.GAP]
        epochs[e, EPOCH.LOST_BEFORE] = rows[i, TURN.LOST]
    if end == len(rows):
        for e in range(len(epochs)):
            conclude(rows, epochs, segments, e)


@kernel
def judge(epochs: Array, segments: Array, room: Array, made: int) -> None:
    """Decide for each segment what `ahead` is, and how that is known; `room` is that of all gaps up to each (int64)."""
    for back in range(made):
        s = made - 1 - back
        e = segments[s, SEGMENT.EPOCH]
        bound = segments[s, SEGMENT.BOUND]
        followed = segments[s, SEGMENT.FOLLOWED]
        counted = segments[s, SEGMENT.COUNTED]
        given = segments[s, SEGMENT.GIVEN_LEAST]
        if counted < followed:
            counted = NONE
        if given != segments[s, SEGMENT.GIVEN_MOST] or given < followed:
            given = NONE
        best = counted if counted != NONE else given if given != NONE else bound
        ahead = best if best > epochs[e, EPOCH.AHEAD] else epochs[e, EPOCH.AHEAD]
        gap = segments[s, SEGMENT.GAP]
        most = epochs[e, EPOCH.AHEAD] + room[gap] - room[epochs[e, EPOCH.UP_TO]]
        forced = epochs[e, EPOCH.EXACT] == 1 and ahead == most
        epochs[e, EPOCH.AHEAD] = ahead
        segments[s, SEGMENT.AHEAD] = ahead
        # After the last seen publish there may be unseen ones, which nothing later shows.
        reached = followed != NONE and followed == ahead
        at_rest = (
            bound != NONE
            and segments[s, SEGMENT.QUIET_BOUND] == ahead
            and segments[s, SEGMENT.QUIET_LOST] == epochs[e, EPOCH.LOST]
            and segments[s, SEGMENT.BOUND_FIRST] != segments[s, SEGMENT.BOUND_LAST]
        )
        in_turn = (
            bound == ahead
            and segments[s, SEGMENT.TURNS_LOST] == epochs[e, EPOCH.LOST]
            and segments[s, SEGMENT.IN_TURN] >= TURNS
            and 2 * segments[s, SEGMENT.IN_TURN] >= segments[s, SEGMENT.TURNS]
        )
        agreed = given != NONE and given == ahead and (reached or bound == ahead)
        by = UNKNOWN
        if counted != NONE and counted == ahead and bound <= ahead:
            by = COUNTED
        elif ((at_rest or in_turn) and reached) or agreed or forced:
            by = PROVEN
        epochs[e, EPOCH.EXACT] = 0 if by == UNKNOWN else 1
        epochs[e, EPOCH.UP_TO] = gap
        first = segments[s, SEGMENT.FIRST]
        tag = segments[s, SEGMENT.TAG]
        confirmed = tag > NONE and (tag - ahead >= first if ahead >= 0 else tag >= first + ahead)
        segments[s, SEGMENT.BY] = by if first > 0 and (confirmed or counted != NONE) else 0
