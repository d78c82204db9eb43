"""Answers to commands of AMQP 0-10: kernels of `command_walk`."""

from __future__ import annotations

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.pipelines.amqp010 import sessions as ss
from amqpscope.pipelines.amqp010.commands import (
    ACCEPT,
    ACCEPTED,
    ACK,
    AT,
    BRANCH_BITS,
    COMMIT,
    COMMITTING,
    COMMITTING_BRANCH,
    COMPLETED,
    DOUBTED,
    EXCEPTION,
    HELD,
    KIND,
    MORE,
    NONE,
    REQUEST,
    RESULT,
    ROLLED,
    ROLLING_BACK,
    SEVERAL_BIT,
    ST,
    UNSURE,
    Batch,
    Outstanding,
    finish,
    mark,
    outcome_of,
    report,
    roll_back,
    settle,
)  # fmt: skip
from amqpscope.pipelines.amqp010.sessions import AT_ONCE, COMMITTED, DONE_FROM, DONE_TO, RESUMED, SE
from amqpscope.pipelines.model import channels as ch
from amqpscope.pipelines.model import outstanding as lg
from amqpscope.pipelines.model.channels import ACC
from amqpscope.pipelines.model.connection import CLIENT, CONN, SERVER
from amqpscope.pipelines.model.events import EV
from amqpscope.pipelines.model.outstanding import SL
from amqpscope.pipelines.model.unanswered import GAP, NEVER

EFFECTS = ACCEPTED, ROLLED, ROLLED, UNSURE, COMMITTING, ROLLED, UNSURE
"""What a result (xa-status) makes of what is accepted in a branch; 0: what was asked for.

Whether a branch with mixed or unknown results (xa-heurmix, xa-heurhaz) has accepted a delivery is unknown."""


@kernel
def answer(batch: Batch, i: int, row: int, of: Outstanding) -> bool:
    """Apply an answer to commands of the other side; return False if there is no room: call it again."""
    events, more, ranges = batch
    channels, rows = of.sessions
    accounts, state = channels[0], of.state
    role, side = more[i, MORE.ROLE], events[i, EV.FROM_CLIENT]
    account = 2 * row + 1 - side
    named = role == RESULT or role == EXCEPTION
    pending = accepted_as(row, of) if role == ACCEPT and side == CLIENT else NONE
    if pending == HELD and rows[row, SE.HELD_TS] < 0:
        rows[row, SE.HELD_TS] = events[i, EV.TS]
    if named and more[i, MORE.TARGET] < 0:
        return True
    first, end = (0, 1) if named else (more[i, MORE.FIRST], more[i, MORE.END])
    if (
        state[ST.REPORTED] + end - first > len(of.reported)
        and state[ST.REPORTED] > 0
        and accounts[account, RESUMED] == 1
    ):
        return False
    ch.note_floor(channels, account, of.conn, side)
    last = accounts[account, ACC.LAST]
    for counting in range(2):
        if counting == 0 and state[ST.SEVERAL] >= 0:
            continue
        found = 0
        for k in range(first, end):
            low, high = more[i, MORE.TARGET], more[i, MORE.TARGET]
            if not named:
                low, high = ranges[k, 0], ranges[k, 1]
            lower, upper = ss.unwrapped(low, high, last)
            if role == COMPLETED and counting == 1 and rows[row, SE.COMMIT] >= 0 and side == SERVER:
                if lower <= rows[row, SE.COMMIT] <= upper:
                    if not commit(batch, i, row, of):
                        return False
            slot = first_of(role, lower, upper, account, of)
            while slot >= 0 and lg.number_of(of.ledger, slot) <= upper:
                following = lg.following(of.ledger, slot) if upper > lower else -1
                made = outcome_of(role, of.ledger[1][slot, SL.EXTRA] & KIND)
                if made != NONE and counting == 0:
                    found += 1
                    if found > 1:
                        break
                elif made != NONE and pending != NONE:
                    accept(batch, i, row, slot, pending, of)
                elif made != NONE:
                    if role == RESULT and not end_branch(batch, i, slot, row, of):
                        return False
                    if state[ST.OUT] >= len(of.out):
                        return False
                    settle(batch, i, slot, made, of)
                slot = following
        if counting == 0:
            state[ST.SEVERAL] = 1 if found > 1 else 0
    for k in range(first, end):
        low, high = more[i, MORE.TARGET], more[i, MORE.TARGET]
        if not named:
            low, high = ranges[k, 0], ranges[k, 1]
        if accounts[account, RESUMED] == 1 and state[ST.REPORTED] < len(of.reported):
            report(of, rows[row, SE.KEY] ^ state[ST.SCOPE], 1 - side, more, i, low, high)
        if role == COMPLETED:
            note_done(accounts, account, low, high, last)
    if role == EXCEPTION:
        ss.end(of.sessions, row, side, events[i, EV.ORDER], events[i, EV.TS])
    return True


