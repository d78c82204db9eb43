"""Controls that begin, move and end sessions of AMQP 0-10, and what is then outstanding: kernels of `command_walk`."""

from __future__ import annotations

from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.pipelines.amqp010 import sessions as ss
from amqpscope.pipelines.amqp010.commands import (
    ACCEPTED,
    AT,
    ATTACH,
    AUTO,
    BRANCH_BITS,
    COMMITTING,
    DETACH,
    DETACHED,
    DOUBTED,
    EXPECTED,
    HELD,
    KIND,
    MORE,
    NONE,
    POINT,
    QUIET,
    REFUSALS,
    ROLLED,
    SEEN,
    SILENT,
    ST,
    TIMEOUT,
    UNKNOWN,
    UNSURE,
    Batch,
    Outstanding,
    finish,
    settle_held,
)  # fmt: skip
from amqpscope.pipelines.amqp010.sessions import PERHAPS, RESUMED, SE
from amqpscope.pipelines.model import channels as ch
from amqpscope.pipelines.model import outstanding as lg
from amqpscope.pipelines.model.channels import ACC
from amqpscope.pipelines.model.connection import CLIENT, SERVER
from amqpscope.pipelines.model.events import EV
from amqpscope.pipelines.model.outstanding import SL
from amqpscope.pipelines.model.unanswered import (
    ANSWERED,
    CAPTURE_END,
    CHANNEL_CLOSE,
    CONNECTION_CLOSE,
    EVICTED,
    GAP,
    NEVER,
    ROLLBACK,
)


@kernel
def control(batch: Batch, i: int, row: int, of: Outstanding) -> bool:
    """Apply a control that begins, moves or ends a session; return False if there is no room: call it again."""
    events, more, _ = batch
    (accounts, _, _, _), rows = of.sessions
    role, side = more[i, MORE.ROLE], events[i, EV.FROM_CLIENT]
    frame, ts, code = events[i, EV.ORDER], events[i, EV.TS], more[i, MORE.CODE]
    if role == POINT:
        account = 2 * row + side
        if rows[row, SE.ATTACHED] == 1 and more[i, MORE.TARGET] > 0 and accounts[account, ACC.LAST] < 0:
            accounts[account, RESUMED] = 1
            rows[row, SE.OUTLIVES] = 1
            rows[row, SE.TRANSACTION] = max(rows[row, SE.TRANSACTION], PERHAPS)
    elif role == TIMEOUT:
        rows[row, SE.OUTLIVES] = 0 if code == 0 else 1
    elif role == ATTACH:
        if accounts[2 * row, ACC.SERVER_CLOSE] >= 0 or accounts[2 * row, ACC.CLIENT_CLOSE] >= 0:  # it is attached anew
            for account in range(2 * row, 2 * row + 2):
                if not drain(account, 0, of):
                    return False
            ss.renew(of.sessions, row, 1)
        rows[row, SE.ATTACHED] = 1
    elif role == EXPECTED and more[i, MORE.FIRST] == more[i, MORE.END] and more[i, MORE.CODE] == 0:
        account = 2 * row + 1 - side  # nothing is expected of what came before: the session is a new one
        if accounts[account, ACC.COUNT] > 0:
            accounts[account, ACC.SERVER_CLOSE + side] = frame
            accounts[account, ACC.SERVER_CLOSE_TS + side] = ts
            if not drain(account, 0, of):
                return False
        ss.renew_account(accounts, account)
    elif rows[row, SE.OUTLIVES] == 0 and (role == DETACH or (role == DETACHED and code not in REFUSALS)):
        ss.end(of.sessions, row, side, frame, ts)
    return True


@kernel
def drain(account: int, outlives: int, of: Outstanding) -> bool:
    """End what is outstanding on an account without an answer; return False if there is no room: call it again."""
    channels, rows = of.sessions
    accounts, slots, row = channels[0], of.ledger[1], account // 2
    slot = lg.first_above(of.ledger, accounts, account, -1)
    while slot >= 0:
        if of.state[ST.OUT] >= len(of.out):
            return False
        extra = slots[slot, SL.EXTRA]
        kind = extra & KIND
        if kind == HELD:
            following = lg.following(of.ledger, slot)
            settle_held(of, slot)
            slot = following
            continue
        by, ts = ch.ending(channels, account, of.conn, of.gaps, 1 - account % 2, slots[slot, SL.FRAME])
        outcome, goes_on = NONE, 0
        if kind == ROLLED:
            frame = of.accepts[slot, AT.FRAME]
            lost, lost_ts, _ = ch.lost_at(channels, account, of.conn, of.gaps, 1 - account % 2, frame)
            by, ts = (ROLLBACK, of.accepts[slot, AT.ID]) if lost == NEVER else (GAP, lost_ts)
        elif kind == DOUBTED:
            by = GAP
        elif kind == COMMITTING and by != GAP:  # the completion of the commit may be lost
            lost, lost_ts, _ = ch.lost_at(
                channels, 2 * row + CLIENT, of.conn, of.gaps, SERVER, of.accepts[slot, AT.FRAME]
            )
            by, ts = (GAP, lost_ts) if lost < NEVER else (by, ts)
        elif kind == QUIET or kind == SEEN:
            outcome, by = (SILENT if kind == QUIET else AUTO), ANSWERED
        elif kind == UNSURE:
            outcome = UNKNOWN
        elif outlives == 1 and (by == CONNECTION_CLOSE or by == CAPTURE_END or by == EVICTED):
            goes_on = rows[row, SE.KEY] ^ of.state[ST.SCOPE]
        elif kind == ACCEPTED and (by == CHANNEL_CLOSE or by == CONNECTION_CLOSE):
            branch = extra >> BRANCH_BITS
            if branch != 0 and branch != rows[row, SE.BRANCH]:  # another session may end it
                outcome = UNKNOWN
        finish(of, slots[slot, SL.ROW], extra, outcome, -1, by, ts, -1, 0, goes_on)
        following = lg.following(of.ledger, slot)
        lg.remove(of.ledger, accounts, slot)
        slot = following
    return True


@kernel
def close(of: Outstanding) -> bool:
    """End the connection; return False if there is no room: call it again."""
    channels, rows = of.sessions
    for account in range(2 * channels[3][0]):
        if not drain(account, rows[account // 2, SE.OUTLIVES], of):
            return False
    ss.forget(of.sessions)
    return True
