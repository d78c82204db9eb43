"""Commands of AMQP 0-10 and what answers them: the kernel of `session_statistics`.

Each side numbers its commands per session; the other side answers by number. A command is outstanding from its last
frame on:

| command | answered by |
|---|---|
| message.transfer of the client (a publish) | session.completed; refused by reject, release, exception |
| message.transfer of the server (a delivery) | message.accept, reject, release |
| the same where nothing is acquired | these, or session.completed: there need not be an answer |
| any other that asks (sync, or one with a result) | execution.result, session.completed, execution.exception |

In a transaction, message.accept takes effect with the completion of tx.commit, or the result of dtx.commit. Where a
tx.select may have been missed, it is held for what shows that, PATIENCE_NS at most.
session.completed names all commands that are completed, again and again, so after a gap in what that side sends it is
unknown when it named those before the gap for the first time. What ends a session without an answer: session.detach
and detached, unless a timeout was granted; an exception; the connection. If the session may go on elsewhere, that is
reported (OUT.SESSION), and so are answers to commands of another connection (`reported`): `session_joins` has the rest.
"""

from __future__ import annotations

from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.lookup import enter, leave, row_of
from amqpscope.pipelines.amqp010 import sessions as ss
from amqpscope.pipelines.amqp010.command_answers import answer
from amqpscope.pipelines.amqp010.command_ends import close, control
from amqpscope.pipelines.amqp010.commands import (
    ACCEPTED,
    AT,
    ATTACH,
    AUTO,
    BRANCH_BITS,
    COMMIT,
    COMMITTING,
    COMPLETED,
    DELIVERY,
    DOUBTED,
    END,
    EXPECTED,
    HELD,
    KIND,
    MORE,
    NONE,
    POINT,
    PREPARE_BRANCH,
    PREPARING,
    PUBLISH,
    QUEUE_BITS,
    QUIET,
    RELEASE,
    REQUEST,
    ROLL_BACK,
    SEEN,
    SELECT,
    SILENT,
    ST,
    START,
    TRANSFER,
    UNKNOWN,
    UNSURE,
    Batch,
    Outstanding,
    finish,
    mark,
    roll_back,
    settle_held,
)
from amqpscope.pipelines.amqp010.frames import FRAMES_010
from amqpscope.pipelines.amqp010.sessions import AT_ONCE, COMMITTED, DONE_TO, SE
from amqpscope.pipelines.model import channels as ch
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model import outstanding as lg
from amqpscope.pipelines.model.channels import ACC
from amqpscope.pipelines.model.connection import CLIENT, CONN, SERVER
from amqpscope.pipelines.model.events import CONNECTIONS, EV
from amqpscope.pipelines.model.outstanding import SL
from amqpscope.pipelines.model.stopped import DONE, NEEDS_OUTPUT_ROOM, NEEDS_PAGES
from amqpscope.pipelines.model.unanswered import ANSWERED, EVICTED, GAP, PATIENCE_NS


@kernel
def walk(batch: Batch, of: Outstanding) -> int:
    """Walk over a batch from where it stopped; return why it stopped (DONE: at the end of the batch).

    There is room for as many sessions as the batch names.
    """
    events, more, _ = batch
    conn, state = of.conn, of.state
    for i in range(state[ST.AT], len(events)):
        state[ST.AT] = i
        if events[i, EV.CONNECTION] != conn[CONN.ID]:
            if not close(of):
                return NEEDS_OUTPUT_ROOM
            cn.open_connection(conn, events[i, EV.CONNECTION])
            state[ST.SCOPE] = 0
        if events[i, EV.SOURCE] == CONNECTIONS:
            state[ST.SCOPE] = more[i, MORE.SESSION]
        elif more[i, MORE.SESSION] != 0 and events[i, EV.FROM_CLIENT] >= 0:
            why = apply_event(batch, i, of)
            if why != DONE:
                return why
        state[ST.SEVERAL] = -1
        if events[i, EV.SOURCE] == FRAMES_010 and events[i, EV.CUT] > 0 and events[i, EV.FROM_CLIENT] >= 0:
            cn.add_gap(conn, of.gaps, events[i, EV.FROM_CLIENT], events[i, EV.ORDER], events[i, EV.TS], -1)
        cn.update_connection(conn, of.gaps, events, i, more[i, MORE.IDENTITY])
    state[ST.AT] = len(events)
    return DONE