@kernel
def first_of(role: int, lower: int, upper: int, account: int, of: Outstanding) -> int:
    """Return the slot of the first outstanding command that an answer to this range may be for; -1: none."""
    accounts = of.sessions[0][0]
    if role != COMPLETED:
        if lower == upper:
            return lg.slot_of(of.ledger, account, lower)
        return lg.first_above(of.ledger, accounts, account, lower - 1)
    above = max(lower - 1, accounts[account, ACC.FLOOR])
    if accounts[account, DONE_FROM] <= lower <= accounts[account, DONE_TO] + 1:
        above = max(above, accounts[account, DONE_TO])
    return lg.first_above(of.ledger, accounts, account, above)


@kernel
def note_done(accounts: Array, account: int, low: int, high: int, last: int) -> None:
    """Note that this range was reported as completed, so that it need not be gone through again."""
    lower, upper = ss.unwrapped(low, high, last)
    upper = min(upper, last)
    done = accounts[account, DONE_TO]
    if upper > done:
        if not accounts[account, DONE_FROM] <= lower <= done + 1:
            accounts[account, DONE_FROM] = lower
        accounts[account, DONE_TO] = upper


@kernel
def commit(batch: Batch, i: int, row: int, of: Outstanding) -> bool:
    """Apply the completion of tx.commit, which may have been reported in a gap before; return False without room."""
    channels, rows = of.sessions
    accounts = channels[0]
    lost, ts, _ = ch.lost_at(channels, 2 * row + CLIENT, of.conn, of.gaps, SERVER, rows[row, SE.COMMIT_FRAME])
    slot = lg.first_above(of.ledger, accounts, 2 * row + SERVER, -1)
    while slot >= 0:
        following = lg.following(of.ledger, slot)
        extra, identity = of.ledger[1][slot, SL.EXTRA], of.ledger[1][slot, SL.ROW]
        if outcome_of(COMMIT, extra & KIND) == ACK:
            if of.state[ST.OUT] >= len(of.out):
                return False
            if lost == NEVER:
                settle(batch, i, slot, ACK, of)
            else:
                lg.remove(of.ledger, accounts, slot)
                finish(of, identity, extra, NONE, -1, GAP, ts, -1, 0, 0)
        slot = following
    rows[row, SE.COMMIT] = -1
    return True


@kernel
def accepted_as(row: int, of: Outstanding) -> int:
    """Return what a delivery of a session is when it is accepted in a transaction; NONE: it is not in one."""
    rows = of.sessions[1]
    since, gaps = rows[row, SE.BRANCH_GAPS], of.conn[CONN.CLIENT_GAPS]
    if since >= 0 and gaps != since:
        return DOUBTED
    if rows[row, SE.TRANSACTION] == COMMITTED or rows[row, SE.BRANCH] != 0:
        return ACCEPTED
    sure = rows[row, SE.TRANSACTION] == AT_ONCE and rows[row, SE.SURE_GAPS] == gaps
    return NONE if since >= 0 or sure else HELD


@kernel
def accept(batch: Batch, i: int, row: int, slot: int, kind: int, of: Outstanding) -> None:
    """Note that a delivery of a session (its row) is accepted in a transaction, or perhaps in one (HELD)."""
    events, more, _ = batch
    slots, accepts = of.ledger[1], of.accepts
    if slots[slot, SL.EXTRA] & KIND == HELD:
        return
    mark(of, slot, kind)
    kept = slots[slot, SL.EXTRA] & ((1 << BRANCH_BITS) - 1) & ~SEVERAL_BIT
    branch = of.sessions[1][row, SE.BRANCH]
    slots[slot, SL.EXTRA] = kept | (SEVERAL_BIT * of.state[ST.SEVERAL]) | (branch << BRANCH_BITS)
    accepts[slot, AT.ID] = more[i, MORE.IDENTITY]
    accepts[slot, AT.FRAME] = events[i, EV.ORDER]


@kernel
def end_branch(batch: Batch, i: int, request: int, row: int, of: Outstanding) -> bool:
    """Apply the result of a command that ends a branch to what was accepted in it; return False without room."""
    events, more, _ = batch
    accounts, slots = of.sessions[0][0], of.ledger[1]
    ended = slots[request, SL.EXTRA]
    request, status = ended & KIND, more[i, MORE.STATUS]
    if request == REQUEST or not 0 <= status < len(EFFECTS):
        return True
    kind = EFFECTS[status]
    if status == 0:
        kind = COMMITTING if request == COMMITTING_BRANCH else ROLLED if request == ROLLING_BACK else ACCEPTED
    if kind == ACCEPTED:
        return True
    slot = lg.first_above(of.ledger, accounts, 2 * row + SERVER, -1)
    while slot >= 0:
        following = lg.following(of.ledger, slot)
        extra = slots[slot, SL.EXTRA]
        if extra & KIND == ACCEPTED and extra >> BRANCH_BITS == ended >> BRANCH_BITS:
            if of.state[ST.OUT] >= len(of.out):
                return False
            if kind == ROLLED:
                roll_back(of, slot, events[i, EV.ORDER], events[i, EV.TS])
            else:
                mark(of, slot, kind)
            if kind == COMMITTING:
                settle(batch, i, slot, ACK, of)
        slot = following
    return True
