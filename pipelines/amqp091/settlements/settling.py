"""How deliveries are settled: acknowledgements, transactions, recovers, and the end of channels (see `deliveries`)."""

from __future__ import annotations

from amqpscope.dissector.kernels.arrays import Array
from amqpscope.dissector.kernels.kernel import kernel
from amqpscope.dissector.kernels.lookup import empty
from amqpscope.dissector.kernels.pool import append_row
from amqpscope.pipelines.amqp091.settlements import consumers as co
from amqpscope.pipelines.amqp091.settlements import transactions as tx
from amqpscope.pipelines.amqp091.settlements.consumers import CHAN, CONS
from amqpscope.pipelines.amqp091.settlements.delivered import (
    ACK,
    MORE,
    NACK,
    NONE,
    ON_ACK,
    ON_COMMIT,
    ON_COMMIT_OK,
    ON_CONFIRM,
    ON_NACK,
    ON_REJECT,
    ON_SELECT,
    ON_TX_ROLLBACK,
    REJECT,
    ROLLED,
    Book,
    Own,
    Result,
    close_windows,
    finish,
    leave_windows,
    notice_gaps,
    plain,
    unsure_windows,
)
from amqpscope.pipelines.amqp091.settlements.transactions import ACT, ASKED, PERHAPS, PLAIN, SELECTED, TX
from amqpscope.pipelines.model import channels as ch
from amqpscope.pipelines.model import connection as cn
from amqpscope.pipelines.model import outstanding as lg
from amqpscope.pipelines.model.channels import ACC
from amqpscope.pipelines.model.connection import CLIENT, CONN, GAP_FRAME, GAP_TS, SERVER
from amqpscope.pipelines.model.events import EV
from amqpscope.pipelines.model.outstanding import SL
from amqpscope.pipelines.model.reuse import ASKED_FREE, ASKED_USED, FREE, USED, give, take
from amqpscope.pipelines.model.stopped import DONE, NEEDS_ACTS, NEEDS_OUTPUT_ROOM, NEEDS_PAGES, ST
from amqpscope.pipelines.model.unanswered import ANSWERED, DISCARDED, NEVER, PATIENCE_NS, RECOVER, ROLLBACK
from amqpscope.pipelines.model.unanswered import GAP as IN_GAP


@kernel
def acknowledge(events: Array, more: Array, i: int, account: int, book: Book, own: Own, result: Result) -> int:
    """Apply an ack, nack or reject of the client; return DONE, or what has run out."""
    conn, gaps, channels, ledger = book
    consumers, transactions, _ = own
    out, state = result
    accounts, ends, work = channels[0], consumers[3], transactions[0]
    number, word = events[i, EV.NUMBER], events[i, EV.WHAT]
    if number < 0 or accounts[account, ACC.SERVER_CLOSE] >= 0 or conn[CONN.SERVER_CLOSE] >= 0:
        return DONE
    if work[account, TX.RECOVER] >= 0:
        if cn.first_gap(conn, gaps, SERVER, work[account, TX.RECOVER]) < 0:
            return DONE
        if not void(account, work[account, TX.RECOVER], -1, work[account, TX.RECOVER_TS], book, own, result):
            return NEEDS_OUTPUT_ROOM
        work[account, TX.RECOVER] = -1
    if work[account, TX.MODE] == PERHAPS and not lose_patience(account, events[i, EV.TS], own, result):
        return NEEDS_OUTPUT_ROOM
    outcome = ACK if word == ON_ACK else NACK if word == ON_NACK else REJECT
    flag = 1 if events[i, EV.MULTIPLE] == 1 else 0
    multiple = flag if word != ON_REJECT else 0
    if flag == 0:
        slot = lg.slot_of(ledger, account, number)
        if slot < 0:
            last = accounts[account, ACC.LAST]
            newest = lg.slot_of(ledger, account, last) if number > last else -1
            since = ledger[1][newest, SL.FRAME] if newest >= 0 else -1  # gaps before it may hold smaller tags
            if ends[account, CHAN.MISTAKE] == 0 and cn.first_gap(conn, gaps, SERVER, since) < 0:
                ends[account, CHAN.MISTAKE] = events[i, EV.ORDER]  # it was certainly not delivered
        elif not settle(slot, outcome, multiple, more[i, MORE.REQUEUE], events, i, account, book, own, result):
            return NEEDS_ACTS
        return DONE
    ch.note_floor(channels, account, conn, CLIENT)
    floor = accounts[account, ACC.FLOOR]
    slot = lg.first_above(ledger, accounts, account, floor)
    if slot >= 0:
        accounts[account, ACC.FLOOR] = lg.below(ledger, slot, floor)
    slots, named = ledger[1], lg.slot_of(ledger, account, number)
    is_seen = named >= 0 and 0 <= slots[named, SL.EXTRA] < ROLLED
    while slot >= 0 and (number == 0 or lg.number_of(ledger, slot) <= number):
        if state[ST.OUT] >= len(out):
            return NEEDS_OUTPUT_ROOM
        following = lg.following(ledger, slot)
        extra = slots[slot, SL.EXTRA]
        if (is_seen and extra == -1) or (extra == -2 and slot != named):  # of what may not be acknowledged at all
            finish(result, consumers, slots[slot, SL.ROW], NONE, -1, -1, -1, IN_GAP, -1, -1)
            leave_windows(account, extra, slots[slot, SL.FRAME], -1, events[i, EV.TS], 0, own)
            lg.remove(ledger, accounts, slot)
        elif not settle(slot, outcome, multiple, more[i, MORE.REQUEUE], events, i, account, book, own, result):
            return NEEDS_ACTS
        slot = following
    return DONE


