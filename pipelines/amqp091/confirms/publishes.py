"""Publisher confirms of AMQP 0-9-1: each publish in confirm mode, and the broker's answer to it.

A publish is outstanding from its last frame on; one of an unknown number (`turns.EXPECTS`) is written as such, for
nobody can tell whether it was answered. What ends the others:

| event | what it does |
|---|---|
| basic.ack, basic.nack of its number | answers it |
| the same with `multiple` | answers all outstanding ones up to that number, except those that a gap may have answered |
| a gap in what the server sends | publishes may have been answered in it: `multiple` does not apply to them |
| the server's close | what is published after it is discarded |
| a close of either side, the channel opened again, the end of the connection | nobody answers: `ended_by` |
| basic.return | the oldest equal outstanding mandatory publish was returned |
"""

from __future__ import annotations

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.lookup import empty
from amqpscope.dissector.kernels.state import Matrix, column
from amqpscope.pipelines.amqp091.closes import ON_CLOSE, ON_CLOSE_OK, ON_OPEN_OK, note_close, note_open_ok
from amqpscope.pipelines.amqp091.confirms import returns as rt
from amqpscope.pipelines.amqp091.confirms.numbering_rules import EXPECTS
from amqpscope.pipelines.amqp091.confirms.returns import ENTRY
from amqpscope.pipelines.amqp091.frames import FRAMES
from amqpscope.pipelines.model import channels as ch
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model import outstanding as lg
from amqpscope.pipelines.model.channels import ACC
from amqpscope.pipelines.model.connection import CONN, SERVER
from amqpscope.pipelines.model.events import EV, MESSAGES, what
from amqpscope.pipelines.model.outstanding import SL
from amqpscope.pipelines.model.stopped import DONE, NEEDS_ACCOUNTS, NEEDS_OUTPUT_ROOM, NEEDS_PAGES, ST
from amqpscope.pipelines.model.unanswered import ANSWERED, EVICTED, GAP, NEVER

NONE, ACK, NACK = range(3)
NOT_MANDATORY, UNEXPECTED, ENTRIES = range(3)
"""What a slot's EXTRA says of returns; UNEXPECTED: whether it was returned is unknown; from ENTRIES on, the entry
(`returns`)."""

ON_PUBLISH, ON_RETURN = what(MESSAGES, "publish"), what(MESSAGES, "return")
ON_ACK, ON_NACK = what(FRAMES, "basic.ack"), what(FRAMES, "basic.nack")


class OUT(Matrix):
    """Columns of `out`: a publish that is no longer outstanding."""

    ROW = column("its id")
    OUTCOME = column("number in OUTCOMES")
    ANSWER = column("id of the event that answers it; -1: none")
    BY = column("of `unanswered.ENDED_BY`")
    END_TS = column("-1: not known")
    RETURNED = column("-1: not known")
    CODE = column("reply code of the return; -1: none")


class MORE(Matrix):
    """Columns of `more`: what this walk needs of an event besides EV."""

    MANDATORY = column("of publishes: 0 or 1; -1 for null")
    CODE = column("of returns: reply_code")
    DIGEST = column("of mandatory publishes, and returns")


ROOM = 1 << 16
"""Rows of `out`."""
PUBLISH, ANSWER = range(2)
"""Columns of `still`."""


