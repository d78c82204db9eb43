"""Prefetch windows: unsettled deliveries against what basic.qos allows.

As RabbitMQ has it: without `global`, basic.qos applies to consumers begun later on the channel, each counted alone;
with it, at once to all deliveries of the channel together. Got messages do not count; 0 is no limit. A window
(`windows`, WIN) is open, full (the broker waits), or opened: it was full, and the next delivery may prove that the
broker had waited.

| event | open | full | opened |
|---|---|---|---|
| delivery that fills it | full | | the wait is proven if it comes soon; full |
| other delivery | | | the wait is proven if it comes soon; open |
| acknowledgement, recover, larger limit | | opened | |
| cancel, close | | the wait ends with it | the wait is possible |
| gap | | the wait ends at an unknown time; open | the wait is possible |
"""

from __future__ import annotations

import numpy as np

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.state import Matrix, column

SOON_NS = 1_000_000
"""A delivery this soon after an acknowledgement, or within two round trips, is a response to it."""


class WIN(Matrix):
    """Columns of `windows`."""

    LIMIT = column("0: none")
    COUNT = column("unsettled deliveries")
    START = column("full: id of the event that filled it; -1: it is not full")
    START_TS = column("its time")
    END = column("opened: id of the frame that opened it; -1: it was not")
    END_TS = column("its time")
    ANSWERS = column("whether that was an acknowledgement")
    WAS = column("opened: START of that wait")
    WAS_TS = column("START_TS of that wait")
    WHOLE = column("1: of a whole channel")
    CHANNEL = column("channel")
    EPOCH = column("channel_epoch")
    SINCE = column("deliveries up to this frame do not count: a gap may have settled them")


class WAIT(Matrix):
    """Columns of `waits`: a wait that is over."""

    START = column("id of its first event")
    END = column("id of its last event; -1: none, or not seen")
    END_TS = column("when it ended, or until when it certainly went on; -1: unknown")
    SEEN = column("whether its end was seen")
    PROVEN = column("1: nothing was lost that could have ended it before")
    WHOLE = column("1: of a whole channel, 0: of a consumer")
    CHANNEL = column("channel")
    EPOCH = column("channel_epoch")
    CONNECTION = column("connection_id")


Prefetch = tuple[Array, Array, Array]
"""`windows` (at 2 * account that of a channel epoch, at 2 * consumer + 1 that of a consumer), `waits`, and `counts`:
waits in use, how soon is soon (ns), the connection."""
WAITS, SOON, CONNECTION = range(3)


def fresh() -> Prefetch:
    """Return the state without windows."""
    return np.zeros((32, WIN.WIDTH), np.int64), np.zeros((64, WAIT.WIDTH), np.int64), np.zeros(3, np.int64)


@kernel
def reset(prefetch: Prefetch, window: int, channel: int, epoch: int, whole: int, limit: int) -> None:
    """Reset a window."""
    windows, _, _ = prefetch
    for number in range(WIN.WIDTH):
        windows[window, number] = -1
    windows[window, WIN.LIMIT] = limit
    windows[window, WIN.COUNT] = 0
    windows[window, WIN.WHOLE] = whole
    windows[window, WIN.CHANNEL] = channel
    windows[window, WIN.EPOCH] = epoch


@kernel
def delivered(prefetch: Prefetch, window: int, identity: int, ts: int) -> None:
    """Count a delivery that must be settled."""
    windows, _, counts = prefetch
    if windows[window, WIN.END] >= 0:
        _report(
            prefetch, window, ts - windows[window, WIN.END_TS] <= counts[SOON] and windows[window, WIN.ANSWERS] == 1
        )
    windows[window, WIN.COUNT] += 1
    adjust(prefetch, window, identity, ts, 0)


@kernel
def settled(prefetch: Prefetch, window: int, since: int, identity: int, ts: int, answers: int) -> None:
    """Remove a delivery of frame `since`, settled by an acknowledgement or (answers 0) otherwise."""
    windows, _, _ = prefetch
    if since > windows[window, WIN.SINCE] and windows[window, WIN.COUNT] > 0:
        windows[window, WIN.COUNT] -= 1
        if windows[window, WIN.START] >= 0:
            adjust(prefetch, window, identity, ts, answers)


@kernel
def adjust(prefetch: Prefetch, window: int, identity: int, ts: int, answers: int) -> None:
    """Note that a window is full, or open again, as its count and its limit have it."""
    windows, _, _ = prefetch
    full = windows[window, WIN.LIMIT] > 0 and windows[window, WIN.COUNT] >= windows[window, WIN.LIMIT]
    if full and windows[window, WIN.START] < 0:
        windows[window, WIN.START] = identity
        windows[window, WIN.START_TS] = ts
    elif not full and windows[window, WIN.START] >= 0:
        _open(prefetch, window, identity, ts, answers)


@kernel
def _open(prefetch: Prefetch, window: int, identity: int, ts: int, answers: int) -> None:
    windows, _, _ = prefetch
    if windows[window, WIN.END] >= 0:
        _report(prefetch, window, False)
    windows[window, WIN.WAS] = windows[window, WIN.START]
    windows[window, WIN.WAS_TS] = windows[window, WIN.START_TS]
    windows[window, WIN.START] = -1
    windows[window, WIN.END] = identity
    windows[window, WIN.END_TS] = ts
    windows[window, WIN.ANSWERS] = answers


@kernel
def closed(prefetch: Prefetch, window: int, identity: int, ts: int, seen: int) -> None:
    """Close a window, at a frame or (identity -1) at a time; `seen` 0: the time of the end is unknown."""
    windows, waits, counts = prefetch
    if windows[window, WIN.START] < 0:
        if windows[window, WIN.END] >= 0:
            _report(prefetch, window, False)
    else:
        _open(prefetch, window, identity, ts, 0)
        _report(prefetch, window, False)
        waits[counts[WAITS] - 1, WAIT.SEEN] = seen


@kernel
def _report(prefetch: Prefetch, window: int, proven: bool) -> None:
    windows, waits, counts = prefetch
    row = counts[WAITS]
    counts[WAITS] = row + 1
    waits[row, WAIT.START] = windows[window, WIN.WAS]
    waits[row, WAIT.END] = windows[window, WIN.END]
    waits[row, WAIT.END_TS] = windows[window, WIN.END_TS]
    waits[row, WAIT.SEEN] = 1
    waits[row, WAIT.PROVEN] = 1 if proven else 0
    waits[row, WAIT.WHOLE] = windows[window, WIN.WHOLE]
    waits[row, WAIT.CHANNEL] = windows[window, WIN.CHANNEL]
    waits[row, WAIT.EPOCH] = windows[window, WIN.EPOCH]
    waits[row, WAIT.CONNECTION] = counts[CONNECTION]
    windows[window, WIN.END] = -1
    windows[window, WIN.WAS] = -1