@kernel
def apply_event(batch: Batch, i: int, of: Outstanding) -> int:
    """Apply an event to its session; return DONE, or why it stopped: call it again."""
    events, more, _ = batch
    role, side = more[i, MORE.ROLE], events[i, EV.FROM_CLIENT]
    (accounts, table, _, _), rows = of.sessions
    row = row_of(table, rows, SE.KEY, more[i, MORE.SESSION], SE.KEY, more[i, MORE.SESSION])
    if row < 0 and role == ATTACH and side == SERVER:  # the name of what was attached before the capture
        row = row_of(table, rows, SE.KEY, more[i, MORE.TARGET], SE.KEY, more[i, MORE.TARGET])
        if row >= 0 and (accounts[2 * row, ACC.SERVER_CLOSE] >= 0 or accounts[2 * row, ACC.CLIENT_CLOSE] >= 0):
            row = -1
        if row >= 0:
            rows[row, SE.OUTLIVES] = 0  # its timeout, if there is one, is granted later
            leave(table, rows, SE.KEY, SE.KEY, row)
            rows[row, SE.KEY] = more[i, MORE.SESSION]
            enter(table, rows, SE.KEY, SE.KEY, row)
    if row < 0:
        row = ss.begin(of.sessions, more[i, MORE.SESSION], 1 if role == ATTACH else 0)
    if of.state[ST.OUT] + 1 >= len(of.out):
        return NEEDS_OUTPUT_ROOM
    if rows[row, SE.SURE_GAPS] < 0:
        rows[row, SE.SURE_GAPS] = of.conn[CONN.CLIENT_GAPS]
    held = rows[row, SE.HELD_TS]
    if held >= 0 and events[i, EV.TS] - held >= PATIENCE_NS and not lose_patience(row, of):
        return NEEDS_OUTPUT_ROOM
    asks = role == TRANSFER or more[i, MORE.ASKS] == 1
    if asks and more[i, MORE.SLOT] == -1 and not ask(batch, i, 2 * row + side, of):
        return NEEDS_PAGES
    if COMPLETED <= role <= RELEASE:
        done = answer(batch, i, row, of)
        return DONE if done else NEEDS_OUTPUT_ROOM
    if POINT <= role <= EXPECTED:
        done = control(batch, i, row, of)
        return DONE if done else NEEDS_OUTPUT_ROOM
    if SELECT <= role <= END and side == CLIENT:
        done = transact(batch, i, row, of)
        return DONE if done else NEEDS_OUTPUT_ROOM
    return DONE


@kernel
def ask(batch: Batch, i: int, account: int, of: Outstanding) -> bool:
    """Add a command; return False if there is no free page. What is sent again with its id is the same command.

    Which answer is that of a command whose id a gap hides is unknown.
    """
    events, more, _ = batch
    (accounts, _, _, _), _ = of.sessions
    side, number, identity = events[i, EV.FROM_CLIENT], events[i, EV.NUMBER], more[i, MORE.IDENTITY]
    role, mode = more[i, MORE.ROLE], more[i, MORE.MODE]
    kind = REQUEST
    if role == TRANSFER and side == CLIENT:
        kind = QUIET if mode == 1 else PUBLISH
    elif role == TRANSFER:
        kind = UNSURE if mode < 0 else SEEN if more[i, MORE.ACQUIRE] == 1 and mode != 1 else DELIVERY
    elif role >= PREPARE_BRANCH and side == CLIENT:
        kind = PREPARING + role - PREPARE_BRANCH
    extra = kind | ((more[i, MORE.QUEUE] + 1) << QUEUE_BITS)
    if role == TRANSFER and side == SERVER and mode == 1:  # nothing is to be accepted
        finish(of, identity, extra, AUTO, -1, ANSWERED, -1, -1, 0, 0)
        return True
    if number < 0:
        outcome = SILENT if kind == QUIET else UNKNOWN if kind == SEEN or kind == UNSURE else NONE
        finish(of, identity, extra, outcome, -1, GAP, events[i, EV.TS], -1, 0, 0)
        more[i, MORE.SLOT] = -2
        return True
    ch.note_floor(of.sessions[0], account, of.conn, 1 - side)
    slots = of.ledger[1]
    if number <= accounts[account, DONE_TO]:
        accounts[account, DONE_TO] = -1
    slot = lg.add(of.ledger, accounts, account, number) if of.ledger[3][lg.BK.COUNT] < of.state[ST.LIMIT] else -2
    if slot == -1:
        return False
    if slot < 0:
        finish(of, identity, extra, NONE, -1, EVICTED, events[i, EV.TS], -1, 0, 0)
        more[i, MORE.SLOT] = -2
        return True
    if slots[slot, SL.ROW] < 0:
        slots[slot, SL.ROW] = identity
        slots[slot, SL.FRAME] = events[i, EV.ORDER]
        branch = more[i, MORE.BRANCH] if kind > REQUEST else 0
        slots[slot, SL.EXTRA] = extra | (branch << BRANCH_BITS)
        more[i, MORE.SLOT] = slot
    return True


