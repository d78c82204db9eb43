"""Events to rows for `numbering_rules`: notes of publishes, confirms and ends, and counts of forgotten rows.

Every publish on every connection is noted, because only a later gap shows that it matters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

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
from amqpscope.pipelines.model.connection import CLIENT, GAP_WORDS, SERVER
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
_IS_GAP = np.zeros(WORDS, bool)
_IS_GAP[list(GAP_WORDS)] = True
_KINDS = np.full((3, WORDS), -1, np.int64)
"""Kinds of rows, SURE for every publish, by side (the last: unknown) and EV.WHAT; -1 for none."""
_KINDS[:, _PUBLISH] = SURE
_KINDS[SERVER, [_ACK, _NACK]] = CONFIRM
_KINDS[:, _CLOSE], _KINDS[:, _CLOSE_ALL] = OTHER_CLOSE, OTHER_CLOSES_ALL
_KINDS[CLIENT, [_CLOSE, _OPEN, _CLOSE_ALL]] = CLIENT_CLOSE, OTHER_CLOSE, CLIENT_CLOSES_ALL
_NOTED = _IS_GAP | (_KINDS >= 0).any(axis=0)
_NOTED[SWALLOWS] = True


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


def entries(matrix: Any, unsure: Any, given: Any) -> Entries:
    """Return rows for events, and where frames may be missing.

    Args:
        matrix: the events (EV).
        unsure: which of them are publishes without a certain number.
        given: numbers that their headers give (int64), -1 for none; None for none at all.
    """
    at = np.flatnonzero(_NOTED[matrix[:, EV.WHAT]] | (matrix[:, EV.CUT] > 0))
    word, side, epoch = matrix[at, EV.WHAT], matrix[at, EV.FROM_CLIENT], matrix[at, EV.EPOCH]
    cut = np.where(matrix[at, EV.SOURCE] == FRAMES, matrix[at, EV.CUT], 0)
    lacks = (side == CLIENT) & (_IS_GAP[word] | (word == SWALLOWS) | (cut == 1))
    lost = (side == SERVER) & (_IS_GAP[word] | (cut > 0))
    kind = _KINDS[side, word]
    kind[(kind < CLIENT_CLOSES_ALL) & ((matrix[at, EV.CHANNEL] < 0) | (epoch < 0))] = -1
    kind[((kind == CONFIRM) & (matrix[at, EV.NUMBER] <= 0)) | ((word == _OPEN) & (epoch <= 0))] = -1
    mine = np.flatnonzero(kind >= 0)
    noted, kind = at[mine], kind[mine]
    events = matrix[noted]
    key = (events[:, EV.CHANNEL] << 32 | events[:, EV.EPOCH]) - (word[mine] == _OPEN)  # of the epoch before
    rows = np.empty((len(noted), TURN.WIDTH), np.int64)
    rows[:, TURN.KIND] = np.where((kind == SURE) & unsure[noted], UNSURE, kind)
    rows[:, TURN.EPOCH] = np.where(kind >= CLIENT_CLOSES_ALL, ALL_EPOCHS, key)
    rows[:, TURN.TS] = events[:, EV.TS]
    rows[:, TURN.BEGUN] = np.where(events[:, EV.FIRST_TS] >= 0, events[:, EV.FIRST_TS], events[:, EV.TS])
    rows[:, TURN.NUMBER] = np.where(kind <= CONFIRM, events[:, EV.NUMBER], -1)
    rows[:, TURN.GIVEN] = -1 if given is None else given[noted]
    rows[:, TURN.GAP], rows[:, TURN.LOST] = np.cumsum(lacks)[mine], np.cumsum(lost)[mine]
    rows[:, TURN.PARTIAL] = (kind == SURE) & (events[:, EV.PARTIAL] == 1)
    places = at[lacks]
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
        rows, noted, places, at[lost], matrix[places, EV.TS], lacking,
        int(np.count_nonzero(~there)), int(is_content[0]) if len(sent) else -1,
    )  # fmt: skip


def widened(missing: Any, is_content: Any) -> Any:
    """Return bytes of gaps (int64, -1 for unknown), with BEHIND where a content without its method follows (bool)."""
    return np.where(is_content & (missing >= 0), missing + BEHIND, missing)


def fold(rows: Any, bases: Any) -> None:
    """Count rows (TURN, EPOCH by number) in `bases` (BASE), before they are forgotten."""
    rows = rows[rows[:, TURN.KIND] <= CONFIRM]
    np.maximum.at(bases[:, BASE.UNTIL], rows[:, TURN.EPOCH], rows[:, TURN.TS])
    rows = rows[rows[:, TURN.KIND] < CONFIRM]
    rows = rows[np.argsort(rows[:, TURN.EPOCH], kind="stable")]
    epoch, number = rows[:, TURN.EPOCH], rows[:, TURN.NUMBER]
    turn = bases[epoch, BASE.COUNT] + np.arange(1, len(rows) + 1) - np.searchsorted(epoch, epoch)
    bases[:, BASE.COUNT] += np.bincount(epoch, minlength=len(bases))
    np.maximum.at(bases[:, BASE.GAP], epoch, rows[:, TURN.GAP])
    known = number >= 0
    np.maximum.at(bases[:, BASE.AHEAD], epoch[known], (number - turn)[known])