@kernel
def settle(
    slot: int, outcome: int, multiple: int, requeue: int, events: Array, i: int, account: int, book: Book, own: Own,
    result: Result,
) -> bool:  # fmt: skip
    """Acknowledge a delivery, at once or perhaps later; return False if there is no room in `acts`.

    It is uncertain where the server may have closed the channel in a gap, because of a mistake of the client.
    """
    conn, gaps, channels, ledger = book
    consumers, transactions, _ = own
    slots, acts = ledger[1], transactions[1]
    row, frame, identity = slots[slot, SL.ROW], slots[slot, SL.FRAME], result[1][ST.BASE] + i
    mode = transactions[0][account, TX.MODE]
    if mode != PLAIN:
        counts = transactions[3]
        if counts[FREE] < 0 and counts[USED] >= len(acts):
            return False
        act = take(acts, ACT.NEXT, counts, FREE, USED)
        append_row(acts, act, ACT.NEXT, transactions[0], account, TX.OPEN, TX.OPEN_LAST)
        acts[act, ACT.ROW] = row
        acts[act, ACT.FRAME] = frame
        extra = slots[slot, SL.EXTRA]
        acts[act, ACT.ROLLED_TS] = acts[extra - ROLLED, ACT.ROLLED_TS] if extra >= ROLLED else -1
        acts[act, ACT.EXTRA] = plain(extra, transactions)
        acts[act, ACT.NUMBER] = lg.number_of(ledger, slot)
        acts[act, ACT.OUTCOME] = outcome
        acts[act, ACT.MULTIPLE] = multiple
        acts[act, ACT.REQUEUE] = requeue
        acts[act, ACT.ACK] = identity
        acts[act, ACT.ACK_FRAME] = events[i, EV.ORDER]
        acts[act, ACT.ACK_TS] = events[i, EV.TS]
        if mode == PERHAPS:
            leave_windows(account, acts[act, ACT.EXTRA], frame, identity, events[i, EV.TS], 1, own)
    else:
        extra = plain(slots[slot, SL.EXTRA], transactions)
        mistake = consumers[3][account, CHAN.MISTAKE]
        lost = cn.first_gap(conn, gaps, SERVER, mistake) if mistake > 0 else -1
        if lost >= 0:
            finish(result, consumers, row, NONE, -1, -1, -1, IN_GAP, gaps[lost, GAP_TS], extra)
        else:
            finish(result, consumers, row, outcome, identity, multiple, requeue, ANSWERED, -1, extra)
        leave_windows(account, extra, frame, identity, events[i, EV.TS], 1 if lost < 0 else 0, own)
        if extra >= 0:
            co.release(consumers, extra, 1)
    lg.remove(ledger, channels[0], slot)
    return True