@kernel
def walk(
    events: Array, more: Array, conn: Array, gaps: Array, channels: ch.Channels, ledger: lg.Ledger,
    returns: rt.Returns, out: Array, state: Array,
) -> int:  # fmt: skip
    """Walk over a batch from state[ST.AT] on; return why it stopped (DONE: at the end of the batch)."""
    accounts, _, _, counts = channels
    base = state[ST.BASE]
    for i in range(state[ST.AT], len(events)):
        state[ST.AT] = i
        if state[ST.OUT] + 2 > len(out):
            return NEEDS_OUTPUT_ROOM
        if counts[0] >= len(accounts):
            return NEEDS_ACCOUNTS
        if events[i, EV.CONNECTION] != conn[CONN.ID]:
            if not close(conn, gaps, channels, ledger, returns, out, state):
                return NEEDS_OUTPUT_ROOM
            cn.open_connection(conn, events[i, EV.CONNECTION])
        word = events[i, EV.WHAT]
        channel, epoch = events[i, EV.CHANNEL], events[i, EV.EPOCH]
        if word == ON_PUBLISH and channel >= 0:
            account = ch.account_of(channels, channel, epoch)
            if account < 0:
                account = opened(conn, gaps, channels, ledger, returns, out, state, channel, epoch)
                if account < 0:
                    return NEEDS_OUTPUT_ROOM
            if not publish(events, more, i, account, conn, channels, ledger, returns, out, state):
                return NEEDS_PAGES
        elif (word == ON_ACK or word == ON_NACK) and events[i, EV.FROM_CLIENT] == SERVER:
            account = ch.account_of(channels, channel, epoch)
            if account >= 0 and events[i, EV.NUMBER] >= 0:
                if not confirm(events, i, account, conn, gaps, channels, ledger, returns, out, state):
                    return NEEDS_OUTPUT_ROOM
        elif word == ON_RETURN and events[i, EV.PARTIAL] != 1:
            account = ch.account_of(channels, channel, epoch)
            if account >= 0:
                entry = rt.answer(returns, account, epoch, more[i, MORE.DIGEST], more[i, MORE.CODE])
                if entry >= 0 and returns[0][entry, ENTRY.ROW] >= 0:
                    let_out(entry, more[i, MORE.CODE], returns, out, state)
                elif entry >= 0 and returns[0][entry, ENTRY.NUMBERED] == 0:
                    rt.release(returns, entry)
        elif word == ON_OPEN_OK:
            note_open_ok(channels, events, i)
        elif word == ON_CLOSE or word == ON_CLOSE_OK:
            account = ch.account_of(channels, channel, epoch)
            if account < 0 and word == ON_CLOSE and channel >= 0:
                account = opened(conn, gaps, channels, ledger, returns, out, state, channel, epoch)
                if account < 0:
                    return NEEDS_OUTPUT_ROOM
            if account >= 0:
                note_close(channels, account, events, i)
        if events[i, EV.CUT] > 0 and events[i, EV.FROM_CLIENT] == SERVER:
            account = ch.account_of(channels, channel, epoch)
            if account >= 0:
                since = conn[CONN.LAST_SERVER]
                ch.note_cut(channels, account, conn, SERVER, events[i, EV.ORDER], events[i, EV.TS], since)
        cn.update_connection(conn, gaps, events, i, base + i)
    state[ST.AT] = len(events)
    return DONE


@kernel
def opened(
    conn: Array, gaps: Array, channels: ch.Channels, ledger: lg.Ledger, returns: rt.Returns, out: Array, state: Array,
    channel: int, epoch: int,
) -> int:  # fmt: skip
    """Return a new account for a channel epoch, in place of the one before the last; -1: `out` is full."""
    account = channels[1][ch.place_of(channel, epoch)]
    if account < 0:
        account = channels[3][0]
        channels[3][0] = account + 1
    elif not drain(account, conn, gaps, channels, ledger, returns, out, state):
        return -1
    ch.begin(channels, account, channel, epoch)
    return account


@kernel
def publish(
    events: Array, more: Array, i: int, account: int, conn: Array, channels: ch.Channels, ledger: lg.Ledger,
    returns: rt.Returns, out: Array, state: Array,
) -> bool:  # fmt: skip
    """Add a publish, if it has a number, or expects one; return False if there is no free page."""
    accounts = channels[0]
    number = events[i, EV.NUMBER]
    mandatory = more[i, MORE.MANDATORY] != 0
    matched = more[i, MORE.MANDATORY] == 1 and events[i, EV.PARTIAL] != 1
    extra = NOT_MANDATORY
    row = state[ST.BASE] + i
    if number == EXPECTS:
        if matched and returns[2][rt.LIVE] < rt.EXPECTED:
            entry = rt.expect(returns, account, events[i, EV.EPOCH], more[i, MORE.DIGEST], 1)
            rt.keep(returns, entry, row, NONE, -1, -1)
            if returns[2][rt.ANSWERED] > rt.LATE:
                let_out(returns[2][rt.FIRST], -1, returns, out, state)
        else:
            finish(out, state, row, NONE, -1, GAP, events[i, EV.TS], -1 if mandatory else 0, -1)
        return True
    if number < 0:
        if matched and returns[2][rt.UNNUMBERED] < rt.UNANSWERED:
            returns[2][rt.UNNUMBERED] += 1
            rt.expect(returns, account, events[i, EV.EPOCH], more[i, MORE.DIGEST], 0)
        return True
    ch.note_floor(channels, account, conn, SERVER)
    slot = lg.add(ledger, accounts, account, number) if ledger[3][lg.BK.COUNT] < state[ST.LIMIT] else -2
    if slot == -1:
        return False
    if slot < 0:
        finish(out, state, row, NONE, -1, EVICTED, events[i, EV.TS], -1 if mandatory else 0, -1)
        return True
    slots = ledger[1]
    if slots[slot, SL.ROW] >= 0:  # the number occurs twice: the answer to the first is unknown
        old = slots[slot, SL.EXTRA]
        code = rt.release(returns, old - ENTRIES) if old >= ENTRIES else -1
        finish(out, state, slots[slot, SL.ROW], NONE, -1, EVICTED, events[i, EV.TS], 1 if code >= 0 else -1, code)
    if mandatory and (not matched or returns[2][rt.LIVE] >= rt.EXPECTED):
        extra = UNEXPECTED
    elif matched:
        extra = ENTRIES + rt.expect(returns, account, events[i, EV.EPOCH], more[i, MORE.DIGEST], 1)
    slots[slot, SL.ROW] = row
    # What was cut off ends in a gap: an answer that lies in one right before its last frame may be its own.
    slots[slot, SL.FRAME] = events[i, EV.ORDER] - (1 if events[i, EV.PARTIAL] == 1 else 0)
    slots[slot, SL.EXTRA] = extra
    ch.note_late(channels, account, conn, SERVER, events[i, EV.TS])
    return True


