"""Channel epochs of the open connection as accounts, and how they end (`model.unanswered`).

`accounts` has a row per channel epoch (ACC). `table` finds it by channel and the parity of its epoch: an epoch is over
for good when the one after the next opens, because by then its last frames have come. `own` has the gaps of single
channels: cut frames, which may have answered anything.
"""

from __future__ import annotations

import numpy as np

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.state import column
from amqpscope.pipelines.model.connection import CLIENT, CONN
from amqpscope.pipelines.model.outstanding import AC
from amqpscope.pipelines.model.store import grown
from amqpscope.pipelines.model.unanswered import NOTHING, Lost, lost_after, unanswered

CHANNELS = 1 << 17
"""Rows of `table`: channels by parity of the epoch."""


class ACC(AC):
    """Columns of `accounts`. -1: none."""

    CHANNEL = column("channel")
    EPOCH = column("channel_epoch")
    FLOOR = column("numbers up to this one may have been answered in a gap")
    GAPS = column("gaps of the answering side at that time")
    OWN = column("its first gap in `own`")
    OWN_TAIL = column("its last")
    OWN_LAST = column("LAST at the time of its last gap")
    SERVER_CLOSE = column("number of that side's first channel.close")
    CLIENT_CLOSE = column("the same of the client")
    SERVER_CLOSE_TS = column("time of that side's first channel.close")
    CLIENT_CLOSE_TS = column("the same of the client")
    REOPENED = column("number of the channel.open-ok of the next epoch, or behind a close of this one")
    REOPENED_TS = column("its time")


_WIDTH = ACC.WIDTH
OWN_FRAME, OWN_TS, OWN_SINCE, OWN_NEXT, OWN_WIDTH = range(5)
Channels = tuple[Array, Array, Array, Array]
"""`accounts`, `table`, `own`, and `counts`: accounts and gaps in use."""


def fresh() -> Channels:
    """Return the state without channels."""
    return (
        np.full((16, ACC.WIDTH), -1, np.int64),
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


@kernel
def begin(channels: Channels, account: int, channel: int, epoch: int) -> None:
    """Use an account for a channel epoch on which nothing is outstanding."""
    accounts, table, _, _ = channels
    for number in range(_WIDTH):
        accounts[account, number] = -1
    accounts[account, ACC.COUNT] = 0
    accounts[account, ACC.GAPS] = 0
    accounts[account, ACC.CHANNEL] = channel
    accounts[account, ACC.EPOCH] = epoch
    table[place_of(channel, epoch)] = account


@kernel
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


@kernel
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
def own_gap(channels: Channels, account: int, frame: int) -> Lost:
    """Return the first gap of a channel alone after a frame."""
    accounts, _, own, _ = channels
    row = accounts[account, ACC.OWN]
    if row >= 0 and own[accounts[account, ACC.OWN_TAIL], OWN_FRAME] <= frame:
        row = -1
    while row >= 0 and own[row, OWN_FRAME] <= frame:
        row = own[row, OWN_NEXT]
    return (own[row, OWN_FRAME], own[row, OWN_TS], own[row, OWN_SINCE]) if row >= 0 else NOTHING


@kernel
def lost_at(channels: Channels, account: int, conn: Array, gaps: Array, side: int, frame: int) -> Lost:
    """Return the first gap after a frame that may hold its answer."""
    return lost_after(conn, gaps, side, frame, own_gap(channels, account, frame))


@kernel
def ending(channels: Channels, account: int, conn: Array, gaps: Array, side: int, frame: int) -> tuple[int, int]:
    """Return why nobody answered a frame of a channel epoch, and when that was certain (`unanswered`)."""
    accounts = channels[0]
    scope = (
        accounts[account, ACC.SERVER_CLOSE],
        accounts[account, ACC.CLIENT_CLOSE],
        accounts[account, ACC.SERVER_CLOSE_TS],
        accounts[account, ACC.CLIENT_CLOSE_TS],
        accounts[account, ACC.REOPENED],
        accounts[account, ACC.REOPENED_TS],
    )
    return unanswered(conn, gaps, side, frame, scope, own_gap(channels, account, frame), 0)


@kernel
def pass_own_gaps(channels: Channels, account: int, frame: int) -> None:
    """Forget gaps of the channel alone before a frame: everything outstanding was sent after it."""
    accounts, _, own, _ = channels
    row = accounts[account, ACC.OWN]
    while row >= 0 and row != accounts[account, ACC.OWN_TAIL] and own[row, OWN_FRAME] <= frame:
        row = own[row, OWN_NEXT]
        accounts[account, ACC.OWN] = row
