"""Flow control: the few events of a batch that may begin or end a wait, selected with numpy."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from amqpscope import spec
from amqpscope.pipelines.amqp091.frames import FRAMES, PROTOCOL
from amqpscope.pipelines.model.connection import GAP_WORDS
from amqpscope.pipelines.model.events import CONNECTIONS, EV, Events, what

METHODS = (
    "connection.blocked", "connection.unblocked", "connection.close", "channel.flow", "channel.flow-ok",
    "channel.open", "channel.close",
)  # fmt: skip
BLOCKED, UNBLOCKED, CLOSE, FLOW, FLOW_OK, OPEN, CHANNEL_CLOSE = (what(FRAMES, method) for method in METHODS)
ASKED = ("active", "reply_code", "class_id", "method_id")
"""Columns of frames that say what they ask for."""

_AMQP = spec.load(PROTOCOL)
REFUSAL = (
    _AMQP.constant("not-implemented").value, _AMQP.method("channel.flow").class_id, _AMQP.method("channel.flow").id,
)  # fmt: skip
"""Reply code, class and method of the close with which RabbitMQ answers a client's channel.flow that is not active."""

_WORDS = (BLOCKED, UNBLOCKED, CLOSE, FLOW, FLOW_OK, OPEN, CHANNEL_CLOSE, *GAP_WORDS)


class Step(NamedTuple):
    """An event that may matter to waits."""

    at: int
    """Its position in the batch."""
    identity: int
    """connection_id"""
    word: int
    """EV.WHAT"""
    side: int
    channel: int
    epoch: int
    ts: int
    is_gap: bool
    is_cut: bool
    """Whether its content is unknown."""
    active: bool | None
    refuses: bool
    """Whether it is a close that says that channel.flow is not implemented."""
    silence_ts: int
    """Time of the connection's first FIN or RST, else last packet; -1 if its row is not in this batch."""
    ended: bool
    """Whether there was a FIN or RST; not where a direction is missing, in which it may have been closed before."""


def relevant(events: Events, identity: int, scopes: Collection[tuple[int, int]]) -> Iterator[Step]:
    """Yield events that may matter: of connections that wait or are asked to, and of their channels that do.

    Args:
        events: a batch.
        identity: the connection that is open.
        scopes: channels with sides, which wait there.
    """
    matrix, word = events.matrix, events.what
    flows = np.flatnonzero(word == FLOW)
    asks = np.concatenate([flows, np.flatnonzero(word == BLOCKED)])
    subjects = np.unique(matrix[asks, EV.CONNECTION])
    channels = np.unique(matrix[flows, EV.CHANNEL])
    if scopes:
        subjects = np.append(subjects, identity)
        channels = np.append(channels, [channel for channel, _ in scopes])
    if not len(subjects):
        return iter(())
    some = np.flatnonzero(events.among(_WORDS) | _cut(events, slice(None)))
    some = some[np.isin(matrix[some, EV.CONNECTION], subjects)]
    channel = matrix[some, EV.CHANNEL]
    waits = np.isin(channel, channels)
    mine = waits & events.among((FLOW, FLOW_OK, OPEN, CHANNEL_CLOSE))[some]
    mine |= events.among((BLOCKED, UNBLOCKED, CLOSE))[some]
    mine |= events.among(GAP_WORDS)[some] & (matrix[some, EV.FROM_CLIENT] >= 0)
    mine |= _cut(events, some) & (waits | (channel == 0))
    return _steps(events, some[mine])


def _cut(events: Events, at: Any) -> Any:
    return (events.matrix[at, EV.CUT] == 1) & (events.source[at] == FRAMES)


def _steps(events: Events, at: Any) -> Iterator[Step]:
    """Yield events at these positions, with what matters of them."""
    rows = events.matrix[at]
    frames = np.flatnonzero(events.source[at] == FRAMES)
    active, refuses = np.full(len(at), None), np.zeros(len(at), bool)
    if len(frames):
        table = events.take(FRAMES, at[frames], ASKED)
        active[frames] = table["active"].to_pylist()
        refusal = [table[name].fill_null(-1).to_numpy() for name in table.column_names[1:]]
        refuses[frames] = np.all([column == value for column, value in zip(refusal, REFUSAL, strict=True)], axis=0)
    columns = (
        at,
        *(rows[:, column] for column in (EV.CONNECTION, EV.WHAT, EV.FROM_CLIENT, EV.CHANNEL, EV.EPOCH, EV.TS)),
        events.among(GAP_WORDS)[at],
        _cut(events, at),
        active,
        refuses,
        *silences(events, at),
    )
    return map(Step._make, zip(*(column.tolist() for column in columns), strict=True))


def silences(events: Events, at: Any) -> tuple[Any, Any]:
    """Return `silence_ts` and `ended` (see `Step`) of these events' connections, where their rows are in this batch."""
    matrix = events.matrix
    rows = np.flatnonzero(events.source == CONNECTIONS)
    if not len(rows):
        return np.full(len(at), -1), np.zeros(len(at), bool)
    row = rows[np.maximum(np.searchsorted(rows, at, "right") - 1, 0)]
    here = (row <= at) & (matrix[row, EV.CONNECTION] == matrix[at, EV.CONNECTION])
    closed, last = matrix[row, EV.NUMBER], matrix[row, EV.TS]
    ended = (matrix[row, EV.MULTIPLE] == 1) & (matrix[row, EV.RESPONSE] != 1)
    return np.where(here, np.where(closed >= 0, closed, last), -1), here & ended
