"""Publishes that may be returned: a return belongs to the oldest equal one of its channel epoch.

Equal means the same exchange, routing key, properties and body, by a digest. Each mandatory publish has an entry
(`entries`, ENTRY); the oldest of equal ones is found by channel epoch and digest (`kernels.lookup`). An entry goes when
the publish is answered, because a broker returns first; the last LATE answered ones stay (in order), because not every
broker does. Publishes before confirm mode, which nothing answers, count as well, up to a limit.
"""

from __future__ import annotations

import numpy as np

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.lookup import leave, place_of, row_of, table_of
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.model.reuse import give, take
from amqpscope.pipelines.model.store import grown

UNANSWERED = 1 << 16
"""Mandatory publishes of one connection before confirm mode that are remembered."""
EXPECTED = 1 << 20
"""Outstanding mandatory publishes of one connection; whether further ones were returned is unknown."""
LATE = 256
"""Mandatory publishes of one connection that were answered, and may still be returned."""


class ENTRY(Matrix):
    """Columns of `entries`."""

    SCOPE = column("channel epoch : account << 32 | its number")
    DIGEST = column("of the publish and its return")
    PREVIOUS = column("the equal one before it; -1: none")
    NEXT = column("the equal one after it; of free rows the next free one")
    NEWEST = column("of the oldest of equal ones: the newest")
    NUMBERED = column("1: it expects a confirm, 0: it was published before confirm mode")
    CODE = column("reply code of its return; -1: none came")
    ROW = column("of one that was answered: its id; else -1")
    OUTCOME = column("how it was answered")
    ANSWER = column("by which event")
    RETURNED = column("what is known of its return: 0 none came, -1 it may be lost")
    EARLIER = column("the one answered before it; -1: none")
    LATER = column("the one answered after it")


FREE, USED, UNNUMBERED, ANSWERED, FIRST, LAST, LIVE = range(7)
"""Places in `counts`: the first free entry (-1: none), entries ever used, those of publishes without a number, those of
publishes that were answered, the first and the last of these (-1: none), entries in use."""
NO_COUNTS = (-1, 0, 0, 0, -1, -1, 0)
Returns = tuple[Array, Array, Array]
"""`entries`, their table, `counts`."""


def fresh() -> Returns:
    """Return the state without entries."""
    return (
        np.zeros((16, ENTRY.WIDTH), np.int64),
        np.zeros(32, np.int64),
        np.array(NO_COUNTS, np.int64),
    )


def roomy(returns: Returns, more: int, compiled: bool = False) -> Returns:
    """Return the state with room for this many more entries."""
    entries, table, counts = returns
    entries = grown(entries, int(counts[USED]) + more)
    if len(table) < 2 * len(entries):
        table = table_of(entries, (ENTRY.SCOPE, ENTRY.DIGEST), table, None, compiled)
    return entries, table, counts


@kernel
def expect(returns: Returns, account: int, epoch: int, digest: int, numbered: int) -> int:
    """Return an entry for a mandatory publish; the caller has made room."""
    entries, table, counts = returns
    entry = take(entries, ENTRY.NEXT, counts, FREE, USED)
    scope = account << 32 | epoch
    entries[entry, ENTRY.SCOPE] = scope
    entries[entry, ENTRY.DIGEST] = digest
    place = place_of(table, entries, ENTRY.SCOPE, scope, ENTRY.DIGEST, digest)
    oldest = table[place] - 1
    newest = entries[oldest, ENTRY.NEWEST] if oldest >= 0 else -1
    if oldest < 0:
        table[place] = entry + 1
        oldest = entry
    else:
        entries[newest, ENTRY.NEXT] = entry
    entries[oldest, ENTRY.NEWEST] = entry
    entries[entry, ENTRY.PREVIOUS] = newest
    entries[entry, ENTRY.NEXT] = -1
    entries[entry, ENTRY.NUMBERED] = numbered
    entries[entry, ENTRY.CODE] = -1
    entries[entry, ENTRY.ROW] = -1
    counts[LIVE] += 1
    return entry


@kernel
def answer(returns: Returns, account: int, epoch: int, digest: int, code: int) -> int:
    """Note the code of a return at the oldest equal publish, which cannot be returned again.

    Returns:
        Its entry; -1: there is none.
    """
    entries, table, _ = returns
    entry = row_of(table, entries, ENTRY.SCOPE, account << 32 | epoch, ENTRY.DIGEST, digest)
    if entry >= 0:
        _leave(returns, entry)
        entries[entry, ENTRY.CODE] = code
    return entry


@kernel
def _leave(returns: Returns, entry: int) -> None:
    """Take an entry out of those that a return finds."""
    entries, table, _ = returns
    scope, digest = entries[entry, ENTRY.SCOPE], entries[entry, ENTRY.DIGEST]
    place = place_of(table, entries, ENTRY.SCOPE, scope, ENTRY.DIGEST, digest)
    before, after, oldest = entries[entry, ENTRY.PREVIOUS], entries[entry, ENTRY.NEXT], table[place] - 1
    if before < 0 and after < 0:
        leave(table, entries, ENTRY.SCOPE, ENTRY.DIGEST, entry)
        return
    if before < 0:
        table[place] = after + 1
        entries[after, ENTRY.NEWEST] = entries[entry, ENTRY.NEWEST]
    else:
        entries[before, ENTRY.NEXT] = after
    if after < 0:
        entries[oldest, ENTRY.NEWEST] = before
    else:
        entries[after, ENTRY.PREVIOUS] = before


@kernel
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


@kernel
def release(returns: Returns, entry: int) -> int:
    """Free an entry; return the reply code of its return, -1 for none."""
    entries, _, counts = returns
    code = entries[entry, ENTRY.CODE]
    if code < 0:
        _leave(returns, entry)
    give(entries, ENTRY.NEXT, counts, FREE, entry)
    counts[LIVE] -= 1
    return code
