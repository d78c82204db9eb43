"""Channel epochs of the open connection as accounts, and why something outstanding on them was never answered.

`accounts` has a row per channel epoch (ACC). `table` finds it by channel and the parity of its epoch: an epoch is over
for good when the one after the next opens, because by then its last frames have come. `own` has the gaps of single
channels: cut frames, which may have answered anything.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import called, kernel
from amqpscope.pipelines.walks.connection import (
    CLIENT,
    CONN,
    GAP_FRAME,
    GAP_SINCE,
    GAP_TS,
    first_gap,
    is_late,
    is_missing,
    may_lack,
)
from amqpscope.pipelines.walks.events import EV, FRAMES, what
from amqpscope.pipelines.walks.store import declare, grown

ENDED_BY = (
    None, "capture-end", "gap", "evicted", "channel-close", "connection-close", "discarded", "recover", "rollback",
)  # fmt: skip
"""Names of the numbers that follow."""
ANSWERED, CAPTURE_END, GAP, EVICTED, CHANNEL_CLOSE, CONNECTION_CLOSE, DISCARDED, RECOVER, ROLLBACK = range(9)
CHANNELS = 1 << 17
"""Rows of `table`: channels by parity of the epoch."""
NEVER = 1 << 62

OPEN, CLOSE, CLOSE_OK = (what(FRAMES, f"channel.{name}") for name in ("open", "close", "close-ok"))


class Account(NamedTuple):
    """Columns of `accounts`; the first are those of `ledger.Ends`. -1: none."""

    HEAD: int
    TAIL: int
    LAST: int
    COUNT: int
    CHANNEL: int
    EPOCH: int
    FLOOR: int  # numbers up to this one may have been answered in a gap
    GAPS: int  # gaps of the answering side at that time
    OWN: int  # its first gap in `own`
    OWN_TAIL: int  # its last
    OWN_LAST: int  # LAST at the time of its last gap
    SERVER_CLOSE: int  # number of that side's first channel.close
    CLIENT_CLOSE: int
    SERVER_CLOSE_TS: int
    CLIENT_CLOSE_TS: int
    REOPENED: int  # number of the channel.open of the next epoch
    REOPENED_TS: int
    STATE: int  # used by the walk
    EXTRA: int  # used by the walk


ACC = declare(Account)
_WIDTH = len(ACC)
OWN_FRAME, OWN_TS, OWN_SINCE, OWN_NEXT, OWN_WIDTH = range(5)
Channels = tuple[Array, Array, Array, Array]
"""`accounts`, `table`, `own`, and `counts`: accounts and gaps in use."""


def fresh() -> Channels:
    """Return the state without channels."""
    return (
        np.full((16, len(ACC)), -1, np.int64),
        np.full(CHANNELS, -1, np.int32),
        np.zeros((16, OWN_WIDTH), np.int64),
        np.zeros(2, np.int64),
    )


def cut(channels: Channels) -> tuple[Array, ...]:
    """Return the used part of the channels, without `table`: for the state of a walk."""
    accounts, _, own, counts = channels
    return accounts[: counts[0]], own[: counts[1]], counts


def whole(parts: tuple[Array, ...]) -> Channels:
    """Return channels from the parts that `cut` returned."""
    accounts, own, counts = parts
    made, table, _, _ = fresh()
    made = grown(made, len(accounts) + 1, -1)
    made[: len(accounts)] = accounts
    for account, row in enumerate(accounts):
        table[place_of(int(row[ACC.CHANNEL]), int(row[ACC.EPOCH]))] = account
    return made, table, grown(own, len(own) + 16), counts


@kernel
def place_of(channel: int, epoch: int) -> int:
    """Return the row of `table`."""
    return ((channel & 0xFFFF) << 1) | (epoch & 1)


@kernel
def account_of(channels: Channels, channel: int, epoch: int) -> int:
    """Return the account of a channel epoch; -1: none."""
    accounts, table, _, _ = channels
    account = table[place_of(channel, epoch)]
    return account if account >= 0 and accounts[account, ACC.EPOCH] == epoch else -1


@called
def begin(channels: Channels, account: int, channel: int, epoch: int) -> None:
    """Use an account for a channel epoch on which nothing is outstanding."""
    accounts, table, _, _ = channels
    for column in range(_WIDTH):
        accounts[account, column] = -1
    accounts[account, ACC.COUNT] = 0
    accounts[account, ACC.GAPS] = 0
    accounts[account, ACC.STATE] = 0
    accounts[account, ACC.CHANNEL] = channel
    accounts[account, ACC.EPOCH] = epoch
    table[place_of(channel, epoch)] = account


@called
def forget(channels: Channels) -> None:
    """Forget all channels, on which nothing is outstanding."""
    accounts, table, _, counts = channels
    for account in range(counts[0]):
        table[place_of(accounts[account, ACC.CHANNEL], accounts[account, ACC.EPOCH])] = -1
    counts[0] = 0
    counts[1] = 0


@kernel
def note_floor(channels: Channels, account: int, conn: Array, side: int) -> None:
    """Note that numbers so far may have been answered in a gap of that side, if there is a new one."""
    accounts = channels[0]
    if conn[CONN.SERVER_GAPS + side] != accounts[account, ACC.GAPS]:
        accounts[account, ACC.GAPS] = conn[CONN.SERVER_GAPS + side]
        accounts[account, ACC.FLOOR] = accounts[account, ACC.LAST]


@kernel
def note_late(channels: Channels, account: int, conn: Array, side: int, ts: int) -> None:
    """Note that a late message, added last, may already have been answered by this side: it counts like a gap."""
    if ts < conn[CONN.LATE_SERVER + CLIENT - side]:
        accounts = channels[0]
        accounts[account, ACC.FLOOR] = accounts[account, ACC.LAST]


@called
def note_cut(channels: Channels, account: int, conn: Array, side: int, frame: int, ts: int, since: int) -> None:
    """Note a cut answer: it may answer anything outstanding on this channel."""
    accounts, _, own, counts = channels
    if accounts[account, ACC.COUNT] > 0 and accounts[account, ACC.OWN_LAST] != accounts[account, ACC.LAST]:
        row = counts[1]
        own[row, OWN_FRAME] = frame
        own[row, OWN_TS] = ts
        own[row, OWN_SINCE] = since
        own[row, OWN_NEXT] = -1
        if accounts[account, ACC.OWN_TAIL] >= 0:
            own[accounts[account, ACC.OWN_TAIL], OWN_NEXT] = row
        else:
            accounts[account, ACC.OWN] = row
        accounts[account, ACC.OWN_TAIL] = row
        accounts[account, ACC.OWN_LAST] = accounts[account, ACC.LAST]
        counts[1] = row + 1
    accounts[account, ACC.FLOOR] = accounts[account, ACC.LAST]


@kernel
def note_close(channels: Channels, account: int, events: Array, i: int) -> None:
    """Note a channel.close (its answer shows one that was not seen), or the channel.open of the next epoch."""
    accounts = channels[0]
    if events[i, EV.WHAT] == OPEN:
        if accounts[account, ACC.REOPENED] < 0:
            accounts[account, ACC.REOPENED] = events[i, EV.ORDER]
            accounts[account, ACC.REOPENED_TS] = events[i, EV.TS]
    else:
        side = events[i, EV.FROM_CLIENT]
        if side >= 0 and events[i, EV.WHAT] == CLOSE_OK:
            side = CLIENT - side
        if side >= 0 and accounts[account, ACC.SERVER_CLOSE + side] < 0:
            accounts[account, ACC.SERVER_CLOSE + side] = events[i, EV.ORDER]
            accounts[account, ACC.SERVER_CLOSE_TS + side] = events[i, EV.TS]


@kernel
def lost_at(channels: Channels, account: int, conn: Array, gaps: Array, side: int, frame: int) -> tuple[int, int, int]:
    """Return the first gap after a frame that may hold its answer: frame (NEVER: none), time, last frame before it."""
    accounts, _, own, _ = channels
    found, ts, since = NEVER, -1, -1
    row = first_gap(conn, gaps, side, frame)
    if row >= 0:
        found, ts, since = gaps[row, GAP_FRAME], gaps[row, GAP_TS], gaps[row, GAP_SINCE]
    row = accounts[account, ACC.OWN]
    if row >= 0 and own[accounts[account, ACC.OWN_TAIL], OWN_FRAME] <= frame:
        row = -1
    while row >= 0 and own[row, OWN_FRAME] <= frame:
        row = own[row, OWN_NEXT]
    if row >= 0 and own[row, OWN_FRAME] < found:
        found, ts, since = own[row, OWN_FRAME], own[row, OWN_TS], own[row, OWN_SINCE]
    if found == NEVER and is_missing(conn, side):
        found, ts = conn[CONN.LAST_FRAME] + 1, conn[CONN.LAST_TS]
    return found, ts, since


@kernel
def silenced_by(conn: Array) -> int:
    """Return what ended a connection on which nobody sent a close (ENDED_BY)."""
    if conn[CONN.CLOSED] == 1:
        return CONNECTION_CLOSE
    return EVICTED if conn[CONN.CLOSED] == 2 else CAPTURE_END


@called
def ending(channels: Channels, account: int, conn: Array, gaps: Array, side: int, frame: int) -> tuple[int, int]:
    """Return why nobody answered a frame, and when that was certain (-1: unknown).

    What is sent after the other side's close is discarded, unless the channel may have been opened again in a gap.
    Otherwise it was outstanding until the first close, until the channel number was opened again, or until the
    connection fell silent; or until the first gap that may hold its answer, if that begins before this end.

    Args:
        channels: see the module.
        account: of its channel epoch.
        conn: `connection.CONN`.
        gaps: see `connection`.
        side: the side that should have answered.
        frame: the frame.
    """
    accounts = channels[0]
    end, end_ts, by = NEVER, conn[CONN.SILENCE_TS], silenced_by(conn)
    heard, heard_ts, own_end = NEVER, -1, False
    for who in range(2):
        at, ts, why = conn[CONN.SERVER_CLOSE + who], conn[CONN.SERVER_CLOSE_TS + who], CONNECTION_CLOSE
        own = accounts[account, ACC.SERVER_CLOSE + who]
        if 0 <= own < frame and may_lack(conn, gaps, CLIENT, own, frame):
            return GAP, -1  # the channel was opened again in it
        if own >= 0 and (at < 0 or own < at):
            at, ts, why = own, accounts[account, ACC.SERVER_CLOSE_TS + who], CHANNEL_CLOSE
        if at >= 0 and who == side:
            heard, heard_ts = at, ts
        if at >= 0 and at < end:
            end, end_ts, by, own_end = at, ts, why, who == side
    if frame > heard and not is_late(conn, gaps, side, frame):
        return DISCARDED, heard_ts
    if accounts[account, ACC.REOPENED] >= 0 and accounts[account, ACC.REOPENED] < end:
        end, end_ts, by = accounts[account, ACC.REOPENED], accounts[account, ACC.REOPENED_TS], CHANNEL_CLOSE
    lost, lost_ts, since = lost_at(channels, account, conn, gaps, side, frame)
    if lost != NEVER and (since < end or own_end):  # it answers what came before its close also after that
        return GAP, lost_ts
    return by, end_ts


@kernel
def pass_own_gaps(channels: Channels, account: int, frame: int) -> None:
    """Forget gaps of the channel alone before a frame: everything outstanding was sent after it."""
    accounts, _, own, _ = channels
    row = accounts[account, ACC.OWN]
    while row >= 0 and row != accounts[account, ACC.OWN_TAIL] and own[row, OWN_FRAME] <= frame:
        row = own[row, OWN_NEXT]
        accounts[account, ACC.OWN] = row