@kernel
def take_effect(act: int, outcome: int, answer: int, by: int, ts: int, own: Own, result: Result) -> None:
    """Apply an acknowledgement of a transaction, or (NONE) discard it."""
    consumers, transactions, _ = own
    acts = transactions[1]
    extra = acts[act, ACT.EXTRA]
    multiple, requeue = acts[act, ACT.MULTIPLE], acts[act, ACT.REQUEUE]
    if outcome == NONE:
        multiple, requeue = -1, -1
    finish(result, consumers, acts[act, ACT.ROW], outcome, answer, multiple, requeue, by, ts, extra)
    if extra >= 0:
        co.release(consumers, extra, 1)
    tx.free(transactions, act)


@kernel
def lose_patience(account: int, now: int, own: Own, result: Result) -> bool:
    """Apply acknowledgements that waited too long for signs of a transaction; return False if `out` is full."""
    _, transactions, _ = own
    work, acts, _, _ = transactions
    while work[account, TX.OPEN] >= 0:
        act = work[account, TX.OPEN]
        if now - acts[act, ACT.ACK_TS] < PATIENCE_NS:
            return True
        if result[1][ST.OUT] >= len(result[0]):
            return False
        work[account, TX.OPEN] = acts[act, ACT.NEXT]
        take_effect(act, acts[act, ACT.OUTCOME], acts[act, ACT.ACK], ANSWERED, -1, own, result)
    return True


@kernel
def transact(events: Array, i: int, account: int, book: Book, own: Own, result: Result) -> int:
    """Apply a method of the class tx, or confirm.select; return DONE, or what has run out."""
    conn, gaps, _, _ = book
    _, transactions, _ = own
    work, acts, asked, _ = transactions
    word, identity = events[i, EV.WHAT], result[1][ST.BASE] + i
    if word == ON_SELECT or word == ON_CONFIRM:
        if work[account, TX.MODE] == PERHAPS and not lose_patience(account, NEVER, own, result):
            return NEEDS_OUTPUT_ROOM
        work[account, TX.MODE] = SELECTED if word == ON_SELECT else PLAIN
    elif word == ON_COMMIT or word == ON_TX_ROLLBACK:
        work[account, TX.MODE] = SELECTED
        each = take(asked, ASKED.NEXT, transactions[3], ASKED_FREE, ASKED_USED)
        asked[each, ASKED.COMMITS] = 1 if word == ON_COMMIT else 0
        asked[each, ASKED.FRAME] = events[i, EV.ORDER]
        asked[each, ASKED.FIRST] = work[account, TX.OPEN]
        work[account, TX.OPEN] = -1
        append_row(asked, each, ASKED.NEXT, work, account, TX.ASKED, TX.ASKED_LAST)
    else:
        commits = 1 if word == ON_COMMIT_OK else 0
        while work[account, TX.ASKED] >= 0:
            first = work[account, TX.ASKED]
            frame = asked[first, ASKED.FRAME]
            lost = cn.first_gap(conn, gaps, SERVER, frame)
            unsure = lost >= 0 and (asked[first, ASKED.NEXT] >= 0 or cn.first_gap(conn, gaps, CLIENT, frame) >= 0)
            mine = asked[first, ASKED.COMMITS] == commits and not unsure
            while asked[first, ASKED.FIRST] >= 0:
                act = asked[first, ASKED.FIRST]
                if result[1][ST.OUT] >= len(result[0]):
                    return NEEDS_OUTPUT_ROOM
                missed = cn.first_gap(conn, gaps, CLIENT, acts[act, ACT.ACK_FRAME])
                following = acts[act, ACT.NEXT]
                if missed >= 0 and gaps[missed, GAP_FRAME] <= frame:
                    take_effect(act, NONE, -1, IN_GAP, gaps[missed, GAP_TS], own, result)
                elif not mine:
                    ts = gaps[lost, GAP_TS] if lost >= 0 else events[i, EV.TS]
                    take_effect(act, NONE, -1, IN_GAP, ts, own, result)
                elif commits == 1:
                    leave_windows(
                        account, acts[act, ACT.EXTRA], acts[act, ACT.FRAME], identity, events[i, EV.TS], 1, own
                    )
                    take_effect(act, acts[act, ACT.OUTCOME], identity, ANSWERED, -1, own, result)
                elif not bring_back(account, act, events[i, EV.TS], book, own, result):
                    return NEEDS_PAGES
                asked[first, ASKED.FIRST] = following
            over = asked[first, ASKED.COMMITS] == commits and not unsure
            work[account, TX.ASKED] = asked[first, ASKED.NEXT]
            give(asked, ASKED.NEXT, transactions[3], ASKED_FREE, first)
            if over:
                break
    return DONE


