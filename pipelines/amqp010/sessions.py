"""Sessions of AMQP 0-10 on the open connection: a pair of accounts each, one for the commands of either side.

An account of `channels` (ACC) is that of a session and the side that sends the commands; its close is the end of the
session. `rows` (SE) has what else is known of a session, whose accounts are 2 * row + side. A session is found by a
digest (`sessions_of`).

A session outlives its channel, and its connection, if a timeout was granted for it. If its beginning was not seen, it
may do so.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from amqpscope import spec
from amqpscope.dissector.kernels.arrays import Array, Ints
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.lookup import empty, enter, table_of
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.amqp010.frames import FRAMES_010, PROTOCOL
from amqpscope.pipelines.model.channels import ACC, OWN_WIDTH, Channels
from amqpscope.pipelines.model.digests import combined, hashed
from amqpscope.pipelines.model.events import Events, what
from amqpscope.pipelines.model.store import grown

_PLACE = ("connection_id", "channel", "channel_epoch")
_OF_CONNECTION = [what(FRAMES_010, m.full_name) for m in spec.load(PROTOCOL).methods if m.class_name == "connection"]
"""By EV.WHAT."""
WRAP = 1 << 32
"""Ids of commands wrap there on the wire."""


class SE(Matrix):
    """Columns of `rows`."""

    KEY = column("its digest")
    ATTACHED = column("1: its session.attach was seen")
    OUTLIVES = column("1: it may be attached again after its channel, or on another connection")
    TRANSACTION = column("when takes effect what the client accepts: AT_ONCE, PERHAPS or COMMITTED")
    SURE_GAPS = column("gaps of the client when this was certain; -1: not counted yet")
    HELD_TS = column("time of the first message.accept that is held: -1: none")
    COMMIT = column("id of the tx.commit that is under way; -1: none")
    COMMIT_FRAME = column("its frame_no")
    BRANCH = column("that of a distributed transaction to which belongs what the client accepts; 0: none")
    BRANCH_GAPS = column("gaps of the client when that was certain; -1: the session has no distributed transactions")


AT_ONCE, PERHAPS, COMMITTED = range(3)
"""At once; perhaps with tx.commit, for tx.select may have been missed; with tx.commit."""
DONE_FROM, DONE_TO, RESUMED = range(ACC.WIDTH, ACC.WIDTH + 3)
"""Columns of accounts besides ACC: commands between these ids need not be looked for when they are reported as
completed again; 1 where the commands of this connection go on from those of another one."""
_ACCOUNT, _SESSION = RESUMED + 1, SE.WIDTH
_NONE = np.zeros(1, np.int64), np.zeros((1, OWN_WIDTH), np.int64)
"""A table and gaps of single channels that nobody looks into."""
State = tuple[Channels, Array]
"""`channels` (the table finds rows, not accounts; the first count is that of rows), and `rows`."""


def fresh() -> State:
    """Return the state without sessions."""
    accounts, rows = np.zeros((0, _ACCOUNT), np.int64), np.zeros((0, _SESSION), np.int64)
    return roomy(((accounts, *_NONE, np.zeros(2, np.int64)), rows), 8)


def roomy(sessions: State, more: int) -> State:
    """Return the state with room for this many more sessions."""
    (accounts, table, own, counts), rows = sessions
    need = int(counts[0]) + more
    if need > len(rows):
        rows = grown(rows, need, -1)
        accounts = grown(accounts, 2 * len(rows), -1)
        table = table_of(rows, (SE.KEY, SE.KEY), np.arange(counts[0]) + 1)
    return (accounts, table, own, counts), rows


def parts(sessions: State) -> tuple[Array, ...]:
    """Return what `whole` makes the state of again."""
    (accounts, _, _, counts), rows = sessions
    return accounts[: 2 * counts[0]], counts, rows[: counts[0]]


def whole(taken: tuple[Array, ...]) -> State:
    """Return the state from what `parts` returned."""
    accounts, counts, rows = taken
    return roomy(((accounts, *_NONE, counts), rows), 8)


def sessions_of(events: Events, source: int, at: Ints) -> Ints:
    """Return digests of the sessions of some frames of AMQP 0-10 or messages; 0 for what is of none.

    They are those of names. A session without a name was attached before the capture; it is known by its channel.

    Args:
        events: the batch.
        source: FRAMES_010 or MESSAGES.
        at: positions of events that are rows of it.
    """
    rows = events.take(source, at, ("session", *_PLACE))
    found = hashed(rows["session"])
    unnamed = (found == 0) & ~events.among(_OF_CONNECTION)[at]
    found[unnamed] = combined([rows[name].filter(pa.array(unnamed)) for name in _PLACE])
    return found


def unnamed_at(events: Events, at: Ints) -> Ints:
    """Return digests of the sessions without a name on the channels of some frames of AMQP 0-10 (positions)."""
    rows = events.take(FRAMES_010, at, _PLACE)
    return combined([rows[name] for name in _PLACE])


@kernel
def begin(sessions: State, key: int, attached: int) -> int:
    """Return a new row for a session, for which there must be room; `attached`: its session.attach was seen."""
    (_, table, _, counts), rows = sessions
    row = counts[0]
    counts[0] = row + 1
    rows[row, SE.KEY] = key
    enter(table, rows, SE.KEY, SE.KEY, row)
    renew(sessions, row, attached)
    return row


@kernel
def renew(sessions: State, row: int, attached: int) -> None:
    """Begin a session anew, of which nothing is outstanding."""
    (accounts, _, _, _), rows = sessions
    rows[row, SE.ATTACHED] = attached
    rows[row, SE.OUTLIVES] = 1 - attached
    rows[row, SE.TRANSACTION] = AT_ONCE if attached == 1 else PERHAPS
    rows[row, SE.SURE_GAPS] = -1
    rows[row, SE.HELD_TS] = -1
    rows[row, SE.COMMIT] = -1
    rows[row, SE.COMMIT_FRAME] = -1
    rows[row, SE.BRANCH] = 0
    rows[row, SE.BRANCH_GAPS] = -1
    for side in range(2):
        renew_account(accounts, 2 * row + side)


@kernel
def renew_account(accounts: Array, account: int) -> None:
    """Begin an account anew, of which nothing is outstanding."""
    for number in range(_ACCOUNT):
        accounts[account, number] = -1
    accounts[account, ACC.COUNT] = 0
    accounts[account, ACC.GAPS] = 0
    accounts[account, RESUMED] = 0
    accounts[account, DONE_FROM] = 0
    accounts[account, DONE_TO] = -1


@kernel
def forget(sessions: State) -> None:
    """Forget all sessions, of which nothing is outstanding."""
    (_, table, _, counts), rows = sessions
    empty(table, rows, SE.KEY, SE.KEY, counts[0])
    counts[0] = 0


@kernel
def end(sessions: State, row: int, side: int, frame: int, ts: int) -> None:
    """Note that a side ends a session: nothing that is sent to it after this is answered."""
    (accounts, _, _, _), _ = sessions
    for account in range(2 * row, 2 * row + 2):
        if accounts[account, ACC.SERVER_CLOSE + side] < 0:
            accounts[account, ACC.SERVER_CLOSE + side] = frame
            accounts[account, ACC.SERVER_CLOSE_TS + side] = ts


@kernel
def unwrapped(low: int, high: int, near: int) -> tuple[int, int]:
    """Return a range of ids with these 32 bits whose end is nearest to an id (-1: none); it may begin below 0."""
    span = (high - low) & (WRAP - 1)
    if near < 0:
        return low, low + span
    step = (high - near) & (WRAP - 1)
    upper = near + (step - WRAP if step >= WRAP // 2 else step)
    return upper - span, upper