@kernel
def transact(batch: Batch, i: int, row: int, of: Outstanding) -> bool:
    """Apply tx.select, tx.commit or tx.rollback: what was accepted waits for the commit, or is not accepted.

    Between dtx.start and dtx.end what is accepted is part of a branch, which ends by the result of a command. What was
    held is in a transaction if it ends now, and in none if one begins now. Return False if there is no room: call it
    again.
    """
    events, more, _ = batch
    rows, slots = of.sessions[1], of.ledger[1]
    role, branch = more[i, MORE.ROLE], more[i, MORE.BRANCH]
    slot = lg.first_above(of.ledger, of.sessions[0][0], 2 * row + SERVER, -1)
    while slot >= 0:
        following = lg.following(of.ledger, slot)
        kind = slots[slot, SL.EXTRA] & KIND
        if kind == HELD and (role == SELECT or role == START or (role == END and branch == 0)):
            if of.state[ST.OUT] >= len(of.out):
                return False
            settle_held(of, slot)
        elif kind == HELD or (kind == ACCEPTED and COMMIT <= role <= ROLL_BACK):
            lost = cn.first_gap(of.conn, of.gaps, CLIENT, of.accepts[slot, AT.FRAME]) >= 0
            if lost or (role < START and events[i, EV.NUMBER] < 0):
                mark(of, slot, DOUBTED)
            elif role == ROLL_BACK:
                roll_back(of, slot, events[i, EV.ORDER], events[i, EV.TS])
            else:
                mark(of, slot, COMMITTING if role == COMMIT else ACCEPTED)
                slots[slot, SL.EXTRA] |= branch << BRANCH_BITS
        slot = following
    rows[row, SE.HELD_TS] = -1
    if role >= START:
        rows[row, SE.BRANCH] = branch if role == START else 0
        rows[row, SE.BRANCH_GAPS] = of.conn[CONN.CLIENT_GAPS]
    else:
        rows[row, SE.TRANSACTION] = COMMITTED  # also where the tx.select is not in the capture
    if role == COMMIT:
        rows[row, SE.COMMIT] = events[i, EV.NUMBER]
        rows[row, SE.COMMIT_FRAME] = events[i, EV.ORDER]
    return True


@kernel
def lose_patience(row: int, of: Outstanding) -> bool:
    """Apply what was held for too long: the session has no transactions. Return False if there is no room."""
    rows, slots = of.sessions[1], of.ledger[1]
    slot = lg.first_above(of.ledger, of.sessions[0][0], 2 * row + SERVER, -1)
    while slot >= 0:
        following = lg.following(of.ledger, slot)
        if slots[slot, SL.EXTRA] & KIND == HELD:
            if of.state[ST.OUT] >= len(of.out):
                return False
            settle_held(of, slot)
        slot = following
    rows[row, SE.HELD_TS] = -1
    rows[row, SE.TRANSACTION] = AT_ONCE
    rows[row, SE.SURE_GAPS] = of.conn[CONN.CLIENT_GAPS]
    return True