@kernel
def bring_back(account: int, act: int, ts: int, book: Book, own: Own, result: Result) -> bool:
    """Make a delivery outstanding again after a rollback; return False if there is no free page."""
    _, _, channels, ledger = book
    _, transactions, _ = own
    acts, slots = transactions[1], ledger[1]
    slot = lg.add(ledger, channels[0], account, acts[act, ACT.NUMBER])
    if slot == -1:
        return False
    if slot < 0 or slots[slot, SL.ROW] >= 0:
        take_effect(act, NONE, -1, ROLLBACK, ts, own, result)
        return True
    slots[slot, SL.ROW] = acts[act, ACT.ROW]
    slots[slot, SL.FRAME] = acts[act, ACT.FRAME]
    slots[slot, SL.EXTRA] = ROLLED + act
    acts[act, ACT.ROLLED_TS] = ts
    return True


@kernel
def void(account: int, until: int, identity: int, ts: int, book: Book, own: Own, result: Result) -> bool:
    """Void what was delivered before a frame, but for what a lost acknowledgement may have settled before the recover.

    Return False if `out` is full.
    """
    conn, gaps, channels, ledger = book
    consumers, transactions, _ = own
    slots, asked = ledger[1], transactions[0][account, TX.RECOVER]
    slot = lg.first_above(ledger, channels[0], account, -1)
    while slot >= 0:
        if result[1][ST.OUT] >= len(result[0]):
            return False
        following = lg.following(ledger, slot)
        if slots[slot, SL.FRAME] < until:
            extra = plain(slots[slot, SL.EXTRA], transactions)
            lost, lost_ts, since = ch.lost_at(channels, account, conn, gaps, CLIENT, slots[slot, SL.FRAME])
            missed = lost < NEVER and (asked < 0 or since < asked)
            by, end_ts = (IN_GAP, lost_ts) if missed else (RECOVER, ts)
            finish(result, consumers, slots[slot, SL.ROW], NONE, -1, -1, -1, by, end_ts, extra)
            leave_windows(account, extra, slots[slot, SL.FRAME], identity, ts, 0, own)
            if extra >= 0:
                co.release(consumers, extra, 1)
            lg.remove(ledger, channels[0], slot)
        slot = following
    return True


