"""Publishes that may be returned: a return belongs to the oldest equal one of its channel epoch.

Equal means the same exchange, routing key, properties and body, by a digest. Each mandatory publish has an entry
(`entries`, ENTRY), found by channel epoch and digest (`chained`): one message on many channels is in many chains. An
entry goes when the publish is answered, because a broker returns first; the last LATE answered ones stay (`book`: in
order), because not every broker does. Publishes before confirm mode, which nothing answers, count as well, up to a
limit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.hashing import mix
from amqpscope.dissector.kernels.kernel import called, kernel
from amqpscope.pipelines.model import chained as cd
from amqpscope.pipelines.model.reuse import give, take
from amqpscope.pipelines.model.store import declare, grown

UNANSWERED = 1 << 16
"""Mandatory publishes of one connection before confirm mode that are remembered."""
EXPECTED = 1 << 20
"""Outstanding mandatory publishes of one connection; whether further ones were returned is unknown."""
LATE = 256
"""Mandatory publishes of one connection that were answered, and may still be returned."""


class Entry(NamedTuple):
    """Columns of `entries`."""

    KEY: int  # as PREVIOUS and NEXT of `chained.Link`
    PREVIOUS: int
    NEXT: int
    ACCOUNT: int  # -1: free
    EPOCH: int
    DIGEST: int
    NUMBERED: int  # 1: it expects a confirm, 0: it was published before confirm mode
    CODE: int  # reply code of its return; -1: none came
    ROW: int  # of one that was answered: its id; else -1
    OUTCOME: int  # how it was answered
    ANSWER: int  # by which event
    RETURNED: int  # what is known of its return: 0 none came, -1 it may be lost
    EARLIER: int  # the one answered before it; -1: none
    LATER: int  # the one answered after it


ENTRY = declare(Entry)
FREE, USED, UNNUMBERED, ANSWERED, FIRST, LAST, LIVE = range(7)
"""Places in `counts`: the first free entry (-1: none), entries ever used, those of publishes without a number, those of
publishes that were answered, the first and the last of these (-1: none), entries in use."""
NO_COUNTS = (-1, 0, 0, 0, -1, -1, 0)
Returns = tuple[Array, Array, Array]
"""`entries`, `buckets`, `counts`."""


def fresh() -> Returns:
    """Return the state without entries."""
    return (
        np.zeros((16, len(ENTRY)), np.int64),
        cd.fresh(),
        np.array(NO_COUNTS, np.int64),
    )


def roomy(returns: Returns, more: int, compiled: bool = False) -> Returns:
    """Return the state with room for this many more entries."""
    entries, buckets, counts = returns
    entries = grown(entries, int(counts[USED]) + more)
    return entries, cd.roomy(entries, buckets, compiled), counts


@kernel
def _key(account: int, epoch: int, digest: int) -> int:
    return mix(mix(digest, account), epoch)


@called
def expect(returns: Returns, account: int, epoch: int, digest: int, numbered: int) -> int:
    """Return an entry for a mandatory publish; the caller has made room."""
    entries, buckets, counts = returns
    entry = take(entries, ENTRY.NEXT, counts, FREE, USED)
    entries[entry, ENTRY.KEY] = _key(account, epoch, digest)
    entries[entry, ENTRY.ACCOUNT] = account
    entries[entry, ENTRY.EPOCH] = epoch
    entries[entry, ENTRY.DIGEST] = digest
    entries[entry, ENTRY.NUMBERED] = numbered
    entries[entry, ENTRY.CODE] = -1
    entries[entry, ENTRY.ROW] = -1
    counts[LIVE] += 1
    cd.enter(entries, buckets, entry)
    return entry


@called
def answer(returns: Returns, account: int, epoch: int, digest: int, code: int) -> int:
    """Note the code of a return at the oldest equal publish, which cannot be returned again.

    Returns:
        Its entry; -1: there is none.
    """
    entries, buckets, _ = returns
    entry = buckets[_key(account, epoch, digest) & (len(buckets) - 1), 0]
    while entry >= 0:
        if (
            entries[entry, ENTRY.DIGEST] == digest
            and entries[entry, ENTRY.ACCOUNT] == account
            and entries[entry, ENTRY.EPOCH] == epoch
        ):
            cd.leave(entries, buckets, entry)
            entries[entry, ENTRY.CODE] = code
            return entry
        entry = entries[entry, ENTRY.NEXT]
    return -1


@called
def keep(returns: Returns, entry: int, row: int, outcome: int, answer_: int, returned: int) -> None:
    """Note how the publish of an entry was answered: it may still be returned."""
    entries, _, counts = returns
    entries[entry, ENTRY.ROW] = row
    entries[entry, ENTRY.OUTCOME] = outcome
    entries[entry, ENTRY.ANSWER] = answer_
    entries[entry, ENTRY.RETURNED] = returned
    entries[entry, ENTRY.EARLIER] = counts[LAST]
    entries[entry, ENTRY.LATER] = -1
    if counts[LAST] >= 0:
        entries[counts[LAST], ENTRY.LATER] = entry
    else:
        counts[FIRST] = entry
    counts[LAST] = entry
    counts[ANSWERED] += 1


@called
def release(returns: Returns, entry: int) -> int:
    """Free an entry; return the reply code of its return, -1 for none."""
    entries, buckets, counts = returns
    code = entries[entry, ENTRY.CODE]
    if code < 0:
        cd.leave(entries, buckets, entry)
    entries[entry, ENTRY.ACCOUNT] = -1
    give(entries, ENTRY.NEXT, counts, FREE, entry)
    counts[LIVE] -= 1
    return code