@kernel
def confirm(
    events: Array, i: int, account: int, conn: Array, gaps: Array, channels: ch.Channels, ledger: lg.Ledger,
    returns: rt.Returns, out: Array, state: Array,
) -> bool:  # fmt: skip
    """Apply an answer to one or several publishes; return False if `out` is full: apply it again."""
    accounts = channels[0]
    number = events[i, EV.NUMBER]
    outcome = ACK if events[i, EV.WHAT] == ON_ACK else NACK
    if events[i, EV.MULTIPLE] != 1:
        slot = lg.slot_of(ledger, account, number)
        if slot >= 0:
            settle(slot, outcome, state[ST.BASE] + i, events[i, EV.ORDER], account, conn, gaps, channels, ledger,
                   returns, out, state)  # fmt: skip
        return True
    ch.note_floor(channels, account, conn, SERVER)
    floor = accounts[account, ACC.FLOOR]
    slot = lg.first_above(ledger, accounts, account, floor)
    if slot >= 0:
        accounts[account, ACC.FLOOR] = lg.below(ledger, slot, floor)
    while slot >= 0 and lg.number_of(ledger, slot) <= number:
        if state[ST.OUT] >= len(out):
            return False
        following = lg.following(ledger, slot)
        settle(slot, outcome, state[ST.BASE] + i, events[i, EV.ORDER], account, conn, gaps, channels, ledger, returns,
               out, state)  # fmt: skip
        slot = following
    return True


@kernel
def settle(
    slot: int, outcome: int, answer: int, frame: int, account: int, conn: Array, gaps: Array, channels: ch.Channels,
    ledger: lg.Ledger, returns: rt.Returns, out: Array, state: Array,
) -> None:  # fmt: skip
    """Answer the publish in a slot; it has twelve parameters because kernels of gaps and returns need them."""
    slots = ledger[1]
    extra, row = slots[slot, SL.EXTRA], slots[slot, SL.ROW]
    code = -1
    if extra >= ENTRIES:
        code = returns[0][extra - ENTRIES, ENTRY.CODE]
    since = slots[slot, SL.FRAME]
    returned = 1 if code >= 0 else unreturned(extra, account, conn, gaps, channels, since, frame)
    lg.remove(ledger, channels[0], slot)
    if extra >= ENTRIES and code < 0:
        rt.keep(returns, extra - ENTRIES, row, outcome, answer, returned)
        if returns[2][rt.ANSWERED] > rt.LATE:
            let_out(returns[2][rt.FIRST], -1, returns, out, state)
        return
    if extra >= ENTRIES:
        rt.release(returns, extra - ENTRIES)
    finish(out, state, row, outcome, answer, ANSWERED, -1, returned, code)


@kernel
def unreturned(
    extra: int, account: int, conn: Array, gaps: Array, channels: ch.Channels, frame: int, until: int
) -> int:  # fmt: skip
    """Return what is known of a publish without a return: 0 that there was none, -1 nothing.

    Args:
        extra: SL.EXTRA.
        account: that of its channel epoch.
        conn: `connection.CONN`.
        gaps: see `connection`.
        channels: see `channels`.
        frame: its frame.
        until: frame before which its return would have come.
    """
    if extra == NOT_MANDATORY:
        return 0
    if extra == UNEXPECTED:
        return -1
    lost, _, _ = ch.lost_at(channels, account, conn, gaps, SERVER, frame)
    return -1 if lost <= until else 0


