"""Epochs of channels on which every request was answered in its turn, and nothing can be missing: pairs of all at once.

The machine would pair the same, one frame after the other; most are like this.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from amqpscope.dissector.kernels.arrays import Ints
from amqpscope.pipelines.model.events import ANOMALIES, EV, Events
from amqpscope.pipelines.model.names import NO_NAME
from amqpscope.pipelines.requests.frames import SUCCESS, Frame
from amqpscope.pipelines.requests.queues import CLOSES_CONNECTION, NONE

FR = Frame(*range(len(Frame._fields)))
"""The number of each column."""
CHANNELS, EPOCHS = 1 << 16, 1 << 20


def whole(events: Events, at: Ints, open_: int) -> Any:
    """Return which events (bool, of these positions) are of connections that lie in this batch, with no anomaly.

    Args:
        events: the batch.
        at: positions.
        open_: the connection that was open before it.
    """
    connection = events.matrix[:, EV.CONNECTION]
    others = np.append(connection[events.source == ANOMALIES], [open_, *connection[-1:]])
    return np.isin(connection[at], others, invert=True)


def pairs_of(frames: Ints, connection: Ints, whole: Any) -> tuple[Any, Ints, Ints]:
    """Return which frames (bool) are of such epochs, and the rows of their requests and of the answers to these.

    Args:
        frames: columns as `Frame`.
        connection: of each.
        whole: which frames (bool) are of connections that are here from beginning to end, with no anomaly.
    """
    side, kind, answers = frames[:, FR.side], frames[:, FR.asks], frames[:, FR.answers] >= 0
    asks = (kind >= 0) & (frames[:, FR.waits] == 1) & ~answers
    cut = (frames[:, FR.is_cut] == 1) | ((kind >= 0) & (frames[:, FR.waits] < 0)) | (frames[:, FR.channel] < 0)
    cut |= frames[:, FR.epoch] >= EPOCHS
    fails = ~np.isin(frames[:, FR.code], (NONE, SUCCESS)) & (frames[:, FR.refuses] != NONE)
    unnamed = (frames[:, FR.name] == NO_NAME) & (frames[:, FR.declares] != 1)  # its queue is named elsewhere
    channel = np.unique(connection, return_inverse=True)[1] * CHANNELS + frames[:, FR.channel]
    at = np.flatnonzero((asks | answers) & whole)
    kind, asker = np.where(answers, frames[:, FR.answers], kind), np.where(answers, 1 - side, side)
    keys = np.stack([channel[at], frames[at, FR.epoch], kind[at], asker[at]])
    order = np.lexsort(keys[::-1])
    at, step = at[order], np.where(asks, 1, -1)[at[order]]
    begins = np.append(True, (keys[:, order[1:]] != keys[:, order[:-1]]).any(axis=0))[: len(at)]
    first = np.flatnonzero(begins)
    open_ = np.cumsum(step)
    open_ -= np.repeat((open_ - step)[first], np.diff(first, append=len(at)))
    early, wrong = np.zeros((2, len(frames)), np.bool_)
    early[at[open_ < 0]] = True  # the answer to what was not seen
    wrong[at[(open_ < 0) | (np.append(begins[1:], True)[: len(at)] & (open_ != 0))]] = True
    of_all = cut | ((fails | early) & (kind == CLOSES_CONNECTION))
    calm = whole & np.isin(connection, connection[of_all], invert=True)
    epoch = channel * EPOCHS + frames[:, FR.epoch]
    odd = epoch[fails | wrong | unnamed]
    calm &= np.isin(epoch, [odd, odd + 1, odd + 2], invert=True)  # these show how one ends
    calm &= np.isin(channel, _turned(channel, frames[:, FR.epoch]), invert=True)
    requests, answered = at[calm[at] & (step > 0)], at[calm[at] & (step < 0)]
    key, other = frames[requests, FR.key], frames[answered, FR.key]
    differ = (key != 0) & (other != 0) & (key != other)
    if differ.any():
        calm &= np.isin(channel, channel[requests[differ]], invert=True)
        requests, answered = requests[calm[requests]], answered[calm[answered]]
    return calm, requests, answered


def _turned(channel: Ints, epoch: Ints) -> Ints:
    """Return the channels of which an earlier epoch follows a later one."""
    order = np.argsort(channel, kind="stable")
    of, epochs = channel[order], epoch[order]
    return of[1:][(of[1:] == of[:-1]) & (epochs[1:] < epochs[:-1])]