@kernel
def drain(account: int, book: Book, own: Own, result: Result) -> bool:
    """End the deliveries of a channel epoch without a settlement; return False if `out` is full: call it again."""
    conn, gaps, channels, ledger = book
    consumers, transactions, _ = own
    out, state = result
    work, acts, asked, _ = transactions
    accounts, slots = channels[0], ledger[1]
    notice_gaps(account, book, own)
    if work[account, TX.MODE] == PERHAPS and not lose_patience(account, NEVER, own, result):
        return False
    while work[account, TX.OPEN] >= 0:  # neither committed nor rolled back
        if state[ST.OUT] >= len(out):
            return False
        act = work[account, TX.OPEN]
        work[account, TX.OPEN] = acts[act, ACT.NEXT]
        by, ts = ch.ending(channels, account, conn, gaps, CLIENT, acts[act, ACT.FRAME])
        if acts[act, ACT.ROLLED_TS] >= 0:
            by, ts = ROLLBACK, acts[act, ACT.ROLLED_TS]
        take_effect(act, NONE, -1, by, ts, own, result)
    while work[account, TX.ASKED] >= 0:
        first = work[account, TX.ASKED]
        lost = cn.first_gap(conn, gaps, SERVER, asked[first, ASKED.FRAME])
        while asked[first, ASKED.FIRST] >= 0:
            if state[ST.OUT] >= len(out):
                return False
            act = asked[first, ASKED.FIRST]
            asked[first, ASKED.FIRST] = acts[act, ACT.NEXT]
            by, ts = ch.ending(channels, account, conn, gaps, CLIENT, acts[act, ACT.FRAME])
            if lost >= 0 and by != DISCARDED:
                by, ts = IN_GAP, gaps[lost, GAP_TS]
            elif acts[act, ACT.ROLLED_TS] >= 0:
                by, ts = ROLLBACK, acts[act, ACT.ROLLED_TS]
            take_effect(act, NONE, -1, by, ts, own, result)
        work[account, TX.ASKED] = asked[first, ASKED.NEXT]
        give(asked, ASKED.NEXT, transactions[3], ASKED_FREE, first)
    if work[account, TX.RECOVER] >= 0:
        if not void(account, work[account, TX.RECOVER], -1, work[account, TX.RECOVER_TS], book, own, result):
            return False
        work[account, TX.RECOVER] = -1
    slot = lg.first_above(ledger, accounts, account, -1)
    while slot >= 0:
        if state[ST.OUT] >= len(out):
            return False
        following = lg.following(ledger, slot)
        frame, extra = slots[slot, SL.FRAME], slots[slot, SL.EXTRA]
        ch.pass_own_gaps(channels, account, frame)
        since = acts[extra - ROLLED, ACT.ACK_FRAME] if extra >= ROLLED else frame
        by, ts = ch.ending(channels, account, conn, gaps, CLIENT, since)
        if extra >= ROLLED and by != IN_GAP:
            by, ts = ROLLBACK, acts[extra - ROLLED, ACT.ROLLED_TS]
        extra = plain(extra, transactions)
        finish(result, consumers, slots[slot, SL.ROW], NONE, -1, -1, -1, by, ts, extra)
        if extra >= 0:
            co.release(consumers, extra, 1)
        lg.remove(ledger, accounts, slot)
        slot = following
    end_channel(account, book, own)
    return True


@kernel
def end_channel(account: int, book: Book, own: Own) -> None:
    """End the windows and consumers of a channel epoch."""
    conn = book[0]
    consumers, _, _ = own
    notice_gaps(account, book, own)
    if cn.is_missing(conn, CLIENT):
        unsure_windows(account, conn[CONN.LAST_FRAME], -1, own)
    seen = 1 if conn[CONN.CLOSED] == 1 else 0
    ts = conn[CONN.SILENCE_TS] if conn[CONN.HAS_ROW] == 1 else conn[CONN.LAST_TS]
    close_windows(account, -1, ts, seen, own)
    while consumers[3][account, CHAN.CONSUMER] >= 0:
        co.end(consumers, consumers[3][account, CHAN.CONSUMER])


@kernel
def close(book: Book, own: Own, result: Result) -> bool:
    """End the connection; return False if `out` is full: call it again."""
    channels = book[2]
    for account in range(channels[3][0]):
        if not drain(account, book, own, result):
            return False
    ch.forget(channels)
    consumers, table, _, _, counts = own[0]
    empty(table, consumers, CONS.ACCOUNT, CONS.TAG, counts[USED])
    for each in (counts, own[1][3]):
        each[FREE] = each[ASKED_FREE] = -1
        each[USED] = each[ASKED_USED] = 0
    return True
