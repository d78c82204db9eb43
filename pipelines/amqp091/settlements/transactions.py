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

import numpy as np

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.model.reuse import ASKED_USED, FREE, give
from amqpscope.pipelines.model.store import grown

PLAIN, PERHAPS, SELECTED = range(3)


class TX(Matrix):
    """Columns of `work`."""

    MODE = column("PLAIN, PERHAPS or SELECTED")
    OPEN = column("the first acknowledgement since the last commit or rollback; -1: none")
    OPEN_LAST = column("the last one")
    ASKED = column("the oldest commit or rollback without an answer; -1: none")
    ASKED_LAST = column("the newest")
    RECOVER = column("number of a basic.recover without an answer; -1: none")
    RECOVER_TS = column("its time")


class ACT(Matrix):
    """Columns of `acts`: a delivery, and the acknowledgement of it that waits."""

    ROW = column("id of the delivery")
    FRAME = column("its frame")
    EXTRA = column("what its slot has for the walk")
    NUMBER = column("its delivery tag")
    OUTCOME = column("of the acknowledgement, a number in OUTCOMES")
    MULTIPLE = column("1: the acknowledgement was about several")
    REQUEUE = column("its `requeue`")
    ACK = column("id of the acknowledgement")
    ACK_FRAME = column("frame of that")
    ACK_TS = column("time of that")
    ROLLED_TS = column("when a rollback brought it back before; -1: never")
    NEXT = column("the acknowledgement after it; of free rows the next free one")


class ASKED(Matrix):
    """Columns of `asked`: a tx.commit or tx.rollback."""

    COMMITS = column("1: tx.commit, 0: tx.rollback")
    FRAME = column("of the request")
    FIRST = column("the first acknowledgement that it is about; -1: none")
    NEXT = column("the request after it; of free rows the next free one")


Transactions = tuple[Array, Array, Array, Array]
"""`work`, `acts`, `asked`, `counts`."""


def fresh() -> Transactions:
    """Return the state without transactions."""
    return (
        np.full((16, TX.WIDTH), -1, np.int64),
        np.zeros((16, ACT.WIDTH), np.int64),
        np.zeros((16, ASKED.WIDTH), np.int64),
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
