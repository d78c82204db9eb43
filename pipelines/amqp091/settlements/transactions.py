"""Acknowledgements in transactions: they take effect with tx.commit-ok, and never after tx.rollback.

A channel epoch (`work`, TX, a row for each account of `channels`) is in one of these modes:

| mode | acknowledgements |
|---|---|
| PLAIN | take effect at once: the channel was seen from its beginning, or is in confirm mode |
| PERHAPS | a tx.select may have been missed: they wait for what shows that (PATIENCE_NS at most) |
| SELECTED | wait for a commit or rollback |

Acknowledgements that wait (`acts`, ACT) are listed: those since the last commit or rollback (TX.OPEN), and for each
commit or rollback without an answer those before it (`asked`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.pipelines.model.reuse import ASKED_USED, FREE, give
from amqpscope.pipelines.model.store import declare, grown

PLAIN, PERHAPS, SELECTED = range(3)


class Channel(NamedTuple):
    """Columns of `work`."""

    MODE: int
    OPEN: int  # the first acknowledgement since the last commit or rollback; -1: none
    OPEN_LAST: int
    ASKED: int  # the oldest commit or rollback without an answer; -1: none
    ASKED_LAST: int
    RECOVER: int  # number of a basic.recover without an answer; -1: none
    RECOVER_TS: int


class Act(NamedTuple):
    """Columns of `acts`: a delivery, and the acknowledgement of it that waits."""

    ROW: int
    FRAME: int
    EXTRA: int
    NUMBER: int
    OUTCOME: int
    MULTIPLE: int
    REQUEUE: int
    ACK: int  # id of the acknowledgement
    ACK_FRAME: int
    ACK_TS: int
    ROLLED_TS: int  # when a rollback brought it back before; -1: never
    NEXT: int


class Asked(NamedTuple):
    """Columns of `asked`: a tx.commit or tx.rollback."""

    COMMITS: int
    FRAME: int
    FIRST: int  # the first acknowledgement that it is about; -1: none
    NEXT: int


TX, ACT, ASKED = declare(Channel), declare(Act), declare(Asked)
Transactions = tuple[Array, Array, Array, Array]
"""`work`, `acts`, `asked`, `counts`."""


def fresh() -> Transactions:
    """Return the state without transactions."""
    return (
        np.full((16, len(TX)), -1, np.int64),
        np.zeros((16, len(ACT)), np.int64),
        np.zeros((16, len(ASKED)), np.int64),
        np.array([-1, 0, -1, 0], np.int64),
    )


def roomy(state: Transactions, accounts: int, asked: int) -> Transactions:
    """Return the state with room for this many accounts in all, and for more commits and rollbacks."""
    work, acts, requests, counts = state
    return grown(work, accounts, -1), acts, grown(requests, int(counts[ASKED_USED]) + asked), counts


@kernel
def free(state: Transactions, each: int) -> None:
    """Free a row of `acts`."""
    _, acts, _, counts = state
    acts[each, ACT.ROW] = -1
    give(acts, ACT.NEXT, counts, FREE, each)