@kernel
def let_out(entry: int, code: int, returns: rt.Returns, out: Array, state: Array) -> None:
    """Write a publish that was answered: it is returned, or (code -1) can no longer be returned."""
    entries, _, counts = returns
    row, outcome, answer = entries[entry, ENTRY.ROW], entries[entry, ENTRY.OUTCOME], entries[entry, ENTRY.ANSWER]
    returned = 1 if code >= 0 else entries[entry, ENTRY.RETURNED]
    finish(out, state, row, outcome, answer, GAP if outcome == NONE else ANSWERED, -1, returned, code)
    earlier, later = entries[entry, ENTRY.EARLIER], entries[entry, ENTRY.LATER]
    if earlier >= 0:
        entries[earlier, ENTRY.LATER] = later
    else:
        counts[rt.FIRST] = later
    if later >= 0:
        entries[later, ENTRY.EARLIER] = earlier
    else:
        counts[rt.LAST] = earlier
    counts[rt.ANSWERED] -= 1
    entries[entry, ENTRY.ROW] = -1
    rt.release(returns, entry)


@kernel
def drain(
    account: int, conn: Array, gaps: Array, channels: ch.Channels, ledger: lg.Ledger, returns: rt.Returns, out: Array,
    state: Array,
) -> bool:  # fmt: skip
    """End the publishes of a channel epoch without an answer; return False if `out` is full: call it again."""
    accounts = channels[0]
    slots = ledger[1]
    slot = lg.first_above(ledger, accounts, account, -1)
    while slot >= 0:
        if state[ST.OUT] >= len(out):
            return False
        frame = slots[slot, SL.FRAME]
        ch.pass_own_gaps(channels, account, frame)
        by, ts = ch.ending(channels, account, conn, gaps, SERVER, frame)
        extra = slots[slot, SL.EXTRA]
        code = -1
        if extra >= ENTRIES:
            code = rt.release(returns, extra - ENTRIES)
        returned = 1 if code >= 0 else unreturned(extra, account, conn, gaps, channels, frame, NEVER - 1)
        finish(out, state, slots[slot, SL.ROW], NONE, -1, by, ts, returned, code)
        following = lg.following(ledger, slot)
        lg.remove(ledger, accounts, slot)
        slot = following
    return True


@kernel
def close(
    conn: Array, gaps: Array, channels: ch.Channels, ledger: lg.Ledger, returns: rt.Returns, out: Array, state: Array
) -> bool:
    """End the connection; return False if `out` is full: call it again."""
    for account in range(channels[3][0]):
        if not drain(account, conn, gaps, channels, ledger, returns, out, state):
            return False
    while returns[2][rt.FIRST] >= 0:
        if state[ST.OUT] >= len(out):
            return False
        let_out(returns[2][rt.FIRST], -1, returns, out, state)
    ch.forget(channels)
    entries, table, counts = returns
    empty(table, entries, ENTRY.SCOPE, ENTRY.DIGEST, counts[rt.USED])
    for each in range(len(counts)):
        counts[each] = rt.NO_COUNTS[each]
    return True


@kernel
def mark(
    events: Array,
    conn: Array,
    channels: ch.Channels,
    ledger: lg.Ledger,
    returns: rt.Returns,
    still: Array,
    state: Array,
) -> int:
    """Set `still` (uint8, PUBLISH and ANSWER per event) for events of this batch whose rows are still needed.

    These are outstanding publishes, publishes that may still be returned, and the answers to the latter.

    Returns:
        The smallest id of such an answer; NEVER for none.
    """
    base = state[ST.BASE]
    for i in range(len(events)):
        if events[i, EV.WHAT] == ON_PUBLISH and events[i, EV.CONNECTION] == conn[CONN.ID]:
            account = ch.account_of(channels, events[i, EV.CHANNEL], events[i, EV.EPOCH])
            slot = lg.slot_of(ledger, account, events[i, EV.NUMBER]) if account >= 0 else -1
            if slot >= 0 and ledger[1][slot, SL.ROW] == base + i:
                still[i, PUBLISH] = 1
    entries, _, counts = returns
    each, first = counts[rt.FIRST], NEVER
    while each >= 0:
        if entries[each, ENTRY.ANSWER] >= 0:
            first = min(first, entries[each, ENTRY.ANSWER])
        if entries[each, ENTRY.ROW] >= base:
            still[entries[each, ENTRY.ROW] - base, PUBLISH] = 1
        if entries[each, ENTRY.ANSWER] >= base:
            still[entries[each, ENTRY.ANSWER] - base, ANSWER] = 1
        each = entries[each, ENTRY.LATER]
    return first


@kernel
def finish(
    out: Array, state: Array, row: int, outcome: int, answer: int, by: int, end_ts: int, returned: int, code: int
) -> None:
    """Write a row of `out`."""
    at = state[ST.OUT]
    out[at, OUT.ROW] = row
    out[at, OUT.OUTCOME] = outcome
    out[at, OUT.ANSWER] = answer
    out[at, OUT.BY] = by
    out[at, OUT.END_TS] = end_ts
    out[at, OUT.RETURNED] = returned
    out[at, OUT.CODE] = code
    state[ST.OUT] = at + 1
