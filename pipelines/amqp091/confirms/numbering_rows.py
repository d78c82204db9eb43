"""Events to rows for `numbering_rules`: notes of publishes, confirms and ends, and counts of forgotten rows.

Every publish on every connection is noted, because only a later gap shows that it matters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from amqpscope import spec
from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import call, kernel
from amqpscope.pipelines.amqp091.confirms.numbering_rules import (
    BASE,
    BEHIND,
    CLIENT_CLOSE,
    CLIENT_CLOSES_ALL,
    CONFIRM,
    OTHER_CLOSE,
    OTHER_CLOSES_ALL,
    SURE,
    TURN,
    UNSURE,
)
from amqpscope.pipelines.amqp091.frames import FRAMES
from amqpscope.pipelines.model.connection import CLIENT, SERVER, is_gap
from amqpscope.pipelines.model.event_rows import GAP
from amqpscope.pipelines.model.events import ANOMALIES, EV, MESSAGES, WORDS, what

ALL_EPOCHS = -1
"""Key of rows that concern a connection."""

_PUBLISH = what(MESSAGES, "publish")
_ACK, _NACK = what(FRAMES, "basic.ack"), what(FRAMES, "basic.nack")
_OPEN, _CLOSE, _CLOSE_ALL = (what(FRAMES, name) for name in ("channel.open", "channel.close", "connection.close"))
SWALLOWS = what(ANOMALIES, "bytes-left-over")
"""A frame is longer than its fields: if its length was damaged, others lie in it."""
_GAP = what(ANOMALIES, GAP)
_NOTED = np.zeros(WORDS, bool)
_NOTED[[_PUBLISH, _ACK, _NACK, _OPEN, _CLOSE, _CLOSE_ALL, SWALLOWS]] = True
_NOTED[[word for word in (what(ANOMALIES, code) for code in spec.anomalies()) if is_gap(word)]] = True
_NOTHING = np.zeros(0, np.int64)


class Entries(NamedTuple):
    """Rows for events."""

    rows: Any  # TURN: EPOCH is a key of the channel epoch; GAP and LOST count from the first event
    at: Any  # positions of their events
    gaps: Any  # positions of gaps in what the client sent
    lost: Any  # of gaps in what the broker sent
    gap_ts: Any  # time of each of the former
    missing: Any  # and its bytes, and BEHIND where a content without its method follows; -1 for unknown
    pending: int  # the last gaps of the client behind which it has sent nothing yet
    begins: int  # what it sent first here: 1 for the content of a publish, 0 for else, -1 for nothing


def is_publish(matrix: Any) -> Any:
    """Return which events (EV) are publishes on channels."""
    return (matrix[:, EV.WHAT] == _PUBLISH) & (matrix[:, EV.CHANNEL] >= 0) & (matrix[:, EV.EPOCH] >= 0)


def entries(matrix: Any, unsure: Any, given: Any, compiled: bool = False) -> Entries:
    """Return rows for events, and where frames may be missing.

    Args:
        matrix: the events (EV).
        unsure: which of them are publishes without a certain number.
        given: numbers that their headers give (int64), -1 for none; None for none at all.
        compiled: whether kernels run compiled.
    """
    at = np.flatnonzero(_NOTED[matrix[:, EV.WHAT]] | (matrix[:, EV.CUT] > 0))
    rows, missing = np.empty((len(at), len(TURN)), np.int64), np.empty((2, len(at)), np.int64)
    counts = np.zeros(3, np.int64)
    call(note, compiled, matrix, unsure, _NOTHING if given is None else given, at, rows, missing, counts)
    noted, gaps, lost = counts
    places = missing[CLIENT, :gaps].copy()
    lacking = np.where(matrix[places, EV.WHAT] == _GAP, matrix[places, EV.NUMBER], -1)
    sent = np.flatnonzero((matrix[:, EV.SOURCE] == FRAMES) & (matrix[:, EV.FROM_CLIENT] == CLIENT))
    # A frame without a method is one of a content, or (channel 0) a heartbeat.
    is_content = (matrix[sent, EV.WHAT] == 0) & (matrix[sent, EV.CHANNEL] > 0)
    follows = np.searchsorted(sent, places)
    there = follows < len(sent)
    after = follows[there]
    same = matrix[sent[after], EV.CONNECTION] == matrix[places[there], EV.CONNECTION]
    lacking[there] = widened(lacking[there], same & is_content[after])
    return Entries(
        rows[:noted], at[:noted], places, missing[SERVER, :lost].copy(), matrix[places, EV.TS], lacking,
        int(np.count_nonzero(~there)), int(is_content[0]) if len(sent) else -1,
    )  # fmt: skip


def widened(missing: Any, is_content: Any) -> Any:
    """Return bytes of gaps (int64, -1 for unknown), with BEHIND where a content without its method follows (bool)."""
    return np.where(is_content & (missing >= 0), missing + BEHIND, missing)


@kernel
def note(matrix: Array, unsure: Array, given: Array, at: Array, rows: Array, missing: Array, counts: Array) -> None:
    """Write a row for each event that has one.

    Args:
        matrix: EV.
        unsure: bool per event.
        given: int64 per event, or empty.
        at: positions of events that may have one; written: of those that have one.
        rows: TURN, written.
        missing: written: positions of gaps in what the server (row 0) and the client (row 1) sent.
        counts: written: rows, gaps of the client, gaps of the server.
    """
    for place in range(len(at)):
        i = at[place]
        word, side, cut = matrix[i, EV.WHAT], matrix[i, EV.FROM_CLIENT], matrix[i, EV.CUT]
        unknown = cut if matrix[i, EV.SOURCE] == FRAMES else 0
        if side == CLIENT and (is_gap(word) or word == SWALLOWS or unknown == 1):
            missing[CLIENT, counts[1]] = i
            counts[1] += 1
        elif side == SERVER and (is_gap(word) or unknown > 0):
            missing[SERVER, counts[2]] = i
            counts[2] += 1
        kind = kind_of(matrix, i)
        if kind < 0:
            continue
        row = counts[0]
        counts[0] = row + 1
        at[row] = i
        ts, first_ts = matrix[i, EV.TS], matrix[i, EV.FIRST_TS]
        key = matrix[i, EV.CHANNEL] << 32 | matrix[i, EV.EPOCH]
        if kind >= CLIENT_CLOSES_ALL:
            key = ALL_EPOCHS
        elif word == _OPEN:  # of the epoch before
            key -= 1
        rows[row, TURN.KIND] = UNSURE if kind == SURE and unsure[i] else kind
        rows[row, TURN.EPOCH] = key
        rows[row, TURN.TS] = ts
        rows[row, TURN.BEGUN] = first_ts if first_ts >= 0 else ts
        rows[row, TURN.NUMBER] = matrix[i, EV.NUMBER] if kind <= CONFIRM else -1
        rows[row, TURN.GIVEN] = given[i] if len(given) > 0 else -1
        rows[row, TURN.GAP] = counts[1]
        rows[row, TURN.LOST] = counts[2]
        rows[row, TURN.PARTIAL] = 1 if kind == SURE and matrix[i, EV.PARTIAL] == 1 else 0


@kernel
def kind_of(matrix: Array, i: int) -> int:
    """Return the kind of row that an event has, SURE for every publish; -1 for none."""
    word, side = matrix[i, EV.WHAT], matrix[i, EV.FROM_CLIENT]
    if word == _CLOSE_ALL:
        return CLIENT_CLOSES_ALL if side == CLIENT else OTHER_CLOSES_ALL
    if matrix[i, EV.CHANNEL] < 0 or matrix[i, EV.EPOCH] < 0:
        return -1
    if word == _PUBLISH:
        return SURE
    if word == _ACK or word == _NACK:
        return CONFIRM if side == SERVER and matrix[i, EV.NUMBER] > 0 else -1
    if word == _CLOSE:
        return CLIENT_CLOSE if side == CLIENT else OTHER_CLOSE
    if word == _OPEN and side == CLIENT and matrix[i, EV.EPOCH] > 0:
        return OTHER_CLOSE
    return -1


@kernel
def fold(rows: Array, end: int, bases: Array) -> None:
    """Count the rows before `end` (TURN, EPOCH by number) in `bases` (BASE), before they are forgotten."""
    for i in range(end):
        kind, epoch, number = rows[i, TURN.KIND], rows[i, TURN.EPOCH], rows[i, TURN.NUMBER]
        if kind <= CONFIRM:
            bases[epoch, BASE.UNTIL] = max(bases[epoch, BASE.UNTIL], rows[i, TURN.TS])
        if kind < CONFIRM:
            bases[epoch, BASE.COUNT] += 1
            bases[epoch, BASE.GAP] = max(bases[epoch, BASE.GAP], rows[i, TURN.GAP])
            if number >= 0:
                bases[epoch, BASE.AHEAD] = max(bases[epoch, BASE.AHEAD], number - bases[epoch, BASE.COUNT])
